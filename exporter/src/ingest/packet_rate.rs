//! How many packets a user may send: those of all its connections count together, because a
//! connection costs a sender nothing.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock::Locked as _;

/// Ten thousand packets a second are a thousand times what the steps of a node need.
const INTERVAL: Duration = Duration::from_micros(100);
/// Packets that may come at once: those of a tenth of a second.
const BURST: Duration = Duration::from_millis(100);
/// Users above which those that owe nothing are forgotten.
const MAX_USERS: usize = 1_024;

/// The rate of each user (a generic cell rate algorithm).
#[derive(Debug, Default)]
pub(super) struct PacketRate {
    /// When all packets of a user that were counted have had their interval.
    due: Mutex<HashMap<u32, Instant>>,
}

impl PacketRate {
    /// Counts a packet of this user, and gives the time until it may be read. Connections of a user
    /// that is too fast take turns, because each waits for one packet only.
    pub(super) fn reserve(&self, uid: u32, now: Instant) -> Duration {
        let mut due = self.due.locked();
        if due.len() >= MAX_USERS && !due.contains_key(&uid) {
            due.retain(|_, due| *due > now);
        }
        let due = due.entry(uid).or_insert(now);
        *due = (*due).max(now) + INTERVAL;
        due.saturating_duration_since(now + BURST)
    }

    /// Counts a packet that cannot wait, unless it came too fast.
    pub(super) fn admit(&self, uid: u32, now: Instant) -> bool {
        let due = self.due.locked().get(&uid).copied();
        let is_in_time = due.is_none_or(|due| due + INTERVAL <= now + BURST);
        is_in_time && self.reserve(uid, now).is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets of user 1 that are admitted at `now`.
    fn admitted(rate: &PacketRate, now: Instant) -> usize {
        (0..5_000).filter(|_| rate.admit(1, now)).count()
    }

    #[test]
    fn a_user_may_send_a_burst_and_then_so_many_a_second() {
        let (rate, start) = (PacketRate::default(), Instant::now());
        assert_eq!(admitted(&rate, start), 1_000);
        assert_eq!(admitted(&rate, start + Duration::from_millis(10)), 100);
        assert_eq!(admitted(&rate, start + Duration::from_secs(60)), 1_000, "no more than a burst");
        assert!(rate.admit(2, start), "each user has its own");
    }

    #[test]
    fn what_waits_is_read_at_the_rate_and_what_is_refused_does_not_count() {
        let (rate, start) = (PacketRate::default(), Instant::now());
        assert!((0..1_000).all(|_| rate.reserve(1, start).is_zero()));
        assert_eq!(rate.reserve(1, start), INTERVAL);
        assert_eq!(rate.reserve(1, start), INTERVAL * 2, "of another connection");
        assert_eq!(admitted(&rate, start), 0);
        assert_eq!(rate.reserve(1, start), INTERVAL * 3, "as if nothing had been refused");
    }

    #[test]
    fn users_that_owe_nothing_are_forgotten() {
        let (rate, start) = (PacketRate::default(), Instant::now());
        (0..1_024).for_each(|uid| assert!(rate.reserve(uid, start).is_zero()));
        (0..1_000).for_each(|_| _ = rate.reserve(7, start));
        assert!(rate.reserve(5_000, start + Duration::from_millis(50)).is_zero());
        assert_eq!(rate.due.locked().len(), 2, "user 7 and the newcomer");
        assert!(!rate.admit(7, start));
    }
}
