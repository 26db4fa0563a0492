//! modded-nanogpt: `step:1/1845 train_time:73ms step_avg:73.23ms`, evaluations with `val_loss:` in
//! front.
//!
//! Times are cumulative; a step's time is the difference. Recent records print no training loss at
//! all.

use stepwatch_wire::names::metric;

use crate::format::{Format, Line, Out, Outcome};
use crate::number::{self, after};

#[derive(Debug, Default)]
pub(crate) struct ModdedNanoGpt {
    /// Step and milliseconds of training at the line before.
    before: Option<(i64, f64)>,
}

impl Format for ModdedNanoGpt {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let head = line.text.strip_prefix("step:").and_then(number::integer);
        let Some((step, (total, rest))) =
            head.and_then(|(step, rest)| Some((step, number::integer(rest.strip_prefix('/')?)?)))
        else {
            return Outcome::Unmatched;
        };
        let Some(time) = after(rest, "train_time:").and_then(number::lex).filter(|n| n.value.is_finite())
        else {
            return Outcome::Unmatched;
        };
        let unit = if time.rest.starts_with("ms") { 1.0 } else { 1000.0 };
        let (millis, quantum) = (time.value * unit, time.quantum.map(|q| q * unit));
        let val = after(rest, "val_loss:");
        let mut e = if val.is_some() { line.eval(Some(step), "val") } else { line.step(step) };
        if let Some(value) = val {
            out.metric(&mut e, metric::LOSS, value, 1.0);
        } else {
            if let Some(value) = after(rest, "train_loss:") {
                out.metric(&mut e, metric::LOSS, value, 1.0);
            }
            if let Some((before, then)) = self.before.filter(|(s, t)| *s < step && *t <= millis) {
                let scale = (step - before) as f64 * 1000.0;
                out.number(&mut e, metric::STEP_TIME, (millis - then) / scale, quantum.map(|q| q / scale));
            }
        }
        self.before = Some((step, millis));
        out.push(e);
        // The last thing that a run does is to evaluate what it ended with.
        if val.is_some() && total > 0 && step >= total {
            out.push(line.done(Some(step)));
        }
        Outcome::Matched
    }
}

#[cfg(test)]
mod tests {
    use super::ModdedNanoGpt;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::{Event, Kind};

    impl Sampled for ModdedNanoGpt {
        const LOGS: &'static [&'static str] = &[include_str!("../../tests/data/modded_nanogpt.log")];
        const WRITTEN: &'static [Written] = &[Written {
            line: "step:§/1845⟨ train_loss:¤⟩ train_time:§00ms step_avg:100.00ms",
            ..PLAIN
        }];
    }

    fn read(lines: &[&str]) -> (Vec<Event>, LogReader) {
        let mut r = LogReader::new(Some("modded-nanogpt")).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        (out, r)
    }

    #[test]
    fn steps_and_evaluations() {
        let (e, r) = read(&[
            "step:0/4 val_loss:10.8289 train_time:0ms step_avg:0.03ms",
            "step:1/4 train_time:73ms step_avg:73.23ms",
            "step:3/4 train_loss:nan train_time:113ms step_avg:40ms",
            "step:4/4 val_loss:3.2789 train_time:1s step_avg:40ms",
        ]);
        let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step)).collect();
        assert_eq!(
            seen,
            [
                (Kind::Eval, Some(0)),
                (Kind::Step, Some(1)),
                (Kind::Step, Some(3)),
                (Kind::Eval, Some(4)),
                (Kind::Bye, Some(4)),
            ]
        );
        assert_eq!((e[0].m.get("loss"), e[0].name.as_deref()), (Some(10.8289), Some("val")));
        assert_eq!((e[1].m.get("step_time"), e[2].m.get("step_time")), (Some(0.073), Some(0.02)));
        assert!(
            e[2].m.get("loss").unwrap().is_nan() && e[1].m.get("loss").is_none() && e[1].missing.is_empty()
        );
        let quantum = r.resolution().get("step_time").unwrap();
        assert!((quantum / 5e-4 - 1.0).abs() < 1e-9, "a millisecond over two steps");
    }

    #[test]
    fn what_is_no_step() {
        for text in [
            "step:1 train_time:73ms",
            "step:1/x train_time:73ms",
            "step:1/4 step_avg:1ms",
            "step:1/4 train_time:nan",
        ] {
            assert!(read(&[text]).0.is_empty(), "{text}");
        }
    }
}
