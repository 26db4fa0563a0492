//! Tests of the attempts and checkpoints of a run.

use crate::testing::{TestApp, wait_for};

#[tokio::test]
async fn a_run_shows_its_attempts_what_changed_and_what_it_saved() {
    let app = TestApp::start().await;
    let mut seq = 0;
    let mut line = |rest: String| {
        seq += 1;
        format!("{{\"c\":\"b1:{seq}\",\"run\":\"llama\",\"rank\":0,\"node\":\"gpu-042\",{rest}}}\n")
    };
    let step = |attempt: u32, step: usize| {
        format!("\"k\":\"step\",\"world\":1,\"attempt\":{attempt},\"step\":{step},\"m\":{{\"loss\":2.5}}")
    };
    let hello = |attempt: u32, schedule: &str| {
        format!("\"k\":\"hello\",\"world\":1,\"attempt\":{attempt},\"schedule\":\"{schedule}\"")
    };
    let mut said = line(hello(0, "cosine"));
    said.extend((0..60).map(|n| line(step(0, n))));
    said +=
        &line("\"k\":\"ckpt\",\"phase\":\"end\",\"step\":50,\"seconds\":41.5,\"bytes\":1.4e12".to_owned());
    said += &line("\"k\":\"ckpt\",\"phase\":\"fail\",\"step\":55,\"text\":\"<b>disk full</b>\"".to_owned());
    said += &line("\"k\":\"bye\",\"code\":1,\"text\":\"CUDA out of memory\",\"attempt\":0".to_owned());
    said += &line(hello(1, "linear"));
    said.extend((51..70).map(|n| line(step(1, n))));
    app.exporter.say(&said).await;
    let history = wait_for("both attempts", async || {
        let history = app.json("/api/v1/runs/llama/attempts").await;
        (history["attempts"].as_array()?.len() == 2 && history["attempts"][0]["last_step"] == 69)
            .then_some(history)
    })
    .await;
    let steps = |i: usize| ["first_step", "last_step"].map(|key| history["attempts"][i][key].as_i64());
    assert_eq!((steps(0), steps(1)), ([Some(51), Some(69)], [Some(0), Some(59)]), "{history}");
    assert_eq!(history["attempts"][1]["end"]["how"], "failed", "{history}");
    assert_eq!(history["attempts"][0]["changes"][0]["after"], "linear", "{history}");
    let (_, page) = app.get("/runs/llama").await;
    for part in [
        "<b>Attempt 2</b> <span class=\"tag up\">goes on</span>",
        "steps 51 to 69</span><span>9 done again</span>",
        "exited with code 1: CUDA out of memory",
        "<td data-label=\"Before\">cosine</td><td data-label=\"Since\">linear</td>",
        "<td class=\"name\">step 50</td>",
        "1.4 TB",
        "&lt;b&gt;disk full&lt;/b&gt;",
    ] {
        let escaped = page.replace("&#60;", "&lt;").replace("&#62;", "&gt;");
        assert!(escaped.contains(part), "{part}: {page}");
    }
    assert_eq!(app.get("/api/v1/runs/nobody/attempts").await.0, 404);
}
