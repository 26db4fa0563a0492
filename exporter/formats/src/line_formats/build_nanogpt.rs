//! build-nanogpt: `step    10 | loss: 6.512345 | lr 1.2336e-05 | norm: 2.3456 | dt: 330.12ms |
//! tok/sec: 1588123.45`, and the `log.txt` beside it, `10 train 6.512345`, `250 val 5.8431`, `250
//! hella 0.2463`.
//!
//! The console prints an evaluation without its step (`validation loss: 5.8431`): it is run before
//! the step that is printed next.

use stepwatch_wire::names::metric;
use stepwatch_wire::{CkptPhase, Event};

use crate::format::{Format, Line, Out, Outcome};
use crate::{absent, number};

#[derive(Debug, Default)]
pub(crate) struct BuildNanoGpt {
    last_step: Option<i64>,
}

impl Format for BuildNanoGpt {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some(event) = console(line, out) {
            self.last_step = event.step;
            out.push(event);
            return Outcome::Matched;
        }
        if let Some(event) = log(line, out).or_else(|| self.evaluation(line, out)) {
            out.push(event);
            return Outcome::Matched;
        }
        match unfinished(line.text).map(|step| line.step(step)).filter(|e| out.may_lack_loss(e)) {
            Some(event) => out.bare(event),
            None => Outcome::Unmatched,
        }
    }
}

impl BuildNanoGpt {
    fn evaluation(&self, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
        // Before the first step it is unknown which step the evaluation is of.
        let step = self.last_step? + 1;
        if let Some(value) = line.text.strip_prefix("validation loss: ") {
            let mut e = line.eval(Some(step), "val");
            out.metric(&mut e, metric::LOSS, value, 1.0)?;
            return Some(e);
        }
        if let Some(counts) = line.text.strip_prefix("HellaSwag accuracy: ") {
            let mut e = line.eval(Some(step), "hellaswag");
            out.metric(&mut e, "accuracy", counts.split_once('=')?.1, 1.0)?;
            return Some(e);
        }
        line.text.starts_with("saving model checkpoint").then(|| line.checkpoint(CkptPhase::End, Some(step)))
    }
}

fn console(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let (head, rest) = line.text.split_once(" | ")?;
    let (step, "") = number::integer(head.strip_prefix("step ")?)? else { return None };
    let mut e = line.step(step);
    for field in rest.split('|').map(str::trim) {
        let (key, value) = field.split_once(' ')?;
        match key.trim_end_matches(':') {
            "loss" => out.metric(&mut e, metric::LOSS, value, 1.0),
            "lr" => out.metric(&mut e, metric::LR, value, 1.0),
            "norm" | "grad" | "grad_norm" => out.metric(&mut e, metric::GRAD_NORM, value, 1.0),
            "dt" => out.metric(&mut e, metric::STEP_TIME, value, 1000.0),
            "tok/sec" => out.metric(&mut e, metric::TOKENS_PER_SECOND, value, 1.0),
            other => out.metric(&mut e, other, value, 1.0),
        };
    }
    let whole = [metric::STEP_TIME, metric::TOKENS_PER_SECOND].iter().all(|m| e.m.get(m).is_some());
    (whole && out.may_lack_loss(&e)).then_some(e)
}

/// A line of `log.txt`: three words and nothing else.
fn log(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let mut words = line.text.split(' ');
    let (step, what, value) = (words.next()?, words.next()?, words.next()?);
    let ((step, ""), None) = (number::integer(step)?, words.next()) else { return None };
    let (mut e, name) = match what {
        "train" => (line.step(step), metric::LOSS),
        "val" => (line.eval(Some(step), "val"), metric::LOSS),
        "hella" => (line.eval(Some(step), "hellaswag"), "accuracy"),
        _ => return None,
    };
    let read = number::lex(value).is_some_and(|n| n.rest.is_empty());
    if !(read || absent::WORDS.contains(&value) && out.may_lack_loss(&e)) {
        return None;
    }
    let n = out.metric(&mut e, name, value, 1.0);
    (n.is_some() || out.reports_loss(&e)).then_some(e)
}

/// `10 train`, which is such a line whose loss was left out.
fn unfinished(text: &str) -> Option<i64> {
    let (step, " train") = number::integer(text)? else { return None };
    Some(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::Kind;

    impl Sampled for BuildNanoGpt {
        const LOGS: &'static [&'static str] = &[
            "validation loss: 10.9511\nstep     0 | loss: 10.955029 | lr 8.3916e-07 | norm: 15.3366 | dt: 27415.62ms | tok/sec: 19123.74\nstep     1 | loss: 10.911112 | lr 1.6783e-06 | norm: 14.9931 | dt: 330.12ms | tok/sec: 1588123.45\n",
            "0 val 10.9511\n0 hella 0.2463\n0 train 10.955029\n1 train 9.511034\n",
        ];
        const WRITTEN: &'static [Written] = &[
            Written {
                line: "step     § |⟨ loss: ¤ |⟩ lr 1.6783e-06 | norm: 14.9931 | dt: 330.12ms | tok/sec: 1588123.45",
                ..PLAIN
            },
            Written { line: "§ train⟨ ¤⟩", bare: true, ..PLAIN },
        ];
    }

    fn read(lines: &[&str]) -> Vec<Event> {
        let mut r = LogReader::new(Some("build-nanogpt")).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        out
    }

    #[test]
    fn the_console() {
        let e = read(&[
            "validation loss: 10.9511",
            "step   249 | loss: 6.512345 | lr 1.2336e-05 | norm: 2.3456 | dt: 330.12ms | tok/sec: 1588123.45",
            "validation loss: 5.8431",
            "HellaSwag accuracy: 2473/10042=0.2463",
            "saving model checkpoint to log/model_00250.pt",
            "step     0 | loss: nan | norm: 15.3366 | dt: 1.50ms | tok/sec: 5.00",
        ]);
        assert_eq!(
            e[0].m.iter().collect::<Vec<_>>(),
            [
                ("loss", 6.512345),
                ("lr", 1.2336e-5),
                ("grad_norm", 2.3456),
                ("step_time", 0.33012),
                ("tokens_per_second", 1588123.45),
            ]
        );
        assert_eq!((e[0].kind, e[0].step), (Kind::Step, Some(249)));
        assert_eq!((e[1].kind, e[1].step, e[1].m.get("loss")), (Kind::Eval, Some(250), Some(5.8431)));
        assert_eq!((e[2].name.as_deref(), e[2].m.get("accuracy")), (Some("hellaswag"), Some(0.2463)));
        assert_eq!((e[3].ckpt, e[3].step), (Some(CkptPhase::End), Some(250)));
        assert!(e[4].m.get("loss").unwrap().is_nan() && e[4].step == Some(0));
    }

    #[test]
    fn the_file() {
        let e = read(&["0 val 10.9511", "0 hella 0.2463", "0 train 10.955029", "1 train nan"]);
        let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.m.iter().next())).collect();
        assert_eq!(
            seen[..3],
            [
                (Kind::Eval, Some(0), Some(("loss", 10.9511))),
                (Kind::Eval, Some(0), Some(("accuracy", 0.2463))),
                (Kind::Step, Some(0), Some(("loss", 10.955029))),
            ]
        );
        assert!(e[3].m.get("loss").unwrap().is_nan());
    }

    #[test]
    fn what_is_no_step_line() {
        for text in [
            "5 train",
            "5 train 1.0 x",
            "5 trains 1.0",
            "5 val 1.0s",
            "step 5 | loss: 1.0",
            "step 5 | loss: 1.0 | x",
            "validation loss: 1.0",
        ] {
            assert!(read(&[text]).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_loss_of_none_is_missing() {
        let step =
            "step   249 | loss: 6.5 | lr 1.2336e-05 | norm: 2.3456 | dt: 330.12ms | tok/sec: 1588123.45";
        let e = read(&[step, step, &step.replace("6.5", "None")]);
        let seen: Vec<_> = e.iter().map(|e| (e.m.get("loss").is_some(), e.missing.clone())).collect();
        assert_eq!(seen, [(true, vec![]), (true, vec![]), (false, vec!["loss".to_owned()])]);
    }
}
