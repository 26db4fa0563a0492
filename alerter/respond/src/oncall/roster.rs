//! Finds the users to whom the events of a calendar belong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ical::{Calendar, Event, MAX_PLAN, MAX_WARNINGS};
use stepwatch_model::Ts;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    pub name: String,
    /// Receivers that reach this person.
    #[serde(default)]
    pub notify: Vec<String>,
    /// The Slack id, as in `U012AB3CD`, which messages for this person mention.
    #[serde(default)]
    pub slack_id: Option<String>,
    /// The mail address, by which calendars may name this person too.
    #[serde(default)]
    pub email: Option<String>,
    /// Other names that calendars have for this person.
    #[serde(default)]
    pub aliases: Vec<String>,
}

/// A calendar with the users of its events. Clones share both.
#[derive(Debug, Clone, Default)]
pub(super) struct Roster {
    pub(super) calendar: Arc<Calendar>,
    /// The users of each event.
    users: Arc<[Vec<String>]>,
    /// When the calendar was last known to have this content.
    pub(super) read_at: Ts,
}

/// Indexes of the users by their names in lower case. A calendar can contain any number of names,
/// so that a scan of all users for each would take too long.
struct Names<'a> {
    all: &'a [User],
    /// Names, addresses and aliases, each with its users, by their places in `all`.
    called: BTreeMap<String, Vec<usize>>,
    mails: BTreeMap<String, Vec<usize>>,
}

impl Roster {
    pub(super) fn new(mut calendar: Calendar, read_at: Ts, users: &[User]) -> Self {
        let names = Names::new(users);
        let mut said = Vec::new();
        let mut whose = Vec::with_capacity(calendar.events().len());
        for event in calendar.events() {
            let users = names.whose(event);
            // Further warnings would not be kept.
            if said.len() < MAX_WARNINGS {
                let new = names.doubts(event, &users).into_iter().filter(|doubt| !said.contains(doubt));
                said.extend(new.collect::<Vec<_>>());
            }
            whose.push(users.into_iter().map(|u| u.name.clone()).collect());
        }
        said.into_iter().for_each(|doubt| calendar.warn(0, doubt));
        Self { calendar: Arc::new(calendar), users: whose.into(), read_at }
    }

    /// The users who are on call at `at`; empty if no event covers `at`.
    pub(super) fn at(&self, at: Ts) -> Vec<String> {
        let on = self.named().filter(|(event, _)| event.holds(at));
        on.flat_map(|(_, users)| users).cloned().collect()
    }

    /// The times within a range at which it may change who is on call.
    pub(super) fn edges(&self, from: Ts, to: Ts, out: &mut Vec<Ts>) {
        out.extend(self.named().flat_map(|(event, _)| event.occurrences(from, to)).flat_map(|(a, b)| [a, b]));
    }

    fn named(&self) -> impl Iterator<Item = (&Event, &Vec<String>)> {
        self.calendar.events().iter().zip(self.users.iter()).filter(|(_, users)| !users.is_empty())
    }

    /// The summaries of events from `at` on that belong to no user.
    pub(super) fn strangers(&self, at: Ts) -> Vec<&str> {
        let all = self.calendar.events().iter().zip(self.users.iter());
        let nobodys = all.filter(|(event, users)| {
            users.is_empty() && event.occurrences(at, at + MAX_PLAN).next().is_some()
        });
        let mut names: Vec<&str> = nobodys.map(|(event, _)| event.summary.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl<'a> Names<'a> {
    fn new(all: &'a [User]) -> Self {
        let (mut called, mut mails): (BTreeMap<String, Vec<usize>>, BTreeMap<_, Vec<usize>>) =
            Default::default();
        for (place, user) in all.iter().enumerate() {
            let mail = user.email.as_ref().map(|mail| mail.to_ascii_lowercase());
            let names = user.aliases.iter().chain([&user.name]).map(|name| name.to_lowercase());
            let names: BTreeSet<String> =
                names.chain(user.email.as_ref().map(|m| m.to_lowercase())).collect();
            for name in names.into_iter().filter(|name| !name.is_empty()) {
                called.entry(name).or_default().push(place);
            }
            if let Some(mail) = mail {
                mails.entry(mail).or_default().push(place);
            }
        }
        Self { all, called, mails }
    }

    fn called(&self, name: &str) -> &[usize] {
        self.called.get(&name.to_lowercase()).map_or(&[], Vec::as_slice)
    }

    /// The users with one of these mail addresses, which are in lower case.
    fn with_mails(&self, mails: &[String]) -> BTreeSet<usize> {
        mails.iter().filter_map(|mail| self.mails.get(mail)).flatten().copied().collect()
    }

    /// The users of an event: its attendees, if any of them is a user, otherwise the users that its
    /// summary names. A user who has declined is not among them.
    fn whose(&self, event: &Event) -> Vec<&'a User> {
        let first = |places: &Vec<usize>| places.first().copied();
        let invited = event.attendees.iter().filter_map(|mail| self.mails.get(mail).and_then(first));
        let mut found = distinct(invited);
        if found.is_empty() {
            let declined = self.with_mails(&event.declined);
            let named = parts(&event.summary).into_iter().filter_map(|p| self.called(&p).first().copied());
            found = distinct(named.filter(|place| !declined.contains(place)));
        }
        found.into_iter().filter_map(|place| self.all.get(place)).collect()
    }

    /// Warnings about users that an event may mean and that were left out.
    fn doubts(&self, event: &Event, whose: &[&User]) -> Vec<String> {
        let summary = &event.summary;
        let declined = self.with_mails(&event.declined);
        let name = |place: &usize| self.all.get(*place).map_or("", |u| u.name.as_str());
        let refused = declined.iter().map(name);
        let mut doubts: Vec<String> = refused
            .map(|name| format!("event {summary:?}: {name} has declined, and is not on call by it"))
            .take(MAX_WARNINGS)
            .collect();
        if whose.is_empty() || !self.with_mails(&event.attendees).is_empty() {
            return doubts;
        }
        // In `alice and bob swap`, it is unclear which of them is on call.
        let parts = parts(summary);
        let words = parts.iter().flat_map(|part| part.split_whitespace());
        let mentioned: BTreeSet<usize> = words.flat_map(|w| self.called(w)).copied().collect();
        let on_call = whose.iter().map(|u| u.name.as_str()).collect::<Vec<_>>();
        let beside = mentioned.difference(&declined).map(name).filter(|name| !on_call.contains(name));
        doubts.extend(beside.take(MAX_WARNINGS).map(|name| {
            format!("event {summary:?}: names {name} too, and only {} is on call by it", on_call.join(", "))
        }));
        doubts
    }
}

/// Each place once, in order of its first occurrence.
fn distinct(places: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    places.filter(|place| seen.insert(*place)).collect()
}

/// The parts of a summary that may be names, as in `[L1] alice`, `On call: Alice Smith - primary`,
/// `alice, bob`, `alice@example.com`.
fn parts(summary: &str) -> Vec<String> {
    let text = summary.replace(" and ", ",").replace(" - ", ",");
    let parts = text.split([',', ';', '&', '+', '/', ':', '(', ')', '[', ']']);
    parts.map(|part| part.trim().to_owned()).collect()
}
