//! External alerts: alerts that other programs post, as Prometheus does to Alertmanager. This
//! module keeps which of them fire, until when, and which belong together.
//!
//! An alert is posted again and again while it fires. One that has not changed costs only a
//! look-up. Alerts that belong together ([`group`]) are one condition. It is raised with the first
//! alert, notified again when another joins or it gets worse, and over when the last has ended,
//! because its sender posted the end or stopped posting it.
//!
//! [`crate::incident`] handles the conditions. The engine finds out which run or node an alert is
//! about.

mod alert;
mod capacity;
mod common;
mod config;
pub mod group;
mod label_names;
mod label_set;
#[cfg(test)]
mod tests;
mod truncate;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::matcher::Labels;
pub use alert::{Alert, AlertError, fingerprint_within};
use capacity::Capacity;
pub use config::AlertsConfig;
pub use group::{About, Group, Newcomer};
pub use label_set::{LabelSet, Limits};
pub use stepwatch_model::fingerprint;
use stepwatch_model::{Severity, Span, Ts, timers::Timers};

/// The longest that an alert of a limited token fires unless it is posted again.
const LIMITED_FIRES_FOR: Span = Span::secs(86_400);

/// An alert as it was posted.
#[derive(Debug, Clone)]
pub struct PostedAlert {
    pub alert: Arc<Alert>,
    /// If absent, the alert ends when it has not been posted for `resolve_timeout`.
    pub ends_at: Option<Ts>,
}

/// An alert that fires, or did until just now.
#[derive(Debug, Clone, PartialEq)]
pub struct Firing {
    pub alert: Arc<Alert>,
    pub ends_at: Ts,
    /// When it was last posted.
    pub updated_at: Ts,
}

/// The result of posting an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The alert is as before; only its end moved.
    Unchanged,
    /// The alert fires, or its text changed.
    Fires,
    /// The alert was firing and is over.
    Over,
    /// The alert is over and was not known.
    Nothing,
    /// The alert was refused: there are too many, or too large ones.
    Refused,
}

#[derive(Debug, Default)]
pub struct External {
    config: AlertsConfig,
    firing: BTreeMap<u64, Member>,
    groups: BTreeMap<Arc<str>, Group>,
    ends: Timers<u64>,
    refused: u64,
    room: Capacity,
}

#[derive(Debug)]
struct Member {
    firing: Firing,
    group: Arc<str>,
    /// Empty if the alert is about no node.
    node: Box<str>,
    severity: Severity,
}

impl Firing {
    /// Moves its times ahead by `ahead`.
    #[must_use]
    pub fn moved(mut self, ahead: Span) -> Self {
        (self.ends_at, self.updated_at) = (self.ends_at + ahead, self.updated_at + ahead);
        self
    }
}

impl External {
    pub fn configure(&mut self, config: AlertsConfig) {
        self.config = config;
    }

    pub fn config(&self) -> &AlertsConfig {
        &self.config
    }

    pub fn count(&self) -> usize {
        self.firing.len()
    }

    pub fn all(&self) -> impl Iterator<Item = &Firing> {
        self.firing.values().map(|m| &m.firing)
    }

    pub fn get(&self, fingerprint: u64) -> Option<&Firing> {
        self.firing.get(&fingerprint).map(|m| &m.firing)
    }

    /// Alerts refused because there were too many, or too many bytes of them.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    pub fn group(&self, key: &str) -> Option<&Group> {
        self.groups.get(key)
    }

    /// The alerts of a group that fire, in the order of their fingerprints.
    pub fn members(&self, key: &str) -> impl Iterator<Item = &Arc<Alert>> {
        let members = self.groups.get(key).into_iter().flat_map(|g| &g.firing);
        members.filter_map(|fingerprint| self.firing.get(fingerprint)).map(|m| &m.firing.alert)
    }

    /// The alert whose text represents the group: the worst that joined it since it was last
    /// judged, or the first.
    pub fn spokesman(&self, key: &str) -> Option<&Arc<Alert>> {
        let group = self.groups.get(key)?;
        let newest = group.newcomer.filter(|n| n.severity == group.severity);
        let newest = newest.and_then(|n| self.get(n.fingerprint)).map(|firing| &firing.alert);
        newest.or_else(|| self.members(key).next())
    }

    /// When the first of a group's firing alerts began, by its sender.
    pub fn since(&self, key: &str) -> Option<Ts> {
        self.members(key).map(|alert| alert.starts_at).min()
    }

    /// The labels that all alerts of a group have in common.
    pub fn common_labels(&self, key: &str) -> Labels {
        self.groups.get(key).map(|g| g.common.labels()).unwrap_or_default()
    }

    /// Handles a posted alert. `about` finds what it is about, and is called only for a new one.
    /// The keys of the groups that changed are added to `touched`.
    pub fn take(
        &mut self,
        now: Ts,
        posted: &PostedAlert,
        about: impl FnOnce(&AlertsConfig, &LabelSet) -> About,
        touched: &mut BTreeSet<Arc<str>>,
    ) -> Taken {
        let PostedAlert { alert, ends_at } = posted;
        let fingerprint = alert.fingerprint;
        let mut ends_at = ends_at.unwrap_or(now + self.config.resolve_timeout);
        if !alert.sender.is_empty() {
            ends_at = ends_at.min(now + LIMITED_FIRES_FOR);
        }
        if ends_at <= now {
            let over = self.end(fingerprint, None, touched).is_some();
            return if over { Taken::Over } else { Taken::Nothing };
        }
        if let Some(member) = self.firing.get_mut(&fingerprint) {
            let firing = &mut member.firing;
            (firing.ends_at, firing.updated_at) = (ends_at, now);
            self.ends.set_earlier(&fingerprint, Some(ends_at));
            if firing.alert.says_the_same(alert) {
                return Taken::Unchanged;
            }
            // The earlier text stays if there is no room for the new one.
            let (had, wants) = (firing.alert.bytes(), alert.bytes());
            if wants > had && !self.room.fits(&self.config, &firing.alert, 0, wants - had) {
                self.refused += 1;
                return Taken::Refused;
            }
            self.room.change(&firing.alert, 0, wants as isize - had as isize);
            let starts_at = firing.alert.starts_at.min(alert.starts_at);
            let sender = firing.alert.sender.clone();
            firing.alert = Arc::new(Alert { sender, starts_at, ..(**alert).clone() });
            return Taken::Fires;
        }
        if !self.room.fits(&self.config, alert, 1, alert.bytes()) {
            self.refused += 1;
            return Taken::Refused;
        }
        let about = about(&self.config, &alert.labels);
        let firing = Firing { alert: Arc::clone(alert), ends_at, updated_at: now };
        touched.insert(self.insert(firing, about));
        Taken::Fires
    }

    fn insert(&mut self, firing: Firing, about: About) -> Arc<str> {
        let fingerprint = firing.alert.fingerprint;
        self.room.change(&firing.alert, 1, firing.alert.bytes() as isize);
        let key = about.key(&self.config, &firing.alert.labels) + &group::within(&firing.alert.within);
        let kind = self.config.kind(&firing.alert.labels);
        let entry = self.groups.entry(Arc::from(key));
        let group = entry
            .or_insert_with_key(|key| Group::new(Arc::clone(key), firing.alert.within.clone(), kind, &about));
        let severity = self.config.severity(&firing.alert.labels);
        group.add(&firing.alert, &about, severity);
        let key = Arc::clone(&group.key);
        self.ends.set(&fingerprint, Some(firing.ends_at));
        self.firing.insert(
            fingerprint,
            Member { firing, group: Arc::clone(&key), node: about.node.into(), severity },
        );
        key
    }

    /// Restores a stored alert. Its sender gets as much time to post it again as if the alerter had
    /// not been down.
    pub fn restore(&mut self, now: Ts, mut firing: Firing, about: About) {
        firing.ends_at = firing.ends_at.max(now + self.config.resolve_timeout);
        let key = self.insert(firing, about);
        self.judged(&key);
    }

    /// Ends an alert. `silent` is when it was last posted, if it ends because its sender stopped.
    fn end(
        &mut self,
        fingerprint: u64,
        silent: Option<Ts>,
        touched: &mut BTreeSet<Arc<str>>,
    ) -> Option<Firing> {
        let Member { firing, group, node, severity } = self.firing.remove(&fingerprint)?;
        self.room.change(&firing.alert, -1, -(firing.alert.bytes() as isize));
        self.ends.set(&fingerprint, None);
        if let Some(g) = self.groups.get_mut(&group) {
            g.remove(&firing.alert, &node, severity, silent);
            let left = g.firing.iter().filter_map(|f| self.firing.get(f)).map(|m| &m.firing.alert);
            g.common.remove(&firing.alert, left);
        }
        touched.insert(group);
        Some(firing)
    }

    /// Ends the alerts that were not posted again in time.
    pub fn expire(&mut self, now: Ts, touched: &mut BTreeSet<Arc<str>>) -> Vec<u64> {
        let mut over = Vec::new();
        while let Some(fingerprint) = self.ends.pop_due(now) {
            match self.firing.get(&fingerprint).map(|m| (m.firing.ends_at, m.firing.updated_at)) {
                // It was posted again meanwhile.
                Some((at, _)) if at > now => self.ends.set(&fingerprint, Some(at)),
                Some((_, heard)) => {
                    over.extend(self.end(fingerprint, Some(heard), touched).map(|_| fingerprint));
                }
                None => {}
            }
        }
        over
    }

    /// The name of an alert of a group that fires for a node.
    pub fn alert_on(&self, key: &str, node: &str) -> Option<&str> {
        let members = self.group(key)?.firing.iter().filter_map(|f| self.firing.get(f));
        members.into_iter().find(|m| &*m.node == node).map(|m| m.firing.alert.name())
    }

    /// Resets the news of a group after it was evaluated. A group without firing alerts is removed.
    pub fn judged(&mut self, key: &str) {
        let Some(group) = self.groups.get_mut(key) else { return };
        group.newcomer = None;
        group.came.clear();
        group.went.clear();
        if group.firing.is_empty() {
            self.groups.remove(key);
        }
    }

    pub fn deadline(&self) -> Option<Ts> {
        self.ends.first().map(|(at, _)| at)
    }
}
