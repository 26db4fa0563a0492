//! Applies a finding to the open incidents: it opens one, joins or updates one, or ends one.

use super::correlator::Correlator;
use super::correlator::flap_history::FLAP_MEMORY;
use super::manager::Manager;
use super::open::Incident;
use super::renotify_policy::is_news;
use super::report::Report;
use super::transition::{self, Novelty, Transition};
use super::{End, Ended, IncidentRecord, State};
use crate::effect::Tx;
use crate::effect::timeline;
use crate::effect::{Action, Effect};
use crate::message::{Reason, Why};
use crate::route::STORE;
use std::collections::{BTreeMap, BTreeSet};
use stepwatch_model::{Cause, Change, Context, Finding, Kind, Scope, Severity, Span, Subject, Ts};

impl Manager {
    pub(crate) fn finding(&mut self, tx: &mut Tx<'_>, context: &Context, v: &Finding) {
        self.take(tx, context, v);
        self.explain_others(tx);
    }

    pub(super) fn take(&mut self, tx: &mut Tx<'_>, context: &Context, v: &Finding) {
        let now = tx.now;
        let subject = &Subject { scope: context.scope.clone(), cause: v.kind.cause() };
        let report = Report { subject, context, finding: v };
        if !v.change.ends() {
            self.let_go(tx, subject);
        }
        let own = self.correlator.find(subject);
        self.alerts_ended(now, subject, context);
        if own.is_none()
            && let Some(id) = self.closed.find(subject)
        {
            return self.while_closed(tx, &id, report);
        }
        match v.change {
            Change::Clear | Change::Lapse => {
                self.correlator.flap_history_mut().reopen(subject, v.kind);
                if let Some(id) = own {
                    self.clear(tx, &id, report);
                }
            }
            Change::Raise | Change::Another | Change::More => {
                if let Some(id) = own.filter(|id| !self.makes_room(tx, id, report)) {
                    return self.update(tx, &id, report);
                }
                let labels = || self.dispatcher.labels_of(report);
                if let Some(id) = self.hang_that_was(context, v) {
                    tx.out.push(timeline(now, &id, format!("also {}: {}", v.kind.title(), v.why)));
                } else if let Some(id) = self.correlator.correlated(self.view(now), report, &labels) {
                    self.join(tx, &id, report);
                } else if let Some(id) = self.correlator.grouped(self.view(now), report, &labels) {
                    // Only its labels match: the person who has the incident knows nothing of this
                    // finding.
                    let context = &Context { apart: true, ..context.clone() };
                    self.join(tx, &id, Report { context, ..report });
                } else {
                    self.create(tx, report);
                }
            }
            Change::Note => {
                let labels = || self.dispatcher.labels_of(report);
                let correlated = || self.correlator.correlated(self.view(now), report, &labels);
                match own.or_else(|| self.hang_that_was(context, v)).or_else(correlated) {
                    Some(id) => {
                        tx.out.push(timeline(now, &id, format!("also seen: {}", v.why)));
                        if let Some(i) = self.open.get_mut(&id).filter(|_| !v.suspects.is_empty()) {
                            i.record.suspect(v, false);
                        }
                        self.finish(&id, tx.out);
                    }
                    None => self.annotate(tx, report),
                }
            }
        }
    }

    /// The incident of the hang that a stall finding belongs to. The step that ends a hang is long,
    /// which is no second fault.
    fn hang_that_was(&self, context: &Context, v: &Finding) -> Option<String> {
        let stall = v.kind == Kind::Stall && !v.change.ends();
        let hang = Subject { scope: context.scope.clone(), cause: Cause::Progress };
        if stall { self.correlator.find(&hang).or_else(|| self.closed.find(&hang)) } else { None }
    }

    /// The id of an incident that `v` opens. The same finding, made again after a crash before it
    /// was stored, gives the same id: its pages may have been sent without being recorded.
    fn new_id(&mut self, now: Ts, subject: &Subject, v: &Finding) -> String {
        let id = match &subject.scope {
            Scope::Own(check) if check == STORE => self.recorded.map(|at| Correlator::id_at(at, subject)),
            Scope::Own(_) => None,
            Scope::Alert(condition) => self
                .external
                .since(&condition.key)
                .and_then(|since| self.correlator.id_since(now, subject, since)),
            _ => self.correlator.id_since(now, subject, v.ts),
        };
        let id = id.filter(|id| !self.open.contains_key(id) && self.closed.get(id).is_none());
        id.unwrap_or_else(|| self.correlator.next_id(now, subject))
    }

    fn create(&mut self, tx: &mut Tx<'_>, report: Report<'_>) {
        let now = tx.now;
        let Report { subject, context, finding: v } = report;
        let flaps = self.correlator.flap_history_mut().flaps(now, subject);
        let id = self.new_id(now, subject, v);
        let record = IncidentRecord::opened_by(report, now, id.clone(), flaps);
        let again = if flaps > 0 {
            format!(" (came back {flaps} times within {FLAP_MEMORY})")
        } else {
            String::new()
        };
        tx.out.push(timeline(now, &id, format!("opened as {}: {}{again}", v.severity.as_str(), v.why)));
        let mut incident = Incident {
            raised: BTreeMap::from([((subject.clone(), v.kind), v.severity)]),
            known: BTreeMap::from([(subject.clone(), BTreeSet::from([v.kind]))]),
            node_at: context.is_node().then_some(now),
            paged: (v.severity == Severity::Page).then(|| context.scope.clone()).into_iter().collect(),
            origin: context.origin.clone(),
            shared: context.shared,
            ..Incident::new(record, context.run.clone(), BTreeSet::from([subject.clone()]))
        };
        incident.note_alerts(now, context, Span::ZERO);
        self.restore(id.clone(), incident);
        self.announce(tx, &id, v.ts, &Why::first());
        self.finish(&id, tx.out);
    }

    /// Resolves an incident that is over and waits for its hold, if the report is about another
    /// fault that is as severe: the people who were notified of the first do not know of the
    /// second. Returns whether it did.
    fn makes_room(&mut self, tx: &mut Tx<'_>, id: &str, report: Report<'_>) -> bool {
        let Report { subject, finding: v, .. } = report;
        let Some(i) = self.open.get(id) else { return false };
        let gives_way = i.resolve_at.is_some()
            && i.raised.is_empty()
            && i.is_news(subject, v.kind)
            && v.severity >= i.record.severity.max(Severity::Ticket);
        if gives_way {
            let end = i.end().unwrap_or_else(|| End::of(Ended::Clear));
            let words = format!("over; {} is another trouble", v.kind.title());
            self.resolve(tx, id, end, &words);
        }
        gives_way
    }

    /// Adds a report to an incident with the same fault, and notifies the people who know of it.
    fn join(&mut self, tx: &mut Tx<'_>, id: &str, report: Report<'_>) {
        let Report { subject, context, finding: v } = report;
        let now = tx.now;
        let Some(i) = self.open.get_mut(id) else { return };
        i.subjects.insert(subject.clone());
        self.correlator.answers_for(id, subject);
        let notified = |i: &Incident| i.lanes.values().map(|l| l.seq).sum::<u32>();
        let before = notified(i);
        let how = if context.apart { "the same labels of group_by" } else { "one fault" };
        tx.out.push(timeline(now, id, format!("{} of {}: {how}", v.kind.title(), subject.scope.name())));
        self.update(tx, id, report);
        if self.open.get(id).is_some_and(|i| before > 0 && notified(i) == before) {
            let reason = format!("also {} of {}: {}", v.kind.title(), subject.scope.name(), v.why);
            self.notify_all(tx, id, Action::Update, reason);
            self.finish(id, tx.out);
        }
        self.absorb(tx, id, context);
    }

    /// Records an annotation: an incident that is resolved at once and notifies nobody.
    fn annotate(&mut self, tx: &mut Tx<'_>, report: Report<'_>) {
        let now = tx.now;
        let Report { subject, context, finding: v } = report;
        let id = self.correlator.next_id(now, subject);
        let mut record = IncidentRecord::opened_by(report, now, id, 0);
        record.labels = self.dispatcher.labels(&record, &context.run);
        record.state = State::Resolved;
        record.resolved_at = Some(now);
        record.end_step = Some(v.step);
        record.end = Some(End::of(Ended::Clear));
        // The incident is never open, but the number in its id is used up.
        self.touched.push(record.id.clone());
        tx.out.push(timeline(now, &record.id, format!("noted: {}", v.why)));
        tx.out.push(Effect::Incident(Box::new(record)));
    }

    pub(super) fn update(&mut self, tx: &mut Tx<'_>, id: &str, report: Report<'_>) {
        let Report { context, finding: v, .. } = report;
        let now = tx.now;
        let weighed = !context.is_node()
            || self.correlator.standstill_or_slowness(&self.open, &context.run.name).is_some();
        let Some(i) = self.open.get_mut(id) else { return };
        let new = Novelty::of(i, report);
        if v.severity == Severity::Page {
            i.paged.insert(context.scope.clone());
        }
        let hold = i.hold(self.config.resolve_after);
        i.note_alerts(now, context, hold);
        i.meet(now, context, v);
        self.holds(tx, id, report);
        let Some(i) = self.open.get_mut(id) else { return };
        let (transition, leads) = (transition::classify(i, v, new), transition::leads(i, v));
        let (had_severity, had_kind) = (i.record.severity, i.record.kind);
        i.record.suspect(v, leads || weighed && !(context.is_node() && i.falls()));
        let links = i.links_down(context, v);
        if leads {
            i.record.follow(v, links.as_ref().map(|links| v.why.under(links)));
        } else if v.kind != had_kind {
            tx.out.push(timeline(now, id, format!("also {}: {}", v.kind.title(), v.why)));
        }
        if let Some(why) = links.filter(|_| !weighed) {
            i.record.suspect_switch(why);
        }
        match transition {
            Transition::Raise => self.raise(tx, id, had_severity, v),
            Transition::Reopen => {
                i.record.ask_anew(now);
                let what = if new.another || new.elsewhere { v.why.what() } else { v.kind.title().into() };
                let words = format!("after it was acknowledged: {what}");
                self.announce(tx, id, v.ts, &Why::new(Reason::News, words));
            }
            Transition::Add => {
                self.notify_all(tx, id, Action::Update, format!("also {}", v.why.what()));
            }
            Transition::AddKind => {
                self.notify_all(tx, id, Action::Update, format!("also {}: {}", v.kind.title(), v.why));
            }
            Transition::Become => {
                let words = format!("{} became {}", had_kind.title(), v.kind.title());
                tx.out.push(timeline(now, id, format!("{words}: {}", v.why)));
                self.notify_all(tx, id, Action::Update, Why::new(Reason::Changed, words));
            }
            Transition::Note => tx.out.push(timeline(now, id, v.why.to_string())),
            Transition::Nothing => {}
        }
        self.finish(id, tx.out);
    }

    /// Raises the severity of an incident, drops its acknowledgement and announces it again.
    pub(super) fn raise(&mut self, tx: &mut Tx<'_>, id: &str, had: Severity, v: &Finding) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id) else { return };
        let raised = format!("raised from {} to {}", had.as_str(), v.severity.as_str());
        tx.out.push(timeline(now, id, format!("{raised}: {}", v.why)));
        i.record.ask_anew(now);
        if had == Severity::Info {
            i.record.opened_step = v.step;
        }
        self.announce(tx, id, v.ts, &Why::new(Reason::Raised, raised));
    }

    /// Handles a condition that returned. The person who acknowledged it is notified, until it has
    /// returned more than `flapping_after` times.
    pub(super) fn returned(&mut self, tx: &mut Tx<'_>, id: &str, v: &Finding) {
        let now = tx.now;
        let Some(i) = self.open.get(id) else { return };
        if i.record.state != State::Acknowledged {
            if i.record.level == 0 && i.ladders.is_empty() && v.severity <= i.record.severity {
                // It was over before anybody was notified. A higher severity is announced by
                // `raise`.
                self.announce(tx, id, v.ts, &Why::first());
            }
            return;
        }
        if i.ack_ends(&self.config).is_some_and(|at| at <= now) {
            return self.ack_expired(tx, id);
        }
        let Some(i) = self.open.get_mut(id) else { return };
        let why = if i.record.flaps <= self.config.flapping_after {
            Why::new(Reason::CameBack, "it came back")
        } else if !core::mem::replace(&mut i.flapping, true) {
            let words = format!(
                "flapping: it came back {} times; nobody is notified of further returns",
                i.record.flaps
            );
            Why::new(Reason::Flapping, words)
        } else {
            return;
        };
        self.notify_all(tx, id, Action::Update, why);
    }

    fn clear(&mut self, tx: &mut Tx<'_>, id: &str, report: Report<'_>) {
        let Report { subject, context, finding: v } = report;
        let now = tx.now;
        let hold_base = self.config.resolve_after;
        let Some(i) = self.open.get_mut(id) else { return };
        if i.raised.remove(&(subject.clone(), v.kind)).is_none() {
            return;
        }
        // Only after the check above: the summary is stored only with an incident that changes.
        i.learn(&context.run);
        if !i.raised.keys().any(|(_, kind)| kind.cause() == Cause::Progress)
            && let Some(standstill) = &mut i.record.standstill
        {
            standstill.end(now);
        }
        let hold = i.hold(hold_base);
        let key = (subject.clone(), v.kind);
        let over = if v.change == Change::Lapse {
            i.silent.insert(key, v.ts);
            format!("{} stale: {}", v.kind.title(), v.why)
        } else {
            i.silent.remove(&key);
            format!("{} over: {}", v.kind.title(), v.why)
        };
        if i.raised.is_empty() {
            i.resolve_at = Some(now + hold);
            i.record.end_step = Some(v.step);
            tx.out.push(timeline(now, id, format!("{over}; resolves if it stays so for {hold}")));
        } else if i.raised.keys().all(|(s, _)| s != subject) {
            self.correlator.flap_history_mut().resolved(now, subject, i.record.flaps);
            let then = if i.falls() {
                i.resolve_at = Some(now + hold);
                format!(", which becomes a ticket if it stays so for {hold}")
            } else {
                String::new()
            };
            tx.out.push(timeline(now, id, format!("{over}; what is left is {}{then}", i.left())));
        }
        self.finish(id, tx.out);
    }

    pub(crate) fn tick(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        let Some(i) = self.open.get(id) else { return self.reopen(tx, id) };
        if i.resolve_at.is_some_and(|at| at <= now) {
            if i.falls() {
                return self.fall(tx, id);
            }
            let (end, lasted) = (i.end(), now - i.record.opened_at);
            let (end, words) = match end {
                Some(end) => (end.clone(), end.after(lasted)),
                None => (End::of(Ended::Clear), format!("resolved by itself after {lasted}")),
            };
            self.resolve(tx, id, end, &words);
            return;
        }
        if i.ack_expires(&self.config).is_some_and(|at| at <= now) {
            self.ack_expired(tx, id);
        }
        match self.open.get(id).filter(|i| i.record.next_at.is_some_and(|at| at <= now)) {
            Some(i) if i.record.suppression.is_some() => self.reevaluate_suppression(tx, id),
            Some(_) => {
                self.climb_if_it_holds(tx, id);
                self.finish(id, tx.out);
            }
            None => {}
        }
        self.notify_news(tx, id);
    }

    pub(super) fn finish(&mut self, id: &str, out: &mut Vec<Effect>) {
        self.relabel(id);
        if let Some(i) = self.open.get(id) {
            out.push(Effect::Incident(Box::new(i.record.clone())));
        }
        self.touched.push(id.to_owned());
    }
}

impl Incident {
    /// Whether `kind` does not follow from any kind that this incident has had of the subject.
    pub(super) fn is_news(&self, subject: &Subject, kind: Kind) -> bool {
        self.known.get(subject).is_some_and(|known| is_news(kind, known))
    }
}
