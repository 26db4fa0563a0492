//! Checks for matchers that are malformed, or that use a label or a value that no incident has.
//!
//! `sevrity="page"` and `severity="critical"` would match nothing and `severity!="critical"`
//! everything, without an error, and a page would go to the wrong receiver. Runs may declare labels
//! of any name, and alerts may have any: the file lists them (`labels`).

use stepwatch_model::{Kind, Severity};
use stepwatch_respond::external::group::{JOB_LABELS, NODE_LABELS, RUN_LABELS};
use stepwatch_respond::incident::labels::ALERTNAME;
use stepwatch_respond::matcher::{Matcher, Op};

use super::file::File;
use crate::label_names::{NO_SLIPS, OF_ALERTS, OF_INCIDENTS, nearest};

/// All values of a label with a fixed set of values; `None` for other labels.
pub(super) fn values_of(label: &str) -> Option<Vec<&'static str>> {
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

/// The labels that matchers may use.
#[derive(Debug)]
pub(super) struct Names<'a> {
    known: Vec<&'a str>,
    teams: Vec<&'a str>,
}

impl<'a> Names<'a> {
    pub(super) fn from_file(file: &'a File) -> Self {
        let declared = file.labels.iter().chain(&file.alerts.group_by).map(String::as_str);
        let ours = [OF_INCIDENTS, &[RUN_LABELS, NODE_LABELS, JOB_LABELS, OF_ALERTS]].concat().concat();
        let teams = file.teams.iter().map(|team| team.name.as_str()).collect();
        Self { known: ours.into_iter().chain(declared).collect(), teams }
    }

    pub(super) fn has(&self, label: &str) -> bool {
        self.known.contains(&label)
    }

    /// The nearest known name, in words that begin with `and`; empty if there is none.
    pub(super) fn nearest(&self, label: &str, and: &str) -> String {
        let nearest = nearest(label, self.known.iter().copied());
        nearest.map_or(String::new(), |name| format!("{and} the nearest that one may have is {name:?}"))
    }

    /// The error about a label that no incident has.
    fn unknown(&self, label: &str) -> String {
        format!(
            "no incident has the label {label:?}{}; if runs declare it or alerts bring it, name it in `labels`",
            self.nearest(label, ",")
        )
    }
}

/// Checks a list of matchers, all of which must hold. An alternative of a regular expression may
/// name a future kind; a plain value, and the expression as a whole, may not. If the list or a
/// route above it (`of_alerts`) is limited to external alerts, labels may have any name.
pub(super) fn check(
    at: &str,
    matchers: &[String],
    names: &Names<'_>,
    of_alerts: bool,
    errors: &mut Vec<String>,
) {
    let any_label = of_alerts || are_of_alerts(matchers);
    for (i, text) in matchers.iter().enumerate() {
        let matcher = match Matcher::parse(text) {
            Ok(matcher) => matcher,
            Err(e) => {
                errors.push(format!("{at}[{i}]: {e}"));
                continue;
            }
        };
        let (label, value) = (matcher.label(), matcher.value());
        if !any_label && !names.has(label) {
            errors.push(format!("{at}[{i}]: matcher {text:?}: {}", names.unknown(label)));
        }
        let Some(all) = values_of(label) else { continue };
        if !names_any(&matcher, &all) {
            let what = if matcher.op().is_regex() {
                format!("a {label} that matches")
            } else {
                format!("the {label}")
            };
            errors.push(format!(
                "{at}[{i}]: matcher {text:?}: no incident has {what} {value:?}; those that exist: {}",
                all.join(", ")
            ));
        }
    }
}

/// Whether the matcher selects, or if it is negative excludes, any of the values.
fn names_any(matcher: &Matcher, values: &[&str]) -> bool {
    values.iter().any(|value| matcher.holds_of(value) == matcher.op().is_positive())
}

/// Warns about alternatives of a regular expression that match no value of a label with a fixed set
/// of values, while other alternatives do.
pub(super) fn dead_alternatives(at: &str, matchers: &[String], warnings: &mut Vec<String>) {
    let parsed = matchers.iter().enumerate().filter_map(|(i, t)| Some((i, Matcher::parse(t).ok()?)));
    for (i, matcher) in parsed.filter(|(_, m)| m.op().is_regex()) {
        let (label, parts) = (matcher.label(), alternatives(matcher.value()));
        let Some(all) = values_of(label).filter(|all| parts.len() > 1 && names_any(&matcher, all)) else {
            continue;
        };
        for part in parts {
            if Matcher::new(label, Op::Regex, part).is_ok_and(|m| !names_any(&m, &all)) {
                warnings.push(format!(
                    "{at}[{i}]: no incident has a {label} that matches the alternative {part:?}; those that exist: {}",
                    all.join(", ")
                ));
            }
        }
    }
}

/// The alternatives at the top level of a regular expression; empty if flags (`(?i)`) or nested
/// brackets make them unclear.
fn alternatives(regex: &str) -> Vec<&str> {
    if regex.contains("(?") || regex.contains("[[") {
        return Vec::new();
    }
    let (mut parts, mut from, mut depth, mut class) = (Vec::new(), 0, 0, None);
    let mut chars = regex.char_indices();
    while let Some((at, c)) = chars.next() {
        match (c, class) {
            ('\\', _) => drop(chars.next()),
            // A `]` at the beginning of a class is literal.
            (']', Some(first)) if at > first => class = None,
            (_, Some(_)) => {}
            ('[', None) => class = Some(at + if regex[at..].starts_with("[^") { 2 } else { 1 }),
            ('(', None) => depth += 1,
            (')', None) => depth -= 1,
            ('|', None) if depth == 0 => {
                parts.push(&regex[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&regex[from..]);
    parts
}

/// The values of a regular expression that is only a list of values.
pub(super) fn plain_values(matcher: &Matcher) -> Option<Vec<&str>> {
    let parts = alternatives(matcher.value());
    let plain = |part: &&str| part.chars().all(|c| c.is_alphanumeric() || "_-/:, ".contains(c));
    (matcher.op() == Op::Regex && !parts.is_empty() && parts.iter().all(plain)).then_some(parts)
}

/// Whether the matchers match only external alerts, which may have any label.
pub(super) fn are_of_alerts(matchers: &[String]) -> bool {
    let alerts = Kind::PrometheusAlert;
    let is_of_alerts = |matcher: Matcher| {
        let kind = ["kind", "cause"].contains(&matcher.label());
        let named = matcher.label() == ALERTNAME
            || (kind && [alerts.as_str(), alerts.cause().as_str()].contains(&matcher.value()));
        named && matcher.op().is_positive()
    };
    matchers.iter().filter_map(|text| Matcher::parse(text).ok()).any(is_of_alerts)
}

/// Warns about labels of external alerts that are similar to ours, because ours were probably
/// intended.
pub(super) fn nearly_ours(
    at: &str,
    matchers: &[String],
    names: &Names<'_>,
    of_alerts: bool,
    warnings: &mut Vec<String>,
) {
    if !of_alerts && !are_of_alerts(matchers) {
        return;
    }
    let parsed = matchers.iter().enumerate().filter_map(|(i, t)| Some((i, Matcher::parse(t).ok()?)));
    for (i, matcher) in parsed {
        let label = matcher.label();
        if names.has(label) || NO_SLIPS.contains(&label) {
            continue;
        }
        let Some(ours) = nearest(label, OF_INCIDENTS.iter().copied().flatten().copied()) else { continue };
        warnings.push(format!(
            "{at}[{i}]: no incident has the label {label:?} unless an alert brings it; the nearest of our own is {ours:?}"
        ));
    }
}

/// Warns about unknown teams: a run may declare one, or the name is misspelt.
pub(super) fn unknown_teams(at: &str, matchers: &[String], names: &Names<'_>, warnings: &mut Vec<String>) {
    let parsed = matchers.iter().enumerate().filter_map(|(i, t)| Some((i, Matcher::parse(t).ok()?)));
    for (i, matcher) in parsed.filter(|(_, m)| m.label() == "team" && m.op() == Op::Equal) {
        let team = matcher.value();
        if team.is_empty() || names.teams.is_empty() || names.teams.contains(&team) {
            continue;
        }
        let nearest = nearest(team, names.teams.iter().copied());
        let nearest = nearest.map_or(String::new(), |name| format!(", the nearest is {name:?}"));
        warnings.push(format!(
            "{at}[{i}]: `teams` has no {team:?}{nearest}; only what declares that team of itself has it"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(texts: &[&str], yaml: &str) -> Vec<String> {
        let file: File = stepwatch_kit::config::parse("alerter.yml", yaml).unwrap();
        let texts: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
        let mut errors = Vec::new();
        check("routes[0].match", &texts, &Names::from_file(&file), false, &mut errors);
        errors
    }

    fn mistakes(text: &str) -> Vec<String> {
        found(&[text], "")
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
    fn expressions_that_match_no_value_are_refused() {
        for text in ["severity=~\"critical|emergency\"", "severity=~pag", "kind!~x", "cause=~\"hardwar\""] {
            let found = mistakes(text);
            assert!(found.len() == 1 && found[0].contains("that matches"), "{text}: {found:?}");
        }
        assert!(mistakes("severity=~pag")[0].ends_with("those that exist: info, page, ticket"));
    }

    #[test]
    fn alternatives_that_match_no_value_are_told() {
        let told = |text: &str| {
            let mut warnings = Vec::new();
            dead_alternatives("routes[0].match", &[text.to_owned()], &mut warnings);
            warnings
        };
        for (text, part) in [
            ("severity=~\"page|tickets\"", "tickets"),
            ("severity!~\"page|tickets\"", "tickets"),
            ("severity=~\"(page|ticket)|inf[|o]x\"", "inf[|o]x"),
            ("cause=~\"hardware|node|\"", ""),
        ] {
            let [warning] = &told(text)[..] else { panic!("{text}: {:?}", told(text)) };
            assert!(warning.contains(&format!("the alternative {part:?}")), "{text}: {warning}");
        }
        for text in [
            "severity=~\"page|ticket\"",
            "severity=~\"(page|tickets)\"",
            "severity=~\"(?i)PAGE|TICKET\"",
            "severity=~\"pag[e|]|i[^]]fo\"",
            "severity=~\"critical|emergency\"",
            "severity=\"page|ticket\"",
            "run=~\"a|b\"",
        ] {
            assert_eq!(told(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_label_that_no_incident_has_is_refused_with_the_nearest_name() {
        for (text, nearest) in [
            ("sevrity=\"page\"", "severity"),
            ("Severity=\"page\"", "severity"),
            ("serverity!=\"page\"", "severity"),
            ("nod=~\"gpu.*\"", "node"),
            ("tema=\"\"", "team"),
            ("clustre=\"a\"", "cluster"),
            ("alert_name!=\"a\"", "alertname"),
        ] {
            let errors = mistakes(text);
            assert!(
                errors.len() == 1 && errors[0].contains("matcher ") && errors[0].contains("no incident has"),
                "{errors:?}"
            );
            assert!(
                errors[0].contains(&format!("the nearest that one may have is {nearest:?}")),
                "{text}: {errors:?}"
            );
        }
    }

    #[test]
    fn labels_of_alerts_and_declared_ones_are_known() {
        for texts in [
            &["alertname=\"A1\""][..],
            &["alertname=~\"Node.*\"", "datacentre=\"b\""],
            &["kind=\"prometheus_alert\"", "whatever=\"x\""],
            &["instance=\"n1:9100\"", "job=\"node\"", "namespace=\"ml\"", "severity=\"page\""],
        ] {
            assert_eq!(found(texts, ""), [""; 0], "{texts:?}");
        }
        for texts in
            [&["kind!=\"prometheus_alert\"", "whatever=\"x\""][..], &["alertname!=\"A\"", "datacentre=\"b\""]]
        {
            assert_eq!(found(texts, "").len(), 1, "{texts:?}");
        }
        assert_eq!(
            found(&["owner=\"x\"", "rack=\"r1\""], "labels: [owner]\nalerts: {group_by: [rack]}").len(),
            0
        );
    }

    #[test]
    fn others_pass() {
        for text in [
            "severity=\"page\"",
            "kind!=hang",
            "cause=numerics",
            "run=\"x\"",
            "kind=~\"gpu.*\"",
            "kind!~hang",
        ] {
            assert_eq!(mistakes(text), [""; 0], "{text}");
        }
    }
}
