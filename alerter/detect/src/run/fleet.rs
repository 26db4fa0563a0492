//! The failures of all runs, by user. One user contributes no more than all others together, so
//! that nobody sets the interval of the others alone. Where all runs are of one user, there are no
//! others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_model::FailuresSeen;

/// The most users that are told apart; further ones count as one, with those who are not known.
const MAX_USERS: usize = 64;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fleet {
    users: BTreeMap<Option<u32>, FailuresSeen>,
}

impl Fleet {
    pub(crate) fn add(&mut self, user: Option<u32>, seen: FailuresSeen) {
        let has_room = self.users.len() < MAX_USERS || self.users.contains_key(&user);
        self.users.entry(user.filter(|_| has_room)).or_default().join(seen);
    }

    pub(crate) fn seen(&self) -> FailuresSeen {
        let mut all = FailuresSeen::default();
        self.users.values().for_each(|seen| all.join(*seen));
        if self.users.len() < 2 {
            return all;
        }
        let mut fair = FailuresSeen::default();
        for own in self.users.values() {
            fair.join(FailuresSeen {
                failures: own.failures.min(all.failures.saturating_sub(own.failures)),
                seconds: own.seconds.min((all.seconds - own.seconds).max(0.0)),
            });
        }
        fair
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(failures: u64, seconds: f64) -> FailuresSeen {
        FailuresSeen { failures, seconds }
    }

    #[test]
    fn one_user_counts_for_no_more_than_the_others_together() {
        let mut fleet = Fleet::default();
        fleet.add(Some(1000), seen(500, 1e6));
        assert_eq!(fleet.seen(), seen(500, 1e6), "there is nobody else");
        fleet.add(Some(1001), seen(2, 3e6));
        fleet.add(Some(1002), seen(1, 4e6));
        assert_eq!(fleet.seen(), seen(6, 8e6));
        fleet.add(Some(1001), seen(0, 1e12));
        assert_eq!(fleet.seen(), seen(6, 1e7), "nor the one who never fails");
    }

    #[test]
    fn only_so_many_users_are_told_apart() {
        let mut fleet = Fleet::default();
        (0..1000).for_each(|user| fleet.add(Some(user), seen(1, 10.0)));
        assert_eq!(fleet.users.len(), MAX_USERS + 1);
        assert_eq!(fleet.seen(), seen(128, 1280.0), "936 of them are one");
    }
}
