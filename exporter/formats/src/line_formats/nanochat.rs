//! nanochat: `step 00010/21400 (0.05%) | loss: 9.123456 | lrm: 1.00 | dt: 412.33ms | tok/sec:
//! 1,271,000 | bf16_mfu: 46.10 | …`, and of fine-tuning, whose length is not known, `step 00010
//! (0.05%) | loss: …`.
//!
//! Its loss is a moving average, so a spike shows late and small. In the log of a whole speedrun
//! one stage follows another, each from step 0: steps that fall back after a goodbye are the next
//! stage.

use stepwatch_wire::names::metric;
use stepwatch_wire::{CkptPhase, Event, Value};

use crate::format::{Format, Line, Out, Outcome};
use crate::number;

#[derive(Debug, Default)]
pub(crate) struct Nanochat {
    last_step: Option<i64>,
}

impl Format for Nanochat {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some(event) = step(line, out) {
            self.last_step = event.step;
            out.push(event);
            return Outcome::Matched;
        }
        let Some(event) = evaluation(line, out).or_else(|| checkpoint(line)).or_else(|| self.end(line))
        else {
            return Outcome::Unmatched;
        };
        out.push(event);
        Outcome::Matched
    }
}

impl Nanochat {
    fn end(&self, line: &Line<'_>) -> Option<Event> {
        let minutes = line.text.strip_prefix("Total training time: ").and_then(number::lex)?;
        (minutes.rest == "m" && self.last_step.is_some()).then(|| line.done(self.last_step))
    }
}

fn fields(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('|').filter_map(|f| f.split_once(':')).map(|(k, v)| (k.trim(), v))
}

fn step(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let (head, rest) = line.text.split_once('|')?;
    let head = head.strip_prefix("step ").or_else(|| head.strip_prefix("Step "))?;
    let (step, of) = number::integer(head)?;
    let counted = of.starts_with('/') || of.trim_start().starts_with('(');
    let has = |name: &str| fields(rest).any(|(k, _)| k == name);
    // Until January 2026 fine-tuning printed `Step 00010/00100 | Training loss: 1.23| lrm: 0.90|
    // num_tokens: 1,234`.
    let mut e = line.step(step);
    let lacks = out.may_lack_loss(&e);
    let ours = (has("dt") && (has("loss") || lacks))
        || (has("num_tokens") && (has("Training loss") || has("lrm") && lacks));
    if !(counted && ours) {
        return None;
    }
    for (key, value) in fields(rest) {
        match key {
            "loss" | "Training loss" => out.metric(&mut e, metric::LOSS, value, 1.0),
            "grad norm" => out.metric(&mut e, metric::GRAD_NORM, value, 1.0),
            "dt" => out.metric(&mut e, metric::STEP_TIME, value, 1000.0),
            "tok/sec" => out.metric(&mut e, metric::TOKENS_PER_SECOND, value, 1.0),
            "num_tokens" => out.metric(&mut e, metric::TOKENS, value, 1.0),
            "mfu" | "bf16_mfu" => out.metric(&mut e, metric::MFU_REPORTED, value, 100.0),
            "lrm" => out.metric(&mut e, "lr_multiplier", value, 1.0),
            "epoch" => out.metric(&mut e, metric::EPOCH, value, 1.0),
            _ => None,
        };
    }
    Some(e)
}

/// `Step 00250 | Validation bpb: 1.0123`, `… | Validation loss: 1.5`, `… | CORE metric: 0.2`, `… |
/// ChatCORE: 0.2 | ChatCORE_cat: 0.3`.
fn evaluation(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let (head, rest) = line.text.split_once('|')?;
    let (step, after) = number::integer(head.strip_prefix("Step ").or_else(|| head.strip_prefix("step "))?)?;
    if !after.trim().is_empty() {
        return None;
    }
    let (first, _) = fields(rest).next()?;
    let (name, bare) = match first {
        "Validation bpb" => ("validation", "bpb"),
        "Validation loss" => ("validation", metric::LOSS),
        "CORE metric" => ("core", "core_metric"),
        "ChatCORE" => ("chatcore", "chatcore_metric"),
        _ => return None,
    };
    let mut e = line.eval(Some(step), name);
    for (key, value) in fields(rest) {
        out.metric(&mut e, if key == first { bare } else { key }, value, 1.0);
    }
    (!e.m.is_empty()).then_some(e)
}

/// `Saved model parameters to: /base_checkpoints/d20/model_021400.pt`, behind a logger's prefix.
fn checkpoint(line: &Line<'_>) -> Option<Event> {
    let after = |words: &str| line.text.split_once(words).map(|(_, path)| path.trim());
    let path = after("Saved model parameters to: ").or_else(|| after("Saved parameters to: "))?;
    let (_, name) = path.rsplit_once("model_")?;
    let (step, ".pt") = number::integer(name)? else { return None };
    let mut e = line.checkpoint(CkptPhase::End, Some(step));
    e.extra.insert("path".into(), Value::Text(path.chars().take(stepwatch_wire::MAX_TEXT).collect()));
    Some(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::Kind;

    impl Sampled for Nanochat {
        const LOGS: &'static [&'static str] = &[
            "step 00010/21400 (0.05%) | loss: 9.123456 | lrm: 1.00 | dt: 412.33ms | tok/sec: 1,271,000 | bf16_mfu: 46.10 | epoch: 1 | total time: 0.10m\nStep 00250 | Validation bpb: 1.012345\n",
        ];
        const WRITTEN: &'static [Written] = &[
            Written {
                line: "step 0§/21400 (0.05%) |⟨ loss: ¤ |⟩ lrm: 1.00 | dt: 412.33ms | tok/sec: 1,271,000 | bf16_mfu: 46.10 | epoch: 1 | total time: 0.10m",
                ..PLAIN
            },
            Written {
                line: "Step 0§/00900 |⟨ Training loss: ¤|⟩ lrm: 0.900000| num_tokens: 1,234", ..PLAIN
            },
        ];
    }

    fn read(lines: &[&str]) -> Vec<Event> {
        let mut r = LogReader::new(Some("nanochat")).unwrap();
        let mut e = Vec::new();
        for l in lines {
            r.line(l, &mut e);
        }
        e
    }

    const STEP: &str = "step 00010/21400 (0.05%) | loss: 9.123456 | grad norm: 0.5 | lrm: 1.00 | dt: 412.33ms | tok/sec: 1,271,000 | bf16_mfu: 46.10 | epoch: 1 pq: 0 rg: 24 | total time: 0.10m | eta: 12.3m";

    #[test]
    fn steps_of_every_stage() {
        let e = read(&[
            STEP,
            "step 00011 (12.30%) | loss: nan | lrm: 0.90 | dt: 400.00ms | tok/sec: 5 | mfu: 41.25 | epoch: 2 | total time: 0.10m",
            "Step 00012/00100 | Training loss: 1.234567| lrm: 0.900000| num_tokens: 1,234",
        ]);
        assert_eq!((e[0].kind, e[0].step), (Kind::Step, Some(10)));
        assert_eq!(
            e[0].m.iter().collect::<Vec<_>>(),
            [
                ("loss", 9.123456),
                ("grad_norm", 0.5),
                ("lr_multiplier", 1.0),
                ("step_time", 0.41233),
                ("tokens_per_second", 1271000.0),
                ("mfu_reported", 0.461),
                ("epoch", 1.0),
            ]
        );
        assert!(e[1].m.get("loss").unwrap().is_nan());
        assert_eq!((e[1].step, e[1].m.get("mfu_reported")), (Some(11), Some(0.4125)));
        assert_eq!((e[2].m.get("loss"), e[2].m.get("tokens")), (Some(1.234567), Some(1234.0)));
    }

    /// `base_train.py` and `chat_sft.py` of July 2026, and the fine-tuning of before.
    #[test]
    fn what_it_prints_today_and_printed_before() {
        for line in [
            "step 00000/21400 (0.00%) | loss: 11.090355 | lrm: 1.00 | dt: 15234.10ms | tok/sec: 34,415 | bf16_mfu: 1.20 | epoch: 1 pq: 0 rg: 8 | total time: 0.00m",
            "step 21399/21400 (100.00%) | loss: 2.398104 | lrm: 0.05 | dt: 476.21ms | tok/sec: 1,100,959 | bf16_mfu: 48.35 | epoch: 1 pq: 207 rg: 40 | total time: 169.75m | eta: 0.0m",
            "step 00007 (1.25%) | loss: 1.098104 | lrm: 1.00 | dt: 476.21ms | tok/sec: 1,100,959 | mfu: 48.35 | epoch: 1 | total time: 0.00m",
            "Step 00007/00701 | Training loss: 1.098104| lrm: 0.990000| num_tokens: 10,241",
        ] {
            let mut r = LogReader::new(None).unwrap();
            let mut e = Vec::new();
            r.line(line, &mut e);
            assert_eq!((r.name(), e.len(), e[0].kind), ("nanochat", 1, Kind::Step), "{line}");
            assert!(e[0].m.get("loss").is_some_and(|l| l > 1.0), "{line}");
        }
    }

    #[test]
    fn evaluations_checkpoints_and_the_end() {
        let e = read(&[
            "Total training time: 0.00m",
            STEP,
            "Step 00250 | Validation bpb: 1.0123",
            "Step 00250 | Validation loss: 1.5",
            "Step 00250 | CORE metric: 0.2135",
            "Step 00250 | ChatCORE: 0.2135 | ChatCORE_cat: 0.3",
            "2025-10-13 10:00:00,000 - nanochat.checkpoint_manager - INFO - Saved model parameters to: /c/d20/model_021400.pt",
            "Total training time: 171.45m",
            "Minimum validation bpb: 0.812345",
        ]);
        let seen: Vec<_> =
            e[1..].iter().map(|e| (e.kind, e.step, e.name.as_deref(), e.m.iter().next())).collect();
        assert_eq!(
            seen,
            [
                (Kind::Eval, Some(250), Some("validation"), Some(("bpb", 1.0123))),
                (Kind::Eval, Some(250), Some("validation"), Some(("loss", 1.5))),
                (Kind::Eval, Some(250), Some("core"), Some(("core_metric", 0.2135))),
                (Kind::Eval, Some(250), Some("chatcore"), Some(("chatcore_metric", 0.2135))),
                (Kind::Ckpt, Some(21400), None, None),
                (Kind::Bye, Some(10), None, None),
            ]
        );
        assert_eq!(e[4].m.get("ChatCORE_cat"), Some(0.3));
        assert_eq!((e[5].ckpt, e[5].ts), (Some(CkptPhase::End), Some(1760349600.0)));
        assert_eq!(e[5].extra["path"].as_str(), Some("/c/d20/model_021400.pt"));
    }

    #[test]
    fn what_is_no_step() {
        for text in [
            "step 5 | x",
            "step 00011/21400 | nothing: 1",
            "step 00011 | loss: 1.0 | dt: 1ms",
            "Step 3/467 | Example step 0 | Pass 0 | loss: 0.1",
            "Saved model parameters to: /c/last.pt",
        ] {
            assert!(read(&[text]).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_loss_of_none_is_missing() {
        let e = read(&[STEP, STEP, &STEP.replace("9.123456", "None")]);
        let seen: Vec<_> = e.iter().map(|e| (e.m.get("loss").is_some(), e.missing.clone())).collect();
        assert_eq!(seen, [(true, vec![]), (true, vec![]), (false, vec!["loss".to_owned()])]);
    }
}
