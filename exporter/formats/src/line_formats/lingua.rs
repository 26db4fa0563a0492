//! Meta Lingua: `0: INFO    24-10-21 10:00:00.123456 - 0:00:10 - step: 10  acc: 0  loss:  9.1234
//! grad: 1.23e+00  flops: 4.0e+14  …`.
//!
//! `wps` is per GPU of a tensor-parallel group of one; a gradient norm of -1 means that no
//! optimizer step was taken.

use stepwatch_wire::names::metric;
use stepwatch_wire::{CkptPhase, Event};

use crate::format::{Format, Line, Out, Outcome};
use crate::number::{self, after};
use crate::time;

const KEYS: &[(&str, &str, f64)] = &[
    ("loss:", metric::LOSS, 1.0),
    ("grad:", metric::GRAD_NORM, 1.0),
    ("flops:", metric::TFLOPS_REPORTED, 1e12),
    ("wps:", metric::TOKENS_PER_SECOND_PER_GPU, 1.0),
    ("iter:", metric::STEP_TIME, 1.0),
    ("lr:", metric::LR, 1.0),
    ("mem:", "memory_ratio", 100.0),
    ("pow:", "power_watts", 1.0),
];

#[derive(Debug, Default)]
pub(crate) struct Lingua {
    last_step: Option<i64>,
    /// Step of the checkpoint that is being written.
    saving: Option<i64>,
}

impl Format for Lingua {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let (text, ts) = message(line);
        let line = &Line { ts, ..*line };
        let event = step(text, line, out).inspect(|e| self.last_step = e.step);
        let Some(event) = event.or_else(|| self.checkpoint(text, line)) else { return Outcome::Unmatched };
        out.push(event);
        Outcome::Matched
    }
}

impl Lingua {
    /// `Saving to: /dump/checkpoints/0000001000`, and at last `Train state saved !`.
    fn checkpoint(&mut self, text: &str, line: &Line<'_>) -> Option<Event> {
        if let Some(path) = text.strip_prefix("Saving to: ") {
            let (_, name) = path.trim_end_matches('/').rsplit_once('/')?;
            let (step, "") = number::integer(name)? else { return None };
            self.saving = Some(step);
            return Some(line.checkpoint(CkptPhase::Start, Some(step)));
        }
        let step = self.saving.take_if(|_| text.starts_with("Train state saved"))?;
        Some(line.checkpoint(CkptPhase::End, Some(step)))
    }
}

/// The message and the time behind `INFO    24-10-21 10:00:00.123456 - 0:00:10 - `, whose year has
/// two digits.
fn message<'a>(line: &Line<'a>) -> (&'a str, Option<f64>) {
    let behind = || {
        let (level, rest) = line.text.split_once(' ')?;
        let fits = level.bytes().all(|b| b.is_ascii_uppercase());
        let rest = rest.trim_start();
        let (when, message) = rest.split_once(" - ")?;
        let (_, message) = message.split_once(" - ")?;
        let (stamp, _) = time::lead(&format!("20{when}"))?;
        fits.then(|| (message, Some(line.unix(stamp))))
    };
    behind().unwrap_or((line.text, line.ts))
}

fn step(text: &str, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let (step, rest) = number::integer(text.strip_prefix("step:")?)?;
    // Between two optimizer steps the accumulated micro-steps may be printed too: they are no
    // steps.
    let accumulated = after(rest, "acc:").and_then(number::integer)?.0;
    let ours = ["grad:", "flops:", "wps:"].iter().all(|k| after(rest, k).is_some());
    if !ours {
        return None;
    }
    let mut e = line.step(step);
    for (marker, name, divisor) in KEYS {
        if let Some(value) = after(rest, marker) {
            out.metric(&mut e, name, value, *divisor);
        }
    }
    if e.m.get(metric::GRAD_NORM) == Some(-1.0) || accumulated > 0 {
        e.m.remove(metric::GRAD_NORM);
    }
    if let Some(n) = after(rest, "data:").and_then(number::lex) {
        e.t.set("data", n.value);
    }
    Some(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::Kind;

    impl Sampled for Lingua {
        const LOGS: &'static [&'static str] = &[
            "0: INFO    24-10-21 10:00:00.500000 - 0:00:10 - step: 10  acc: 0  loss:  9.1234  grad: 1.23e+00  flops: 4.05e+14  wps: 1.12e+04  iter:  0.4123  data: 0.0012  lr: 3.00e-04  mem: 61%  pow: 650.1 W\n",
        ];
        const WRITTEN: &'static [Written] = &[Written {
            line: "0: INFO    24-10-21 10:00:00.500000 - 0:00:10 - step: §  acc: 0⟨  loss:  ¤⟩  grad: 1.23e+00  flops: 4.05e+14  wps: 1.12e+04  iter:  0.4123  data: 0.0012  lr: 3.00e-04  mem: 61%  pow: 650.1 W",
            ..PLAIN
        }];
    }

    fn read(lines: &[&str]) -> (Vec<Event>, LogReader) {
        let mut r = LogReader::new(Some("lingua")).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        (out, r)
    }

    const STEP: &str = concat!(
        "0: INFO    24-10-21 10:00:00.500000 - 0:00:10 - step: 10  acc: 0  loss:  9.1234  grad: 1.23e+00  flops: 4.05e+14",
        "  wps: 1.12e+04  iter:  0.4123  data: 0.0012  lr: 3.00e-04  mem: 61%  pow: 650.1 W"
    );

    #[test]
    fn steps() {
        let (e, r) = read(&[STEP]);
        assert_eq!((e[0].kind, e[0].step, e[0].ts), (Kind::Step, Some(10), Some(1729504800.5)));
        assert_eq!(
            e[0].m.iter().collect::<Vec<_>>(),
            [
                ("loss", 9.1234),
                ("grad_norm", 1.23),
                ("tflops_reported", 405.0),
                ("tokens_per_second_per_gpu", 11200.0),
                ("step_time", 0.4123),
                ("lr", 3e-4),
                ("memory_ratio", 0.61),
                ("power_watts", 650.1),
            ]
        );
        assert_eq!(e[0].t.get("data"), Some(0.0012));
        let quantum = r.resolution().get("tokens_per_second_per_gpu").unwrap();
        assert!((quantum / 100.0 - 1.0).abs() < 1e-9);
        let (e, _) =
            read(&["step: 3  acc: 2  loss:     nan  grad: -1.00e+00  flops: 4.0e+14  wps: 1.1e+05  iter: 1"]);
        assert!(e[0].m.get("loss").unwrap().is_nan() && e[0].m.get("grad_norm").is_none());
    }

    #[test]
    fn checkpoints() {
        let p = "INFO    24-10-21 10:00:00.500000 - 0:00:10 - ";
        let (e, _) = read(&[
            STEP,
            &format!("{p}Saving to: /dump/checkpoints/0000000010"),
            &format!("{p}State dict saved!"),
            &format!("{p}Train state saved !"),
            &format!("{p}Train state saved !"),
        ]);
        let seen: Vec<_> = e[1..].iter().map(|e| (e.step, e.ckpt, e.ts)).collect();
        assert_eq!(
            seen,
            [
                (Some(10), Some(CkptPhase::Start), Some(1729504800.5)),
                (Some(10), Some(CkptPhase::End), Some(1729504800.5)),
            ]
        );
    }

    #[test]
    fn what_is_no_step_line() {
        for text in [
            "step: 10  loss: 9.1",
            "step: 20  loss: 11.8  grad_norm: 9.6  memory: 48.87GiB(51.44%)  wps: 4,376",
            "Saving to: /dump/checkpoints/last",
            "acc: 0  step: 10",
        ] {
            assert!(read(&[text]).0.is_empty(), "{text}");
        }
    }
}
