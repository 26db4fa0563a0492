//! nanoGPT: `iter 100: loss 3.2345, time 135.20ms, mfu 38.12%` and `step 250: train loss 3.1, val
//! loss 3.2`. Many change the line: `iter 10: loss 4.2, norm: 0.26, dt: 412.5ms, lr 6e-04`.
//!
//! MFU is printed as -100 % until there is one.

use stepwatch_wire::Kind;
use stepwatch_wire::names::metric;

use crate::format::{Format, Line, Out, Outcome};
use crate::pause::Saving;
use crate::{number, tags};

#[derive(Debug, Default)]
pub(crate) struct NanoGpt {
    /// The step of the last evaluation: a checkpoint is of the same.
    evaluated: Option<i64>,
    saving: Saving,
}

impl Format for NanoGpt {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let (kind, rest) = match line.text.split_once(' ') {
            Some(("iter", rest)) => (Kind::Step, rest),
            Some(("step", rest)) => (Kind::Eval, rest),
            Some(("saving", rest)) if rest.starts_with("checkpoint to ") => {
                let published = self.saving.begin(self.evaluated, line, out);
                return if published { Outcome::Matched } else { Outcome::Unmatched };
            }
            _ => return Outcome::Unmatched,
        };
        let Some((step, rest)) = number::integer(rest) else { return Outcome::Unmatched };
        let Some(rest) = rest.strip_prefix(": ") else { return Outcome::Unmatched };
        let mut e = if kind == Kind::Eval { line.eval(Some(step), "val") } else { line.step(step) };
        for field in rest.split(", ") {
            let Some((key, value)) = field.rsplit_once(' ') else { continue };
            let key = key.trim_end_matches([':', '=', ' ']);
            let time = if value.ends_with("ms") || !value.ends_with('s') { 1000.0 } else { 1.0 };
            match (kind, key) {
                (Kind::Step, "loss") | (Kind::Eval, "val loss") => {
                    out.metric(&mut e, metric::LOSS, value, 1.0)
                }
                (Kind::Eval, "train loss") => out.metric(&mut e, "train_loss", value, 1.0),
                (Kind::Step, "time" | "dt") => out.metric(&mut e, metric::STEP_TIME, value, time),
                (Kind::Step, "norm" | "grad" | "grad norm" | "gnorm") => {
                    out.metric(&mut e, metric::GRAD_NORM, value, 1.0)
                }
                (Kind::Step, "mfu") => out.metric(&mut e, metric::MFU_REPORTED, value, 100.0),
                (Kind::Step, key) => {
                    let (name, divisor) = tags::canonical(key).unwrap_or((key, 1.0));
                    out.metric(&mut e, name, value, divisor)
                }
                _ => None,
            };
        }
        if e.m.get(metric::MFU_REPORTED).is_some_and(|v| v < 0.0) {
            e.m.remove(metric::MFU_REPORTED);
        }
        // Forks print other lines that begin so.
        if !(out.reports_loss(&e) || kind == Kind::Step && !e.m.is_empty() && out.has_lost(&e)) {
            return Outcome::Unmatched;
        }
        match kind {
            Kind::Eval => self.evaluated = Some(step),
            _ => self.saving.step(step, line, out),
        }
        out.push(e);
        Outcome::Matched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::CkptPhase;

    impl Sampled for NanoGpt {
        const LOGS: &'static [&'static str] = &[include_str!("../../tests/data/nanogpt_nan.log")];
        const WRITTEN: &'static [Written] =
            &[Written { line: "iter §: ⟨loss ¤, ⟩time 135.20ms, mfu 38.12%", ..PLAIN }];
        const OWN: &'static [Written] =
            &[Written { line: "iter §: loss 2.5, time 135.20ms, reward ¤", ..PLAIN }];
    }

    #[test]
    fn steps_evaluations_and_checkpoints() {
        let mut r = LogReader::new(Some("nanogpt")).unwrap();
        let mut e = Vec::new();
        for l in [
            "saving checkpoint to out",
            "iter 0: loss 10.9, time 3100.00ms, mfu -100.00%",
            "iter 100: loss 3.2345, time 135.20ms, mfu 38.12%",
            "iter 101: loss nan, time 135.20ms",
            "step 250: train loss 3.1000, val loss 3.2000",
            "saving checkpoint to out",
            "iter 250: loss 3.1, time 135.20ms, mfu 38.12%",
            "iter 5: nothing",
            "step 5: x",
        ] {
            r.line(l, &mut e);
        }
        assert_eq!((e.len(), e[0].m.get("mfu_reported"), r.counters().unmatched), (7, None, 3));
        assert_eq!(
            (e[1].step, e[1].m.iter().collect::<Vec<_>>()),
            (Some(100), vec![("loss", 3.2345), ("step_time", 0.1352), ("mfu_reported", 0.3812)])
        );
        assert!(e[2].m.get("loss").unwrap().is_nan());
        assert_eq!((e[3].kind, e[3].step, e[3].name.as_deref()), (Kind::Eval, Some(250), Some("val")));
        assert_eq!(e[3].m.iter().collect::<Vec<_>>(), [("train_loss", 3.1), ("loss", 3.2)]);
        assert_eq!((e[4].ckpt, e[4].step), (Some(CkptPhase::Start), Some(250)));
        assert_eq!((e[5].ckpt, e[5].step), (Some(CkptPhase::End), Some(250)));
        let quantum = r.resolution().get("mfu_reported").unwrap();
        assert!((quantum / 1e-4 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_loss_of_none_is_missing() {
        let mut r = LogReader::new(Some("nanogpt")).unwrap();
        let mut e = Vec::new();
        for l in [
            "iter 0: loss 10.9, time 3100.00ms, mfu -100.00%",
            "iter 1: loss 10.8, time 135.20ms, mfu 38.12%",
            "iter 2: loss 10.7, time 135.20ms, mfu 38.12%",
            "iter 3: loss None, time 135.20ms, mfu 38.12%",
            "iter 4: loss null, time 135.20ms, mfu 38.12%",
            "iter 5: loss Nonesuch, time 135.20ms, mfu 38.12%",
        ] {
            r.line(l, &mut e);
        }
        let seen: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.missing.len())).collect();
        assert_eq!(seen, [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)]);
        assert_eq!((e[3].missing[0].as_str(), e[3].m.get("step_time")), ("loss", Some(0.1352)));
    }
}
