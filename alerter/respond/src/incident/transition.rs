//! Classifies what a finding changes in its incident, by one pure function that a table tests.

use super::State;
use super::open::Incident;
use super::report::Report;
use stepwatch_model::{Change, Finding, Severity};

/// What a finding adds to what the people who were notified of the incident know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Novelty {
    /// The finding is about another device, node or alert than was known of its subject.
    pub(super) another: bool,
    /// The finding is a page about another run or node.
    pub(super) elsewhere: bool,
    /// The finding reports more of what is known.
    pub(super) more: bool,
    /// The finding is of another kind, which does not follow from the known kinds.
    pub(super) kind: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transition {
    /// The incident becomes more severe, and its escalation restarts.
    Raise,
    /// The acknowledgement does not cover the finding: the incident is open again.
    Reopen,
    /// An update is sent to everybody who was notified.
    Add,
    /// An update that names the finding's kind is sent to everybody who was notified.
    AddKind,
    /// The finding's kind names the incident from now on, and an update says so.
    Become,
    /// The finding is only recorded in the timeline.
    Note,
    /// The finding changes nothing.
    Nothing,
}

impl Novelty {
    /// Compares a report with what the incident knows.
    pub(super) fn of(i: &Incident, report: Report<'_>) -> Self {
        let Report { subject, context, finding: v } = report;
        let is_known = i.known.contains_key(subject);
        let another = i.is_of_another_device(subject, context, v)
            || i.pages_at_last(subject, v)
            || context.apart && !is_known
            || v.change == Change::Another && i.knows_less_than(subject, context) && !i.is_back(context);
        Self {
            another,
            elsewhere: v.severity == Severity::Page && i.pages_elsewhere(context, v),
            more: v.change.says_more() && is_known && i.resolve_at.is_none(),
            kind: i.is_news(subject, v.kind),
        }
    }
}

/// Classifies a finding. Of `i`, only what holds it open has been updated with the finding.
pub(super) fn classify(i: &Incident, v: &Finding, new: Novelty) -> Transition {
    let record = &i.record;
    let as_severe = v.severity == record.severity;
    let leads = leads(i, v);
    if v.severity > record.severity {
        return Transition::Raise;
    }
    let acknowledged = record.state == State::Acknowledged;
    if (new.kind || new.another || new.elsewhere) && v.severity == Severity::Page && acknowledged {
        return Transition::Reopen;
    }
    match (as_severe, leads) {
        (true, _) if new.another || new.more => Transition::Add,
        (true, false) if new.kind => Transition::AddKind,
        (_, true) if v.kind != record.kind => Transition::Become,
        (_, true) => Transition::Note,
        (_, false) => Transition::Nothing,
    }
}

/// Whether the incident is named after this finding from now on.
pub(super) fn leads(i: &Incident, v: &Finding) -> bool {
    (v.severity, v.kind.precedence()) >= (i.record.severity, i.record.kind.precedence())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use Kind::{Divergence, GradSpike, LossSpike, MfuDroop, Plateau};
    use Severity::{Page, Ticket};
    use State::{Acknowledged, Open};
    use stepwatch_model::{Context, Kind, RunSummary, Scope, Ts};

    use super::*;
    use crate::incident::IncidentRecord;
    use crate::incident::tests::raised;

    fn incident(kind: Kind, severity: Severity, state: State) -> Incident {
        let run = RunSummary { name: "llama".into(), ..RunSummary::default() };
        let context = Context::new(Scope::Run("llama".into()), run, BTreeSet::new(), Ts(0));
        let record = IncidentRecord { state, ..IncidentRecord::new(String::new(), Ts(0), kind, severity) };
        Incident::new(record, context.run, BTreeSet::new())
    }

    #[test]
    fn a_finding_does_to_an_incident_what_the_table_says() {
        const KNOWN: Novelty = Novelty { another: false, elsewhere: false, more: false, kind: false };
        const ANOTHER: Novelty = Novelty { another: true, ..KNOWN };
        const ELSEWHERE: Novelty = Novelty { elsewhere: true, ..KNOWN };
        const MORE: Novelty = Novelty { more: true, ..KNOWN };
        const KIND: Novelty = Novelty { kind: true, ..KNOWN };
        assert!(Divergence.precedence() > LossSpike.precedence());
        let table = [
            // The incident, the finding, and what is new to the people who were notified.
            (LossSpike, Ticket, Open, LossSpike, Page, KNOWN, Transition::Raise),
            (LossSpike, Ticket, Acknowledged, LossSpike, Page, ANOTHER, Transition::Raise),
            (Divergence, Ticket, Open, LossSpike, Page, KIND, Transition::Raise),
            (LossSpike, Page, Acknowledged, LossSpike, Page, ANOTHER, Transition::Reopen),
            (LossSpike, Page, Acknowledged, LossSpike, Page, ELSEWHERE, Transition::Reopen),
            (LossSpike, Page, Acknowledged, Divergence, Page, KIND, Transition::Reopen),
            (LossSpike, Page, Acknowledged, LossSpike, Page, MORE, Transition::Add),
            (LossSpike, Page, Acknowledged, LossSpike, Page, KNOWN, Transition::Note),
            (LossSpike, Ticket, Acknowledged, LossSpike, Ticket, ANOTHER, Transition::Add),
            (LossSpike, Page, Open, LossSpike, Page, ANOTHER, Transition::Add),
            (LossSpike, Page, Open, LossSpike, Page, MORE, Transition::Add),
            (LossSpike, Page, Open, LossSpike, Page, ELSEWHERE, Transition::Note),
            (Divergence, Page, Open, LossSpike, Page, KIND, Transition::AddKind),
            (Divergence, Page, Open, LossSpike, Page, KNOWN, Transition::Nothing),
            (LossSpike, Page, Open, Divergence, Page, KNOWN, Transition::Become),
            (LossSpike, Page, Open, Divergence, Page, KIND, Transition::Become),
            (GradSpike, Page, Open, MfuDroop, Ticket, KIND, Transition::Nothing),
            (GradSpike, Page, Acknowledged, Plateau, Ticket, ANOTHER, Transition::Nothing),
        ];
        for (kind, severity, state, comes, how, new, wanted) in table {
            let i = incident(kind, severity, state);
            let got = classify(&i, &raised(Ts(0), comes, how), new);
            assert_eq!(got, wanted, "{kind:?} {severity:?} {state:?}, then {comes:?} {how:?} with {new:?}");
        }
    }
}
