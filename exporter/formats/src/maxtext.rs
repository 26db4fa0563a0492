//! MaxText: `completed step: 1, seconds: 24.930, TFLOP/s/device: 0.861, Tokens/s/device: 164.297, …, loss: 0.693, …`.
//!
//! Behind an absl prefix whose date has no year, so these lines carry no time. Every process prints every step, one step late.

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use crate::format::{Format, Line, Out, Outcome};
use crate::number::integer;

#[derive(Debug, Default)]
pub(crate) struct MaxText;

impl Format for MaxText {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some((_, rest)) = line.text.split_once("completed step: ") {
            return read(rest, ": ", Event::new(Kind::Step), line, out);
        }
        if let Some((_, rest)) = line.text.split_once("Completed eval after train step ") {
            let eval = Event { name: Some("eval".into()), ..Event::new(Kind::Eval) };
            return read(rest, "=", eval, line, out);
        }
        if line.text.contains("metric_logger.py:") { Outcome::Ignored } else { Outcome::Unmatched }
    }
}

/// A step number, then `key<separator>value` behind commas.
fn read(text: &str, separator: &str, mut e: Event, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
    let Some((step, rest)) = integer(text) else { return Outcome::Unmatched };
    (e.step, e.ts) = (Some(step), line.ts);
    for (key, value) in rest.split(", ").filter_map(|f| f.split_once(separator)) {
        let name = match key.trim() {
            "seconds" => metric::STEP_TIME,
            "TFLOP/s/device" => metric::TFLOPS_REPORTED,
            "Tokens/s/device" => metric::TOKENS_PER_SECOND_PER_GPU,
            other => other,
        };
        out.metric(&mut e, name, value, 1.0);
    }
    if e.m.get(metric::LOSS).is_none() {
        return Outcome::Unmatched;
    }
    out.push(e);
    Outcome::Matched
}
