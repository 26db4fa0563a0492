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
        "<b>Attempt 1</b> <span class=\"tag up\">goes on</span>",
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

#[tokio::test]
async fn a_run_shows_the_stages_of_its_checkpoints() {
    let app = TestApp::start().await;
    let (mut seq, mut said) = (0, String::new());
    let mut say = |at: u32, rest: &str| {
        seq += 1;
        let head = format!("\"c\":\"b1:{seq}\",\"run\":\"llama\",\"rank\":0,\"node\":\"gpu-042\"");
        let line = format!("{{{head},\"ts\":{}.0,{rest}}}\n", 1_795_227_400 + at);
        said += &line;
    };
    let ckpt = |stage: &str, phase: &str, step: u32, more: &str| {
        format!(
            "\"k\":\"ckpt\",\"stage\":\"{stage}\",\"phase\":\"{phase}\",\"step\":{step},\"path\":\"/c/<{step}>\"{more}"
        )
    };
    let step = |step: u32| format!("\"k\":\"step\",\"world\":1,\"step\":{step},\"m\":{{\"loss\":2.5}}");
    say(0, &ckpt("load", "start", 10, ""));
    say(90, &ckpt("load", "end", 10, ""));
    (11..=20).for_each(|n| say(90 + n, &step(n)));
    say(110, &ckpt("save", "start", 20, ""));
    say(113, &ckpt("save", "end", 20, ""));
    say(113, &ckpt("write", "start", 20, ""));
    say(173, &ckpt("write", "end", 20, ""));
    say(173, &ckpt("upload", "start", 20, ""));
    say(175, &ckpt("upload", "fail", 20, ",\"text\":\"no space\""));
    (21..=40).for_each(|n| say(160 + n, &step(n)));
    say(200, &ckpt("save", "start", 40, ""));
    say(202, &ckpt("save", "end", 40, ""));
    say(202, &ckpt("write", "start", 40, ""));
    say(232, &ckpt("write", "end", 40, ""));
    say(240, &ckpt("durable", "end", 40, ",\"bytes\":2.5e9"));
    say(241, &step(41));
    say(250, &ckpt("save", "start", 41, ""));
    say(252, &ckpt("save", "end", 41, ""));
    say(252, &ckpt("write", "start", 41, ""));
    app.exporter.say(&said).await;
    let history = wait_for("three checkpoints", async || {
        let history = app.json("/api/v1/runs/llama/attempts").await;
        (history["stages"][0]["stages"].as_array()?.len() == 2 && history["stages"].as_array()?.len() == 3)
            .then_some(history)
    })
    .await;
    let durable = &history["stages"][1];
    assert_eq!(
        (durable["step"].as_i64(), durable["path"].as_str()),
        (Some(40), Some("/c/<40>")),
        "{history}"
    );
    assert_eq!(
        (durable["counts"].as_bool(), durable["bytes"].as_f64()),
        (Some(true), Some(2.5e9)),
        "{history}"
    );
    let write = &durable["stages"][1];
    assert_eq!(
        (write["stage"].as_str(), write["seconds"].as_f64()),
        (Some("write"), Some(30.0)),
        "{history}"
    );
    assert_eq!(write["started_at"], "2026-11-21T02:20:02.000Z", "{history}");
    assert_eq!(write["ended_at"], "2026-11-21T02:20:32.000Z", "{history}");
    let failed = &history["stages"][2]["stages"][2];
    assert_eq!(
        (failed["stage"].as_str(), failed["failed"].as_bool()),
        (Some("upload"), Some(true)),
        "{history}"
    );
    assert_eq!(history["load"]["stages"][0]["seconds"], 90.0, "{history}");
    let (_, page) = app.get("/runs/llama").await;
    let escaped = page.replace("&#60;", "&lt;").replace("&#62;", "&gt;");
    for part in [
        "step 41 <span class=\"tag info\">not yet whole</span>",
        "<td class=\"num\" data-label=\"Write\">goes on</td>",
        "step 40 <span class=\"tag up\">whole</span>",
        "<td class=\"num\" data-label=\"Save\">2s</td><td class=\"num\" data-label=\"Write\">30s</td>",
        "<td class=\"num\" data-label=\"Durable\">38s after the save</td>",
        "<td class=\"num\" data-label=\"Size\">2.5 GB</td><td data-label=\"Where\">/c/&lt;40&gt;</td>",
        "step 20 <span class=\"tag failed\">failed</span>",
        "<td class=\"num\" data-label=\"Upload\">failed</td>",
        "The checkpoint of step 10 was loaded in 1m 30s from /c/&lt;10&gt;",
    ] {
        assert!(escaped.contains(part), "{part}: {page}");
    }
}
