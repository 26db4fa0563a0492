//! What is known of a run's checkpoints: the promise that work since then is all that can be lost.

use std::collections::BTreeMap;

use stepwatch_wire::{CkptPhase, Event, Value};

#[derive(Debug, Clone, Default)]
pub(super) struct Checkpoints {
    /// Ranks writing now, and since when.
    writing: BTreeMap<u32, f64>,
    pub(super) last_success: Option<f64>,
    pub(super) last_step: Option<i64>,
    pub(super) seconds: Option<f64>,
    pub(super) bytes: Option<f64>,
    pub(super) failures: u64,
    failed_step: Option<i64>,
}

impl Checkpoints {
    pub(super) fn apply(&mut self, event: &Event, rank: u32, ts: f64) {
        match event.ckpt {
            Some(CkptPhase::Start) => {
                self.writing.insert(rank, ts);
            }
            // A trainer that only says "saved" means the end.
            Some(CkptPhase::End) | None => self.saved(event, rank, ts),
            Some(CkptPhase::Fail) => {
                self.writing.remove(&rank);
                // Every rank of a sharded checkpoint may tell of the same failure.
                if event.step.is_none() || event.step != self.failed_step {
                    self.failures += 1;
                    self.failed_step = event.step;
                }
            }
        }
    }

    fn saved(&mut self, event: &Event, rank: u32, ts: f64) {
        let since = self.writing.remove(&rank);
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

    /// A rank that died or restarted is not writing any more.
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
}
