//! Batches of an epoch, as ESPnet heads its lines: `[host:0/1] 2024-01-01 00:00:00,000
//! (trainer:756) INFO: 1epoch:train:1-50batch: iter_time=1.2e-04, …, loss=92.1, …, train_time=1.9`.

use stepwatch_wire::names::metric;

use super::line_values::{LineValues, MAX_STEP};
use crate::number;
use crate::time::{self, Stamp};

/// The batches that a line is of.
#[derive(Debug, PartialEq)]
pub(super) struct Batches<'a> {
    pub(super) epoch: i64,
    /// The last of them.
    pub(super) last: i64,
    /// They are not of training.
    pub(super) evaluates: bool,
    pub(super) stamp: Option<Stamp>,
    /// The numbers behind it.
    pub(super) rest: &'a str,
}

/// The batches that a line names before its numbers.
pub(super) fn of(text: &str) -> Option<Batches<'_>> {
    let (head, rest) = number::split_once(text, "epoch:")?;
    let digits = head.len() - head.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (before, epoch) = head.split_at(head.len() - digits);
    let (set, rest) = rest.split_once(':')?;
    let (_, rest) = number::integer(rest)?;
    let (last, rest) = number::integer(rest.strip_prefix('-')?)?;
    let stamp = before.split_once("] ").and_then(|(_, t)| time::lead(t)).map(|(stamp, _)| stamp);
    let fits = (1..=MAX_STEP).contains(&last);
    let apart = before.is_empty() || before.ends_with([' ', ':']);
    Some(Batches {
        epoch: epoch.parse().ok().filter(|_| apart && fits)?,
        last,
        evaluates: set != "train",
        stamp,
        rest: rest.strip_prefix("batch: ")?,
    })
}

impl LineValues {
    /// What ESPnet calls `iter_time` is the wait for a batch, `train_time` that of the whole step,
    /// and `optim0_lr0` the rate of the first group of its first optimizer.
    pub(super) fn settle_batches(&mut self) {
        for (name, ..) in &mut self.train {
            match name.as_str() {
                metric::STEP_TIME => "iter_time".clone_into(name),
                "optim0_lr0" => metric::LR.clone_into(name),
                "train_time" => metric::STEP_TIME.clone_into(name),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_wire::{Event, Kind};

    use super::*;
    use crate::LogReader;

    fn line(epoch: i64, set: &str, first: i64, loss: &str) -> String {
        let last = first + 49;
        format!(
            "[gpu01:0/1] 2024-02-01 10:00:00,500 (trainer:756) INFO: {epoch}epoch:{set}:{first}-{last}batch: iter_time=1.234e-04, forward_time=0.100, loss_ctc=200.1, loss_att=100.2, acc=0.100, loss={loss}, backward_time=0.200, grad_norm=12.100, clip=100.000, loss_scale=1.000e+03, optim_step_time=0.050, optim0_lr0=1.000e-06, train_time=0.500"
        )
    }

    fn read(lines: &[String]) -> Vec<Event> {
        let mut r = LogReader::new(None).unwrap();
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        out
    }

    #[test]
    fn lines_of_espnet() {
        let lines = [
            line(1, "train", 1, "123.4"),
            line(1, "train", 51, "122.4"),
            line(1, "valid", 1, "130.4"),
            line(2, "train", 1, "nan"),
        ];
        let e = read(&lines);
        let steps: Vec<_> = e.iter().filter(|e| e.kind == Kind::Step).collect();
        assert_eq!(steps.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [50, 100, 150]);
        let m = &steps[0].m;
        assert_eq!(
            [m.get("loss"), m.get("grad_norm"), m.get("lr"), m.get("step_time"), m.get("epoch")],
            [Some(123.4), Some(12.1), Some(1e-6), Some(0.5), Some(1.0)]
        );
        assert_eq!((m.get("iter_time"), m.get("loss_ctc")), (Some(1.234e-4), Some(200.1)));
        assert_eq!(steps[0].ts, Some(1_706_781_600.5));
        assert!(steps[2].m.get("loss").unwrap().is_nan());
        let gan = line(1, "train", 1, "1").replace("loss=", "generator_loss=");
        assert_eq!(of(&gan).unwrap().last, 50);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(lines in proptest::collection::vec("[0-9]{1,20}epoch:(train|valid):[0-9]{1,3}-[0-9]{1,20}batch: loss=[0-9.nae-]{1,6}", 0..6)) {
            read(&lines);
        }
    }

    #[test]
    fn what_names_no_batches() {
        for text in [
            "1epoch results: [train] iter_time=1.234e-04, loss=123.4, total_count=100",
            "epoch:train:1-50batch: loss=1",
            "1epoch:train:1-50steps: loss=1",
            "1epoch:train:-50batch: loss=1",
            "1epoch:train",
            "xepoch:1:2-3batch: loss=1",
            "x1epoch:train:1-50batch: loss=1",
            "1epoch:train:1-9223372036854775807batch: loss=1",
            "99999999999999999999epoch:train:1-50batch: loss=1",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
