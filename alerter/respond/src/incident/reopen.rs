//! Reopens incidents that a person resolved while they still fire.

use super::manager::Manager;
use super::open::Incident;
use super::report::Report;
use super::{End, Ended, Verdict};
use crate::effect::Effect;
use crate::effect::Tx;
use crate::effect::{by_actor, timeline};
use crate::message::{Reason, Why};
use std::collections::{BTreeMap, BTreeSet};
use stepwatch_model::{Change, Kind, Scope, Severity, Subject, Ts};

impl Incident {
    /// Removes the subjects that are over. Otherwise the next faults of a run that trains on
    /// elsewhere would join this incident.
    pub(super) fn keep_what_fires(&mut self) {
        let fires: BTreeSet<Subject> = self.raised.keys().map(|(subject, _)| subject.clone()).collect();
        self.subjects.retain(|subject| fires.contains(subject));
        self.known.retain(|subject, _| fires.contains(subject));
        self.silent.retain(|(subject, _), _| fires.contains(subject));
        self.paged.retain(|scope| fires.iter().any(|subject| subject.scope == *scope));
    }

    /// Whether what made it a page is over, or a node now reports the same kind as less severe.
    pub(super) fn is_less_than_notified(&self) -> bool {
        let is_page =
            |s: &Subject, kind: Kind| kind == self.record.kind && !matches!(s.scope, Scope::Node(_));
        self.falls() && !self.raised.keys().any(|(s, kind)| is_page(s, *kind))
    }
}

impl Manager {
    pub(crate) fn resolve_by_hand(&mut self, tx: &mut Tx<'_>, id: &str, by: &str, verdict: Option<Verdict>) {
        let now = tx.now;
        let Some(i) = self.open.get(id) else { return };
        // A storm has no fault of its own; its members reopen by themselves.
        let fires = i.storm.is_none() && i.record.severity > Severity::Info && !i.raised.is_empty();
        let reopens_at = fires.then(|| now + self.config.reopen_after);
        let raised = if fires { i.raised.clone() } else { BTreeMap::new() };
        let back = reopens_at.map_or_else(String::new, |at| {
            format!(
                "; still firing: comes back at {at} unless it is over by then; silence it to keep it quiet"
            )
        });
        self.resolve_members(tx, id, by, verdict);
        let end = End { by: Some(by.to_owned()), reopens_at, verdict, ..End::of(Ended::Person) };
        let as_what = verdict.map(Verdict::words).unwrap_or_default();
        let gone = self.resolve(tx, id, end, &format!("resolved by {by}{as_what}{back}"));
        for ((subject, kind), severity) in raised {
            self.correlator.flap_history_mut().close(now, &subject, kind, severity);
        }
        if let Some(gone) = gone.filter(|_| fires) {
            self.closed.keep(id.to_owned(), gone);
        }
    }

    /// Handles a finding about an incident that a person resolved.
    pub(super) fn while_closed(&mut self, tx: &mut Tx<'_>, id: &str, report: Report<'_>) {
        let Report { subject, context, finding: v } = report;
        let now = tx.now;
        let known = self.correlator.flap_history().is_closed(subject, v);
        let Some(i) = self.closed.all.get_mut(id) else { return };
        let key = (subject.clone(), v.kind);
        match v.change {
            Change::Note => tx.out.push(timeline(now, id, format!("also seen: {}", v.why))),
            Change::Clear | Change::Lapse => {
                self.correlator.flap_history_mut().reopen(subject, v.kind);
                if i.raised.remove(&key).is_some() {
                    let how = if v.change == Change::Lapse { "stale" } else { "over" };
                    tx.out.push(timeline(now, id, format!("{} {how}: {}", v.kind.title(), v.why)));
                }
                return self.closed_may_be_over(tx, id);
            }
            // It is worse than what that person knew, or another fault: the incident reopens at
            // once.
            Change::Raise | Change::Another | Change::More if !known && v.severity >= i.record.severity => {
                let worse = v.severity > i.record.severity;
                let why = Why::new(Reason::Reopened, format!("reopened: {}", v.why.what()));
                tx.out.push(timeline(now, id, format!("reopened: {}", v.why)));
                self.open_again(now, id);
                self.update(tx, id, report);
                if !worse {
                    self.rings_anew(tx, id, &why);
                }
                return;
            }
            Change::Raise | Change::Another | Change::More => {
                // As in an open incident, only a finding of a node may lower the severity.
                let had = i.raised.get(&key).copied().filter(|_| !context.is_node());
                i.raised.insert(key, had.map_or(v.severity, |had| had.max(v.severity)));
                i.known.entry(subject.clone()).or_default().insert(v.kind);
                if !known {
                    let words = format!("also {}: {}; it comes back with the rest", v.kind.title(), v.why);
                    tx.out.push(timeline(now, id, words));
                }
            }
        }
        self.touched.push(id.to_owned());
    }

    /// Reopens an incident whose `reopens_at` has passed.
    pub(super) fn reopen(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        let Some(i) = self.closed.get(id).filter(|i| i.record.reopens_at().is_some_and(|at| at <= now))
        else {
            return;
        };
        let after = i.record.resolved_at.map(|at| now - at).unwrap_or_default();
        let by = i.record.end.as_ref().and_then(|end| end.by.clone()).unwrap_or_default();
        let words = format!("still firing {after} after {by} resolved it");
        tx.out.push(timeline(now, id, format!("reopened: {words}")));
        self.comes_back(tx, id, &words);
    }

    /// Reopens an incident before its `reopens_at`, because a person asked for it.
    pub(crate) fn reopen_by_hand(&mut self, tx: &mut Tx<'_>, id: &str, by: &str) {
        if self.closed.get(id).is_none() {
            return;
        }
        tx.out.push(by_actor(tx.now, id, by, "reopened: it still fires".into()));
        self.comes_back(tx, id, &format!("by {by}"));
    }

    fn comes_back(&mut self, tx: &mut Tx<'_>, id: &str, words: &str) {
        let less = self.closed.get(id).is_some_and(Incident::is_less_than_notified);
        self.open_again(tx.now, id);
        if less {
            // What made it a page is over.
            return self.fall(tx, id);
        }
        self.rings_anew(tx, id, &Why::new(Reason::Reopened, format!("reopened: {words}")));
    }

    pub(super) fn rings_anew(&mut self, tx: &mut Tx<'_>, id: &str, why: &Why) {
        let now = tx.now;
        // A person stopped the run: what is left of the incident need not page anybody, also after
        // it was resolved.
        if self.open.get(id).is_some_and(|i| !i.calm) {
            self.announce(tx, id, now, why);
        }
        if let Some(i) = self.open.get_mut(id) {
            i.news = None;
        }
        self.finish(id, tx.out);
    }

    /// Opens the incident again under the same id, without an acknowledgement.
    pub(super) fn open_again(&mut self, now: Ts, id: &str) {
        let Some(mut i) = self.closed.take(id) else { return };
        for (subject, kind) in i.raised.keys() {
            self.correlator.flap_history_mut().reopen(subject, *kind);
        }
        i.keep_what_fires();
        i.record.ask_anew(now);
        (i.record.resolved_at, i.record.end, i.record.end_step, i.record.suppression) =
            (None, None, None, None);
        // The next call contains all news, so that no update is due at once.
        i.told_at = Some(now);
        self.restore(id.to_owned(), i);
    }

    /// Removes the subjects for which `goes` holds from closed incidents, because nothing reports
    /// them any more.
    pub(super) fn closed_without(&mut self, tx: &mut Tx<'_>, why: &str, goes: impl Fn(&Subject) -> bool) {
        let now = tx.now;
        let of_it = |i: &Incident| i.raised.keys().any(|(subject, _)| goes(subject));
        let ids: Vec<String> =
            self.closed.iter().filter(|(_, i)| of_it(i)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            if let Some(i) = self.closed.all.get_mut(&id) {
                i.raised.retain(|(subject, _), _| !goes(subject));
            }
            tx.out.push(timeline(now, &id, why.to_owned()));
            self.closed_may_be_over(tx, &id);
        }
    }

    pub(super) fn closed_may_be_over(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        self.touched.push(id.to_owned());
        if self.closed.get(id).is_none_or(|i| !i.raised.is_empty()) {
            return;
        }
        let Some(mut i) = self.closed.take(id) else { return };
        if let Some(end) = &mut i.record.end {
            end.reopens_at = None;
        }
        tx.out.push(timeline(now, id, "it does not fire any more: stays resolved".into()));
        tx.out.push(Effect::Incident(Box::new(i.record)));
    }
}
