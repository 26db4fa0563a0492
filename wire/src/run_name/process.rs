//! The data of a process that the rule uses, and access to its environment.

use std::collections::BTreeMap;

/// The most characters of a variable's value; a longer value is ignored.
const MAX_VALUE: usize = 1024;

/// The variable with a user's name for the run.
pub(super) const NAME: &str = "STEPWATCH_RUN";
/// The variable in which our launcher passes the origin of [`NAME`]; absent if a person set the
/// name.
pub(super) const NAMED_BY: &str = "STEPWATCH_RUN_BY";

/// The data of a process that the rule uses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Process {
    /// At least the variables for which [`super::is_asked`] is true; empty if it is not readable.
    pub env: BTreeMap<String, String>,
    pub argv: Vec<String>,
    /// The Unix time in seconds at which the process started.
    pub started: f64,
    /// A text that is unique among all processes of all nodes: boot id, namespace, pid, start.
    pub mark: String,
}

/// Access to variables with a value. `none` counts as unset: torchrun uses it for a missing id.
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
