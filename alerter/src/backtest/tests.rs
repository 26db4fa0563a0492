use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::*;

/// Replays files made of these texts, and gives the status, the objects and what was complained about.
fn backtest(files: &[(&str, &str)], config: Option<&str>) -> (bool, Vec<Value>, String) {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| -> PathBuf {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let args = Args {
        files: files.iter().map(|(name, text)| put(name, text)).collect(),
        format: Format::Json,
        config: config.map(|text| put("alerter.yaml", text)),
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let ok = run(&args, &mut out, &mut err).unwrap();
    let objects = String::from_utf8(out).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let err = String::from_utf8(err).unwrap().replace(&format!("{}/", dir.path().display()), "");
    (ok, objects, err)
}

/// A run that is healthy but for what `change` does.
fn csv(n: i64, change: impl Fn(i64) -> Option<f64>) -> String {
    let mut text = "step,loss,grad_norm,step_time_seconds\n".to_owned();
    for step in 1..=n {
        let wobble = 0.02 * (step as f64 * 1.7).sin();
        let loss = change(step).unwrap_or(2.5 + wobble);
        writeln!(text, "{step},{loss},{},2.0", 0.3 + wobble).unwrap();
    }
    text
}

#[test]
fn an_incident_has_the_members_of_the_contract() {
    let text = csv(300, |step| (step == 200).then_some(f64::NAN));
    let (ok, objects, err) = backtest(&[("run.csv", &text)], None);
    assert!(ok && err.is_empty(), "{err}");
    let incident = &objects[0];
    let file = incident["file"].as_str().unwrap();
    assert!(file.ends_with("/run.csv"), "{file}");
    let mut rest = incident.clone();
    rest.as_object_mut().unwrap().remove("file");
    let want = serde_json::json!({
        "kind": "nonfinite", "severity": "page", "signal": "loss", "start_step": 200, "opened_step": 200,
        "detected_step": 200, "end_step": 216, "value": "NaN", "expected": rest["expected"], "score": 1.0, "suspects": [],
    });
    assert_eq!(rest, want);
    let summary = &objects[1]["summary"];
    assert_eq!(summary["samples"], 300);
    assert_eq!((summary["first_step"].as_i64(), summary["last_step"].as_i64()), (Some(1), Some(300)));
    assert_eq!(summary["signals"], serde_json::json!(["loss", "grad_norm", "step_time"]));
    assert_eq!(summary["incidents"], serde_json::json!({"page": 1, "ticket": 0, "info": 0}));
}

#[test]
fn a_bad_line_and_a_bad_file_do_not_stop_the_others() {
    let good = csv(100, |_| None);
    let damaged = good.replace("50,", "fifty,");
    let files = [("damaged.csv", damaged.as_str()), ("empty.csv", ""), ("good.csv", good.as_str())];
    let (ok, objects, err) = backtest(&files, None);
    assert!(!ok);
    let samples: Vec<_> = objects.iter().map(|o| o["summary"]["samples"].as_u64().unwrap()).collect();
    assert_eq!(samples, [99, 100]);
    assert!(err.contains("damaged.csv:51: step is not a number: \"fifty\""), "{err}");
    assert!(err.contains("empty.csv: no training step found"), "{err}");
}

#[test]
fn settings_come_from_the_configuration_and_need_no_receiver() {
    let text = csv(300, |step| (step == 200).then_some(f64::NAN));
    let config = "detectors:\n  nonfinite: {enabled: false}\n";
    let (_, objects, _) = backtest(&[("run.csv", &text)], Some(config));
    assert_eq!(objects.len(), 1, "only the summary: {objects:?}");
}

#[test]
fn events_and_logs_are_read_like_tables() {
    let mut events = String::new();
    let mut log = String::new();
    for step in 1..=120 {
        let loss = if step == 100 {
            "NaN".to_owned()
        } else {
            format!("{:.6}", 2.5 + 0.02 * (f64::from(step) * 1.7).sin())
        };
        writeln!(
            events,
            "{{\"v\":1,\"k\":\"step\",\"run\":\"r\",\"step\":{step},\"m\":{{\"loss\":{loss}}}}}"
        )
        .unwrap();
        writeln!(log, " iteration {step}/ 500 | elapsed time per iteration (ms): 1500.0 | lm loss: {loss} | grad norm: 0.3 |").unwrap();
    }
    let (ok, objects, err) = backtest(&[("run.jsonl", &events), ("run.log", &log)], None);
    assert!(ok, "{err}");
    let incidents: Vec<_> = objects.iter().filter(|o| o["summary"].is_null()).collect();
    assert_eq!(incidents.len(), 2, "{objects:?}");
    assert!(incidents.iter().all(|i| i["kind"] == "nonfinite" && i["detected_step"] == 100), "{incidents:?}");
}

/// Files of real trainers, which the parsers are tested with.
fn recorded(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../exporter/formats/tests/data").join(name)
}

fn summary(path: PathBuf) -> (Value, String) {
    let args = Args { files: vec![path], format: Format::Json, config: None };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    run(&args, &mut out, &mut err).unwrap();
    let last =
        String::from_utf8(out).unwrap().lines().last().map(|l| serde_json::from_str::<Value>(l).unwrap());
    (last.map_or(Value::Null, |v| v["summary"].clone()), String::from_utf8(err).unwrap())
}

#[test]
fn whatever_a_trainer_writes_is_read() {
    let dir = tempfile::tempdir().unwrap();
    // Its name says what it is.
    let state = dir.path().join("trainer_state.json");
    fs::copy(recorded("hf_trainer_state.json"), &state).unwrap();
    let table = dir.path().join("metrics.csv");
    fs::write(&table, "epoch,step,train_loss\n0,49,2.5\n0,99,2.25\n").unwrap();
    let ours = dir.path().join("named.csv");
    fs::write(&ours, csv(5, |_| None)).unwrap();
    let read = [
        recorded("events.out.tfevents.1795226853.vm.2246.0"),
        recorded("events.out.tfevents.1795226865.vm"),
        recorded("wandb_nan_inf.wandb"),
        recorded("nemo_automodel.jsonl"),
        recorded("torchtitan_2026.log"),
        state,
        table,
        ours,
    ]
    .map(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let (summary, err) = summary(path);
        assert_eq!(err, "", "{name}");
        let signals: Vec<_> =
            summary["signals"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
        format!("{name}: {} to {}: {}", summary["first_step"], summary["last_step"], signals.join(" "))
    });
    insta::assert_snapshot!(read.join("\n"), @"
    events.out.tfevents.1795226853.vm.2246.0: 1 to 40: loss grad_norm lr step_time
    events.out.tfevents.1795226865.vm: 1 to 20: loss grad_norm
    wandb_nan_inf.wandb: 0 to 29: loss grad_norm lr step_time mfu_reported
    nemo_automodel.jsonl: 0 to 99: loss grad_norm lr tokens_per_second tokens_per_second_per_gpu mfu_reported
    torchtitan_2026.log: 14 to 16: loss grad_norm tokens_per_second_per_gpu mfu_reported tflops_reported
    trainer_state.json: 10 to 250: loss lr
    metrics.csv: 49 to 99: loss
    named.csv: 1 to 5: loss grad_norm step_time
    ");
}

#[test]
fn what_cannot_be_read_is_told_what_can() {
    let dir = tempfile::tempdir().unwrap();
    let (_, err) = summary(dir.path().into());
    assert!(err.ends_with(": is a directory; name the files in it\n"), "{err}");
    let notes = dir.path().join("notes.txt");
    fs::write(&notes, "dear diary\n").unwrap();
    let (_, err) = summary(notes);
    for kind in
        ["no training step found", "CSV", "TensorBoard", ".wandb", "trainer_state.json", "megatron, jsonl"]
    {
        assert!(err.contains(kind), "{kind} in {err}");
    }
    let damaged = dir.path().join("events.out.tfevents.1.x");
    let mut bytes = fs::read(recorded("events.out.tfevents.1795226865.vm")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    fs::write(&damaged, bytes).unwrap();
    let (summary, err) = summary(damaged);
    assert!(summary["samples"].as_u64().unwrap() > 0, "{summary}");
    assert!(
        err.contains("damaged records were left out") || err.contains("nothing is read from here on"),
        "{err}"
    );
}

#[test]
fn people_get_sentences() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.csv");
    fs::write(&path, csv(300, |step| (step == 200).then_some(f64::NAN))).unwrap();
    let args = Args { files: vec![path], format: Format::Text, config: None };
    let mut out = Vec::new();
    run(&args, &mut out, &mut Vec::new()).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.contains("page   nonfinite        at step 200, since 200, over at 216; loss is NaN"),
        "{text}"
    );
    assert!(text.contains("every further step is wasted until the run is rolled back"), "{text}");
    assert!(text.ends_with("pages: 1, tickets: 0, annotations: 0\n"), "{text}");
}

#[test]
fn a_file_without_a_step_is_told_by_what_is_in_it() {
    let state =
        |history: &str| format!("{{\"global_step\": 5, \"log_history\": [{history}], \"max_steps\": 9}}");
    let (ok, _, err) = backtest(
        &[
            ("copy_of_trainer_state.json", &state("{\"eval_loss\": 2.5, \"step\": 5}")),
            ("trainer_state.json", &state("")),
            ("old.log", "just words\n"),
        ],
        None,
    );
    assert!(!ok);
    assert!(
        err.contains("copy_of_trainer_state.json: no training step found; read as trainer_state: 1 eval\n"),
        "{err}"
    );
    assert!(
        err.contains("\ntrainer_state.json: no training step found; read as trainer_state: nothing\n"),
        "{err}"
    );
    assert!(err.contains("old.log: no training step found; this reads CSV"), "{err}");
    let (ok, objects, err) = backtest(&[("run_7_state.json", &state("{\"loss\": 2.5, \"step\": 5}"))], None);
    assert!(ok && objects[0]["summary"]["samples"] == 1, "{err}");
}
