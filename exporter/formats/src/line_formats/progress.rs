//! Megatron's `progress.txt` (`--log-progress`): a line at each start and each checkpoint, with the
//! throughput of the job and of all jobs before it. That of an asynchronous one comes when the
//! steps wait no longer, and another when it is durable.
//!
//! `2026-05-29 03:52:45 \tJob ID: 123\t# GPUs: 512\tSaved checkpoint\tIteration: 1000\tJob
//! throughput: 412.3 TFLOP/s/GPU\t…`

use stepwatch_wire::names::{ckpt, metric};
use stepwatch_wire::{CkptPhase, Event, Kind, Value};

use crate::background::Background;
use crate::format::{Format, Line, Out, Outcome};
use crate::number;

#[derive(Debug, Default)]
pub(crate) struct Progress {
    background: Background,
}

/// What a line contains of a checkpoint's numbers: key, our name, divisor.
const NUMBERS: &[(&str, &str, f64)] = &[
    ("Job throughput", metric::TFLOPS_REPORTED, 1.0),
    ("Cumulative throughput", "cumulative_tflops_reported", 1.0),
    ("Floating-point operations", "total_flops", 1.0),
    ("Tokens (in billions)", "total_tokens", 1e-9),
];

impl Format for Progress {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let Some(fields) = line.text.strip_prefix("Job ID:") else { return Outcome::Unmatched };
        let mut fields = fields.split('\t').map(str::trim);
        let job = fields.next().unwrap_or("");
        let gpus = fields.next().and_then(|f| f.strip_prefix("# GPUs:")).and_then(number::integer);
        let (Some((gpus, "")), Some(what)) = (gpus, fields.next()) else { return Outcome::Unmatched };
        let world = u32::try_from(gpus).ok();
        let mut e = match what {
            "Starting job" => {
                let mut e = Event { ts: line.ts, world, ..Event::new(Kind::Hello) };
                e.extra.insert("framework".into(), Value::Text("megatron".into()));
                if !job.is_empty() {
                    let job = job.chars().take(stepwatch_wire::MAX_TEXT).collect();
                    e.extra.insert("job".into(), Value::Text(job));
                }
                out.push(e);
                return Outcome::Matched;
            }
            "Saved checkpoint" | "Saving async checkpoint" => line.checkpoint(CkptPhase::End, None),
            "Saved async checkpoint" => line.stage(ckpt::DURABLE, CkptPhase::End, None),
            _ => return Outcome::Ignored,
        };
        e.world = world;
        for (key, value) in fields.filter_map(|f| f.split_once(':')) {
            if key == "Iteration" {
                e.step = number::integer(value).map(|(step, _)| step).filter(|s| *s >= 0);
            } else if let Some((_, name, divisor)) = NUMBERS.iter().find(|(k, ..)| *k == key) {
                out.metric(&mut e, name, value, *divisor);
            }
        }
        let Some(step) = e.step else { return Outcome::Unmatched };
        if what == "Saved async checkpoint" {
            self.background.end(step, line, out);
        }
        out.push(e);
        if what == "Saving async checkpoint" {
            let goes_on = self.background.begin(step, line);
            out.push(goes_on);
        }
        Outcome::Matched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{Sampled, Written};

    impl Sampled for Progress {
        const LOGS: &'static [&'static str] = &[];
        const WRITTEN: &'static [Written] = &[];
    }

    fn read(lines: &[&str]) -> Vec<Event> {
        let mut r = LogReader::new(None).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        assert!(out.is_empty() || r.name() == "megatron-progress", "{}", r.name());
        out
    }

    #[test]
    fn starts_and_checkpoints() {
        let e = read(&[
            "2026-05-29 03:52:45\tJob ID: 123\t# GPUs: 512\tStarting job",
            "2026-05-29 04:52:45\tJob ID: 123\t# GPUs: 512\tSaved checkpoint\tIteration: 1000\tJob throughput: 412.3 TFLOP/s/GPU\t\
             Cumulative throughput: 398.1 TFLOP/s/GPU\tFloating-point operations: 1.20e+22\tTokens (in billions): 4.19",
            "2026-05-29 05:52:45\tJob ID: \t# GPUs: 512\tSaving async checkpoint\tIteration: 2000\tJob throughput: 410.0 TFLOP/s/GPU",
            "2026-05-29 05:53:45\tJob ID: \t# GPUs: 512\tSaved async checkpoint\tIteration: 2000",
        ]);
        assert_eq!((e[0].kind, e[0].world, e[0].ts), (Kind::Hello, Some(512), Some(1780026765.0)));
        assert_eq!(e[0].extra["job"].as_str(), Some("123"));
        let (start, end, n) = (CkptPhase::Start, CkptPhase::End, Some(2000));
        assert_eq!(
            crate::background::stages(&e),
            [
                (end, "save", Some(1000)),
                (end, "save", n),
                (start, "write", n),
                (end, "write", n),
                (end, "durable", n)
            ]
        );
        let m: Vec<_> = e[1].m.iter().collect();
        let want = [
            ("tflops_reported", 412.3),
            ("cumulative_tflops_reported", 398.1),
            ("total_flops", 1.2e22),
            ("total_tokens", 4.19e9),
        ];
        assert_eq!(m.len(), want.len());
        assert!(m.iter().zip(want).all(|(a, b)| a.0 == b.0 && (a.1 / b.1 - 1.0).abs() < 1e-12), "{m:?}");
    }

    #[test]
    fn other_lines_are_not_it() {
        for text in ["Job ID: 5", "Job ID: 5\tx\ty", "Job ID: 5\t# GPUs: 8\tSaved checkpoint\tIteration: x"] {
            assert!(read(&[text]).is_empty(), "{text}");
        }
    }
}
