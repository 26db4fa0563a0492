//! levanter: `2025-09-26T10:00:00 - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145 - INFO ::
//! Progress on:train 1.14kit/10.0kit rate:1.1it/s remaining:2:25:00 elapsed:17:00
//! postfix:loss=7.5`, once a minute.
//!
//! What precedes `::` is taken off before. Thousands of steps are printed with three digits, so
//! that such a step is only about right, and two bars may have the same one. Its `json_logger`
//! writes exact records, which `jsonl` reads.

use stepwatch_wire::names::metric;
use stepwatch_wire::{CkptPhase, MAX_TEXT, Value};

use crate::format::{Format, Line, Out, Outcome};
use crate::{number, tqdm};

#[derive(Debug, Default)]
pub(crate) struct Levanter {
    last_step: Option<i64>,
    /// Seconds that the bar had run when it was last drawn with a loss: a bar that begins anew has
    /// none yet.
    with_loss: Option<i64>,
}

impl Format for Levanter {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some(bar) = line.text.strip_prefix("Progress on:") {
            return match bar.strip_prefix("train ").map(|bar| self.progress(bar, line, out)) {
                Some(true) => Outcome::Matched,
                // Of a data cache, an evaluation, a download.
                _ => Outcome::Ignored,
            };
        }
        let checkpoint =
            [("Saving checkpoint to ", CkptPhase::Start), ("Saved checkpoint to ", CkptPhase::End)];
        for (words, phase) in checkpoint {
            let saved = line.text.strip_prefix(words).and_then(|rest| rest.rsplit_once(" for step "));
            let Some((path, step)) = saved else { continue };
            let Some((step, "")) = number::integer(step) else { continue };
            let mut e = line.checkpoint(phase, Some(step));
            e.extra.insert("path".into(), Value::Text(path.chars().take(MAX_TEXT).collect()));
            out.push(e);
            return Outcome::Matched;
        }
        Outcome::Unmatched
    }

    fn resume(&mut self, last_step: i64) {
        self.last_step = Some(last_step);
    }
}

impl Levanter {
    /// A drawing of the bar of training; false if it has nothing new.
    fn progress(&mut self, bar: &str, line: &Line<'_>, out: &mut Out<'_>) -> bool {
        let Some(n) =
            number::human(&bar.replacen("kit/", "K/", 1).replacen("Mit/", "M/", 1)).map(|n| n.value)
        else {
            return false;
        };
        let Some(step) = number::whole(n.round()) else { return false };
        let mut e = line.step(step);
        for (key, value) in bar
            .rsplit_once("postfix:")
            .into_iter()
            .flat_map(|(_, p)| p.split(','))
            .filter_map(|f| f.split_once('='))
        {
            let name = if key.trim() == "loss" { metric::LOSS } else { key.trim() };
            out.metric(&mut e, name, value, 1.0);
        }
        let elapsed = bar.split_once("elapsed:").and_then(|(_, t)| tqdm::clock(t.split(' ').next()?));
        if e.m.get(metric::LOSS).is_some() {
            self.with_loss = elapsed;
        } else if elapsed <= self.with_loss {
            self.with_loss = None;
        }
        let known = self.with_loss.is_some() || out.has_nothing(Some(metric::LOSS));
        let missed = e.m.get(metric::LOSS).is_none() && known && out.has_lost(&e);
        let lost = missed || e.m.get(metric::LOSS).is_some_and(|v| !v.is_finite());
        let new = self.last_step.is_none_or(|last| step != last);
        if e.m.is_empty() && !missed || !(new || lost) {
            return false;
        }
        // The numbers of a step that was published stay as they are.
        e.step = Some(step + i64::from(!new));
        self.last_step = Some(step);
        out.push(e);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;
    use crate::line_formats::samples::{PLAIN, Sampled, Written};
    use stepwatch_wire::{Event, Kind};

    impl Sampled for Levanter {
        const LOGS: &'static [&'static str] = &[
            "2025-09-26T10:00:00 - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145 - INFO :: Progress on:train 108it/10.0kit rate:1.1it/s remaining:2:25:00 elapsed:02:00 postfix:loss=7.5\n",
        ];
        const WRITTEN: &'static [Written] = &[Written {
            line: "2025-09-26T10:00:00 - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145 - INFO :: Progress on:train §it/10.0kit rate:1.1it/s remaining:2:25:00 elapsed:1:00:§ postfix:⟨loss=¤⟩",
            ..PLAIN
        }];
    }

    fn read(lines: &[&str]) -> (Vec<Event>, LogReader) {
        let mut r = LogReader::new(None).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        (out, r)
    }

    const P: &str =
        "2025-09-26T10:00:00 - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145 - INFO :: Progress on:";

    #[test]
    fn its_bar() {
        let (e, r) = read(&[
            &format!("{P}train 108it/10.0kit rate:1.1it/s remaining:2:25:00 elapsed:02:00 postfix:loss=7.5"),
            &format!(
                "{P}train 1.14kit/10.0kit rate:1.1it/s remaining:2:25:00 elapsed:17:00 postfix:loss=5.25"
            ),
            &format!(
                "{P}train 1.14kit/10.0kit rate:1.1it/s remaining:2:25:00 elapsed:17:01 postfix:loss=5.24"
            ),
            &format!(
                "{P}train 1.14kit/10.0kit rate:1.1it/s remaining:2:25:00 elapsed:17:02 postfix:loss=nan"
            ),
            &format!("{P}eval 4.00it/16.0it rate:1.1it/s remaining:00:10 elapsed:00:04 postfix:loss=5.3"),
            "2025-09-26T10:00:00 - 0 - levanter.checkpoint - checkpoint.py:376 - INFO :: Saving checkpoint to gs://b/run/step-1000 for step 1000",
            "2025-09-26T10:00:30 - 0 - levanter.checkpoint - checkpoint.py:384 - INFO :: Saved checkpoint to gs://b/run/step-1000 for step 1000",
        ]);
        assert_eq!(r.name(), "levanter");
        let seen: Vec<_> = e.iter().map(|e| (e.kind, e.step.unwrap(), e.ckpt)).collect();
        assert_eq!(
            seen,
            [
                (Kind::Step, 108, None),
                (Kind::Step, 1140, None),
                (Kind::Step, 1141, None),
                (Kind::Ckpt, 1000, Some(CkptPhase::Start)),
                (Kind::Ckpt, 1000, Some(CkptPhase::End)),
            ]
        );
        assert_eq!((e[0].m.get("loss"), e[0].rank, e[0].ts), (Some(7.5), Some(0), Some(1_758_880_800.0)));
        assert!(e[2].m.get("loss").unwrap().is_nan());
    }

    #[test]
    fn a_loss_of_none_is_missing() {
        let bar = |n: u32, loss: &str| {
            format!("{P}train {n}it/10.0kit rate:1.1it/s remaining:2:25 elapsed:02:00 postfix:loss={loss}")
        };
        let log =
            [bar(0, "None"), bar(1, "7.5"), bar(2, "7.5"), bar(3, "None"), bar(3, "None"), bar(4, "7.0")];
        let (e, _) = read(&log.iter().map(String::as_str).collect::<Vec<_>>());
        let seen: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.missing.len())).collect();
        assert_eq!(seen, [(1, 0), (2, 0), (3, 1), (4, 1), (4, 0)]);
        assert_eq!(e[2].missing, ["loss"]);
    }

    #[test]
    fn its_records_behind_a_logger() {
        let p = "2025-09-26T10:00:00 - 3 - levanter.json_logger - json_logger.py:82 - INFO :: ";
        let (e, r) = read(&[
            &format!(
                r#"{p}{{"tracker": "json_logger", "event": "log", "step": 4, "metrics": {{"train/loss": 2.25, "throughput/mfu": 41.0}}}}"#
            ),
            &format!(
                r#"{p}{{"tracker": "json_logger", "event": "summary", "metrics": {{"throughput/device_kind": "v4"}}}}"#
            ),
        ]);
        assert_eq!((r.name(), e.len(), e[0].rank, e[0].step), ("jsonl", 1, Some(3), Some(4)));
        assert_eq!(
            (e[0].m.get("loss"), e[0].m.get("mfu_reported"), e[0].ts),
            (Some(2.25), Some(0.41), Some(1_758_880_800.0))
        );
    }

    #[test]
    fn a_bar_that_begins_anew_misses_no_loss() {
        let bar = |n: i64, elapsed: &str, postfix: &str| {
            format!(
                "Progress on:train {n}it/10.0kit rate:1.1it/s remaining:2:25:00 elapsed:{elapsed} postfix:{postfix}"
            )
        };
        let mut log: Vec<_> = (1..60).map(|n| bar(n, &format!("{n}:00"), "loss=7.5")).collect();
        log.extend([bar(60, "00:00", "-"), bar(61, "01:00", "-")]);
        log.extend((62..100).map(|n| bar(n, &format!("{n}:00"), "loss=7.5")));
        log.push(bar(100, "1:40:00", "-"));
        let (e, _) = read(&log.iter().map(String::as_str).collect::<Vec<_>>());
        let missing: Vec<_> = e.iter().filter(|e| !e.missing.is_empty()).map(|e| e.step.unwrap()).collect();
        assert_eq!(missing, [100]);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(a in "\\PC{0,40}", b in "[0-9.kMit/: =a-z,]{0,30}") {
            read(&[&format!("Progress on:train {b}{a}"), &format!("Progress on:{a}"), &format!("Saved checkpoint to {a} for step {b}")]);
        }
    }
}
