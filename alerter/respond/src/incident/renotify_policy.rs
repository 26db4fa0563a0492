//! Decides whether people who acknowledged an incident are notified again when another kind joins
//! it. They are not if that kind is the ordinary course of what they know.
//!
//! Kinds of one class are one fault seen by several detectors, or its ordinary course: gradients
//! explode and the loss follows; a run that stands still has ranks that died. Another class needs
//! another response: people wait for the end of a loss spike, but roll back after a divergence. A
//! person who acknowledged the first and went back to bed must be notified of the second.

use std::collections::BTreeSet;

use super::open::{Incident, KnownAlert};
use super::{Named, State};
use stepwatch_model::{Class, Context, Finding, Kind, Mark, Scope, Severity, Span, Subject, Target, Ts};

/// The most external alerts that an incident remembers. Any further alert counts as new.
pub(super) const MAX_ALERTS: usize = 1024;

/// Whether a person who knows of `known` expects `kind` too.
fn is_expected(kind: Kind, known: Kind) -> bool {
    let one_cause = known.class() != Class::OfCause || known.cause() == kind.cause();
    known.class() == kind.class() && one_cause
        || covers(known, kind)
        || known.class() == Class::Lost && kind.class() == Class::Excursion
}

/// Whether a restart loop brings this kind back with each of its restarts.
fn covers(known: Kind, kind: Kind) -> bool {
    known.class() == Class::Loop && matches!(kind, Kind::RankDead | Kind::FirstFailure)
}

impl Incident {
    /// Whether the finding is about a GPU or port that is no suspect yet, after other detectors
    /// reported other devices of the node. These kinds are of one class, but the person who has the
    /// incident knows nothing of this device.
    pub(super) fn is_of_another_device(&self, subject: &Subject, context: &Context, v: &Finding) -> bool {
        let first = self.known.get(subject).is_some_and(|known| {
            !known.contains(&v.kind) && known.iter().any(|k| k.cause() == v.kind.cause())
        });
        let known = |device: &Target| self.record.suspects.iter().any(|s| s.target.is_same_device(device));
        first && v.kind.has(Mark::Device) && context.device.as_ref().is_some_and(|device| !known(device))
    }
}

impl Incident {
    /// Whether a kind that was less than a page is one now, beside a page of another kind. The
    /// person who acknowledged that page knows this kind as one that can wait, unless that page
    /// covers it.
    pub(super) fn pages_at_last(&self, subject: &Subject, v: &Finding) -> bool {
        let of = |same: bool| {
            let here = self.raised.iter().filter(|((s, _), _)| s == subject);
            here.filter(move |((_, kind), _)| (*kind == v.kind) == same).map(|((_, kind), had)| (*kind, *had))
        };
        v.severity == Severity::Page
            && of(true).any(|(_, had)| had < Severity::Page)
            && of(false).any(|(other, had)| had == Severity::Page && !covers(other, v.kind))
    }

    /// Whether the incident waits for its end, and the finding is about the device of its first
    /// suspect.
    pub(super) fn is_back(&self, context: &Context) -> bool {
        let first = self.record.suspects.first().zip(context.device.as_ref());
        self.resolve_at.is_some() && first.is_some_and(|(s, device)| s.target.is_same_device(device))
    }
}

impl Incident {
    /// Whether a finding about another device or node is news to people who know this incident. An
    /// alert that fires again is not, nor one that reports what our detectors found here before.
    pub(super) fn knows_less_than(&self, subject: &Subject, context: &Context) -> bool {
        let nodes = &self.record.nodes;
        let here = |s: &Subject| s.cause == subject.cause && !matches!(s.scope, Scope::Alert(_));
        let elsewhere = match context.scope {
            // Our own detectors already distinguish nodes and devices.
            Scope::Alert(_) if self.subjects.iter().any(here) => {
                context.nodes.iter().any(|node| !nodes.contains(node))
            }
            _ => true,
        };
        elsewhere && self.known.contains_key(subject)
    }

    /// Records alerts that began to fire. An incident that was acknowledged keeps the title that it
    /// had then.
    pub(super) fn note_alerts(&mut self, now: Ts, context: &Context, hold: Span) {
        self.follow_origin(context);
        let is_new = |(alert, severity): &&(u64, Severity)| {
            self.alerts.get(alert).is_none_or(|known| !known.covers(now, *severity, hold))
        };
        let new = context.came.iter().filter(is_new).count();
        // A finding of our own detectors brings no alerts, and counts as one alert where it joins.
        let new = (new as u32).max(u32::from(context.apart));
        if new > 0 && (self.record.state == State::Acknowledged || self.record.named.is_some()) {
            let title = self.record.title();
            let named = self.record.named.get_or_insert_with(|| Named { title, ..Named::default() });
            named.new += new;
        }
        for (alert, severity) in &context.came {
            let (room, new) =
                (self.alerts.len() < MAX_ALERTS, KnownAlert { severity: *severity, over: None });
            match self.alerts.get_mut(alert) {
                Some(known) if *severity >= known.severity => *known = new,
                None if room => drop(self.alerts.insert(*alert, new)),
                Some(_) | None => {}
            }
        }
    }

    /// Records when alerts ended.
    pub(super) fn alerts_ended(&mut self, now: Ts, went: &[(u64, Severity)]) {
        for (alert, severity) in went {
            if let Some(known) = self.alerts.get_mut(alert).filter(|known| *severity >= known.severity) {
                known.over = Some(now);
            }
        }
    }
}

/// Whether `kind` has the cause of a known kind, but is not expected after any of them.
pub(super) fn is_news(kind: Kind, known: &BTreeSet<Kind>) -> bool {
    let same_cause = known.iter().any(|k| k.cause() == kind.cause());
    same_cause && !known.iter().any(|k| is_expected(kind, *k))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Level, Policy, ResponderConfig};
    use crate::effect::Tx;
    use crate::effect::{Action, Effect};
    use crate::incident::manager::Manager;
    use crate::incident::tests::raised;
    use Change::{Clear, Raise};
    use Severity::{Page, Ticket};
    use stepwatch_model::{Change, Context, Finding, RunSummary};

    fn news(kind: Kind, known: &[Kind]) -> bool {
        is_news(kind, &known.iter().copied().collect())
    }

    #[test]
    fn the_ordinary_course_of_a_trouble_is_no_news() {
        assert!(!news(Kind::LossSpike, &[Kind::GradSpike]) && !news(Kind::GradSpike, &[Kind::LossSpike]));
        assert!(!news(Kind::Nonfinite, &[Kind::LossSpike, Kind::Divergence]));
        assert!(!news(Kind::LossSpike, &[Kind::Divergence]), "what is lost jumps about");
        assert!(!news(Kind::FirstFailure, &[Kind::Hang]) && !news(Kind::Straggler, &[Kind::ThroughputDrop]));
        assert!(!news(Kind::GpuFault, &[Kind::Hang]), "why it stands is reported with it, not again");
        assert!(!news(Kind::RankDead, &[Kind::RestartLoop]), "each restart brings it back");
        assert!(news(Kind::Hang, &[Kind::RestartLoop]), "no restart follows");
    }

    #[test]
    fn another_trouble_is_news() {
        assert!(news(Kind::Divergence, &[Kind::LossSpike]) && news(Kind::Nonfinite, &[Kind::GradSpike]));
        assert!(news(Kind::LossShift, &[Kind::LossSpike]) && news(Kind::EvalGap, &[Kind::Plateau]));
        assert!(news(Kind::ThroughputDrop, &[Kind::Stall]) && news(Kind::GcTail, &[Kind::ThroughputDrop]));
        assert!(news(Kind::RestartLoop, &[Kind::RankDead]), "a person who knew counted on the restart");
    }

    /// A manager with one run and one receiver, and the notifications that it sent.
    struct World {
        book: Manager,
        now: Ts,
        sent: Vec<(Action, Severity)>,
    }

    impl World {
        fn new() -> Self {
            let levels = vec![Level { after: Span::ZERO, notify: vec!["phone".into()], ..Level::default() }];
            let policies = vec![Policy { name: "default".into(), levels }];
            let config = ResponderConfig {
                receivers: vec!["phone".into()],
                policies,
                update_min_interval: Span::ZERO,
                ..ResponderConfig::default()
            };
            Self { book: Manager::new(config), now: Ts(1_795_227_416_000), sent: Vec::new() }
        }

        /// Reports a finding about the run, `seconds` after the last one.
        fn said(&mut self, seconds: i64, change: Change, kind: Kind, severity: Severity) {
            self.now = self.now + Span::secs(seconds);
            let run = RunSummary { name: "llama".into(), ..RunSummary::default() };
            let scope = Scope::Run("llama".into());
            let context = Context::new(scope, run, BTreeSet::new(), self.now);
            let v = Finding { change, ..raised(self.now, kind, severity) };
            let mut out = Vec::new();
            self.book.finding(&mut Tx::new(self.now, &mut out), &context, &v);
            self.take(out);
        }

        fn ack(&mut self) {
            let mut out = Vec::new();
            let ids: Vec<String> = self.book.open.keys().cloned().collect();
            ids.iter().for_each(|id| self.book.ack(&mut Tx::new(self.now, &mut out), id, "alice"));
            self.take(out);
        }

        fn take(&mut self, effects: Vec<Effect>) {
            for e in effects {
                if let Effect::Notify(n) = e {
                    let page = if n.page { Page } else { Ticket };
                    self.sent.push((n.action, page));
                }
            }
        }

        /// The notifications since the last call.
        fn news(&mut self) -> Vec<(Action, Severity)> {
            core::mem::take(&mut self.sent)
        }
    }

    #[test]
    fn an_acknowledgement_covers_what_was_known() {
        let mut w = World::new();
        w.said(0, Raise, Kind::GradSpike, Page);
        w.ack();
        w.news();
        w.said(5, Raise, Kind::LossSpike, Page);
        assert_eq!(w.news(), [(Action::Update, Page)], "where gradients lead is no reason to ring again");
        w.said(600, Raise, Kind::Divergence, Page);
        assert_eq!(w.news(), [(Action::Trigger, Page)], "that it does not come back is");
        let incident = w.book.open.values().next().map(|i| (i.record.state, i.record.acked_by.clone()));
        assert_eq!((incident, w.book.open.len()), (Some((State::Open, None)), 1));
        w.ack();
        w.news();
        w.said(5, Raise, Kind::Nonfinite, Page);
        w.said(5, Raise, Kind::Divergence, Page);
        w.said(5, Raise, Kind::GradLevelShift, Ticket);
        assert!(
            w.news().iter().all(|(action, _)| *action == Action::Update),
            "a lost run is known to be lost"
        );
    }

    #[test]
    fn whoever_knows_that_restarts_do_not_help_is_not_called_for_each() {
        let mut w = World::new();
        w.said(0, Raise, Kind::RankDead, Page);
        w.ack();
        w.news();
        w.said(600, Raise, Kind::RestartLoop, Page);
        assert_eq!(w.news(), [(Action::Trigger, Page)], "a restart was expected to help");
        w.ack();
        w.said(9, Clear, Kind::RankDead, Page);
        w.news();
        w.said(9, Raise, Kind::RankDead, Ticket);
        w.said(30, Raise, Kind::RankDead, Page);
        assert!(w.news().iter().all(|(action, _)| *action == Action::Update));
    }

    #[test]
    fn what_only_waits_whether_it_comes_back_gives_way_to_another_trouble() {
        let mut w = World::new();
        w.said(0, Raise, Kind::Stall, Ticket);
        w.said(9, Clear, Kind::Stall, Ticket);
        w.news();
        w.said(9, Raise, Kind::ThroughputDrop, Page);
        assert_eq!(w.news(), [(Action::Resolve, Ticket), (Action::Trigger, Page)]);
        w.said(9, Clear, Kind::ThroughputDrop, Page);
        w.said(9, Raise, Kind::MfuDroop, Page);
        assert_eq!((w.news(), w.book.open.len()), (vec![], 1), "the same trouble is back");
        w.said(9, Clear, Kind::MfuDroop, Page);
        w.said(9, Raise, Kind::Stall, Ticket);
        assert_eq!(w.book.open.len(), 1, "nothing less than it was resolves a page that nobody took");
    }

    #[test]
    fn another_trouble_beside_one_that_holds_notifies_those_notified_before() {
        let mut w = World::new();
        w.said(0, Raise, Kind::ThroughputDrop, Ticket);
        w.news();
        w.said(9, Raise, Kind::GcTail, Ticket);
        assert_eq!((w.news(), w.book.open.len()), (vec![(Action::Update, Ticket)], 1));
        w.said(9, Raise, Kind::StepTimeJitter, Ticket);
        assert_eq!(w.news(), [], "that steps scatter is known");
    }
}
