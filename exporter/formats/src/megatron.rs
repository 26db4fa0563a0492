//! Megatron and its family: Megatron-LM (2020 to today), Megatron-Bridge, Megatron-DeepSpeed, GPT-NeoX, BLOOM, ROCm.
//!
//! They share one step line, `iteration N/ TOTAL | key: value | …`, and differ in its keys and units. All but
//! GPT-NeoX print a loss only if it compares as positive, so a NaN loss is a field that is not there: this is
//! where [`stepwatch_wire::Event::missing`] comes from. A window whose iterations were all skipped (fp16 overflow)
//! has no loss either, and is no accident.

use stepwatch_wire::names::metric;
use stepwatch_wire::{CkptPhase, Event, Kind, Value};

use crate::format::{Format, Line, Out, Outcome};
use crate::number;

/// Losses of one log that are remembered to notice their absence.
const MAX_LOSSES: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Megatron {
    /// The step line before this one.
    before: Option<Before>,
    /// Metric names of the losses seen so far.
    losses: Vec<String>,
    /// The key that is this log's `loss`, where it is none of the usual names.
    main_loss: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Before {
    step: i64,
    consumed_tokens: Option<f64>,
}

/// What a key of the step line means.
enum Meaning {
    /// The number divided by this.
    Metric(&'static str, f64),
    Loss,
    Custom,
}

impl Format for Megatron {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some((step, fields)) = step_line(line.text) {
            let event = self.step(step, fields, line, out);
            out.push(event);
            return Outcome::Matched;
        }
        if let Some(event) = validation(line, out).or_else(|| checkpoint(line)).or_else(|| end(line)) {
            out.push(event);
            return Outcome::Matched;
        }
        if noise(line.text) { Outcome::Ignored } else { Outcome::Unmatched }
    }
}

/// The step number and the whole line, if it is a step line. GPT-NeoX puts `samples/sec` before the iteration.
fn step_line(text: &str) -> Option<(i64, core::str::Split<'_, char>)> {
    let head = text.split('|').take(2).find_map(|f| f.trim().strip_prefix("iteration"))?;
    let (step, rest) = number::integer(head)?;
    number::integer(rest.trim_start().strip_prefix('/')?)?;
    text.contains('|').then(|| (step, text.split('|')))
}

impl Megatron {
    fn step(
        &mut self,
        step: i64,
        fields: core::str::Split<'_, char>,
        line: &Line<'_>,
        out: &mut Out<'_>,
    ) -> Event {
        let mut e = Event { step: Some(step), ts: line.ts, ..Event::new(Kind::Step) };
        for field in fields {
            let Some((key, value)) = field.rsplit_once(':') else { continue };
            let key = normal(key);
            match meaning(&key, value) {
                Meaning::Metric(name, divisor) => {
                    out.metric(&mut e, name, value, divisor);
                }
                Meaning::Loss => self.loss(&key, value, &mut e, out),
                Meaning::Custom => {
                    out.metric(&mut e, &base(&key).replace(' ', "_"), value, 1.0);
                }
            }
        }
        // A loss scale of -1 is how the DeepSpeed fork prints that there is none.
        if e.m.get(metric::LOSS_SCALE).is_some_and(|v| v <= 0.0) {
            e.m.remove(metric::LOSS_SCALE);
        }
        self.settle_losses(step, &mut e);
        self.tokens(step, &mut e);
        self.before = Some(Before { step, consumed_tokens: e.m.get("consumed_tokens") });
        e
    }

    fn loss(&mut self, key: &str, value: &str, e: &mut Event, out: &mut Out<'_>) {
        let usual = matches!(key, "lm loss" | "loss" | "total loss");
        if !usual
            && self.main_loss.is_none()
            && !auxiliary(key)
            && !self.losses.iter().any(|l| l == metric::LOSS)
        {
            self.main_loss = Some(key.to_owned());
        }
        let custom;
        let name = if usual || self.main_loss.as_deref() == Some(key) {
            metric::LOSS
        } else {
            custom = key.replace(' ', "_");
            &custom
        };
        if out.metric(e, name, value, 1.0).is_some()
            && self.losses.len() < MAX_LOSSES
            && !self.losses.iter().any(|l| l == name)
        {
            self.losses.push(name.to_owned());
        }
    }

    /// Says which losses the line should have carried.
    fn settle_losses(&self, step: i64, e: &mut Event) {
        let skipped = e.m.get(metric::SKIPPED).unwrap_or(0.0);
        let window = self.before.map(|b| step - b.step).filter(|w| *w > 0);
        // Without an earlier line the window is unknown: any skipped iteration may have been all of it.
        let all_skipped = skipped > 0.0 && window.is_none_or(|w| skipped >= w as f64);
        if all_skipped {
            // Recent versions print the sum over no iterations: 0.
            for name in &self.losses {
                if e.m.get(name) == Some(0.0) {
                    e.m.remove(name);
                }
            }
            return;
        }
        if e.m.get(metric::LOSS).is_none() {
            e.missing.push(metric::LOSS.to_owned());
        }
        for name in self.losses.iter().filter(|l| *l != metric::LOSS) {
            if e.m.get(name).is_none() {
                e.missing.push(name.clone());
            }
        }
    }

    /// Tokens of one step, from what the line tells of them.
    fn tokens(&self, step: i64, e: &mut Event) {
        let by_counter = self.before.and_then(|b| {
            let (now, then) = (e.m.get("consumed_tokens")?, b.consumed_tokens?);
            let steps = step - b.step;
            (steps > 0 && now > then).then(|| (now - then) / steps as f64)
        });
        let by_length = || Some(e.m.get("actual_seqlen")? * e.m.get(metric::SAMPLES)?);
        if let Some(tokens) = by_counter.or_else(by_length) {
            e.m.set(metric::TOKENS, tokens);
        }
    }
}

/// Lower case, single spaces for any of space, `-` and `_`, as the forks do not agree on them.
fn normal(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for word in key.split(|c: char| c.is_whitespace() || c == '-' || c == '_').filter(|w| !w.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.extend(word.chars().map(|c| c.to_ascii_lowercase()));
    }
    out
}

/// The key without a unit in parentheses behind it.
fn base(key: &str) -> &str {
    key.split_once(" (").map_or(key, |(k, _)| k)
}

fn meaning(key: &str, value: &str) -> Meaning {
    let unit = key.split_once(" (").map_or("", |(_, u)| u.trim_end_matches(')'));
    let suffix = number::lex(value).map_or("", |n| n.rest.trim());
    let percent = if suffix.starts_with('%') { 100.0 } else { 1.0 };
    match base(key) {
        "elapsed time per iteration" => {
            Meaning::Metric(metric::STEP_TIME, if unit == "s" { 1.0 } else { 1000.0 })
        }
        "learning rate" => Meaning::Metric(metric::LR, 1.0),
        "global batch size" | "batch size" => Meaning::Metric(metric::SAMPLES, 1.0),
        "loss scale" => Meaning::Metric(metric::LOSS_SCALE, 1.0),
        "grad norm" => Meaning::Metric(metric::GRAD_NORM, 1.0),
        "num zeros" => Meaning::Metric(metric::NUM_ZEROS, 1.0),
        "params norm" => Meaning::Metric(metric::PARAMS_NORM, 1.0),
        "number of skipped iterations" => Meaning::Metric(metric::SKIPPED, 1.0),
        "number of nan iterations" => Meaning::Metric(metric::NAN_ITERATIONS, 1.0),
        "throughput per gpu" | "tflops" | "compute per gpu" | "approx flops per gpu" => {
            Meaning::Metric(metric::TFLOPS_REPORTED, teras(suffix))
        }
        "tokens per gpu" | "tokens per gpu per second" | "tokens per second per gpu" => {
            Meaning::Metric(metric::TOKENS_PER_SECOND_PER_GPU, 1.0)
        }
        "tokens per second" | "tokens/sec" => Meaning::Metric(metric::TOKENS_PER_SECOND, 1.0),
        "samples per second" | "samples/sec" => Meaning::Metric("samples_per_second", 1.0),
        "mfu" => Meaning::Metric(metric::MFU_REPORTED, percent),
        "hfu" => Meaning::Metric("hfu_reported", percent),
        "lm loss" | "loss" => Meaning::Loss,
        k if k.ends_with(" loss") => Meaning::Loss,
        _ => Meaning::Custom,
    }
}

/// What a printed flop rate must be divided by to be in TFLOP/s.
fn teras(unit: &str) -> f64 {
    match unit.as_bytes().first() {
        Some(b'P') => 1e-3,
        Some(b'G') => 1e3,
        _ => 1.0,
    }
}

/// Losses that are added to the main one.
fn auxiliary(key: &str) -> bool {
    ["load balancing", "mtp", "z loss", "aux", "moe", "router", "indexer", "sop", "balance"]
        .iter()
        .any(|part| key.contains(part))
}

/// `validation loss at iteration 7000 | lm loss value: 7.174200E+00 | lm loss PPL: 1.305315E+03 |`
fn validation(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let mut fields = line.text.split('|');
    let head = fields.next()?;
    let (name, at) = head.split_once(" loss at ").or_else(|| head.split_once(" results at "))?;
    let step = at.split_once("iteration").and_then(|(_, n)| number::integer(n)).map(|(n, _)| n);
    let mut e = Event { step, ts: line.ts, name: Some(name.trim().to_owned()), ..Event::new(Kind::Eval) };
    for field in fields {
        let Some((key, value)) = field.rsplit_once(':') else { continue };
        let key = normal(key);
        match key.strip_suffix(" value").unwrap_or(&key) {
            "lm loss" | "loss" => out.metric(&mut e, metric::LOSS, value, 1.0),
            other => out.metric(&mut e, &other.replace(' ', "_"), value, 1.0),
        };
    }
    (!e.m.is_empty()).then_some(e)
}

/// `saving checkpoint at iteration 1000 to DIR in torch_dist format`, `successfully saved checkpoint from iteration 1000 to DIR`.
fn checkpoint(line: &Line<'_>) -> Option<Event> {
    let starts = |prefix: &str| line.text.strip_prefix(prefix);
    let (phase, rest) = if let Some(rest) = starts("saving checkpoint at iteration") {
        (CkptPhase::Start, rest)
    } else {
        let rest = starts("successfully saved checkpoint from iteration")
            .or_else(|| starts("successfully saved checkpoint at iteration"))?;
        (CkptPhase::End, rest)
    };
    let (step, rest) = number::integer(rest)?;
    let mut e = Event { step: Some(step), ts: line.ts, ckpt: Some(phase), ..Event::new(Kind::Ckpt) };
    if let Some(path) = rest.trim_start().strip_prefix("to ").and_then(|r| r.split_whitespace().next()) {
        e.extra.insert("path".into(), Value::Text(path.chars().take(stepwatch_wire::MAX_TEXT).collect()));
    }
    Some(e)
}

/// The job ends because it wants to: silence after this is no hang.
fn end(line: &Line<'_>) -> Option<Event> {
    let done = line.text.starts_with("[after training is done]")
        || line.text.starts_with("[exiting program")
        || line.text.starts_with("exiting program");
    done.then(|| Event { ts: line.ts, code: Some(0), ..Event::new(Kind::Bye) })
}

/// Lines that only this family prints and that say nothing about a step.
fn noise(text: &str) -> bool {
    const PREFIXES: &[&str] = &[
        "time (ms)",
        "(min, max) time across ranks",
        "max time across ranks",
        "all times across ranks",
        "[Rank ",
        "steps: ",
        "Step Time :",
        "training ...",
        "done with setup",
        "[after dataloaders are built]",
        "[before the start of training step]",
        "saving checkpoint",
        "successfully loaded checkpoint",
        "INFO:megatron.",
        "> finished creating",
    ];
    PREFIXES.iter().any(|p| text.starts_with(p)) || (text.len() > 20 && text.bytes().all(|b| b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;

    fn read(lines: &[&str]) -> Vec<Event> {
        let mut r = Reader::new(Some("megatron")).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        out
    }

    fn one(line: &str) -> Event {
        read(&[line]).remove(0)
    }

    fn metrics(e: &Event) -> Vec<(&str, f64)> {
        e.m.iter().collect()
    }

    #[test]
    fn megatron_lm_today() {
        let e = one(concat!(
            " [2026-05-29 03:52:45.118201] iteration      300/     300 | consumed samples:       307200 |",
            " elapsed time per iteration (ms): 131064.1 | throughput per GPU (TFLOP/s/GPU): 412.3 |",
            " learning rate: 1.100000E-05 | global batch size:  1024 | lm loss: 1.504590E+00 | loss scale: 1.0 |",
            " grad norm: 0.623 | num zeros: 1834 | params norm: 7092.506 | number of skipped iterations:   0 |",
            " number of nan iterations:   0 |",
        ));
        assert_eq!((e.step, e.ts), (Some(300), Some(1780026765.118201)));
        assert_eq!(
            metrics(&e),
            [
                ("consumed_samples", 307200.0),
                ("step_time", 131.0641),
                ("tflops_reported", 412.3),
                ("lr", 1.1e-5),
                ("samples", 1024.0),
                ("loss", 1.50459),
                ("loss_scale", 1.0),
                ("grad_norm", 0.623),
                ("num_zeros", 1834.0),
                ("params_norm", 7092.506),
                ("skipped", 0.0),
                ("nan_iterations", 0.0),
            ]
        );
        assert!(e.missing.is_empty());
    }

    #[test]
    fn gpt_neox_prints_nan_and_percent() {
        let e = one(concat!(
            " samples/sec: 12.345 | iteration       10/  320000 | elapsed time per iteration (ms): 1234.5 |",
            " learning rate: 1.000E-04 | approx flops per GPU: 120.3TFLOPS | MFU: 38.56% | HFU: 41.20% |",
            " lm_loss: NAN | loss scale: 4096.0 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        ));
        assert_eq!(
            (e.step, e.m.get("samples_per_second"), e.m.get("step_time")),
            (Some(10), Some(12.345), Some(1.2345))
        );
        assert_eq!((e.m.get("tflops_reported"), e.m.get("mfu_reported")), (Some(120.3), Some(0.3856)));
        assert!(e.m.get("loss").unwrap().is_nan() && e.missing.is_empty());
    }

    #[test]
    fn rocm_and_deepspeed_forks() {
        let e = one(concat!(
            "iteration 5/ 10 | elapsed time per iteration (ms): 2.0 | compute per GPU (TFLOP/s/GPU): 496.3 (avg 496.1) |",
            " tokens per GPU (tokens/s/GPU): 11234.5 | lm loss: 1.0E+00 |",
        ));
        assert_eq!(
            (e.m.get("tflops_reported"), e.m.get("tokens_per_second_per_gpu"), e.m.get("step_time")),
            (Some(496.3), Some(11234.5), Some(0.002))
        );
        let e = one(concat!(
            "iteration 5/ 10 | global batch size: 256 | lm loss: 2.0E+00 | actual seqlen:  2048 |",
            " tokens per gpu per second (tgs): 3456.789 | TFLOPs: 101.25 |",
        ));
        assert_eq!(
            (e.m.get("tokens"), e.m.get("tokens_per_second_per_gpu")),
            (Some(524288.0), Some(3456.789))
        );
    }

    fn bare(step: i64, fields: &str) -> String {
        format!(" iteration {step:8}/    1000 | grad norm: 1.0 |{fields}")
    }

    fn missing(lines: &[String]) -> Vec<Vec<String>> {
        read(&lines.iter().map(String::as_str).collect::<Vec<_>>()).into_iter().map(|e| e.missing).collect()
    }

    #[test]
    fn an_absent_loss_is_missing_unless_all_was_skipped() {
        let skipped = |n| format!(" number of skipped iterations: {n:3} |");
        let loss = " lm loss: 2.0E+00 |";
        assert_eq!(missing(&[bare(1, &skipped(0))]), [vec!["loss".to_owned()]]);
        assert_eq!(missing(&[bare(1, &skipped(1))]), [Vec::<String>::new()]);
        // A window of 100 of which 99 were skipped had one iteration with a loss, and that was NaN.
        let lines = [bare(100, loss), bare(200, &skipped(99)), bare(300, &skipped(100))];
        assert_eq!(missing(&lines), [vec![], vec!["loss".to_owned()], vec![]]);
    }

    #[test]
    fn a_zero_over_no_iterations_is_not_a_loss() {
        let lines = [
            bare(1, " lm loss: 2.0E+00 | number of skipped iterations: 0 |"),
            bare(2, " lm loss: 0.000000E+00 | number of skipped iterations: 1 |"),
        ];
        let events = read(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((events[1].m.get("loss"), events[1].m.get("skipped")), (None, Some(1.0)));
        assert!(events[1].missing.is_empty());
    }

    #[test]
    fn auxiliary_losses_never_stand_in_for_the_loss() {
        let e = read(&[
            &bare(1, " reward model loss: 0.5 | load_balancing_loss: 1.3 | mtp_1 loss: 7.9 |"),
            &bare(2, " load_balancing_loss: 1.2 | mtp_1 loss: 7.8 |"),
            &bare(3, " reward model loss: 0.4 | load_balancing_loss: 1.2 |"),
        ]);
        assert_eq!((e[0].m.get("loss"), e[0].m.get("load_balancing_loss")), (Some(0.5), Some(1.3)));
        assert_eq!((e[1].m.get("loss"), &e[1].missing), (None, &vec!["loss".to_owned()]));
        assert_eq!((e[2].m.get("loss"), &e[2].missing), (Some(0.4), &vec!["mtp_1_loss".to_owned()]));
    }

    #[test]
    fn the_extra_first_line_is_a_step_like_any_other() {
        let e = read(&[
            &bare(1, " consumed tokens: 1000 | lm loss: 9.0 |"),
            &bare(100, " consumed tokens: 100000 | lm loss: 5.0 |"),
        ]);
        assert_eq!((e[0].step, e[0].m.get("tokens")), (Some(1), None));
        assert_eq!((e[1].step, e[1].m.get("tokens")), (Some(100), Some(1000.0)));
    }

    #[test]
    fn a_restart_in_the_same_log_is_no_window() {
        let e = read(&[
            &bare(500, " consumed tokens: 5000 | lm loss: 2.0 |"),
            &bare(401, " consumed tokens: 4010 | lm loss: 2.0 |"),
            &bare(402, " consumed tokens: 4020 | lm loss: 2.0 |"),
        ]);
        assert_eq!([e[1].m.get("tokens"), e[2].m.get("tokens")], [None, Some(10.0)]);
    }

    #[test]
    fn evaluations_checkpoints_and_the_end() {
        let e = read(&[
            "[2026-05-29 03:52:45] saving checkpoint at iteration    1000 to /ckpt/run in torch_dist format",
            "  [2026-05-29 03:53:45] successfully saved checkpoint from iteration    1000 to /ckpt/run [ t 1/8, p 1/1 ]",
            " validation loss at iteration 1000 on validation set | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 |",
            "[after training is done] datetime: 2026-05-29 04:00:00 ",
        ]);
        assert_eq!((e[0].ckpt, e[0].step, e[0].ts), (Some(CkptPhase::Start), Some(1000), Some(1780026765.0)));
        assert_eq!(e[0].extra["path"].as_str(), Some("/ckpt/run"));
        assert_eq!((e[1].ckpt, e[1].ts), (Some(CkptPhase::End), Some(1780026825.0)));
        assert_eq!(
            (e[2].kind, e[2].step, e[2].name.as_deref()),
            (Kind::Eval, Some(1000), Some("validation"))
        );
        assert_eq!(metrics(&e[2]), [("loss", 2.5), ("lm_loss_ppl", 12.0)]);
        assert_eq!((e[3].kind, e[3].code), (Kind::Bye, Some(0)));
    }

    #[test]
    fn what_is_no_step_line() {
        for text in [
            "iteration 5",
            "iteration 5/9",
            "iteration: 5/9 | x: 1",
            "iteration x/9 | x: 1",
            "after iteration 5/9 |",
        ] {
            assert!(read(&[text]).is_empty(), "{text}");
        }
    }
}
