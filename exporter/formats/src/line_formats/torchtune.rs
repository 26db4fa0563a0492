//! torchtune: its loggers write `Step 1 | loss:1.23 lr:2e-05 tokens_per_second_per_gpu:1234.5 …` to
//! a file or the console, and its progress bar reads `1|12|Loss: 1.23: 2%|▏| 12/600 [00:10<08:10]`
//! beside it.
//!
//! A step that only the bar shows has a loss and nothing else.

use stepwatch_wire::names::metric;
use stepwatch_wire::{CkptPhase, Event};

use crate::format::{self, Format, Line, Out, Outcome};
use crate::{number, tags, tqdm};

#[derive(Debug, Default)]
pub(crate) struct Torchtune {
    last_step: Option<i64>,
    /// The log has lines of its own: the bar repeats them.
    has_lines: bool,
}

impl Format for Torchtune {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some(event) = logged(line, out) {
            self.has_lines = true;
            self.last_step = event.step;
            out.push(event);
            return Outcome::Matched;
        }
        if let Some(event) = bar(line, out) {
            if self.has_lines || event.step == self.last_step {
                return Outcome::Ignored;
            }
            self.last_step = event.step;
            out.push(event);
            return Outcome::Matched;
        }
        let Some((_, message)) = line.text.split_once("torchtune") else { return Outcome::Unmatched };
        let phase = if message.contains("Saving checkpoint.") {
            CkptPhase::Start
        } else if message.contains("Saving checkpoint took") || message.contains("Checkpoint saved in") {
            CkptPhase::End
        } else {
            return Outcome::Ignored;
        };
        let mut event = line.checkpoint(phase, self.last_step);
        let seconds =
            ["Saving checkpoint took ", "Checkpoint saved in "].iter().find_map(|w| message.split_once(*w));
        seconds.into_iter().for_each(|(_, seconds)| format::took(&mut event, seconds));
        out.push(event);
        Outcome::Matched
    }
}

/// `Step 1 | loss:1.23 lr:2e-05 …`; an evaluation logs `val_loss` alone.
fn logged(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let (head, rest) = line.text.split_once(" | ")?;
    let (step, "") = number::integer(head.strip_prefix("Step ")?)? else { return None };
    let fields = || rest.split_whitespace().filter_map(|f| f.split_once(':')).filter(|(_, v)| !v.is_empty());
    // Others put a blank behind the colon.
    if rest.contains(": ") || fields().next().is_none() {
        return None;
    }
    let eval = fields().any(|(k, _)| k == "val_loss") && !fields().any(|(k, _)| k == "loss");
    let mut e = if eval { line.eval(Some(step), "val") } else { line.step(step) };
    for (key, value) in fields() {
        let value = value.strip_prefix("tensor(").unwrap_or(value);
        let key = if eval { key.strip_prefix("val_").unwrap_or(key) } else { key };
        let (name, divisor) = tags::canonical(key).unwrap_or((key, 1.0));
        out.metric(&mut e, name, value, divisor);
    }
    (!e.m.is_empty()).then_some(e)
}

/// `1|12|Loss: 1.23`: the epoch, the step and the loss of the step before this drawing.
fn bar(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let bar = tqdm::bar(line.text)?;
    let mut parts = bar.description.splitn(3, '|');
    let (epoch, step) = (parts.next()?, parts.next()?);
    let loss = parts.next()?.strip_prefix("Loss:")?.trim();
    let ((_, ""), (step, "")) = (number::integer(epoch)?, number::integer(step)?) else { return None };
    let mut e = line.step(step);
    let read = out.metric(&mut e, metric::LOSS, loss, 1.0).is_some() || out.reports_loss(&e);
    (read || loss.is_empty() && out.has_lost(&e)).then_some(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::Kind;

    impl Sampled for Torchtune {
        const LOGS: &'static [&'static str] = &[include_str!("../../tests/data/torchtune.log")];
        const WRITTEN: &'static [Written] = &[
            Written { line: "Step § |⟨ loss:¤⟩ lr:2e-05 tokens_per_second_per_gpu:655.93", ..PLAIN },
            Written {
                line: "1|§|Loss: ⟨¤⟩:   2%|\u{258f}         | §/5000 [01:00<50:00,  1.63it/s]",
                ..PLAIN
            },
        ];
        const OWN: &'static [Written] = &[Written {
            line: "Step § | loss:2.5 lr:2e-05 reward:¤ tokens_per_second_per_gpu:655.93",
            ..PLAIN
        }];
    }

    fn read(lines: &[&str]) -> (Vec<Event>, LogReader) {
        let mut r = LogReader::new(Some("torchtune")).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        (out, r)
    }

    #[test]
    fn the_loggers() {
        let (e, _) = read(&[
            "Step 1 | loss:2.085338592529297 lr:2e-05 tokens_per_second_per_gpu:57.828881833956174 peak_memory_active:15.5 grad_norm:1.25 ",
            "Step 2 | loss:nan lr:2e-05 grad_norm:tensor(inf,",
            "Step 2 | val_loss:1.5 ",
            "Step 0 | loss:1.7535516023635864 lr:2e-05 gpu_resources:13708965376 ",
        ]);
        assert_eq!(
            e[0].m.iter().collect::<Vec<_>>(),
            [
                ("loss", 2.085338592529297),
                ("lr", 2e-5),
                ("tokens_per_second_per_gpu", 57.828881833956174),
                ("peak_memory_active", 15.5),
                ("grad_norm", 1.25),
            ]
        );
        assert_eq!((e[0].kind, e[0].step), (Kind::Step, Some(1)));
        assert!(e[1].m.get("loss").unwrap().is_nan() && e[1].m.get("grad_norm") == Some(f64::INFINITY));
        assert_eq!(
            (e[2].kind, e[2].name.as_deref(), e[2].m.get("loss")),
            (Kind::Eval, Some("val"), Some(1.5))
        );
        assert_eq!((e[3].step, e[3].m.get("gpu_resources")), (Some(0), Some(13708965376.0)));
    }

    #[test]
    fn the_bar_alone() {
        let bar =
            |step: i64, n: i64| format!("1|{step}|Loss: 1.5{step}: 2%|▏| {n}/600 [00:10<08:10,  1.00s/it]");
        let (e, r) = read(&[&bar(1, 1), &bar(1, 2), &bar(2, 2), "  0%|  | 0/600 [00:00<?, ?it/s]"]);
        let seen: Vec<_> = e.iter().map(|e| (e.step, e.m.get("loss"))).collect();
        assert_eq!(seen, [(Some(1), Some(1.51)), (Some(2), Some(1.52))]);
        assert_eq!((r.counters().ignored, r.counters().unmatched), (1, 1));
        let (e, _) = read(&["Step 1 | loss:1.51 lr:2e-05 ", &bar(1, 1), &bar(2, 2)]);
        assert_eq!(e.len(), 1, "the lines contain more");
    }

    #[test]
    fn checkpoints() {
        let (e, r) = read(&[
            "Step 9 | loss:1.51 lr:2e-05 ",
            "INFO:torchtune.utils._logging:Saving checkpoint. This may take some time. Retrieving full model state dict...",
            "INFO:torchtune.utils._logging:Model checkpoint of size 4.98 GiB saved to /out/epoch_0/model-00001-of-00004.safetensors",
            "INFO:torchtune.utils._logging:Saving checkpoint took 12.34 secs",
        ]);
        let seen: Vec<_> = e[1..].iter().map(|e| (e.step, e.ckpt)).collect();
        assert_eq!(seen, [(Some(9), Some(CkptPhase::Start)), (Some(9), Some(CkptPhase::End))]);
        assert_eq!(e[2].extra["seconds"].as_f64(), Some(12.34));
        assert_eq!(r.counters().ignored, 1);
    }

    #[test]
    fn what_is_no_step_line() {
        for text in [
            "Step 00250 | Validation bpb: 1.0123",
            "Step 1 | x",
            "step 1 | loss:1.0",
            "Step 1 of 2 | loss:1.0",
        ] {
            assert!(read(&[text]).0.is_empty(), "{text}");
        }
    }
}
