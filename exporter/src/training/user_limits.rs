//! Limits the runs of one user: the number of new names a minute, and the share of a full table.

use std::collections::BTreeMap;
use std::sync::Arc;

use stepwatch_wire::Kind;

use super::run::Run;
use crate::drops::Reason;
use crate::principal::Principal;

/// The most new names that one user may add at once after a pause, for a sweep.
const BURST: f64 = 200.0;
/// The most users kept. Further ones share the limit of unknown senders.
const MAX_USERS: usize = 1024;
/// Seconds between two log lines about a refusal of one user for the same reason.
const LOG_EVERY_SECONDS: f64 = 60.0;

/// The token bucket of each user for new names.
#[derive(Debug, Default)]
pub(super) struct Newcomers(BTreeMap<Principal, Bucket>);

#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: f64,
}

/// The Unix times of the last log lines.
#[derive(Debug, Default)]
pub(super) struct LoggedRefusals(BTreeMap<(Reason, Principal), f64>);

/// The sender that asks for a place for a new run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Newcomer {
    pub(super) principal: Principal,
    pub(super) kind: Kind,
    pub(super) now: f64,
    pub(super) linger: f64,
}

impl Bucket {
    fn filled(self, per_minute: f64, now: f64) -> f64 {
        (self.left + (now - self.at).max(0.0) * per_minute / 60.0).min(BURST)
    }
}

impl Newcomers {
    /// Unknown senders may use half of the room, because they may have more addresses than there
    /// are users.
    fn has_room(&self, principal: Principal) -> bool {
        let elsewhere = || self.0.keys().filter(|principal| principal.is_unknown()).count();
        self.0.len() < MAX_USERS && !(principal.is_unknown() && elsewhere() >= MAX_USERS / 2)
    }

    /// Uses one of the new names that the user has left; false if there is none.
    pub(super) fn admit(&mut self, principal: Principal, per_minute: f64, now: f64) -> bool {
        if principal == Principal::Exporter {
            return true;
        }
        let mut principal = principal;
        if !self.0.contains_key(&principal) && !self.has_room(principal) {
            self.0.retain(|_, bucket| bucket.filled(per_minute, now) < BURST);
            if !self.has_room(principal) {
                principal = Principal::Unknown;
            }
        }
        let bucket = self.0.entry(principal).or_insert(Bucket { left: BURST, at: now });
        let left = bucket.filled(per_minute, now);
        let admitted = left >= 1.0;
        *bucket = Bucket { left: if admitted { left - 1.0 } else { left }, at: now };
        admitted
    }
}

impl LoggedRefusals {
    /// Whether a refusal is logged now.
    pub(super) fn is_due(&mut self, reason: Reason, principal: Principal, now: f64) -> bool {
        let key = (reason, principal);
        if self.0.get(&key).is_some_and(|at| (0.0..LOG_EVERY_SECONDS).contains(&(now - at))) {
            return false;
        }
        if self.0.len() >= MAX_USERS {
            self.0.retain(|_, at| (0.0..LOG_EVERY_SECONDS).contains(&(now - *at)));
        }
        let has_room = self.0.len() < MAX_USERS;
        if has_room {
            self.0.insert(key, now);
        }
        has_room
    }
}

impl Newcomer {
    /// The run to drop. If another user has the most runs, it is one of those. Else it is one of
    /// the newcomer's own that has ended, is idle, or has no step while this one reports its first.
    /// Else it is any without a step, because each of many users may have no more than one run.
    pub(super) fn victim<'a>(self, runs: impl Iterator<Item = &'a Run> + Clone) -> Option<Arc<str>> {
        let mut held = BTreeMap::<Principal, usize>::new();
        for run in runs.clone() {
            *held.entry(run.owner).or_default() += 1;
        }
        let own = held.get(&self.principal).copied().unwrap_or_default();
        let (greediest, most) = held.into_iter().max_by_key(|(_, count)| *count)?;
        // With one more, the newcomer would have as many, and they would replace each other in
        // turn.
        let other = (most > own + 1).then_some(greediest);
        let of_other = other.and_then(|other| {
            let of = runs.clone().filter(|run| run.owner == other);
            of.min_by(|a, b| self.worth(a).cmp(&self.worth(b)).then(by_age(a, b)))
        });
        let of_own = || {
            let of = runs
                .clone()
                .filter(|run| run.owner == self.principal && (self.is_idle(run) || self.outdoes(run)));
            of.min_by(|a, b| {
                let rank = |run: &Run| (!run.is_over(), !self.outdoes(run));
                rank(a).cmp(&rank(b)).then(a.heard.total_cmp(&b.heard))
            })
        };
        let mute = || runs.clone().filter(|run| self.outdoes(run)).min_by(|a, b| by_age(a, b));
        of_other.or_else(of_own).or_else(mute).map(|run| Arc::clone(&run.name))
    }

    /// The order in which runs are dropped, the lowest first.
    fn worth(self, run: &Run) -> u8 {
        match run {
            run if run.is_over() => 0,
            run if run.step.is_none() => 1,
            run if self.is_idle(run) => 2,
            _ => 3,
        }
    }

    fn is_idle(self, run: &Run) -> bool {
        !run.is_connected() && (run.is_over() || self.now - run.heard >= self.linger)
    }

    fn outdoes(self, run: &Run) -> bool {
        self.kind == Kind::Step && run.step.is_none()
    }
}

/// Orders the newest first, because the newest runs crowded the others out.
fn by_age(a: &Run, b: &Run) -> std::cmp::Ordering {
    b.opened.total_cmp(&a.opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_admitted_at_a_rate_and_users_do_not_share_it() {
        let mut newcomers = Newcomers::default();
        let (ann, bob) = (Principal::User(4_000_001), Principal::User(4_000_002));
        let mut admitted =
            |principal, now: f64| (0..1000).filter(|_| newcomers.admit(principal, 60.0, now)).count();
        assert_eq!(admitted(bob, 0.0), 200);
        assert_eq!((admitted(bob, 30.0), admitted(ann, 30.0)), (30, 200), "one a second");
        assert_eq!(admitted(bob, 20.0), 0, "nor by a clock that goes back");
        assert_eq!(admitted(Principal::Exporter, 0.0), 1000);
        for uid in 0..3000 {
            newcomers.admit(Principal::User(uid), 60.0, 30.0);
        }
        assert!(newcomers.0.len() <= MAX_USERS + 1);
        let mut newcomers = Newcomers::default();
        for n in 0..3000_u16 {
            let [high, low] = n.to_be_bytes();
            newcomers.admit(Principal::Address([10, 0, high, low].into()), 60.0, 0.0);
        }
        assert!(newcomers.has_room(ann) && newcomers.0.len() <= MAX_USERS / 2 + 1);
    }

    #[test]
    fn the_log_says_it_once_a_minute() {
        let mut refusals = LoggedRefusals::default();
        let ann = Principal::User(4_000_001);
        assert!(refusals.is_due(Reason::NotOwner, ann, 0.0) && !refusals.is_due(Reason::NotOwner, ann, 59.0));
        assert!(refusals.is_due(Reason::Runs, ann, 1.0) && refusals.is_due(Reason::NotOwner, ann, 60.0));
    }
}
