//! So many incidents at once that they are one: told as one, kept and shown each for itself.
//!
//! A storm is counted among the incidents of one severity and one team that take the same way: they
//! are for the same people. While more than `storm.incidents` of them were announced within
//! `storm.within`, each further one is rolled up into an incident of kind `alert_storm`, which
//! takes the way that they would have taken, so that pages in a storm do page, once. It ends when
//! the last of them does; whoever takes it has taken them all.
//!
//! Incidents of one origin are counted by themselves first, against `storm.per_origin`, so that a
//! flood from one exporter or one of its users is a storm of its own. A page of a run that has been
//! known for a while is neither counted nor rolled up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::index::Place;
use super::labels::ORIGIN;
use super::manager::{Incident, Manager, timeline};
use super::{Hidden, IncidentRecord, Quiet, State, id};
use crate::config::Storm;
use crate::effect::{Action, Effect};
use crate::matcher::Labels;
use crate::message::{Reason, Why};
use stepwatch_model::{
    Kind, Observation, Reporter, RunSummary, Scope, Sentence, Severity, Span, Subject, Suspect, Target, Ts,
};

/// Incidents that a roll-up names one by one.
const NAMED: usize = 8;
/// Ways that are counted at once: a way is a route and a severity, and perhaps an origin.
const MAX_WAYS: usize = 16_384;
/// Users of one exporter that may each have as many incidents as one origin has, before all of them
/// are told as one. An exporter that is not honest names as many users as it likes.
const USERS: u32 = 3;

/// What an incident that stands for many knows of them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Ever, and open still.
    total: u32,
    open: u32,
    kinds: BTreeMap<Kind, u32>,
    joined_at: Ts,
}

/// Those that are too many together: by what they are counted, and how many are told one by one.
#[derive(Debug, Clone)]
struct Crowd {
    key: String,
    limit: u32,
    /// Where all of them come from, in words.
    origin: Option<String>,
}

/// When incidents were announced, by severity, way and origin; no more of them than make a storm.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Storms {
    recent: BTreeMap<String, VecDeque<Ts>>,
}

impl Storms {
    /// Counts one more; the crowd that it is too many of, if it is. What is too many of one origin
    /// counts against no other.
    fn crowd(&mut self, now: Ts, way: &str, reporter: Option<&Reporter>, config: &Storm) -> Option<Crowd> {
        let from = |origin: String, limit| Crowd {
            key: format!("{way} from {origin}"),
            limit,
            origin: Some(origin),
        };
        match reporter {
            Some(Reporter::Others) => {
                let crowd = from(Reporter::Others.to_string(), config.incidents);
                return self.count(now, &crowd, config).then_some(crowd);
            }
            Some(reporter @ Reporter::Exporter { source, uid }) => {
                let users =
                    from(format!("users of exporter {source}"), config.per_origin.saturating_mul(USERS));
                if uid.is_some() && self.is_full(now, &users, config) {
                    self.count(now, &users, config);
                    return Some(users);
                }
                let own = from(reporter.to_string(), config.per_origin);
                if self.count(now, &own, config) {
                    return Some(own);
                }
                if uid.is_some() {
                    self.count(now, &users, config);
                }
            }
            None => {}
        }
        let all = Crowd { key: way.to_owned(), limit: config.incidents, origin: None };
        self.count(now, &all, config).then_some(all)
    }

    /// Whether one more would be too many.
    fn is_full(&self, now: Ts, crowd: &Crowd, config: &Storm) -> bool {
        let times = self.recent.get(&crowd.key);
        let recent = times.map_or(0, |times| times.iter().filter(|at| now - **at <= config.within).count());
        recent >= crowd.limit as usize
    }

    /// Counts one more; true if there are too many.
    fn count(&mut self, now: Ts, crowd: &Crowd, config: &Storm) -> bool {
        if self.recent.len() >= MAX_WAYS && !self.recent.contains_key(&crowd.key) {
            let fresh = |times: &VecDeque<Ts>| times.back().is_some_and(|at| now - *at <= config.within);
            self.recent.retain(|_, times| fresh(times));
            if self.recent.len() >= MAX_WAYS && crowd.origin.is_some() {
                return false;
            }
        }
        let (times, limit) = (self.recent.entry(crowd.key.clone()).or_default(), crowd.limit as usize);
        times.push_back(now);
        while times.len() > limit + 1 || times.front().is_some_and(|at| now - *at > config.within) {
            times.pop_front();
        }
        times.len() > limit
    }
}

impl Tally {
    fn words(&self, within: Span, origin: Option<&str>) -> String {
        let mut kinds: Vec<_> = self.kinds.iter().map(|(kind, n)| (*n, kind.title())).collect();
        kinds.sort_by_key(|(n, title)| (core::cmp::Reverse(*n), *title));
        let kinds: Vec<_> = kinds.iter().map(|(n, title)| format!("{n} × {title}")).collect();
        let so_far = if self.open < self.total {
            format!(", {} of them open still", self.open)
        } else {
            String::new()
        };
        let from = origin.map(|origin| format!(" from {origin}")).unwrap_or_default();
        format!(
            "{} incidents{from} more than are told one by one within {within}{so_far}: {}",
            self.total,
            kinds.join(", ")
        )
    }
}

impl Manager {
    /// The incident is about to be told for the first time: what it is rolled up in, if there are
    /// too many like it.
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
        if !counts || i.is_page_of_known_run(now) {
            return None;
        }
        let team = i.record.labels.get("team").map(|team| format!(" of team {team}")).unwrap_or_default();
        let way = format!("{} by {}{team}", i.record.severity.as_str(), i.ladders.routes());
        let reporter = i.origin.as_ref().map(|origin| &origin.reporter);
        let crowd = self.storms.crowd(now, &way, reporter, &self.config.storm);
        self.open.get_mut(id)?.counted = true;
        let by = self.roll_up(now, id, &crowd?, out)?;
        Some(Quiet { why: Hidden::RolledUp, by, until: None, words: "told as one of many".into() })
    }

    /// Puts an incident into the storm of its crowd, which begins with it if there is none.
    fn roll_up(&mut self, now: Ts, id: &str, crowd: &Crowd, out: &mut Vec<Effect>) -> Option<String> {
        let key = &crowd.key;
        let subject = Subject { scope: Scope::Storm(key.clone()), cause: Kind::AlertStorm.cause() };
        let within = self.config.storm.within;
        let (storm, begins) = match self.find(&subject) {
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
    fn begin_storm(&mut self, now: Ts, first: &str, crowd: &Crowd, subject: &Subject) -> Option<String> {
        let i = self.open.get(first)?;
        let (severity, ladders) = (i.record.severity, i.ladders.clone());
        let team = i.record.labels.get("team").map(|team| ("team".to_owned(), team.clone()));
        let origin = crowd.origin.clone().map(|origin| (ORIGIN.to_owned(), origin));
        self.flap_history.counter += 1;
        let id = id::new(now, subject.scope.name(), subject.cause, self.flap_history.counter);
        let record = storm_record(now, id.clone(), severity, f64::from(crowd.limit));
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

    /// An incident has left the storm, or is over.
    pub(super) fn left_storm(&mut self, now: Ts, storm: &str, out: &mut Vec<Effect>) {
        let (within, hold) = (self.config.storm.within, self.config.resolve_after);
        let Some(i) = self.open.get_mut(storm) else { return };
        let Some(tally) = &mut i.storm else { return };
        tally.open = tally.open.saturating_sub(1);
        i.record.summary = tally.words(within, i.record.labels.get(ORIGIN).map(String::as_str)).into();
        if tally.open == 0 {
            i.raised.clear();
            i.resolve_at = Some(now + hold);
            out.push(timeline(now, storm, format!("every incident of it is over; resolves in {hold}")));
        }
        self.finish(storm, out);
    }

    /// Whether somebody is told of an open incident of a run by its name; `None` if there is none.
    pub(crate) fn is_told_of(&self, run: &str) -> Option<bool> {
        let open = self.index.at(&Place::Run(run.to_owned())).filter_map(|id| self.open.get(id));
        let alone = open.map(|i| i.record.quiet.as_ref().is_none_or(|quiet| quiet.why != Hidden::RolledUp));
        alone.reduce(|a, b| a || b)
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
        summary: Sentence::default(),
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
