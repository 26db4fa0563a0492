//! llm.c: its `main.log` (`s:123 trl:3.4568 lr:0.000600 norm:0.43`, `s:250 tel:3.3`, `s:250 eval:0.30`) and its console
//! (`step  123/18865 | loss 3.456789 (+0.12z)| norm 0.4321 (-0.30z)| lr 6.00e-04 | 123.45 ms | 51.2% bf16 MFU | 431234 tok/s`).

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use crate::format::{Format, Line, Out, Outcome};
use crate::number;

#[derive(Debug, Default)]
pub(crate) struct Llmc {
    last_step: Option<i64>,
}

impl Format for Llmc {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let event = main_log(line, out).or_else(|| console(line, out)).or_else(|| {
            let value = line.text.strip_prefix("val loss ")?;
            let mut e = evaluation(self.last_step?, "val", line);
            out.metric(&mut e, metric::LOSS, value, 1.0)?;
            Some(e)
        });
        let Some(event) = event else { return Outcome::Unmatched };
        self.last_step = event.step;
        out.push(event);
        Outcome::Matched
    }
}

fn evaluation(step: i64, name: &str, line: &Line<'_>) -> Event {
    Event { step: Some(step), ts: line.ts, name: Some(name.into()), ..Event::new(Kind::Eval) }
}

fn main_log(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let (step, rest) = number::integer(line.text.strip_prefix("s:")?)?;
    let fields = || rest.split_whitespace().filter_map(|f| f.split_once(':'));
    let (first, value) = fields().next()?;
    match first {
        "tel" => {
            let mut e = evaluation(step, "val", line);
            out.metric(&mut e, metric::LOSS, value, 1.0)?;
            Some(e)
        }
        "eval" => {
            let mut e = evaluation(step, "hellaswag", line);
            out.metric(&mut e, "accuracy", value, 1.0)?;
            Some(e)
        }
        "trl" => {
            let mut e = Event { step: Some(step), ts: line.ts, ..Event::new(Kind::Step) };
            for (key, value) in fields() {
                match key {
                    "trl" => out.metric(&mut e, metric::LOSS, value, 1.0),
                    "lr" => out.metric(&mut e, metric::LR, value, 1.0),
                    "norm" => out.metric(&mut e, metric::GRAD_NORM, value, 1.0),
                    _ => None,
                };
            }
            e.m.get(metric::LOSS)?;
            Some(e)
        }
        _ => None,
    }
}

fn console(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let mut fields = line.text.split('|').map(str::trim);
    let (step, rest) = number::integer(fields.next()?.strip_prefix("step ")?)?;
    rest.strip_prefix('/')?;
    let mut e = Event { step: Some(step), ts: line.ts, ..Event::new(Kind::Step) };
    for field in fields {
        if let Some(v) = field.strip_prefix("loss ") {
            out.metric(&mut e, metric::LOSS, v, 1.0);
        } else if let Some(v) = field.strip_prefix("norm ") {
            out.metric(&mut e, metric::GRAD_NORM, v, 1.0);
        } else if let Some(v) = field.strip_prefix("lr ") {
            out.metric(&mut e, metric::LR, v, 1.0);
        } else if field.ends_with(" ms") {
            out.metric(&mut e, metric::STEP_TIME, field, 1000.0);
        } else if field.ends_with("MFU") {
            out.metric(&mut e, metric::MFU_REPORTED, field, 100.0);
        } else if field.ends_with("tok/s") {
            out.metric(&mut e, metric::TOKENS_PER_SECOND, field, 1.0);
        }
    }
    // The first step prints an MFU of -100 %.
    if e.m.get(metric::MFU_REPORTED).is_some_and(|v| v < 0.0) {
        e.m.remove(metric::MFU_REPORTED);
    }
    e.m.get(metric::LOSS)?;
    e.m.get(metric::STEP_TIME)?;
    Some(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;

    #[test]
    fn console_lines() {
        let mut r = Reader::new(Some("llmc")).unwrap();
        let mut e = Vec::new();
        for l in [
            "step  123/18865 | loss 3.456789 (+0.12z)| norm 0.4321 (-0.30z)| lr 6.00e-04 | 123.45 ms | 51.2% bf16 MFU | 431234 tok/s",
            "val loss 3.25",
            "s:250 eval:0.30",
            "step 5 | x",
            "s:5 x:1",
        ] {
            r.line(l, &mut e);
        }
        assert_eq!(e.len(), 3);
        let m = &e[0].m;
        assert_eq!(
            (e[0].step, m.get("loss"), m.get("grad_norm"), m.get("lr")),
            (Some(123), Some(3.456789), Some(0.4321), Some(6e-4))
        );
        assert_eq!(
            (m.get("step_time"), m.get("mfu_reported"), m.get("tokens_per_second")),
            (Some(0.12345), Some(0.512), Some(431234.0))
        );
        assert_eq!((e[1].kind, e[1].step, e[1].m.get("loss")), (Kind::Eval, Some(123), Some(3.25)));
        assert_eq!((e[2].name.as_deref(), e[2].m.get("accuracy")), (Some("hellaswag"), Some(0.3)));
    }
}
