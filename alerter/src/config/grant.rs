//! Checks of rights: the scopes of a token or a role, and the runs and teams that limit it.

use std::collections::BTreeSet;

use crate::access::{Glob, Scope};

/// The most runs or teams of one token or role.
const MAX_NAMES: usize = 64;

/// `what` is the owner of the rights, such as `a token`.
pub(super) fn check(
    at: &str,
    what: &str,
    scopes: &[Scope],
    limits: [&Vec<Glob>; 2],
    errors: &mut Vec<String>,
) {
    if scopes.is_empty() {
        let all = Scope::ALL.map(Scope::as_str).join(", ");
        errors.push(format!("{at}.scopes: is empty, expected at least one of {all}"));
    }
    let twice = scopes.iter().collect::<BTreeSet<_>>().len() < scopes.len();
    if twice {
        errors.push(format!("{at}.scopes: names one twice"));
    }
    for (key, names) in ["runs", "teams"].into_iter().zip(limits) {
        if names.len() > MAX_NAMES {
            errors.push(format!("{at}.{key}: {} names, at most {MAX_NAMES}", names.len()));
        }
        if scopes.contains(&Scope::Admin) && !names.is_empty() {
            errors.push(format!(
                "{at}.{key}: {what} with the scope admin is about everything; give it other scopes, or no {key}"
            ));
        }
    }
}
