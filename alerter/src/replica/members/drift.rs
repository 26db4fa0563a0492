//! Differences between replicas that stand for long, pure.

use std::collections::BTreeMap;
use std::time::Duration;

use stepwatch_respond::effect::Differing;
use tokio::time::Instant;

use crate::store::{Announced, Replica};

/// How long a replica must differ before it is reported. An update replaces it within minutes.
const STANDS: Duration = Duration::from_mins(5);

/// Since when replicas differ.
#[derive(Debug, Default)]
pub(super) struct Drift {
    /// By address: a process that starts again and again is the same replica.
    since: BTreeMap<String, Instant>,
    reported: Option<Vec<Differing>>,
}

impl Drift {
    /// What is to be reported now, if it is news: the replicas that have differed for long, or none
    /// if all agree.
    pub(super) fn news(&mut self, all: &[Announced], own: &Replica, now: Instant) -> Option<Vec<Differing>> {
        let running = all.iter().filter(|member| member.running).map(|member| &member.replica);
        let differing: Vec<Differing> = running
            .filter(|replica| own.differs_from(replica))
            .map(|replica| Differing {
                address: replica.address.clone(),
                version: (replica.version != own.version).then(|| replica.version.clone()),
                configuration: replica.config != own.config,
            })
            .collect();
        self.since.retain(|address, _| differing.iter().any(|replica| replica.address == *address));
        for replica in &differing {
            self.since.entry(replica.address.clone()).or_insert(now);
        }
        let all_agree = differing.is_empty();
        let stands = |replica: &Differing| {
            self.since.get(&replica.address).is_some_and(|since| now.duration_since(*since) >= STANDS)
        };
        let standing: Vec<Differing> = differing.into_iter().filter(stands).collect();
        if standing.is_empty() && !all_agree || self.reported.as_ref() == Some(&standing) {
            return None;
        }
        self.reported = Some(standing.clone());
        Some(standing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(id: &str, address: &str, version: &str, config: &str) -> Replica {
        Replica { id: id.into(), address: address.into(), version: version.into(), config: config.into() }
    }

    fn running(replica: &Replica) -> Announced {
        Announced { replica: replica.clone(), running: true }
    }

    fn minutes(n: u64) -> Duration {
        Duration::from_secs(n * 60)
    }

    #[test]
    fn an_update_is_no_news_and_a_difference_of_minutes_is() {
        let (own, start) = (replica("a", "http://a", "1", "x"), Instant::now());
        let (same, other) = (replica("b", "http://b", "1", "x"), replica("c", "http://b", "2", "y"));
        let mut drift = Drift::default();
        let all = |of: &Replica| [running(&own), running(of)];
        assert_eq!(drift.news(&all(&same), &own, start), Some(Vec::new()), "what an earlier leader said");
        assert_eq!(drift.news(&all(&same), &own, start), None);
        assert_eq!(drift.news(&all(&other), &own, start + minutes(1)), None);
        // It starts again under the same address.
        let again = Replica { id: "d".into(), ..other.clone() };
        assert_eq!(drift.news(&all(&again), &own, start + minutes(5)), None);
        let told = drift.news(&all(&again), &own, start + minutes(6)).unwrap();
        let version = Some("2".to_owned());
        assert_eq!(told, [Differing { address: "http://b".into(), version, configuration: true }]);
        assert_eq!(drift.news(&all(&again), &own, start + minutes(7)), None, "it is known");
        assert_eq!(drift.news(&all(&same), &own, start + minutes(8)), Some(Vec::new()));
        assert_eq!(drift.news(&all(&other), &own, start + minutes(9)), None, "it begins anew");
    }

    #[test]
    fn one_that_does_not_run_differs_from_nothing() {
        let (own, other) = (replica("a", "http://a", "1", "x"), replica("b", "http://b", "1", "y"));
        let dead = Announced { running: false, ..running(&other) };
        let mut drift = Drift::default();
        let now = Instant::now();
        assert_eq!(drift.news(&[running(&own), dead.clone()], &own, now), Some(Vec::new()));
        assert_eq!(drift.news(&[running(&own), dead], &own, now + minutes(10)), None);
    }
}
