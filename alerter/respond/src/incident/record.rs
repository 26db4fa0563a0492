//! Updates an incident's record, run and suspects from its findings.

use super::open::{Incident, MAX_SUSPECTS, faulty};
use super::report::Report;
use super::{IncidentRecord, State};
use crate::labels::ALERTNAME;
use crate::matcher::Labels;
use stepwatch_model::{Cause, Context, Finding, Kind, RunSummary, Scope, Sentence, Severity, Ts};

/// The length in bytes above which the reasons of a suspect are not extended.
const MAX_WHY: usize = 400;

impl Incident {
    /// Takes over the run and the faulty nodes of a finding.
    pub(super) fn meet(&mut self, now: Ts, context: &Context, v: &Finding) {
        self.shared |= context.shared && self.record.run.is_empty();
        self.learn(&context.run);
        if context.is_node() {
            self.node_at = Some(now);
        }
        self.record.stand_still(now, v);
        for node in faulty(context, v) {
            if self.record.nodes.len() < MAX_SUSPECTS && !self.record.nodes.contains(&node) {
                self.record.nodes.push(node);
            }
        }
    }

    /// Takes over the summary of a run. If several runs use a node, its incident names only one of
    /// them; the others have incidents of their own.
    pub(super) fn learn(&mut self, run: &RunSummary) {
        let of_alert = run.labels.contains_key(ALERTNAME);
        if self.shared {
            // The labels of an alert decide who is notified; those of the runs on a shared node do
            // not.
            self.summary.labels.extend(run.labels.clone().into_iter().filter(|_| of_alert));
            return;
        }
        if !self.record.run.is_empty() && self.record.run != run.name {
            return;
        }
        self.record.run.clone_from(&run.name);
        let had = core::mem::replace(&mut self.summary, run.clone()).labels;
        let is_of = |of: fn(&Scope) -> bool| self.subjects.iter().any(|s| of(&s.scope));
        let of_run = is_of(|scope| matches!(scope, Scope::Run(_)));
        let of_an_alert = is_of(|scope| matches!(scope, Scope::Alert(_)));
        let labels = &mut self.summary.labels;
        let (mut first, more) = match of_alert {
            // The labels of an alert stay until it changes them, and take precedence over those of
            // a run.
            false if of_an_alert => (had, core::mem::take(labels)),
            true if !of_run => return,
            _ => (core::mem::take(labels), had),
        };
        more.into_iter().for_each(|(name, value)| _ = first.entry(name).or_insert(value));
        *labels = first;
    }

    /// Whether a page is about a run or node that the person who has this incident does not know:
    /// another run, or another node than the one that explains it.
    pub(super) fn pages_elsewhere(&self, context: &Context, v: &Finding) -> bool {
        let known = self.paged.contains(&context.scope);
        let run = &context.run.name;
        let of_another = !run.is_empty() && !self.record.run.is_empty() && self.record.run != *run;
        match &context.scope {
            _ if known => false,
            Scope::Node(_) if of_another => true,
            Scope::Node(node) => {
                self.record.nodes.iter().any(|other| other != node)
                    && !self.is_expected_of_its_switch(context, v)
            }
            Scope::Run(_) => of_another,
            Scope::Alert(_) | Scope::Series(_) | Scope::Own(_) | Scope::Storm(_) => false,
        }
    }

    /// If another scope holds it open, drops what `scope` raised. Returns whether one does.
    pub(super) fn outlives(&mut self, scope: &Scope) -> bool {
        let others = self.raised.keys().any(|(s, _)| s.scope != *scope);
        if others {
            self.raised.retain(|(s, _), _| s.scope != *scope);
        }
        others
    }
}

impl IncidentRecord {
    /// A new record with only an id, a time, a kind and a severity.
    pub(crate) fn new(id: String, opened_at: Ts, kind: Kind, severity: Severity) -> Self {
        Self {
            id,
            run: String::new(),
            nodes: Vec::new(),
            cause: kind.cause(),
            kind,
            severity,
            state: State::Open,
            signal: String::new(),
            start_step: 0,
            opened_step: 0,
            detected_step: 0,
            end_step: None,
            value: f64::NAN,
            expected: f64::NAN,
            score: f64::NAN,
            summary: Sentence::default(),
            suspects: Vec::new(),
            opened_at,
            resolved_at: None,
            acked_by: None,
            acked_at: None,
            level: 0,
            next_at: None,
            flaps: 0,
            labels: Labels::new(),
            suppression: None,
            end: None,
            named: None,
            asked_anew_at: None,
            standstill: None,
        }
    }

    /// The record of the incident that a report opens, after `flaps` earlier returns.
    pub(super) fn opened_by(report: Report<'_>, now: Ts, id: String, flaps: u32) -> Self {
        let Report { context, finding: v, .. } = report;
        let mut record = Self {
            run: context.run.name.clone(),
            nodes: faulty(context, v),
            signal: v.signal.clone().into_owned(),
            start_step: v.start_step,
            opened_step: v.step,
            detected_step: v.step,
            value: v.value,
            expected: v.expected,
            score: v.score,
            summary: v.why.clone(),
            suspects: v.suspects.iter().take(MAX_SUSPECTS).cloned().collect(),
            flaps,
            ..Self::new(id, now, v.kind, v.severity)
        };
        record.stand_still(now, v);
        record
    }

    /// Counts the time from a finding on that a run stands still.
    fn stand_still(&mut self, now: Ts, v: &Finding) {
        if v.kind.cause() == Cause::Progress && v.severity > Severity::Info {
            self.standstill.get_or_insert_default().begin(now);
        }
    }

    /// Removes the acknowledgement, which does not cover what happened since.
    pub(super) fn reopen(&mut self) {
        self.state = State::Open;
        (self.acked_by, self.acked_at) = (None, None);
    }

    /// As `reopen`, and answers that people gave before `now` do not count either.
    pub(super) fn ask_anew(&mut self, now: Ts) {
        self.reopen();
        self.asked_anew_at = Some(now);
    }

    /// Takes over the leading finding. `links` replaces its summary if it is one of several link
    /// faults. The onset stays the earliest.
    pub(super) fn follow(&mut self, v: &Finding, links: Option<Sentence>) {
        if v.severity > self.severity {
            self.severity = v.severity;
            self.detected_step = v.step;
        }
        (self.kind, self.cause) = (v.kind, v.kind.cause());
        self.start_step = self.start_step.min(v.start_step);
        // What was usual before the fault began says more than the last number before the NaN.
        if v.value.is_finite() || v.signal != self.signal {
            self.expected = v.expected;
        }
        self.signal = v.signal.clone().into_owned();
        (self.value, self.score) = (v.value, v.score);
        self.summary = links.unwrap_or_else(|| v.why.clone());
        self.end_step = None;
    }

    /// Adds the suspects of a finding. Known suspects stay, whichever kind names the incident. With
    /// `first`, the finding leads the incident or was ranked with all that is known of the run: its
    /// suspects come first, with its evidence. Otherwise they come last, and only add evidence to
    /// suspects that are known.
    pub(super) fn suspect(&mut self, v: &Finding, first: bool) {
        if first {
            self.suspects.retain(|had| !v.suspects.iter().any(|s| s.target == had.target));
            self.suspects.splice(0..0, v.suspects.iter().cloned());
        } else {
            for s in &v.suspects {
                match self.suspects.iter_mut().find(|had| had.target == s.target) {
                    Some(had) if had.says(s) || had.why().len() > MAX_WHY => {}
                    Some(had) => had.evidence.extend(s.evidence.iter().cloned()),
                    None => self.suspects.push(s.clone()),
                }
            }
        }
        self.suspects.truncate(MAX_SUSPECTS);
    }
}
