//! Inhibition: while an incident that explains others is open, the others notify nobody.
//!
//! Rules have Alertmanager's form, with four differences, each so that nothing is suppressed
//! by mistake: what is suppressed is never more severe than what suppresses it; a label in `equal`
//! that neither has is not in common; two incidents never suppress each other, over however many
//! rules; and what is silenced explains nothing unless somebody has acknowledged it, so that a
//! silence suppresses what it names and no more. So every inhibiting incident has notified someone,
//! is acknowledged, or is itself inhibited by one that has or is.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{InhibitRule, ResponderConfig};
use crate::incident::open::Incident;
use crate::matcher::{Labels, Matcher, all_hold};
use stepwatch_model::{Kind, Severity};

/// The rules that hold unless they are switched off.
const BUILT_IN: [BuiltIn; 2] = [
    BuiltIn {
        name: "hang-suppresses-slowness",
        source: &["kind=\"hang\""],
        target: &["cause=\"speed\""],
        equal: "run",
    },
    BuiltIn {
        name: "dead-node-suppresses-gpus",
        source: &["kind=\"node_fault\"", "severity=\"page\""],
        // Only tickets. The only fault of the host may be a file system, so a GPU that pages needs
        // a response of its own.
        target: &["cause=\"hardware\"", "severity=\"ticket\""],
        equal: "node",
    },
];
/// The longest chain of incidents that inhibit one another.
pub(in crate::incident) const MAX_CHAIN: usize = 32;

struct BuiltIn {
    name: &'static str,
    source: &'static [&'static str],
    target: &'static [&'static str],
    equal: &'static str,
}

/// The index of a rule, and the values of its `equal` labels.
pub(in crate::incident) type Place = (usize, Vec<String>);

/// The rules, and which incidents are a source or a target of each.
#[derive(Debug, Default)]
pub(super) struct Inhibition {
    pub(super) rules: Vec<Rule>,
    pub(super) sources: BTreeMap<Place, BTreeSet<String>>,
    pub(super) targets: BTreeMap<Place, BTreeSet<String>>,
    pub(super) of: BTreeMap<String, Roles>,
    /// The places where a source was added or removed, and whose targets have not been checked
    /// since.
    pub(super) changed: Vec<Place>,
}

#[derive(Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    source: Vec<Matcher>,
    target: Vec<Matcher>,
    equal: Vec<String>,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Roles {
    source: Vec<Place>,
    pub(super) target: Vec<Place>,
    /// The incident is silenced and not acknowledged.
    silenced: bool,
}

impl Inhibition {
    pub(super) fn new(config: &ResponderConfig) -> Self {
        let built_in = built_in().filter(|rule| !config.inhibit_off.contains(&rule.name));
        let rules = built_in.chain(config.inhibit_rules.iter().cloned());
        // The alerter refuses a configuration whose matchers do not parse; a rule that slipped
        // through suppresses nothing.
        Self { rules: rules.filter_map(|rule| Rule::new(&rule).ok()).collect(), ..Self::default() }
    }

    /// Updates the roles of an incident. One with several kinds is a source if any kind is, and a
    /// target only if all kinds are. Each kind counts with its own severity: a ticket that is part
    /// of a page explains what a ticket does.
    pub(super) fn note(&mut self, id: &str, i: &Incident) {
        let mut kinds: BTreeMap<Kind, Severity> = BTreeMap::new();
        for ((_, kind), severity) in &i.raised {
            let worst = kinds.entry(*kind).or_insert(*severity);
            *worst = (*worst).max(*severity);
        }
        kinds.insert(i.record.kind, i.record.severity);
        let labels = &i.record.labels;
        let about: Vec<Labels> =
            kinds.into_iter().map(|(kind, as_bad)| as_of(labels, kind, as_bad)).collect();
        let mut roles = Roles { silenced: i.is_silenced_and_unanswered(), ..Roles::default() };
        for (n, rule) in self.rules.iter().enumerate() {
            let source = about.iter().any(|labels| all_hold(&rule.source, labels));
            let target = about.iter().all(|labels| all_hold(&rule.target, labels));
            if !source && !target {
                continue;
            }
            let values = rule.equal.iter().map(|name| labels.get(name).cloned());
            let Some(values) = values.collect::<Option<Vec<String>>>() else { continue };
            if source {
                roles.source.push((n, values.clone()));
            }
            if target {
                roles.target.push((n, values));
            }
        }
        if self.of.get(id).map_or(roles == Roles::default(), |had| *had == roles) {
            return;
        }
        let had = self.take(id);
        for place in &roles.source {
            self.sources.entry(place.clone()).or_default().insert(id.to_owned());
        }
        for place in &roles.target {
            self.targets.entry(place.clone()).or_default().insert(id.to_owned());
        }
        let (old, new) = (&had.source, &roles.source);
        let other = had.silenced != roles.silenced;
        let begun = new.iter().filter(|p| other || !old.contains(p));
        self.changed.extend(begun.chain(old.iter().filter(|p| !new.contains(p))).cloned());
        self.of.insert(id.to_owned(), roles);
    }

    pub(super) fn is_source(&self, place: &Place, id: &str) -> bool {
        self.sources.get(place).is_some_and(|ids| ids.contains(id))
    }

    pub(super) fn is_target(&self, place: &Place, id: &str) -> bool {
        self.targets.get(place).is_some_and(|ids| ids.contains(id))
    }

    /// Drops the changes of a restore: incidents are stored after their targets were checked.
    pub(super) fn restored(&mut self) {
        self.changed.clear();
    }

    /// Removes an incident, and returns the roles that it had.
    pub(super) fn take(&mut self, id: &str) -> Roles {
        let roles = self.of.remove(id).unwrap_or_default();
        for (index, places) in [(&mut self.sources, &roles.source), (&mut self.targets, &roles.target)] {
            for place in places {
                if let Some(ids) = index.get_mut(place) {
                    ids.remove(id);
                    if ids.is_empty() {
                        index.remove(place);
                    }
                }
            }
        }
        roles
    }
}

impl Rule {
    fn new(rule: &InhibitRule) -> Result<Self, String> {
        let parse = |texts: &[String]| texts.iter().map(|t| Matcher::parse(t)).collect::<Result<Vec<_>, _>>();
        let (source, target) = (parse(&rule.source_matchers)?, parse(&rule.target_matchers)?);
        if source.is_empty() || target.is_empty() {
            return Err("no matchers".into());
        }
        let name = if rule.name.is_empty() { "a rule without a name".into() } else { rule.name.clone() };
        Ok(Self { name, source, target, equal: rule.equal.clone() })
    }
}

/// The rules that hold unless they are switched off.
pub fn built_in() -> impl Iterator<Item = InhibitRule> {
    let list = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect();
    BUILT_IN.iter().map(move |rule| InhibitRule {
        name: rule.name.to_owned(),
        source_matchers: list(rule.source),
        target_matchers: list(rule.target),
        equal: list(&[rule.equal]),
    })
}

/// The labels that an incident of only this kind would have.
fn as_of(labels: &Labels, kind: Kind, severity: Severity) -> Labels {
    let mut labels = labels.clone();
    labels.insert("severity".into(), severity.as_str().into());
    labels.insert("kind".into(), kind.as_str().into());
    labels.insert("cause".into(), kind.cause().as_str().into());
    labels
}
