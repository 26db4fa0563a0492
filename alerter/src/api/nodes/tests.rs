use serde_json::{Value, json};

use crate::testing::{TestApp, wait_for};

/// Steps of four ranks on one node, of which rank 2 computes a fifth longer, a GPU with readings,
/// and a lost GPU.
fn records(run: &str) -> String {
    let mut lines = Vec::new();
    let mut say = |rest: String| {
        let seq = lines.len() + 1;
        lines.push(format!("{{\"c\":\"b1:{seq}\",\"node\":\"gpu-042\",{rest}}}\n"));
    };
    for step in 0..40 {
        for rank in 0..4 {
            let seconds = if rank == 2 { 1.2 } else { 1.0 };
            say(format!(
                "\"k\":\"step\",\"run\":\"{run}\",\"rank\":{rank},\"world\":4,\"step\":{step},\
                 \"m\":{{\"loss\":2.5,\"step_time\":1.3}},\"t\":{{\"fwd_bwd\":{seconds}}}"
            ));
        }
    }
    let gpu = "\"gpu\":\"GPU-7\",\"pci\":\"0000:17:00.0\",\"index\":3";
    say(format!(
        "\"k\":\"health\",\"name\":\"gpu\",{gpu},\"m\":{{\"temperature_celsius\":61,\"power_watts\":420}}"
    ));
    say(format!(
        "\"k\":\"xid\",\"code\":79,\"level\":\"error\",{gpu},\"text\":\"GPU has fallen off the bus\""
    ));
    say(format!(
        "\"k\":\"hw\",\"name\":\"gpu_lost\",\"code\":1,\"level\":\"error\",{gpu},\"text\":\"GPU 3 is lost\""
    ));
    lines.concat()
}

#[tokio::test]
async fn a_node_shows_its_state_and_what_it_is_made_of() {
    let app = TestApp::start().await;
    app.exporter.say(&records("llama")).await;
    let all = wait_for("the node", async || {
        let all = app.json("/api/v1/nodes").await;
        (all["nodes"][0]["state"] == "faulty" && all["nodes"][0]["runs"][0] == "llama").then_some(all)
    })
    .await;
    let node = &all["nodes"][0];
    assert_eq!(
        (&node["node"], &node["runs"], &node["gpus"]),
        (&json!("gpu-042"), &json!(["llama"]), &json!(1))
    );
    assert_eq!((&node["worst"], &node["conditions"]), (&json!("GPU 3 is lost"), &json!(1)));

    let one = app.json("/api/v1/nodes/gpu-042").await;
    let gpu = &one["gpu_list"][0];
    assert_eq!(
        (&gpu["uuid"], &gpu["index"], &gpu["temperature_celsius"]),
        (&json!("GPU-7"), &json!(3), &json!(61.0))
    );
    assert_eq!(gpu["sm_clock_hertz"], Value::Null);
    let xid = one["condition_list"].as_array().unwrap().iter().find(|c| c["xid"] == 79).unwrap();
    assert_eq!((&xid["holds"], &xid["level"]), (&json!(false), &json!("error")));
    assert!(one["incident_list"].as_array().unwrap().iter().any(|i| i["nodes"][0] == "gpu-042"), "{one}");

    let (status, body) = app.get("/api/v1/nodes/gpu-024").await;
    assert!(status == 404 && body.contains("did you mean \\\"gpu-042\\\"?"), "{body}");
}

#[tokio::test]
async fn ranks_are_shown_beside_each_other() {
    let app = TestApp::start().await;
    app.exporter.say(&records("llama")).await;
    let view = wait_for("the ranks", async || {
        let view = app.json("/api/v1/runs/llama/ranks").await;
        (view["ranks"][2]["excess"].as_f64()? > 0.1 && view["ranks"][2]["last_step"] == 39).then_some(view)
    })
    .await;
    assert_eq!(view["ranks"].as_array().unwrap().len(), 4);
    let slow = &view["ranks"][2];
    assert_eq!(
        (&slow["rank"], &slow["node"], &slow["last_step"]),
        (&json!(2), &json!("gpu-042"), &json!(39))
    );
    assert!((slow["compute_seconds"].as_f64().unwrap() - 1.2).abs() < 0.05, "{slow}");
    let columns = view["steps"].as_array().unwrap().len();
    assert!(
        columns >= 1
            && view["excess"].as_array().unwrap().iter().all(|r| r.as_array().unwrap().len() == columns)
    );
    assert!(view["excess"][2][columns - 1].as_f64().unwrap() > 0.1);

    let two = app.json("/api/v1/runs/llama/ranks?limit=1").await;
    assert_eq!((&two["ranks"][0]["rank"], &two["hidden"]), (&json!(2), &json!(3)));
    assert_eq!(app.get("/api/v1/runs/llama/ranks?limit=0").await.0, 400);
    assert_eq!(app.get("/api/v1/runs/nobody/ranks").await.0, 404);
}

#[tokio::test]
async fn a_limited_token_sees_the_nodes_of_its_runs() {
    let tokens = "api:\n  tokens:\n    - {name: mine, token_file: mine, scopes: [read], runs: [\"llama*\"]}\n    \
                  - {name: other, token_file: other, scopes: [read], runs: [\"x*\"]}\n    \
                  - {name: all, token_file: all, scopes: [read]}\n";
    let token = |name: &str| format!("0123456789abcdef-{name}");
    let files = ["mine", "other", "all"].map(|name| (name, token(name)));
    let app = TestApp::start_with(tokens, &files).await;
    app.exporter.say(&records("llama")).await;
    let get = async |who: &str, path: &str| {
        let request = reqwest::Client::new().get(format!("{}{path}", app.url)).bearer_auth(token(who));
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    wait_for("the node", async || {
        (get("mine", "/api/v1/nodes").await.1["nodes"][0]["node"] == "gpu-042").then_some(())
    })
    .await;
    assert_eq!(get("other", "/api/v1/nodes").await.1["nodes"], json!([]));
    assert_eq!(get("other", "/api/v1/nodes/gpu-042").await.0, 404);
    assert_eq!(get("other", "/api/v1/runs/llama/ranks").await.0, 404);
    assert_eq!(get("all", "/api/v1/nodes/gpu-042").await.0, 200);
}
