//! The attempts of a run: when each began and ended, why, and how its setup differs from the one
//! before.
//!
//! The setup of an attempt is recorded while it makes steps. When the next attempt is noticed, its
//! first events have already replaced the earlier setup.

mod declared;
mod ends;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;
use stepwatch_model::{LastGood, Target};
use stepwatch_wire::Event;
use stepwatch_wire::names::hello;

use super::failures::failures;
use super::startup::{StartUp, StartUsual};
use super::{Ended, RunState};
pub(super) use declared::take_labels;
pub use ends::{Ends, LastWords};

/// The most earlier attempts kept for a run: the latest.
const MAX_ATTEMPTS: usize = 16;
/// The event by which a run announces that it is about to be restarted on purpose.
pub(crate) const PLANNED_RESTART: &str = "maintenance";
/// The most differences kept of one attempt; further ones are counted.
const MAX_DIFFERENCES: usize = 24;
/// The most nodes that are compared by name; of a larger run only the number is.
const MAX_NODES: usize = 4096;
/// The most characters of a value, and the most values of one setting in which nodes differ.
const MAX_VALUE: usize = 120;
const MAX_VALUES: usize = 4;

/// An attempt that is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// The number of the attempt, from 0.
    pub number: u32,
    /// When its first step and its end arrived, by our clock.
    pub began: Ts,
    pub ended: Ts,
    pub first_step: Option<i64>,
    pub last_step: Option<i64>,
    pub end: AttemptEnd,
    pub changes: Differences,
    /// How it came to its first step, if its processes were seen to begin.
    pub start: Option<Box<StartUp>>,
}

/// Why an attempt ended, as far as that was reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptEnd {
    /// The rank that failed first, and how.
    Failed {
        place: Target,
        text: String,
    },
    Exited {
        code: i64,
        text: Option<String>,
    },
    /// Its log ended without a reason.
    Silent,
    /// The next one began, and nobody reported an end.
    Unreported,
}

/// The differences between the setup of an attempt and that of the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Differences {
    pub list: Vec<Difference>,
    /// Differences beyond the limit.
    pub more: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub of: Aspect,
    pub name: String,
    /// `None` if the setting did not exist.
    pub before: Option<String>,
    pub after: Option<String>,
}

/// What is different from the last good attempt, of this run or another one; what explains most
/// comes first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinceGood {
    pub good: LastGood,
    /// When the setup of that attempt was last seen to be good.
    pub at: Ts,
    pub list: Vec<Difference>,
    /// Differences beyond the limit.
    pub more: u32,
}

/// A part of the setup of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Aspect {
    /// Processes and nodes.
    Size,
    /// A node that runs it.
    Node,
    /// Labels that the trainer declared.
    Declared,
    /// Its environment, script and files.
    Run,
    /// Drivers, firmware and kernels of its nodes.
    Host,
}

/// The setup of an attempt, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptSetup {
    pub values: BTreeMap<(Aspect, String), String>,
    /// Its nodes, once all ranks have followed, if they are not too many to be compared.
    nodes: Option<BTreeSet<String>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Attempts {
    /// Oldest first.
    pub past: VecDeque<Attempt>,
    /// The first step of the current attempt, and its setup.
    pub first_step: Option<i64>,
    pub setup: AttemptSetup,
    before: Option<AttemptSetup>,
    /// What the trainer declared beside its labels: numbers, and the parts of its model and
    /// configuration.
    pub(super) declared: BTreeMap<String, String>,
    /// The attempt was compared with the last good one.
    pub(crate) compared: bool,
    /// What is different from the last good attempt.
    pub since_good: Option<Box<SinceGood>>,
    /// An end after which a process has greeted: it counts if the next step is of a new attempt.
    pub(super) left: Option<Ended>,
    /// The processes that ended since the last step.
    pub ends: Ends,
    /// When a process of the run greeted last, and when the run announced last that it is about to
    /// be restarted on purpose.
    pub greeted_at: Option<Ts>,
    pub planned_at: Option<Ts>,
    /// How the current attempt came to its first step.
    pub start: Option<Box<StartUp>>,
    /// How earlier runs of the same configuration and size began; of the run's own first start only
    /// these say what is usual.
    pub(crate) starts_before: Vec<StartUp>,
}

impl Attempts {
    /// A process of a rank says hello that has not described itself before.
    pub(crate) fn greeted(&mut self, now: Ts, rank: u32) {
        self.greeted_at = Some(now);
        self.ends.greeted(rank);
    }

    /// The usual start before the attempt of this number: of the run's own earlier attempts or, if
    /// none is known, of earlier runs like it.
    pub fn usual_start(&self, number: u32) -> Option<StartUsual> {
        let past = self.past.iter().filter(|a| a.number < number).filter_map(|a| a.start.as_deref());
        let own: Vec<&StartUp> = past.collect();
        let before = || StartUsual::of(&self.starts_before.iter().collect::<Vec<_>>());
        StartUsual::of(&own).or_else(before)
    }

    /// As [`Self::usual_start`], for an attempt that has not come to its first step.
    pub fn usual_next_start(&self) -> Option<StartUsual> {
        let past = self.past.iter().filter_map(|a| a.start.as_deref());
        let own: Vec<&StartUp> = past.chain(self.start.as_deref()).collect();
        let before = || StartUsual::of(&self.starts_before.iter().collect::<Vec<_>>());
        StartUsual::of(&own).or_else(before)
    }

    /// Records what the trainer declares. What another source says of it is added.
    pub(super) fn declare(&mut self, e: &Event) {
        if !e.extra.contains_key(hello::SOURCE) {
            self.declared.clear();
        }
        declared::add(&mut self.declared, e);
    }

    /// What the trainer declared beside its labels.
    pub(crate) fn declared(&self) -> impl Iterator<Item = (&String, &String)> {
        self.declared.iter()
    }

    /// Records that the run announces a restart, or takes that back by giving it no time.
    pub(crate) fn plan(&mut self, now: Ts, seconds: Option<f64>) {
        self.planned_at = seconds.is_none_or(|seconds| seconds > 0.0).then_some(now);
    }

    /// The differences between the current attempt and the one before.
    pub fn changes(&self) -> Differences {
        self.before.as_ref().map_or_else(Differences::default, |before| before.changes(&self.setup))
    }
}

impl AttemptSetup {
    pub(crate) fn from_run(f: &RunState) -> Self {
        let nodes = f.nodes.len();
        let mut values = BTreeMap::new();
        let mut put = |of, name: &str, value: &str| {
            values.insert((of, name.to_owned()), value.chars().take(MAX_VALUE).collect());
        };
        if let Some(world) = f.world {
            put(Aspect::Size, "processes", &world.to_string());
        }
        let missing = f.ranks.iter().any(|(n, r)| r.stale && f.world.is_none_or(|world| *n < world));
        let complete = nodes > 0 && !missing;
        if complete {
            put(Aspect::Size, "nodes", &nodes.to_string());
        }
        f.attempts.declared.iter().for_each(|(name, value)| put(Aspect::Declared, name, value));
        f.labels.iter().for_each(|(name, value)| put(Aspect::Declared, name, value));
        for (of, of_run) in [(Aspect::Run, true), (Aspect::Host, false)] {
            let variants = f.config_groups.variants(of_run);
            let names: BTreeSet<&String> = variants.iter().flat_map(|v| v.setup.keys.keys()).collect();
            for name in names {
                let mut found: Vec<&str> = Vec::new();
                for value in variants.iter().filter_map(|v| v.setup.keys.get(name)) {
                    if !found.contains(&value.as_str()) && found.len() < MAX_VALUES {
                        found.push(value);
                    }
                }
                // Which value most nodes have is no difference.
                found.sort_unstable();
                put(of, name, &found.join(" | "));
            }
        }
        let named = (complete && nodes <= MAX_NODES).then(|| f.nodes.keys().cloned().collect());
        Self { values, nodes: named }
    }

    /// The first differences in `after`.
    fn changes(&self, after: &Self) -> Differences {
        let mut all = self.differences(after);
        all.sort_by_key(|d| d.of);
        let more = all.len().saturating_sub(MAX_DIFFERENCES) as u32;
        all.truncate(MAX_DIFFERENCES);
        Differences { list: all, more }
    }

    /// All differences in `after`.
    pub(super) fn differences(&self, after: &Self) -> Vec<Difference> {
        let mut all = Vec::new();
        let names: BTreeSet<&(Aspect, String)> = self.values.keys().chain(after.values.keys()).collect();
        for key in names {
            let (had, has) = (self.values.get(key), after.values.get(key));
            // A setting that one of them has not reported, or not yet, is no difference.
            let told = match key.0 {
                Aspect::Size => had.is_some() && has.is_some(),
                Aspect::Declared => true,
                of => self.reports(of) && after.reports(of),
            };
            if told && had != has {
                let (before, after) = (had.cloned(), has.cloned());
                all.push(Difference { of: key.0, name: key.1.clone(), before, after });
            }
        }
        if let (Some(had), Some(has)) = (&self.nodes, &after.nodes) {
            let node = |before: Option<&String>, after: Option<&String>| Difference {
                of: Aspect::Node,
                name: "node".to_owned(),
                before: before.cloned(),
                after: after.cloned(),
            };
            all.extend(had.difference(has).map(|name| node(Some(name), None)));
            all.extend(has.difference(had).map(|name| node(None, Some(name))));
        }
        all
    }

    /// The names of its nodes, if they are known and not too many.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().flatten().map(String::as_str)
    }

    /// Leaves out the names of its nodes, because they are too many to be kept.
    pub(crate) fn forget_nodes(&mut self) {
        self.nodes = None;
    }

    /// A number that equal setups have in common.
    pub(crate) fn hash(&self) -> u64 {
        stepwatch_model::fingerprint(self.values.iter().map(|((_, name), value)| (&**name, &**value)))
    }

    /// Whether any setting of this aspect is known.
    pub(crate) fn reports(&self, of: Aspect) -> bool {
        self.values.keys().any(|(had, _)| *had == of)
    }
}

impl RunState {
    /// Records that the attempt made another step.
    pub(super) fn goes_on(&mut self, step: i64) {
        self.attempts.left = None;
        self.attempts.ends.clear();
        self.attempts.first_step.get_or_insert(step);
        // Often at first, while nodes and settings arrive, and then ever less often.
        if self.attempt_steps.is_power_of_two() {
            self.attempts.setup = AttemptSetup::from_run(self);
        }
    }

    /// Ends the attempt, because the first step of the next one arrived. Must be called before the
    /// state is reset.
    pub(super) fn end_attempt(&mut self) {
        let ended = self.ended.take().or_else(|| self.attempts.left.take());
        let failed = failures(self).into_iter().next();
        let died = self.deaths.values().map(|d| d.at).min();
        let at = died.or(ended.as_ref().map(|e| e.at)).unwrap_or(self.last_progress);
        let end = match (failed, ended) {
            (Some(first), _) => AttemptEnd::Failed { place: first.place, text: first.text },
            (None, Some(ended)) if ended.silent => AttemptEnd::Silent,
            (None, Some(ended)) => AttemptEnd::Exited { code: ended.code, text: ended.text },
            (None, None) => AttemptEnd::Unreported,
        };
        self.count_end(&end);
        let (changes, a) = (self.attempts.changes(), &mut self.attempts);
        a.ends.clear();
        if a.past.len() == MAX_ATTEMPTS {
            a.past.pop_front();
        }
        a.past.push_back(Attempt {
            number: self.attempt,
            began: self.attempt_at,
            ended: at,
            first_step: a.first_step.take(),
            last_step: self.last_step,
            end,
            changes,
            start: a.start.take(),
        });
        a.before = Some(core::mem::take(&mut a.setup));
        (a.compared, a.since_good) = (false, None);
    }
}

#[cfg(test)]
mod tests;
