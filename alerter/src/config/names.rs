//! Names of entries, and references to them.

use std::collections::BTreeSet;

/// The most characters of a receiver's or policy's name.
const MAX_NAME: usize = 64;

/// Collects the names, and reports each invalid or duplicate name once.
pub(super) fn unique<'a>(
    what: &str,
    names: impl Iterator<Item = &'a str>,
    errors: &mut Vec<String>,
) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (i, name) in names.enumerate() {
        let clean = name.chars().all(|c| !c.is_control() && !c.is_whitespace() && c != '/');
        if name.is_empty() || !clean || name.chars().count() > MAX_NAME {
            errors.push(format!(
                "{what}[{i}].name: {name:?} must be 1 to {MAX_NAME} characters without spaces and slashes"
            ));
        }
        if !seen.insert(name) {
            errors.push(format!("{what}[{i}].name: {name:?} is already taken"));
        }
    }
    seen
}

pub(super) fn known<'a>(
    at: &str,
    what: &str,
    used: impl IntoIterator<Item = &'a str>,
    exist: &BTreeSet<&str>,
    errors: &mut Vec<String>,
) {
    let mut seen = BTreeSet::new();
    for (i, name) in used.into_iter().enumerate() {
        let at = at.replace("[]", &format!("[{i}]"));
        if !exist.contains(name) {
            let all = exist.iter().copied().collect::<Vec<_>>().join(", ");
            let all = if all.is_empty() { "none".to_owned() } else { all };
            errors.push(format!("{at}: there is no {what} {name:?}; those that exist: {all}"));
        }
        if !seen.insert(name) {
            errors.push(format!("{at}: names {name:?} twice"));
        }
    }
}
