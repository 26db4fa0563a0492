//! What lists named when they were last believed, over restarts.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::target::Target;
use crate::store::{Result, Store};

/// A store that takes longer is asked again with the next answer of the list.
const PATIENCE: Duration = Duration::from_secs(10);

/// By the names of the lists, which have no secrets.
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

    /// What the list named, once: whoever reloads has it as it is then.
    pub(super) fn take(&mut self, list: &str) -> Option<BTreeSet<Target>> {
        self.lists.remove(list)
    }

    /// The store alone, for those who keep what is believed from now on.
    pub(super) fn keeper(&self) -> Self {
        Self { store: self.store.clone(), lists: BTreeMap::new() }
    }

    /// Keeps what a list names; false if it has to be tried again.
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

    /// Forgets the lists that are not configured any more, of this life and of those before.
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
