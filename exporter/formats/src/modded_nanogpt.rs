//! modded-nanogpt: `step:1/1845 train_time:73ms step_avg:73.23ms`, evaluations with `val_loss:` in front.
//!
//! Times are cumulative; a step's time is the difference. Recent records print no training loss at all.

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

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
        let Some((step, rest)) = head.filter(|(_, rest)| rest.starts_with('/')) else {
            return Outcome::Unmatched;
        };
        let Some(time) = after(rest, "train_time:").and_then(number::lex).filter(|n| n.value.is_finite())
        else {
            return Outcome::Unmatched;
        };
        let millis = time.value * if time.rest.starts_with("ms") { 1.0 } else { 1000.0 };
        let val = after(rest, "val_loss:");
        let mut e = Event { step: Some(step), ts: line.ts, ..Event::new(Kind::Step) };
        if let Some(value) = val {
            (e.kind, e.name) = (Kind::Eval, Some("val".into()));
            out.metric(&mut e, metric::LOSS, value, 1.0);
        } else {
            if let Some(value) = after(rest, "train_loss:") {
                out.metric(&mut e, metric::LOSS, value, 1.0);
            }
            if let Some((before, then)) = self.before.filter(|(s, t)| *s < step && *t <= millis) {
                let steps = (step - before) as f64;
                out.value(&mut e, metric::STEP_TIME, (millis - then) / steps / 1000.0);
                out.resolution(metric::STEP_TIME, 0.001);
            }
        }
        self.before = Some((step, millis));
        out.push(e);
        Outcome::Matched
    }
}
