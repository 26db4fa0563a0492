//! torchtitan's console: `[titan] TIME - root - INFO - step: 20  loss: 11.83506  grad_norm:  9.6669
//! memory: … tps: 4,376  …`.
//!
//! `tps` (`wps` in 2024) is per device. `mfu: N/A` (FP8) is absent. Of an asynchronous checkpoint
//! torchtitan itself logs only the staging, for which the steps wait. With `async_with_pinned_mem`
//! a process of `torch.distributed.checkpoint` writes it, and every rank's logs when it begins and
//! when it is done. A thread, of `async`, logs nothing, so no stage after the save is reported
//! then: one that never ends would leave the run without a checkpoint.

mod model;

use stepwatch_wire::names::{ckpt, metric};
use stepwatch_wire::{CkptPhase, Event};

use crate::background;
use crate::format::{self, Format, Line, Out, Outcome};
use crate::number::{after, find, integer, split_once};
use crate::time;

#[derive(Debug, Default)]
pub(crate) struct Torchtitan {
    last_step: Option<i64>,
    /// The step of the checkpoint that is being loaded.
    loading: Option<i64>,
    /// Its checkpoints are written by a process that logs it.
    is_written: bool,
    /// The last checkpoint is being saved, which is never written behind the steps.
    is_last: bool,
    model: model::Model,
}

const KEYS: &[(&str, &str, f64)] = &[
    ("loss:", metric::LOSS, 1.0),
    ("grad_norm:", metric::GRAD_NORM, 1.0),
    ("tps:", metric::TOKENS_PER_SECOND_PER_GPU, 1.0),
    ("wps:", metric::TOKENS_PER_SECOND_PER_GPU, 1.0),
    ("tflops:", metric::TFLOPS_REPORTED, 1.0),
    ("mfu:", metric::MFU_REPORTED, 100.0),
    ("memory:", "memory_gib", 1.0),
];

impl Format for Torchtitan {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let (text, ts) = unwrap(line);
        let line = &Line { ts, ..*line };
        let step = after(text, "step:").and_then(integer);
        let has = |marker| find(text, marker).is_some();
        let eval = text.starts_with("validate");
        let read =
            step.map(|(step, _)| if eval { line.eval(Some(step), "validate") } else { line.step(step) });
        let is_step = |e: &Event| {
            (has("loss:") || out.may_lack_loss(e)) && has("memory:") && (has("tps:") || has("wps:"))
        };
        let Some(mut e) = read.filter(is_step) else {
            return self.other(text, line, out);
        };
        for (marker, name, divisor) in KEYS {
            if let Some(value) = after(text, marker) {
                out.metric(&mut e, name, value, *divisor);
            }
        }
        let share = after(text, "memory:").and_then(|m| split_once(m, "GiB(")).map(|(_, share)| share);
        if let Some(share) = share {
            out.metric(&mut e, "memory_ratio", share, 100.0);
        }
        if !eval {
            self.last_step = e.step;
            let (rate, tflops) =
                (e.m.get(metric::TOKENS_PER_SECOND_PER_GPU), e.m.get(metric::TFLOPS_REPORTED));
            let no_mfu = after(text, "mfu:").is_some_and(|v| v.trim_start().starts_with("N/A"));
            if let Some(hello) = self.model.step(line, rate, tflops, no_mfu) {
                out.push(hello);
            }
        }
        out.push(e);
        Outcome::Matched
    }
}

impl Torchtitan {
    /// Checkpoints, the end, and what is only known to be ours.
    fn other(&mut self, text: &str, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if self.written(text, line, out).is_some() {
            return Outcome::Matched;
        }
        let begins = |words: &[&str]| words.iter().any(|w| text.starts_with(w));
        if begins(&["Saving the checkpoint", "Staging the checkpoint"]) {
            // What follows says whether it is the last one.
            self.is_last = false;
            out.push(line.checkpoint(CkptPhase::Start, self.last_step));
        } else if begins(&[
            "Finished saving the checkpoint",
            "Finished staging the checkpoint",
            "Last step checkpoint completed",
        ]) {
            out.push(ended(line.checkpoint(CkptPhase::End, self.last_step), text));
            // In a run whose others count when they are written, this one counts now.
            let is_whole = core::mem::take(&mut self.is_last) && self.is_written;
            if let Some(step) = self.last_step.filter(|_| is_whole) {
                out.push(background::durable(step, line));
            }
        } else if begins(&["Saving a full checkpoint at last step", "Saving a model only checkpoint in "]) {
            self.is_last = true;
            return Outcome::Ignored;
        } else if let Some(path) = text.strip_prefix("Loading the checkpoint from ") {
            let path = path.trim_end_matches('.');
            let step = step_of(path);
            let mut e = line.stage(ckpt::LOAD, CkptPhase::Start, step);
            format::at(&mut e, path);
            self.loading = step;
            out.push(e);
        } else if begins(&["Finished loading the checkpoint"]) {
            out.push(ended(line.stage(ckpt::LOAD, CkptPhase::End, self.loading.take()), text));
        } else if text.starts_with("Training completed") {
            out.push(line.done(self.last_step));
        } else {
            self.model.take(text);
            return if line.text.starts_with("[titan]") { Outcome::Ignored } else { Outcome::Unmatched };
        }
        Outcome::Matched
    }

    /// What the process that writes checkpoints says. All ranks wait for each other before one of
    /// them is done, so the checkpoint is whole then.
    fn written(&mut self, text: &str, line: &Line<'_>, out: &mut Out<'_>) -> Option<()> {
        let (phase, path) =
            if let Some(path) = text.strip_prefix("Received async checkpoint request with id=") {
                (CkptPhase::Start, path)
            } else if let Some(rest) = text.strip_prefix("Checkpoint save failed for checkpoint_id=") {
                (CkptPhase::Fail, rest.split_once(": ").map_or(rest, |(path, _)| path))
            } else {
                // `Submitted` until 2025.
                let rest = ["Completed", "Submitted"].iter().find_map(|word| text.strip_prefix(word))?;
                let rest = rest.strip_prefix(" checkpoint save request for checkpoint_id=")?;
                (
                    CkptPhase::End,
                    rest.strip_prefix("_CheckpointRequestIdentifier(checkpoint_id='")?.split_once('\'')?.0,
                )
            };
        let step = step_of(path)?;
        self.is_written = true;
        let mut e = line.stage(ckpt::WRITE, phase, Some(step));
        format::at(&mut e, path);
        out.push(e);
        if phase == CkptPhase::End {
            out.push(background::durable(step, line));
        }
        Some(())
    }
}

/// The step in the path of a checkpoint: `outputs/checkpoint/step-1000`.
fn step_of(path: &str) -> Option<i64> {
    let (step, rest) = integer(path.rsplit_once("step-")?.1)?;
    rest.is_empty().then_some(step)
}

/// Sets how long it took: `… (or staging if async is enabled)in 1.23 seconds.`, `… completed in
/// 1.23s`.
fn ended(mut event: Event, text: &str) -> Event {
    let seconds = text.rsplit_once("in ").map(|(_, seconds)| seconds);
    seconds.into_iter().for_each(|seconds| format::took(&mut event, seconds));
    event
}

/// The message without `[titan] 2026-08-21 10:00:00,000 - root - INFO - `. The process that writes
/// checkpoints has its rank in place of the name, `[0] `, or logs as Python does by default.
fn unwrap<'a>(line: &Line<'a>) -> (&'a str, Option<f64>) {
    let tagged = line.text.strip_prefix('[').and_then(|t| t.split_once(']'));
    let is_ours = |tag: &str| tag == "titan" || !tag.is_empty() && tag.bytes().all(|b| b.is_ascii_digit());
    let message = tagged.filter(|(tag, _)| is_ours(tag)).map_or(line.text, |(_, message)| message);
    let message = message.trim_start();
    let mut text = message.strip_prefix("INFO:root:").unwrap_or(message);
    let mut ts = line.ts;
    if let Some((stamp, rest)) = time::lead(text) {
        (text, ts) = (rest, Some(line.unix(stamp)));
    }
    let text = text.trim_start_matches([' ', '-']);
    let message = text.strip_prefix("root - ").and_then(|t| split_once(t, " - ")).map_or(text, |(_, m)| m);
    (message.trim_start(), ts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::{Kind, Value};

    impl Sampled for Torchtitan {
        const LOGS: &'static [&'static str] = &[
            include_str!("../../tests/data/torchtitan_stdout.log"),
            include_str!("../../tests/data/torchtitan_2026.log"),
            WRITES,
        ];
        const WRITTEN: &'static [Written] = &[Written {
            line: "[rank0]:[titan] 2026-05-18 16:04:48,577 - root - INFO - step: §⟨  loss:  ¤⟩  grad_norm:  0.5443  memory:  9.46GiB(64.99%)  tps: 7,313  tflops: 0.52  mfu: 0.17%",
            ..PLAIN
        }];
    }

    fn read(lines: &[&str]) -> (Vec<Event>, LogReader) {
        let mut r = LogReader::new(Some("torchtitan")).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        out.retain(|e| e.kind != Kind::Hello);
        (out, r)
    }

    const WRITES: &str = include_str!("../../tests/data/torchtitan_async.log");

    #[test]
    fn the_process_that_writes_says_when() {
        let (e, _) = read(&WRITES.lines().collect::<Vec<_>>());
        let (start, end) = (CkptPhase::Start, CkptPhase::End);
        let (first, n) = (Some(1), Some(800));
        assert_eq!(
            background::stages(&e),
            [
                (start, "write", first),
                (end, "write", first),
                (end, "durable", first),
                (start, "save", n),
                (end, "save", n),
                (start, "write", n),
            ]
        );
        assert_eq!(e[0].extra["path"].as_str(), Some("./outputs/checkpoint/step-1"));
    }

    /// Composed after the format strings of PyTorch's
    /// `torch/distributed/checkpoint/_async_process_executor.py`.
    #[test]
    fn writes_of_several_ranks_that_fail_and_the_last_save() {
        let p = |rank: u32| format!("[rank{rank}]:[{rank}] 2026-08-21 10:00:00,000 - root - INFO - ");
        let titan = "[rank0]:[titan] 2026-08-21 10:00:00,000 - root - INFO - ";
        let id = "_CheckpointRequestIdentifier(checkpoint_id='o/step-20', uuid='3')";
        let received = |rank| format!("{}Received async checkpoint request with id=o/step-20", p(rank));
        let completed = |rank| format!("{}Completed checkpoint save request for checkpoint_id={id}", p(rank));
        let (e, _) = read(&[
            STEP,
            &received(1),
            "[rank0]:INFO:root:Received async checkpoint request with id=o/step-20",
            &completed(1),
            &completed(0),
            &format!("{}Checkpoint save failed for checkpoint_id=o/step-30: [Errno 28] step-9", p(0)),
            &format!("{titan}Saving a full checkpoint at last step, step 20."),
            &format!("{titan}Last step checkpoint completed in 2.50s"),
            &format!("{}Received async checkpoint request with id=None", p(0)),
            &format!("{}Received async checkpoint request with id=o/step-99999999999999999999", p(0)),
            &format!(
                "{}Completed checkpoint save request for checkpoint_id=_CheckpointRequestIdentifier(",
                p(0)
            ),
        ]);
        let (start, end, fail, n) = (CkptPhase::Start, CkptPhase::End, CkptPhase::Fail, Some(20));
        assert_eq!(
            background::stages(&e),
            [
                (start, "write", n),
                (start, "write", n),
                (end, "write", n),
                (end, "durable", n),
                (end, "write", n),
                (end, "durable", n),
                (fail, "write", Some(30)),
                (end, "save", n),
                (end, "durable", n),
            ]
        );
    }

    #[test]
    fn a_last_save_that_did_not_end_makes_no_later_one_durable() {
        let titan = "[rank0]:[titan] 2026-08-21 10:00:00,000 - root - INFO - ";
        let (e, _) = read(&[
            STEP,
            "[rank0]:[0] 2026-08-21 10:00:00,000 - root - INFO - Received async checkpoint request with id=o/step-20",
            &format!("{titan}Staging the checkpoint."),
            &format!("{titan}Saving a full checkpoint at last step, step 20."),
            // The job dies, and its next attempt stages a checkpoint.
            STEP,
            &format!("{titan}Staging the checkpoint."),
            &format!("{titan}Finished staging the checkpoint in 0.50 seconds."),
        ]);
        let (start, end, n) = (CkptPhase::Start, CkptPhase::End, Some(20));
        let want = [(start, "write", n), (start, "save", n), (start, "save", n), (end, "save", n)];
        assert_eq!(background::stages(&e), want);
    }

    const STEP: &str = concat!(
        "\u{1b}[31m[rank0]:[titan] 2026-08-21 10:00:00,000 - root - INFO - step: 20  loss: 11.83506  grad_norm:  9.6669",
        "  memory: 48.87GiB(51.44%)  tps: 4,376  tflops: 253.41  mfu: 25.62%\u{1b}[39m"
    );

    #[test]
    fn steps_of_today() {
        let (e, r) = read(&[STEP]);
        assert_eq!((e[0].kind, e[0].step, e[0].ts), (Kind::Step, Some(20), Some(1787306400.0)));
        assert_eq!(
            e[0].m.iter().collect::<Vec<_>>(),
            [
                ("loss", 11.83506),
                ("grad_norm", 9.6669),
                ("tokens_per_second_per_gpu", 4376.0),
                ("tflops_reported", 253.41),
                ("mfu_reported", 0.2562),
                ("memory_gib", 48.87),
                ("memory_ratio", 0.5144),
            ]
        );
        let quantum = |name| r.resolution().get(name).unwrap();
        assert!((quantum("loss") / 1e-5 - 1.0).abs() < 1e-9);
        assert!((quantum("mfu_reported") / 1e-4 - 1.0).abs() < 1e-9, "percent to two decimals");
    }

    #[test]
    fn steps_of_2024_and_numbers_that_are_none() {
        let (e, _) = read(&[
            "2024-06-03 10:00:00,000 - root - INFO - step:  1  loss:  nan  memory: 1.0GiB(1%)  wps: 300  mfu: N/A",
        ]);
        assert!(e[0].m.get("loss").unwrap().is_nan() && e[0].m.get("mfu_reported").is_none());
        assert_eq!((e[0].step, e[0].m.get("tokens_per_second_per_gpu")), (Some(1), Some(300.0)));
    }

    #[test]
    fn evaluations_checkpoints_and_the_end() {
        let p = "[titan] 2026-08-21 10:00:00,000 - root - INFO - ";
        let (e, r) = read(&[
            STEP,
            &format!("{p}validate step: 20  loss: 11.5  memory: 1.0GiB(1%)  tps: 300"),
            &format!("{p}Saving the checkpoint (or staging if async is enabled)."),
            &format!("{p}Finished saving the checkpoint (or staging if async is enabled)in 1.23 seconds."),
            &format!("{p}Staging the checkpoint."),
            &format!("{p}Finished staging the checkpoint in 0.50 seconds."),
            &format!("{p}Saving a full checkpoint at last step, step 20."),
            &format!("{p}Last step checkpoint completed in 2.50s"),
            &format!("{p}Training completed"),
        ]);
        assert_eq!(
            (e[1].kind, e[1].name.as_deref(), e[1].step, e[1].m.get("loss")),
            (Kind::Eval, Some("validate"), Some(20), Some(11.5))
        );
        let seconds = |e: &Event| e.extra.get("seconds").and_then(Value::as_f64);
        let seen: Vec<_> = e[2..7].iter().map(|e| (e.ckpt, e.step, seconds(e))).collect();
        let (start, end) = (Some(CkptPhase::Start), Some(CkptPhase::End));
        assert_eq!(
            seen,
            [
                (start, Some(20), None),
                (end, Some(20), Some(1.23)),
                (start, Some(20), None),
                (end, Some(20), Some(0.5)),
                (end, Some(20), Some(2.5)),
            ]
        );
        assert_eq!((e[7].kind, e[7].code), (Kind::Bye, Some(0)));
        assert_eq!((r.counters().ignored, r.counters().unmatched), (1, 0));
        assert_eq!(read(&["step: 5 loss: 1.0"]).0, []);
    }

    /// Composed after the format strings of `torchtitan/components/checkpointer/dcp.py`.
    #[test]
    fn loads_and_seconds_that_are_none() {
        let p = "[titan] 2026-08-21 10:00:00,000 - root - INFO - ";
        let (e, _) = read(&[
            &format!("{p}Loading the checkpoint from outputs/checkpoint/step-1000."),
            &format!("{p}Finished loading the checkpoint in 12.50 seconds."),
            STEP,
            &format!("{p}Finished staging the checkpoint in nan seconds."),
            &format!("{p}Finished staging the checkpoint in 1e300 seconds."),
        ]);
        let (start, end, step) = (CkptPhase::Start, CkptPhase::End, Some(20));
        assert_eq!(
            background::stages(&e),
            [
                (start, "load", Some(1000)),
                (end, "load", Some(1000)),
                (end, "save", step),
                (end, "save", step)
            ],
        );
        let seconds = |e: &Event| e.extra.get("seconds").and_then(Value::as_f64);
        assert_eq!(e.iter().map(seconds).collect::<Vec<_>>(), [None, Some(12.5), None, None, None]);
        assert_eq!(e[0].extra["path"].as_str(), Some("outputs/checkpoint/step-1000"));
    }

    #[test]
    fn a_loss_of_none_is_missing() {
        let none = STEP.replace("11.83506", " None");
        let (e, _) = read(&[STEP, STEP, &none]);
        let seen: Vec<_> = e.iter().map(|e| (e.m.get("loss").is_some(), e.missing.clone())).collect();
        assert_eq!(seen, [(true, vec![]), (true, vec![]), (false, vec!["loss".to_owned()])]);
    }
}
