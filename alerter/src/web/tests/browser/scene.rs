//! A scene with one of everything that pages show: incidents, a silence, a run with two attempts,
//! its ranks and checkpoints, healthy and faulty nodes.

use serde_json::{Value, json};

use crate::testing::{TestApp, rank_dead, step, wait_for};

const RANKS: u64 = 8;
/// The number of steps of the first attempt, and the first step of the second one.
const FIRST: u64 = 120;
const AGAIN: u64 = 100;
/// The seconds before the first step of an attempt, and of a checkpoint.
const START_SECONDS: f64 = 60.0;
const SAVE_SECONDS: f64 = 41.5;
const STEPS: u64 = 400;

const SCHEDULE: &str = "users: [{name: ann, notify: [hook]}, {name: bob, notify: [hook]}]\nschedules:\n  - {name: primary, time_zone: UTC, \
                        layers: [{name: l, users: [ann], start: 2026-01-05T09:00, rotation: weekly}]}\n";

/// Starts the service with the scene; returns the paths of its pages.
pub(super) async fn with_one_of_everything() -> (TestApp, Vec<String>) {
    // All nodes of the scene have one exporter.
    let app = TestApp::start_with_many_nodes(SCHEDULE).await;
    let id = app.page("llama").await;
    app.exporter.say(&(step(3, "gpt", 7) + &rank_dead(4, "gpt", 1))).await;
    app.exporter.say(&long_run(5)).await;
    let silence = r#"{"matchers":["run=gpt"],"duration":"2h","created_by":"ann","comment":"x"}"#;
    assert_eq!(app.post("/api/v1/silences", "application/json", silence).await.0, 200);
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(2);
    let wish = json!({"schedule": "primary", "user": "bob", "until": until.to_string(), "created_by": "ann", "note": "x"});
    let path = "/api/v1/oncall/overrides";
    assert_eq!(app.post(path, "application/json", &wish.to_string()).await.0, 200);
    wait_for("the run and its ranks", async || {
        // A run is not found before its first report.
        let of_run = async |what: &str| {
            let (status, body) = app.get(&format!("/api/v1/runs/mixtral-8x7b/{what}")).await;
            let known = (status == 200).then_some(body)?;
            serde_json::from_str::<Value>(&known).ok()
        };
        let (history, ranks) = (of_run("attempts").await?, of_run("ranks").await?);
        let known = history["attempts"].as_array()?.len() == 2 && !ranks["steps"].as_array()?.is_empty();
        let nodes = app.json("/api/v1/nodes").await["nodes"].as_array()?.len();
        (known && nodes >= 3).then_some(())
    })
    .await;
    let pages = [
        "/".to_owned(),
        format!("/incidents/{id}"),
        "/silences".into(),
        format!("/silences/new?incident={id}"),
        "/oncall?severity=page".into(),
        "/receivers".into(),
        "/detectors".into(),
        "/runbooks".into(),
        "/runbooks/hang".into(),
        "/incidents/nonsense".into(),
        "/runs".into(),
        "/report".into(),
        "/runs/mixtral-8x7b".into(),
        "/nodes".into(),
        "/nodes/gpu-001".into(),
        "/nodes/gpu-002".into(),
    ];
    (app, pages.into())
}

/// A run that failed once, was started with another driver, and continues with a slow rank.
fn long_run(mut seq: u64) -> String {
    // Chosen so that the last step is now.
    let mut at = jiff::Timestamp::now().as_millisecond() as f64 / 1000.0
        - 4.0 * (STEPS + FIRST - AGAIN) as f64
        - 2.0 * START_SECONDS
        - SAVE_SECONDS * ((STEPS + FIRST - AGAIN) / 50) as f64;
    let mut text = String::new();
    let mut say = |rank: u64, mut record: Value| {
        let node = format!("gpu-{:03}", rank / 4 + 1);
        record["c"] = format!("b1:{seq}").into();
        (record["node"], seq) = (node.into(), seq + 1);
        if record["k"] != "health" && record["k"] != "hw" {
            (record["run"], record["rank"]) = ("mixtral-8x7b".into(), rank.into());
        }
        text.push_str(&record.to_string());
        text.push('\n');
    };
    let driver =
        |version: &str| json!({"k": "health", "name": "config", "fingerprint": version, "driver": version});
    (0..RANKS).step_by(4).for_each(|rank| say(rank, driver("550.54.15")));
    for (attempt, steps) in [(0, 0..FIRST), (1, AGAIN..STEPS)] {
        let schedule = if attempt == 0 { "cosine" } else { "linear" };
        for rank in 0..RANKS {
            let hello = json!({"k": "hello", "ts": at, "job": "4711", "world": RANKS, "attempt": attempt, "model": "mixtral", "schedule": schedule});
            say(rank, hello);
        }
        at += START_SECONDS;
        for n in steps {
            at += 4.0;
            for rank in 0..RANKS {
                let wave = ((n * 7 + rank * 3) % 11) as f64 / 100.0;
                let slow = if rank == 5 && attempt == 1 { 0.5 } else { 0.0 };
                let mut record = json!({
                    "k": "step", "ts": at, "world": RANKS, "attempt": attempt, "step": n,
                    "t": {"data": 0.02, "fwd_bwd": 3.6 + wave / 5.0 + slow, "optim": 0.2},
                });
                if rank == 0 {
                    let loss = 2.0 + 6.0 / (1.0 + n as f64 / 40.0) + wave;
                    record["m"] = json!({
                        "loss": loss, "grad_norm": 0.6 + wave, "lr": 3e-4, "step_time": 4.0 + wave,
                        "mfu": 0.41 - wave / 10.0, "tokens": 4_194_304,
                    });
                }
                say(rank, record);
            }
            if n % 50 == 49 {
                at += SAVE_SECONDS;
                let saved = json!({"k": "ckpt", "ts": at, "phase": "end", "step": n, "seconds": SAVE_SECONDS, "bytes": 9.3e10});
                say(0, saved);
            }
        }
        if attempt == 0 {
            say(
                5,
                json!({"k": "ckpt", "ts": at, "phase": "fail", "step": FIRST, "text": "[Errno 28] No space left on device"}),
            );
            let words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB";
            say(5, json!({"k": "bye", "ts": at, "attempt": 0, "code": 1, "text": words}));
            (0..RANKS).step_by(4).for_each(|rank| say(rank, driver("560.28.03")));
        }
    }
    let lost = json!({
        "k": "hw", "name": "gpu_lost", "code": 1, "level": "error", "gpu": "GPU-7c0f", "text": "GPU 3 has fallen off the bus",
    });
    say(4, lost);
    say(8, driver("560.28.03"));
    text
}
