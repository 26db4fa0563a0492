//! Rolls incidents up into a storm: one incident that is notified for many.

use super::manager::Manager;
use super::open::Incident;
use super::suppressor::storm::{Crowd, NAMED, Tally};
use super::{IncidentRecord, State, Suppression, SuppressionReason, Verdict};
use crate::effect::Action;
use crate::effect::Tx;
use crate::effect::timeline;
use crate::labels::ORIGIN;
use crate::message::{Reason, Why};
use std::collections::BTreeSet;
use stepwatch_model::{Kind, Observation, RunSummary, Scope, Severity, Subject, Suspect, Target, Ts};

impl Manager {
    /// Rolls an incident up before its first notification, if there are too many like it.
    pub(super) fn rolls_up(&mut self, tx: &mut Tx<'_>, id: &str) -> Option<Suppression> {
        let now = tx.now;
        let i = self.open.get(id)?;
        let in_storm = i.record.suppressed_as(SuppressionReason::RolledUp);
        if let Some(suppression) = in_storm.filter(|s| self.open.contains_key(&s.by)) {
            return Some(suppression.clone());
        }
        let counts = self.config.storm.enabled
            && !i.counted
            && !i.ladders.is_empty()
            && !i.record.kind.is_of_alerter();
        // A receiver that was paged about the incident itself would miss its updates in a storm, or
        // may have acknowledged the storm already.
        let known_by_name = i.record.severity == Severity::Page && i.lanes.values().any(|lane| lane.paged);
        if !counts || known_by_name || i.is_page_of_known_run(now) {
            return None;
        }
        let crowd = self.suppressor.crowd(now, i, &self.config.storm);
        self.open.get_mut(id)?.counted = true;
        let by = self.roll_up(tx, id, &crowd?)?;
        Some(Suppression {
            why: SuppressionReason::RolledUp,
            by,
            until: None,
            words: "reported as one of many".into(),
        })
    }

    /// Adds an incident to the storm of its crowd, which opens if there is none. Returns its id.
    pub(super) fn roll_up(&mut self, tx: &mut Tx<'_>, id: &str, crowd: &Crowd) -> Option<String> {
        let now = tx.now;
        let key = &crowd.key;
        let subject = Subject { scope: Scope::Storm(key.clone()), cause: Kind::AlertStorm.cause() };
        let within = self.config.storm.within;
        let (storm, begins) = match self.correlator.find(&subject) {
            Some(storm) => (storm, false),
            None => (self.begin_storm(now, id, crowd, &subject)?, true),
        };
        let (kind, place) = self.open.get(id).map(|i| (i.record.kind, i.record.place()))?;
        let i = self.open.get_mut(&storm)?;
        i.raised.insert((subject, Kind::AlertStorm), i.record.severity);
        i.resolve_at = None;
        let tally = i.storm.get_or_insert_default();
        let calm = now - tally.joined_at > within;
        (tally.total, tally.open, tally.joined_at) = (tally.total + 1, tally.open + 1, now);
        *tally.kinds.entry(kind).or_default() += 1;
        i.record.value = f64::from(tally.total);
        i.record.summary = tally.words(within, crowd.origin.as_deref()).into();
        if i.record.suspects.len() < NAMED {
            let (id, target) = (id.to_owned(), Target::Incident { id: id.to_owned(), place });
            i.record.suspects.push(Suspect::new(target, Observation::Incident { id, kind }));
        }
        let (total, doubled) = (tally.total, tally.has_doubled());
        let answered = i.record.state == State::Acknowledged;
        if begins {
            tx.out.push(timeline(now, &storm, format!("a storm of incidents for {key}")));
            self.announce(tx, &storm, now, &Why::first());
        } else if answered && (calm || doubled) {
            // An acknowledgement of a storm covers the members that it had then.
            i.record.ask_anew(now);
            let what = if calm { "is back" } else { "has doubled" };
            let words = format!("the storm that was acknowledged {what}: {total} incidents");
            let why = Why::new(Reason::StormGrew, words);
            self.announce(tx, &storm, now, &why);
        } else {
            let why = Why::new(Reason::StormGrew, format!("the storm grew: {total} incidents"));
            self.notify_all(tx, &storm, Action::Update, why);
        }
        self.finish(&storm, tx.out);
        Some(storm)
    }

    /// Opens a storm with the ladders and the severity of `first`.
    pub(super) fn begin_storm(
        &mut self,
        now: Ts,
        first: &str,
        crowd: &Crowd,
        subject: &Subject,
    ) -> Option<String> {
        let i = self.open.get(first)?;
        let (severity, ladders) = (i.record.severity, i.ladders.clone());
        let team = i.record.labels.get("team").map(|team| ("team".to_owned(), team.clone()));
        let origin = crowd.origin.clone().map(|origin| (ORIGIN.to_owned(), origin));
        let id = self.correlator.next_id(now, subject);
        let record = IncidentRecord {
            signal: "incidents".into(),
            value: 0.0,
            expected: f64::from(crowd.limit),
            ..IncidentRecord::new(id.clone(), now, Kind::AlertStorm, severity)
        };
        let summary =
            RunSummary { labels: team.into_iter().chain(origin).collect(), ..RunSummary::default() };
        let incident = Incident {
            ladders,
            storm: Some(Tally::default()),
            ..Incident::new(record, summary, BTreeSet::from([subject.clone()]))
        };
        self.restore(id.clone(), incident);
        Some(id)
    }

    /// Counts a member that left the storm or is over. The storm resolves after the last one.
    pub(super) fn left_storm(&mut self, tx: &mut Tx<'_>, storm: &str) {
        let now = tx.now;
        let (within, hold) = (self.config.storm.within, self.config.resolve_after);
        let Some(i) = self.open.get_mut(storm) else { return };
        // No member is left if a person resolves the storm with its members.
        let Some(tally) = i.storm.as_mut().filter(|tally| tally.open > 0) else { return };
        tally.open -= 1;
        i.record.summary = tally.words(within, i.record.labels.get(ORIGIN).map(String::as_str)).into();
        if tally.open == 0 {
            i.raised.clear();
            i.resolve_at = Some(now + hold);
            tx.out.push(timeline(now, storm, format!("every incident of it is over; resolves in {hold}")));
        }
        self.finish(storm, tx.out);
    }

    /// Resolves the members of a storm with it. Members that still fire reopen, as after any
    /// resolution by a person.
    pub(super) fn resolve_members(
        &mut self,
        tx: &mut Tx<'_>,
        storm: &str,
        by: &str,
        verdict: Option<Verdict>,
    ) {
        let Some(tally) = self.open.get_mut(storm).and_then(|i| i.storm.as_mut()) else { return };
        tally.open = 0;
        for id in self.suppressor.suppressed_by(storm) {
            self.resolve_by_hand(tx, &id, by, verdict);
        }
    }

    /// Acknowledges the members of a storm with it.
    pub(super) fn ack_members(&mut self, tx: &mut Tx<'_>, storm: &str, by: &str) {
        if self.open.get(storm).is_some_and(|i| i.storm.is_some()) {
            for id in self.suppressor.suppressed_by(storm) {
                self.ack(tx, &id, by);
            }
        }
    }
}
