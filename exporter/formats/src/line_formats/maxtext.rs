//! MaxText: `completed step: 1, seconds: 24.930, TFLOP/s/device: 0.861, Tokens/s/device: 164.297,
//! …, loss: 0.693, …`.
//!
//! Behind an absl prefix whose date has no year, so these lines carry no time. Every process prints
//! every step, one step late.

use stepwatch_wire::names::{ckpt, metric};
use stepwatch_wire::{CkptPhase, Event, Kind};

use crate::background::{self, Background};
use crate::format::{self, Format, Line, Out, Outcome};
use crate::number::integer;

#[derive(Debug, Default)]
pub(crate) struct MaxText {
    background: Background,
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
        if let Some(event) = self.checkpoint(line, out) {
            out.push(event);
            return Outcome::Matched;
        }
        // A batch of an evaluation, with the means so far.
        let noise = line.text.contains("metric_logger.py:") || line.text.contains("Completed eval step: ");
        if noise { Outcome::Ignored } else { Outcome::Unmatched }
    }
}

/// What Orbax says of a checkpoint, and what is behind that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Orbax {
    Started,
    /// What the steps wait for is over, and the rest goes on.
    Blocked,
    Finished,
    Loading,
    Loaded,
}

/// Lines of Orbax, the newest first. Those of today begin with `[process=0] [async] ` and are read
/// of the first process only, for all print them. Then the seconds are behind the words, and the
/// directory of the checkpoint behind those.
const ORBAX: &[(&str, Orbax, &str)] = &[
    ("[process=0] [async] Started save checkpoint", Orbax::Started, "@ "),
    ("[process=0] [sync] Started save checkpoint", Orbax::Started, "@ "),
    ("[process=0] [async] Finished blocking save in ", Orbax::Blocked, "@ "),
    ("[process=0] [async] Finished save (blocking + background) in ", Orbax::Finished, "@ "),
    ("[process=0] [sync] Finished save in ", Orbax::Finished, "@ "),
    ("[process=0] [async] Started load checkpoint", Orbax::Loading, "@ "),
    ("[process=0] [sync] Started load checkpoint", Orbax::Loading, "@ "),
    ("[process=0] [async] Finished load (blocking + background) in ", Orbax::Loaded, "@ "),
    ("[process=0] [sync] Finished load in ", Orbax::Loaded, "@ "),
    ("[process=0] Started async saving checkpoint to ", Orbax::Started, ""),
    ("Finished blocking save in ", Orbax::Blocked, "asynchronously to "),
    ("Finished asynchronous save (blocking + background) in ", Orbax::Finished, "seconds to "),
    ("Finished async_save (blocking + background). Time taken: ", Orbax::Finished, "directory="),
];

impl MaxText {
    /// `Saved a checkpoint at step 2.`, in small letters until 2024, or `Started an asynchronous
    /// checkpoint save for step 2`, when the steps wait for it no longer. MaxText does not say when
    /// that one is written. Orbax does, where its lines are shown.
    fn checkpoint(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
        let behind = |words: &str| line.text.split_once(words).map(|(_, rest)| rest);
        let told = behind("aved a checkpoint at step ")
            .or_else(|| behind("Started an asynchronous checkpoint save for step "));
        if let Some(rest) = told {
            return Some(line.checkpoint(CkptPhase::End, Some(integer(rest)?.0)));
        }
        let (what, text, path) = ORBAX.iter().find_map(|&(words, what, before)| {
            let text = behind(words)?;
            let path = if before.is_empty() { text } else { text.split_once(before)?.1 };
            Some((what, text, path.split_whitespace().next()?))
        })?;
        let path = path.trim_end_matches(['.', '/']);
        let step = of_checkpoint(path)?;
        let mut event = match what {
            Orbax::Started => line.checkpoint(CkptPhase::Start, Some(step)),
            Orbax::Blocked => {
                let mut end = line.checkpoint(CkptPhase::End, Some(step));
                format::took(&mut end, text);
                out.push(end);
                self.background.begin(step, line)
            }
            Orbax::Finished if self.background.end(step, line, out) => background::durable(step, line),
            // Of one that goes on in the background, only the end was read.
            Orbax::Finished if line.text.contains("(blocking + background)") => {
                background::durable(step, line)
            }
            Orbax::Finished => line.checkpoint(CkptPhase::End, Some(step)),
            Orbax::Loading => line.stage(ckpt::LOAD, CkptPhase::Start, Some(step)),
            Orbax::Loaded => line.stage(ckpt::LOAD, CkptPhase::End, Some(step)),
        };
        if matches!(what, Orbax::Finished | Orbax::Loaded) {
            format::took(&mut event, text);
        }
        format::at(&mut event, path);
        Some(event)
    }
}

/// The step of the checkpoint in a directory: `run/checkpoints/100`, `checkpoint_100`.
fn of_checkpoint(path: &str) -> Option<i64> {
    let name = path.rsplit('/').next()?;
    let digits = name.rsplit(['_', '-']).next()?;
    integer(digits).filter(|(_, rest)| rest.is_empty()).map(|(step, _)| step)
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
    use crate::background::stages;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::Value;

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
        let end = CkptPhase::End;
        assert_eq!(
            stages(&e),
            [
                (end, "save", Some(2)),
                (end, "save", Some(100)),
                (end, "durable", Some(100)),
                (end, "save", Some(200)),
                (end, "save", Some(300)),
            ],
            "no line says when those of the last two are written"
        );
        assert_eq!([e[5].step, e[6].step], [Some(11), Some(12)]);
        assert_eq!(e[2].extra["seconds"].as_f64(), Some(124.161461));
        assert_eq!(e[2].extra["path"].as_str(), Some("gs://bucket/run/checkpoints/100"));
        assert_eq!((e[6].m.get("loss"), e[6].m.get("step_time")), (Some(0.693), Some(24.93)));
        assert_eq!((r.counters().ignored, r.counters().unmatched), (1, 0));
    }

    /// Composed after the format strings of Orbax's `_src/logging/event_tracking.py`.
    #[test]
    fn the_stages_that_orbax_logs() {
        use CkptPhase::{End, Start};
        let at = "I0426 14:53:16.111465 140438783083712 event_tracking.py:125]";
        let of = |process: u32, text: &str| format!("{at} [process={process}] {text}");
        let save = |process| {
            [
                of(process, "[async] Started save checkpoint @ gs://b/run/checkpoints/100."),
                of(
                    process,
                    "[async] Finished blocking save in 1.55 seconds. Continuing save @ gs://b/run/checkpoints/100.",
                ),
                "Started an asynchronous checkpoint save for step 100".to_owned(),
                of(
                    process,
                    "[async] Finished save (blocking + background) in 192.92 seconds @ gs://b/run/checkpoints/100",
                ),
            ]
        };
        let read = |log: &[String]| lines(&log.iter().map(String::as_str).collect::<Vec<_>>()).0;
        let (e, n) = (read(&save(0)), Some(100));
        assert_eq!(
            stages(&e),
            [
                (Start, "save", n),
                (End, "save", n),
                (Start, "write", n),
                (End, "save", n),
                (End, "write", n),
                (End, "durable", n),
            ]
        );
        let seconds = |e: &Event| e.extra.get("seconds").and_then(Value::as_f64);
        assert_eq!((seconds(&e[1]), seconds(&e[5])), (Some(1.55), Some(192.92)));
        assert_eq!(e[5].extra["path"].as_str(), Some("gs://b/run/checkpoints/100"));
        assert_eq!(stages(&read(&save(3))), [(End, "save", n)], "each process prints them");
        let sync = [
            of(0, "[sync] Started save checkpoint @ /data/rlpd/checkpoint_2000."),
            of(
                0,
                "[sync] Finished blocking save in 1.55 seconds. Continuing save @ /data/rlpd/checkpoint_2000.",
            ),
            of(0, "[sync] Finished save in 1.61 seconds @ /data/rlpd/checkpoint_2000"),
            of(0, "[sync] Started load checkpoint @ /data/rlpd/checkpoint_2000."),
            of(0, "[sync] Finished load in 3.00 seconds @ /data/rlpd/checkpoint_2000"),
        ];
        let n = Some(2000);
        let e = read(&sync);
        assert_eq!(stages(&e), [(Start, "save", n), (End, "save", n), (Start, "load", n), (End, "load", n)]);
        assert_eq!((seconds(&e[1]), seconds(&e[3])), (Some(1.61), Some(3.0)));
    }

    /// Composed after lines of Orbax in logs of 2025.
    #[test]
    fn the_stages_that_orbax_logged_in_2025() {
        use CkptPhase::{End, Start};
        let (e, _) = lines(&[
            "15:51:37.775 [I] [process=0] Started async saving checkpoint to /ckpt/pvc_train/99999. (10726:async_checkpointer.py:439)",
            "15:52:07.710 [I] Finished blocking save in 29.94 seconds. Continuing to save asynchronously to /ckpt/pvc_train/99999. (10726:async_checkpointer.py:548)",
            "15:54:50.698 [I] Finished asynchronous save (blocking + background) in 192.92 seconds to /ckpt/pvc_train/99999 (10726:async_checkpointer.py:412)",
        ]);
        let n = Some(99999);
        assert_eq!(
            stages(&e),
            [
                (Start, "save", n),
                (End, "save", n),
                (Start, "write", n),
                (End, "write", n),
                (End, "durable", n)
            ]
        );
        assert_eq!(e[1].extra["seconds"].as_f64(), Some(29.94));
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
