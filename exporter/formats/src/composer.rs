//! Composer and LLM Foundry: a record of several lines, `[batch=1/100]:` and then `Train loss/train/total: 10.9736`, ….
//!
//! Nothing marks the end of a record, so a step is told when its loss is read and carries the metrics that stood before the loss.

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use crate::format::{Format, Line, Out, Outcome};
use crate::{number, tags};

#[derive(Debug, Default)]
pub(crate) struct Composer {
    /// The step whose record is being read.
    open: Option<Event>,
}

impl Format for Composer {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some(step) = header(line.text) {
            self.open = Some(Event { step: Some(step), ts: line.ts, ..Event::new(Kind::Step) });
            return Outcome::Ignored;
        }
        let Some((key, value)) = line.text.strip_prefix("Train ").and_then(|t| t.rsplit_once(": ")) else {
            return Outcome::Unmatched;
        };
        let Some(mut e) = self.open.take() else { return Outcome::Unmatched };
        match tags::canonical(key) {
            Some((metric::LOSS, _)) => {
                if out.metric(&mut e, metric::LOSS, value, 1.0).is_some() {
                    out.push(e);
                    return Outcome::Matched;
                }
            }
            Some((name, divisor)) => drop(out.metric(&mut e, name, value, divisor)),
            None => drop(out.metric(&mut e, key, value, 1.0)),
        }
        self.open = Some(e);
        Outcome::Ignored
    }
}

/// `[batch=1/100]:`, `[epoch=1][batch=3/100]:`.
fn header(text: &str) -> Option<i64> {
    let (_, rest) = text.strip_suffix("]:")?.split_once("[batch=")?;
    let (step, rest) = number::integer(rest)?;
    rest.starts_with('/').then_some(step)
}
