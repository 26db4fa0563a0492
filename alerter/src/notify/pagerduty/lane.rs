//! What the alerts of one incident are called, and which of them are open or taken.
//!
//! PagerDuty rings once an alert, so that what is to ring again needs another alert: the ticket has one beside that of the page, and
//! each time that nobody has it any more begins a generation. What is sent follows from what was delivered before, which the store
//! keeps: a repetition after a crash names the same alerts.

use std::fmt;

use crate::notify::text::shorten;

/// Of the service, in characters.
const DEDUP_KEY_MAX: usize = 255;
const TICKET_SUFFIX: &str = "-ticket";
/// What may follow the incident's id: the suffix above, and a dash with a generation.
const SUFFIXES_MAX: usize = TICKET_SUFFIX.len() + 11;

/// What one receiver has of an incident, as its notifier remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    /// An alert is open under the ticket's key.
    pub(super) ticket: bool,
    /// The alert that was acknowledged: of the ticket, or of the page.
    pub(super) taken: Option<Taken>,
    /// From 1.
    pub(super) generation: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Ticket,
    Page,
}

impl Taken {
    fn of(ticket: bool) -> Self {
        if ticket { Self::Ticket } else { Self::Page }
    }
}

impl Lane {
    pub(super) fn read(memory: Option<&str>) -> Self {
        let mut lane = Self { ticket: false, taken: None, generation: 1 };
        for word in memory.unwrap_or_default().split_whitespace() {
            match word {
                "ticket" => lane.ticket = true,
                "ticket-taken" => lane.taken = Some(Taken::Ticket),
                "page-taken" => lane.taken = Some(Taken::Page),
                other => lane.generation = other.parse().unwrap_or(lane.generation).max(1),
            }
        }
        lane
    }

    /// Whether somebody has the alert of this class.
    pub(super) fn is_acknowledged(self, ticket: bool) -> bool {
        self.taken == Some(Taken::of(ticket))
    }

    pub(super) fn acknowledged(self, ticket: bool) -> Self {
        Self { taken: Some(Taken::of(ticket)), ..self }
    }

    /// Nobody has it.
    pub(super) fn rings(self) -> Self {
        Self { taken: None, ..self }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.ticket { "ticket" } else { "-" })?;
        f.write_str(match self.taken {
            None => "",
            Some(Taken::Ticket) => " ticket-taken",
            Some(Taken::Page) => " page-taken",
        })?;
        if self.generation > 1 { write!(f, " {}", self.generation) } else { Ok(()) }
    }
}

/// The key of an alert of an incident.
pub(super) fn key(incident: &str, ticket: bool, generation: u32) -> String {
    let id = shorten(incident, DEDUP_KEY_MAX - SUFFIXES_MAX);
    let suffix = if ticket { TICKET_SUFFIX } else { "" };
    if generation > 1 { format!("{id}{suffix}-{generation}") } else { format!("{id}{suffix}") }
}

/// The incident whose alert has this key, and whether it is the ticket's. An incident's id has no dash.
pub(crate) fn incident_of(key: &str) -> (&str, bool) {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let key = key.rsplit_once('-').filter(|(_, last)| is_number(last)).map_or(key, |(first, _)| first);
    key.strip_suffix(TICKET_SUFFIX).map_or((key, false), |id| (id, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_leads_back_to_its_incident() {
        for ticket in [false, true] {
            for generation in [1, 2, u32::MAX] {
                let key = key("01J9ZC7Q3F8D2V4X", ticket, generation);
                assert_eq!(incident_of(&key), ("01J9ZC7Q3F8D2V4X", ticket), "{key}");
            }
        }
        assert_eq!(key("01J9ZC", false, 1), "01J9ZC");
        assert_eq!(key("01J9ZC", true, 3), "01J9ZC-ticket-3");
        assert!(key(&"x".repeat(999), true, u32::MAX).chars().count() <= DEDUP_KEY_MAX);
        assert_eq!(incident_of("of somebody else-"), ("of somebody else-", false));
    }

    #[test]
    fn what_is_remembered_reads_back_and_so_does_what_there_was_before() {
        for text in ["-", "ticket", "- page-taken", "ticket ticket-taken 2", "- 7"] {
            assert_eq!(Lane::read(Some(text)).to_string(), text);
        }
        assert_eq!(Lane::read(None).to_string(), "-");
        assert_eq!(Lane::read(Some("- 0 words nobody knows")).generation, 1);
    }
}
