//! Checks for mistakes that involve several values.

use std::collections::{BTreeMap, BTreeSet};

use stepwatch_model::time::Span;
use stepwatch_respond::config::Policy;

use super::file::File;
use super::names::{known, unique};
use super::{api, expect, fallback, incidents, oncall};
use crate::notify::slack::Answers;
use crate::notify::{Mistake, ReceiverConfig};
use crate::outbox::Receivers;

/// Checks numbers and URLs.
pub(super) fn values(file: &File, errors: &mut Vec<String>) {
    if let Some(cost) = file.cost_per_gpu_hour
        && !(cost.is_finite() && cost >= 0.0)
    {
        errors.push(format!("cost_per_gpu_hour: must be a number of at least 0, got {cost}"));
    }
    errors.extend(file.energy.mistakes().map(|why| format!("energy.{why}")));
    let d = &file.detectors;
    let by_dollars = [
        ("mfu_droop", d.mfu_droop.page_when_lost),
        ("below_expectation", d.below_expectation.page_when_lost),
    ];
    for (detector, _) in by_dollars.iter().filter(|(_, limit)| limit.is_some()) {
        if file.cost_per_gpu_hour.is_none() {
            let key = format!("detectors.{detector}.page_when_lost");
            errors.push(format!("{key}: is in dollars, which need cost_per_gpu_hour"));
        }
    }
    expect::check(file, errors);
    for (key, url) in [("external_url", &file.external_url), ("runbook_url", &file.runbook_url)] {
        let Some(url) = url else { continue };
        // Links appear in chats and pages, so `javascript:` must be refused.
        if !url::Url::parse(url).is_ok_and(|u| matches!(u.scheme(), "http" | "https") && u.has_host()) {
            errors.push(format!("{key}: {url:?} is not an http:// or https:// URL"));
        }
    }
    let mut wrong = Vec::new();
    file.remote_write.check(&mut wrong);
    errors.extend(wrong.into_iter().map(|why| format!("remote_write.{why}")));
    file.storage.check(errors);
}

/// Checks that all referenced names exist.
pub(super) fn references(file: &File, errors: &mut Vec<String>) {
    let receivers = unique("receivers", file.receivers.iter().map(|r| r.name.as_str()), errors);
    // The names that a level or a route may use.
    let people = oncall::items(file);
    let receivers: BTreeSet<&str> = receivers.into_iter().chain(people.iter().map(String::as_str)).collect();
    let policies = unique("policies", file.policies.iter().map(|p| p.name.as_str()), errors);
    for (i, policy) in file.policies.iter().enumerate() {
        levels(&format!("policies[{i}]"), policy, &receivers, errors);
    }
    // Checks who is notified, by a policy or by name.
    let destination = |at: &str, policy: Option<&str>, notify: &[String], errors: &mut Vec<String>| {
        known(&format!("{at}.notify[]"), "receiver", notify.iter().map(String::as_str), &receivers, errors);
        known(&format!("{at}.policy"), "policy", policy, &policies, errors);
        if policy.is_some() && !notify.is_empty() {
            errors.push(format!("{at}: has both policy and notify, expected one of them"));
        }
    };
    incidents::each_route("routes", &file.routes, &mut |at, route| {
        destination(at, route.policy.as_deref(), &route.notify, errors);
    });
    for (i, team) in file.teams.iter().enumerate() {
        let at = format!("teams[{i}]");
        destination(&at, team.policy.as_deref(), &team.notify, errors);
        let fallback = team.fallback.iter().map(String::as_str);
        known(&format!("{at}.fallback[]"), "receiver", fallback, &receivers, errors);
    }
    known("fallback[]", "receiver", file.fallback.iter().map(String::as_str), &receivers, errors);
    incidents::check(file, errors);
}

fn levels(at: &str, policy: &Policy, receivers: &BTreeSet<&str>, errors: &mut Vec<String>) {
    if policy.levels.is_empty() {
        errors.push(format!("{at}: has no levels, so that it would notify nobody"));
    }
    for (i, level) in policy.levels.iter().enumerate() {
        let at = format!("{at}.levels[{i}]");
        if level.notify.is_empty() {
            errors.push(format!("{at}.notify: is empty, expected at least one receiver"));
        }
        if level.repeat > 0 && level.after == Span::ZERO {
            errors.push(format!("{at}: repeats without a pause, expected `after` above 0s"));
        }
        known(
            &format!("{at}.notify[]"),
            "receiver",
            level.notify.iter().map(String::as_str),
            receivers,
            errors,
        );
    }
}

/// Builds every receiver: reads its secrets, prepares its client.
pub(super) fn receivers(configs: &[ReceiverConfig], errors: &mut Vec<String>) -> Receivers {
    let mut built = BTreeMap::new();
    for (i, config) in configs.iter().enumerate() {
        match config.build() {
            Ok(notifier) => drop(built.insert(config.name.clone(), notifier)),
            Err(Mistake { key, text }) => {
                let key = key.map(|key| format!(".{key}")).unwrap_or_default();
                errors.push(format!("receivers[{i}]{key}: receiver {:?}: {text}", config.name));
            }
        }
    }
    built
}

/// Warnings about allowed but probably unintended settings.
pub(super) fn warnings(file: &File) -> Vec<String> {
    let mut warnings = Vec::new();
    if file.sources.is_empty() {
        warnings.push("sources: is empty, so that nothing is watched".into());
    }
    if file.receivers.is_empty() {
        warnings.push("receivers: is empty, so that incidents are kept and shown, and notify nobody".into());
    }
    for (i, receiver) in file.receivers.iter().enumerate() {
        let answers = receiver.slack.as_ref().map(|slack| slack.answers);
        if answers == Some(Answers::KnownUsers) && file.users.iter().all(|user| user.slack_id.is_none()) {
            warnings.push(format!(
                "receivers[{i}].slack.answers: is known_users, and no entry of users has a slack_id: nobody can answer there"
            ));
        }
    }
    let watchdog = &file.watchdog;
    if watchdog.url.is_none() && watchdog.url_file.is_none() && watchdog.url_env.is_none() {
        warnings.push(
            "watchdog: has no url, url_file or url_env: nobody is called when this alerter, its machine or its disk stops"
                .into(),
        );
    }
    incidents::warnings(file, &mut warnings);
    fallback::warnings(file, &mut warnings);
    api::warnings(file, &mut warnings);
    warnings
}
