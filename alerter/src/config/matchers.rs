//! Matchers that are not well formed, or that are and mean nothing: they compare with a value that no incident has.
//!
//! `severity="critical"` would match nothing and `severity!="critical"` everything, both silently, and a page would go
//! where nobody looks.

use stepwatch_engine::external::group::{JOB_LABELS, NODE_LABELS, RUN_LABELS};
use stepwatch_engine::incident::labels::{ALERTNAME, OURS};
use stepwatch_engine::matcher::{Matcher, Op};
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
        let matcher = match Matcher::parse(text) {
            Ok(matcher) => matcher,
            Err(e) => {
                errors.push(format!("{at}[{i}]: {e}"));
                continue;
            }
        };
        let (label, value) = (matcher.label(), matcher.value());
        let plain = matches!(matcher.op(), Op::Equal | Op::NotEqual);
        let Some(all) = values(label).filter(|_| plain) else { continue };
        if !all.contains(&value) {
            errors.push(format!(
                "{at}[{i}]: matcher {text:?}: no incident has the {label} {value:?}; those that exist: {}",
                all.join(", ")
            ));
        }
    }
}

/// Labels that alerts of Prometheus commonly have, beside those by which we find their run and node.
const OF_ALERTS: &[&str] = &[
    "cluster",
    "container",
    "cpu",
    "device",
    "fstype",
    "gpu",
    "kubernetes_namespace",
    "mountpoint",
    "namespace",
    "pod",
    "prometheus",
    "rank",
    "service",
    "UUID",
];

/// Whether it speaks of alerts from outside, which may have any label.
fn is_of_alerts(matcher: &Matcher) -> bool {
    let alerts = Kind::PrometheusAlert;
    let kind = ["kind", "cause"].contains(&matcher.label());
    matcher.label() == ALERTNAME
        || (kind && [alerts.as_str(), alerts.cause().as_str()].contains(&matcher.value()))
}

/// Labels that are not ours: a run may declare them, an alert may bring them, or somebody has misspelt one.
pub(super) fn unknown(at: &str, matchers: &[String], warnings: &mut Vec<String>) {
    let parsed = || matchers.iter().enumerate().filter_map(|(i, t)| Some((i, Matcher::parse(t).ok()?)));
    if parsed().any(|(_, matcher)| is_of_alerts(&matcher)) {
        return;
    }
    let known = [OURS, RUN_LABELS, NODE_LABELS, JOB_LABELS, OF_ALERTS];
    for (i, matcher) in parsed() {
        let label = matcher.label();
        if !known.iter().any(|labels| labels.contains(&label)) {
            warnings.push(format!(
                "{at}[{i}]: no incident has the label {label:?} unless its run or an alert brings it; those that are ours: {}",
                OURS.join(", ")
            ));
        }
    }
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
    fn labels_of_alerts_are_known() {
        let warned = |texts: &[&str]| {
            let mut warnings = Vec::new();
            let texts: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
            unknown("routes[0].match", &texts, &mut warnings);
            warnings
        };
        for texts in [
            &["alertname=\"A1\""][..],
            &["alertname=~\"Node.*\"", "datacentre=\"b\""],
            &["kind=\"prometheus_alert\"", "whatever=\"x\""],
            &["instance=\"n1:9100\"", "job=\"node\"", "namespace=\"ml\"", "severity=\"page\""],
        ] {
            assert_eq!(warned(texts), [""; 0], "{texts:?}");
        }
        let got = warned(&["sevrity=\"page\"", "run=\"a\""]);
        assert!(
            got.len() == 1 && got[0].contains("\"sevrity\" unless its run or an alert brings it"),
            "{got:?}"
        );
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
