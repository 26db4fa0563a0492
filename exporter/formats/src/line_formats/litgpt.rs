//! LitGPT: `Epoch 1 | iter 8 step 2 | loss train: 1.761, val: n/a | iter time: 121.17 ms (step)
//! remaining time: 1:02:03`, in 2023 `iter 8 step 2: loss 1.7612, iter time: 121.17ms
//! (optimizer.step)`.
//!
//! An iteration is a micro-batch: with gradient accumulation several of them are one step, and
//! their time is not its time. The lines of the others are passed over, unless their loss is no
//! number. The time of a step is that of an iteration, as often as the lines show that there are
//! iterations to a step. `val` repeats the last evaluation.

use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

use crate::format::{Format, Line, Out, Outcome};
use crate::number;
use crate::pause::{Evaluation, Saving};

#[derive(Debug, Default)]
pub(crate) struct LitGpt {
    /// Iteration and step of the last line of a new step.
    before: Option<(i64, i64)>,
    /// Iterations to a step, as last seen.
    accumulates: Option<i64>,
    pause: Evaluation,
    saving: Saving,
}

/// How a line begins, and the rest of it.
struct Head<'t> {
    iteration: i64,
    step: i64,
    rest: &'t str,
}

impl Format for LitGpt {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some(head) = head(line.text) {
            return self.step(&head, line, out);
        }
        let last_step = self.before.map(|(_, step)| step);
        if last_step.is_some() && line.text == "Validating ..." {
            self.pause.begin(last_step, line, out);
            return Outcome::Ignored;
        }
        // The evaluation of a step, by the iteration it came after.
        if let Some(mut e) = evaluation(line, last_step, out) {
            self.pause.end(last_step, line, out);
            e.step = last_step;
            out.push(e);
            return Outcome::Matched;
        }
        let saved = line.text.strip_prefix("Saving checkpoint to ").and_then(saved);
        match saved.filter(|_| last_step.is_some()) {
            Some(step) => {
                self.saving.begin(Some(step), line, out);
                Outcome::Matched
            }
            None => Outcome::Unmatched,
        }
    }
}

impl LitGpt {
    fn step(&mut self, head: &Head<'_>, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let Head { iteration, step, rest } = *head;
        let mut e = line.step(step);
        let loss = value(rest, "loss").and_then(|v| out.metric(&mut e, metric::LOSS, v, 1.0));
        if loss.is_none() && !out.may_lack_loss(&e) {
            return Outcome::Unmatched;
        }
        let new = self.before.is_none_or(|(_, last)| step != last);
        let whole = new && step > 0;
        if !whole && loss.is_none_or(f64::is_finite) {
            return Outcome::Ignored;
        }
        // A micro-batch behind a step is of the next one.
        e.step = Some(step + i64::from(!whole));
        if let Some((epoch, _)) = line.text.strip_prefix("Epoch ").and_then(number::integer) {
            out.value(&mut e, metric::EPOCH, epoch as f64);
        }
        if let Some((before, last)) = self.before.filter(|(_, last)| step > *last) {
            let (iterations, steps) = (iteration - before, step - last);
            self.accumulates = Some(iterations / steps).filter(|n| *n > 0 && iterations % steps == 0);
        }
        if let Some(time) = rest.split_once("iter time:").map(|(_, t)| t) {
            out.metric(&mut e, "iter_time", time, 1000.0);
            if let Some(n) = self.accumulates {
                out.metric(&mut e, metric::STEP_TIME, time, 1000.0 / n as f64);
            }
        }
        if whole {
            self.pause.step(self.before.map(|(_, step)| step), step, line, out);
            self.saving.step(step, line, out);
            self.before = Some((iteration, step));
        }
        out.push(e);
        Outcome::Matched
    }
}

fn head(text: &str) -> Option<Head<'_>> {
    let text = match text.strip_prefix("Epoch ").or_else(|| text.strip_prefix("Ep ")) {
        Some(rest) => number::integer(rest)?.1.trim_start().strip_prefix('|')?.trim_start(),
        None => text,
    };
    let (iteration, rest) = number::integer(text.strip_prefix("iter ")?)?;
    let rest = rest.trim_start_matches([' ', '|']);
    let word = rest.get(..5).filter(|w| w.eq_ignore_ascii_case("step "))?;
    let (step, rest) = number::integer(&rest[word.len()..])?;
    let rest = rest.trim_start().strip_prefix([':', '|'])?;
    (rest.contains("iter time:") && step >= 0).then_some(Head { iteration, step, rest })
}

/// The text after `loss`, `loss train:`, `loss train (curr):`.
fn value<'t>(rest: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = rest.split_once(name)?;
    let rest = rest.trim_start().strip_prefix("train").unwrap_or(rest).trim_start();
    Some(rest.strip_prefix("(curr)").unwrap_or(rest).trim_start_matches([':', ' ']))
}

/// `iter 100: val loss 2.3456, val time: 123.45 ms`.
fn evaluation(line: &Line<'_>, last_step: Option<i64>, out: &mut Out<'_>) -> Option<Event> {
    let (_, rest) = number::integer(line.text.strip_prefix("iter ")?)?;
    let value = rest.strip_prefix(": val loss ")?;
    let mut e = line.eval(Some(last_step?), "val");
    out.metric(&mut e, metric::LOSS, value, 1.0)?;
    Some(e)
}

/// `'out/step-00000100'`.
fn saved(path: &str) -> Option<i64> {
    let (_, step) = path.trim_matches(['\'', '"', ' ']).rsplit_once("step-")?;
    number::integer(step).filter(|(_, rest)| rest.is_empty() || rest.starts_with('/')).map(|(n, _)| n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::{CkptPhase, Kind};

    impl Sampled for LitGpt {
        const LOGS: &'static [&'static str] =
            &[include_str!("../../tests/data/litgpt.log"), include_str!("../../tests/data/litgpt_2023.log")];
        const WRITTEN: &'static [Written] = &[
            Written {
                line: "Epoch 4 | iter § step § |⟨ loss train: ¤,⟩ val: 1.057 | iter time: 115.27 ms (step)",
                ..PLAIN
            },
            Written { line: "iter § step §: ⟨loss ¤, ⟩iter time: 215.31ms (optimizer.step)", ..PLAIN },
        ];
    }

    fn read(lines: &[&str]) -> Vec<Event> {
        let mut r = LogReader::new(Some("litgpt")).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        out
    }

    #[test]
    fn iterations_are_parts_of_a_step() {
        let e = read(&[
            "Epoch 1 | iter 3 step 0 | loss train: 10.996, val: n/a | iter time: 110.00 ms remaining time: 2:00:00",
            "Epoch 1 | iter 4 step 1 | loss train: 10.951, val: n/a | iter time: 125.00 ms (step) remaining time: 2:00:00",
            "Epoch 1 | iter 5 step 1 | loss train: 10.940, val: n/a | iter time: 110.00 ms remaining time: 2:00:00",
            "Epoch 1 | iter 8 step 2 | loss train: 10.901, val: n/a | iter time: 125.00 ms (step) remaining time: 2:00:00",
            "Epoch 1 | iter 9 step 2 | loss train: nan, val: n/a | iter time: 110.00 ms remaining time: 2:00:00",
        ]);
        let seen: Vec<_> =
            e.iter().map(|e| (e.step.unwrap(), e.m.get("step_time"), e.m.get("iter_time"))).collect();
        assert_eq!(seen, [(1, None, Some(0.125)), (2, Some(0.5), Some(0.125)), (3, Some(0.44), Some(0.11))]);
        assert!(e[1].m.get("loss") == Some(10.901) && e[2].m.get("loss").unwrap().is_nan());
        assert_eq!(e[1].m.get("epoch"), Some(1.0));
    }

    #[test]
    fn lines_of_other_versions() {
        let e = read(&[
            "Ep 1 | iter 4 | step 1: loss train (curr): 1.585, val (prev val iter): None | iter time: 181.34 ms (opt.step)",
            "Ep 1 | iter 5 | stEp 1: loss train (curr): 1.577, val (prev val iter): None | iter time: 154.41 ms",
            "iter 76 step 38: loss 10.8259, iter time: 197.87ms",
            "iter 77 step 39: loss 10.8253, iter time: 214.40ms (optimizer.step)",
        ]);
        let seen: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.m.get("loss").unwrap())).collect();
        assert_eq!(seen, [(1, 1.585), (38, 10.8259), (39, 10.8253)]);
    }

    #[test]
    fn evaluations_and_checkpoints() {
        let e = read(&[
            "Epoch 4 | iter 961 step 961 | loss train: 1.062, val: 1.057 | iter time: 529.46 ms (step)",
            "Validating ...",
            "iter 961: val loss 1.0571, val time: 1234.00 ms",
            "Saving checkpoint to 'out/step-000961'",
            "Epoch 4 | iter 962 step 962 | loss train: 0.937, val: 1.057 | iter time: 503.53 ms (step)",
        ]);
        let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.ckpt)).collect();
        let step = Some(961);
        assert_eq!(
            seen,
            [
                (Kind::Step, step, None),
                (Kind::Phase, step, None),
                (Kind::Phase, step, None),
                (Kind::Eval, step, None),
                (Kind::Ckpt, step, Some(CkptPhase::Start)),
                (Kind::Ckpt, step, Some(CkptPhase::End)),
                (Kind::Step, Some(962), None),
            ]
        );
        assert_eq!(e[3].m.get("loss"), Some(1.0571));
        assert!((e[6].m.get("step_time").unwrap() - 0.50353).abs() < 1e-12);
    }

    #[test]
    fn a_loss_of_none_is_missing() {
        let line = |iteration: u32, loss: &str| {
            let step = iteration / 2;
            format!(
                "Epoch 1 | iter {iteration} step {step} | loss train: {loss}, val: n/a | iter time: 9.5 ms"
            )
        };
        let log: Vec<String> =
            (2..8).map(|i| line(i, "2.5")).chain([line(8, "None"), line(9, "None")]).collect();
        let e = read(&log.iter().map(String::as_str).collect::<Vec<_>>());
        let seen: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.missing.len())).collect();
        assert_eq!(seen, [(1, 0), (2, 0), (3, 0), (4, 1)]);
        assert_eq!((e[3].missing[0].as_str(), e[3].m.get("iter_time")), ("loss", Some(0.0095)));
    }

    #[test]
    fn what_is_no_step() {
        for text in [
            "iter 5: loss 2.5, time 3ms",
            "Epoch 1 | iter x step 2 |",
            "Validating ...",
            "iter 5: val loss 2.5",
            "Epoch é",
        ] {
            assert!(read(&[text]).is_empty(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(a in "\\PC{0,40}", b in "(Epoch|iter|step|loss|train|val|time| |:|[|]|[0-9]|nan|ms){0,16}") {
            read(&[&a, &b, &format!("Epoch 1 | iter 4 step 1 | loss {b}{a} iter time: {b}"), &format!("Saving checkpoint to {a}step-{b}")]);
        }
    }
}
