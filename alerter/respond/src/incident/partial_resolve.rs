//! Partial resolution: lowers the severity of an incident, or removes the parts that have cleared,
//! while others still fire.
//!
//! An incident is a page only while something in it is one, and covers a target only while that has
//! a fault. Otherwise a warning that stands for weeks, or a run that failed and is kept for a week,
//! would swallow every later page of its node.

use super::manager::Manager;
use super::open::Incident;
use super::report::Report;
use crate::effect::Tx;
use crate::effect::timeline;
use stepwatch_model::{Fact, Finding, Scope, Sentence, Severity, Span, Subject, Suspect, clause};

/// The hold doubles at most this often.
const MAX_DOUBLINGS: u32 = 5;

impl Manager {
    /// Records a finding that holds. It cancels the pending end of its incident, unless the
    /// incident is a page and only less than a page is left.
    pub(super) fn holds(&mut self, tx: &mut Tx<'_>, id: &str, report: Report<'_>) {
        let Report { subject, context, finding: v } = report;
        let now = tx.now;
        let base = self.config.resolve_after;
        let Some(i) = self.open.get_mut(id) else { return };
        let fell = i.falls();
        i.raised.insert((subject.clone(), v.kind), v.severity);
        i.silent.remove(&(subject.clone(), v.kind));
        i.known.entry(subject.clone()).or_default().insert(v.kind);
        // External alerts, and conditions of a node, hold for as long as they fire.
        let stands = context.is_node() || matches!(context.scope, Scope::Alert(_));
        let is_less = if stands { i.falls() } else { fell && v.severity < Severity::Page };
        if !is_less {
            if i.resolve_at.take().is_some() {
                i.record.flaps += 1;
                tx.out.push(timeline(now, id, format!("came back: {}", v.why)));
                self.returned(tx, id, v);
            }
        } else if stands {
            if !fell || i.resolve_at.is_none() {
                i.resolve_at = i.resolve_at.max(Some(now + i.hold(base)));
            }
            let words = i.less_is_left(v);
            tx.out.push(timeline(now, id, words));
        }
    }

    /// A subject that was clear for the hold time leaves an incident that other subjects keep open,
    /// so that its next fault opens a new incident.
    pub(super) fn let_go(&mut self, tx: &mut Tx<'_>, subject: &Subject) {
        let now = tx.now;
        let Some(id) = self.correlator.find(subject) else { return };
        let over_at = self.correlator.flap_history().over_at(subject);
        let base = self.config.resolve_after;
        let Some(i) = self.open.get_mut(&id) else { return };
        let others = !i.raised.is_empty() && i.raised.keys().all(|(s, _)| s != subject);
        let ours = matches!(subject.scope, Scope::Run(_) | Scope::Node(_));
        let held = over_at.is_some_and(|at| now - at < i.hold(base));
        if !ours || !others || held {
            return;
        }
        i.subjects.remove(subject);
        i.known.remove(subject);
        i.silent.retain(|(s, _), _| s != subject);
        if i.subjects.iter().all(|s| s.scope != subject.scope) {
            i.paged.remove(&subject.scope);
        }
        self.correlator.let_go(subject);
        let words = format!(
            "{} of {} was over: it is no part any more",
            subject.cause.as_str(),
            subject.scope.name()
        );
        tx.out.push(timeline(now, &id, words));
        self.finish(&id, tx.out);
    }
}

impl Incident {
    /// How long everything in it must be clear before it resolves: `base`, doubled for each flap.
    pub(super) fn hold(&self, base: Span) -> Span {
        Span(base.0 << self.record.flaps.min(MAX_DOUBLINGS))
    }

    /// Makes the finding the summary of a page that is over, if nothing else is left. Returns the
    /// timeline entry.
    pub(super) fn less_is_left(&mut self, v: &Finding) -> String {
        if v.kind == self.record.kind && self.raised.len() == 1 {
            self.record.summary = v.why.left();
        }
        format!("what is left is less than a page, and is reported by itself if it stays so: {}", v.why)
    }

    /// The summary and the suspects of the ticket for what is left of a page.
    pub(super) fn what_is_left(&self) -> (Sentence, Vec<Suspect>) {
        let (of, mut suspects) = (&self.record.id, self.record.suspects.clone());
        let Some(what) = self.record.summary.what_is_left() else {
            let (left, over) = (self.left(), self.record.kind.title());
            let (left, of) = (Fact::text(left), Fact::text(of));
            let words = clause!("{left}: left of incident {of}, whose {over} is over", left, of, over);
            return (words.into(), suspects);
        };
        suspects.retain(|s| !s.target.is_device() || what.names(&s.target));
        (what.after(clause!("left of incident {of}: ", of = Fact::text(of))), suspects)
    }
}
