//! Names of labels of incidents and alerts, and the nearest name to a misspelt one.

use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::external::group::{JOB_LABELS, NODE_LABELS, RUN_LABELS};
use stepwatch_respond::incident::labels::{ALERTNAME, METRIC, ORIGIN, OURS, TENANT};

/// The most characters of a name in a comparison.
const MAX_LETTERS: usize = 64;
/// A name with more wrong letters than this fraction of its length, or than this number, is a
/// different name.
const LETTERS_A_SLIP: usize = 3;
const MAX_SLIPS: usize = 3;

/// The labels of our own incidents. Storms have `origin`, watched series `metric` and `tenant`.
pub(crate) const OF_INCIDENTS: &[&[&str]] = &[OURS, &[ALERTNAME, ORIGIN, METRIC, TENANT]];
/// Common alert labels that differ from `node` by a letter.
pub(crate) const NO_SLIPS: &[&str] = &["code", "mode"];

/// The check of a label in a requested silence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked<'a> {
    /// Incidents can have the label.
    Known,
    /// The label is similar to this one of ours.
    Slip(&'a str),
    /// A run may declare the label, or an alert may have it.
    Unknown,
}

/// Checks a label of a requested silence with the configuration alone.
pub(crate) fn asked<'a>(label: &str, config: &'a ResponderConfig) -> Asked<'a> {
    let declared = || config.labels.iter().chain(&config.alerts.group_by).map(String::as_str);
    let others = [RUN_LABELS, NODE_LABELS, JOB_LABELS, OF_ALERTS].concat();
    let ours = || OF_INCIDENTS.iter().copied().flatten().copied();
    if ours().chain(declared()).chain(others).any(|known| known == label) {
        return Asked::Known;
    }
    let slip = nearest(label, ours().chain(declared())).filter(|_| !NO_SLIPS.contains(&label));
    slip.map_or(Asked::Unknown, Asked::Slip)
}

/// Common labels of Prometheus alerts, in addition to those that name a run or a node.
pub(crate) const OF_ALERTS: &[&str] = &[
    "cluster",
    "container",
    "cpu",
    "device",
    "fstype",
    "gpu",
    "job",
    "kubernetes_namespace",
    "mountpoint",
    "namespace",
    "pod",
    "prometheus",
    "rank",
    "service",
    "UUID",
];

/// The name with the fewest letters to change, the first if there are several; `None` if all are
/// different names.
pub(crate) fn nearest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters = |text: &str| text.chars().count();
    let slips = |name: &str| (letters(wanted).max(letters(name)) / LETTERS_A_SLIP).min(MAX_SLIPS);
    let near = names.into_iter().map(|name| (distance(wanted, name), name));
    near.filter(|(far, name)| *far <= slips(name)).min_by_key(|(far, _)| *far).map(|(_, name)| name)
}

/// The edit distance: letters to insert, delete, replace or transpose, ignoring case.
fn distance(a: &str, b: &str) -> usize {
    let letters = |text: &str| text.to_lowercase().chars().take(MAX_LETTERS).collect::<Vec<_>>();
    let (a, b) = (letters(a), letters(b));
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            let mut least = (row[j - 1] + 1).min(rows[i - 1][j] + 1).min(rows[i - 1][j - 1] + same);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nothing_like_it_is_not_the_nearest() {
        let nearest = |wanted: &str| nearest(wanted, OURS.iter().copied());
        for (wanted, found) in [
            ("rnu", Some("run")),
            ("nod", Some("node")),
            ("SEVERITY", Some("severity")),
            ("sverty", Some("severity")),
            ("x", None),
            ("name", None),
            ("rule", None),
            ("datacentre", None),
            ("sixteen_letters_", None),
        ] {
            assert_eq!(nearest(wanted), found, "{wanted}");
        }
    }

    #[test]
    fn letters_are_counted() {
        for (a, b, letters) in [
            ("", "", 0),
            ("", "ab", 2),
            ("team", "tema", 1),
            ("node", "NODE", 0),
            ("kind", "kinds", 1),
            ("ab", "cd", 2),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (letters, letters), "{a} {b}");
        }
    }
}
