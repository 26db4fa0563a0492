use serde_json::{Value, json};

use crate::testing::{TestApp, wait_for};

/// Step records with a falling loss and a NaN at step 7.
fn steps(seq: u64, run: &str, attempt: u32, steps: core::ops::Range<i64>) -> String {
    let line = |(seq, step): (u64, i64)| {
        let loss = if step == 7 { "NaN".to_owned() } else { format!("{}", 3.0 - step as f64 / 1000.0) };
        format!(
            "{{\"c\":\"b1:{seq}\",\"k\":\"step\",\"ts\":{},\"run\":\"{run}\",\"rank\":0,\"attempt\":{attempt},\
             \"step\":{step},\"m\":{{\"loss\":{loss},\"grad_norm\":0.5,\"step_time\":4.0}}}}\n",
            1_795_227_416 + 4 * step
        )
    };
    (seq..).zip(steps).map(line).collect()
}

/// Waits until the last point of the signal is at this step.
async fn until(app: &TestApp, query: &str, last: i64) -> Value {
    let path = format!("/api/v1/runs/llama/series?{query}");
    wait_for("the series", async || {
        let (status, body) = app.get(&path).await;
        let view: Value = serde_json::from_str(&body).ok()?;
        (status == 200 && view["step"].as_array()?.last()? == last).then_some(view)
    })
    .await
}

#[tokio::test]
async fn a_chart_has_every_step_what_was_expected_and_what_happened() {
    let app = TestApp::start().await;
    app.exporter.say(&steps(1, "llama", 0, 0..200)).await;
    until(&app, "signal=loss", 199).await;
    app.exporter.say(&steps(201, "llama", 1, 150..180)).await;
    until(&app, "signal=loss", 179).await;
    // An incident is listed once it is stored, a moment after its step.
    let view = wait_for("the incident", async || {
        let view = app.json("/api/v1/runs/llama/series?signal=loss").await;
        view["incidents"].as_array().is_some_and(|all| !all.is_empty()).then_some(view)
    })
    .await;
    assert_eq!(view["step"].as_array().unwrap().len(), 180);
    assert_eq!(
        (&view["last"][10], &view["min"][10], &view["count"][10]),
        (&json!(2.99), &json!(2.99), &json!(1))
    );
    assert_eq!(
        (&view["last"][7], &view["count"][7], &view["nonfinite"][7]),
        (&Value::Null, &json!(0), &json!(1))
    );
    assert_eq!(view["time"][10], 1_795_227_456.0);
    let band = ["low", "expected", "high"].map(|bound| view[bound][170].as_f64().unwrap());
    assert!(band[0] < band[1] && band[1] < band[2] && (band[1] - 2.83).abs() < 0.1, "{band:?}");
    assert_eq!((&view["marks"][0]["kind"], &view["marks"][0]["step"]), (&json!("restart"), &json!(150)));
    let nan = &view["incidents"][0];
    assert_eq!((&nan["kind"], &nan["start_step"]), (&json!("nonfinite"), &json!(7)));

    let few = app.json("/api/v1/runs/llama/series?signal=loss&points=10").await;
    let counted =
        |column: &str| few[column].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>();
    assert!(few["step"].as_array().unwrap().len() <= 10);
    assert_eq!((counted("count"), counted("nonfinite")), (179, 1));
    let part = app.json("/api/v1/runs/llama/series?signal=step_time&from=100&to=103").await;
    assert_eq!(part["step"], json!([100, 101, 102, 103]));
    assert_eq!(part["incidents"], json!([]));

    // The family's HELP line is always there, so the test waits for the samples.
    for sample in [
        "train_expected{run=\"llama\",signal=\"loss\",bound=\"high\"} ",
        "train_anomaly_score{run=\"llama\",signal=\"loss\"} ",
        "stepwatch_alerter_series 3",
    ] {
        wait_for(sample, async || {
            let (_, page) = app.get("/metrics").await;
            page.lines().any(|line| line.starts_with(sample)).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_chart_that_is_known_is_not_sent_again() {
    let app = TestApp::start().await;
    app.exporter.say(&steps(1, "llama", 0, 0..20)).await;
    until(&app, "signal=grad_norm", 19).await;
    let url = format!("{}/api/v1/runs/llama/series?signal=grad_norm", app.url);
    let ask = async |tag: &str| {
        let request = reqwest::Client::new().get(&url).header("if-none-match", tag);
        let response = request.send().await.unwrap();
        let tag = response.headers()["etag"].to_str().unwrap().to_owned();
        (response.status().as_u16(), tag, response.text().await.unwrap().len())
    };
    let (status, tag, _) = ask("").await;
    assert_eq!(status, 200);
    assert_eq!(ask(&tag).await, (304, tag.clone(), 0));
    assert_eq!(ask(&format!("\"other\", W/{tag}")).await.0, 304);
    app.exporter.say(&steps(21, "llama", 0, 20..21)).await;
    until(&app, "signal=grad_norm", 20).await;
    let (status, next, _) = ask(&tag).await;
    assert!(status == 200 && next != tag);
}

#[tokio::test]
async fn a_name_that_is_wrong_is_answered_with_the_nearest_one() {
    let app = TestApp::start().await;
    app.exporter.say(&steps(1, "llama", 0, 0..20)).await;
    until(&app, "signal=loss", 19).await;
    let runs = async || app.json("/api/v1/runs").await["runs"].as_array().unwrap().len();
    wait_for("the run in the list", async || (runs().await == 1).then_some(())).await;
    for (path, status, part) in [
        (
            "llama/series?signal=los",
            404,
            "has no signal \"los\"; did you mean \"loss\"? there are grad_norm, loss",
        ),
        ("lama/series?signal=loss", 404, "there is no run \"lama\"; did you mean \"llama\"?"),
        ("llama/series", 400, "missing field `signal`"),
        ("llama/series?signal=loss&points=0", 400, "points: must be a number from 1 to 4096"),
        ("llama/series?signal=loss&points=5000", 400, "points: must be a number from 1 to 4096"),
        ("llama/series?signal=loss&from=x", 400, "from"),
        ("llama/series?signal=loss&colour=red", 400, "colour"),
    ] {
        let (got, body) = app.get(&format!("/api/v1/runs/{path}")).await;
        let error: Value = serde_json::from_str(&body).unwrap();
        let error = error["error"].as_str().unwrap();
        assert!(got == status && error.contains(part), "{path}: {got} {error}");
    }
}

#[tokio::test]
async fn a_restart_of_the_alerter_keeps_the_picture() {
    let app = TestApp::start().await;
    app.exporter.say(&steps(1, "llama", 0, 0..500)).await;
    let before = until(&app, "signal=loss", 499).await;
    let app = app.restart().await;
    let after = until(&app, "signal=loss", 499).await;
    for column in ["step", "time", "last", "expected", "marks"] {
        assert_eq!(after[column], before[column], "{column}");
    }
    app.exporter.say(&steps(501, "llama", 0, 500..510)).await;
    assert_eq!(until(&app, "signal=loss", 509).await["step"].as_array().unwrap().len(), 510);
}

#[tokio::test]
async fn a_limited_token_sees_the_signals_of_its_runs() {
    let tokens =
        "api:\n  tokens:\n    - {name: mine, token_file: mine, scopes: [read], runs: [\"llama*\"]}\n";
    let token = "0123456789abcdef-mine";
    let app = TestApp::start_with(tokens, &[("mine", token.to_owned())]).await;
    app.exporter.say(&(steps(1, "llama", 0, 0..5) + &steps(6, "secret", 0, 0..5))).await;
    let get = async |run: &str| {
        let url = format!("{}/api/v1/runs/{run}/series?signal=loss", app.url);
        let response = reqwest::Client::new().get(url).bearer_auth(token).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    wait_for("the series", async || (get("llama").await.0 == 200).then_some(())).await;
    let (status, error) = get("secret").await;
    assert!(status == 404 && error.contains("there is no run"), "{error}");
    assert_eq!(get("secre").await.1.replace("secre", "secret"), error, "nor whether there is one");
}
