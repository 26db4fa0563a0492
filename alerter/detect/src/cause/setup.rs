//! The setup as a suspect: what is different from the last good attempt, and nodes that are set up
//! differently and compute longer. Where it explains a finding, it comes before all others.

use super::evidence::when;
use crate::run::{Difference, RunState, SinceGood};
use stepwatch_model::time::Span;
use stepwatch_model::{Cause, Finding, Kind, Observation, Suspect, Target};

/// The most differences that are named as suspects of their own, and that are listed after them.
const NAMED: usize = 3;
const LISTED: usize = 8;
/// A run that was slow from about its beginning has been so for this many steps at most when it is
/// found to be slow: blocks of eight steps, of which some dozens are compared.
const FROM_THE_START: i64 = 512;
/// A setting that changed within this time of the onset may have caused it.
const AROUND: Span = Span::secs(900);

/// Names what is different from the last good attempt: what explains the finding before all other
/// suspects, and the rest after them.
pub(crate) fn name_since_good(v: &mut Finding, f: &RunState, since: &SinceGood) {
    let in_time = v.kind.cause() != Cause::Speed || began_with_setup(v, f);
    let (explain, rest): (Vec<&Difference>, Vec<&Difference>) =
        since.list.iter().partition(|d| in_time && d.explains(v));
    let first = suspects_of(since, explain.iter().copied().take(NAMED));
    v.suspects.splice(0..0, first);
    let more = explain.into_iter().skip(NAMED).chain(rest);
    let mut changes: Vec<_> = more.map(Difference::change).collect();
    if changes.is_empty() {
        return;
    }
    let more = since.more.saturating_add(changes.len().saturating_sub(LISTED) as u32);
    changes.truncate(LISTED);
    let also = Observation::AlsoDifferent { changes, more, good: since.good.clone() };
    v.suspects.push(Suspect::new(Target::Setup, also));
}

/// Each difference as a suspect.
pub(crate) fn suspects_of<'a>(
    since: &SinceGood,
    differences: impl Iterator<Item = &'a Difference>,
) -> Vec<Suspect> {
    let suspect = |d: &Difference| {
        let (change, good) = (d.change(), since.good.clone());
        Suspect::new(Target::Setting { key: d.name.clone() }, Observation::ChangedSinceGood { change, good })
    };
    differences.map(suspect).collect()
}

/// Whether the run became slow when its setup became another one: at its start, or when a node
/// reported a change.
fn began_with_setup(v: &Finding, f: &RunState) -> bool {
    let steps = FROM_THE_START.saturating_mul(f.interval.max(1));
    let at_start = f.attempts.first_step.is_none_or(|first| v.start_step <= first.saturating_add(steps));
    let changed = f.config_groups.changed_at.filter(|at| *at > f.attempt_at + AROUND);
    at_start || changed.is_some_and(|at| at <= when(f, v.start_step) + AROUND)
}

/// Names the setting of nodes that compute longer than the nodes with another value of it.
pub(crate) fn name_groups(v: &mut Finding, f: &RunState) {
    if v.kind.cause() != Cause::Speed || matches!(v.kind, Kind::Stall | Kind::DataWait) {
        return;
    }
    let Some(slower) = f.slower_setup() else { return };
    let why = slower.observation(f.pace.quantile(0.5));
    v.suspects.insert(0, Suspect::new(Target::Setting { key: slower.key }, why));
}
