//! llm.c: its `main.log` (`s:123 trl:3.4568 lr:0.000600 norm:0.43`, `s:250 tel:3.3`, `s:250
//! eval:0.30`) and its console (`step  123/18865 | loss 3.456789 (+0.12z)| norm 0.4321 (-0.30z)| lr
//! 6.00e-04 | 123.45 ms | 51.2% bf16 MFU | 431234 tok/s`).

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use crate::format::{Format, Line, Out, Outcome};
use crate::number;
use crate::pause::Saving;

#[derive(Debug, Default)]
pub(crate) struct Llmc {
    last_step: Option<i64>,
    saving: Saving,
}

impl Format for Llmc {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let event = main_log(line, out).or_else(|| console(line, out));
        if let Some(event) = event {
            self.last_step = event.step;
            if let Some(step) = event.step.filter(|_| event.kind == Kind::Step) {
                self.saving.step(step, line, out);
            }
            out.push(event);
            return Outcome::Matched;
        }
        if let Some(step) = unfinished(line.text).map(|step| line.step(step)).filter(|e| out.may_lack_loss(e))
        {
            return out.bare(step);
        }
        let saved = line.text.strip_prefix("Writing checkpoint at step ").and_then(number::integer);
        if let Some((step, _)) = saved {
            self.saving.begin(Some(step), line, out);
            return Outcome::Matched;
        }
        let Some(event) = self.evaluation(line, out).or_else(|| self.end(line)) else {
            return Outcome::Unmatched;
        };
        out.push(event);
        Outcome::Matched
    }
}

impl Llmc {
    /// `val loss 3.25`, `HellaSwag: 2473/10042 = 0.246265`: of the step that was printed before.
    fn evaluation(&self, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
        if let Some(value) = line.text.strip_prefix("val loss ") {
            let mut e = line.eval(Some(self.last_step?), "val");
            out.metric(&mut e, metric::LOSS, value, 1.0)?;
            return Some(e);
        }
        let (_, value) = line.text.strip_prefix("HellaSwag: ")?.split_once(" = ")?;
        let mut e = line.eval(Some(self.last_step?), "hellaswag");
        out.metric(&mut e, "accuracy", value, 1.0)?;
        Some(e)
    }

    fn end(&self, line: &Line<'_>) -> Option<Event> {
        let over = line.text.starts_with("total average iteration time: ") && self.last_step.is_some();
        over.then(|| line.done(self.last_step))
    }
}

fn main_log(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let (step, rest) = number::integer(line.text.strip_prefix("s:")?)?;
    let fields = || rest.split_whitespace().filter_map(|f| f.split_once(':'));
    let (first, value) = fields().next()?;
    match first {
        "tel" => {
            let mut e = line.eval(Some(step), "val");
            out.metric(&mut e, metric::LOSS, value, 1.0)?;
            Some(e)
        }
        "eval" => {
            let mut e = line.eval(Some(step), "hellaswag");
            out.metric(&mut e, "accuracy", value, 1.0)?;
            Some(e)
        }
        "trl" | "lr" | "norm" => {
            let mut e = line.step(step);
            for (key, value) in fields() {
                match key {
                    "trl" => out.metric(&mut e, metric::LOSS, value, 1.0),
                    "lr" => out.metric(&mut e, metric::LR, value, 1.0),
                    "norm" => out.metric(&mut e, metric::GRAD_NORM, value, 1.0),
                    _ => None,
                };
            }
            let whole = [metric::LR, metric::GRAD_NORM].iter().all(|name| e.m.get(name).is_some());
            (out.reports_loss(&e) || whole && out.may_lack_loss(&e)).then_some(e)
        }
        _ => None,
    }
}

fn console(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let mut fields = line.text.split('|').map(str::trim);
    let (step, rest) = number::integer(fields.next()?.strip_prefix("step ")?)?;
    rest.strip_prefix('/')?;
    let mut e = line.step(step);
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
    e.m.get(metric::STEP_TIME)?;
    out.may_lack_loss(&e).then_some(e)
}

/// `s:123`, which is a line of `main.log` whose loss was left out, and nothing else was on it.
fn unfinished(text: &str) -> Option<i64> {
    let (step, "" | " trl:") = number::integer(text.strip_prefix("s:")?)? else { return None };
    Some(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::CkptPhase;

    impl Sampled for Llmc {
        const LOGS: &'static [&'static str] = &[
            include_str!("../../tests/data/llmc_main.log"),
            include_str!("../../tests/data/llmc_tel_trl.log"),
            include_str!("../../tests/data/llmc_nan.log"),
        ];
        const WRITTEN: &'static [Written] = &[
            Written {
                line: "step   §/7400 |⟨ loss ¤ (+0.12z)|⟩ norm 0.4321 (-0.30z)| lr 6.00e-04 | 123.45 ms | 51.2% bf16 MFU | 431234 tok/s",
                ..PLAIN
            },
            Written { line: "s:§⟨ trl:¤⟩ lr:0.000600 norm:0.43", ..PLAIN },
            Written { line: "s:§⟨ trl:¤⟩", bare: true, ..PLAIN },
        ];
    }

    fn read(lines: &[&str]) -> Vec<Event> {
        let mut r = LogReader::new(Some("llmc")).unwrap();
        let mut e = Vec::new();
        for l in lines {
            r.line(l, &mut e);
        }
        e
    }

    const STEP: &str = "step  123/18865 | loss 3.456789 (+0.12z)| norm 0.4321 (-0.30z)| lr 6.00e-04 | 123.45 ms | 51.2% bf16 MFU | 431234 tok/s";

    #[test]
    fn console_lines() {
        let e =
            read(&["val loss 3.5", STEP, "val loss 3.25", "HellaSwag: 2473/10042 = 0.246265", "step 5 | x"]);
        assert_eq!(e.len(), 3, "an evaluation before the first step is of no step");
        assert_eq!(e[0].step, Some(123));
        assert_eq!(
            e[0].m.iter().collect::<Vec<_>>(),
            [
                ("loss", 3.456789),
                ("grad_norm", 0.4321),
                ("lr", 6e-4),
                ("step_time", 0.12345),
                ("mfu_reported", 0.512),
                ("tokens_per_second", 431234.0),
            ]
        );
        assert_eq!((e[1].kind, e[1].step, e[1].m.get("loss")), (Kind::Eval, Some(123), Some(3.25)));
        assert_eq!((e[2].name.as_deref(), e[2].m.get("accuracy")), (Some("hellaswag"), Some(0.246265)));
        let e = read(&[
            "step    1/18865 | loss nan (+nanz)| norm inf (+nanz)| lr 8.57e-07 | 123.45 ms | -100.0% bf16 MFU | 5 tok/s",
        ]);
        assert!(e[0].m.get("loss").unwrap().is_nan() && e[0].m.get("grad_norm") == Some(f64::INFINITY));
        assert_eq!(e[0].m.get("mfu_reported"), None);
    }

    #[test]
    fn the_main_log() {
        let e = read(&[
            "s:0 tel:11.0092",
            "s:0 trl:11.0091 lr:0.000001 norm:15.3700",
            "s:250 eval:0.30",
            "s:5 x:1",
        ]);
        assert_eq!(e.len(), 3);
        assert_eq!((e[0].kind, e[0].step, e[0].m.get("loss")), (Kind::Eval, Some(0), Some(11.0092)));
        assert_eq!(
            (e[1].step, e[1].m.iter().collect::<Vec<_>>()),
            (Some(0), vec![("loss", 11.0091), ("lr", 1e-6), ("grad_norm", 15.37)])
        );
        assert_eq!((e[2].name.as_deref(), e[2].m.get("accuracy")), (Some("hellaswag"), Some(0.3)));
    }

    #[test]
    fn checkpoints_and_the_end() {
        let e = read(&[
            "Writing checkpoint at step 123",
            "Writing model to log/model_00000123.bin",
            STEP,
            "total average iteration time: 123.450000 ms",
        ]);
        let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.ckpt)).collect();
        assert_eq!(
            seen,
            [
                (Kind::Ckpt, Some(123), Some(CkptPhase::Start)),
                (Kind::Ckpt, Some(123), Some(CkptPhase::End)),
                (Kind::Step, Some(123), None),
                (Kind::Bye, Some(123), None),
            ]
        );
    }

    #[test]
    fn a_loss_of_none_is_missing() {
        let main =
            ["s:1 trl:3.4 lr:0.1 norm:0.4", "s:2 trl:3.4 lr:0.1 norm:0.4", "s:3 trl:None lr:0.1 norm:0.4"];
        let console = STEP.replace("3.456789", "null");
        for log in [&main[..], &[STEP, STEP, &console]] {
            let e = read(log);
            assert_eq!((e.len(), e[1].missing.len()), (3, 0));
            assert_eq!((e[2].missing[0].as_str(), e[2].m.get("loss")), ("loss", None));
        }
    }
}
