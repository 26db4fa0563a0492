//! MaxText: `completed step: 1, seconds: 24.930, TFLOP/s/device: 0.861, Tokens/s/device: 164.297,
//! …, loss: 0.693, …`.
//!
//! Behind an absl prefix whose date has no year, so these lines carry no time. Every process prints
//! every step, one step late.

use stepwatch_wire::names::metric;
use stepwatch_wire::{CkptPhase, Event, Kind, MAX_TEXT, Value};

use crate::format::{Format, Line, Out, Outcome};
use crate::number::{self, integer};

#[derive(Debug, Default)]
pub(crate) struct MaxText {
    /// The checkpoint whose save goes on.
    saving: Option<i64>,
}

impl Format for MaxText {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let behind = |words: &str| line.text.split_once(words).map(|(_, rest)| rest);
        // Around a profile the line has the step and no times.
        let step = behind("completed step: ")
            .or_else(|| behind("completed profiler activation/deactivation step: "));
        if let Some(rest) = step {
            return read(rest, ": ", line.event(Kind::Step, None), out);
        }
        // The second is what versions of 2025 print.
        let eval = behind("Completed eval after train step ").or_else(|| behind("eval metrics after step: "));
        if let Some(rest) = eval {
            return read(rest, "=", line.eval(None, "eval"), out);
        }
        if let Some(event) = checkpoint(line) {
            // Orbax begins no save before the last one is done, also where no line shows its end.
            let before = self.saving.take().filter(|_| event.ckpt == Some(CkptPhase::Start));
            before.into_iter().for_each(|step| out.push(line.checkpoint(CkptPhase::End, Some(step))));
            self.saving = event.step.filter(|_| event.ckpt == Some(CkptPhase::Start));
            out.push(event);
            return Outcome::Matched;
        }
        // A batch of an evaluation, with the means so far.
        let noise = line.text.contains("metric_logger.py:") || line.text.contains("Completed eval step: ");
        if noise { Outcome::Ignored } else { Outcome::Unmatched }
    }
}

/// `Saved a checkpoint at step 2.`, in small letters until 2024; or `Started an asynchronous
/// checkpoint save for step 2`, whose end Orbax logs: `Finished async_save (blocking + background).
/// Time taken: 12.3s. directory=gs://bucket/run/checkpoints/2`.
fn checkpoint(line: &Line<'_>) -> Option<Event> {
    let behind = |words: &str| line.text.split_once(words).map(|(_, rest)| rest);
    if let Some(rest) = behind("aved a checkpoint at step ") {
        return Some(line.checkpoint(CkptPhase::End, Some(integer(rest)?.0)));
    }
    if let Some(rest) = behind("Started an asynchronous checkpoint save for step ") {
        return Some(line.checkpoint(CkptPhase::Start, Some(integer(rest)?.0)));
    }
    let rest = behind("Finished async_save (blocking + background). Time taken: ")?;
    let (time, path) = rest.split_once("directory=")?;
    let path = path.split_whitespace().next()?.trim_end_matches('/');
    let (step, "") = integer(path.rsplit_once('/')?.1)? else { return None };
    let mut e = line.checkpoint(CkptPhase::End, Some(step));
    e.extra.insert("path".into(), Value::Text(path.chars().take(MAX_TEXT).collect()));
    e.extra.extend(number::lex(time).map(|n| ("seconds".into(), Value::Number(n.value))));
    Some(e)
}

/// A step number, then `key<separator>value` behind commas.
fn read(text: &str, separator: &str, mut e: Event, out: &mut Out<'_>) -> Outcome {
    let Some((step, rest)) = integer(text) else { return Outcome::Unmatched };
    e.step = Some(step);
    for (key, value) in rest.split(',').filter_map(|f| f.split_once(separator)) {
        let name = match key.trim() {
            "seconds" => metric::STEP_TIME,
            "TFLOP/s/device" => metric::TFLOPS_REPORTED,
            "Tokens/s/device" => metric::TOKENS_PER_SECOND_PER_GPU,
            other => other,
        };
        out.metric(&mut e, name, value, 1.0);
    }
    let whole = e.m.get(metric::STEP_TIME).is_some() && out.may_lack_loss(&e);
    if !(whole || out.reports_loss(&e)) {
        return Outcome::Unmatched;
    }
    out.push(e);
    Outcome::Matched
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};

    impl Sampled for MaxText {
        const LOGS: &'static [&'static str] = &[include_str!("../../tests/data/maxtext_dpo.log")];
        const WRITTEN: &'static [Written] = &[Written {
            line: "I0706 16:50:26.257925 140110937163584 metric_logger.py:214] completed step: §, seconds: 0.570, TFLOP/s/device: 37.633, Tokens/s/device: 7185.042, total_weights: 5480⟨, loss: ¤⟩, lm_loss: 0.000, perplexity: 2.000",
            ..PLAIN
        }];
        const OWN: &'static [Written] =
            &[Written { line: "completed step: §, seconds: 0.570, loss: 2.5, reward: ¤", ..PLAIN }];
    }

    fn lines(lines: &[&str]) -> (Vec<Event>, LogReader) {
        let mut r = LogReader::new(Some("maxtext")).unwrap();
        let mut e = Vec::new();
        for l in lines {
            r.line(l, &mut e);
        }
        (e, r)
    }

    #[test]
    fn steps_evaluations_and_checkpoints() {
        let (e, r) = lines(&[
            "I0706 16:50:26.230209 140110937163584 metric_logger.py:214] completed step: 1, seconds: 24.930, TFLOP/s/device: 0.861, Tokens/s/device: 164.297, total_weights: 6965, loss: 0.693, lm_loss: 0.000, perplexity: 2.000",
            "completed step: 2, seconds: 24.930, TFLOP/s/device: 0.861, Tokens/s/device: 164.297, total_weights: 6965, loss: nan",
            "eval metrics after step: 2, loss=2.345, total_weights=512, avg_mtp_acceptance_rate=12.34%",
            "I0706 16:50:26.230209 140110937163584 max_logging.py:37] saved a checkpoint at step 2",
            "I0706 16:50:50.978396 140110937163584 metric_logger.py:321] To see full metrics 'tensorboard --logdir=/tmp'",
            "completed step: x, loss: 1",
            "completed step: 3, seconds: 1",
        ]);
        assert_eq!((e[0].kind, e[0].step, e[0].ts), (Kind::Step, Some(1), None));
        assert_eq!(
            e[0].m.iter().collect::<Vec<_>>(),
            [
                ("step_time", 24.93),
                ("tflops_reported", 0.861),
                ("tokens_per_second_per_gpu", 164.297),
                ("total_weights", 6965.0),
                ("loss", 0.693),
                ("lm_loss", 0.0),
                ("perplexity", 2.0),
            ]
        );
        assert!(e[1].m.get("loss").unwrap().is_nan());
        assert_eq!((e[2].kind, e[2].step, e[2].m.get("loss")), (Kind::Eval, Some(2), Some(2.345)));
        assert_eq!((e[3].ckpt, e[3].step), (Some(CkptPhase::End), Some(2)));
        assert_eq!((e[4].step, e[4].m.get("loss")), (Some(3), None), "left out where it was there before");
        assert_eq!((e.len(), r.counters().ignored, r.counters().unmatched), (5, 1, 1));
        assert!(lines(&["completed step: 3, seconds: 1"]).0.is_empty(), "it never was");
    }

    #[test]
    fn checkpoints_of_today() {
        let (e, r) = lines(&[
            "I0822 16:50:26.230209 140110937163584 max_logging.py:37] Saved a checkpoint at step 2.",
            "I0822 16:50:26.230209 140110937163584 max_logging.py:37] Started an asynchronous checkpoint save for step 100",
            "I0822 16:52:30.230209 140110937163584 async_checkpointer.py:529] Finished async_save (blocking + background). Time taken: 124.161461s. directory=gs://bucket/run/checkpoints/100",
            "Started an asynchronous checkpoint save for step 200",
            "Started an asynchronous checkpoint save for step 300",
            "Completed eval step: 3, seconds: 0.250, running loss=2.345, running perplexity=10.4, running total_weights=512",
            "completed profiler activation/deactivation step: 11, total_weights: 6965, loss: 0.693, lm_loss: 0.000, perplexity: 2.000",
            "[Rampup Batch Size Phase], completed step: 12, seconds: 24.930, total_weights: 6965, loss: 0.693, lm_loss: 0.000, perplexity: 2.000",
        ]);
        let seen: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.ckpt)).collect();
        let (start, end) = (Some(CkptPhase::Start), Some(CkptPhase::End));
        assert_eq!(
            seen,
            [
                (2, end),
                (100, start),
                (100, end),
                (200, start),
                (200, end),
                (300, start),
                (11, None),
                (12, None),
            ]
        );
        assert_eq!(e[2].extra["seconds"].as_f64(), Some(124.161461));
        assert_eq!(e[2].extra["path"].as_str(), Some("gs://bucket/run/checkpoints/100"));
        assert_eq!((e[7].m.get("loss"), e[7].m.get("step_time")), (Some(0.693), Some(24.93)));
        assert_eq!((r.counters().ignored, r.counters().unmatched), (1, 0));
    }

    #[test]
    fn a_loss_of_none_is_missing() {
        let step = |n: u32, loss: &str| {
            format!(
                "completed step: {n}, seconds: 2.5, TFLOP/s/device: 0.8, total_weights: 6965, loss: {loss}"
            )
        };
        let log = [step(1, "2.5"), step(2, "2.5"), step(3, "None"), step(4, "null")];
        let (e, r) = lines(&log.iter().map(String::as_str).collect::<Vec<_>>());
        let seen: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.missing.len())).collect();
        assert_eq!((seen, r.counters().unmatched), (vec![(1, 0), (2, 0), (3, 1), (4, 1)], 0));
        assert_eq!((e[2].missing[0].as_str(), e[2].m.get("step_time")), ("loss", Some(2.5)));
    }
}
