//! Records by metric what has been reported of the last steps of a rank, to merge several sources
//! into one set of values.
//!
//! Each metric of a step is streamed once, from the source that reports it first. What a second
//! source adds is streamed too. What it repeats is dropped, unless that source is more exact: then
//! it corrects the metrics page, but not the stream, which has been evaluated already.
//!
//! Neighbouring steps of one source have the same metrics, so they are kept as ranges: a few
//! hundred bytes a rank are enough for a file that is two minutes behind.

use std::collections::BTreeMap;

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Metrics};

use crate::origin::Priority;

/// The most ranges kept of a rank; those that ended first are dropped first.
const MAX_RANGES: usize = 128;
/// The most metrics that are distinguished in a run; further ones share one bit.
const MAX_NAMES: usize = 120;

/// A set of metrics, one bit each.
type Bits = u128;

/// The parts of the step's time share one bit.
const PARTS: Bits = 1;
/// The loss or the gradient norm was not a number, or missing.
const LOST_LOSS: Bits = 1 << 1;
const LOST_NORM: Bits = 1 << 2;
/// Metrics beyond [`MAX_NAMES`].
const OTHERS: Bits = 1 << 3;
const FIRST_NAME: usize = 4;

/// A client reports the statistics of many layers in several events, and none of them twice.
fn is_parted(bit: Bits, by: Priority) -> bool {
    bit == OTHERS && by == Priority::Client
}

/// The bit of each metric of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(BTreeMap<Box<str>, u8>);

/// A range of steps of which one source reported the same metrics.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    by: Priority,
    bits: Bits,
    first: i64,
    last: i64,
    /// The distance between two of them; 0 if there is only one.
    every: i64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct MetricDedup {
    ranges: Vec<Range>,
    /// The last step of a range that was dropped.
    forgotten: Option<i64>,
    /// Whether a source measures the time of a step, so that none is derived.
    measures_time: bool,
}

/// The result of removing repeated values from an event.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sifted {
    /// Whether the event had nothing new about this step.
    pub(super) nothing_new: bool,
    /// How many values were removed.
    pub(super) repeated: u64,
    /// Metrics that a less exact source reported: they go to the metrics page, not to the stream.
    corrections: Vec<Box<str>>,
    known: Bits,
}

impl Names {
    fn bit(&mut self, name: &str) -> Bits {
        if let Some(at) = self.0.get(name) {
            return 1 << at;
        }
        if self.0.len() >= MAX_NAMES {
            return OTHERS;
        }
        let at = (FIRST_NAME + self.0.len()) as u8;
        self.0.insert(name.into(), at);
        1 << at
    }
}

impl Sifted {
    /// Whether the event's value of `name` corrects a reported one.
    pub(super) fn corrects(&self, name: &str) -> bool {
        self.corrections.iter().any(|c| &**c == name)
    }

    /// Whether `name` was already reported as missing or not a number.
    pub(super) fn was_lost(&self, name: &str) -> bool {
        self.known & lost(name) != 0
    }
}

impl Range {
    fn holds(&self, step: i64) -> bool {
        (self.first..=self.last).contains(&step)
            && (self.every == 0 || step.saturating_sub(self.first) % self.every == 0)
    }

    /// Adds a step that continues the range; false if it does not.
    fn extend(&mut self, step: i64) -> bool {
        if step <= self.last || self.every != 0 && step != self.last.saturating_add(self.every) {
            return false;
        }
        self.every = step.saturating_sub(self.last);
        self.last = step;
        true
    }
}

impl MetricDedup {
    /// Forgets all steps, because a new attempt begins.
    pub(super) fn clear(&mut self) {
        *self = Self { measures_time: self.measures_time, ..Self::default() };
    }

    /// Removes from an event the values that an equally or more exact source has reported for its
    /// step.
    pub(super) fn sift(&mut self, names: &mut Names, by: Priority, event: &mut Event) -> Sifted {
        let Some(step) = event.step else { return Sifted::default() };
        self.measures_time |= event.m.get(metric::STEP_TIME).is_some();
        let (mut known, mut better, mut others) = (0, 0, 0);
        for range in self.ranges.iter().filter(|r| r.holds(step)) {
            known |= range.bits;
            better |= if range.by <= by { range.bits } else { 0 };
            others |= if range.by < by { range.bits } else { 0 };
        }
        let seen = self.ranges.iter().any(|r| r.holds(step));
        if self.forgotten.is_some_and(|last| step <= last) {
            return Sifted { nothing_new: true, ..Sifted::default() };
        }
        let mut sifted = Sifted { known, ..Sifted::default() };
        if !seen {
            return sifted; // the first word of this step, as nearly every one is
        }
        // A source may correct its own value to NaN: the end of a log may show that a loss was
        // none.
        let taken_back = |name: &str, value: f64, bit: Bits| {
            !value.is_finite() && lost(name) & !known != 0 && others & bit == 0
        };
        let values: Vec<(Box<str>, Bits, bool)> = (event.m.iter())
            .map(|(name, value)| (name, value, names.bit(name)))
            .map(|(name, value, bit)| (name.into(), bit, taken_back(name, value, bit)))
            .collect();
        for (name, bit, taken_back) in values {
            if is_parted(bit, by) {
                continue;
            }
            if better & bit != 0 && !taken_back {
                event.m.remove(&name);
                event.q.remove(&name);
                sifted.repeated += 1;
            } else if known & bit != 0 {
                sifted.corrections.push(name);
            }
        }
        event.missing.retain(|name| {
            let new = known & names.bit(name) == 0;
            sifted.repeated += u64::from(!new);
            new
        });
        if known & PARTS != 0 && !event.t.is_empty() {
            event.t = Metrics::default();
            sifted.repeated += 1;
        }
        let left = event.m.len() + event.missing.len() + usize::from(!event.t.is_empty());
        sifted.nothing_new = left == 0;
        sifted
    }

    /// Records what an event reports. Removes derived values that had been reported before.
    pub(super) fn note(&mut self, names: &mut Names, by: Priority, event: &mut Event, s: &Sifted) {
        let Some(step) = event.step else { return };
        if s.known != 0 {
            let all: Vec<Box<str>> = event.m.iter().map(|(name, _)| Box::from(name)).collect();
            let again = |bit: Bits| s.known & bit != 0 && !is_parted(bit, by);
            for name in all.iter().filter(|n| again(names.bit(n)) && !s.corrects(n)) {
                event.m.remove(name);
                event.q.remove(name);
            }
        }
        let mut bits = if event.t.is_empty() { 0 } else { PARTS };
        for (name, value) in event.m.iter() {
            bits |= names.bit(name) | if value.is_finite() { 0 } else { lost(name) };
        }
        for name in &event.missing {
            bits |= names.bit(name) | lost(name);
        }
        self.record(Range { by, bits, first: step, last: step, every: 0 });
    }

    /// Removes corrections of another source from an event for the stream, except that a number
    /// turns out to be NaN. Returns false if nothing is left to stream.
    pub(super) fn for_stream(event: &mut Event, s: &Sifted) -> bool {
        let had = event.m.len();
        for name in &s.corrections {
            let is_lost = event.m.get(name).is_some_and(|v| !v.is_finite()) && lost(name) != 0;
            if !is_lost || s.was_lost(name) {
                event.m.remove(name);
                event.q.remove(name);
            }
        }
        event.m.len() == had || !(event.m.is_empty() && event.t.is_empty() && event.missing.is_empty())
    }

    pub(super) fn measures_time(&self) -> bool {
        self.measures_time
    }

    /// Extends the ranges that the step continues, and begins one for the remaining metrics.
    fn record(&mut self, mut new: Range) {
        let (step, all) = (new.first, new.bits);
        let mut found = false;
        for range in self.ranges.iter_mut().filter(|r| r.by == new.by && r.bits & !all == 0) {
            if range.holds(step) || range.extend(step) {
                new.bits &= !range.bits;
                found = true;
            }
        }
        if found && new.bits == 0 {
            return;
        }
        if self.ranges.len() >= MAX_RANGES {
            let oldest = (0..self.ranges.len()).min_by_key(|i| self.ranges[*i].last);
            if let Some(at) = oldest {
                let gone = self.ranges.swap_remove(at);
                self.forgotten = self.forgotten.max(Some(gone.last));
            }
        }
        self.ranges.push(new);
    }
}

fn lost(name: &str) -> Bits {
    match name {
        metric::LOSS => LOST_LOSS,
        metric::GRAD_NORM => LOST_NORM,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Client, File, Log};
    use proptest::prelude::*;

    #[derive(Default)]
    struct Bench {
        names: Names,
        dedup: MetricDedup,
    }

    impl Bench {
        /// The names of the metrics that reach the metrics page, and of those that are streamed;
        /// `None` if nothing is streamed.
        fn report(&mut self, step: i64, by: Priority, m: &[(&str, f64)]) -> (String, Option<String>) {
            let mut event = Event::step("r", step);
            for (name, v) in m {
                event.m.set(name, *v);
            }
            let list = |e: &Event| e.m.iter().map(|(n, _)| n).collect::<Vec<_>>().join(" ");
            let sifted = self.dedup.sift(&mut self.names, by, &mut event);
            if sifted.nothing_new {
                return (String::new(), None);
            }
            self.dedup.note(&mut self.names, by, &mut event, &sifted);
            let page = list(&event);
            let streamed = MetricDedup::for_stream(&mut event, &sifted);
            (page, streamed.then(|| list(&event)))
        }
    }

    #[test]
    fn a_lesser_source_adds_and_a_better_one_corrects() {
        let mut b = Bench::default();
        let all = |text: &str| (text.to_owned(), Some(text.to_owned()));
        assert_eq!(b.report(1, Client, &[("loss", 2.5), ("lr", 1.0)]), all("loss lr"));
        assert_eq!(b.report(1, Log, &[("loss", 2.5), ("grad_norm", 0.5)]), all("grad_norm"));
        assert_eq!(b.report(1, Log, &[("loss", 2.5), ("grad_norm", 0.5)]), (String::new(), None));
        assert_eq!(b.report(1, File, &[("grad_norm", 0.51)]), ("grad_norm".to_owned(), None));
        assert_eq!(b.report(1, File, &[("grad_norm", 0.51), ("mine", 1.0)]), all("mine"));
        // The log was first. The trainer's own report that the loss is NaN is more exact.
        assert_eq!(b.report(2, Log, &[("loss", 2.5)]), all("loss"));
        assert_eq!(b.report(2, Client, &[("loss", f64::NAN), ("lr", 1.0)]), all("loss lr"));
        assert_eq!(b.report(3, Log, &[("loss", f64::NAN)]), all("loss"));
        assert_eq!(b.report(3, Client, &[("loss", f64::NAN)]), ("loss".to_owned(), None), "known already");
    }

    #[test]
    fn a_source_takes_back_a_number_that_was_none() {
        let mut b = Bench::default();
        let all = |text: &str| (text.to_owned(), Some(text.to_owned()));
        assert_eq!(b.report(7, Log, &[("loss", 2.5), ("lr", 1.0)]), all("loss lr"));
        assert_eq!(b.report(7, Log, &[("loss", f64::NAN), ("lr", 1.0)]), all("loss"));
        assert_eq!(b.report(7, Log, &[("loss", f64::NAN)]), (String::new(), None), "once");
        assert_eq!(b.report(8, Client, &[("loss", 2.5)]), all("loss"));
        assert_eq!(
            b.report(8, Log, &[("loss", f64::NAN)]),
            (String::new(), None),
            "the trainer knows better"
        );
    }

    #[test]
    fn a_report_of_many_layers_comes_in_parts_and_all_of_them_pass() {
        let mut b = Bench::default();
        assert_eq!(b.report(7, Client, &[("loss", 2.5)]).0, "loss");
        for part in 0..4 {
            let names: Vec<String> = (0..100).map(|i| format!("act_rms/layers.{}", 100 * part + i)).collect();
            let metrics: Vec<(&str, f64)> = names.iter().map(|n| (n.as_str(), 1.0)).collect();
            let (page, streamed) = b.report(7, Client, &metrics);
            assert_eq!((page, streamed), (names.join(" "), Some(names.join(" "))), "part {part}");
        }
        assert_eq!(b.report(7, Log, &[("loss", 2.5)]), (String::new(), None));
    }

    #[test]
    fn an_empty_report_is_news_once() {
        let mut b = Bench::default();
        assert_eq!(b.report(1, Client, &[]), (String::new(), Some(String::new())));
        assert_eq!(b.report(1, Client, &[]), (String::new(), None));
        assert_eq!(b.report(1, Log, &[("loss", 2.0)]), ("loss".to_owned(), Some("loss".to_owned())));
    }

    #[test]
    fn a_missing_loss_is_missed_once_and_not_beside_one() {
        let (mut names, mut dedup) = (Names::default(), MetricDedup::default());
        let mut missing = |step: i64, by: Priority, text: &str| {
            let mut e = Event::parse(text.replace("STEP", &step.to_string()).as_bytes()).unwrap();
            let sifted = dedup.sift(&mut names, by, &mut e);
            if !sifted.nothing_new {
                dedup.note(&mut names, by, &mut e, &sifted);
            }
            (e.missing.len(), sifted.nothing_new)
        };
        let line = r#"{"k":"step","step":STEP,"lr":1,"missing":["loss"]}"#;
        assert_eq!(missing(1, Log, line), (1, false));
        assert_eq!(missing(1, Log, line), (0, true));
        assert_eq!(missing(2, Client, r#"{"k":"step","step":STEP,"loss":2}"#), (0, false));
        assert_eq!(missing(2, Log, line), (0, false), "it has a loss");
    }

    #[test]
    fn minutes_of_two_sources_fit_into_a_few_ranges() {
        let mut b = Bench::default();
        for step in 0..100_000 {
            let every = if step % 10 == 0 { &[("loss", 2.0), ("lr", 1.0)][..] } else { &[("loss", 2.0)] };
            b.report(step, Client, every);
            if step >= 5000 {
                assert_eq!(b.report(step - 5000, File, &[("loss", 2.0)]), (String::new(), None), "{step}");
                let added = b.report(step - 5000, File, &[("grad_norm", 2.0)]).1;
                assert_eq!(added.as_deref(), Some("grad_norm"));
            }
            assert!(b.dedup.ranges.len() <= MAX_RANGES);
        }
    }

    proptest! {
        /// In any order of sources, a distinguished metric of a step is streamed once, and memory
        /// is bounded.
        #[test]
        fn a_metric_of_a_step_is_streamed_once(
            reports in proptest::collection::vec((0i64..40, 0usize..3, proptest::collection::btree_set(0..MAX_NAMES, 0..6)), 1..400),
        ) {
            let mut b = Bench::default();
            let mut seen = std::collections::BTreeSet::new();
            for (step, by, metrics) in reports {
                let names: Vec<String> = metrics.iter().map(|m| format!("m{m}")).collect();
                let m: Vec<(&str, f64)> = names.iter().map(|n| (n.as_str(), 1.0)).collect();
                if let (_, Some(streamed)) = b.report(step, [Client, File, Log][by], &m) {
                    for name in streamed.split(' ').filter(|n| !n.is_empty()) {
                        prop_assert!(seen.insert((step, name.to_owned())), "{step} {name}");
                    }
                }
                prop_assert!(b.dedup.ranges.len() <= MAX_RANGES && b.names.0.len() <= MAX_NAMES);
            }
        }
    }
}
