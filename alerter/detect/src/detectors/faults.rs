//! The common part of the detectors of faults that a node reports. Each fault is reported once, and
//! again when it gets worse. All faults of a detector together are one finding, as severe as the
//! worst that counts. It is over when no fault holds and none was added for a while.
//!
//! Consequences of a fault on the same device are expected. A fault of another device, or a worse
//! one, is another fault, and people who take care of the first must be notified of it.

use core::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::detector::NodeAt;
use crate::node::{Condition, Key, Level, NodeState, words};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Action, Change, Clause, Fact, Finding, Kind, Sentence, Severity, Suspect, clause};
use stepwatch_wire::conditions;

/// How often the same fault is annotated at most.
const NOTE_EVERY: Span = Span::secs(3600);
/// The most annotations kept.
const MAX_NOTED: usize = 256;
/// The most devices kept while a fault holds.
const MAX_DEVICES: usize = 256;
/// The most faults named one by one.
const NAMED: usize = 3;

/// The differences between these detectors.
pub(super) trait Sort {
    const KIND: Kind;
    const SIGNAL: &'static str;

    fn is_ours(&self, key: &Key) -> bool;

    fn severity(&self, view: NodeAt<'_>, key: &Key, c: &Condition) -> Severity;

    /// When a fault that still holds may become worse, for faults that are reported at once.
    fn rises_at(&self, key: &Key, c: &Condition) -> Option<Ts>;

    /// How long a fault without an end counts after it was last published.
    fn lasts(&self, key: &Key, c: &Condition) -> Span;

    /// Advice that replaces that of the exporter.
    fn advice(&self, _: &Key, _: &Condition) -> Option<Clause> {
        None
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Faults {
    raised: Option<Severity>,
    reported: BTreeMap<Key, Reported>,
    /// Reported devices with a fault that counts, and its severity and level.
    devices: BTreeMap<String, (Severity, Level)>,
    noted: BTreeMap<Key, Ts>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Reported {
    severity: Severity,
    times: u32,
    /// The fault was evaluated after the time from which it could get worse.
    settled: bool,
}

/// A node that has not reported for this long, although its exporter publishes every 10 minutes,
/// cannot report the end of a fault either.
const SILENT: Span = Span::secs(620);

/// A fault that counts now.
struct Fault<'a> {
    key: &'a Key,
    c: &'a Condition,
    severity: Severity,
    /// Its device had no fault like this before.
    is_another: bool,
}

impl Faults {
    pub(super) fn look<S: Sort>(&mut self, sort: &S, view: NodeAt<'_>, out: &mut Vec<Finding>) {
        let NodeAt { now, node: f, .. } = view;
        let mut news = false;
        let mut active: Vec<Fault<'_>> = Vec::new();
        // A condition about certain runs is evidence for those, not a fault of the node.
        let of_node = f.conditions.iter().filter(|(key, c)| c.runs.is_none() && sort.is_ours(key));
        for (key, c) in of_node.filter(|(key, c)| counts(now, sort, key, c)) {
            let had = self.reported.get(key).copied();
            let severity = self.judge(sort, view, key, c);
            let is_new = had.is_none_or(|had| had.severity < severity) && severity > Severity::Info;
            news |= is_new;
            let is_another = is_new && self.is_another(key, c, severity);
            active.push(Fault { key, c, severity, is_another });
        }
        self.reported.retain(|key, _| active.iter().any(|fault| fault.key == key));
        self.forget_what_is_over(&active);
        // The most severe first; among equals the new ones, then those without another cause, then
        // the oldest.
        active.sort_by_key(|a| {
            (Reverse((a.severity, a.c.level)), !a.is_another, a.c.caused_by.is_some(), a.c.first)
        });
        if active.first().is_none_or(|a| a.severity == Severity::Info) {
            self.over(sort, view, out);
            return self.note(sort, view, &active, out);
        }
        // A condition that is not reported by itself, such as a reset, is not part of the fault.
        active.retain(|a| a.severity > Severity::Info || a.c.level > Level::Info);
        let Some(root) = active.first() else { return };
        // The worst fault is over and a lesser one is left. This is reported, so that a return of
        // the worst is reported too.
        let is_less = self.raised.is_some_and(|had| root.severity < had);
        if news || is_less {
            // A fault less severe than the one that people work on can wait until they look at it.
            let change =
                if self.raised.is_some() && root.is_another { Change::Another } else { Change::Raise };
            self.raised = Some(root.severity);
            let mut v = finding::<S>(view, root.c.began.min(now), change, root.severity);
            v.value = if root.key.number > 0 { root.key.number as f64 } else { f64::from(root.c.times) };
            v.score = active.len() as f64;
            v.why = sentence(sort, view, &active);
            v.suspects = suspects(f, &active);
            out.push(v);
        }
    }

    fn judge<S: Sort>(&mut self, sort: &S, view: NodeAt<'_>, key: &Key, c: &Condition) -> Severity {
        let due = sort.rises_at(key, c).is_none_or(|at| at <= view.now);
        match self.reported.get_mut(key) {
            // A run that is placed on a node with a known fault is no news about the node.
            Some(reported) if reported.times == c.times && (reported.settled || !due) => reported.severity,
            Some(reported) => {
                reported.severity = reported.severity.max(sort.severity(view, key, c));
                (reported.times, reported.settled) = (c.times, due);
                reported.severity
            }
            None => {
                let severity = sort.severity(view, key, c);
                self.reported.insert(key.clone(), Reported { severity, times: c.times, settled: due });
                severity
            }
        }
    }

    /// Records a fault of a device. True if it is another fault than was known of the device.
    fn is_another(&mut self, key: &Key, c: &Condition, severity: Severity) -> bool {
        if c.caused_by.is_some() {
            return false;
        }
        let (device, known) = (words::device(key, c), self.devices.len());
        match self.devices.get_mut(device) {
            Some(had) => {
                // A fault that only became a page by its duration is the one that was reported,
                // unless several devices must be distinguished.
                let is_worse = had.1 < c.level || known > 1 && had.0 < severity;
                *had = (had.0.max(severity), had.1.max(c.level));
                is_worse
            }
            None if known < MAX_DEVICES => {
                self.devices.insert(device.to_owned(), (severity, c.level));
                true
            }
            None => false,
        }
    }

    /// Forgets devices without a fault that counts, and lowers the severity of devices whose worst
    /// fault is over.
    fn forget_what_is_over(&mut self, active: &[Fault<'_>]) {
        self.devices.retain(|device, had| {
            let of_it = active.iter().filter(|a| words::device(a.key, a.c) == device);
            let reported = of_it.filter(|a| a.severity > Severity::Info);
            let worst = reported.map(|a| (a.severity, a.c.level)).reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
            if let Some(worst) = worst {
                *had = (had.0.min(worst.0), had.1.min(worst.1));
            }
            worst.is_some()
        });
    }

    fn over<S: Sort>(&mut self, sort: &S, view: NodeAt<'_>, out: &mut Vec<Finding>) {
        if self.raised.take().is_none() {
            return;
        }
        let NodeAt { now, node: f, .. } = view;
        let lapsed = |c: &Condition| c.lapsed && c.over == Some(now);
        let ours = f.conditions.iter().filter(|(key, c)| sort.is_ours(key) && lapsed(c));
        let unheard = (now - f.last_heard > SILENT).then_some(f.last_heard);
        out.push(if let Some(since) = ours.map(|(_, c)| c.last).max().or(unheard) {
            let mut v = finding::<S>(view, since, Change::Lapse, Severity::Info);
            v.why = clause!("{node} has not spoken of it since {since}", node = f.name.clone(), since).into();
            v
        } else {
            let mut v = finding::<S>(view, now, Change::Clear, Severity::Info);
            v.why = clause!("{node} has no more to report", node = f.name.clone()).into();
            v
        });
    }

    /// Annotates faults that need no work, for people who look at the node later.
    fn note<S: Sort>(&mut self, sort: &S, view: NodeAt<'_>, active: &[Fault<'_>], out: &mut Vec<Finding>) {
        let now = view.now;
        self.noted.retain(|_, at| now - *at < NOTE_EVERY);
        for fault in active {
            if self.noted.contains_key(fault.key) || self.noted.len() >= MAX_NOTED {
                continue;
            }
            self.noted.insert(fault.key.clone(), now);
            let mut v = finding::<S>(view, fault.c.began.min(now), Change::Note, Severity::Info);
            v.why = sentence(sort, view, core::slice::from_ref(fault));
            v.suspects = suspects(view.node, core::slice::from_ref(fault));
            out.push(v);
        }
    }

    pub(super) fn deadline<S: Sort>(&self, sort: &S, f: &NodeState) -> Option<Ts> {
        let known = f.conditions.iter().filter_map(|(key, c)| Some((key, c, self.reported.get(key)?)));
        known
            .filter_map(|(key, c, reported)| {
                let rises = sort.rises_at(key, c).filter(|_| !reported.settled);
                let ends = (c.once && self.raised.is_some()).then(|| c.last + sort.lasts(key, c));
                [rises, ends].into_iter().flatten().min()
            })
            .min()
    }
}

fn counts<S: Sort>(now: Ts, sort: &S, key: &Key, c: &Condition) -> bool {
    c.holds() || c.once && c.over.is_none() && now < c.last + sort.lasts(key, c)
}

fn sentence<S: Sort>(sort: &S, view: NodeAt<'_>, active: &[Fault<'_>]) -> Sentence {
    let f = view.node;
    let [root, others @ ..] = active else { return Sentence::default() };
    let mut why = Sentence::from(words::happened(f, root.key, root.c));
    let others = others.get(..NAMED).unwrap_or(others);
    let also: Vec<Clause> = others.iter().map(|o| words::happened(f, o.key, o.c)).collect();
    if !also.is_empty() {
        why.add(clause!("also {also}", also = Fact::joined(also, "; ")));
    }
    for a in core::iter::once(root).chain(others) {
        why.name(words::target(f, a.key, a.c));
    }
    let beyond = active.len().saturating_sub(1 + NAMED);
    if beyond > 0 {
        why.add(clause!("and {more} more", more = beyond));
    }
    why.add(words::hit(view.now, view.node, view.tenants));
    let strongest = active.iter().min_by_key(|a| {
        Reverse(a.c.action.as_ref().and_then(Action::known).unwrap_or(conditions::Remedy::None))
    });
    let advice = |a: &Fault<'_>| sort.advice(a.key, a.c).or_else(|| words::advice(f, a.c));
    why.and_perhaps(strongest.and_then(advice))
}

fn suspects(f: &NodeState, active: &[Fault<'_>]) -> Vec<Suspect> {
    let mut suspects: Vec<Suspect> = Vec::new();
    for s in active.iter().map(|a| words::suspect(f, a.key, a.c)) {
        if suspects.len() < NAMED && !suspects.iter().any(|had| had.target == s.target) {
            suspects.push(s);
        }
    }
    suspects
}

fn finding<S: Sort>(view: NodeAt<'_>, at: Ts, change: Change, severity: Severity) -> Finding {
    Finding { ts: at, ..view.finding(S::KIND, S::SIGNAL, change, severity) }
}
