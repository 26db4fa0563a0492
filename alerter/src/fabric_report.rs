//! Measurements of pairs of nodes, and what they say together: which rail, node, port or pair is
//! slow. Pure functions; the command reads the files.
//!
//! A measurement of one pair cannot say which of its ends is slow, nor whether the network between
//! them is. All pairs of many nodes can: the pairs of a slow node are slow with every partner, and
//! those of its partners only with it. So each candidate is judged by the median of its pairs, the
//! widest first, and what a wider one explains is not reported again.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The most measurements of one report.
pub(crate) const MAX_RECORDS: usize = 4_000_000;
/// The most rows of one kind in a report; all are counted.
const MAX_ROWS: usize = 50;
/// Pairs that were not measured are named if there are at most this many to go through.
const MAX_SEARCHED: usize = 1_000_000;
/// A port with fewer partners is not told apart from them.
const LEAST_PARTNERS: usize = 2;

/// With fewer nodes the median may be that of slow ones.
const LEAST_NODES: usize = 4;
/// This many times the tolerance below the best pair is far below it.
const FAR: f64 = 3.0;

/// Why the values say nothing without a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Doubt {
    FewNodes,
    /// Most pairs are far below the best one.
    MostBelowBest,
}

/// One line of a file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Record {
    #[serde(default)]
    pub(crate) test: String,
    pub(crate) a: String,
    pub(crate) b: String,
    #[serde(default)]
    pub(crate) rail: String,
    #[serde(default)]
    pub(crate) bytes_per_second: Option<f64>,
    #[serde(default)]
    pub(crate) error: Option<String>,
}

/// What is slow, and by how much.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Slow {
    /// Empty for a rail.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) nodes: Vec<String>,
    /// Empty for a node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) rail: String,
    /// The median of its pairs.
    pub(crate) bytes_per_second: f64,
    /// The value over what was expected.
    pub(crate) ratio: f64,
}

/// A pair that was tried in vain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Failed {
    pub(crate) a: String,
    pub(crate) b: String,
    pub(crate) rail: String,
    pub(crate) error: String,
}

/// The result of one kind of test. Lists are limited; the numbers are not.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct TestReport {
    pub(crate) test: String,
    pub(crate) nodes: usize,
    /// Nodes that should be there and of which there is no line.
    pub(crate) missing_nodes: usize,
    pub(crate) rails: usize,
    pub(crate) measured: usize,
    /// What a value is compared with; none if nothing was measured.
    pub(crate) expected_bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) doubt: Option<Doubt>,
    pub(crate) slow_rails: Vec<Slow>,
    pub(crate) slow_nodes: Vec<Slow>,
    pub(crate) slow_ports: Vec<Slow>,
    pub(crate) slow_pairs: Vec<Slow>,
    pub(crate) slow_pair_count: usize,
    /// Nodes most of whose pairs failed.
    pub(crate) failing_nodes: Vec<String>,
    pub(crate) failed: Vec<Failed>,
    pub(crate) failed_count: usize,
    /// Pairs that nobody tried, each with its rail.
    pub(crate) missing: Vec<(String, String, String)>,
    pub(crate) missing_count: usize,
}

/// A pair on a rail; the first node is the lesser.
type Key<'a> = (&'a str, &'a str, &'a str);

impl Record {
    /// Reads a line; `None` if it is no measurement.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(line).ok()?;
        let named = !record.a.is_empty() && !record.b.is_empty() && record.a != record.b;
        let told = record.rate().is_some() || record.error.is_some();
        (named && told).then_some(record)
    }

    fn rate(&self) -> Option<f64> {
        let failed = self.error.as_ref().is_some_and(|error| !error.is_empty());
        self.bytes_per_second.filter(|rate| rate.is_finite() && *rate > 0.0 && !failed)
    }

    fn key(&self) -> Key<'_> {
        let (a, b) = (self.a.as_str(), self.b.as_str());
        (a.min(b), a.max(b), self.rail.as_str())
    }
}

impl TestReport {
    pub(crate) fn is_slow(&self) -> bool {
        let all = [&self.slow_rails, &self.slow_nodes, &self.slow_ports, &self.slow_pairs];
        all.iter().any(|slow| !slow.is_empty())
    }

    /// Whether each pair was measured and is as fast as the others; with `partial`, pairs may be
    /// missing, but no node that should be there.
    pub(crate) fn is_proven(&self, partial: bool) -> bool {
        let complete = partial || self.missing_count == 0;
        let compared = self.measured > 0 && self.doubt.is_none() && self.missing_nodes == 0;
        compared && !self.is_slow() && self.failed_count == 0 && complete
    }
}

/// The reports of all kinds of tests. `reference` is what a pair should reach, in bytes a second;
/// by default it is the median of all pairs.
pub(crate) fn reports(records: &[Record], tolerance: f64, reference: Option<f64>) -> Vec<TestReport> {
    let mut by_test: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        by_test.entry(&record.test).or_default().push(record);
    }
    by_test.into_iter().map(|(test, records)| report(test, &records, tolerance, reference)).collect()
}

fn report(test: &str, records: &[&Record], tolerance: f64, reference: Option<f64>) -> TestReport {
    let mut values: BTreeMap<Key<'_>, Vec<f64>> = BTreeMap::new();
    let mut errors: BTreeMap<Key<'_>, &str> = BTreeMap::new();
    let (mut nodes, mut rails) = (BTreeSet::new(), BTreeSet::new());
    for record in records {
        nodes.extend([record.a.as_str(), record.b.as_str()]);
        rails.insert(record.rail.as_str());
        match record.rate() {
            Some(rate) => values.entry(record.key()).or_default().push(rate),
            None => {
                errors.insert(record.key(), record.error.as_deref().unwrap_or_default());
            }
        }
    }
    // One that was measured at last counts as measured, with the median of its values.
    let rates: BTreeMap<Key<'_>, f64> =
        values.into_iter().filter_map(|(key, values)| Some((key, median(values)?))).collect();
    errors.retain(|key, _| !rates.contains_key(key));
    let mut report = TestReport {
        test: test.to_owned(),
        nodes: nodes.len(),
        rails: rails.len(),
        measured: rates.len(),
        expected_bytes_per_second: reference.or_else(|| median(rates.values().copied().collect())),
        doubt: if reference.is_some() { None } else { doubt(nodes.len(), &rates, tolerance) },
        failed_count: errors.len(),
        failing_nodes: failing(&rates, &errors),
        ..TestReport::default()
    };
    let failed = |(key, error): (&Key<'_>, &&str)| Failed {
        a: key.0.to_owned(),
        b: key.1.to_owned(),
        rail: key.2.to_owned(),
        error: (*error).to_owned(),
    };
    report.failed = errors.iter().take(MAX_ROWS).map(failed).collect();
    let pairs = nodes.len() * nodes.len().saturating_sub(1) / 2 * rails.len();
    report.missing_count = pairs.saturating_sub(rates.len() + errors.len());
    if report.missing_count > 0 && pairs <= MAX_SEARCHED {
        let names: Vec<&str> = nodes.iter().copied().collect();
        let pairs =
            names.iter().enumerate().flat_map(|(i, a)| names.iter().skip(i + 1).map(move |b| (*a, *b)));
        let keys = pairs.flat_map(|(a, b)| rails.iter().map(move |rail| (a, b, *rail)));
        let named = keys.filter(|key| !rates.contains_key(key) && !errors.contains_key(key)).take(MAX_ROWS);
        report.missing = named.map(|(a, b, rail)| (a.to_owned(), b.to_owned(), rail.to_owned())).collect();
    }
    if let Some(expected) = report.expected_bytes_per_second {
        judge(&mut report, &rates, expected, 1.0 - tolerance);
    }
    report
}

/// Whether the median can stand for what a pair should reach.
fn doubt(nodes: usize, rates: &BTreeMap<Key<'_>, f64>, tolerance: f64) -> Option<Doubt> {
    if nodes < LEAST_NODES {
        return Some(Doubt::FewNodes);
    }
    let best = rates.values().copied().fold(0.0, f64::max);
    let far = rates.values().filter(|rate| **rate < best * (1.0 - FAR * tolerance)).count();
    (2 * far > rates.len()).then_some(Doubt::MostBelowBest)
}

/// Finds what is slow: rails, ports, nodes, and pairs that none of these explains. A value is slow
/// below `least` of what is expected.
fn judge(report: &mut TestReport, rates: &BTreeMap<Key<'_>, f64>, expected: f64, least: f64) {
    let mut of_rail: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for ((_, _, rail), rate) in rates {
        of_rail.entry(*rail).or_default().push(*rate);
    }
    // What a pair of the rail is measured against: one of a slow rail, against the others of it.
    let mut usual: BTreeMap<&str, f64> = BTreeMap::new();
    let several = of_rail.len() > 1;
    for (rail, values) in of_rail {
        let Some(rate) = median(values) else { continue };
        let slow = several && rate < expected * least;
        usual.insert(rail, if slow { rate } else { expected });
        if slow {
            report.slow_rails.push(slow_of(&[], rail, rate, rate / expected));
        }
    }
    let ratio = |key: &Key<'_>, rate: f64| rate / usual.get(key.2).copied().unwrap_or(expected);
    let mut of_port: BTreeMap<(&str, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for (key, rate) in rates {
        for node in [key.0, key.1] {
            of_port.entry((node, key.2)).or_default().push((ratio(key, *rate), *rate));
        }
    }
    let mut of_node: BTreeMap<&str, (usize, Vec<Slow>)> = BTreeMap::new();
    for ((node, rail), values) in of_port {
        let middle = median(values.iter().map(|(ratio, _)| *ratio).collect());
        let Some(middle) = middle.filter(|_| values.len() >= LEAST_PARTNERS) else { continue };
        let (ports, slow) = of_node.entry(node).or_default();
        *ports += 1;
        if middle < least {
            let rate = median(values.iter().map(|(_, rate)| *rate).collect()).unwrap_or(0.0);
            slow.push(slow_of(&[node], rail, rate, middle));
        }
    }
    let mut explained = BTreeSet::new();
    let mut whole = BTreeSet::new();
    for (node, (ports, slow)) in of_node {
        if 2 * slow.len() > ports {
            let rate = median(slow.iter().map(|port| port.bytes_per_second).collect()).unwrap_or(0.0);
            let middle = median(slow.iter().map(|port| port.ratio).collect()).unwrap_or(0.0);
            report.slow_nodes.push(slow_of(&[node], "", rate, middle));
            whole.insert(node);
        } else {
            explained.extend(slow.iter().map(|port| (node, port.rail.clone())));
            report.slow_ports.extend(slow);
        }
    }
    let is_explained =
        |node: &str, rail: &str| whole.contains(node) || explained.contains(&(node, rail.to_owned()));
    let slow = rates.iter().filter(|(key, rate)| ratio(key, **rate) < least);
    let left = slow.filter(|(key, _)| !is_explained(key.0, key.2) && !is_explained(key.1, key.2));
    let mut left: Vec<Slow> =
        left.map(|(key, rate)| slow_of(&[key.0, key.1], key.2, *rate, ratio(key, *rate))).collect();
    left.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    report.slow_pair_count = left.len();
    left.truncate(MAX_ROWS);
    report.slow_pairs = left;
}

fn slow_of(nodes: &[&str], rail: &str, bytes_per_second: f64, ratio: f64) -> Slow {
    let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
    Slow { nodes, rail: rail.to_owned(), bytes_per_second, ratio }
}

/// The nodes more than half of whose pairs failed.
fn failing(rates: &BTreeMap<Key<'_>, f64>, errors: &BTreeMap<Key<'_>, &str>) -> Vec<String> {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let all = rates.keys().map(|key| (key, false)).chain(errors.keys().map(|key| (key, true)));
    for (key, failed) in all {
        for node in [key.0, key.1] {
            let (tried, in_vain) = counts.entry(node).or_default();
            *tried += 1;
            *in_vain += usize::from(failed);
        }
    }
    let most = counts.into_iter().filter(|(_, (tried, in_vain))| 2 * in_vain > *tried);
    most.map(|(node, _)| node.to_owned()).collect()
}

/// The median; of an even number the upper one, so that a half that is slow is compared with the
/// one that is not.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The rounds of a tournament: in each, every node is in at most one pair, and over all of them
/// each pair occurs once.
pub(crate) fn rounds(nodes: &[String]) -> Vec<Vec<(&str, &str)>> {
    if nodes.len() < 2 {
        return Vec::new();
    }
    // Of an odd number one rests in each round.
    let mut circle: Vec<Option<&str>> = nodes.iter().map(|node| Some(node.as_str())).collect();
    if circle.len() % 2 == 1 {
        circle.push(None);
    }
    let mut rounds = Vec::new();
    for _ in 1..circle.len() {
        let half = circle.len() / 2;
        let (left, right) = circle.split_at(half);
        let pairs = left.iter().zip(right.iter().rev());
        rounds.push(pairs.filter_map(|(a, b)| Some(((*a)?, (*b)?))).collect());
        // The first stays, and the others move on by one place.
        if let Some((_, rest)) = circle.split_first_mut() {
            rest.rotate_right(1);
        }
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FAST: f64 = 48e9;

    fn names(count: usize) -> Vec<String> {
        (1..=count).map(|i| format!("n{i}")).collect()
    }

    /// All pairs on all rails, with the rate that `rate` gives them in GB/s; `None` was not tried.
    fn all(nodes: usize, rails: usize, rate: impl Fn(&str, &str, &str) -> Option<f64>) -> Vec<Record> {
        let (names, mut records) = (names(nodes), Vec::new());
        for round in rounds(&names) {
            for (a, b) in round {
                for rail in (0..rails).map(|rail| format!("mlx5_{rail}")) {
                    let Some(rate) = rate(a, b, &rail) else { continue };
                    records.push(Record {
                        test: "ib_write_bw".into(),
                        a: a.into(),
                        b: b.into(),
                        rail,
                        bytes_per_second: (rate > 0.0).then_some(rate * 1e9),
                        error: (rate == 0.0).then(|| "Couldn't connect".into()),
                    });
                }
            }
        }
        records
    }

    fn judged(records: &[Record]) -> TestReport {
        let mut reports = reports(records, 0.03, None);
        assert_eq!(reports.len(), 1);
        reports.remove(0)
    }

    /// What is slow, in words.
    fn says(report: &TestReport) -> Vec<String> {
        let groups = [
            ("rail", &report.slow_rails),
            ("node", &report.slow_nodes),
            ("port", &report.slow_ports),
            ("pair", &report.slow_pairs),
        ];
        let all = groups.iter().flat_map(|(what, slow)| slow.iter().map(move |slow| (what, slow)));
        all.map(|(what, slow)| {
            format!("{what} {} {} {:.0}", slow.nodes.join("-"), slow.rail, slow.bytes_per_second / 1e9)
        })
        .collect()
    }

    #[test]
    fn a_fabric_without_fault() {
        // Two percent of noise.
        let report = judged(&all(8, 2, |a, b, _| Some(48.0 - 0.96 * f64::from(a < b))));
        assert_eq!((report.nodes, report.rails, report.measured, report.missing_count), (8, 2, 56, 0));
        assert!(report.is_proven(false) && says(&report).is_empty(), "{report:?}");
    }

    #[test]
    fn one_slow_node_among_eight() {
        for rails in [1, 8] {
            let of = |a: &str, b: &str| a == "n3" || b == "n3";
            let report = judged(&all(8, rails, |a, b, _| Some(if of(a, b) { 30.0 } else { 48.0 })));
            assert_eq!(says(&report), ["node n3  30"]);
            assert_eq!(report.expected_bytes_per_second, Some(FAST));
            assert!((report.slow_nodes[0].ratio - 0.625).abs() < 1e-9 && !report.is_proven(true));
        }
    }

    #[test]
    fn one_slow_cable_is_a_port_and_one_slow_path_a_pair() {
        let cable = |a: &str, b: &str, rail: &str| rail == "mlx5_1" && (a == "n3" || b == "n3");
        let report = judged(&all(8, 4, |a, b, r| Some(if cable(a, b, r) { 24.0 } else { 48.0 })));
        assert_eq!(says(&report), ["port n3 mlx5_1 24"]);
        let path = |a: &str, b: &str, rail: &str| rail == "mlx5_1" && a.min(b) == "n2" && a.max(b) == "n5";
        let report = judged(&all(8, 4, |a, b, r| Some(if path(a, b, r) { 24.0 } else { 48.0 })));
        assert_eq!(says(&report), ["pair n2-n5 mlx5_1 24"]);
    }

    #[test]
    fn a_slow_rail_explains_its_pairs_and_not_the_slow_node_on_it() {
        let rate = |a: &str, b: &str, rail: &str| {
            let rail = if rail == "mlx5_3" { 0.5 } else { 1.0 };
            let node = if a == "n7" || b == "n7" { 0.9 } else { 1.0 };
            Some(48.0 * rail * node)
        };
        let report = judged(&all(8, 4, rate));
        assert_eq!(says(&report), ["rail  mlx5_3 24", "node n7  43"]);
        // Of two rails one.
        let report = judged(&all(8, 2, |_, _, rail| Some(if rail == "mlx5_0" { 24.0 } else { 48.0 })));
        assert_eq!(says(&report), ["rail  mlx5_0 24"]);
    }

    #[test]
    fn two_nodes_do_not_say_which_one_it_is() {
        let report = judged(&all(2, 8, |_, _, rail| Some(if rail == "mlx5_5" { 24.0 } else { 48.0 })));
        assert_eq!(says(&report), ["rail  mlx5_5 24"]);
        let report = judged(&all(3, 1, |a, b, _| Some(if a == "n1" || b == "n1" { 24.0 } else { 48.0 })));
        assert!(report.slow_nodes.is_empty(), "two of three pairs are slow, and so is the median");
        let with_reference = reports(
            &all(3, 1, |a, b, _| Some(if a == "n1" || b == "n1" { 24.0 } else { 48.0 })),
            0.03,
            Some(FAST),
        );
        assert_eq!(says(&with_reference[0]), ["node n1  24"]);
        let equal = all(3, 1, |_, _, _| Some(24.0));
        let report = judged(&equal);
        assert!(report.doubt == Some(Doubt::FewNodes) && !report.is_proven(true), "{report:?}");
        assert!(reports(&equal, 0.03, Some(24e9))[0].is_proven(false), "with a reference they are right");
    }

    #[test]
    fn where_most_are_slow_the_median_proves_nothing() {
        // Only the pair of n1 and n2 reaches what the fabric can do.
        let fast = |a: &str, b: &str| ["n1", "n2"].contains(&a) && ["n1", "n2"].contains(&b);
        let records = all(6, 1, |a, b, _| Some(if fast(a, b) { 48.0 } else { 24.0 }));
        let report = judged(&records);
        assert_eq!(report.doubt, Some(Doubt::MostBelowBest));
        assert!(!report.is_slow() && !report.is_proven(false), "{report:?}");
        let report = reports(&records, 0.03, Some(FAST)).remove(0);
        assert!(report.doubt.is_none() && report.is_slow(), "{report:?}");
    }

    #[test]
    fn pairs_that_are_missing_or_failed_are_never_proven() {
        let of = |a: &str, b: &str, x: &str, y: &str| a.min(b) == x && a.max(b) == y;
        let report = judged(&all(4, 1, |a, b, _| (!of(a, b, "n1", "n4")).then_some(48.0)));
        assert_eq!((report.measured, report.missing_count), (5, 1));
        assert_eq!(report.missing, [("n1".to_owned(), "n4".to_owned(), "mlx5_0".to_owned())]);
        assert!(!report.is_proven(false) && report.is_proven(true));
        let report = judged(&all(4, 1, |a, b, _| Some(if a == "n2" || b == "n2" { 0.0 } else { 48.0 })));
        assert_eq!((report.failed_count, report.failing_nodes.as_slice()), (3, &["n2".to_owned()][..]));
        assert_eq!(report.failed[0].error, "Couldn't connect");
        assert!(!report.is_proven(true));
        // A pair that was tried again.
        let mut records = all(4, 1, |a, b, _| Some(if of(a, b, "n1", "n2") { 0.0 } else { 48.0 }));
        records.extend(all(4, 1, |a, b, _| of(a, b, "n1", "n2").then_some(48.0)));
        assert!(judged(&records).is_proven(false));
        assert!(reports(&[], 0.03, None).is_empty());
    }

    #[test]
    fn lines_that_are_no_measurement() {
        let good = br#"{"a":"n1","b":"n2","rail":"mlx5_0","bytes_per_second":4.8e10,"more":1}"#;
        assert_eq!(Record::parse(good).unwrap().key(), ("n1", "n2", "mlx5_0"));
        let of = |error: &str| {
            let line = format!(r#"{{"a":"n1","b":"n2","bytes_per_second":4.8e10,"error":{error}}}"#);
            Record::parse(line.as_bytes()).unwrap().rate()
        };
        assert_eq!((of("null"), of(r#""""#)), (Some(4.8e10), Some(4.8e10)));
        assert_eq!(of(r#""it ended early""#), None, "what failed was not measured");
        for bad in [
            &b""[..],
            b"{",
            b"[]",
            br#"{"a":"n1","b":"n1","bytes_per_second":1}"#,
            br#"{"a":"","b":"n1","bytes_per_second":1}"#,
            br#"{"a":"n1","b":"n2","bytes_per_second":NaN}"#,
            br#"{"a":"n1","b":"n2","bytes_per_second":-1}"#,
            br#"{"a":"n1","b":"n2","bytes_per_second":"48"}"#,
            br#"{"a":"n1","b":"n2"}"#,
        ] {
            assert_eq!(Record::parse(bad), None, "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn rounds_of_four_and_three() {
        let four = names(4);
        assert_eq!(
            rounds(&four),
            [[("n1", "n4"), ("n2", "n3")], [("n1", "n3"), ("n4", "n2")], [("n1", "n2"), ("n3", "n4")]]
        );
        assert_eq!(rounds(&names(3)).iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
        assert!(rounds(&names(1)).is_empty() && rounds(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn each_pair_plays_once_and_no_node_twice_in_a_round(count in 0_usize..40) {
            let names = names(count);
            let rounds = rounds(&names);
            let mut seen = BTreeSet::new();
            for round in &rounds {
                let nodes: BTreeSet<&str> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                prop_assert_eq!(nodes.len(), 2 * round.len());
                for (a, b) in round {
                    prop_assert!(seen.insert((*a.min(b), *a.max(b))));
                }
            }
            prop_assert_eq!(seen.len(), count * count.saturating_sub(1) / 2);
        }

        #[test]
        fn any_lines_are_judged_without_a_panic(lines in proptest::collection::vec("[ -~]{0,60}", 0..20)) {
            let records: Vec<_> = lines.iter().filter_map(|line| Record::parse(line.as_bytes())).collect();
            let _ = reports(&records, 0.03, None);
        }
    }
}
