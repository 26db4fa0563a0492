//! Checks the settings that turn findings into incidents and choose who is notified: routes, teams,
//! inhibition, timing.

use std::collections::BTreeSet;

use stepwatch_model::time::Span;
use stepwatch_respond::config::Route;
use stepwatch_respond::incident::inhibition;
use stepwatch_respond::matcher::{Matcher, Op};
use stepwatch_respond::route::nested_too_deep;

use super::file::File;
use super::matchers::{self, Names};
use super::names::unique;
use super::shadowed;

/// Calls `act` for every route of the tree with its position, parents first.
pub(super) fn each_route(at: &str, routes: &[Route], act: &mut dyn FnMut(&str, &Route)) {
    for (i, route) in routes.iter().enumerate() {
        let place = format!("{at}[{i}]");
        act(&place, route);
        each_route(&format!("{place}.routes"), &route.routes, act);
    }
}

pub(super) fn check(file: &File, errors: &mut Vec<String>) {
    let names = Names::from_file(file);
    each_matchers(file, &mut |at, list, of_alerts| matchers::check(at, list, &names, of_alerts, errors));
    errors.extend(nested_too_deep("routes", &file.routes));
    unique("teams", file.teams.iter().map(|t| t.name.as_str()), errors);
    declared(file, errors);
    timing(file, errors);
    inhibit_rules(file, errors);
}

fn declared(file: &File, errors: &mut Vec<String>) {
    for (i, label) in file.labels.iter().enumerate() {
        // The declared labels are label names that a matcher may use.
        if let Err(e) = Matcher::new(label.as_str(), Op::Equal, "") {
            errors.push(format!("labels[{i}]: {e}"));
        }
        if file.labels[..i].contains(label) {
            errors.push(format!("labels[{i}]: names {label:?} twice"));
        }
    }
}

/// Calls `act` for every list of matchers with its position, and whether a route above it is
/// limited to external alerts.
fn each_matchers(file: &File, act: &mut dyn FnMut(&str, &[String], bool)) {
    matchers_of_routes("routes", &file.routes, false, act);
    for (i, team) in file.teams.iter().enumerate() {
        act(&format!("teams[{i}].match"), &team.matchers, false);
    }
    for (i, rule) in file.inhibit_rules.iter().enumerate() {
        act(&format!("inhibit_rules[{i}].source_matchers"), &rule.source_matchers, false);
        act(&format!("inhibit_rules[{i}].target_matchers"), &rule.target_matchers, false);
    }
    for (i, window) in file.maintenance.iter().enumerate() {
        let texts: Vec<String> = window.matchers.iter().map(ToString::to_string).collect();
        act(&format!("maintenance[{i}].match"), &texts, false);
    }
}

fn matchers_of_routes(
    at: &str,
    routes: &[Route],
    of_alerts: bool,
    act: &mut dyn FnMut(&str, &[String], bool),
) {
    for (i, route) in routes.iter().enumerate() {
        let place = format!("{at}[{i}]");
        act(&format!("{place}.match"), &route.matchers, of_alerts);
        let below = of_alerts || matchers::are_of_alerts(&route.matchers);
        matchers_of_routes(&format!("{place}.routes"), &route.routes, below, act);
    }
}

fn timing(file: &File, errors: &mut Vec<String>) {
    let minute = Span::secs(60);
    for (key, least, most, value) in [
        ("batch_window", Span::ZERO, Span::secs(3600), file.batch_window),
        ("update_min_interval", Span::ZERO, Span::secs(86_400), file.update_min_interval),
        ("remind_every", minute, Span::secs(86_400), file.remind_every),
        ("ack_timeout", minute, Span::secs(30 * 86_400), file.ack_timeout.unwrap_or(minute)),
        ("storm.within", Span::secs(1), Span::secs(86_400), file.storm.within),
    ] {
        if !(least..=most).contains(&value) {
            errors.push(format!("{key}: must be {least} to {most}, got {value}"));
        }
    }
    let reopen = file.incidents.reopen_after;
    // History is kept for at least a day.
    if !(Span::secs(1)..=Span::secs(86_400)).contains(&reopen) {
        errors.push(format!(
            "incidents.reopen_after: must be 1s to 1d, got {reopen}; what is to stay quiet for longer is silenced, not resolved"
        ));
    }
    for (key, value) in
        [("storm.incidents", file.storm.incidents), ("storm.per_origin", file.storm.per_origin)]
    {
        if !(1..=10_000).contains(&value) {
            errors.push(format!("{key}: must be 1 to 10000, got {value}"));
        }
    }
    let burns = file.policies.iter().enumerate().flat_map(|(i, policy)| {
        let levels = policy.levels.iter().enumerate();
        levels.filter_map(move |(l, level)| Some((i, l, level.condition.burn_over?)))
    });
    for (i, l, dollars) in burns.filter(|(_, _, dollars)| !(dollars.is_finite() && *dollars >= 0.0)) {
        errors.push(format!(
            "policies[{i}].levels[{l}].if.burn_over: must be a number of dollars an hour, at least 0, got {dollars}"
        ));
    }
}

fn inhibit_rules(file: &File, errors: &mut Vec<String>) {
    for (i, rule) in file.inhibit_rules.iter().enumerate() {
        for (key, list) in [("source", &rule.source_matchers), ("target", &rule.target_matchers)] {
            if list.is_empty() {
                errors.push(format!(
                    "inhibit_rules[{i}].{key}_matchers: is empty, expected at least one matcher"
                ));
            }
        }
    }
    let names: Vec<String> = inhibition::built_in().map(|rule| rule.name).collect();
    for (i, name) in file.inhibit_off.iter().enumerate().filter(|(_, name)| !names.contains(name)) {
        errors.push(format!(
            "inhibit_off[{i}]: there is no built-in rule {name:?}; those that exist: {}",
            names.join(", ")
        ));
    }
}

/// Warnings about allowed but probably unintended settings.
pub(super) fn warnings(file: &File, warnings: &mut Vec<String>) {
    let names = Names::from_file(file);
    each_matchers(file, &mut |at, list, of_alerts| {
        matchers::unknown_teams(at, list, &names, warnings);
        matchers::dead_alternatives(at, list, warnings);
        matchers::nearly_ours(at, list, &names, of_alerts, warnings);
    });
    shadowed::warnings(file, warnings);
    for (i, route) in file.routes.iter().enumerate() {
        let leads = |r: &Route| r.policy.is_some() || !r.notify.is_empty();
        let children_lead = !route.routes.is_empty() && route.routes.iter().all(leads);
        if !leads(route) && !children_lead {
            warnings
                .push(format!("routes[{i}]: has neither policy nor notify: what it matches notifies nobody"));
        }
    }
    let mut used = BTreeSet::new();
    each_route("routes", &file.routes, &mut |_, route| used.extend(route.policy.clone()));
    used.extend(file.teams.iter().filter_map(|team| team.policy.clone()));
    for policy in file.policies.iter().filter(|policy| !used.contains(&policy.name)) {
        warnings.push(format!("policies: {:?} is used by no route", policy.name));
    }
    for (at, name) in common_labels(file).filter(|(_, name)| !names.has(name)) {
        let nearest = names.nearest(name, ";");
        warnings.push(format!(
            "{at}: no incident has the label {name:?} unless its run declares it or an alert brings it{nearest}"
        ));
    }
    let burns = file.policies.iter().flat_map(|p| &p.levels).any(|l| l.condition.burn_over.is_some());
    if burns && file.cost_per_gpu_hour.is_none() {
        warnings.push(
            "cost_per_gpu_hour: is not set, so that every level with burn_over is notified whatever is burnt"
                .into(),
        );
    }
}

/// The labels by which incidents are compared, with their positions.
fn common_labels(file: &File) -> impl Iterator<Item = (String, &str)> {
    let grouped = file.group_by.iter().map(|name| ("group_by".to_owned(), name.as_str()));
    let rules = file.inhibit_rules.iter().enumerate();
    grouped.chain(rules.flat_map(|(i, rule)| {
        rule.equal.iter().map(move |name| (format!("inhibit_rules[{i}].equal"), name.as_str()))
    }))
}
