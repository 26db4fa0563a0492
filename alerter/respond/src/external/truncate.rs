//! Cuts alerts that are longer than the limits, instead of refusing them: a page must not be lost
//! because of a long description.
//!
//! Annotations are prose and may end early. Labels identify an alert, so what is cut off leaves a
//! hash: two alerts that differ only in the part that is cut stay two.

use super::label_names::{JOB_LABELS, NODE_LABELS, RUN_LABELS};
use super::label_set::{LabelSet, Limits, is_name};
use stepwatch_model::fingerprint;

/// Labels that decide what an alert is about, and annotations that people read: the last to be left
/// out.
const KEPT: &[&str] = &["alertname", "severity", "kind", "team", "job"];
const READ: &[&str] = &["summary", "description", "message", "runbook_url", "dashboard_url"];

/// The label that replaces labels beyond the limit, with their hash.
const LEFT_OUT: &str = "labels_left_out";

/// Cuts labels. Returns them, and how many texts were cut.
pub(super) fn labels(labels: LabelSet, limits: &Limits) -> (LabelSet, u64) {
    let long = |text: &str| is_longer(text, limits.text);
    if labels.len() <= limits.pairs && !labels.iter().any(|(name, value)| long(name) || long(value)) {
        return (labels, 0);
    }
    let decides =
        |name: &str| [KEPT, RUN_LABELS, NODE_LABELS, JOB_LABELS].iter().any(|names| names.contains(&name));
    // One place is reserved for the hash.
    let room = if labels.len() > limits.pairs { limits.pairs.saturating_sub(1) } else { limits.pairs };
    let (kept, left) = part(&labels, room, decides);
    let mut cut = left.len() as u64;
    let mut short = |text: Box<str>| {
        if !long(&text) {
            return text;
        }
        cut += 1;
        traced(&text, limits.text)
    };
    let mut kept: Vec<_> = kept.into_iter().map(|(name, value)| (short(name), short(value))).collect();
    if !left.is_empty() {
        let hash = fingerprint(left.iter().map(|(name, value)| (&**name, &**value)));
        kept.push((LEFT_OUT.into(), format!("{hash:016x}").into()));
    }
    (kept.into_iter().collect(), cut)
}

/// Cuts annotations. Returns them, and how many were cut or left out.
pub(super) fn annotations(annotations: LabelSet, limits: &Limits) -> (LabelSet, u64) {
    let good = |name: &str| is_name(name) && !is_longer(name, limits.text);
    let fits = |(name, value): (&str, &str)| good(name) && !is_longer(value, limits.annotation);
    if annotations.len() <= limits.pairs && annotations.iter().all(fits) {
        return (annotations, 0);
    }
    let named: LabelSet = pairs(&annotations).filter(|(name, _)| good(name)).collect();
    let nameless = annotations.len() - named.len();
    let (kept, left) = part(&named, limits.pairs, |name| READ.contains(&name));
    let mut cut = (left.len() + nameless) as u64;
    let mut short = |text: Box<str>| {
        if !is_longer(&text, limits.annotation) {
            return text;
        }
        cut += 1;
        ended(&text, limits.annotation, "…")
    };
    (kept.into_iter().map(|(name, value)| (name, short(value))).collect(), cut)
}

type Pairs = Vec<(Box<str>, Box<str>)>;

fn pairs(set: &LabelSet) -> impl Iterator<Item = (Box<str>, Box<str>)> {
    set.iter().map(|(name, value)| (name.into(), value.into()))
}

/// Splits the pairs into the first `room`, with those that `matter` first, and the rest.
fn part(set: &LabelSet, room: usize, matter: impl Fn(&str) -> bool) -> (Pairs, Pairs) {
    let mut all: Pairs = pairs(set).collect();
    all.sort_by_key(|(name, _)| !matter(name));
    let left = all.split_off(room.min(all.len()));
    (all, left)
}

fn is_longer(text: &str, max: usize) -> bool {
    // A text has at least as many bytes as characters.
    text.len() > max && text.chars().nth(max).is_some()
}

/// The text, cut and ended by a hash of the whole.
fn traced(text: &str, max: usize) -> Box<str> {
    let hash = fingerprint(core::iter::once(("", text)));
    ended(text, max, &format!("…{hash:016x}"))
}

fn ended(text: &str, max: usize, end: &str) -> Box<str> {
    let room = max.saturating_sub(end.chars().count());
    text.chars().take(room).chain(end.chars()).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::Alert;
    use super::*;
    use stepwatch_model::Ts;

    const TIGHT: Limits = Limits { pairs: 4, text: 24, annotation: 6 };

    fn set(pairs: &[(&str, &str)]) -> LabelSet {
        pairs.iter().map(|(k, v)| (Box::from(*k), Box::from(*v))).collect()
    }

    fn fitted(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> (Alert, u64) {
        Alert::fitted(set(labels), set(annotations), Ts(0), "", &TIGHT).unwrap()
    }

    #[test]
    fn words_end_early() {
        let (alert, cut) = fitted(&[("alertname", "A")], &[("summary", "ééééééé"), ("n", "123456")]);
        assert_eq!(alert.annotations, set(&[("summary", "ééééé…"), ("n", "123456")]));
        assert_eq!(cut, 1);
        let many =
            [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("e\n", "1"), ("", "1"), ("summary", "s")];
        let (alert, cut) = fitted(&[("alertname", "A")], &many);
        assert_eq!(alert.annotations, set(&[("a", "1"), ("b", "1"), ("c", "1"), ("summary", "s")]));
        assert_eq!(cut, 3, "one too many, and two without a name");
    }

    #[test]
    fn labels_that_differ_where_they_are_cut_stay_two() {
        let long = "x".repeat(40);
        let (one, cut) = fitted(&[("alertname", "A"), ("path", &(long.clone() + "1"))], &[]);
        let (two, _) = fitted(&[("alertname", "A"), ("path", &(long + "2"))], &[]);
        assert_eq!(cut, 1);
        assert_ne!(one.fingerprint, two.fingerprint);
        assert!(one.labels.get("path").unwrap().starts_with("xxxxxxx…"), "{one:?}");
        assert_eq!(one.labels.get("path").unwrap().chars().count(), 24);
    }

    #[test]
    fn labels_that_decide_stay_when_there_are_too_many() {
        let labels = |last: &'static str| {
            [("a", "1"), ("b", "1"), ("alertname", "A"), ("c", "1"), ("run", "r"), ("z", last)]
        };
        let (one, cut) = fitted(&labels("1"), &[]);
        let names: Vec<_> = one.labels.iter().map(|(name, _)| name).collect();
        assert_eq!((names.as_slice(), cut), (&["a", "alertname", LEFT_OUT, "run"][..], 3));
        assert_ne!(one.fingerprint, fitted(&labels("2"), &[]).0.fingerprint);
    }

    proptest! {
        /// What is kept is within the limits, stays as it is when it is cut again, and two that
        /// were two are two.
        #[test]
        fn what_is_kept_is_bounded_and_keeps_alerts_apart(
            all in prop::collection::vec(prop::collection::btree_map("[a-c]{1,30}", "[é-í]{1,30}", 1..8), 1..8)
        ) {
            let all: BTreeSet<_> = all.into_iter().collect();
            let mut fingerprints = BTreeSet::new();
            for pairs in &all {
                let of = || pairs.iter().map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect::<LabelSet>();
                let (alert, _) = Alert::fitted(of(), of(), Ts(0), "", &TIGHT).unwrap();
                prop_assert!(alert.labels.len() <= TIGHT.pairs && alert.annotations.len() <= TIGHT.pairs);
                for (name, value) in alert.labels.iter() {
                    prop_assert!(name.chars().count() <= TIGHT.text && value.chars().count() <= TIGHT.text);
                }
                prop_assert!(alert.annotations.iter().all(|(_, value)| value.chars().count() <= TIGHT.annotation));
                let again = Alert::fitted(alert.labels.clone(), alert.annotations.clone(), Ts(0), "", &TIGHT);
                prop_assert_eq!(again.unwrap(), (alert.clone(), 0));
                fingerprints.insert(alert.fingerprint);
            }
            prop_assert_eq!(fingerprints.len(), all.len());
        }
    }
}
