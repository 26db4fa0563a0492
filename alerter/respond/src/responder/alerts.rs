//! Handles external alerts: finds the run or node that they are about, and makes findings of them.

use crate::effect::Tx;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Key, Responder};
use crate::effect::Effect;
use crate::external::group::{JOB_LABELS, NODE_LABELS, RUN_LABELS, may_be_job, node_of};
use crate::external::{About, Alert, AlertsConfig, External, Firing, LabelSet, PostedAlert, Taken};
use crate::matcher::Labels;
use stepwatch_model::{
    Change, Clause, Context, Directory, Fact, Finding, Observation, Origin, Subject, Suspect, Target, Ts,
    clause,
};

/// The most characters of an alert's text in an incident.
const MAX_TEXT: usize = 400;
/// The most labels that are named of an alert that differs from the others.
const MAX_LABELS: usize = 4;
/// The most suspects that are named for one condition.
const MAX_SUSPECTS: usize = 8;

impl Responder {
    /// The external alerts that fire.
    pub fn alerts(&self) -> &External {
        &self.manager.external
    }

    pub(super) fn take_alerts(
        &mut self,
        tx: &mut Tx<'_>,
        posted: &[PostedAlert],
        directory: &impl Directory,
    ) {
        let now = tx.now;
        let mut touched = BTreeSet::new();
        let mut external = core::mem::take(&mut self.manager.external);
        for posted in posted {
            let about = |_: &AlertsConfig, labels: &LabelSet| self.about(directory, labels);
            let fingerprint = posted.alert.fingerprint;
            match external.take(now, posted, about, &mut touched) {
                Taken::Fires => tx.out.extend(external.get(fingerprint).cloned().map(Effect::Alert)),
                Taken::Over => tx.out.push(Effect::AlertOver(fingerprint)),
                Taken::Unchanged | Taken::Nothing | Taken::Refused => {}
            }
        }
        self.manager.external = external;
        self.judge_groups(tx, touched, directory);
    }

    pub(super) fn tick_alerts(&mut self, tx: &mut Tx<'_>, directory: &impl Directory) {
        let now = tx.now;
        let mut touched = BTreeSet::new();
        let over = self.manager.external.expire(now, &mut touched);
        tx.out.extend(over.into_iter().map(Effect::AlertOver));
        self.judge_groups(tx, touched, directory);
    }

    /// Restores stored alerts. Must be called before the engine gets any input.
    pub fn restore_alerts(
        &mut self,
        now: Ts,
        stored: impl IntoIterator<Item = Firing>,
        directory: &impl Directory,
    ) {
        for firing in stored {
            let about = self.about(directory, &firing.alert.labels);
            self.manager.external.restore(now, firing, about);
        }
        self.timers.set(&Key::Alerts, self.manager.external.deadline());
    }

    fn judge_groups(&mut self, tx: &mut Tx<'_>, touched: BTreeSet<Arc<str>>, directory: &impl Directory) {
        let now = tx.now;
        for key in touched {
            let Some((context, finding)) = self.condition(now, &key, directory) else { continue };
            self.manager.finding(tx, &context, &finding);
            let subject = Subject { scope: context.scope, cause: finding.kind.cause() };
            self.manager.alerts_changed(tx, &subject);
            self.manager.external.judged(&key);
        }
        self.timers.set(&Key::Alerts, self.manager.external.deadline());
    }

    /// The finding about a group of alerts, and its context.
    fn condition(&self, now: Ts, key: &str, directory: &impl Directory) -> Option<(Context, Finding)> {
        let external = &self.manager.external;
        let group = external.group(key)?;
        let newcomer = group.newcomer.filter(|n| n.severity == group.severity);
        let first = external.spokesman(key);
        let mut summary = directory.summary(now, &group.run).unwrap_or_default();
        summary.name.clone_from(&group.run);
        // The sender's labels decide who is notified, never those of the run that the alert names.
        summary.labels = external.common_labels(key);
        let (count, step) = (group.firing.len(), summary.last_step.unwrap_or(0));
        let silent = group.silent_since().filter(|_| count == 0);
        let what = match (first, silent) {
            (Some(alert), _) => clause!(
                "{alert}: {text}",
                alert = Fact::text(alert.name()),
                text = clip(alert.text().unwrap_or("no summary")),
            ),
            (None, Some(at)) => clause!("nothing has been heard of it since {since}", since = at),
            (None, None) => clause!("its sender says that it is over"),
        };
        let scope = group.scope();
        // An alert that only has the common labels is not distinguished from the others.
        let as_bad = group.came.iter().filter(|(_, severity)| *severity == group.severity);
        let subject = Subject { scope: scope.clone(), cause: group.kind.cause() };
        let is_another = self.manager.has_another_alert(now, &subject, as_bad);
        let labels = first.filter(|_| is_another).and_then(|alert| distinguishing(alert, &summary.labels));
        let more = (count > 1).then(|| clause!(" (and {more} more like it)", more = count - 1));
        let why = clause!("{what}{labels}{more}", what, labels, more);
        let faulty = group.nodes.iter().filter(|(_, firing)| **firing > 0).map(|(node, _)| node);
        let name = first.map_or("", |alert| alert.name());
        let of_one_name = summary.labels.contains_key("alertname");
        let suspects = faulty.take(MAX_SUSPECTS).map(|node| {
            let own = || external.alert_on(key, node).unwrap_or(name);
            let alert = if of_one_name { name } else { own() }.to_owned();
            Suspect::new(Target::node(node), Observation::AlertFires { alert })
        });
        let finding = Finding {
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
            suspects: suspects.collect(),
        };
        let nodes = group.nodes.keys().cloned().collect();
        let (came, went) = (group.came.clone(), group.went.clone());
        let sender = first.map_or("", |alert| &alert.sender);
        let mut origin = Origin::from_sender(sender);
        // A sender that is limited to some runs can name any number of them.
        origin.since = directory.first_seen(&group.run).filter(|_| sender.is_empty());
        let origin = Some(origin);
        Some((Context { came, went, origin, ..Context::new(scope, summary, nodes, now) }, finding))
    }

    /// Finds the run and the node that the labels name.
    fn about(&self, directory: &impl Directory, labels: &LabelSet) -> About {
        let first = |names: &[&str]| names.iter().find_map(|name| labels.get(name));
        let node = NODE_LABELS.iter().find_map(|name| node_named(directory, name, labels.get(name)?));
        let node = node.unwrap_or_default();
        let jobs = || JOB_LABELS.iter().filter_map(|name| labels.get(name)).filter(|job| may_be_job(job));
        let run = first(RUN_LABELS)
            .map(str::to_owned)
            .or_else(|| jobs().find_map(|job| directory.run_of_job(job)))
            .or_else(|| directory.run_on(&node))
            .unwrap_or_default();
        About { run, node, team: self.manager.dispatcher.team_of(labels) }
    }
}

fn node_named(directory: &impl Directory, label: &str, value: &str) -> Option<String> {
    let named = node_of(value);
    let short = named.split('.').next().unwrap_or(named);
    let found = [named, short].into_iter().find(|name| directory.knows_node(name));
    // The `instance` of a probe is a URL, which is no node.
    let may_be = label != "instance" || !value.contains('/');
    found.or_else(|| may_be.then_some(named)).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The labels that distinguish an alert from the others of its group: ` (instance=b:9100,
/// service=pay)`.
fn distinguishing(alert: &Alert, common: &Labels) -> Option<Clause> {
    let own = alert.labels.iter().filter(|(name, _)| *name != "severity" && !common.contains_key(*name));
    let own: Vec<String> =
        own.take(MAX_LABELS).map(|(name, value)| format!("{name}={}", clip(value))).collect();
    (!own.is_empty()).then(|| clause!(" ({labels})", labels = own))
}

fn clip(text: &str) -> String {
    let text = text.trim();
    if text.chars().count() <= MAX_TEXT {
        return text.to_owned();
    }
    text.chars().take(MAX_TEXT - 1).chain(['…']).collect()
}
