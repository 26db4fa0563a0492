//! Counts values that are not finite. The gauges keep the last finite value and the stream keeps
//! the NaN; a rule in Prometheus needs these counters.

use std::collections::BTreeMap;

use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

use super::metric_dedup::Sifted;

/// The metric that was not finite, and the form in which that showed.
type Cause = (&'static str, &'static str);

#[derive(Debug, Clone)]
pub(super) struct Nonfinite(BTreeMap<Cause, Count>);

#[derive(Debug, Clone, Default)]
struct Count {
    total: f64,
    /// The attempt and step last counted, because all ranks of a run report the same NaN.
    at: Option<(u32, i64)>,
}

const ALWAYS: [Cause; 4] =
    [("loss", "value"), ("grad_norm", "value"), ("loss", "missing_field"), ("grad_norm", "missing_field")];

impl Default for Nonfinite {
    /// The main causes exist from the start, at zero, so that the first increase is visible.
    fn default() -> Self {
        let zero = |cause| (cause, Count::default());
        Self(ALWAYS.map(zero).into())
    }
}

impl Nonfinite {
    pub(super) fn step(&mut self, event: &Event, sifted: &Sifted, attempt: u32) {
        let Some(step) = event.step else { return };
        for (name, value) in event.m.iter() {
            if !value.is_finite() && !sifted.was_lost(name) {
                let what = match name {
                    metric::LOSS => "loss",
                    metric::GRAD_NORM => "grad_norm",
                    _ => "other",
                };
                self.count((what, "value"), attempt, step, 1.0);
            }
        }
        let number = |name| event.m.get(name).filter(|v| v.is_finite() && *v > 0.0);
        let skipped = number(metric::SKIPPED).is_some();
        for missing in &event.missing {
            let what = match missing.as_str() {
                metric::LOSS => "loss",
                metric::GRAD_NORM => "grad_norm",
                _ => "other",
            };
            // A skipped step has no loss because its gradients overflowed, which is ordinary for
            // fp16.
            self.count((what, if skipped { "overflow" } else { "missing_field" }), attempt, step, 1.0);
        }
        if let Some(iterations) = number(metric::NAN_ITERATIONS) {
            self.count(("loss", "reported"), attempt, step, iterations);
        }
    }

    pub(super) fn eval(&mut self, event: &Event, attempt: u32) {
        if event.m.iter().any(|(_, v)| !v.is_finite()) {
            self.count(("eval", "value"), attempt, event.step.unwrap_or(-1), 1.0);
        }
    }

    fn count(&mut self, cause: Cause, attempt: u32, step: i64, by: f64) {
        let count = self.0.entry(cause).or_default();
        if count.at.is_none_or(|at| at < (attempt, step)) {
            count.at = Some((attempt, step));
            count.total += by;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Cause, f64)> {
        self.0.iter().map(|(cause, count)| (*cause, count.total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(lines: &[&str]) -> String {
        let mut n = Nonfinite::default();
        for line in lines {
            n.step(&Event::parse(line.as_bytes()).unwrap(), &Sifted::default(), 0);
        }
        let shown = n.iter().filter(|(_, v)| *v > 0.0).map(|((w, h), v)| format!("{w}/{h}={v}"));
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_way_of_not_being_a_number() {
        for (lines, want) in [
            (&[r#"{"k":"step","step":1,"m":{"loss":2}}"#][..], ""),
            (
                &[r#"{"k":"step","step":1,"m":{"loss":NaN,"grad_norm":Infinity}}"#],
                "grad_norm/value=1 loss/value=1",
            ),
            (&[r#"{"k":"step","step":1,"missing":["loss"]}"#], "loss/missing_field=1"),
            (
                &[r#"{"k":"step","step":1,"m":{"loss":null,"grad_norm":null}}"#],
                "grad_norm/missing_field=1 loss/missing_field=1",
            ),
            (&[r#"{"k":"step","step":1,"missing":["loss"],"m":{"skipped":1}}"#], "loss/overflow=1"),
            (&[r#"{"k":"step","step":10,"m":{"loss":2,"nan_iterations":3}}"#], "loss/reported=3"),
            (
                &[
                    r#"{"k":"step","rank":0,"step":1,"m":{"loss":NaN}}"#,
                    r#"{"k":"step","rank":1,"step":1,"m":{"loss":NaN}}"#,
                    r#"{"k":"step","rank":0,"step":2,"m":{"loss":NaN}}"#,
                ],
                "loss/value=2",
            ),
        ] {
            assert_eq!(counts(lines), want);
        }
    }
}
