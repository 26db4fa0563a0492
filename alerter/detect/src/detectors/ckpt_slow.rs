//! Detects a checkpoint that takes far longer than usual: the storage is slow now, and work is at
//! risk for longer.
//!
//! The usual duration is the median of the saves before it, three at least. Where every save
//! reported its size, it is the median of their seconds a byte: a run may write large and small
//! checkpoints by turns. A save takes too long when it exceeds both `times` the usual duration and
//! that duration plus `margin`: a minute is little for a save of an hour, and twice is little for
//! one of a second. A save that still runs is reported when it has taken `running` times as long.
//! The page for work at risk is that of [`super::ckpt_stale`].

use serde::{Deserialize, Serialize};
use stepwatch_model::Storage;

use crate::detector::draft::Measured;
use crate::detector::{ClockDetector, RunAt};
use crate::run::{RunState, Save, median};
use crate::stats::latch::Latch;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{
    Change, Clause, Finding, Kind, Observation, Sentence, Severity, Suspect, Target, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Multiples of the usual duration for a save that ended, and for one that still runs:
    /// engineering limits.
    pub times: f64,
    pub running: f64,
    /// The least time by which it must exceed the usual duration.
    pub margin: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, times: 2.0, running: 3.0, margin: Span::secs(60) }
    }
}

/// The number of saves from which the usual duration is known.
const KNOWN: usize = 3;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CkptSlow {
    latch: Latch,
    /// The last save that was evaluated.
    judged: Option<Ts>,
    /// Start of the running save that was reported.
    reported: Option<Ts>,
}

impl CkptSlow {
    fn limit(c: &Config, usual: f64, times: f64) -> f64 {
        (times * usual).max(usual + c.margin.as_secs_f64())
    }

    /// When the running save will have taken too long.
    fn due(c: &Config, f: &RunState) -> Option<Ts> {
        let k = &f.checkpoints;
        if !c.enabled || f.ended.is_some() || k.saves.len() < KNOWN {
            return None;
        }
        let usual = median(k.saves.iter().map(|s| s.secs));
        Some(k.in_progress? + Span::from_secs_f64(Self::limit(c, usual, c.running)))
    }

    fn judge_running(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        let since = f.checkpoints.in_progress;
        if Self::due(c, f).is_none_or(|due| now < due) || self.reported == since {
            return;
        }
        self.reported = since;
        self.latch.raise(Severity::Ticket);
        let usual = median(f.checkpoints.saves.iter().map(|s| s.secs));
        let secs = since.map_or(0.0, |since| (now - since).as_secs_f64());
        let why = clause!(
            "a checkpoint has been running for {runs}, {usual} is usual",
            runs = Span::from_secs_f64(secs),
            usual = Span::from_secs_f64(usual),
        );
        let why = Sentence::from(why).and(at_risk(f));
        out.push(finding(view, Change::Raise, Measured { value: secs, expected: usual }, why));
    }

    fn judge_ended(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let f = view.run;
        let saves: Vec<Save> = f.checkpoints.saves.iter().copied().collect();
        let Some((last, before)) = saves.split_last() else { return };
        if self.judged == Some(last.at) {
            return;
        }
        self.judged = Some(last.at);
        if before.len() < KNOWN {
            return;
        }
        let usual = usual(last, before);
        let measured = Measured { value: last.secs, expected: usual };
        if last.secs > Self::limit(c, usual, c.times) {
            self.latch.raise(Severity::Ticket);
            out.push(finding(view, Change::Raise, measured, sentence(last, usual, f)));
        } else if self.latch.clear() {
            let why = clause!("a checkpoint took {took}, as usual", took = Span::from_secs_f64(last.secs));
            out.push(finding(view, Change::Clear, measured, why));
        }
    }
}

fn sentence(last: &Save, usual: f64, f: &RunState) -> Sentence {
    let rates = last.bytes.map(|bytes| {
        let [size, rate, before] = [bytes, bytes / last.secs, bytes / usual].map(|v| v / 1e9);
        clause!(
            " ({gigabytes} GB at {gigabytes_per_second} GB/s, {gigabytes_per_second_before} GB/s before)",
            gigabytes = size,
            gigabytes_per_second = rate,
            gigabytes_per_second_before = before,
        )
    });
    let why = clause!(
        "a checkpoint took {took}, {usual} is usual{rates}",
        took = Span::from_secs_f64(last.secs),
        usual = Span::from_secs_f64(usual),
        rates,
    );
    let every = f.checkpoints.usual_interval();
    let every =
        every.map(|s| clause!("one is written every {every} of work", every = Span::from_secs_f64(s)));
    Sentence::from(why).and_perhaps(every)
}

/// The expected duration of the last save, in seconds.
fn usual(last: &Save, before: &[Save]) -> f64 {
    let sized = before.iter().filter_map(|s| Some(s.secs / s.bytes?)).collect::<Vec<_>>();
    match last.bytes {
        Some(bytes) if sized.len() == before.len() => bytes * median(sized.into_iter()),
        _ => median(before.iter().map(|s| s.secs)),
    }
}

fn at_risk(f: &RunState) -> Clause {
    clause!("{at_risk} of work would be lost", at_risk = Span::from_secs_f64(f.checkpoints.work))
}

impl ClockDetector for CkptSlow {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        if !c.enabled {
            return;
        }
        let f = view.run;
        if f.ended.is_some() {
            if self.latch.clear() {
                let none = Measured { value: 0.0, expected: 0.0 };
                out.push(finding(view, Change::Clear, none, clause!("the run ended")));
            }
            return;
        }
        self.judge_ended(c, view, out);
        self.judge_running(c, view, out);
    }

    fn deadline(&self, c: &Config, f: &RunState) -> Option<Ts> {
        Self::due(c, f).filter(|_| self.reported != f.checkpoints.in_progress)
    }
}

fn finding(view: RunAt<'_>, change: Change, m: Measured, why: impl Into<Sentence>) -> Finding {
    let storage = Suspect::new(Target::Storage(Storage::SlowCheckpoints), Observation::CheckpointSlower);
    let raises = change == Change::Raise;
    Finding {
        suspects: if raises { vec![storage] } else { Vec::new() },
        ..view.ticket(Kind::CkptSlow, "checkpoint_time", (change, m), why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn save(at: i64, secs: f64, bytes: Option<f64>) -> Save {
        Save { at: Ts(1000 * at), secs, bytes }
    }

    /// Findings of a run that makes these saves, one after the other.
    fn judged(saves: &[Save]) -> Vec<(Change, String)> {
        let (c, mut detector, mut out) = (Config::default(), CkptSlow::default(), Vec::new());
        let mut f = RunState::new("r", Ts(0));
        for s in saves {
            f.checkpoints.saves.push_back(*s);
            detector.look(&c, RunAt { now: s.at, run: &f }, &mut out);
            detector.look(&c, RunAt { now: s.at, run: &f }, &mut out);
        }
        out.into_iter().map(|v| (v.change, v.why.to_string())).collect()
    }

    #[test]
    fn a_save_that_takes_twice_as_long_is_a_ticket_until_one_is_as_usual() {
        let saves: Vec<Save> =
            [100.0, 110.0, 95.0, 300.0, 105.0].iter().zip(0..).map(|(s, i)| save(i, *s, None)).collect();
        let found = judged(&saves);
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [Change::Raise, Change::Clear]);
        assert_eq!(found[0].1, "a checkpoint took 5m, 1m 40s is usual");
    }

    #[test]
    fn large_and_small_saves_by_turns_are_distinguished_by_their_size() {
        let turns = |slow: f64| -> Vec<Save> {
            (0..8)
                .map(|i| {
                    let bytes = if i % 2 == 0 { 1e12 } else { 1e11 };
                    save(i, bytes / 4e9 * if i == 7 { slow } else { 1.0 }, Some(bytes))
                })
                .collect()
        };
        assert!(judged(&turns(1.0)).is_empty());
        let found = judged(&turns(4.0));
        assert_eq!(found[0].1, "a checkpoint took 1m 40s, 25s is usual (100 GB at 1 GB/s, 4 GB/s before)");
    }

    #[test]
    fn one_that_runs_too_long_is_reported_once_at_its_deadline() {
        let (c, mut detector, mut out) = (Config::default(), CkptSlow::default(), Vec::new());
        let mut f = RunState::new("r", Ts(0));
        f.checkpoints.saves.extend((0..3).map(|i| save(i, 100.0, None)));
        detector.look(&c, RunAt { now: Ts(0), run: &f }, &mut out);
        f.checkpoints.in_progress = Some(Ts(1_000_000));
        let due = detector.deadline(&c, &f).unwrap();
        assert_eq!(due, Ts(1_300_000));
        detector.look(&c, RunAt { now: Ts(due.0 - 1), run: &f }, &mut out);
        assert!(out.is_empty());
        detector.look(&c, RunAt { now: due, run: &f }, &mut out);
        detector.look(&c, RunAt { now: due + Span::secs(60), run: &f }, &mut out);
        assert_eq!((out.len(), detector.deadline(&c, &f)), (1, None));
        assert!(
            out[0].why.to_string().starts_with("a checkpoint has been running for 5m, 1m 40s is usual"),
            "{}",
            out[0].why
        );
    }

    proptest! {
        #[test]
        fn small_or_equal_saves_raise_nothing(secs in proptest::collection::vec(0.1f64..60.0, 0..20), scale in 1.0f64..100.0) {
            let saves: Vec<Save> = secs.iter().zip(0..).map(|(s, i)| save(i, *s, None)).collect();
            prop_assert!(judged(&saves).is_empty(), "less than a minute more");
            let saves: Vec<Save> = secs.iter().zip(0..).map(|(s, i)| save(i, scale * (100.0 + 0.5 * s), None)).collect();
            prop_assert!(judged(&saves).is_empty(), "a third more");
        }
    }
}
