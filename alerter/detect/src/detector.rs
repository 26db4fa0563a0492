//! The traits of detectors: of the samples of a run, of the passing of time, and of a node. Also
//! the views that they are given.

pub mod beginning;
pub mod draft;
pub mod shared;

use crate::node::{JobAt, NodeState, Tenants};
use crate::run::RunState;
use crate::sample::{Extra, StepSample};
use draft::{Draft, Measured};
use shared::Shared;
use stepwatch_model::time::Ts;
use stepwatch_model::{Change, Finding, Kind, Sentence, Severity};

/// A sample, and what the detectors have found in it.
#[derive(Debug)]
pub struct JudgedStep<'a> {
    pub sample: &'a StepSample,
    pub out: &'a mut Vec<Finding>,
}

impl JudgedStep<'_> {
    pub fn raise(&mut self, draft: Draft, severity: Severity) {
        self.out.push(draft.finding(self.sample, Change::Raise, severity));
    }

    pub fn clear(&mut self, draft: Draft) {
        self.out.push(draft.finding(self.sample, Change::Clear, Severity::Info));
    }

    pub fn note(&mut self, draft: Draft) {
        self.out.push(draft.finding(self.sample, Change::Note, Severity::Info));
    }
}

/// A run as it is at a moment.
#[derive(Debug, Clone, Copy)]
pub struct RunAt<'a> {
    pub now: Ts,
    pub run: &'a RunState,
}

impl RunAt<'_> {
    /// A finding about the run, at the step where it stands.
    pub fn finding(self, kind: Kind, signal: &'static str, change: Change, severity: Severity) -> Finding {
        Finding { change, severity, ..blank(kind, signal, self.now, self.run.last_step) }
    }

    /// A ticket about the run, or its end, by a value and the expected one.
    pub(crate) fn ticket(
        self,
        kind: Kind,
        signal: &'static str,
        (change, m): (Change, Measured),
        why: impl Into<Sentence>,
    ) -> Finding {
        let severity = if change == Change::Raise { Severity::Ticket } else { Severity::Info };
        Finding {
            value: m.value,
            expected: m.expected,
            score: if m.expected > 0.0 { m.value / m.expected } else { 0.0 },
            why: why.into(),
            ..self.finding(kind, signal, change, severity)
        }
    }
}

/// A node as it is at a moment, and the runs that use it.
#[derive(Debug, Clone, Copy)]
pub struct NodeAt<'a> {
    pub now: Ts,
    pub node: &'a NodeState,
    pub tenants: Tenants<'a>,
    /// Jobs of which it is the first node; None where they were looked at just before.
    pub jobs: Option<&'a [JobAt]>,
    /// `None` if no price is configured.
    pub dollars_per_gpu_hour: Option<f64>,
}

impl NodeAt<'_> {
    /// A finding about the node, at the step where the run stands that uses it.
    pub fn finding(self, kind: Kind, signal: &'static str, change: Change, severity: Severity) -> Finding {
        let step = self.tenants.first().and_then(|t| t.last_step);
        Finding { change, severity, ..blank(kind, signal, self.now, step) }
    }
}

fn blank(kind: Kind, signal: &'static str, ts: Ts, step: Option<i64>) -> Finding {
    let step = step.unwrap_or(0);
    Finding {
        change: Change::Note,
        kind,
        severity: Severity::Info,
        signal: signal.into(),
        step,
        ts,
        start_step: step,
        value: 0.0,
        expected: 0.0,
        score: 0.0,
        why: Sentence::default(),
        suspects: Vec::new(),
    }
}

/// A detector of one run's steps. O(1) state, no clock: it judges only by `self` and the samples.
pub trait StepDetector {
    type Config;

    /// Takes the next sample of the run. Steps rise within an attempt; a new attempt may start
    /// lower. `shared` holds what is already known of this sample, and `step` what the detectors
    /// listed before have found in it.
    fn step(&mut self, c: &Self::Config, step: &mut JudgedStep<'_>, shared: &mut Shared);

    /// Takes what a run reports beside its samples; most detectors do not use it.
    fn extra(&mut self, _c: &Self::Config, _e: &Extra<'_>, _shared: &Shared, _out: &mut Vec<Finding>) {}

    /// Settings changed; most detectors read them when they need them.
    fn configured(&mut self, _c: &Self::Config) {}
}

/// A detector of missing events: it evaluates the whole run as time passes.
pub trait ClockDetector {
    type Config;

    /// Judges the run; called when its deadline is due and when the run changed in a way that
    /// matters.
    fn look(&mut self, c: &Self::Config, view: RunAt<'_>, out: &mut Vec<Finding>);

    /// When it wants to look next if nothing else happens.
    fn deadline(&self, c: &Self::Config, run: &RunState) -> Option<Ts>;
}

/// A detector of one node, whether or not a run uses it.
pub trait NodeDetector {
    type Config;

    /// Judges the node; called when something new was read of it and when its deadline is due.
    fn look(&mut self, c: &Self::Config, view: NodeAt<'_>, out: &mut Vec<Finding>);

    /// When it wants to look next if nothing else happens.
    fn deadline(&self, c: &Self::Config, node: &NodeState) -> Option<Ts>;
}
