//! The replicas as the leader last saw them.

use std::sync::{Arc, Mutex, PoisonError};

use super::postgres::{Announced, Replica};

/// A copy of the list of replicas. Empty with SQLite.
#[derive(Debug, Clone, Default)]
pub(crate) struct Roster {
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// A replica, compared with the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub announced: Announced,
    pub leads: bool,
    /// Whether its configuration or version is not that of the leader.
    pub differs: bool,
}

impl Roster {
    /// The replicas that were heard of lately.
    pub(crate) fn all(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the list, and returns the one before.
    pub(crate) fn replace(&self, leader: &Replica, all: &[Announced]) -> Vec<Seen> {
        let seen = all.iter().map(|announced| Seen {
            leads: announced.replica.id == leader.id,
            differs: leader.differs_from(&announced.replica),
            announced: announced.clone(),
        });
        let seen = seen.collect();
        core::mem::replace(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner), seen)
    }
}
