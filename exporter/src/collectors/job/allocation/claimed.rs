//! The owner of a job without a control group: the user who named it first.
//!
//! The user keeps the job for a while after no process names it. Otherwise another user could take
//! it while the trainer restarts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stepwatch_kit::log_throttle::LogThrottle;

use crate::fair_share;

/// After this long without being named by its owner, any user may take a job.
const KEPT: Duration = Duration::from_mins(15);
const MAX_JOBS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Claimed {
    claims: BTreeMap<String, Claim>,
    /// The number of claims that were dropped because there were too many.
    pub(super) dropped: u64,
    log: LogThrottle,
}

#[derive(Debug)]
struct Claim {
    uid: Option<u32>,
    last: Instant,
}

impl Claimed {
    /// The owner of a job that a process of `user` names.
    pub(super) fn owner(&mut self, id: &str, user: Option<u32>, now: Instant) -> Option<u32> {
        let claim = self.claims.entry(id.to_owned()).or_insert(Claim { uid: user, last: now });
        if claim.uid == user || claim.uid.is_none() || now.saturating_duration_since(claim.last) >= KEPT {
            *claim = Claim { uid: user, last: now };
        }
        claim.uid
    }

    pub(super) fn forget(&mut self, now: Instant) {
        self.claims.retain(|_, claim| now.saturating_duration_since(claim.last) < KEPT);
        if self.claims.len() > MAX_JOBS {
            let all = std::mem::take(&mut self.claims).into_iter().collect();
            let (kept, over) =
                fair_share::fair(all, MAX_JOBS, |(_, claim)| claim.uid, |(_, claim)| claim.last);
            self.claims = kept.into_iter().collect();
            self.dropped += over.len() as u64;
            if let Some(count) = self.log.count(over.len() as u64) {
                let whose = fair_share::by_user(over.iter().filter_map(|(_, claim)| claim.uid));
                tracing::warn!(count, whose, "more jobs are named by processes than are remembered");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::logged;

    const ANN: Option<u32> = Some(4_000_001);
    const BOB: Option<u32> = Some(4_000_002);

    #[test]
    fn a_job_stays_its_users_while_its_trainer_is_started_again() {
        let begun = Instant::now();
        let at = |secs| begun + Duration::from_secs(secs);
        let mut claimed = Claimed::default();
        assert_eq!(claimed.owner("1207", ANN, at(0)), ANN);
        assert_eq!(claimed.owner("1207", BOB, at(0)), ANN);
        claimed.forget(at(800));
        assert_eq!(claimed.owner("1207", BOB, at(800)), ANN, "while she starts it again");
        assert_eq!(claimed.owner("1207", ANN, at(801)), ANN);
        assert_eq!(claimed.owner("1207", BOB, at(1700)), ANN);
        assert_eq!(claimed.owner("1207", BOB, at(1701)), BOB, "hers is over");
        claimed.forget(at(2601));
        assert!(claimed.claims.is_empty());
    }

    #[test]
    fn whoever_names_many_jobs_takes_no_room_of_others() {
        let now = Instant::now();
        let mut claimed = Claimed::default();
        for i in 0..2 * MAX_JOBS {
            claimed.owner(&format!("1{i}"), BOB, now);
        }
        claimed.owner("7", ANN, now);
        let log = logged(|| claimed.forget(now));
        assert!(log.contains("count=1025 whose=\"1025 of uid 4000002\""), "{log}");
        assert_eq!((claimed.dropped, claimed.claims.len()), (1025, MAX_JOBS));
        assert_eq!(claimed.owner("7", BOB, now), ANN);
    }
}
