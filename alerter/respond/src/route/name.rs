//! The name of a way: the route that leads there, or the remaining receivers if no route matches.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WayName {
    /// Where the route is in the configuration: `routes[1].routes[0]`.
    Route(String),
    /// A team with a policy or receivers, for an incident that no route matches.
    Team(String),
    FallbackOfTeam(String),
    /// A team without receivers, while other teams have their own.
    NobodyOfTeam(String),
    Fallback,
    EveryReceiver,
    EveryReceiverThatWakes,
    ReceiversOfNoTeam,
    /// One of several receivers that may all be notified; which one is decided at the notification.
    OneReceiver,
    /// In place of a receiver that cannot be notified.
    OtherReceivers,
    AnotherThatWakes,
}

/// The names of several ways, in words.
pub(crate) fn joined(names: &[&WayName]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

impl fmt::Display for WayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Route(place) => f.write_str(place),
            Self::Team(team) => write!(f, "team {team}"),
            Self::FallbackOfTeam(team) => write!(f, "fallback of team {team}"),
            Self::NobodyOfTeam(team) => write!(f, "nobody of team {team}"),
            Self::Fallback => f.write_str("fallback"),
            Self::EveryReceiver => f.write_str("every receiver"),
            Self::EveryReceiverThatWakes => f.write_str("every receiver that wakes"),
            Self::ReceiversOfNoTeam => f.write_str("receivers of no team"),
            Self::OneReceiver => f.write_str("one receiver"),
            Self::OtherReceivers => f.write_str("its other receivers"),
            Self::AnotherThatWakes => f.write_str("another receiver that wakes"),
        }
    }
}
