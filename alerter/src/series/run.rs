//! The series of one run: its signals with one clock, and the marks.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;

use super::bucket::Bucket;
use super::clock::StepClock;
use super::pyramid::Pyramid;
use super::stored::Kept;
use super::{Latest, MAX_SIGNALS, Recorded, SeriesPoint, Value, Values};

/// The most marks of one kind; the latest are kept.
const MAX_MARKS: usize = 256;

/// An event at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub step: i64,
    /// The time by the trainer's clock.
    pub at: Ts,
    pub kind: MarkKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MarkKind {
    /// The first step of a later attempt.
    Restart,
    /// A checkpoint was written during the step.
    Checkpoint,
    /// An evaluation ran during the step.
    Evaluation,
}

#[derive(Debug, Default)]
pub(super) struct RunSeries {
    pub(super) signals: BTreeMap<String, Signal>,
    pub(super) frame: Frame,
    /// The shared state of the signals.
    pub(super) kept: Kept,
    pub(super) last_at: Ts,
}

#[derive(Debug, Default)]
pub(super) struct Signal {
    pub(super) pyramid: Pyramid,
    pub(super) kept: Kept,
}

/// The state that the signals of a run share.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Frame {
    clock: StepClock,
    marks: [VecDeque<Mark>; 3],
    attempt: Option<u32>,
    sequence: u64,
}

/// The result of a sample.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    /// The number of new signals.
    pub(super) added: u64,
    /// The number of values of signals without room.
    pub(super) dropped: u64,
}

impl RunSeries {
    /// Records a sample. `room` is the number of further signals that all runs may have.
    pub(super) fn record(&mut self, s: &Recorded<'_>, mut room: usize) -> Taken {
        self.last_at = s.now;
        self.frame.record(s);
        self.kept.change();
        let mut taken = Taken::default();
        for v in s.values {
            if let Some(signal) = self.signals.get_mut(v.signal) {
                signal.push(s, v);
            } else if self.signals.len() < MAX_SIGNALS && room > 0 && !v.signal.is_empty() {
                self.signals.entry(v.signal.to_owned()).or_default().push(s, v);
                taken.added += 1;
                room -= 1;
            } else {
                taken.dropped += 1;
            }
        }
        taken
    }

    pub(super) fn points(&self, signal: &str, from: i64, to: i64, points: usize) -> Option<Vec<SeriesPoint>> {
        let buckets = self.signals.get(signal)?.pyramid.window(from, to, points);
        Some(buckets.iter().map(|bucket| self.point(bucket)).collect())
    }

    fn point(&self, b: &Bucket) -> SeriesPoint {
        let values = Values { min: b.min, max: b.max, last: b.last, mean: b.mean };
        SeriesPoint {
            step: b.first,
            at: self.frame.clock.at(b.first),
            values: (b.count > 0).then_some(values),
            count: b.count,
            nonfinite: b.nonfinite,
            band: b.band.expectation(),
        }
    }

    pub(super) fn marks(&self, from: i64, to: i64) -> Vec<Mark> {
        let all = self.frame.marks.iter().flatten().copied();
        let mut marks: Vec<Mark> = all.filter(|m| (from..=to).contains(&m.step)).collect();
        marks.sort_by_key(|m| (m.step, m.kind));
        marks
    }

    pub(super) fn latest(&self) -> Vec<Latest> {
        let latest = |(name, signal): (&String, &Signal)| {
            let signal = &signal.pyramid;
            Some(Latest {
                signal: name.clone(),
                step: signal.last_step()?,
                value: signal.last_value(),
                expectation: signal.expectation(),
            })
        };
        self.signals.iter().filter_map(latest).collect()
    }

    pub(super) fn sequence(&self) -> u64 {
        self.frame.sequence
    }

    pub(super) fn last_at(&self) -> Ts {
        self.last_at
    }

    pub(super) fn len(&self) -> usize {
        self.signals.len()
    }

    /// The size of the signals in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.signals.values().map(|signal| signal.pyramid.bytes()).sum()
    }
}

impl Signal {
    fn push(&mut self, s: &Recorded<'_>, v: &Value<'_>) {
        self.pyramid.push(s.attempt, s.step, v.value, v.expectation);
        self.kept.change();
    }
}

impl Frame {
    /// Whether the decoded state is valid.
    pub(super) fn is_sound(&self) -> bool {
        self.clock.is_sound() && self.marks.iter().all(|marks| marks.len() <= MAX_MARKS)
    }

    fn record(&mut self, s: &Recorded<'_>) {
        self.sequence += 1;
        let again = self.attempt.is_some_and(|attempt| attempt != s.attempt);
        self.attempt = Some(s.attempt);
        self.clock.push(s.step, s.at, again);
        if again {
            // The new attempt repeats everything from here on. The mark of the restart remains.
            for marks in &mut self.marks[1..] {
                marks.retain(|m| m.step < s.step);
            }
            self.mark(s, MarkKind::Restart);
        }
        if let Some(kind) = s.mark {
            self.mark(s, kind);
        }
    }

    fn mark(&mut self, s: &Recorded<'_>, kind: MarkKind) {
        let marks = &mut self.marks[kind as usize];
        if marks.len() == MAX_MARKS {
            marks.pop_front();
        }
        marks.push_back(Mark { step: s.step, at: s.at, kind });
    }
}
