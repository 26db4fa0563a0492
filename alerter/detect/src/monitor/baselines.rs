//! The usual speed of runs that do the same work on as many ranks, and how they began, kept beyond
//! their end. Only a comparison with it finds a run that is slow from its start, or whose first
//! start is.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stepwatch_wire::names::setting::{DIFFERS_BY_RANK, SET};
use stepwatch_wire::setting::{Topic, VISIBLE_GPUS, grows_work, is_of_work, topic};

use super::run::Run;
use super::{Key, Monitor};
use crate::detector::shared::Standard;
use crate::run::{Setup, StartUp};
use stepwatch_model::time::Ts;

/// The most configurations kept; above it, the one that was used longest ago is dropped and
/// counted.
const MAX_BASELINES: usize = 1000;
/// The weight of a run that is slower than the runs before it. A single slow run may have a bad
/// node; if all are slow, that becomes the usual speed.
const SLOWER: f64 = 1.0 / 3.0;
/// The most starts kept of a configuration: the latest.
const MAX_STARTS: usize = 8;
/// The setting of a node with the kinds of its GPUs.
const GPUS: &str = "gpus";
/// Logarithms of speed that differ by less are the same speed.
const SAME: f64 = 1e-3;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Baseline {
    standard: Standard,
    /// The run that was measured last.
    by: MeasuredRun,
    at: Ts,
    /// How the latest runs began, and the last of these runs.
    starts: Vec<StartUp>,
    started: Option<MeasuredRun>,
}

/// A run, identified by its start as well: a new run may have the name of a forgotten one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MeasuredRun {
    run: String,
    first_seen: Ts,
}

impl Baseline {
    /// Updates the baseline with the speed of a run; true if that changes anything.
    fn take(&mut self, now: Ts, by: &MeasuredRun, settled: Standard) -> bool {
        self.at = now;
        let better = settled.slowness - self.standard.slowness;
        let other = self.by != *by || self.standard.source != settled.source;
        if self.standard.source != settled.source {
            self.standard = settled;
        } else if better < -SAME {
            self.standard.slowness = settled.slowness;
        } else if other {
            self.standard.slowness += SLOWER * better.max(0.0);
        }
        if self.by != *by {
            self.standard.runs = self.standard.runs.saturating_add(1);
            self.by = by.clone();
        }
        other || better < -SAME
    }

    /// Takes in how a run began; true if that is news.
    fn take_start(&mut self, by: &MeasuredRun, start: Option<StartUp>) -> bool {
        let Some(start) = start.filter(|_| self.started.as_ref() != Some(by)) else { return false };
        if self.starts.len() >= MAX_STARTS {
            self.starts.remove(0);
        }
        self.starts.push(start);
        self.started = Some(by.clone());
        true
    }
}

impl Monitor {
    /// Compares a run with the runs before it, and updates the baseline for the runs after it.
    pub(super) fn measure(&mut self, now: Ts, name: &str) {
        let Some(run) = self.runs.get_mut(name).filter(|run| run.wants_standard()) else { return };
        let Some(key) = configuration(run) else { return };
        let by = MeasuredRun { run: name.to_owned(), first_seen: run.state.first_seen };
        if let Some(held) = self.baselines.get(&key).filter(|held| held.by != by) {
            run.measure_by(held.standard);
        }
        let Some(settled) = run.settled() else { return };
        let start = run.state.attempts.start.as_deref().cloned();
        let changed = if let Some(held) = self.baselines.get_mut(&key) {
            let is_news = held.take_start(&by, start);
            held.take(now, &by, settled) || is_news
        } else {
            self.make_room();
            let started = start.is_some().then(|| by.clone());
            let starts = start.into_iter().collect();
            self.baselines.insert(key.clone(), Baseline { standard: settled, by, at: now, starts, started });
            true
        };
        if changed {
            self.dirty.insert(Key::Baseline(key));
        }
    }

    /// Gives a run that has not come to its first step the starts of runs like it.
    pub(super) fn compare_start(&mut self, name: &str) {
        let Some(run) = self.runs.get_mut(name).filter(|run| run.wants_starts()) else { return };
        let held = configuration(run).and_then(|key| self.baselines.get(&key));
        run.state.compare_start(held.map(|held| held.starts.as_slice()).unwrap_or_default());
    }

    fn make_room(&mut self) {
        if self.baselines.len() < MAX_BASELINES {
            return;
        }
        let oldest = self.baselines.iter().min_by_key(|(_, held)| held.at).map(|(key, _)| key.clone());
        if let Some(key) = oldest {
            self.baselines.remove(&key);
            self.dirty.insert(Key::Baseline(key));
            self.dropped_baselines += 1;
        }
    }

    /// Configurations whose usual speed was forgotten to make room.
    pub fn dropped_baselines(&self) -> u64 {
        self.dropped_baselines
    }
}

/// The key of a run: the work on which all its nodes agree, its size, its kinds of GPU, and what
/// it declares of its work. `None` if the nodes differ, or if the work is not known.
pub(super) fn configuration(run: &Run) -> Option<String> {
    let f = &run.state;
    let variants = f.config_groups.variants(true);
    let mut all = variants.iter().map(|variant| work(&variant.setup));
    let first = all.next()??;
    let declared = f.attempts.declared().chain(&f.labels).filter(|(name, _)| is_of_work(name));
    let declared: Vec<(&str, &str)> = declared.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    if declared.iter().any(|(name, value)| is_unknown(name, value)) {
        return None;
    }
    let nodes = f.config_groups.variants(false);
    let gpus: BTreeSet<&str> =
        nodes.iter().filter_map(|variant| variant.setup.keys.get(GPUS)).map(String::as_str).collect();
    let more = declared.into_iter().chain(gpus.into_iter().map(|kind| (GPUS, kind)));
    let more = stepwatch_model::fingerprint(more);
    all.all(|other| other.as_ref() == Some(&first))
        .then(|| format!("{}/{first}/{more:016x}", f.ranks_known()))
}

/// Whether it is not known how much work a step is: the value of what surely decides is not shown,
/// or steps become larger, and the beginning of a run does less than the end of the one before.
fn is_unknown(key: &str, value: &str) -> bool {
    (value == SET && topic(key) == Topic::Work) || grows_work(key, value)
}

/// The fingerprint of the settings that may decide how much work a step is: arguments, files, and
/// the GPUs of a process. Another version, variable or backend must not be another work, because
/// what it costs shows only in a comparison. Without such a setting, the fingerprint of all. `None`
/// if the work is not known.
fn work(setup: &Setup) -> Option<String> {
    let is_work = |(key, value): &(&String, &String)| is_of_work(key) && value.as_str() != DIFFERS_BY_RANK;
    let works: Vec<(&str, &str)> =
        setup.keys.iter().filter(is_work).map(|(key, value)| (key.as_str(), value.as_str())).collect();
    if works.iter().any(|(key, value)| is_unknown(key, value)) {
        return None;
    }
    if works.iter().all(|(key, _)| *key == VISIBLE_GPUS) {
        return Some(setup.fingerprint.clone());
    }
    Some(format!("{:016x}", stepwatch_model::fingerprint(works.into_iter())))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stepwatch_wire::{Event, Kind as EventKind, Value, names::metric};

    use super::*;
    use crate::Input;
    use stepwatch_model::{Detected, Kind, Severity};

    const START: Ts = Ts(1_795_227_416_000);

    fn feed(monitor: &mut Monitor, at: Ts, event: &Event) -> Vec<Detected> {
        let mut out = Vec::new();
        monitor.handle(at, Input::Event { source: "node001:9765", event }, &mut out);
        out
    }

    /// Feeds a run of 600 steps on one node, and returns what was opened.
    fn run(
        monitor: &mut Monitor,
        name: &str,
        from: i64,
        fingerprint: &str,
        seconds: f64,
    ) -> Vec<(Kind, Severity)> {
        let mut opened = Vec::new();
        for step in 1..=600 {
            let now = Ts(START.0 + (from + step) * 2000);
            let mut e = Event::step(name, step);
            (e.rank, e.node, e.ts) = (Some(0), Some("node001".into()), Some(now.as_secs_f64()));
            e.m.set(metric::LOSS, 2.0 + 0.01 * (step % 7) as f64);
            e.m.set(metric::STEP_TIME, seconds * (1.0 + 0.001 * (step % 5) as f64));
            let mut out = feed(monitor, now, &e);
            if step == 1 {
                let mut setup = Event {
                    node: Some("node001".into()),
                    name: Some("config".into()),
                    run: Some(name.into()),
                    ..Event::new(EventKind::Health)
                };
                setup.extra.insert("fingerprint".into(), Value::Text(fingerprint.into()));
                out.extend(feed(monitor, now, &setup));
            }
            for effect in out {
                let Detected::Finding { finding: f, .. } = effect else { continue };
                if f.change.raises() && !opened.contains(&(f.kind, f.severity)) {
                    opened.push((f.kind, f.severity));
                }
            }
        }
        opened
    }

    #[test]
    fn a_run_is_measured_by_the_one_before_it_also_after_a_restart_of_ours() {
        let mut monitor = Monitor::default();
        assert!(run(&mut monitor, "monday", 0, "f1", 2.0).is_empty());
        let parts: Vec<_> = monitor.take_dirty().into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
        let (mut monitor, unusable) = Monitor::restore(Arc::default(), parts);
        assert!(unusable.is_empty(), "{unusable:?}");
        let slow = [(Kind::SlowStart, Severity::Ticket)];
        assert_eq!(run(&mut monitor, "tuesday", 1000, "f1", 2.1), slow);
        assert!(run(&mut monitor, "another", 2000, "f2", 2.1).is_empty(), "of another configuration");
    }

    /// Begins a run on one node, with a setup.
    fn begin(monitor: &mut Monitor, name: &str, at: i64) {
        let now = Ts(START.0 + at * 2000);
        let mut hello =
            Event { run: Some(name.into()), rank: Some(0), world: Some(1), ..Event::new(EventKind::Hello) };
        hello.node = Some("node001".into());
        feed(monitor, now, &hello);
        let mut setup = Event {
            node: Some("node001".into()),
            name: Some("config".into()),
            ..Event::new(EventKind::Health)
        };
        setup.run = Some(name.into());
        setup.extra.insert("fingerprint".into(), Value::Text("f1".into()));
        feed(monitor, now, &setup);
    }

    #[test]
    fn the_first_start_of_a_run_is_compared_with_those_of_runs_like_it() {
        let mut monitor = Monitor::default();
        let usual = |monitor: &Monitor, name| {
            let attempts = &monitor.run(name).unwrap().state.attempts;
            attempts.usual_start(0).map(|usual| (usual.starts, usual.greeted_ms))
        };
        begin(&mut monitor, "monday", -10);
        run(&mut monitor, "monday", 0, "f1", 2.0);
        assert_eq!(usual(&monitor, "monday"), None);
        begin(&mut monitor, "tuesday", 990);
        // Eleven times two seconds from its hello to the report of its first step.
        assert_eq!(usual(&monitor, "tuesday"), Some((1, 22_000)));
        run(&mut monitor, "tuesday", 1000, "f1", 2.0);
        begin(&mut monitor, "wednesday", 1990);
        assert_eq!(usual(&monitor, "wednesday"), Some((2, 22_000)));
    }

    /// What a run with these settings does.
    fn work_of(settings: &[(&str, &str)]) -> Option<String> {
        let keys = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        work(&Setup { of_run: true, fingerprint: "f".into(), keys })
    }

    #[test]
    fn runs_on_other_gpus_or_with_another_declared_work_are_not_compared() {
        let key = |gpus: &str, hello: &str| {
            let mut monitor = Monitor::default();
            begin(&mut monitor, "r", 0);
            let node = format!(
                r#"{{"k":"health","name":"config","node":"node001","fingerprint":"{gpus}","gpus":"{gpus}"}}"#
            );
            let hello = format!(r#"{{"k":"hello","run":"r","rank":0,"world":1,"node":"node001",{hello}}}"#);
            for (i, line) in (1..).zip([node, hello]) {
                feed(&mut monitor, Ts(START.0 + i * 1000), &Event::parse(line.as_bytes()).unwrap());
            }
            configuration(monitor.run("r").unwrap())
        };
        let usual = key("H100", r#""model":{"seq_len":4096},"lr":1"#);
        assert!(usual.is_some());
        assert_eq!(key("H100", r#""model":{"seq_len":4096},"lr":2"#), usual, "it changes what is learned");
        assert_ne!(key("A100", r#""model":{"seq_len":4096},"lr":1"#), usual);
        assert_ne!(key("H100", r#""model":{"seq_len":8192},"lr":1"#), usual);
        assert_eq!(key("H100", r#""curriculum":{"seq_len":8192}"#), None, "its steps grow");
    }

    #[test]
    fn runs_that_may_do_another_work_are_not_compared() {
        let usual =
            [("arg.batch-size", "8"), ("visible_gpus", "8"), ("env.NCCL_ALGO", "Ring"), ("arg.lr", "1")];
        let with = |key: &'static str, value: &'static str| {
            let others = usual.iter().copied().filter(|(name, _)| *name != key);
            work_of(&others.chain([(key, value)]).collect::<Vec<_>>())
        };
        let known = work_of(&usual);
        assert!(known.is_some());
        for (key, value) in [
            ("visible_gpus", "1"),
            ("arg.batch-size", "16"),
            ("arg.resolution", "512"),
            ("arg.frobnicate", "1"),
            ("arg.1", "train_gpt2.py"),
            ("file.train_gpt2.py", "4f9a"),
            ("arg.dataset", "c4"),
        ] {
            assert_ne!(with(key, value), known, "{key}");
        }
        for (key, value) in [
            ("env.NCCL_ALGO", "Tree"),
            ("arg.lr", "2"),
            ("arg.seed", "7"),
            ("torch", "2.9"),
            ("arg.bf16", "given"),
        ] {
            assert_eq!(with(key, value), known, "{key}");
        }
        assert_eq!(with("arg.model-args", "set"), None, "it is not known which model");
        assert_eq!(with("arg.hparams", "set"), None, "it may be any setting");
        assert_eq!(with("arg.rampup-batch-size", "32 32 1000"), None, "it begins with small batches");
        assert!(with("arg.rampup-batch-size", "None").is_some(), "it does not");
        assert_eq!(work_of(&[("visible_gpus", "8"), ("torch", "2.9")]).as_deref(), Some("f"));
    }
}
