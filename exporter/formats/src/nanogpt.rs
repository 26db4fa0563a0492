//! nanoGPT: `iter 100: loss 3.2345, time 135.20ms, mfu 38.12%` and `step 250: train loss 3.1, val loss 3.2`.
//!
//! MFU is printed as -100 % until there is one.

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use crate::format::{Format, Line, Out, Outcome};
use crate::number;

#[derive(Debug, Default)]
pub(crate) struct NanoGpt;

impl Format for NanoGpt {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let (kind, rest) = match line.text.split_once(' ') {
            Some(("iter", rest)) => (Kind::Step, rest),
            Some(("step", rest)) => (Kind::Eval, rest),
            _ => return Outcome::Unmatched,
        };
        let Some((step, rest)) = number::integer(rest) else { return Outcome::Unmatched };
        let Some(rest) = rest.strip_prefix(": ") else { return Outcome::Unmatched };
        let mut e = Event { step: Some(step), ts: line.ts, ..Event::new(kind) };
        if kind == Kind::Eval {
            e.name = Some("val".into());
        }
        for field in rest.split(", ") {
            let Some((key, value)) = field.rsplit_once(' ') else { continue };
            match (kind, key) {
                (Kind::Step, "loss") | (Kind::Eval, "val loss") => {
                    out.metric(&mut e, metric::LOSS, value, 1.0)
                }
                (Kind::Eval, "train loss") => out.metric(&mut e, "train_loss", value, 1.0),
                (Kind::Step, "time") => out.metric(&mut e, metric::STEP_TIME, value, 1000.0),
                (Kind::Step, "mfu") => out.metric(&mut e, metric::MFU_REPORTED, value, 100.0),
                _ => None,
            };
        }
        if e.m.get(metric::MFU_REPORTED).is_some_and(|v| v < 0.0) {
            e.m.remove(metric::MFU_REPORTED);
        }
        if e.m.get(metric::LOSS).is_none() {
            return Outcome::Unmatched;
        }
        out.push(e);
        Outcome::Matched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;

    #[test]
    fn steps_and_evaluations() {
        let mut r = Reader::new(Some("nanogpt")).unwrap();
        let mut e = Vec::new();
        for l in [
            "iter 0: loss 10.9, time 3100.00ms, mfu -100.00%",
            "iter 100: loss 3.2345, time 135.20ms, mfu 38.12%",
            "step 250: train loss 3.1, val loss 3.2",
            "iter 5: nothing",
            "step 5: x",
        ] {
            r.line(l, &mut e);
        }
        assert_eq!((e.len(), e[0].m.get("mfu_reported")), (3, None));
        let m = &e[1].m;
        assert_eq!(
            (e[1].step, m.get("loss"), m.get("step_time"), m.get("mfu_reported")),
            (Some(100), Some(3.2345), Some(0.1352), Some(0.3812))
        );
        assert_eq!(
            (e[2].kind, e[2].step, e[2].m.get("loss"), e[2].m.get("train_loss")),
            (Kind::Eval, Some(250), Some(3.2), Some(3.1))
        );
    }
}
