use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::*;

fn args(files: Vec<PathBuf>) -> Args {
    Args { files, ..Args::default() }
}

/// Replays files with these contents, and returns the status, the JSON objects and the error
/// output.
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
        ..args(Vec::new())
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let ok = run(&args, &mut out, &mut err).unwrap();
    let objects = String::from_utf8(out).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let err = String::from_utf8(err).unwrap().replace(&format!("{}/", dir.path().display()), "");
    (ok, objects, err)
}

/// A healthy run, except for the changes by `change`.
fn csv(n: i64, change: impl Fn(i64) -> Option<f64>) -> String {
    let mut text = "step,loss,grad_norm,step_time_seconds\n".to_owned();
    for step in 1..=n {
        let wobble = 0.02 * (step as f64 * 1.7).sin();
        let loss = change(step).unwrap_or(2.5 + wobble);
        writeln!(text, "{step},{loss},{},2.0", 0.3 + wobble).unwrap();
    }
    text
}

/// A run that logs its first 300 steps one by one and then one in 1,500, with a second per step.
fn thinned(timed: bool, stalls_at: i64) -> String {
    let mut text = if timed { "step,loss,grad_norm,timestamp\n" } else { "step,loss,grad_norm\n" }.to_owned();
    let mut now = 1_795_227_416;
    let mut before = 0;
    for step in (1..=300).chain((1800..30_000).step_by(1500)) {
        let wobble = 0.02 * (step as f64 * 1.7).sin();
        now += step - before + if step == stalls_at { 7200 } else { 0 };
        before = step;
        let ts = if timed { format!(",{now}") } else { String::new() };
        writeln!(text, "{step},{},{}{ts}", 2.5 + wobble, 0.3 + wobble).unwrap();
    }
    text
}

#[test]
fn steps_that_were_left_out_took_their_time_and_are_no_hang() {
    let hangs = |text: &str| {
        let (ok, objects, err) = backtest(&[("run.csv", text)], None);
        assert!(ok, "{err}");
        objects.iter().filter(|o| o["kind"] == "hang").map(|o| o["start_step"].as_i64()).collect::<Vec<_>>()
    };
    assert_eq!(hangs(&thinned(false, 0)), []);
    assert_eq!(hangs(&thinned(true, 0)), []);
    // Rows far apart without any time, as progress bars that count tokens produce.
    let mut tokens = "step,loss\n".to_owned();
    (1..60).for_each(|n| writeln!(tokens, "{},{}", n * 1_500_000, 3.0 - 0.01 * f64::from(n)).unwrap());
    assert_eq!(hangs(&tokens), []);
    // Two runs of one export, one of which ends earlier.
    let mut export = "\"Step\",\"a - loss\",\"a - loss__MIN\",\"b - loss\"\n".to_owned();
    for step in 1..4000 {
        let loss = 2.5 + 0.02 * f64::from(step).sin();
        let shorter = if step < 500 { loss.to_string() } else { String::new() };
        writeln!(export, "{step},{loss},{loss},{shorter}").unwrap();
    }
    assert_eq!(hangs(&export), []);
    for (first, seconds) in [(1500, 2), (0, 2), (1500, 20)] {
        let rows = (first..60_000).step_by(1500);
        let row = |step: i64| {
            format!("{step},{},{}\n", 2.5 + 0.02 * (step as f64).sin(), 1_795_227_416 + step * seconds)
        };
        let sparse: String =
            std::iter::once("step,loss,timestamp\n".to_owned()).chain(rows.map(row)).collect();
        assert_eq!(hangs(&sparse), [], "sparse from its start, {seconds} s a step");
    }
    assert_eq!(hangs(&thinned(true, 1800)), [Some(300)], "two hours more than the steps took");
    assert_eq!(hangs(&thinned(true, 6300)), [Some(4800)], "and where the rows are far apart");
}

#[test]
fn tables_of_others_are_read() {
    let export = format!(
        "\"Step\",\"r - lm_loss\",\"r - lm_loss__MIN\",\"r - lm_loss__MAX\"\n{}",
        (1..200)
            .map(|s| format!("\"{s}\",\"{}\",\"1\",\"9\"\n", if s < 150 { "2.5" } else { "NaN" }))
            .collect::<Vec<_>>()
            .concat()
    );
    let row = |s| format!("{s},2.5,0.3,2026-11-21 02:{:02}:{:02}.500\n", s / 60, s % 60);
    let pandas: Vec<String> = (0..200).map(row).collect();
    let pandas = format!("step,loss,grad_norm,timestamp\n{}", pandas.concat());
    let nulls: Vec<String> = (0..200)
        .map(|s| format!("{{\"step\":{s},\"data\":{{\"actor/pg_loss\":{0},\"actor/grad_norm\":{0},\"actor/lr\":0.1}}}}\n", if s < 150 { "0.5" } else { "null" }))
        .collect();
    let files = [("export.csv", export.as_str()), ("pandas.csv", &pandas), ("verl.jsonl", &nulls.concat())];
    let (ok, objects, err) = backtest(&files, None);
    assert!(ok && err.is_empty(), "{err}");
    let found: Vec<_> = objects
        .iter()
        .filter(|o| o["severity"] == "page")
        .map(|o| {
            (
                o["file"].as_str().unwrap().rsplit('/').next().unwrap(),
                o["kind"].as_str().unwrap(),
                o["start_step"].as_i64().unwrap(),
            )
        })
        .collect();
    assert_eq!(found, [("export.csv", "nonfinite", 150), ("verl.jsonl", "nonfinite", 150)]);
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

/// Files of real trainers, which also test the parsers.
fn recorded(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../exporter/formats/tests/data").join(name)
}

fn summary(path: PathBuf) -> (Value, String) {
    let args = Args { format: Format::Json, ..args(vec![path]) };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    run(&args, &mut out, &mut err).unwrap();
    let last =
        String::from_utf8(out).unwrap().lines().last().map(|l| serde_json::from_str::<Value>(l).unwrap());
    (last.map_or(Value::Null, |v| v["summary"].clone()), String::from_utf8(err).unwrap())
}

/// The author of a file chooses its name, so the name is untrusted.
#[test]
fn the_name_of_a_file_steers_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a\u{1b}[31m\u{202e}b.csv");
    fs::write(&path, csv(5, |_| None)).unwrap();
    let (summary, err) = summary(path);
    let name = summary["file"].as_str().unwrap();
    assert!(name.ends_with("/a[31mb.csv") && err.is_empty(), "{name:?} {err:?}");
}

#[test]
fn whatever_a_trainer_writes_is_read() {
    let dir = tempfile::tempdir().unwrap();
    // The file name determines the format.
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
fn unreadable_input_is_refused_with_what_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
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
    let args = args(vec![path]);
    let mut out = Vec::new();
    run(&args, &mut out, &mut Vec::new()).unwrap();
    let text = String::from_utf8(out).unwrap();
    let sentence = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("\n  PAGE    NaN or infinity at step 200\n"), "{text}");
    assert!(text.contains("began at step 200, page at 200 (at once), over at 216, resolved after"), "{text}");
    assert!(
        sentence.contains(
            "every further step is wasted until the loss is finite again or the run is rolled back"
        ),
        "{text}"
    );
    assert!(text.contains("\n  pages: 1, tickets: 0, annotations: 0\n"), "{text}");
}

#[test]
fn a_file_without_a_step_is_recognised_by_its_contents() {
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

#[test]
fn a_file_is_known_by_what_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    for (from, to) in [
        ("events.out.tfevents.1795226853.vm.2246.0", "board.bin"),
        ("wandb_nan_inf.wandb", "old-run"),
        ("hf_trainer_state.json", "trainer_state.json.bak"),
        ("nemo_automodel.jsonl", "metrics.txt"),
    ] {
        let path = dir.path().join(to);
        fs::copy(recorded(from), &path).unwrap();
        let (summary, err) = summary(path);
        assert!(err.is_empty() && summary["samples"].as_u64().unwrap() >= 20, "{from}: {err} {summary}");
    }
    let table = dir.path().join("sheet.tsv");
    fs::write(&table, "global_step\ttrain/loss\n1\t2.5\n2\t2.4\n").unwrap();
    assert_eq!(summary(table).0["signals"], serde_json::json!(["loss"]));
}

#[test]
fn a_directory_stands_for_the_runs_in_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("a")).unwrap();
    fs::write(dir.path().join("a/run.csv"), csv(30, |_| None)).unwrap();
    fs::write(dir.path().join("notes.txt"), "dear diary\n").unwrap();
    fs::copy(recorded("torchtitan_2026.log"), dir.path().join("train.log")).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let ok = run(&args(vec![dir.path().into()]), &mut out, &mut err).unwrap();
    let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
    assert!(ok && err.is_empty(), "{err}");
    assert!(out.contains("/a/run.csv\n") && out.contains("/train.log\n"), "{out}");
    assert!(out.lines().last().unwrap().starts_with("2 runs, "), "{out}");
    fs::remove_file(dir.path().join("a/run.csv")).unwrap();
    fs::remove_file(dir.path().join("train.log")).unwrap();
    let mut err = Vec::new();
    assert!(!run(&args(vec![dir.path().into()]), &mut Vec::new(), &mut err).unwrap());
    assert_eq!(String::from_utf8(err).unwrap(), "no training run in 1 files\n");
}

/// The HTML report about these files.
fn page(files: &[(&str, &str)], config: Option<&str>, tune: Option<&str>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| -> PathBuf {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let html = dir.path().join("report.html");
    let args = Args {
        html: Some(html.clone()),
        config: config.map(|text| put("alerter.yaml", text)),
        tune: tune.map(str::to_owned),
        ..args(files.iter().map(|(name, text)| put(name, text)).collect())
    };
    run(&args, &mut Vec::new(), &mut Vec::new()).unwrap();
    fs::read_to_string(html).unwrap()
}

const CONFIG: &str = "\
cost_per_gpu_hour: 2.5
receivers:
  - {name: chat, slack: {channel: '#training', token_file: /nowhere/slack}}
  - {name: primary, pagerduty: {routing_key_file: /nowhere/pd}}
policies:
  - name: wake
    levels: [{after: 0s, notify: [chat]}, {after: 5m, notify: [primary], repeat: 2}]
routes:
  - {match: ['severity=\"page\"', 'signal=\"loss\"'], policy: wake}
  - {notify: [chat]}
";

#[test]
fn the_page_shows_who_would_have_been_notified_by_which_rule() {
    let text = csv(600, |step| (step >= 200).then_some(f64::NAN));
    let page = page(&[("run.csv", &text)], Some(CONFIG), None);
    for part in [
        "routes[0], severity=&quot;page&quot; and signal=&quot;loss&quot; -&gt; policy wake: chat at once; primary after 5m, 2 more times",
        "chat: at once, at step 200 (new incident)",
        "primary: after 5m, at step 349 (escalated to level 2: no answer for 5m)",
        "NaN / inf",
        "onset, page 200",
        "unknown number of GPUs: nothing says how many its processes have",
        "still open at the end",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
}

#[test]
fn the_page_needs_nothing_and_runs_nothing() {
    let text = csv(300, |step| (step == 200).then_some(f64::NAN));
    let page = page(&[("run.csv", &text)], None, Some("loss_spike"));
    for part in ["<script", "src=", "style=", "@import", "url(", "onload", "javascript:"] {
        assert!(!page.contains(part), "{part}");
    }
    assert!(page.contains("default-src 'none'; style-src 'sha256-"));
    assert!(page.contains("Sensitivity of loss_spike"), "the trade-off is part of it");
    assert!(page.ends_with("</body></html>\n"));
}

#[test]
fn hostile_names_stay_text() {
    let mut events = String::new();
    for step in 1..=120 {
        let loss = if step == 100 { "\"NaN\"" } else { "2.5" };
        writeln!(events, "{{\"v\":1,\"k\":\"step\",\"run\":\"</title><script>alert(1)</script>\",\"node\":\"<b>\",\"step\":{step},\"m\":{{\"loss\":{loss},\"<img src=x>\":1}}}}").unwrap();
    }
    let page = page(&[("<script>alert(2)<&\"'.jsonl", &events)], None, None);
    assert!(!page.contains("<script") && !page.contains("<img") && !page.contains("<b>NaN"), "{page}");
    assert!(page.contains("&lt;script&gt;alert(2)&lt;&amp;&quot;&#39;.jsonl"), "{page}");
}

/// A run with spikes of these sizes at round steps.
fn spiky(sizes: &[f64]) -> String {
    csv(300 * (sizes.len() as i64 + 1), |step| {
        let at = (step % 300 == 0).then_some(step / 300 - 1)?;
        sizes.get(at as usize).map(|size| 2.5 + size)
    })
}

fn tuned(labels: Option<&str>) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.csv");
    fs::write(&path, spiky(&[1.0, 1.2, 3.0])).unwrap();
    let labels = labels.map(|text| {
        let path = dir.path().join("labels.csv");
        fs::write(&path, text).unwrap();
        path
    });
    let args = Args { format: Format::Json, tune: Some("loss_spike".into()), labels, ..args(vec![path]) };
    let mut out = Vec::new();
    run(&args, &mut out, &mut Vec::new()).unwrap();
    let last = String::from_utf8(out).unwrap().lines().last().unwrap().to_owned();
    serde_json::from_str::<Value>(&last).unwrap()["tune"].clone()
}

fn outcome<'a>(tune: &'a Value, setting: &str) -> &'a Value {
    tune["settings"].as_array().unwrap().iter().find(|s| s["setting"] == setting).unwrap()
}

#[test]
fn less_sensitive_is_quieter_and_finds_less() {
    let tune = tuned(None);
    let (off, now) = (outcome(&tune, "off"), outcome(&tune, "now"));
    assert_eq!((off["tickets"].as_u64(), now["tickets"].as_u64()), (Some(0), Some(3)), "{tune}");
    assert_eq!(
        (now["found"].as_u64(), now["of"].as_u64(), off["found"].as_u64()),
        (Some(3), Some(3), Some(0))
    );
    assert_eq!(now["median_delay_steps"], 0.0);
    let settings = tune["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 26);
    let bluntest = settings.last().unwrap();
    assert!(bluntest["found"].as_u64() < now["found"].as_u64(), "{bluntest}");
    assert!(tune["run_weeks"].as_f64().unwrap() > 0.0);
}

#[test]
fn labels_say_what_is_false_and_what_must_be_found() {
    let tune = tuned(Some("file,start_step,end_step,severity\nrun,600,605,ticket\nrun,900,905,info\n"));
    let now = outcome(&tune, "now");
    assert_eq!((now["found"].as_u64(), now["of"].as_u64()), (Some(1), Some(1)), "{tune}");
    assert_eq!((now["false_pages"].as_u64(), now["false_tickets"].as_u64()), (Some(0), Some(1)));
}

#[test]
fn a_configuration_that_contradicts_itself_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (run_file, config) = (dir.path().join("run.csv"), dir.path().join("alerter.yaml"));
    fs::write(&run_file, csv(30, |_| None)).unwrap();
    fs::write(&config, "routes:\n  - {notify: [nobody]}\n").unwrap();
    let args = Args { config: Some(config), ..args(vec![run_file]) };
    let e = run(&args, &mut Vec::new(), &mut Vec::new()).unwrap_err();
    assert!(e.to_string().contains("there is no receiver \"nobody\""), "{e}");
}
