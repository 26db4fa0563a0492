//! Follows log and JSONL files and publishes the steps they tell of.
//!
//! One thread for each configured entry polls its files, because nothing else works on every file system and because a thread
//! that hangs in a dead NFS mount must hold nobody else. The lines are read by `stepwatch-formats`; what is done here is
//! where to begin, whose run it is, when it was, and to be able to go on after a crash.

mod again;
mod file;
mod follow;
mod name;
mod state;
#[cfg(test)]
mod tests;
mod zone;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stepwatch_formats::{MAX_KEYS, Reader};
use stepwatch_kit::config::Period;
use stepwatch_kit::shutdown::Shutdown;

use super::Sink;
use super::poll::{self, Poll};
use crate::family::Family;
use crate::hub::Hub;
use crate::source::SourceHandle;
use file::TailedFile;

/// Files that one entry follows.
const MAX_FILES: usize = 256;
/// How often a pattern is matched again: directory listings are dear on parallel file systems.
const SCAN_EVERY: Duration = Duration::from_secs(5);

/// A tail has nothing on the page but what every source has.
pub(super) static FAMILIES: &[&Family] = &[];

/// Where to begin in a file that is seen for the first time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// At its start, unless nobody wrote to it for a day: then it is the log of a job that is over, and only what is added counts.
    #[default]
    Auto,
    Start,
    End,
}

/// `tail: {path: /logs/run.log, format: auto, run: llama-70b}`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TailConfig {
    /// A file, or a pattern with `*`, `?`, `[…]` and `**`; relative to the working directory.
    pub path: String,
    /// A name of `stepwatch-formats`; `auto` finds it out.
    #[serde(default = "auto")]
    pub format: String,
    /// The run it belongs to; otherwise what the lines say, or else the name of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The host that it tells of, where that is not this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Of JSON lines: our name for a value (`step`, `ts`, `loss`, …) to the key, dotted, where it stands.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<String, String>,
    #[serde(default)]
    pub from: From,
    #[serde(default = "poll_interval")]
    pub poll_interval: Period,
}

fn auto() -> String {
    "auto".into()
}

fn poll_interval() -> Period {
    Period::millis(250)
}

impl TailConfig {
    /// What is wrong with it, each as `key: reason`.
    pub(super) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.path.is_empty() {
            wrong.push("path: must not be empty".into());
        }
        if let Err(err) = glob::Pattern::new(&self.path) {
            wrong.push(format!("path: {err}"));
        }
        if let Err(err) = Reader::new(Some(&self.format)) {
            wrong.push(format!("format: {err}"));
        }
        if self.keys.len() > MAX_KEYS {
            wrong.push(format!("keys: {} entries, the limit is {MAX_KEYS}", self.keys.len()));
        }
        if !self.keys.is_empty() && !self.keys.contains_key("step") {
            wrong.push("keys: must tell where the step stands (step: ...)".into());
        }
        if !self.keys.is_empty() && !matches!(self.format.as_str(), "auto" | "jsonl") {
            wrong.push(format!("keys: are for JSON lines, but the format is {}", self.format));
        }
        if self.poll_interval < Period::millis(10) {
            wrong.push("poll_interval: must be at least 10ms".into());
        }
        wrong
    }

    fn reader(&self) -> Reader {
        if self.keys.is_empty() {
            // The name was checked when the configuration was read.
            Reader::new(Some(&self.format))
                .or_else(|_| Reader::new(None))
                .unwrap_or_else(|_| Reader::with_keys([]))
        } else {
            Reader::with_keys(self.keys.iter().map(|(ours, theirs)| (ours.as_str(), theirs.as_str())))
        }
    }

    fn is_pattern(&self) -> bool {
        self.path.contains(['*', '?', '['])
    }
}

/// Every file of one configured entry.
pub(super) struct Tail {
    config: TailConfig,
    sink: Box<dyn Sink>,
    state_dir: PathBuf,
    health: SourceHandle,
    files: BTreeMap<PathBuf, TailedFile>,
    next_scan: Option<Instant>,
    /// Files beyond the limit that were already counted.
    refused: BTreeSet<PathBuf>,
}

impl Tail {
    pub(super) fn new(mut config: TailConfig, sink: Box<dyn Sink>, state_dir: &Path) -> Self {
        // A saved position belongs to a file and not to a working directory.
        if let Some(path) =
            std::path::absolute(&config.path).ok().and_then(|p| p.into_os_string().into_string().ok())
        {
            config.path = path;
        }
        let health = sink.source(&config.path, "tail");
        Self {
            config,
            sink,
            state_dir: state_dir.to_owned(),
            health,
            files: BTreeMap::new(),
            next_scan: None,
            refused: BTreeSet::new(),
        }
    }

    /// Reads what is new in every file. True if there is more at once.
    pub(super) fn poll(&mut self, now: Instant, unix: f64) -> bool {
        if self.next_scan.is_none_or(|at| now >= at) {
            self.scan(now, unix);
            self.next_scan = Some(now + SCAN_EVERY);
        }
        let mut more = false;
        let mut up = !self.files.is_empty();
        for file in self.files.values_mut() {
            match file.poll(now, unix, &*self.sink, &self.health) {
                Ok(unfinished) => {
                    more |= unfinished;
                    up &= file.is_open() || self.config.is_pattern();
                }
                Err(err) => {
                    up = false;
                    file.complain(&err);
                }
            }
        }
        self.health.up(up);
        let pattern = self.config.is_pattern();
        self.files.retain(|_, file| {
            let over = pattern && file.is_over();
            if over {
                file.forget();
            }
            !over
        });
        more
    }

    /// Looks for files that were not there before.
    fn scan(&mut self, now: Instant, unix: f64) {
        for path in matching(&self.config) {
            if self.files.contains_key(&path) {
                continue;
            }
            if self.files.len() >= MAX_FILES {
                if self.refused.len() < MAX_FILES && self.refused.insert(path) {
                    self.health.dropped("too_many_files", 1);
                }
                continue;
            }
            let file = TailedFile::new(&self.config, &path, &self.state_dir, now, unix);
            self.files.insert(path, file);
        }
    }
}

/// Files of the entry: the one that is named, whether it exists or not, or those that fit the pattern.
fn matching(config: &TailConfig) -> Vec<PathBuf> {
    if !config.is_pattern() {
        return vec![PathBuf::from(&config.path)];
    }
    let Ok(paths) = glob::glob(&config.path) else { return Vec::new() };
    paths.flatten().filter(|p| p.is_file() && !name::is_rotated(p)).collect()
}

/// Starts the thread of one entry.
pub(super) fn start(config: TailConfig, hub: &Hub, state_dir: &Path, shutdown: Shutdown) {
    start_into(Box::new(hub.clone()), config, state_dir, shutdown);
}

fn start_into(sink: Box<dyn Sink>, config: TailConfig, state_dir: &Path, shutdown: Shutdown) {
    let (path, interval) = (config.path.clone(), config.poll_interval.as_duration());
    let tail = Tail::new(config, sink, state_dir);
    let health = tail.health.clone();
    poll::start("tail", path, health, interval, tail, shutdown);
}

impl Poll for Tail {
    fn poll(&mut self, now: Instant, unix: f64) -> bool {
        Self::poll(self, now, unix)
    }
}
