//! The state of a run's checkpoints, for the bound on lost work: only the work since the last one
//! can be lost.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stepwatch_wire::names::ckpt;
use stepwatch_wire::{CkptPhase, Event, Value};

use crate::principal::Principal;

/// Two checkpoints within this time are parts of one, if their step is not known.
const APART_SECONDS: f64 = 10.0;

/// The place of a run's checkpoints, for the collectors of this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CheckpointPlace {
    pub run: String,
    /// The path of the last checkpoint, as its writer gave it. The directory may be gone by now, or
    /// the path may be one inside a container.
    pub path: Option<PathBuf>,
    pub bytes: Option<f64>,
    /// Seconds from one checkpoint to the next.
    pub every: Option<f64>,
    pub writing: bool,
    /// The principal who reported it.
    pub principal: Principal,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Checkpoints {
    /// The ranks that are writing, and the Unix times when they began.
    writing: BTreeMap<u32, f64>,
    pub(super) last_success: Option<f64>,
    pub(super) last_step: Option<i64>,
    pub(super) seconds: Option<f64>,
    pub(super) bytes: Option<f64>,
    pub(super) failures: u64,
    failed_step: Option<i64>,
    path: Option<PathBuf>,
    every: Option<f64>,
}

impl Checkpoints {
    pub(super) fn apply(&mut self, event: &Event, rank: u32, ts: f64) {
        if let Some(path) = event.extra.get("path").and_then(Value::as_str) {
            self.path = Some(PathBuf::from(path));
        }
        let stage = event.extra.get(ckpt::STAGE).and_then(Value::as_str);
        let is_known = || event.step.is_some() && event.step <= self.last_step;
        match stage {
            Some(ckpt::WRITE | ckpt::UPLOAD | ckpt::LOAD) if event.ckpt != Some(CkptPhase::Fail) => return,
            Some(ckpt::DURABLE) if is_known() => return,
            _ => {}
        }
        match event.ckpt {
            Some(CkptPhase::Start) => {
                self.writing.insert(rank, ts);
            }
            // If a trainer reports only "saved", that is the end of the checkpoint.
            Some(CkptPhase::End) | None => self.saved(event, rank, ts),
            Some(CkptPhase::Fail) => {
                self.writing.remove(&rank);
                // Every rank of a sharded checkpoint may report the same failure.
                if event.step.is_none() || event.step != self.failed_step {
                    self.failures += 1;
                    self.failed_step = event.step;
                }
            }
        }
    }

    fn saved(&mut self, event: &Event, rank: u32, ts: f64) {
        let since = self.writing.remove(&rank);
        self.paced(event, ts);
        self.last_success = Some(self.last_success.map_or(ts, |t| t.max(ts)));
        self.last_step = event.step.or(self.last_step);
        let number = |names: &[&str]| {
            let given = names.iter().find_map(|n| event.extra.get(*n).and_then(Value::as_f64));
            given.filter(|v| v.is_finite() && *v >= 0.0)
        };
        let seconds = number(&["seconds", "duration"]).or(since.map(|s| (ts - s).max(0.0)));
        self.seconds = seconds.or(self.seconds);
        self.bytes = number(&["bytes", "size"]).or(self.bytes);
    }

    /// Measures the interval of checkpoints. Each rank of a sharded one may report it.
    fn paced(&mut self, event: &Event, ts: f64) {
        let same = event.step.is_some() && event.step == self.last_step;
        let gap = self.last_success.map(|last| ts - last).filter(|gap| *gap > APART_SECONDS && !same);
        self.every = gap.or(self.every);
    }

    pub(super) fn place(&self, run: &str, principal: Principal) -> CheckpointPlace {
        CheckpointPlace {
            principal,
            run: run.to_owned(),
            path: self.path.clone(),
            bytes: self.bytes,
            every: self.every,
            writing: self.in_progress(),
        }
    }

    /// Records that a rank that died or restarted no longer writes.
    pub(super) fn abandon(&mut self, rank: u32) {
        self.writing.remove(&rank);
    }

    pub(super) fn in_progress(&self) -> bool {
        !self.writing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> Event {
        Event::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn start_end_fail() {
        let mut c = Checkpoints::default();
        c.apply(&event(r#"{"k":"ckpt","phase":"start","step":100}"#), 0, 10.0);
        assert!(c.in_progress());
        c.apply(&event(r#"{"k":"ckpt","phase":"end","step":100,"bytes":5000}"#), 0, 16.0);
        assert!(!c.in_progress());
        assert_eq!(
            (c.last_success, c.last_step, c.seconds, c.bytes),
            (Some(16.0), Some(100), Some(6.0), Some(5000.0))
        );
        for rank in 0..8 {
            c.apply(&event(r#"{"k":"ckpt","phase":"start","step":200}"#), rank, 20.0);
            c.apply(&event(r#"{"k":"ckpt","phase":"fail","step":200}"#), rank, 21.0);
        }
        assert_eq!((c.failures, c.last_success, c.in_progress()), (1, Some(16.0), false));
    }

    #[test]
    fn only_what_blocks_or_is_durable_is_a_checkpoint() {
        let mut c = Checkpoints::default();
        for (stage, ts) in [("load", 10.0), ("save", 20.0), ("write", 30.0), ("upload", 40.0)] {
            let text = format!(r#"{{"k":"ckpt","phase":"start","stage":"{stage}","step":100}}"#);
            c.apply(&event(&text), 0, ts);
            assert_eq!(c.in_progress(), stage == "save", "{stage}");
            let text = format!(r#"{{"k":"ckpt","phase":"end","stage":"{stage}","step":100}}"#);
            c.apply(&event(&text), 0, ts + 5.0);
        }
        assert_eq!((c.last_success, c.seconds), (Some(25.0), Some(5.0)));
        c.apply(&event(r#"{"k":"ckpt","phase":"end","stage":"durable","step":100}"#), 0, 60.0);
        assert_eq!(c.last_success, Some(25.0), "it was counted when its save ended");
        c.apply(&event(r#"{"k":"ckpt","phase":"fail","stage":"write","step":100}"#), 0, 70.0);
        assert_eq!(c.failures, 1);
    }

    #[test]
    fn where_they_go_and_how_often() {
        let mut c = Checkpoints::default();
        for (step, ts) in [(100, 1000.0), (200, 1600.0)] {
            for rank in 0..2 {
                let text = format!(
                    r#"{{"k":"ckpt","phase":"end","step":{step},"path":"/ckpt/a/{step}","bytes":50}}"#
                );
                c.apply(&event(&text), rank, ts + 15.0 * f64::from(rank));
            }
        }
        let place = c.place("a", Principal::Unknown);
        assert_eq!(
            (place.path, place.bytes, place.every),
            (Some("/ckpt/a/200".into()), Some(50.0), Some(585.0))
        );
    }
}
