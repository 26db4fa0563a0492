//! How well training anomalies are detected: recordings with labels in, figures out.
//!
//! Two kinds of recordings: real public runs, labelled by hand (`tests/data/runs`), and clean
//! series into which a fault of known kind, size and onset was injected. Both go through the
//! program that is shipped, as files through `backtest`; other detectors may bring the same lines
//! of JSON and are counted by the same rules ([`score`]). Nothing here detects anything, and no
//! rule adjusts an alarm after the fact.

pub mod base;
pub mod cases;
pub mod curves;
pub mod faults;
pub mod label;
pub mod plots;
pub mod random;
pub mod recording;
pub mod replay;
pub mod score;
pub mod svg;
pub mod synthetic;
pub mod table;
pub mod tables;
pub mod variants;
pub mod vary;

use std::path::{Path, PathBuf};

/// The labelled real runs.
pub fn real_runs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/runs")
}
