//! verl's console: `step:1 - actor/pg_loss:0.000 - actor/grad_norm:2.060 - actor/lr(1e-4):0.010 - …`, one line a step.

use stepwatch_wire::{Event, Kind};

use crate::format::{Format, Line, Out, Outcome};
use crate::{number, tags};

/// Keys of the form `group/name` that make a line verl's.
const MIN_KEYS: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Verl;

impl Format for Verl {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let Some((head, rest)) = line.text.split_once(" - ") else { return Outcome::Unmatched };
        let Some((step, "")) = head.strip_prefix("step:").and_then(number::integer) else {
            return Outcome::Unmatched;
        };
        let fields = || rest.split(" - ").filter_map(|f| f.rsplit_once(':'));
        if fields().filter(|(k, _)| k.contains('/')).count() < MIN_KEYS {
            return Outcome::Unmatched;
        }
        let mut e = Event { step: Some(step), ts: line.ts, ..Event::new(Kind::Step) };
        for (key, value) in fields() {
            // `actor/lr(1e-4):0.010` is 0.010 times 1e-4; `np.float64(0.5)` is 0.5.
            let (key, unit) = match key.split_once('(') {
                Some((k, u)) => (k, number::lex(u).map_or(1.0, |n| n.value)),
                None => (key, 1.0),
            };
            let value = value.split_once('(').filter(|(f, _)| f.starts_with("np.")).map_or(value, |(_, v)| v);
            let (name, divisor) = tags::canonical(key.trim()).unwrap_or((key.trim(), 1.0));
            if unit != 0.0 && unit.is_finite() {
                out.metric(&mut e, name, value, divisor / unit);
            }
        }
        out.push(e);
        Outcome::Matched
    }
}
