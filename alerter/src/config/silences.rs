//! Checks the `silences` and `alerts` sections.

use stepwatch_model::time::Span;
use stepwatch_respond::matcher::Matcher;

use super::file::File;

/// The upper limit of alerts that are kept at once: each takes a few kilobytes.
const MAX_ALERTS: usize = 1_000_000;
/// The lower limit of the bytes of alerts: a few of the largest.
const MIN_ALERT_BYTES: usize = 1024 * 1024;

pub(super) fn check(file: &File, errors: &mut Vec<String>) {
    let s = &file.silences;
    if s.max_duration < Span::secs(60) {
        errors.push("silences.max_duration: must be at least 1m".into());
    }
    if s.max == 0 {
        errors.push("silences.max: must be at least 1".into());
    }
    let known: Vec<&str> = file.receivers.iter().map(|r| r.name.as_str()).collect();
    for (i, name) in s.remind.iter().enumerate() {
        if !known.contains(&name.as_str()) {
            let all = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            errors.push(format!(
                "silences.remind[{i}]: there is no receiver {name:?}; those that exist: {all}"
            ));
        }
    }
    maintenance(file, errors);
    let a = &file.alerts;
    // By default, Prometheus sends an alert again every minute.
    if a.resolve_timeout < Span::secs(10) {
        errors.push("alerts.resolve_timeout: must be at least 10s".into());
    }
    if a.max_alerts == 0 || a.max_alerts > MAX_ALERTS {
        errors.push(format!("alerts.max_alerts: must be 1 to {MAX_ALERTS}, got {}", a.max_alerts));
    }
    if a.max_bytes < MIN_ALERT_BYTES {
        errors.push(format!("alerts.max_bytes: must be at least {MIN_ALERT_BYTES}, got {}", a.max_bytes));
    }
    if a.group_by.is_empty() {
        errors.push("alerts.group_by: must name at least one label, as in [alertname]".into());
    }
}

fn maintenance(file: &File, errors: &mut Vec<String>) {
    let engine = file.responder();
    let known: Vec<&str> = engine.oncall.time_intervals.iter().map(|i| i.name.as_str()).collect();
    for (i, m) in file.maintenance.iter().enumerate() {
        let at = format!("maintenance[{i}]");
        if m.matchers.iter().all(Matcher::holds_of_nothing) {
            errors.push(format!(
                "{at}.match: at least one must not match the empty string, or everything is silenced"
            ));
        }
        if m.name.trim().is_empty() || m.reason.trim().is_empty() {
            errors.push(format!("{at}: name and reason must say something"));
        }
        if m.during.is_empty() && m.time_intervals.is_empty() {
            errors.push(format!("{at}: has neither during nor time_intervals, so that it is never in force"));
        }
        for (j, name) in m.during.iter().enumerate().filter(|(_, name)| !known.contains(&name.as_str())) {
            let all = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            errors.push(format!(
                "{at}.during[{j}]: there is no time interval {name:?}; those that exist: {all}"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    fn mistake(yaml: &str) -> String {
        Config::parse(Path::new("alerter.yml"), yaml).unwrap_err().to_string()
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (yaml, part) in [
            ("silences: {max_duration: 1s}", "silences.max_duration: must be at least 1m"),
            ("silences: {remind: [chat]}", "there is no receiver \"chat\"; those that exist: none"),
            ("silences: {longest: 1h}", "unknown field"),
            (
                "maintenance: [{name: x, reason: y, match: ['run=~\".*\"'], time_intervals: [{}]}]",
                "the empty string",
            ),
            ("maintenance: [{name: x, reason: y, match: ['run=a']}]", "never in force"),
            (
                "maintenance: [{name: x, reason: y, match: ['run=a'], during: [night]}]",
                "no time interval \"night\"",
            ),
            ("maintenance: [{name: x, reason: y, match: ['run']}]", "expected label"),
            ("alerts: {resolve_timeout: 1s}", "must be at least 10s"),
            ("alerts: {group_by: []}", "at least one label"),
            ("alerts: {max_alerts: 0}", "must be 1 to 1000000"),
            ("alerts: {max_bytes: 0}", "must be at least 1048576"),
            ("alerts: {severities: {red: loud}}", "loud"),
            ("alerts: {kinds: {XidErrors: gpu}}", "gpu"),
        ] {
            let got = mistake(yaml);
            assert!(got.contains(part), "{yaml}: {got}");
        }
    }
}
