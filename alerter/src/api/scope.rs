//! What a caller may be allowed to do. Each route needs exactly one of these, and is declared under it (`api.rs`).

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Tell us of alerts.
    Ingest,
    /// See incidents, silences, runs, who is on call.
    Read,
    /// Answer for incidents: acknowledge, resolve, escalate.
    Ack,
    /// Keep incidents quiet.
    Silence,
    /// Operate the alerter itself.
    Admin,
}

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
}
