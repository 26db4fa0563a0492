//! A table of who is notified, by team and severity, as the routes determine it.
//!
//! The router itself computes the table. A route may also match labels that are not known in
//! advance (a kind, a run, a node). Then there is a line for each case, and the first that matches
//! applies.

use std::collections::BTreeSet;

use stepwatch_model::Severity;
use stepwatch_model::time::Span;
use stepwatch_respond::config::{Condition, Level, ResponderConfig};
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::oncall::{SCHEDULE, USER};
use stepwatch_respond::route::{Possible, Router, Way};

use super::oncall::NO_FALLBACK;

/// The description of an incident that notifies nobody.
pub(super) const WAITS: &str = "nobody, it waits in the list of incidents";

/// One line for each team, severity and case; empty if there are no teams.
pub(super) fn table(config: &ResponderConfig) -> Vec<String> {
    // The routes of a checked configuration can be parsed.
    let router = Router::new(&config.routes, &config.teams).unwrap_or_default();
    let teams = router.team_names();
    let nobodys = if teams.is_empty() { &[][..] } else { &[""] };
    let mut lines = Vec::new();
    for team in teams.iter().chain(nobodys).copied() {
        for severity in [Severity::Page, Severity::Ticket] {
            let labels = [("severity", severity.as_str()), ("team", team)];
            let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
            let labels: Labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let found = router.possible(config, &labels, &["severity", "team"]);
            let whose = if team.is_empty() { "no team" } else { team };
            let one_of_many = found.len() > 1;
            lines.extend(found.iter().map(|possible| {
                let head = format!("{whose}, {}{}", severity.as_str(), given(possible, one_of_many));
                let more = if possible.goes_on { ", and on" } else { "" };
                let instead = instead(&router, config, &labels, &possible.way, severity);
                format!("{head} -> {}{more}{instead}", destination(config, &possible.way, severity))
            }));
        }
    }
    lines
}

fn given(possible: &Possible, one_of_many: bool) -> String {
    match possible.given.as_slice() {
        [] if one_of_many => ", otherwise".into(),
        [] => String::new(),
        given => format!(" if {}", given.join(" and ")),
    }
}

/// The levels for a severity. A page that no level is for goes to the last one; any other incident
/// waits in the list of incidents.
pub(super) fn levels_of(way: &Way, severity: Severity) -> Vec<&Level> {
    let asked = |level: &&Level| level.condition.severity.is_none_or(|s| s == severity);
    let mut levels: Vec<&Level> = way.levels.iter().filter(asked).collect();
    if levels.is_empty() && severity == Severity::Page {
        levels.extend(way.levels.last());
    }
    levels
}

fn destination(config: &ResponderConfig, way: &Way, severity: Severity) -> String {
    let levels = levels_of(way, severity);
    let policy = way.policy.as_ref().map(|name| format!("policy {name}: ")).unwrap_or_default();
    let words: Vec<String> = levels.into_iter().map(|l| level(config, l, way.policy.is_some())).collect();
    let nobody = if way.levels.is_empty() { "nobody" } else { WAITS };
    let notified = if words.iter().all(String::is_empty) { nobody.to_owned() } else { words.join("; ") };
    policy + &notified
}

/// The text of a level. A plain list is notified at once, which is not stated.
fn level(config: &ResponderConfig, level: &Level, of_policy: bool) -> String {
    let whom = level.notify.iter().map(|item| whom(config, item)).collect::<Vec<_>>().join(", ");
    if !of_policy {
        return whom;
    }
    let again = config.again(level);
    let asked = Condition { severity: None, ..level.condition.clone() };
    format!("{} {whom}{again}{}", when(level), condition(&asked))
}

/// The receivers that replace those that do not accept a message: nearest first, each once, in the
/// engine's order. Only pages go to a receiver that wakes.
fn instead(
    router: &Router,
    config: &ResponderConfig,
    labels: &Labels,
    way: &Way,
    severity: Severity,
) -> String {
    let levels = levels_of(way, severity);
    if levels.is_empty() {
        // Nobody is notified, so no delivery can fail.
        return String::new();
    }
    let oncall = &config.oncall;
    let mut named: BTreeSet<&str> = levels.into_iter().flat_map(|l| &l.notify).map(String::as_str).collect();
    // A schedule notifies one person, who is not known now.
    let surely = |item: &&str| !item.starts_with(SCHEDULE);
    let mut notified: BTreeSet<&str> =
        named.iter().copied().filter(surely).flat_map(|item| oncall.reachable(item)).collect();
    let mut places = Vec::new();
    for stage in router.instead(config, labels, way.levels.iter()) {
        let may =
            |name: &str| !notified.contains(name) && (severity == Severity::Page || !config.wakes(name));
        let meant = |item: &&str| !named.contains(item) && oncall.reachable(item).into_iter().any(may);
        let mut items: Vec<&str> = stage.names.into_iter().filter(meant).collect();
        items.sort_unstable();
        items.dedup();
        if !items.is_empty() {
            let words: Vec<String> = items.iter().map(|item| whom_of(config, item, &may)).collect();
            places.push(words.join(" and "));
        }
        notified.extend(items.iter().copied().filter(surely).flat_map(|item| oncall.reachable(item)));
        named.extend(items);
    }
    if places.is_empty() { String::new() } else { format!("; if that fails: {}", places.join(", then ")) }
}

/// The text of an item: a person with receivers, or a schedule with its fallback.
fn whom(config: &ResponderConfig, item: &str) -> String {
    whom_of(config, item, &|_| true)
}

/// Like [`whom`], limited to the receivers of a person for which `may` is true.
fn whom_of(config: &ResponderConfig, item: &str, may: &dyn Fn(&str) -> bool) -> String {
    let oncall = &config.oncall;
    if let Some(user) = item.strip_prefix(USER).and_then(|name| oncall.users.iter().find(|u| u.name == name))
    {
        let by: Vec<&str> = user.notify.iter().map(String::as_str).filter(|name| may(name)).collect();
        let by = if by.is_empty() { "no receiver".to_owned() } else { by.join(", ") };
        return format!("{item} (by {by})");
    }
    let schedule =
        item.strip_prefix(SCHEDULE).and_then(|name| oncall.schedules.iter().find(|s| s.name == name));
    let Some(schedule) = schedule else { return item.to_owned() };
    let fallback =
        if schedule.fallback.is_empty() { NO_FALLBACK.to_owned() } else { schedule.fallback.join(", ") };
    format!("{item} (if nobody is on call: {fallback})")
}

pub(super) fn when(level: &Level) -> String {
    if level.after == Span::ZERO { "at once".to_owned() } else { format!("after {}", level.after) }
}

pub(super) fn condition(asked: &Condition) -> String {
    let parts = [
        asked.severity.map(|s| format!("severity {}", s.as_str())),
        asked.during.as_ref().map(|name| format!("during {name}")),
        asked.outside.as_ref().map(|name| format!("outside {name}")),
        asked.burn_over.map(|dollars| format!("burning more than ${dollars}/h")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!(" if {}", parts.join(" and ")) }
}
