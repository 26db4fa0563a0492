//! A process, as far as the rule asks, and the variables of its environment.

use std::collections::BTreeMap;

/// Longest value of a variable that is accepted, in characters.
const MAX_VALUE: usize = 1024;

/// A name of the user's own.
pub(super) const NAME: &str = "STEPWATCH_RUN";
/// How a launcher of ours came by [`NAME`]; absent where a person gave it.
pub(super) const NAMED_BY: &str = "STEPWATCH_RUN_BY";

/// A process, as far as the rule asks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Process {
    /// At least the variables for which [`super::is_asked`] is true; empty where it may not be
    /// read.
    pub env: BTreeMap<String, String>,
    pub argv: Vec<String>,
    /// Unix seconds.
    pub started: f64,
    /// What no other process of any node has: boot id, namespace, pid, start.
    pub mark: String,
}

/// Variables that are set to something; `none` is what torchrun calls a launch without an id.
#[derive(Debug, Clone, Copy)]
pub(super) struct Env<'a>(pub(super) &'a BTreeMap<String, String>);

impl Env<'_> {
    pub(super) fn get(self, variable: &str) -> Option<String> {
        let value: String = self.0.get(variable)?.chars().filter(|c| !c.is_control()).collect();
        let value = value.trim();
        let set =
            !value.is_empty() && !value.eq_ignore_ascii_case("none") && value.chars().count() <= MAX_VALUE;
        set.then(|| value.to_owned())
    }

    pub(super) fn number(self, variables: &[&str]) -> Option<u32> {
        variables.iter().find_map(|variable| self.get(variable)?.parse().ok())
    }
}
