//! Detects activations of a layer that change in size: the forward pass goes wrong before the loss
//! shows it.
//!
//! The input is the client's statistics of layers (`act_rms/<layer>`, `act_absmax/<layer>`), each
//! compared with its own past (`layers.rs`). Their size drifts for as long as a model learns, so
//! the usual value follows quickly (1/8 a report). A ticket needs a layer at 3 times it, or a
//! third, for 3 reports in a row: growing logits, a residual stream that explodes, a layer that
//! died. The layer that deviated first is named; a change that all layers share counts too.

use serde::{Deserialize, Serialize};

use super::layers::{Layers, Limits, out_of_place, suspect};
use crate::detector::shared::Shared;
use crate::detector::{JudgedStep, StepDetector};
use crate::sample::{Extra, Reading};
use crate::stats::latch::Latch;
use stepwatch_model::{Change, Clause, Fact, Finding, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The factor by which a layer must be above or below its usual size: an engineering limit
    /// beside the sigmas of `layers.rs`.
    pub ratio: f64,
    /// Reports in a row that make a ticket.
    pub reports: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, ratio: 3.0, reports: 3 }
    }
}

/// The prefix of a series, and its name for people.
const SERIES: [(&str, &str); 2] = [("act_rms/", "activation RMS"), ("act_absmax/", "largest activation")];
/// Weight of a report in the usual size of a layer.
const RATE: f64 = 1.0 / 8.0;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ActivationShift {
    series: [Layers; SERIES.len()],
    attempt: u32,
    latch: Latch,
    onset: i64,
}

impl ActivationShift {
    fn judge(&mut self, c: &Config, r: &Reading<'_>, out: &mut Vec<Finding>) {
        for (layers, (prefix, what)) in self.series.iter().zip(SERIES) {
            let out_of_range = layers.out(c.reports);
            let Some(first) = out_of_range.first() else { continue };
            if !self.latch.raise(Severity::Ticket) {
                return;
            }
            self.onset = first.since;
            let why = clause!(
                "{what} of layer {layer} is {level} for {reports} reports, since step {since_step}",
                what,
                layer = first.name.clone(),
                level = first.level(),
                reports = first.reports,
                since_step = Fact::Step(first.since),
            );
            let why = Sentence::from(why).and(out_of_place(out_of_range.len(), layers.len()));
            let mut v = finding(r, Change::Raise, [prefix, &first.name].concat(), first.since, why);
            (v.value, v.expected, v.score) = (first.value, first.expected, first.ratio());
            v.suspects.extend(suspect(&out_of_range, layers.len(), what));
            out.push(v);
            return;
        }
        if self.series.iter().all(|layers| layers.out(1).is_empty()) {
            self.settle(r, clause!("the activations of all layers have a usual size"), out);
        }
    }

    fn settle(&mut self, r: &Reading<'_>, why: Clause, out: &mut Vec<Finding>) {
        if self.latch.clear() {
            out.push(finding(r, Change::Clear, "act_rms/layer".to_owned(), self.onset, why));
        }
    }
}

fn finding(
    r: &Reading<'_>,
    change: Change,
    signal: String,
    start_step: i64,
    why: impl Into<Sentence>,
) -> Finding {
    Finding {
        change,
        kind: Kind::ActivationShift,
        severity: if change == Change::Raise { Severity::Ticket } else { Severity::Info },
        signal: signal.into(),
        step: r.step,
        ts: r.ts,
        start_step,
        value: f64::NAN,
        expected: f64::NAN,
        score: 0.0,
        why: why.into(),
        suspects: Vec::new(),
    }
}

impl StepDetector for ActivationShift {
    type Config = Config;

    fn step(&mut self, _: &Config, _: &mut JudgedStep<'_>, _: &mut Shared) {}

    fn extra(&mut self, c: &Config, e: &Extra<'_>, _: &Shared, out: &mut Vec<Finding>) {
        let Extra::Readings(readings) = e else { return };
        let Some(r) = readings.iter().find(|r| r.name.starts_with("act_")).filter(|_| c.enabled) else {
            return;
        };
        if r.attempt != self.attempt {
            self.attempt = r.attempt;
            self.series.iter_mut().for_each(Layers::restart);
            self.settle(r, clause!("the run restarted"), out);
        }
        let limits = Limits { ratio: c.ratio, rate: RATE, both: true, apart: false };
        let mut any = false;
        for (layers, (prefix, _)) in self.series.iter_mut().zip(SERIES) {
            any |= layers.take(readings, &[prefix], limits);
        }
        if any {
            self.judge(c, r, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Detectors;
    use crate::detectors::testing::{Noise, open, raised};
    use proptest::prelude::*;
    use stepwatch_model::time::Ts;

    /// 300 reports of 12 layers, a hundred steps apart.
    fn reported(seed: u64, unit: f64, size: impl Fn(i64, u16) -> f64) -> Vec<Finding> {
        let mut detectors = Detectors::default();
        let (mut noise, mut out) = (Noise::new(seed), Vec::new());
        let names: Vec<String> =
            (0..24u16).map(|i| format!("{}{}", SERIES[usize::from(i % 2)].0, i / 2)).collect();
        for report in 1..=300 {
            let readings: Vec<Reading<'_>> = (0..24u16)
                .map(|id| {
                    // A model that learns: its activations grow.
                    let drift = (report as f64 + 5.0).powf(0.4);
                    let value = unit * drift * (0.08 * noise.normal()).exp() * size(report, id / 2);
                    let (name, step) = (names[usize::from(id)].as_str(), report * 100);
                    Reading { id, name, step, ts: Ts(step * 1000), attempt: 0, value, quantum: 0.0 }
                })
                .collect();
            detectors.extra(&Extra::Readings(&readings), &mut out);
        }
        out
    }

    #[test]
    fn a_layer_that_explodes_or_dies_is_a_ticket() {
        for factor in [6.0, 0.1] {
            let findings =
                reported(
                    1,
                    1.0,
                    |report, layer| if (200..230).contains(&report) && layer == 4 { factor } else { 1.0 },
                );
            let found = raised(&findings);
            assert_eq!(found, [(Kind::ActivationShift, Severity::Ticket, 20_200)], "{factor}");
            assert_eq!(findings[0].suspects[0].what(), "layer 4");
            assert!(findings[0].why.to_string().contains("of layer 4 is"), "{}", findings[0].why);
            assert!(open(&findings).is_empty());
        }
    }

    #[test]
    fn the_first_of_many_is_named() {
        let findings =
            reported(2, 1.0, |report, layer| if report >= 200 + i64::from(11 - layer) { 8.0 } else { 1.0 });
        assert_eq!(findings[0].suspects[0].what(), "layer 11");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn a_model_that_learns_is_silent_in_any_unit(seed: u64, exponent in -10i32..10) {
            let unit = f64::from(exponent).exp2();
            prop_assert!(reported(seed, unit, |_, _| 1.0).is_empty());
        }
    }
}
