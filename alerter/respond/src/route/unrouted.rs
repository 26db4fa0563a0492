//! The remaining receivers: they are notified of an incident that no route matches and no team
//! takes, and when all others cannot be notified.
//!
//! If teams have receivers of their own, an incident of one team never notifies another team, which
//! has no business with its faults and data. Only the receivers under `fallback` are notified for
//! every team. An incident of no team goes to receivers of no team, or to everybody. If no team has
//! receivers, all receivers are one team's. A receiver that wakes gets only pages: anything else
//! waits in the list of incidents if no other receiver remains.

use std::collections::BTreeSet;

use super::{Node, Router, Way, WayName, at_once};
use crate::config::{Condition, Level, ResponderConfig, Team};
use crate::matcher::{Labels, Matcher};
use stepwatch_model::{Kind, Severity};

/// The self-check of the store, and the signal of its incident. Its fault notifies every receiver
/// that wakes, because a restart forgets what was sent while nothing could be stored.
pub const STORE: &str = "store";

/// The remaining receivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rest<'a> {
    /// Receivers, `user:NAME` and `schedule:NAME`.
    pub names: Vec<&'a str>,
    pub name: WayName,
    /// The configuration does not assign receivers to teams, so that all of them are one team's.
    pub everybody: bool,
}

impl<'a> Rest<'a> {
    pub(crate) fn new(names: impl IntoIterator<Item = &'a String>, name: WayName) -> Self {
        let names = names.into_iter().map(String::as_str).collect();
        Self { names, name, everybody: false }
    }

    /// The `fallback` of a team, if it has one.
    pub(crate) fn of_team(team: &'a Team) -> Option<Self> {
        let name = || WayName::FallbackOfTeam(team.name.clone());
        (!team.fallback.is_empty()).then(|| Self::new(&team.fallback, name()))
    }

    /// Adds the remaining receivers that may be notified of this severity, each once.
    pub(super) fn along(
        self,
        config: &ResponderConfig,
        severity: Option<Severity>,
        reached: &mut Vec<&'a str>,
    ) {
        let wakes_none = severity.is_some_and(|s| s < Severity::Page);
        let (pagers, others): (Vec<&str>, Vec<&str>) =
            self.names.into_iter().partition(|name| config.wakes(name));
        let pagers = if wakes_none { Vec::new() } else { pagers };
        for name in others.into_iter().chain(pagers) {
            if !reached.contains(&name) {
                reached.push(name);
            }
        }
    }

    pub(super) fn way(self, config: &ResponderConfig) -> Way {
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
        let because = if config.routes.is_empty() { "no routes" } else { "no route matches" }.to_owned();
        let (pagers, others): (Vec<&str>, Vec<&str>) = self.names.iter().partition(|name| config.wakes(name));
        let condition = Condition { severity: Some(Severity::Page), ..Condition::default() };
        let pages = Level { condition, ..at_once(owned(pagers)) };
        let mut levels = vec![at_once(owned(others)), pages];
        levels.retain(|level| !level.notify.is_empty());
        Way { name: self.name, because, policy: None, levels }
    }
}

/// The receivers of a fault of the store: every receiver that wakes. `None` for any other incident,
/// or if no receiver wakes.
pub(super) fn of_the_store<'a>(config: &'a ResponderConfig, labels: &Labels) -> Option<Rest<'a>> {
    let is = |label: &str, value: &str| labels.get(label).is_some_and(|v| v == value);
    let waking: Vec<_> = config.receivers.iter().filter(|name| config.wakes(name)).collect();
    (is_ours(labels) && is("signal", STORE) && !waking.is_empty())
        .then(|| Rest::new(waking, WayName::EveryReceiverThatWakes))
}

fn is_ours(labels: &Labels) -> bool {
    labels.get("kind").is_some_and(|kind| kind == Kind::AlerterFault.as_str())
}

impl Router {
    /// The remaining receivers for these labels, when the team and its fallback cannot be notified.
    pub fn rest<'a>(&self, config: &'a ResponderConfig, labels: &Labels) -> Rest<'a> {
        if !config.fallback.is_empty() {
            return Rest::new(&config.fallback, WayName::Fallback);
        }
        let owned = self.owned(config);
        let everybody =
            Rest { everybody: owned.is_empty(), ..Rest::new(&config.receivers, WayName::EveryReceiver) };
        if owned.is_empty() {
            return everybody;
        }
        // A team that only routes name counts too.
        let named = labels.get("team").map(String::as_str).filter(|team| self.team_names().contains(team));
        if let Some(team) = self.team_of(labels).map(|team| team.name.as_str()).or(named) {
            return Rest::new([], WayName::NobodyOfTeam(team.to_owned()));
        }
        let shared: Vec<&String> =
            config.receivers.iter().filter(|name| !owned.contains(name.as_str())).collect();
        if shared.iter().any(|name| config.wakes(name)) {
            return Rest::new(shared, WayName::ReceiversOfNoTeam);
        }
        // A fault of the alerter belongs to no team in particular, so that one receiver is
        // notified.
        if is_ours(labels) {
            let one = config.receivers.iter().find(|name| config.wakes(name)).or(config.receivers.first());
            return Rest::new(one, WayName::OneReceiver);
        }
        everybody
    }

    /// The receivers that may replace others for these labels and levels, nearest first: the
    /// levels' own receivers, the `fallback` of the team, then the remaining ones.
    pub fn instead<'a>(
        &'a self,
        config: &'a ResponderConfig,
        labels: &Labels,
        levels: impl Iterator<Item = &'a Level>,
    ) -> Vec<Rest<'a>> {
        let rest = self.rest(config, labels);
        if rest.everybody {
            return vec![rest];
        }
        let team = self.team_of(labels);
        let policy =
            team.and_then(|team| config.policies.iter().find(|p| Some(&p.name) == team.policy.as_ref()));
        let levels = levels.chain(policy.into_iter().flat_map(|p| &p.levels));
        let own =
            levels.flat_map(|level| &level.notify).chain(team.into_iter().flat_map(|team| &team.notify));
        let own = Rest::new(own, WayName::OtherReceivers);
        // A fault of the alerter belongs to no team, so that all other receivers may be tried too,
        // one after another.
        let others = config.receivers.iter().filter(|name| is_ours(labels) && config.wakes(name));
        let others = others.map(|name| Rest::new([name], WayName::AnotherThatWakes));
        let stages = [Some(own), team.and_then(Rest::of_team), Some(rest)].into_iter().flatten();
        stages.chain(others).collect()
    }

    /// The receivers of teams: those that teams name, and those of routes that match a team.
    fn owned<'a>(&'a self, config: &'a ResponderConfig) -> BTreeSet<&'a str> {
        let mut items: BTreeSet<&str> = BTreeSet::new();
        let mut add = |notify: &'a [String], policy: Option<&str>| {
            let policy = config.policies.iter().find(|p| Some(p.name.as_str()) == policy);
            let levels = policy.into_iter().flat_map(|p| &p.levels).flat_map(|level| &level.notify);
            items.extend(notify.iter().chain(levels).map(String::as_str));
        };
        for (_, team) in &self.teams {
            add(&team.notify, team.policy.as_deref());
            add(&team.fallback, None);
        }
        for node in &self.routes {
            node.of_teams(false, &mut add);
        }
        items.into_iter().flat_map(|item| config.oncall.reachable(item)).collect()
    }
}

impl Node {
    /// Passes the receivers of a route and its children to `add`, if they match a team.
    fn of_teams<'a>(&'a self, within: bool, add: &mut impl FnMut(&'a [String], Option<&str>)) {
        let names_team = |m: &Matcher| m.label() == "team" && m.op().is_positive() && !m.value().is_empty();
        let within = within || self.matchers.iter().any(names_team);
        if within {
            add(&self.notify, self.policy.as_deref());
        }
        self.children.iter().for_each(|child| child.of_teams(within, add));
    }
}
