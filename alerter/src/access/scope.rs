//! The scopes of tokens.
//!
//! `admin` may do everything. `ack` and `silence` include reading, because people cannot answer
//! what they cannot see; neither includes the other. `ingest` includes nothing else: a Prometheus
//! sends alerts and reads nothing.

use core::fmt;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Post alerts.
    Ingest,
    /// Read incidents, runs, silences, on-call schedules and metrics.
    Read,
    /// Acknowledge and resolve incidents.
    Ack,
    /// Create and end silences, and overrides of on-call schedules: both decide who is not woken.
    Silence,
    /// Everything, including the operation of the process: reload, log level, the audit log.
    Admin,
}

/// The scopes of one caller, including the implied ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scope {
    pub const ALL: [Self; 5] = [Self::Ingest, Self::Read, Self::Ack, Self::Silence, Self::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Read => "read",
            Self::Ack => "ack",
            Self::Silence => "silence",
            Self::Admin => "admin",
        }
    }

    /// The scope itself and the scopes that it implies.
    fn implied(self) -> &'static [Self] {
        match self {
            Self::Ingest => &[Self::Ingest],
            Self::Read => &[Self::Read],
            Self::Ack => &[Self::Ack, Self::Read],
            Self::Silence => &[Self::Silence, Self::Read],
            Self::Admin => &Self::ALL,
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Scopes {
    pub fn all() -> Self {
        Self::from_granted(&[Scope::Admin])
    }

    pub fn from_granted(scopes: &[Scope]) -> Self {
        Self(scopes.iter().flat_map(|s| s.implied()).fold(0, |bits, s| bits | s.bit()))
    }

    pub fn has(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_implies_what() {
        use Scope::{Ack, Admin, Ingest, Read, Silence};
        for (given, want) in [
            (Ingest, vec![Ingest]),
            (Read, vec![Read]),
            (Ack, vec![Read, Ack]),
            (Silence, vec![Read, Silence]),
            (Admin, Scope::ALL.to_vec()),
        ] {
            let has: Vec<_> =
                Scope::ALL.into_iter().filter(|s| Scopes::from_granted(&[given]).has(*s)).collect();
            assert_eq!(has, want, "{given}");
        }
        assert!(!Scope::ALL.into_iter().any(|s| Scopes::default().has(s)));
        assert_eq!(Scopes::all(), Scopes::from_granted(&Scope::ALL));
    }
}
