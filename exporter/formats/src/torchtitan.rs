//! torchtitan's console: `[titan] TIME - root - INFO - step: 20  loss: 11.83506  grad_norm:  9.6669  memory: … tps: 4,376  …`.
//!
//! `tps` is per device. `mfu: N/A` (FP8) is absent.

use stepwatch_wire::names::metric;
use stepwatch_wire::{CkptPhase, Event, Kind};

use crate::format::{Format, Line, Out, Outcome};
use crate::number::{after, integer};
use crate::time;

#[derive(Debug, Default)]
pub(crate) struct Torchtitan {
    last_step: Option<i64>,
}

const KEYS: &[(&str, &str, f64)] = &[
    ("loss:", metric::LOSS, 1.0),
    ("grad_norm:", metric::GRAD_NORM, 1.0),
    ("tps:", metric::TOKENS_PER_SECOND_PER_GPU, 1.0),
    ("wps:", metric::TOKENS_PER_SECOND_PER_GPU, 1.0),
    ("tflops:", metric::TFLOPS_REPORTED, 1.0),
    ("mfu:", metric::MFU_REPORTED, 100.0),
    ("memory:", "memory_gib", 1.0),
];

impl Format for Torchtitan {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let (text, ts) = unwrap(line);
        let step = after(text, "step:").and_then(integer);
        let is_step = text.contains("loss:")
            && text.contains("memory:")
            && (text.contains("tps:") || text.contains("wps:"));
        let Some((step, _)) = step.filter(|_| is_step) else {
            return self.other(text, ts, out);
        };
        let eval = text.starts_with("validate");
        let mut e = Event { step: Some(step), ts, ..Event::new(if eval { Kind::Eval } else { Kind::Step }) };
        if eval {
            e.name = Some("validate".into());
        }
        for (marker, name, divisor) in KEYS {
            if let Some(value) = after(text, marker) {
                out.metric(&mut e, name, value, *divisor);
            }
        }
        if !eval {
            self.last_step = Some(step);
        }
        out.push(e);
        Outcome::Matched
    }
}

impl Torchtitan {
    /// Checkpoints, the end, and what is only known to be ours.
    fn other(&self, text: &str, ts: Option<f64>, out: &mut Out<'_>) -> Outcome {
        let ckpt = |phase| Event { step: self.last_step, ts, ckpt: Some(phase), ..Event::new(Kind::Ckpt) };
        if text.starts_with("Saving the checkpoint") {
            out.push(ckpt(CkptPhase::Start));
        } else if text.starts_with("Finished saving the checkpoint")
            || text.starts_with("Last step checkpoint completed")
        {
            out.push(ckpt(CkptPhase::End));
        } else if text.starts_with("Training completed") {
            out.push(Event { step: self.last_step, ts, code: Some(0), ..Event::new(Kind::Bye) });
        } else {
            return Outcome::Unmatched;
        }
        Outcome::Matched
    }
}

/// The message without `[titan] 2026-08-21 10:00:00,000 - root - INFO - `.
fn unwrap<'a>(line: &Line<'a>) -> (&'a str, Option<f64>) {
    let mut text = line.text.strip_prefix("[titan]").unwrap_or(line.text).trim_start();
    let mut ts = line.ts;
    if let Some((stamp, rest)) = time::lead(text) {
        (text, ts) = (rest, Some(line.unix(stamp)));
    }
    let text = text.trim_start_matches([' ', '-']);
    let message = text.strip_prefix("root - ").and_then(|t| t.split_once(" - ")).map_or(text, |(_, m)| m);
    (message.trim_start(), ts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;

    fn read(lines: &[&str]) -> Vec<Event> {
        let mut r = Reader::new(Some("torchtitan")).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        out
    }

    const STEP: &str = concat!(
        "\u{1b}[31m[rank0]:[titan] 2026-08-21 10:00:00,000 - root - INFO - step: 20  loss: 11.83506  grad_norm:  9.6669",
        "  memory: 48.87GiB(51.44%)  tps: 4,376  tflops: 253.41  mfu: 25.62%\u{1b}[39m"
    );

    #[test]
    fn steps() {
        let e = read(&[STEP, "step:  1  loss:  nan  memory: 1.0GiB(1%)  wps: 300  mfu: N/A"]);
        assert_eq!((e[0].step, e[0].ts), (Some(20), Some(1787306400.0)));
        let m = &e[0].m;
        assert_eq!(
            (m.get("loss"), m.get("grad_norm"), m.get("mfu_reported")),
            (Some(11.83506), Some(9.6669), Some(0.2562))
        );
        assert_eq!(
            (m.get("tokens_per_second_per_gpu"), m.get("tflops_reported")),
            (Some(4376.0), Some(253.41))
        );
        assert!(e[1].m.get("loss").unwrap().is_nan() && e[1].m.get("mfu_reported").is_none());
    }

    #[test]
    fn evaluations_checkpoints_and_the_end() {
        let p = "[titan] 2026-08-21 10:00:00,000 - root - INFO - ";
        let e = read(&[
            STEP,
            &format!("{p}validate step: 20  loss: 11.5  memory: 1.0GiB(1%)  tps: 300"),
            &format!("{p}Saving the checkpoint (or staging if async is enabled)."),
            &format!("{p}Finished saving the checkpoint in 1.23 seconds."),
            &format!("{p}Training completed"),
        ]);
        assert_eq!((e[1].kind, e[1].m.get("loss")), (Kind::Eval, Some(11.5)));
        assert_eq!(
            (e[2].ckpt, e[3].ckpt, e[3].step),
            (Some(CkptPhase::Start), Some(CkptPhase::End), Some(20))
        );
        assert_eq!(e[4].kind, Kind::Bye);
        assert_eq!(read(&["step: 5 loss: 1.0"]), []);
    }
}
