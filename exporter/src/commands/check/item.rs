//! The type of a check: one file, and one line in the list of checks.

use super::node::Node;
use super::report::Findings;

/// One check.
pub(super) struct Check {
    pub(super) name: &'static str,
    /// The healthy state that it confirms.
    pub(super) about: &'static str,
    /// The collectors whose values it uses; if none of them can read, the check reports nothing.
    pub(super) needs: &'static [&'static str],
    pub(super) run: fn(&Node<'_>) -> Findings,
}

/// Joins names as `a, b and c`.
pub(super) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.split_last() {
        None => "anything".into(),
        Some((only, [])) => (*only).to_owned(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}
