//! Matchers that are not well formed, or that are and mean nothing: they compare with a value that no incident has.
//!
//! `severity="critical"` would match nothing and `severity!="critical"` everything, both silently, and a page would go
//! where nobody looks.

use stepwatch_engine::route::Matcher;
use stepwatch_engine::verdict::{Kind, Severity};

/// Every value of a label, for those that have a fixed set of them.
fn values(label: &str) -> Option<Vec<&'static str>> {
    let mut all: Vec<_> = match label {
        "severity" => [Severity::Page, Severity::Ticket, Severity::Info].map(Severity::as_str).into(),
        "kind" => Kind::ALL.iter().map(|kind| kind.as_str()).collect(),
        "cause" => Kind::ALL.iter().map(|kind| kind.cause().as_str()).collect(),
        _ => return None,
    };
    all.sort_unstable();
    all.dedup();
    Some(all)
}

/// Regular expressions may be ahead of the kinds there are; plain values may not.
pub(super) fn check(at: &str, matchers: &[String], errors: &mut Vec<String>) {
    for (i, text) in matchers.iter().enumerate() {
        if let Err(e) = Matcher::parse(text) {
            errors.push(format!("{at}[{i}]: {e}"));
            continue;
        }
        let Some((label, value)) = plain(text) else { continue };
        let Some(all) = values(label) else { continue };
        if !all.contains(&value) {
            errors.push(format!(
                "{at}[{i}]: matcher {}: no incident has the {label} {value:?}; those that exist: {}",
                format_args!("{text:?}"),
                all.join(", ")
            ));
        }
    }
}

/// Label and value of `label="value"` and `label!="value"`.
fn plain(text: &str) -> Option<(&str, &str)> {
    let (label, rest) = text.split_at(text.find(['=', '!'])?);
    let value = rest.strip_prefix("!=").or_else(|| rest.strip_prefix('=').filter(|v| !v.starts_with('~')))?;
    let value = value.trim();
    Some((label.trim(), value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str) -> Vec<String> {
        let mut errors = Vec::new();
        check("routes[0].match", &[text.to_owned()], &mut errors);
        errors
    }

    #[test]
    fn values_that_nothing_has_are_refused() {
        for text in ["severity=critical", "severity!=\"Page\"", "kind = \"hangs\"", "cause=\"speeed\""] {
            let found = mistakes(text);
            assert!(found.len() == 1 && found[0].contains("those that exist: "), "{text}: {found:?}");
        }
        assert!(mistakes("severity=critical")[0].ends_with("those that exist: info, page, ticket"));
    }

    #[test]
    fn others_pass() {
        for text in
            ["severity=\"page\"", "kind!=hang", "cause=numerics", "run=\"x\"", "kind=~\"gpu.*\"", "kind!~x"]
        {
            assert_eq!(mistakes(text), [""; 0], "{text}");
        }
    }
}
