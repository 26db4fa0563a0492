//! Two real traces of the time that ranks compute: one slow worker, and sequences of uneven length.
//! They must be distinguished.
//!
//! `data/straggler/SOURCES.md` lists where the data come from.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use serde_json::Value;
use stepwatch_alerter::backtest::{self, Args, Format};

fn incidents(name: &str) -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/straggler").join(name);
    let args = Args { files: vec![file], format: Format::Json, ..Args::default() };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    assert!(backtest::run(&args, &mut out, &mut err).unwrap(), "{}", String::from_utf8_lossy(&err));
    let lines = String::from_utf8(out).unwrap();
    let all = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|o| o["summary"].is_null()).collect()
}

/// The eighth profiled step is step 404.
#[test]
fn a_slow_worker_is_named_by_its_eighth_step() {
    let found = incidents("slow_worker.csv");
    let [i] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((i["kind"].as_str(), i["severity"].as_str()), (Some("straggler"), Some("ticket")));
    assert!(i["opened_step"].as_i64().unwrap() <= 404, "{i:#}");
    assert_eq!(i["suspects"][0]["what"], "rank 0");
    assert!((i["value"].as_f64().unwrap() - 2.35).abs() < 0.1, "{i:#}");
}

#[test]
fn uneven_sequences_are_nobodys_fault() {
    let found = incidents("uneven_sequences.csv");
    let [i] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((i["kind"].as_str(), i["severity"].as_str()), (Some("straggler"), Some("ticket")));
    let suspect = &i["suspects"][0];
    assert_eq!(suspect["what"], "no single rank", "{i:#}");
}
