//! The type of a check: one file, and one line in the list of checks.

use super::node::Node;
use super::report::Findings;

/// One check.
pub(super) struct Check {
    pub(super) name: &'static str,
    /// What is as it should be when it finds nothing.
    pub(super) about: &'static str,
    /// Collectors whose values it reads; if none of them reads, the check reports nothing.
    pub(super) needs: &'static [&'static str],
    pub(super) run: fn(&Node<'_>) -> Findings,
}

/// `a, b and c`.
pub(super) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.split_last() {
        None => "anything".into(),
        Some((only, [])) => (*only).to_owned(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}
