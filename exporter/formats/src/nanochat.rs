//! nanochat: `step 00010/21400 (0.05%) | loss: 9.123456 | lrm: 1.00 | dt: 412.33ms | tok/sec: 1,271,000 | bf16_mfu: 46.10 | …`.
//!
//! Its loss is a moving average, so a spike shows late and small.

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use crate::format::{Format, Line, Out, Outcome};
use crate::number;

#[derive(Debug, Default)]
pub(crate) struct Nanochat;

impl Format for Nanochat {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let Some((head, rest)) = line.text.split_once('|') else { return Outcome::Unmatched };
        let step =
            head.strip_prefix("step ").or_else(|| head.strip_prefix("Step ")).and_then(number::integer);
        let Some((step, of)) = step else { return Outcome::Unmatched };
        let fields = || rest.split('|').filter_map(|f| f.split_once(':')).map(|(k, v)| (k.trim(), v));
        let mut e = Event { step: Some(step), ts: line.ts, ..Event::new(Kind::Step) };
        if let Some((_, value)) = fields().find(|(k, _)| k.eq_ignore_ascii_case("validation bpb")) {
            (e.kind, e.name) = (Kind::Eval, Some("validation".into()));
            out.metric(&mut e, "bpb", value, 1.0);
        } else {
            let ours =
                of.starts_with('/') && fields().any(|(k, _)| k == "dt") && fields().any(|(k, _)| k == "loss");
            if !ours {
                return Outcome::Unmatched;
            }
            for (key, value) in fields() {
                match key {
                    "loss" => out.metric(&mut e, metric::LOSS, value, 1.0),
                    "grad norm" => out.metric(&mut e, metric::GRAD_NORM, value, 1.0),
                    "dt" => out.metric(&mut e, metric::STEP_TIME, value, 1000.0),
                    "tok/sec" => out.metric(&mut e, metric::TOKENS_PER_SECOND, value, 1.0),
                    "mfu" | "bf16_mfu" => out.metric(&mut e, metric::MFU_REPORTED, value, 100.0),
                    "lrm" => out.metric(&mut e, "lr_multiplier", value, 1.0),
                    "epoch" => out.metric(&mut e, metric::EPOCH, value, 1.0),
                    _ => None,
                };
            }
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
        let mut r = Reader::new(Some("nanochat")).unwrap();
        let mut e = Vec::new();
        for l in [
            "step 00010/21400 (0.05%) | loss: 9.123456 | grad norm: 0.5 | lrm: 1.00 | dt: 412.33ms | tok/sec: 1,271,000 | bf16_mfu: 46.10 | epoch: 1 | total time: 0.10m",
            "Step 00250 | Validation bpb: 1.0123",
            "step 5 | x",
            "step 00011/21400 | nothing: 1",
        ] {
            r.line(l, &mut e);
        }
        assert_eq!(e.len(), 2);
        let m = &e[0].m;
        assert_eq!(
            (e[0].step, m.get("loss"), m.get("grad_norm"), m.get("step_time")),
            (Some(10), Some(9.123456), Some(0.5), Some(0.41233))
        );
        assert_eq!((m.get("tokens_per_second"), m.get("mfu_reported")), (Some(1271000.0), Some(0.461)));
        assert_eq!((e[1].kind, e[1].step, e[1].m.get("bpb")), (Kind::Eval, Some(250), Some(1.0123)));
    }
}
