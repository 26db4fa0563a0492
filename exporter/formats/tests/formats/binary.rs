//! Files that real loggers wrote, compared value by value, and the fuzz corpora of the file
//! readers.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

#[path = "../../fuzz/input.rs"]
mod input;

use std::path::{Path, PathBuf};

use stepwatch_formats::{FileKind, FileReader, HEAD_BYTES, Pushed, kind_of, known_name};
use stepwatch_wire::{Event, Kind};

struct File {
    events: Vec<Event>,
    pushed: Pushed,
    reader: FileReader,
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Reads `name` as if it had been found as `found`.
fn read_as(found: &str, name: &str) -> File {
    let bytes = std::fs::read(path(name)).unwrap();
    let mut reader = FileReader::new(Path::new(found), &bytes[..bytes.len().min(HEAD_BYTES)]).unwrap();
    let mut events = Vec::new();
    let pushed = reader.push(&bytes, true, &mut events);
    assert_eq!(pushed.consumed, bytes.len());
    File { events, pushed, reader }
}

fn read(name: &str) -> File {
    read_as(name, name)
}

impl File {
    fn column(&self, name: &str) -> Vec<(i64, f64)> {
        let steps = self.events.iter().filter(|e| e.kind == Kind::Step);
        steps.filter_map(|e| Some((e.step?, e.m.get(name)?))).collect()
    }
}

#[test]
fn tensorboard() {
    let file = read("events.out.tfevents.1795226853.vm.2246.0");
    assert_eq!((file.reader.name(), file.reader.position()), ("tfevents", 7888));
    assert_eq!(file.pushed, Pushed { consumed: 7888, ..Pushed::default() });
    let loss = file.column("loss");
    assert_eq!(loss.len(), 40);
    for (i, (step, value)) in loss.iter().enumerate() {
        let n = i as i64 + 1;
        let want: f64 = ((1.5 + 10.0 / n as f64) as f32).to_string().parse().unwrap();
        assert!(*step == n && (*value == want || n == 30 && value.is_nan()), "{step}: {value}, not {want}");
    }
    assert_eq!(file.column("grad_norm")[0], (1, 1.01), "as it was logged, and not 1.0099999904632568");
    assert_eq!(file.column("lr")[39], (40, 0.0003));
    assert_eq!(file.column("step_time").iter().filter(|(_, v)| *v == 1.25).count(), 40);
    assert_eq!((file.events[0].ts, file.events[39].ts), (Some(1700000001.25), Some(1700000050.0)));
    assert_eq!(file.events.len(), 40, "four records are one step");
}

#[test]
fn tensorboard_x() {
    let file = read("events.out.tfevents.1795226865.vm");
    let loss = file.column("loss");
    assert_eq!((loss.len(), loss[0], loss[1], loss[19]), (20, (1, 11.5), (2, 6.5), (20, 2.0)));
    assert_eq!(file.column("grad_norm")[19], (20, 1.2));
    assert_eq!(file.pushed.bad_records + file.pushed.unmatched, 0);
}

#[test]
fn wandb() {
    let file = read("wandb_nan_inf.wandb");
    let loss = file.column("loss");
    assert_eq!((loss.len(), loss[0], loss[2], loss[29].0), (30, (0, 11.5), (2, 4.833333333333334), 29));
    let odd: Vec<_> = loss.iter().filter(|(_, v)| !v.is_finite()).collect();
    assert_eq!(format!("{odd:?}"), "[(20, NaN), (21, inf)]");
    assert_eq!(file.column("mfu_reported")[0], (0, 0.41));
    assert_eq!(file.column("grad_norm")[1], (1, 1.1));
    assert_eq!(file.events[1].ts, Some(1795226734.532612));
    assert!(file.events.iter().all(|e| e.run.as_deref() == Some("1onpol40")));
    let (first, last) = (&file.events[0], file.events.last().unwrap());
    assert_eq!((first.kind, last.kind, last.code, last.step), (Kind::Hello, Kind::Bye, Some(0), Some(29)));
    assert_eq!(first.extra["model"].get("name").and_then(|v| v.as_str()), Some("tiny"));
    assert_eq!(file.pushed.bad_records + file.pushed.unmatched, 0);
}

#[test]
fn wandb_of_2021() {
    let file = read("wandb_2021.wandb");
    let seen: Vec<_> = file.events.iter().map(|e| (e.kind, e.run.as_deref(), e.code)).collect();
    assert_eq!(seen, [(Kind::Hello, Some("g9dvvkua"), None), (Kind::Bye, Some("g9dvvkua"), Some(0))]);
    assert_eq!(file.pushed.bad_records, 0);
}

#[test]
fn trainer_state() {
    let file = read_as("output/trainer_state.json", "hf_trainer_state.json");
    let loss = file.column("loss");
    assert_eq!((loss.len(), loss[0], loss[1], loss[24]), (25, (10, 5.4962), (20, 3.355), (250, 1.8857)));
    assert!(file.column("lr").iter().all(|(_, lr)| *lr == 0.0002));
    assert!((file.reader.resolution().get("loss").unwrap() / 1e-4 - 1.0).abs() < 1e-9);
    let file = read_as("output/checkpoint-10000/trainer_state.json", "hf_trainer_state.json");
    assert_eq!(file.events.last().map(|e| (e.kind, e.step)), Some((Kind::Ckpt, Some(10000))));
}

#[test]
fn names() {
    use FileKind::{Lines, Records, Whole};
    for (name, head, kind, known) in [
        ("runs/a/events.out.tfevents.1795226853.vm.2246.0", "", Records, true),
        ("events.out.tfevents.1795226853.vm.v2", "", Records, true),
        ("events.out.tfevents.1795226853.vm.profile-empty", "", Lines, false),
        ("wandb/run-1/run-1.wandb", "", Records, true),
        ("checkpoint-5/trainer_state.json", "", Whole, true),
        ("sft_trainer_state_copy.json", "{\n  \"best_metric\": null,\n  \"log_history\": [", Whole, false),
        ("notes.json", "[\"log_history\"]", Lines, false),
        ("log.jsonl", "{\"log_history\": []}", Lines, true),
        ("latest_checkpointed_iteration.txt", "", Whole, true),
        ("attempt_0/3/error.json", "", Whole, true),
        ("version_0/metrics.csv", "", Whole, true),
        ("version_0/metrics.csv", "epoch,step,train_loss\n", Whole, true),
        // Another table, whose rows are no lines of a log.
        ("metrics.csv", "a,b\n", Records, true),
        ("train_log.csv", "step,loss\n", Records, true),
        ("train_log.txt", "step,loss\n", Records, false),
        ("progress.txt", "", Lines, true),
        ("slurm-123.out", "", Lines, true),
        ("logs/log_1795226853.txt", "", Lines, true),
        ("training.global_rank_0.jsonl", "", Lines, true),
        ("README.txt", "", Lines, false),
        ("config.json", "", Lines, false),
        ("model.safetensors", "", Lines, false),
    ] {
        assert_eq!(
            (kind_of(Path::new(name), head.as_bytes()), known_name(Path::new(name))),
            (kind, known),
            "{name}"
        );
    }
}

/// Whatever a fuzzer once broke stays mended without a fuzzer.
#[test]
fn corpus() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/files");
    let mut counts = vec![0; input::NAMES.len()];
    for entry in std::fs::read_dir(&dir).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let (kind, events) = input::read(&bytes);
        counts[kind] += events.len();
        for name in input::NAMES {
            input::in_pieces(name, &bytes, bytes.len());
        }
    }
    assert!(counts.iter().all(|n| *n > 0), "the corpus has events of every kind: {counts:?}");
}
