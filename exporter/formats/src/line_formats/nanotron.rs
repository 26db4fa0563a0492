//! nanotron: `04/07 10:00:00 [INFO|DP=0|PP=0|TP=0|node-12]: iteration: 100 / 3200000 |
//! consumed_tokens: 236M | … | lm_loss: 2.34 | …`.
//!
//! Three significant digits and a suffix for people: a loss moves in steps of 0.01, a gradient norm
//! of 1.25 too, tokens per second in steps of up to 1 %. Recent versions stamp lines without a
//! year, which is no time; older ones (`10/17/2025 16:31:56`) are read.

use std::collections::BTreeSet;

use stepwatch_wire::names::{ckpt, metric};
use stepwatch_wire::{CkptPhase, Event, MAX_TEXT};

use crate::format::{self, Format, Line, Out, Outcome};
use crate::pause::Saving;
use crate::{number, tags, time};

const DIGITS: i32 = 3;
/// The most nodes whose uploads are followed. Those beyond end no upload.
const MAX_NODES: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Nanotron {
    last_step: Option<i64>,
    saving: Saving,
    /// The upload that began last.
    uploading: Option<Upload>,
}

/// An upload by one process of each node.
#[derive(Debug)]
struct Upload {
    step: i64,
    /// The processes that upload, by the brackets of their lines.
    open: BTreeSet<String>,
}

impl Format for Nanotron {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let Some((message, ts)) = message(line) else { return Outcome::Unmatched };
        let line = &Line { ts, ..*line };
        if let Some((step, event)) = step(message, line, out) {
            self.saving.step(step, line, out);
            if self.last_step.is_some_and(|last| step < last) {
                self.uploading = None; // the processes are gone
            }
            self.last_step = Some(step);
            out.push(event);
            return Outcome::Matched;
        }
        if message.starts_with("Saving checkpoint at ") && self.saving.begin(self.last_step, line, out) {
            return Outcome::Matched;
        }
        if let Some(outcome) = message.strip_prefix("[S3] ").and_then(|said| self.upload(said, line, out)) {
            return outcome;
        }
        if line.text.contains("[INFO|") { Outcome::Ignored } else { Outcome::Unmatched }
    }
}

impl Nanotron {
    /// Every node uploads with `s5cmd`: `[S3] Uploading checkpoint in background from /scratch//100
    /// to s3://b/run//100 (direct link: …)`, and when that command succeeded, `[S3] Successfully
    /// uploaded 12 files for a total of 1.5GB in 12.3 sec(all files) from /scratch//100 to S3 at
    /// s3://b/run//100 (direct link: …)`. nanotron counts its lock among the files, so `not all
    /// files` is no failure. A command that failed is reported until the run ends.
    ///
    /// Lines of several nodes that no launcher prefixed look as if one process wrote them. The
    /// checkpoint is then uploaded when all of the nodes that began are done.
    fn upload(&mut self, message: &str, line: &Line<'_>, out: &mut Out<'_>) -> Option<Outcome> {
        let phase = if message.starts_with("Uploading checkpoint in background from ") {
            CkptPhase::Start
        } else if message.starts_with("Successfully uploaded ") {
            CkptPhase::End
        } else if message.contains(" during process UPLOADING, return code ") {
            let step = self.uploading.take()?.step;
            out.push(line.stage(ckpt::UPLOAD, CkptPhase::Fail, Some(step)));
            return Some(Outcome::Matched);
        } else {
            return None;
        };
        let (head, _) = message.rsplit_once(" (direct link: ")?;
        let (before, path) = head.rsplit_once(' ')?;
        let (step, "") = number::integer(path.rsplit_once('/')?.1)? else { return None };
        if !self.follows(step, phase, line) {
            return Some(Outcome::Ignored);
        }
        let mut e = line.stage(ckpt::UPLOAD, phase, Some(step));
        format::at(&mut e, path);
        if phase == CkptPhase::End {
            let seconds = before.split_once("B in ").map(|(_, seconds)| seconds);
            seconds.into_iter().for_each(|seconds| format::took(&mut e, seconds));
        }
        out.push(e);
        Some(Outcome::Matched)
    }

    /// Follows which processes upload. Whether that is an edge of the upload as a whole, or of a
    /// process that the prefix of its line may name.
    fn follows(&mut self, step: i64, phase: CkptPhase, line: &Line<'_>) -> bool {
        let tag = line.text.split_once("]: ").and_then(|(head, _)| head.split_once('['));
        let tag = tag.map(|(_, tag)| tag).filter(|tag| tag.len() <= MAX_TEXT).unwrap_or_default();
        let is_prefixed = !line.raw.starts_with(line.text);
        if phase == CkptPhase::Start {
            let same = self.uploading.take_if(|upload| upload.step == step);
            let mut upload = same.unwrap_or_else(|| Upload { step, open: BTreeSet::new() });
            let is_first = upload.open.is_empty();
            if upload.open.len() < MAX_NODES {
                upload.open.insert(tag.to_owned());
            }
            self.uploading = Some(upload);
            return is_first || is_prefixed;
        }
        let Some(upload) = self.uploading.as_mut().filter(|upload| upload.step == step) else { return true };
        upload.open.remove(tag);
        let is_last = upload.open.is_empty();
        if is_last {
            self.uploading = None;
        }
        is_last || is_prefixed
    }
}

/// The text after `10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: `, and when it was written.
fn message<'a>(line: &Line<'a>) -> Option<(&'a str, Option<f64>)> {
    if line.text.starts_with("iteration: ") {
        return Some((line.text, line.ts));
    }
    let (head, message) = line.text.split_once("]: ")?;
    let (when, _) = head.split_once(['['])?;
    let ts = time::american(when).map(|s| line.unix(s));
    when.starts_with(|c: char| c.is_ascii_digit()).then_some((message, ts.or(line.ts)))
}

fn step(message: &str, line: &Line<'_>, out: &mut Out<'_>) -> Option<(i64, Event)> {
    let mut fields = message.strip_prefix("iteration: ")?.split(" | ");
    let (step, total) = number::integer(fields.next()?)?;
    number::integer(total.trim_start().strip_prefix('/')?)?;
    let mut e = line.step(step);
    let mut batch = None;
    for (key, value) in fields.filter_map(|f| f.split_once(": ")) {
        match key {
            // How long people must wait, in words.
            "eta" => {}
            "global_batch_size" => batch = read(value),
            "time_per_iteration_ms" | "elapsed_time_per_iteration_ms" => {
                set(&mut e, metric::STEP_TIME, value, 1000.0, out);
            }
            "model_tflops_per_gpu" => set(&mut e, metric::TFLOPS_REPORTED, value, 1.0, out),
            _ => {
                let (name, divisor) = tags::canonical(key).unwrap_or((key, 1.0));
                set(&mut e, name, value, divisor, out);
            }
        }
    }
    if let Some((size, quantum)) = batch {
        // Counted in sequences by old versions, in tokens by new ones.
        let rate = e.m.get(metric::TOKENS_PER_SECOND).zip(e.m.get(metric::STEP_TIME));
        let tokens =
            rate.is_some_and(|(per_second, seconds)| (size / (per_second * seconds) - 1.0).abs() < 0.1);
        out.number(&mut e, if tokens { metric::TOKENS } else { metric::SAMPLES }, size, quantum);
    }
    (!e.m.is_empty()).then_some((step, e))
}

fn set(e: &mut Event, name: &str, text: &str, divisor: f64, out: &mut Out<'_>) {
    if let Some((value, quantum)) = read(text) {
        out.number(e, name, value / divisor, quantum.map(|q| q / divisor));
    }
}

/// A number and its quantum. Infinity is printed as larger than the largest suffix: `infE`.
fn read(text: &str) -> Option<(f64, Option<f64>)> {
    let text = text.trim();
    let text = text.strip_suffix('E').filter(|t| t.ends_with("inf")).unwrap_or(text);
    let n = number::human(text)?;
    let mantissa = text.split(['e', 'E']).next().unwrap_or(text).trim_start_matches(['-', '0', '.']);
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
    // Forks that print more digits have their own resolution.
    let quantum = if digits as i32 > DIGITS { n.quantum } else { number::quantum_of_digits(n.value, DIGITS) };
    Some((n.value, quantum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::{Kind, Value};

    impl Sampled for Nanotron {
        const LOGS: &'static [&'static str] = &[include_str!("../../tests/data/nanotron.log")];
        const WRITTEN: &'static [Written] = &[Written {
            line: "10/17/2025 16:32:19 [INFO|DP=0|PP=0|TP=0]: iteration: § / 378950 | consumed_tokens: 85.8G | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K |⟨ lm_loss: ¤ |⟩ lr: 1e-05 | grad_norm: 1.21",
            word: None,
            ..PLAIN
        }];
    }

    fn read_log(lines: &[&str]) -> (Vec<Event>, LogReader) {
        let mut r = LogReader::new(Some("nanotron")).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        (out, r)
    }

    #[test]
    fn today() {
        let (e, r) = read_log(&[concat!(
            "\u{1b}[2;3m04/07 10:00:00 [INFO|DP=0|PP=0|TP=0|node-12]\u{1b}[0m: iteration: 100 / 3200000 |",
            " consumed_tokens: 236M | time_per_iteration_ms: 438 | tokens_per_sec: 5.39M |",
            " tokens_per_sec_per_gpu: 14K | global_batch_size: 2.36M | grad_norm: 0.412 | lm_loss: 2.34 |",
            " lr: 0.0002 | model_tflops_per_gpu: 291 | eta: 16 days, 4:00:00",
        )]);
        assert_eq!((e[0].kind, e[0].step, e[0].ts), (Kind::Step, Some(100), None));
        assert_eq!(
            e[0].m.iter().collect::<Vec<_>>(),
            [
                ("consumed_tokens", 236e6),
                ("step_time", 0.438),
                ("tokens_per_second", 5.39e6),
                ("tokens_per_second_per_gpu", 14e3),
                ("grad_norm", 0.412),
                ("loss", 2.34),
                ("lr", 0.0002),
                ("tflops_reported", 291.0),
                ("tokens", 2.36e6),
            ]
        );
        for (name, want) in [
            ("tokens_per_second", 1e4),
            ("tokens_per_second_per_gpu", 100.0),
            ("loss", 0.01),
            ("grad_norm", 1e-3),
            ("lr", 1e-6),
            ("step_time", 1e-3),
        ] {
            assert!((r.resolution().get(name).unwrap() / want - 1.0).abs() < 1e-9, "{name}");
        }
    }

    #[test]
    fn older_versions_and_numbers_that_are_none() {
        let (e, _) = read_log(&[
            concat!(
                "01/17/2024 13:47:27 [INFO|DP=0|PP=0|TP=0|ip-26-0-160-225]: iteration: 991 / 1000 | consumed_tokens: 634K |",
                " elapsed_time_per_iteration_ms: 45 | tokens_per_sec: 14.2K | tokens_per_sec_per_gpu: 1.78K |",
                " global_batch_size: 20 | lm_loss: 10.6 | lr: 1e-05 | model_tflops_per_gpu: 0.00869 |",
                " hardware_tflops_per_gpu: 0.00869 | grad_norm: 0.515 | cuda_memory_allocated: 75.2M",
            ),
            "[INFO]: iteration: 991 | lm_loss: nan",
            "iteration: 992 / 1000 | lm_loss: nan | grad_norm: infE",
            "iteration: 993 / 1000 | lm_loss: 2.345678E+00 | lr: 1.000E-04",
        ]);
        assert_eq!(e.len(), 3);
        assert_eq!((e[0].step, e[0].ts), (Some(991), Some(1705499247.0)));
        let m = &e[0].m;
        assert_eq!(
            (m.get("samples"), m.get("tokens"), m.get("step_time"), m.get("hardware_tflops_per_gpu")),
            (Some(20.0), None, Some(0.045), Some(0.00869))
        );
        assert_eq!(m.get("cuda_memory_allocated"), Some(75.2e6));
        assert!(e[1].m.get("loss").unwrap().is_nan());
        assert_eq!(e[1].m.get("grad_norm"), Some(f64::INFINITY));
        assert_eq!((e[2].m.get("loss"), e[2].m.get("lr")), (Some(2.345678), Some(1e-4)));
    }

    #[test]
    fn a_checkpoint_ends_before_the_next_step() {
        let p = "04/07 10:00:00 [INFO|DP=0|PP=0|TP=0]: ";
        let (e, r) = read_log(&[
            &format!("{p}Saving checkpoint at /ckpt/0"),
            &format!("{p}iteration: 100 / 200 | lm_loss: 2.34"),
            &format!("{p}Saving checkpoint at /ckpt/100"),
            &format!("{p}iteration: 101 / 200 | lm_loss: 2.34"),
            &format!("{p}iteration: 102 / 200 | lm_loss: 2.34"),
        ]);
        let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step, e.ckpt)).collect();
        assert_eq!(
            seen,
            [
                (Kind::Step, Some(100), None),
                (Kind::Ckpt, Some(100), Some(CkptPhase::Start)),
                (Kind::Ckpt, Some(100), Some(CkptPhase::End)),
                (Kind::Step, Some(101), None),
                (Kind::Step, Some(102), None),
            ]
        );
        assert_eq!(r.counters().ignored, 1);
    }

    /// Composed after the format strings of `src/nanotron/s3_checkpoints/s3_mover.py`.
    #[test]
    fn uploads() {
        let p = "04/07 10:00:00 [WARNING|DP=0|PP=0|TP=0|node-12]: [S3] ";
        let link = "(direct link: https://s3.console.aws.amazon.com/s3/buckets/b?region=us-east-1)";
        let begins = |n: &str| {
            format!("{p}Uploading checkpoint in background from /scratch//{n} to s3://b/run//{n} {link}")
        };
        let ends = |n: &str, files: &str| {
            format!(
                "{p}Successfully uploaded 12 files for a total of 1.5GB in 12.3 sec({files}) from /scratch//{n} to S3 at s3://b/run//{n} {link}"
            )
        };
        let fails = format!(
            "{p}Error running command ['s5cmd', 'cp'] during process UPLOADING, return code 1, return message x"
        );
        let (e, _) = read_log(&[
            &fails,
            &begins("100"),
            &ends("100", "all files"),
            &fails,
            &begins("200"),
            &ends("200", "not all files: 13 out of 12"),
            &begins("300"),
            &fails,
            &fails,
            &begins("latest"),
            &begins("99999999999999999999"),
            &format!("{p}Uploading checkpoint in background from /scratch//400"),
            &format!("{p}Successfully uploaded "),
        ]);
        let (start, end, fail) = (CkptPhase::Start, CkptPhase::End, CkptPhase::Fail);
        assert_eq!(
            crate::background::stages(&e),
            [
                (start, "upload", Some(100)),
                (end, "upload", Some(100)),
                (start, "upload", Some(200)),
                (end, "upload", Some(200)),
                (start, "upload", Some(300)),
                (fail, "upload", Some(300)),
            ]
        );
        assert_eq!(e[0].extra["path"].as_str(), Some("s3://b/run//100"));
        assert_eq!(e[1].extra.get("seconds").and_then(Value::as_f64), Some(12.3));
    }

    #[test]
    fn an_upload_of_several_nodes_ends_with_the_last_of_them() {
        let (start, end) = (CkptPhase::Start, CkptPhase::End);
        let says = |node: &str, what: &str, step: i64| {
            let link = format!("s3://b/run//{step} (direct link: x)");
            format!("04/07 10:00:00 [WARNING|DP=0|PP=0|TP=0|{node}]: [S3] {what} {link}")
        };
        let begins = |node: &str, step: i64| {
            says(node, "Uploading checkpoint in background from /scratch//x to", step)
        };
        let ends = |node: &str, secs: &str, step: i64| {
            let what = format!(
                "Successfully uploaded 12 files for a total of 1.5GB in {secs} sec(all files) from /x to S3 at"
            );
            says(node, &what, step)
        };
        let step = |n| format!("04/07 10:00:00 [INFO|DP=0|PP=0|TP=0]: iteration: {n} / 900 | lm_loss: 2.34");
        let read = |lines: &[String]| read_log(&lines.iter().map(String::as_str).collect::<Vec<_>>()).0;
        let stages = |e: &[Event]| -> Vec<_> {
            e.iter().filter(|e| e.kind == Kind::Ckpt).map(|e| (e.ckpt, e.step)).collect()
        };
        let one = [begins("a", 100), begins("b", 100), ends("a", "5.0", 100)];
        let (began, ended) = ((Some(start), Some(100)), (Some(end), Some(100)));
        assert_eq!(stages(&read(&one)), [began], "the other node still uploads");
        let e = read(&[&one[..], &[ends("b", "9.5", 100), begins("a", 200)]].concat());
        assert_eq!(stages(&e), [began, ended, (Some(start), Some(200))]);
        assert_eq!(e[1].extra.get("seconds").and_then(Value::as_f64), Some(9.5));
        // The run goes on elsewhere, from before that checkpoint.
        let e = read(
            &[&[step(101)][..], &one[..], &[step(51), begins("c", 100), ends("c", "5.0", 100)]].concat(),
        );
        assert_eq!(stages(&e), [began, began, ended]);
        // A launcher names the rank.
        let both = [("[rank0]: ", begins("a", 100)), ("[rank8]: ", begins("b", 100))];
        let both = both
            .into_iter()
            .chain([("[rank8]: ", ends("b", "5.0", 100)), ("[rank0]: ", ends("a", "5.0", 100))]);
        let e = read(&both.map(|(rank, line)| format!("{rank}{line}")).collect::<Vec<_>>());
        assert_eq!(stages(&e), [began, began, ended, ended]);
    }
}
