//! So many incidents at once that they are one: told as one, kept and shown each for itself.
//!
//! A storm is counted among the incidents of one severity that take the same way: they are for the same people. While more than
//! `storm.incidents` of them were announced within `storm.within`, each further one is rolled up into an incident of kind
//! `alert_storm`, which takes the way that they would have taken, so that pages in a storm do page, once. It ends when the last of
//! them does; whoever takes it has taken them all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::book::{Book, Incident, timeline};
use super::{Hidden, IncidentRecord, Quiet, Scope, State, Subject, id};
use crate::config::Storm;
use crate::effect::{Action, Effect};
use crate::matcher::Labels;
use crate::message::{Reason, RunSummary, Why};
use crate::time::{Span, Ts};
use crate::verdict::{Kind, Severity, Suspect};

/// Incidents that a roll-up names one by one.
const NAMED: usize = 8;
/// Ways that are counted at once: a way is a route and a severity.
const MAX_WAYS: usize = 1024;

/// What an incident that stands for many knows of them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Ever, and open still.
    total: u32,
    open: u32,
    kinds: BTreeMap<Kind, u32>,
    joined_at: Ts,
}

/// When incidents were announced, by severity and way; no more of them than make a storm.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Storms {
    recent: BTreeMap<String, VecDeque<Ts>>,
}

impl Storms {
    /// Counts one more; true if there are too many.
    fn count(&mut self, now: Ts, key: &str, config: &Storm) -> bool {
        if self.recent.len() >= MAX_WAYS {
            let fresh = |times: &VecDeque<Ts>| times.back().is_some_and(|at| now - *at <= config.within);
            self.recent.retain(|_, times| fresh(times));
        }
        let times = self.recent.entry(key.to_owned()).or_default();
        times.push_back(now);
        while times.len() > config.incidents as usize + 1
            || times.front().is_some_and(|at| now - *at > config.within)
        {
            times.pop_front();
        }
        times.len() > config.incidents as usize
    }
}

impl Tally {
    fn words(&self, within: Span) -> String {
        let mut kinds: Vec<_> = self.kinds.iter().map(|(kind, n)| (*n, kind.title())).collect();
        kinds.sort_by_key(|(n, title)| (core::cmp::Reverse(*n), *title));
        let kinds: Vec<_> = kinds.iter().map(|(n, title)| format!("{n} × {title}")).collect();
        let so_far = if self.open < self.total {
            format!(", {} of them open still", self.open)
        } else {
            String::new()
        };
        format!(
            "{} incidents more than are told one by one within {within}{so_far}: {}",
            self.total,
            kinds.join(", ")
        )
    }
}

impl Book {
    /// The incident is about to be told for the first time: what it is rolled up in, if there are too many like it.
    pub(super) fn rolls_up(&mut self, now: Ts, id: &str, out: &mut Vec<Effect>) -> Option<Quiet> {
        let i = self.open.get(id)?;
        let in_storm = i.record.quiet.as_ref().filter(|q| q.why == Hidden::RolledUp);
        if let Some(quiet) = in_storm.filter(|q| self.open.contains_key(&q.by)) {
            return Some(quiet.clone());
        }
        let counts = self.config.storm.enabled
            && !i.counted
            && !i.ladders.is_empty()
            && !matches!(i.record.kind, Kind::AlertStorm | Kind::AlerterFault);
        if !counts {
            return None;
        }
        let key = format!("{} by {}", i.record.severity.as_str(), i.ladders.routes());
        self.open.get_mut(id)?.counted = true;
        if !self.storms.count(now, &key, &self.config.storm) {
            return None;
        }
        let by = self.roll_up(now, id, &key, out)?;
        Some(Quiet { why: Hidden::RolledUp, by, until: None, words: "told as one of many".into() })
    }

    /// Puts an incident into the storm of its way, which begins with it if there is none.
    fn roll_up(&mut self, now: Ts, id: &str, key: &str, out: &mut Vec<Effect>) -> Option<String> {
        let subject = Subject { scope: Scope::Storm(key.to_owned()), cause: Kind::AlertStorm.cause() };
        let within = self.config.storm.within;
        let (storm, begins) = match self.find(&subject) {
            Some(storm) => (storm, false),
            None => (self.begin_storm(now, id, &subject)?, true),
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
        i.record.summary = tally.words(within);
        if i.record.suspects.len() < NAMED {
            i.record.suspects.push(Suspect { what: place, why: format!("{} ({id})", kind.title()) });
        }
        let (total, answered) = (tally.total, i.record.state == State::Acknowledged);
        if begins {
            out.push(timeline(now, &storm, format!("a storm of incidents for {key}")));
            self.announce(now, &storm, now, &Why::first(), out);
        } else if answered && calm {
            // Whoever took the storm took what was in it then.
            i.record.reopen();
            let why = Why::new(Reason::StormGrew, "the storm that was acknowledged is back");
            self.announce(now, &storm, now, &why, out);
        } else {
            let why = Why::new(Reason::StormGrew, format!("the storm grew: {total} incidents"));
            self.tell_all(now, &storm, Action::Update, why, out);
        }
        self.finish(&storm, out);
        Some(storm)
    }

    /// For the people of `first`, and as urgent.
    fn begin_storm(&mut self, now: Ts, first: &str, subject: &Subject) -> Option<String> {
        let i = self.open.get(first)?;
        let (severity, ladders) = (i.record.severity, i.ladders.clone());
        let team = i.record.labels.get("team").map(|team| ("team".to_owned(), team.clone()));
        self.ledger.counter += 1;
        let limit = f64::from(self.config.storm.incidents);
        let id = id::new(now, subject.scope.name(), subject.cause, self.ledger.counter);
        let record = storm_record(now, id.clone(), severity, limit);
        let summary = RunSummary { labels: team.into_iter().collect(), ..RunSummary::default() };
        let incident = Incident {
            ladders,
            storm: Some(Tally::default()),
            ..Incident::new(record, summary, BTreeSet::from([subject.clone()]))
        };
        self.restore(id.clone(), incident);
        Some(id)
    }

    /// An incident has left the storm, or is over.
    pub(super) fn left_storm(&mut self, now: Ts, storm: &str, out: &mut Vec<Effect>) {
        let (within, hold) = (self.config.storm.within, self.config.resolve_after);
        let Some(i) = self.open.get_mut(storm) else { return };
        let Some(tally) = &mut i.storm else { return };
        tally.open = tally.open.saturating_sub(1);
        i.record.summary = tally.words(within);
        if tally.open == 0 {
            i.raised.clear();
            i.resolve_at = Some(now + hold);
            out.push(timeline(now, storm, format!("every incident of it is over; resolves in {hold}")));
        }
        self.finish(storm, out);
    }

    /// Whoever takes a storm takes what is in it.
    pub(super) fn ack_members(&mut self, now: Ts, storm: &str, by: &str, out: &mut Vec<Effect>) {
        if self.open.get(storm).is_some_and(|i| i.storm.is_some()) {
            for id in self.hidden_by(storm) {
                self.ack(now, &id, by, out);
            }
        }
    }
}

fn storm_record(now: Ts, id: String, severity: Severity, limit: f64) -> IncidentRecord {
    IncidentRecord {
        id,
        run: String::new(),
        nodes: Vec::new(),
        cause: Kind::AlertStorm.cause(),
        kind: Kind::AlertStorm,
        severity,
        state: State::Open,
        signal: "incidents".into(),
        start_step: 0,
        opened_step: 0,
        detected_step: 0,
        end_step: None,
        value: 0.0,
        expected: limit,
        score: f64::NAN,
        summary: String::new(),
        suspects: Vec::new(),
        opened_at: now,
        resolved_at: None,
        acked_by: None,
        acked_at: None,
        level: 0,
        next_at: None,
        flaps: 0,
        labels: Labels::new(),
        quiet: None,
        end: None,
        named: None,
    }
}
