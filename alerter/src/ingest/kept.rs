//! The last accepted targets of lists, kept across restarts.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::target::Target;
use crate::store::{Result, Store};

/// The time limit for the store. After it, the next answer of the list is stored.
const PATIENCE: Duration = Duration::from_secs(10);

/// The kept lists by name. The names contain no secrets.
#[derive(Debug, Clone, Default)]
pub struct KeptLists {
    store: Option<Store>,
    lists: BTreeMap<String, BTreeSet<Target>>,
}

impl KeptLists {
    pub async fn load(store: &Store) -> Result<Self> {
        let parsed = |lines: Vec<String>| lines.iter().filter_map(|t| Target::discovered(t).ok()).collect();
        let lists = store.target_lists().await?.into_iter();
        let lists = lists.map(|(list, lines)| (list, parsed(lines))).collect();
        Ok(Self { store: Some(store.clone()), lists })
    }

    /// Removes and returns the targets of a list: after a reload, the list counts as it is then.
    pub(super) fn take(&mut self, list: &str) -> Option<BTreeSet<Target>> {
        self.lists.remove(list)
    }

    /// A copy with the store only, which keeps later accepted lists.
    pub(super) fn keeper(&self) -> Self {
        Self { store: self.store.clone(), lists: BTreeMap::new() }
    }

    /// Stores the targets of a list; false if that must be retried.
    pub(super) async fn keep(&self, list: &str, targets: &BTreeSet<Target>) -> bool {
        let Some(store) = &self.store else { return true };
        let names: Vec<&str> = targets.iter().map(|target| &**target.name()).collect();
        match tokio::time::timeout(PATIENCE, store.keep_target_list(list, &names)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::debug!(list, %error, "what the list names cannot be kept");
                false
            }
            Err(_) => false,
        }
    }

    /// Deletes the lists that are not configured any more, including those of earlier processes.
    pub(super) fn forget_but(&mut self, lists: Vec<String>) {
        self.lists.clear();
        let Some(store) = self.store.clone() else { return };
        tokio::spawn(async move {
            let forgotten = tokio::time::timeout(PATIENCE, store.forget_target_lists_but(&lists)).await;
            if let Ok(Err(error)) = forgotten {
                tracing::debug!(%error, "lists that are not configured any more are still kept");
            }
        });
    }
}
