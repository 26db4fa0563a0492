//! Detects exploding gradients of single layers, and which layer exploded first.
//!
//! From the gradient norms that the client's statistics of layers report (`grad_norm/<layer>`, and
//! `grad_norm_shard/<layer>` of one rank's part), each against its own past (`layers.rs`).
//! * When the run's own gradient or loss goes wrong, the layer that went first is a suspect of that
//!   incident: at once if it is known, with the next report if not.
//! * A layer that is 10 times its usual value for 3 reports in a row, and 10 times what the middle
//!   one of the layers has grown by, is a ticket of its own: it has not shown in the norm of the
//!   whole model yet, which its largest layers rule.

use serde::{Deserialize, Serialize};

use super::layers::{Layers, Limits, Out, out_of_place, suspect};
use crate::detector::shared::Shared;
use crate::detector::{JudgedStep, StepDetector};
use crate::sample::{Extra, Reading};
use crate::stats::latch::Latch;
use stepwatch_model::{Change, Clause, Finding, Kind, Mark, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Times its usual value that make a layer a suspect, and a ticket of its own. Engineering
    /// limits beside the sigmas of `layers.rs`: the suspect has the ratio of a spike of the whole
    /// norm.
    pub suspect_ratio: f64,
    pub ratio: f64,
    /// Reports in a row that make a ticket.
    pub reports: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, suspect_ratio: 3.0, ratio: 10.0, reports: 3 }
    }
}

const PREFIXES: [&str; 2] = ["grad_norm/", "grad_norm_shard/"];
/// Weight of a report in the usual norm of a layer.
const RATE: f64 = 1.0 / 16.0;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LayerGrad {
    /// Layers for suspects, and layers without the change that all have in common.
    all: Layers,
    own: Layers,
    attempt: u32,
    latch: Latch,
    onset: i64,
    /// The kinds that are raised; `named` is set once a layer was named in them.
    open: Vec<Kind>,
    named: bool,
}

impl LayerGrad {
    /// Adds the layer as a suspect to the findings of this step.
    fn explain(&mut self, step: &mut JudgedStep<'_>) {
        let fresh = self.all.is_fresh(step.sample.step);
        for v in step.out.iter_mut().filter(|v| v.kind.has(Mark::Layers)) {
            match v.change {
                Change::Raise | Change::Another | Change::More => {
                    if self.open.is_empty() {
                        self.named = false;
                    }
                    if !self.open.contains(&v.kind) {
                        self.open.push(v.kind);
                    }
                    if let Some(layer) = self.layer().filter(|_| fresh) {
                        self.named = true;
                        v.suspects.push(layer);
                    }
                }
                Change::Clear | Change::Lapse => self.open.retain(|k| *k != v.kind),
                Change::Note => {}
            }
        }
    }

    fn layer(&self) -> Option<stepwatch_model::Suspect> {
        suspect(&self.all.out(1), self.all.len(), "gradient norm")
    }

    fn report(&mut self, c: &Config, r: &Reading<'_>, out: &mut Vec<Finding>) {
        if !self.open.is_empty() && !self.named {
            if let Some(layer) = self.layer() {
                self.named = true;
                let first = self.all.out(1).swap_remove(0);
                let mut v = finding(r, Change::Note, &first, layer.clause());
                v.suspects.push(layer);
                out.push(v);
            }
        }
        let out_of_range = self.own.out(c.reports);
        match out_of_range.first() {
            Some(first) if self.open.is_empty() && self.latch.raise(Severity::Ticket) => {
                self.onset = first.since;
                let why = clause!(
                    "gradient norm of layer {layer} is {level} for {reports} reports",
                    layer = first.name.clone(),
                    level = first.level(),
                    reports = first.reports,
                );
                let why = Sentence::from(why).and(out_of_place(out_of_range.len(), self.own.len()));
                let mut v = finding(r, Change::Raise, first, why);
                v.suspects.extend(suspect(&out_of_range, self.own.len(), "gradient norm"));
                out.push(v);
            }
            None if self.own.out(1).is_empty() => {
                self.settle(r, clause!("the gradients of all layers are as usual"), out)
            }
            _ => {}
        }
    }

    fn settle(&mut self, r: &Reading<'_>, why: Clause, out: &mut Vec<Finding>) {
        if self.latch.clear() {
            let none = Out {
                name: String::new(),
                value: f64::NAN,
                expected: f64::NAN,
                since: self.onset,
                reports: 0,
            };
            out.push(finding(r, Change::Clear, &none, why));
        }
    }
}

fn finding(r: &Reading<'_>, change: Change, first: &Out, why: impl Into<Sentence>) -> Finding {
    Finding {
        change,
        kind: Kind::LayerGrad,
        severity: if change == Change::Raise { Severity::Ticket } else { Severity::Info },
        signal: if first.name.is_empty() {
            "grad_norm/layer".into()
        } else {
            ["grad_norm/", &first.name].concat().into()
        },
        step: r.step,
        ts: r.ts,
        start_step: first.since,
        value: first.value,
        expected: first.expected,
        score: first.ratio(),
        why: why.into(),
        suspects: Vec::new(),
    }
}

impl StepDetector for LayerGrad {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, _: &mut Shared) {
        if c.enabled && !step.out.is_empty() {
            self.explain(step);
        }
    }

    fn extra(&mut self, c: &Config, e: &Extra<'_>, _: &Shared, out: &mut Vec<Finding>) {
        let Extra::Readings(readings) = e else { return };
        let Some(r) = readings.iter().find(|r| PREFIXES.iter().any(|p| r.name.starts_with(p))) else {
            return;
        };
        if !c.enabled {
            return;
        }
        if r.attempt != self.attempt {
            self.attempt = r.attempt;
            self.all.restart();
            self.own.restart();
            self.settle(r, clause!("the run restarted"), out);
        }
        let suspects = Limits { ratio: c.suspect_ratio, rate: RATE, both: false, apart: false };
        self.all.take(readings, &PREFIXES, suspects);
        self.own.take(readings, &PREFIXES, Limits { ratio: c.ratio, apart: true, ..suspects });
        self.report(c, r, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Detectors;
    use crate::detectors::testing::{Noise, healthy, open, raised};

    const LAYERS: u16 = 24;

    /// A run whose layers are reported every `every` steps; `grads` and `layers` multiply the norms
    /// at a step.
    fn layered(every: i64, grads: impl Fn(i64) -> f64, layers: impl Fn(i64, u16) -> f64) -> Vec<Finding> {
        let mut detectors = Detectors::default();
        let (mut noise, mut out) = (Noise::new(3), Vec::new());
        let names: Vec<String> = (0..LAYERS).map(|i| format!("grad_norm/layers.{i}")).collect();
        for mut s in healthy(17, 3000) {
            s.grad_norm = s.grad_norm.map(|g| g * grads(s.step));
            detectors.step(&s, &mut out);
            if s.step % every == 0 {
                let readings: Vec<Reading<'_>> = (0..LAYERS)
                    .map(|id| {
                        let value =
                            0.05 * f64::from(id + 1) * (0.1 * noise.normal()).exp() * layers(s.step, id);
                        let name = names[usize::from(id)].as_str();
                        Reading { id, name, step: s.step, ts: s.ts, attempt: 0, value, quantum: 0.0 }
                    })
                    .collect();
                detectors.extra(&Extra::Readings(&readings), &mut out);
            }
        }
        out
    }

    #[test]
    fn the_layer_that_went_first_is_named_in_the_page() {
        let findings = layered(
            10,
            |step| if (2001..2040).contains(&step) { 50.0 } else { 1.0 },
            |step, id| match step {
                1990..2040 if id == 7 => 40.0,
                2000..2040 => 6.0,
                _ => 1.0,
            },
        );
        let page =
            findings.iter().find(|v| v.kind == Kind::GradSpike && v.severity == Severity::Page).unwrap();
        let layer = &page.suspects[0];
        assert_eq!(layer.what(), "layer layers.7");
        assert!(layer.why().contains("since step 1990, before 23 others of 24 layers"), "{}", layer.why());
    }

    #[test]
    fn a_report_that_comes_after_the_page_names_it_too() {
        let burst = |step: i64| if (2010..2060).contains(&step) { 50.0 } else { 1.0 };
        let findings = layered(50, burst, |step, id| if step == 2050 && id == 3 { 80.0 } else { 1.0 });
        let note = findings.iter().find(|v| v.kind == Kind::LayerGrad).unwrap();
        assert!((Change::Note, 2050) == (note.change, note.step), "{note:?}");
        assert!(
            note.why.to_string().starts_with("layer layers.3: its gradient norm is")
                && note.suspects.len() == 1,
            "{}",
            note.why
        );
    }

    #[test]
    fn a_layer_of_its_own_is_a_ticket_and_all_of_them_are_not() {
        let one =
            layered(20, |_| 1.0, |step, id| if (2000..2400).contains(&step) && id == 5 { 30.0 } else { 1.0 });
        assert_eq!(raised(&one), [(Kind::LayerGrad, Severity::Ticket, 2040)]);
        assert!(open(&one).is_empty(), "{one:?}");
        assert!(raised(&layered(20, |_| 1.0, |step, _| if step >= 2000 { 30.0 } else { 1.0 })).is_empty());
        assert!(
            raised(&layered(20, |_| 1.0, |step, id| if step % 300 == 0 && id == 5 { 30.0 } else { 1.0 }))
                .is_empty()
        );
    }

    #[test]
    fn a_nan_is_named_and_poisons_nothing() {
        let findings = layered(
            10,
            |step| if (2005..2008).contains(&step) { f64::NAN } else { 1.0 },
            |step, id| {
                if step == 2000 && id == 9 { f64::NAN } else { 1.0 }
            },
        );
        let nan = findings.iter().find(|v| v.kind == Kind::Nonfinite && v.change == Change::Raise).unwrap();
        assert!(nan.suspects.iter().any(|s| s.what() == "layer layers.9"), "{findings:?}");
        assert!(!findings.iter().any(|v| v.kind == Kind::LayerGrad && v.change == Change::Raise));
    }
}
