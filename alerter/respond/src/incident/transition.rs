//! What a finding does to the incident that it belongs to: one pure function, and a table.

use super::State;
use super::open::Incident;
use super::report::Report;
use stepwatch_model::{Change, Finding, Severity};

/// What a finding says that whoever was notified of the incident does not know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Novelty {
    /// It is of another device, node or alert than what was known of its subject.
    pub(super) another: bool,
    /// It is a page of another run or node.
    pub(super) elsewhere: bool,
    /// It says more of what is known.
    pub(super) more: bool,
    /// It is of another kind, which does not follow from those that are known.
    pub(super) kind: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transition {
    /// The incident becomes more severe, and begins its policy anew.
    Raise,
    /// An acknowledgement does not cover it: the incident is open again.
    Reopen,
    /// Everybody who was notified is sent it as an update.
    Add,
    /// The same, under the name of its kind.
    AddKind,
    /// Its kind leads the incident from now on, which is sent as an update.
    Become,
    /// It is noted in the history.
    Note,
    /// It is known.
    Nothing,
}

impl Novelty {
    /// What a report says that the incident does not know yet.
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

/// `i` is as it was before the finding but for what holds it open.
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
            // The incident, the finding, and what is new to those who were notified.
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
