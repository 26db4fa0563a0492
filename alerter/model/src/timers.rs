//! Deadlines as data, so that a restored engine has all of them and a test can jump from one to the
//! next.

use std::collections::{BTreeMap, BTreeSet};

use crate::Ts;

/// Deadlines, one per key.
#[derive(Debug, Clone)]
pub struct Timers<K> {
    by_key: BTreeMap<K, Ts>,
    by_time: BTreeSet<(Ts, K)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), by_time: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> Timers<K> {
    /// Sets, moves or removes the deadline of `key`.
    pub fn set(&mut self, key: &K, at: Option<Ts>) {
        let had = self.by_key.get(key).copied();
        if had == at {
            return;
        }
        if let Some(old) = had {
            self.by_time.remove(&(old, key.clone()));
            self.by_key.remove(key);
        }
        if let Some(at) = at {
            self.by_time.insert((at, key.clone()));
            self.by_key.insert(key.clone(), at);
        }
    }

    /// Moves the deadline only to an earlier time. A deadline that every step postpones is checked
    /// when it fires.
    pub fn set_earlier(&mut self, key: &K, at: Option<Ts>) {
        match (self.by_key.get(key), at) {
            (Some(had), Some(at)) if *had <= at => {}
            (_, Some(at)) => self.set(key, Some(at)),
            (_, None) => {}
        }
    }

    pub fn of(&self, key: &K) -> Option<Ts> {
        self.by_key.get(key).copied()
    }

    pub fn first(&self) -> Option<(Ts, &K)> {
        self.by_time.first().map(|(at, k)| (*at, k))
    }

    pub fn pop_due(&mut self, now: Ts) -> Option<K> {
        let (at, _) = self.by_time.first()?;
        if *at > now {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fires_in_order_and_moves() {
        let mut t = Timers::default();
        t.set(&"b", Some(Ts(20)));
        t.set(&"a", Some(Ts(10)));
        t.set_earlier(&"b", Some(Ts(30)));
        t.set(&"c", Some(Ts(5)));
        t.set(&"c", None);
        assert_eq!(t.first(), Some((Ts(10), &"a")));
        assert_eq!(t.pop_due(Ts(15)), Some("a"));
        assert_eq!(t.pop_due(Ts(15)), None);
        assert_eq!(t.pop_due(Ts(20)), Some("b"));
        assert_eq!(t.first(), None);
    }
}
