//! verl's console: `step:1 - actor/pg_loss:0.000 - actor/grad_norm:2.060 - actor/lr(1e-4):0.010 -
//! …`, one line a step.
//!
//! Old versions print three decimals, which no learning rate survives but as a multiple of a unit
//! that its key names.

use crate::format::{Format, Line, Out, Outcome};
use crate::{number, tags, tqdm};

/// Keys of the form `group/name` that make a line verl's.
const MIN_KEYS: usize = 3;
/// Groups of an evaluation, which shares the line of its step or has one of its own.
const EVAL_GROUPS: &[&str] = &["val-core/", "val-aux/", "val/"];

#[derive(Debug, Default)]
pub(crate) struct Verl;

impl Format for Verl {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if tqdm::bar(line.text).is_some_and(|b| b.description == "Training Progress") {
            return Outcome::Ignored;
        }
        let Some((head, rest)) = line.text.split_once(" - ") else { return Outcome::Unmatched };
        let Some((step, "")) = head.strip_prefix("step:").and_then(number::integer) else {
            return Outcome::Unmatched;
        };
        let fields = || rest.split(" - ").filter_map(|f| f.rsplit_once(':'));
        let evaluates = |key: &str| EVAL_GROUPS.iter().any(|g| key.starts_with(g));
        let trains = fields().filter(|(k, _)| k.contains('/') && !evaluates(k)).count();
        if trains < MIN_KEYS && !fields().all(|(k, _)| evaluates(k)) {
            return Outcome::Unmatched;
        }
        let mut e = line.step(step);
        let mut eval = line.eval(Some(step), "val");
        for (key, value) in fields() {
            // `actor/lr(1e-4):0.010` is 0.010 times 1e-4; `np.float64(0.5)` is 0.5.
            let (key, unit) = match key.split_once('(') {
                Some((k, u)) => (k.trim(), number::lex(u).map_or(1.0, |n| n.value)),
                None => (key.trim(), 1.0),
            };
            let value = value.split_once('(').filter(|(f, _)| f.starts_with("np.")).map_or(value, |(_, v)| v);
            if evaluates(key) {
                out.metric(&mut eval, key, value, 1.0);
                continue;
            }
            if let (Some(part), Some(n)) = (tags::part(key), number::lex(value)) {
                e.t.set(part, n.value);
            }
            let (name, divisor) = tags::canonical(key).unwrap_or((key, 1.0));
            if unit != 0.0 && unit.is_finite() {
                out.metric(&mut e, name, value, divisor / unit);
            }
        }
        let read = !(e.m.is_empty() && eval.m.is_empty());
        for event in [e, eval].into_iter().filter(|e| !e.m.is_empty()) {
            out.push(event);
        }
        if read { Outcome::Matched } else { Outcome::Unmatched }
    }
}

#[cfg(test)]
mod tests {
    use super::Verl;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::{Event, Kind};

    impl Sampled for Verl {
        const LOGS: &'static [&'static str] = &[include_str!("../../tests/data/verl_console.log")];
        const WRITTEN: &'static [Written] = &[Written {
            line: "step:§ -⟨ actor/pg_loss:¤ -⟩ actor/grad_norm:2.060 - actor/lr:0.010 - critic/rewards/mean:0.5 - perf/throughput:300.0",
            ..PLAIN
        }];
        const OWN: &'static [Written] = &[Written {
            line: "step:§ - actor/pg_loss:2.5 - actor/lr:0.1 - reward:¤ - perf/throughput:300.0",
            ..PLAIN
        }];
    }

    fn read(line: &str) -> Vec<Event> {
        let mut out = Vec::new();
        LogReader::new(Some("verl")).unwrap().line(line, &mut out);
        out
    }

    #[test]
    fn steps() {
        let e = read(concat!(
            "(TaskRunner pid=123, ip=10.0.0.1) step:7 - actor/pg_loss:-0.005 - actor/grad_norm:nan - actor/lr(1e-4):0.010 -",
            " critic/rewards/mean:np.float64(0.5) - perf/mfu/actor:0.31 - perf/total_num_tokens:500 - perf/throughput:811.5 -",
            " perf/time_per_step:62.5 - timing_s/step:62.5 - timing_s/gen:20.25 - val-core/gsm8k/reward/mean@1:0.75"
        ));
        assert_eq!((e.len(), e[0].kind, e[0].step), (2, Kind::Step, Some(7)));
        let m = &e[0].m;
        assert_eq!(
            (m.get("loss"), m.get("mfu_reported"), m.get("tokens"), m.get("tokens_per_second_per_gpu")),
            (Some(-0.005), Some(0.31), Some(500.0), Some(811.5))
        );
        assert!((m.get("lr").unwrap() - 1e-6).abs() < 1e-15 && m.get("grad_norm").unwrap().is_nan());
        assert_eq!((m.get("critic/rewards/mean"), m.get("step_time")), (Some(0.5), Some(62.5)));
        assert_eq!(e[0].t.get("gen"), Some(20.25));
        assert_eq!((e[1].kind, e[1].step, e[1].name.as_deref()), (Kind::Eval, Some(7), Some("val")));
        assert_eq!(e[1].m.get("val-core/gsm8k/reward/mean@1"), Some(0.75));
    }

    #[test]
    fn fine_tuning_counts_its_tokens() {
        let e = read(
            "step:3 - train/loss:2.25 - train/grad_norm:0.5 - train/lr:1e-05 - train/mfu:0.31 - train/global_tokens:16384 - train/total_tokens(B):4.9e-05",
        );
        let m = &e[0].m;
        assert_eq!(
            (m.get("loss"), m.get("tokens"), m.get("mfu_reported")),
            (Some(2.25), Some(16384.0), Some(0.31))
        );
        assert_eq!(read("step:3 - val/loss:2.5")[0].name.as_deref(), Some("val"));
    }

    #[test]
    fn an_evaluation_on_a_line_of_its_own() {
        let e = read("step:0 - val-core/openai/gsm8k/reward/mean@1:0.125");
        assert_eq!((e.len(), e[0].kind, e[0].step), (1, Kind::Eval, Some(0)));
    }

    #[test]
    fn what_is_no_step() {
        for text in [
            "step:1 - a:1 - b:2",
            "step:1 - a/b:1 - c/d:2",
            "step:x - a/b:1 - c/d:2 - e/f:3",
            "step:1 - a/b:x - c/d:y - e/f:z",
            "Training Progress:   1%|  | 1/105 [00:10<10:00,  1.00s/it]",
        ] {
            assert!(read(text).is_empty(), "{text}");
        }
    }
}
