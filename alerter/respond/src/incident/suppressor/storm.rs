//! Storms: so many incidents at once that they are notified as one. Each is still kept and shown.
//!
//! Incidents are counted by severity, team and way: those of one count are for the same people.
//! While more than `storm.incidents` of them were announced within `storm.within`, each further one
//! is rolled up into an incident of kind `alert_storm`. The storm takes the way of its members, so
//! that pages in a storm do page, once. It ends when its last member does. An acknowledgement
//! covers all members, until their number has doubled.
//!
//! Incidents of one origin are counted by themselves first, against `storm.per_origin`, so that a
//! flood from one exporter or one of its users is a storm of its own. A page of a run that has been
//! known for a while is neither counted nor rolled up. A page of a node of such a run is counted
//! only among those of its exporter's nodes, and then among those of the run's nodes.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::config::Storm;
use stepwatch_model::{Clause, Fact, Kind, Reporter, Span, Ts, clause};

/// The most incidents that a storm names one by one.
pub(in crate::incident) const NAMED: usize = 8;
/// The most counts at once: one a route and severity, and perhaps an origin.
const MAX_WAYS: usize = 16_384;
/// All users of one exporter together have this many times the limit of one origin. A dishonest
/// exporter can name any number of users.
const USERS: u32 = 3;

/// The counts that a storm keeps of its members.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::incident) struct Tally {
    /// All members ever. `open` counts those that are still open.
    pub(in crate::incident) total: u32,
    pub(in crate::incident) open: u32,
    pub(in crate::incident) kinds: BTreeMap<Kind, u32>,
    pub(in crate::incident) joined_at: Ts,
    /// `total` when a person last acknowledged the storm.
    pub(in crate::incident) taken: u32,
}

/// A group of incidents that are counted together, and how many of them are notified one by one.
#[derive(Debug, Clone)]
pub(in crate::incident) struct Crowd {
    pub(in crate::incident) key: String,
    pub(in crate::incident) limit: u32,
    /// The origin that all of them share, in words.
    pub(in crate::incident) origin: Option<String>,
}

/// The times of recent announcements, by severity, way and origin; at most `limit + 1` of each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Storms {
    recent: BTreeMap<String, VecDeque<Ts>>,
}

impl Storms {
    /// Counts one more incident. Returns its crowd if that is above its limit. Incidents above the
    /// limit of one origin count against no other.
    pub(super) fn crowd(
        &mut self,
        now: Ts,
        way: &str,
        reporter: Option<&Reporter>,
        config: &Storm,
    ) -> Option<Crowd> {
        let from = |origin, limit| Crowd::from(way, origin, limit);
        match reporter {
            Some(reporter @ Reporter::Sender { token }) => {
                let limit = if token.is_empty() { config.incidents } else { config.per_origin };
                let crowd = from(reporter.to_string(), limit);
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

    /// As `crowd`, for a page of a node on which a run is that has been known for a while. An
    /// exporter may claim ranks of such a run and report any fault, so its nodes have a limit of
    /// their own, which is much less than the run's.
    pub(super) fn crowd_of_nodes(
        &mut self,
        now: Ts,
        way: &str,
        (reporter, run): (Option<&Reporter>, &str),
        config: &Storm,
    ) -> Option<Crowd> {
        if let Some(reporter) = reporter {
            let own = Crowd::from(way, format!("nodes of {}", reporter.source()), config.per_origin);
            if self.count(now, &own, config) {
                return Some(own);
            }
        }
        let of_run = Crowd::from(way, format!("nodes of run {run}"), config.incidents);
        self.count(now, &of_run, config).then_some(of_run)
    }

    /// Whether one more incident would exceed the limit.
    fn is_full(&self, now: Ts, crowd: &Crowd, config: &Storm) -> bool {
        let times = self.recent.get(&crowd.key);
        let recent = times.map_or(0, |times| times.iter().filter(|at| now - **at <= config.within).count());
        recent >= crowd.limit as usize
    }

    /// Counts one more incident; true if the limit is exceeded.
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

impl Crowd {
    fn from(way: &str, origin: String, limit: u32) -> Self {
        Self { key: format!("{way} from {origin}"), limit, origin: Some(origin) }
    }
}

impl Tally {
    /// Whether the number of members has doubled since the storm was last acknowledged.
    pub(in crate::incident) fn has_doubled(&self) -> bool {
        self.taken > 0 && self.total >= self.taken.saturating_mul(2)
    }

    pub(in crate::incident) fn words(&self, within: Span, origin: Option<&str>) -> Clause {
        let mut kinds: Vec<_> = self.kinds.iter().map(|(kind, n)| (*n, kind.title())).collect();
        kinds.sort_by_key(|(n, title)| (core::cmp::Reverse(*n), *title));
        let kinds = kinds.into_iter().map(|(n, kind)| clause!("{incidents} × {kind}", incidents = n, kind));
        let kinds = Fact::joined(kinds.collect(), ", ");
        let open = (self.open < self.total).then(|| clause!(", {open} of them open still", open = self.open));
        let from = origin.map(|origin| clause!(" from {origin}", origin = Fact::text(origin)));
        clause!(
            "{incidents} incidents{from} more than are reported one by one within {within}{open}: {kinds}",
            incidents = self.total,
            from,
            within,
            open,
            kinds,
        )
    }
}
