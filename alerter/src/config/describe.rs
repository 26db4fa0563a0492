//! A description of a configuration, the output of `config check`, which a person can compare with
//! the intention.

use core::fmt;

use serde_json::Value;
use stepwatch_detect::detectors::DetectorsConfig;
use stepwatch_model::time::Span;
use stepwatch_respond::config::{InhibitRule, Level, Policy, ResponderConfig, Route, Team};
use stepwatch_respond::incident::inhibition;
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::route::Router;
use stepwatch_wire::words;

use super::api::Token;
use super::file::{File, Source};
use super::oidc::Oidc;
use super::teams::{WAITS, condition, when};
use super::{Config, ReportSchedule, expect, teams};
use crate::access::{Glob, Scope, TokenScope};
use crate::ingest::{Exporters, shown_url};
use crate::notify::ReceiverConfig;

/// The headings, each with its lines.
pub(super) type Sections = Vec<(&'static str, Vec<String>)>;

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: good", words::line(&self.path.display().to_string()))?;
        for (heading, lines) in &self.sections() {
            for (i, line) in lines.iter().enumerate() {
                writeln!(f, "{:10} {line}", if i == 0 { heading } else { "" })?;
            }
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "{:10} {warning}", "warning"))
    }
}

impl Config {
    /// The description of a configuration.
    pub fn sections(&self) -> Sections {
        let file = &self.file;
        let storage = &file.storage;
        let days = storage.retention.as_secs_f64() / 86_400.0;
        let place = if storage.postgres.is_some() {
            "PostgreSQL".to_owned()
        } else {
            storage.sqlite().display().to_string()
        };
        let sources = file.sources.iter().map(|Source::Exporters(e)| format!("exporters: {}", exporters(e)));
        let kind = |r: &ReceiverConfig| self.receivers.get(&r.name).map_or("?", |n| n.kind());
        let receivers = file.receivers.iter().map(|r| format!("{}: {}{}", r.name, kind(r), rings(r)));
        let mut all_routes = Vec::new();
        routes(&mut all_routes, &self.engine.responder, &file.routes, "");
        all_routes.push(rest(file, &self.engine.responder));
        let built_in = inhibition::built_in().filter(|r| !file.inhibit_off.contains(&r.name));
        let mut sections = vec![
            ("listen", vec![file.listen.to_string()]),
            ("storage", vec![format!("{place}, resolved incidents kept {days} days")]),
            ("cost", file.cost_per_gpu_hour.iter().map(|cost| format!("${cost:.2} per GPU hour")).collect()),
            ("sources", sources.collect()),
            ("receivers", receivers.collect()),
            ("routes", all_routes),
            ("teams", teams::table(&self.engine.responder)),
            ("reports", reports(file)),
            ("expect", file.expect.iter().map(expect::described).collect()),
            ("timing", vec![timing(file)]),
            ("inhibit", built_in.chain(file.inhibit_rules.iter().cloned()).map(|r| inhibits(&r)).collect()),
            ("api", file.api.tokens.iter().map(grant).collect()),
            ("login", file.api.oidc.iter().flat_map(people).collect()),
            ("detectors", detectors(&file.detectors)),
        ];
        sections.retain(|(_, lines)| !lines.is_empty());
        sections
    }
}

/// The reports, such as `weekly: every week on monday at 09:00 UTC -> chat, mail`.
fn reports(file: &File) -> Vec<String> {
    let one = |s: &ReportSchedule| {
        let run = s.run.as_ref().map(|run| format!("run {run}, ")).unwrap_or_default();
        format!("{}: {run}{} -> {}", s.name, s.words(), s.notify.join(", "))
    };
    file.reports.iter().map(one).collect()
}

/// The effect of a repeated call of a receiver. It uses the engine's list of receivers that wake.
fn rings(receiver: &ReceiverConfig) -> String {
    match receiver.repeated_by() {
        Some(who) => format!(", notified once: {who} repeats"),
        None if receiver.wakes() => ", rings at each call".into(),
        None => String::new(),
    }
}

/// A token, such as `llama: ack, silence, of runs llama-*`.
fn grant(token: &Token) -> String {
    format!("{}: {}", token.name, rights(&token.scopes, &token.runs, &token.teams))
}

/// The provider, and what each group may do.
fn people(oidc: &Oidc) -> Vec<String> {
    let mut lines = vec![format!("{} for {}, for {} at most", oidc.issuer, oidc.client_id, oidc.session)];
    let roles = oidc.roles.iter();
    lines.extend(roles.map(|r| format!("group {}: {}", r.group, rights(&r.scopes, &r.runs, &r.teams))));
    lines
}

fn rights(scopes: &[Scope], runs: &[Glob], teams: &[Glob]) -> String {
    let scopes = scopes.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(", ");
    let token_scope = TokenScope { runs: runs.to_vec(), teams: teams.to_vec() };
    let limits = if token_scope.is_everything() { String::new() } else { format!(", of {token_scope}") };
    format!("{scopes}{limits}")
}

fn exporters(e: &Exporters) -> String {
    let mut parts = Vec::new();
    if !e.fixed.is_empty() {
        parts.push(format!("{} static", e.fixed.len()));
    }
    for (key, list) in [("file_sd", &e.file_sd), ("http_sd", &e.http_sd), ("dns", &e.dns)] {
        parts.extend(list.iter().map(|x| {
            let shown = if key == "http_sd" { shown_url(x) } else { x.clone() };
            format!("{key} {shown}")
        }));
    }
    format!("{} over {}", parts.join(", "), e.scheme.as_str())
}

/// Adds one line per route, with children under their parent.
fn routes(lines: &mut Vec<String>, config: &ResponderConfig, list: &[Route], indent: &str) {
    for route in list {
        let more = if route.go_on { ", and on" } else { "" };
        lines.push(format!("{indent}{} -> {}{more}", matchers(route), destination(config, route)));
        routes(lines, config, &route.routes, &format!("{indent}  "));
    }
}

fn timing(file: &File) -> String {
    let first = match file.batch_window {
        Span::ZERO => "first word at once".to_owned(),
        window => format!("pages at once, tickets gathered for {window}"),
    };
    let storm = match &file.storm {
        storm if storm.enabled => format!(
            "more than {} within {} are one, and more than {} of one origin",
            storm.incidents, storm.within, storm.per_origin
        ),
        _ => "storms are not rolled up".to_owned(),
    };
    let ack =
        file.ack_timeout.map_or(String::new(), |t| format!(", notified again {t} after an acknowledgement"));
    format!(
        "{first}, news every {} at most, unanswered pages again every {}{ack}, over after {} of quiet, \
         back {} after a person resolved what still fires; {storm}",
        file.update_min_interval, file.remind_every, file.resolve_after, file.incidents.reopen_after
    )
}

fn inhibits(rule: &InhibitRule) -> String {
    let name = if rule.name.is_empty() { String::new() } else { format!("{}: ", rule.name) };
    let equal =
        if rule.equal.is_empty() { String::new() } else { format!(" of the same {}", rule.equal.join(", ")) };
    format!(
        "{name}{} suppresses {}{equal}",
        rule.source_matchers.join(" and "),
        rule.target_matchers.join(" and ")
    )
}

fn matchers(route: &Route) -> String {
    if route.matchers.is_empty() { "everything".into() } else { route.matchers.join(" and ") }
}

fn destination(config: &ResponderConfig, route: &Route) -> String {
    if let Some(name) = &route.policy {
        let policy = config.policies.iter().find(|p| p.name == *name);
        return format!("policy {name}: {}", policy.map(|p| ladder(config, p)).unwrap_or_default());
    }
    if route.notify.is_empty() { "nobody".into() } else { route.notify.join(", ") }
}

fn ladder(config: &ResponderConfig, policy: &Policy) -> String {
    policy.levels.iter().map(|l| level(config, l)).collect::<Vec<_>>().join("; ")
}

fn level(config: &ResponderConfig, level: &Level) -> String {
    let when = when(level);
    let (whom, asked) = (level.notify.join(", "), condition(&level.condition));
    format!("{when} {whom}{}{asked}", config.again(level))
}

/// The settings that are not the default ones.
fn detectors(set: &DetectorsConfig) -> Vec<String> {
    let mut changes = Vec::new();
    // These structs have only numbers, strings and durations, so they always become JSON.
    let json = |d: &DetectorsConfig| serde_json::to_value(d).unwrap_or_default();
    differences("", &json(set), &json(&DetectorsConfig::default()), &mut changes);
    if changes.is_empty() { vec!["as by default".into()] } else { changes }
}

fn differences(path: &str, set: &Value, default: &Value, out: &mut Vec<String>) {
    match (set, default) {
        (Value::Object(set), Value::Object(default)) => {
            for (key, value) in set {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                differences(&path, value, default.get(key).unwrap_or(&Value::Null), out);
            }
        }
        _ if set == default => {}
        _ => out.push(format!("{path}: {} (default {})", as_written(set), as_written(default))),
    }
}

/// A setting in the format of the file: durations are milliseconds in JSON.
fn as_written(value: &Value) -> String {
    const UNITS: [(&str, i64); 4] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let Some(Span(ms)) = value.as_str().and_then(|text| Span::parse(text).ok()) else {
        return value.to_string();
    };
    match UNITS.iter().find(|(_, scale)| ms >= *scale && ms % scale == 0) {
        Some((unit, scale)) => format!("{}{unit}", ms / scale),
        None if ms == 0 => "0s".into(),
        None => format!("{ms}ms"),
    }
}

/// The receivers of an incident that no route matches.
fn rest(file: &File, engine: &ResponderConfig) -> String {
    if file.routes.iter().any(|r| r.matchers.is_empty()) {
        return "info -> nobody, whatever the routes say".into();
    }
    let router = Router::new(&engine.routes, &engine.teams).unwrap_or_default();
    let rest = router.rest(engine, &Labels::new());
    let has_way = |team: &Team| team.policy.is_some() || !team.notify.is_empty();
    let team = if file.teams.iter().any(has_way) { "whoever its team names, else " } else { "" };
    let other = if file.routes.is_empty() { "" } else { "any other " };
    // Only pages go to a receiver that wakes.
    if !rest.names.is_empty() && rest.names.iter().all(|name| engine.wakes(name)) {
        let pagers = rest.names.join(", ");
        return format!("{other}page -> {team}{pagers}; ticket -> {team}{WAITS}; info -> nobody");
    }
    let pages = |name: &str| if engine.wakes(name) { " (pages)" } else { "" };
    let names: Vec<String> = rest.names.iter().map(|name| format!("{name}{}", pages(name))).collect();
    let everyone = if names.is_empty() { "nobody".into() } else { names.join(", ") };
    format!("{other}page and ticket -> {team}{everyone}; info -> nobody")
}
