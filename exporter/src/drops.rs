//! Counts refused input by reason, and also by user if a user's share was the reason. All limits of
//! the ingest are counted here (principle 8).

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::family::Family;
use crate::lock::Locked as _;
use crate::principal::Principal;
use crate::samples::Samples;

pub static DROPPED: Family = Family::counter(
    "stepwatch_exporter_ingest_dropped_total",
    "",
    &["reason"],
    "Packets, events and parts of events that were not taken in",
);

pub static REFUSED: Family = Family::counter(
    "stepwatch_exporter_ingest_refused_total",
    "",
    &["reason", "user"],
    "Of those: what a share or the owner of a run refused, and whose it was (a uid, an address, unknown or others)",
);

pub static FAMILIES: &[&Family] = &[&DROPPED, &REFUSED];

/// The most pairs of reason and user that are counted separately; further ones are `others`.
const MAX_USERS: usize = 256;
const OTHERS: &str = "others";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The input is not an event.
    Malformed,
    /// The event is too large.
    Oversize,
    /// Another source reported the whole step, at least as exactly. This is ordinary.
    Duplicate,
    /// Another source reported some values of the step, at least as exactly. The rest of the event
    /// is kept. This is ordinary.
    Repeated,
    /// A late source reports an attempt that the run has left.
    PastAttempt,
    /// There are too many runs.
    Runs,
    /// A run of the user with the most was dropped for one of a user with fewer.
    RunsShare,
    /// A user added too many new names of runs in a minute.
    NewRuns,
    /// The run belongs to another user.
    NotOwner,
    /// The event named another node, and got the name of this one.
    Node,
    /// There are too many ranks in a run, of a user, or in all.
    Ranks,
    /// A run has too many custom metrics: they are streamed but not exported.
    Custom,
    /// An event has too many metrics or unknown keys.
    Entries,
    /// A connection reported too many ranks.
    Identities,
    /// There are too many connections.
    Connections,
    /// A connection was closed for one of a process or user with fewer.
    Share,
    /// The body of a request is too large.
    Body,
    /// A step is too far ahead to be accepted alone.
    StepJump,
    /// A time is impossible; the event got that of its arrival.
    Timestamp,
    /// A value is impossible, such as a negative norm; the rest of the event is kept.
    Absurd,
    /// A collector has too many conditions; the new one is not published.
    Conditions,
    /// A datagram carried descriptors, which are closed; the datagram itself is accepted. Newer
    /// kernels refuse it at the sender.
    Descriptors,
    /// A user sent datagrams or requests too fast, or packets on a connection that was closed for
    /// another.
    Rate,
    /// There are too many streams of launchers: the user's own oldest one is no longer read.
    Streams,
    /// A stream of a launcher of the user with the most was dropped for one of a user with fewer.
    StreamsShare,
    /// A source, process or job of the user with the most was dropped for another.
    Sources,
    /// An entry of a `hello` may hold a secret. The rest of the event is kept.
    Secret,
}

impl Reason {
    pub const ALL: [Self; 27] = [
        Self::Malformed,
        Self::Oversize,
        Self::Duplicate,
        Self::Repeated,
        Self::PastAttempt,
        Self::Runs,
        Self::RunsShare,
        Self::NewRuns,
        Self::NotOwner,
        Self::Node,
        Self::Ranks,
        Self::Custom,
        Self::Entries,
        Self::Identities,
        Self::Connections,
        Self::Share,
        Self::Body,
        Self::StepJump,
        Self::Timestamp,
        Self::Absurd,
        Self::Conditions,
        Self::Descriptors,
        Self::Rate,
        Self::Streams,
        Self::StreamsShare,
        Self::Sources,
        Self::Secret,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Oversize => "oversize",
            Self::Duplicate => "duplicate",
            Self::Repeated => "repeated_value",
            Self::PastAttempt => "past_attempt",
            Self::Runs => "runs_limit",
            Self::RunsShare => "runs_share",
            Self::NewRuns => "new_runs_limit",
            Self::NotOwner => "not_owner",
            Self::Node => "foreign_node",
            Self::Ranks => "ranks_limit",
            Self::Custom => "custom_limit",
            Self::Entries => "entries_limit",
            Self::Identities => "identities_limit",
            Self::Connections => "connections_limit",
            Self::Share => "share_limit",
            Self::Body => "body_limit",
            Self::StepJump => "step_jump",
            Self::Timestamp => "timestamp",
            Self::Absurd => "absurd_value",
            Self::Conditions => "conditions_limit",
            Self::Descriptors => "descriptors_refused",
            Self::Rate => "rate_limit",
            Self::Streams => "streams_limit",
            Self::StreamsShare => "streams_share",
            Self::Sources => "sources_limit",
            Self::Secret => "secret",
        }
    }
}

#[derive(Debug, Default)]
pub struct Drops {
    all: [AtomicU64; Reason::ALL.len()],
    /// The key is the reason and the label of the user.
    by_user: Mutex<BTreeMap<(Reason, String), u64>>,
}

impl Drops {
    pub fn count(&self, reason: Reason) {
        self.add(reason, 1);
    }

    pub fn add(&self, reason: Reason, n: u64) {
        self.all[reason as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Counts `n` refusals for this user.
    pub fn refuse(&self, reason: Reason, whose: Principal, n: u64) {
        self.add(reason, n);
        if n == 0 {
            return;
        }
        let mut by_user = self.by_user.locked();
        let mut key = (reason, whose.label());
        if by_user.len() >= MAX_USERS && !by_user.contains_key(&key) {
            key.1 = OTHERS.into();
        }
        *by_user.entry(key).or_default() += n;
    }

    pub fn get(&self, reason: Reason) -> u64 {
        self.all[reason as usize].load(Ordering::Relaxed)
    }

    /// Writes every reason from the start, so that the first drop is an increase.
    pub fn write(&self, out: &mut Samples) {
        for reason in Reason::ALL {
            out.set(&DROPPED, &[reason.as_str()], self.get(reason));
        }
        for ((reason, user), count) in &*self.by_user.locked() {
            out.set(&REFUSED, &[reason.as_str(), user], *count);
        }
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_wire::{Event, Kind};

    use super::*;
    use crate::origin::Origin;

    #[test]
    fn what_is_refused_is_counted_with_whose_it_was() {
        let drops = Drops::default();
        drops.refuse(Reason::NewRuns, Principal::User(1001), 2);
        drops.refuse(Reason::NewRuns, Principal::User(1002), 1);
        drops.refuse(Reason::Ranks, Principal::Address("10.0.0.7".parse().unwrap()), 1);
        drops.refuse(Reason::Ranks, Principal::User(1001), 0);
        let written = || {
            let mut page = Samples::default();
            drops.write(&mut page);
            let rows = page
                .rows(&REFUSED)
                .map(|row| (format!("{} {}", row.label("reason"), row.label("user")), row.value));
            rows.collect::<Vec<_>>()
        };
        let row = |labels: &str, n: f64| (labels.to_owned(), n);
        let first = [
            row("new_runs_limit 1001", 2.0),
            row("new_runs_limit 1002", 1.0),
            row("ranks_limit 10.0.0.7", 1.0),
        ];
        assert_eq!(written(), first);
        for uid in 0..1000 {
            drops.refuse(Reason::Runs, Principal::User(uid), 1);
        }
        let of_runs: Vec<_> =
            written().into_iter().filter(|(labels, _)| labels.starts_with("runs_limit")).collect();
        assert_eq!(of_runs.len(), MAX_USERS - first.len() + 1);
        assert_eq!(of_runs.iter().map(|(_, n)| n).sum::<f64>(), 1000.0);
        assert_eq!(drops.get(Reason::Runs), 1000);
    }

    #[test]
    fn what_may_be_a_secret_in_a_hello_is_not_streamed() {
        let hub = crate::testing::hub();
        let said = br#"{"k":"hello","run":"r","rank":0,"hub_token":"canary","team":"nlp"}"#;
        hub.publish(Origin::Node, Event::parse(said).unwrap());
        let published = crate::testing::published(&hub);
        let hello = published.iter().find(|event| event.kind == Kind::Hello).unwrap();
        assert!(!format!("{hello:?}").contains("canary") && hello.extra.contains_key("team"), "{hello:?}");
    }
}
