//! The jobs that a scheduler runs on a node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::{Event, Value};

use super::conditions::is_dropped;
use super::liveness::Liveness;
use stepwatch_model::time::Ts;

/// Jobs remembered a node.
const MAX_JOBS: usize = 16;
/// Runs remembered a job.
const MAX_RUNS: usize = 16;

/// By their ids. The end of a job while its exporter is away is not reported; it lapses as a
/// condition does.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Jobs {
    all: BTreeMap<String, Job>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    /// `job 4711 of bob on slurm`.
    text: String,
    last: Ts,
    /// Those that the exporter saw in it.
    runs: Vec<String>,
}

impl Jobs {
    /// One of them, in words.
    pub(crate) fn first(&self) -> Option<&str> {
        self.all.values().next().map(|job| job.text.as_str())
    }

    /// The runs that the exporter saw in a job.
    pub(crate) fn runs(&self, id: &str) -> impl Iterator<Item = &str> {
        self.all.get(id).into_iter().flat_map(|job| &job.runs).map(String::as_str)
    }

    /// A job came or went, or is still there; true if that is news.
    pub(crate) fn take(&mut self, now: Ts, e: &Event) -> bool {
        let word = |key: &str| e.extra.get(key).and_then(Value::as_str).filter(|v| !v.is_empty());
        let Some(id) = word("job") else { return false };
        if e.code == Some(0) {
            return self.all.remove(id).is_some();
        }
        let mut text = format!("job {id}");
        for (before, key) in [(" of ", "user"), (" on ", "scheduler")] {
            if let Some(value) = word(key) {
                text.push_str(before);
                text.push_str(value);
            }
        }
        if self.all.len() >= MAX_JOBS && !self.all.contains_key(id) {
            return false;
        }
        let named = if let Some(Value::List(runs)) = e.extra.get("runs") { runs.as_slice() } else { &[] };
        let runs: Vec<String> =
            named.iter().filter_map(Value::as_str).take(MAX_RUNS).map(str::to_owned).collect();
        let job = Job { text, last: now, runs };
        let same = self.all.get(id).is_some_and(|had| had.text == job.text && had.runs == job.runs);
        self.all.insert(id.to_owned(), job);
        !same
    }

    /// Forgets jobs that the node stopped publishing.
    pub(crate) fn age(&mut self, born: Option<Ts>, heard: &Liveness) {
        self.all.retain(|_, job| !is_dropped(born, job.last, heard));
    }
}
