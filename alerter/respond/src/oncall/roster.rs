//! Whose shifts the events of a calendar are.

use super::User;
use super::ical::{Calendar, Event};
use stepwatch_model::Ts;

/// A calendar whose events have users.
#[derive(Debug, Clone, Default)]
pub(super) struct Roster {
    pub(super) calendar: Calendar,
    /// Of each event.
    users: Vec<Vec<String>>,
    /// When the calendar was last known to say this.
    pub(super) read_at: Ts,
}

impl Roster {
    pub(super) fn new(mut calendar: Calendar, read_at: Ts, users: &[User]) -> Self {
        let doubts: Vec<String> = calendar.events().iter().flat_map(|e| doubts(e, users)).collect();
        let users = calendar.events().iter().map(|e| whose(e, users)).collect();
        doubts.into_iter().for_each(|doubt| calendar.warn(0, doubt));
        Self { calendar, users, read_at }
    }

    /// Who is on call by it at `at`; nobody if it says nothing.
    pub(super) fn at(&self, at: Ts) -> Vec<String> {
        let on = self.named().filter(|(event, _)| event.holds(at));
        on.flat_map(|(_, users)| users).cloned().collect()
    }

    /// The moments in a stretch of time at which it may change who is on call.
    pub(super) fn edges(&self, from: Ts, to: Ts, out: &mut Vec<Ts>) {
        out.extend(self.named().flat_map(|(event, _)| event.occurrences(from, to)).flat_map(|(a, b)| [a, b]));
    }

    fn named(&self) -> impl Iterator<Item = (&Event, &Vec<String>)> {
        self.calendar.events().iter().zip(&self.users).filter(|(_, users)| !users.is_empty())
    }

    /// Events from `at` on that are nobody's, each by what it is called.
    pub(super) fn strangers(&self, at: Ts) -> Vec<&str> {
        let all = self.calendar.events().iter().zip(&self.users);
        let nobodys = all.filter(|(event, users)| {
            users.is_empty() && event.occurrences(at, at + super::MAX_PLAN).next().is_some()
        });
        let mut names: Vec<&str> = nobodys.map(|(event, _)| event.summary.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// The attendees, if any of them is a user; else the users whose names the summary is made of.
/// Whoever has declined is not among them.
fn whose(event: &Event, users: &[User]) -> Vec<String> {
    let invited = event.attendees.iter().filter_map(|mail| users.iter().find(|u| u.has_mail(mail)));
    let invited: Vec<String> = invited.map(|u| u.name.clone()).collect();
    if !invited.is_empty() {
        return invited;
    }
    let named =
        parts(&event.summary).into_iter().filter_map(|part| users.iter().find(|u| u.is_called(&part)));
    named.filter(|u| !u.declines(event)).map(|u| u.name.clone()).collect()
}

/// What a person should look at: who was left out.
fn doubts(event: &Event, users: &[User]) -> Vec<String> {
    let (summary, whose) = (&event.summary, whose(event, users));
    let declined = users.iter().filter(|u| u.declines(event));
    let declined =
        declined.map(|u| format!("event {summary:?}: {} has declined, and is not on call by it", u.name));
    let invited = event.attendees.iter().any(|mail| users.iter().any(|u| u.has_mail(mail)));
    // `alice and bob swap`: nobody knows which of them it is.
    let words: Vec<String> = if whose.is_empty() || invited { Vec::new() } else { parts(summary) };
    let mentioned = |u: &&User| {
        !whose.contains(&u.name)
            && !u.declines(event)
            && words.iter().any(|part| part.split_whitespace().any(|w| u.is_called(w)))
    };
    let beside = users.iter().filter(mentioned);
    let beside = beside.map(|u| {
        format!("event {summary:?}: names {} too, and only {} is on call by it", u.name, whose.join(", "))
    });
    declined.chain(beside).collect()
}

/// `[L1] alice`, `On call: Alice Smith - primary`, `alice, bob`, `alice@example.com`.
fn parts(summary: &str) -> Vec<String> {
    let text = summary.replace(" and ", ",").replace(" - ", ",");
    let parts = text.split([',', ';', '&', '+', '/', ':', '(', ')', '[', ']']);
    parts.map(|part| part.trim().to_owned()).collect()
}

impl User {
    fn has_mail(&self, mail: &str) -> bool {
        self.email.as_ref().is_some_and(|m| m.eq_ignore_ascii_case(mail))
    }

    fn declines(&self, event: &Event) -> bool {
        event.declined.iter().any(|mail| self.has_mail(mail))
    }

    fn is_called(&self, name: &str) -> bool {
        let same = |other: &String| !name.is_empty() && other.to_lowercase() == name.to_lowercase();
        same(&self.name) || self.has_mail(name) || self.aliases.iter().any(same)
    }
}
