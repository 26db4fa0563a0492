//! The engine's side of alerts from outside: which run or node they are about, and what they come
//! to.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Engine, Key};
use crate::effect::Effect;
use crate::external::group::{JOB_LABELS, NODE_LABELS, RUN_LABELS, node_of};
use crate::external::{About, Alert, AlertsConfig, External, Firing, LabelSet, Taken, Told};
use crate::incident::Scope;
use crate::incident::book::Party;
use crate::incident::origin::Origin;
use crate::matcher::Labels;
use crate::time::Ts;
use crate::verdict::{Change, Observation, Suspect, Target, Verdict};

/// Characters of what an alert says of itself, in an incident.
const MAX_TEXT: usize = 400;
/// Labels told of an alert that is not like the others.
const MAX_LABELS: usize = 4;
/// Suspects told of one condition.
const MAX_SUSPECTS: usize = 8;

impl Engine {
    /// The alerts from outside that fire.
    pub fn alerts(&self) -> &External {
        &self.book.external
    }

    pub(super) fn take_alerts(&mut self, now: Ts, told: &[Told], out: &mut Vec<Effect>) {
        let mut touched = BTreeSet::new();
        let mut external = core::mem::take(&mut self.book.external);
        for told in told {
            let about = |config: &AlertsConfig, labels: &LabelSet| self.about(config, labels);
            let fingerprint = told.alert.fingerprint;
            match external.take(now, told, about, &mut touched) {
                Taken::Fires => out.extend(external.get(fingerprint).cloned().map(Effect::Alert)),
                Taken::Over => out.push(Effect::AlertOver(fingerprint)),
                Taken::Unchanged | Taken::Nothing | Taken::Refused => {}
            }
        }
        self.book.external = external;
        self.judge_groups(now, touched, out);
    }

    pub(super) fn tick_alerts(&mut self, now: Ts, out: &mut Vec<Effect>) {
        let mut touched = BTreeSet::new();
        let over = self.book.external.expire(now, &mut touched);
        out.extend(over.into_iter().map(Effect::AlertOver));
        self.judge_groups(now, touched, out);
    }

    /// Takes back what was stored, before the engine is told anything.
    pub fn restore_alerts(&mut self, now: Ts, stored: impl IntoIterator<Item = Firing>) {
        for firing in stored {
            let about = self.about(self.book.external.config(), &firing.alert.labels);
            self.book.external.restore(now, firing, about);
        }
        self.timers.set(&Key::Alerts, self.book.external.deadline());
    }

    fn judge_groups(&mut self, now: Ts, touched: BTreeSet<Arc<str>>, out: &mut Vec<Effect>) {
        for key in touched {
            let Some((party, verdict)) = self.condition(now, &key) else { continue };
            self.book.verdict(now, &party, &verdict, out);
            self.book.alerts_changed(now, &key, verdict.kind.cause(), out);
            self.book.external.judged(&key);
        }
        self.timers.set(&Key::Alerts, self.book.external.deadline());
    }

    /// What the alerts of a group come to.
    fn condition(&self, now: Ts, key: &str) -> Option<(Party, Verdict)> {
        let external = &self.book.external;
        let group = external.group(key)?;
        let newcomer = group.newcomer.filter(|n| n.severity == group.severity);
        let first = external.spokesman(key);
        let run = self.runs.get(&group.run);
        let mut summary = run.map(|run| self.summary(now, run)).unwrap_or_default();
        summary.name.clone_from(&group.run);
        summary.labels.extend(external.common_labels(key));
        let (count, step) = (group.firing.len(), summary.last_step.unwrap_or(0));
        let silent = group.silent_since().filter(|_| count == 0);
        let mut why = match (first, silent) {
            (Some(alert), _) => format!("{}: {}", alert.name(), clip(alert.text().unwrap_or("no summary"))),
            (None, Some(at)) => format!("nothing has been heard of it since {at}"),
            (None, None) => "its sender says that it is over".to_owned(),
        };
        let scope = Scope::Alert(key.to_owned());
        // What differs in nothing but the labels that it has in common with all of them is one of them.
        let as_bad = group.came.iter().filter(|(_, severity)| *severity == group.severity);
        let known = self.book.alerts_of(&scope, group.kind);
        let is_another = known.is_some_and(|known| as_bad.clone().any(|(alert, _)| !known.contains(alert)));
        if let Some(alert) = first.filter(|_| is_another) {
            why.push_str(&told_apart(alert, &summary.labels));
        }
        if count > 1 {
            why = format!("{why} (and {} more like it)", count - 1);
        }
        let sick = group.nodes.iter().filter(|(_, firing)| **firing > 0).map(|(node, _)| node);
        let suspects = sick.take(MAX_SUSPECTS);
        let name = first.map_or("", |alert| alert.name());
        let verdict = Verdict {
            change: match newcomer {
                _ if silent.is_some() => Change::Lapse,
                _ if count == 0 => Change::Clear,
                _ if is_another => Change::Another,
                Some(_) => Change::More,
                None => Change::Raise,
            },
            kind: group.kind,
            severity: group.severity,
            signal: name.to_owned().into(),
            step,
            ts: silent.unwrap_or(now),
            start_step: step,
            value: count as f64,
            expected: 0.0,
            score: count as f64,
            why: why.into(),
            suspects: suspects
                .map(|node| {
                    Suspect::new(Target::node(node), Observation::AlertFires { alert: name.to_owned() })
                })
                .collect(),
        };
        let nodes = group.nodes.keys().cloned().collect();
        let came = group.came.iter().map(|(alert, _)| *alert).collect();
        Some((
            Party { came, origin: Some(Origin::of_others()), ..Party::new(scope, summary, nodes, now) },
            verdict,
        ))
    }

    /// The run and the node that labels name, as we know them.
    fn about(&self, _: &AlertsConfig, labels: &LabelSet) -> About {
        let first = |names: &[&str]| names.iter().find_map(|name| labels.get(name));
        let node = NODE_LABELS.iter().find_map(|name| self.node_named(name, labels.get(name)?));
        let node = node.unwrap_or_default();
        let run = first(RUN_LABELS)
            .map(str::to_owned)
            .or_else(|| JOB_LABELS.iter().find_map(|name| self.run_of_job(labels.get(name)?)))
            .or_else(|| self.run_on(&node))
            .unwrap_or_default();
        About { run, node, team: self.book.team_of(labels) }
    }

    fn node_named(&self, label: &str, value: &str) -> Option<String> {
        let named = node_of(value);
        let known = |name: &str| self.nodes.contains_key(name) || self.placement.on(name).next().is_some();
        let short = named.split('.').next().unwrap_or(named);
        let found = [named, short].into_iter().find(|name| known(name));
        // A probe's instance is a URL: that is no node.
        let may_be = label != "instance" || !value.contains('/');
        found.or_else(|| may_be.then_some(named)).filter(|name| !name.is_empty()).map(str::to_owned)
    }

    /// The run that says of itself that it is this job.
    fn run_of_job(&self, job: &str) -> Option<String> {
        let of = |run: &&crate::run::Run| run.facts.labels.get("job").is_some_and(|j| j == job);
        self.runs.values().filter(|run| run.facts.ended.is_none()).find(of).map(|run| run.facts.name.clone())
    }

    fn run_on(&self, node: &str) -> Option<String> {
        let runs = self.placement.on(node).filter_map(|name| self.runs.get(name));
        let busy = runs.filter(|run| run.facts.ended.is_none());
        busy.max_by_key(|run| run.facts.nodes.get(node).copied()).map(|run| run.facts.name.clone())
    }
}

/// What sets an alert apart from the others of its condition: ` (instance=b:9100, service=pay)`.
fn told_apart(alert: &Alert, common: &Labels) -> String {
    let own = alert.labels.iter().filter(|(name, _)| *name != "severity" && !common.contains_key(*name));
    let own: Vec<String> =
        own.take(MAX_LABELS).map(|(name, value)| format!("{name}={}", clip(value))).collect();
    if own.is_empty() { String::new() } else { format!(" ({})", own.join(", ")) }
}

fn clip(text: &str) -> String {
    let text = text.trim();
    if text.chars().count() <= MAX_TEXT {
        return text.to_owned();
    }
    text.chars().take(MAX_TEXT - 1).chain(['…']).collect()
}
