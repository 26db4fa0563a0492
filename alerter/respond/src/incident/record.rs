//! What an incident takes over from the findings that make it.

use super::open::{Incident, MAX_SUSPECTS, faulty};
use super::report::Report;
use super::{IncidentRecord, State};
use crate::labels::ALERTNAME;
use crate::matcher::Labels;
use stepwatch_model::{Context, Finding, Kind, RunSummary, Scope, Sentence, Severity, Ts};

/// Nothing is added to what is said of a suspect at such length.
const MAX_WHY: usize = 400;

impl Incident {
    /// Takes in whom a finding is about.
    pub(super) fn meet(&mut self, now: Ts, context: &Context, v: &Finding) {
        self.shared |= context.shared && self.record.run.is_empty();
        self.learn(&context.run);
        if context.is_node() {
            self.node_at = Some(now);
        }
        for node in faulty(context, v) {
            if self.record.nodes.len() < MAX_SUSPECTS && !self.record.nodes.contains(&node) {
                self.record.nodes.push(node);
            }
        }
    }

    /// A node that is used by several runs hits one of them in its incident; the others have
    /// theirs.
    pub(super) fn learn(&mut self, run: &RunSummary) {
        let of_alert = run.labels.contains_key(ALERTNAME);
        if self.shared {
            // Those who send alerts say whom these reach; the runs there do not.
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
            // Those of an alert stay until it says otherwise, and go before those of a run.
            false if of_an_alert => (had, core::mem::take(labels)),
            true if !of_run => return,
            _ => (core::mem::take(labels), had),
        };
        more.into_iter().for_each(|(name, value)| _ = first.entry(name).or_insert(value));
        *labels = first;
    }

    /// Whether a page is of a place of which whoever has this incident in hand knows nothing:
    /// another run's, or another node than the one that explains it.
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

    /// Drops what `scope` raised; whether something else holds it open.
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
    pub(super) fn new(id: String, opened_at: Ts, kind: Kind, severity: Severity) -> Self {
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
        }
    }

    /// What a report opens, which has come back so often.
    pub(super) fn opened_by(report: Report<'_>, now: Ts, id: String, flaps: u32) -> Self {
        let Report { context, finding: v, .. } = report;
        Self {
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
        }
    }

    /// Whoever took it did not take this.
    pub(super) fn reopen(&mut self) {
        self.state = State::Open;
        (self.acked_by, self.acked_at) = (None, None);
    }

    /// Nor did whoever answered before.
    pub(super) fn ask_anew(&mut self, now: Ts) {
        self.reopen();
        self.asked_anew_at = Some(now);
    }

    /// Takes over what the leading finding says, or what it means beside the others of its kind.
    /// The onset stays the earliest.
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

    /// Whoever is suspected stays so, whichever kind names the incident. What was weighed with all
    /// that is known of the run, or leads the incident, knows most: whom it suspects comes
    /// first, for its reasons. A word in passing comes last, and of whom is suspected already it
    /// adds to what is said.
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
