//! Which process's steps a log contains, where the launcher put the names of several processes
//! before their lines.
//!
//! * A rank of the job (`3: ` of `srun --label`, `[1,3]<stdout>:` of `mpirun`, PyTorch's
//!   `[rank3]:`) becomes the rank of the steps, phases and heartbeats on such a line, unless the
//!   line itself names one. In a log in which one rank alone prints steps, lines without the prefix
//!   (the later drawings of a progress bar) are its own, so that its name stays the same.
//! * torchrun's `[default3]:` counts the processes of one node and is no rank of the job, so it
//!   becomes none. Of several such processes that all print the same steps, the first is believed;
//!   another one takes its place when it has gone on without it.
//! * Evaluations, checkpoints, messages and the goodbye are the run's, whichever rank prints them,
//!   and get no rank.

use std::collections::BTreeMap;

use stepwatch_wire::{Event, Kind};

use crate::clean::Origin;

/// Steps that another process of the node must print while the believed one is silent, to be
/// believed instead.
const SILENT_FOR: u32 = 4;
/// Processes that are kept apart.
const MAX_PROCESSES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Origins {
    /// Which ranks printed steps so far.
    ranks: Ranks,
    /// Which process of the node is believed.
    process: Option<(u32, u32)>,
    /// Steps of the other processes since it last spoke.
    others: BTreeMap<(u32, u32), u32>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Ranks {
    #[default]
    None,
    One(Option<u32>),
    Several,
}

/// Whether an event comes from a framework and not from us: ours carry their own rank.
pub(super) fn is_foreign(e: &Event) -> bool {
    e.rank.is_none() && e.run.is_none()
}

fn of_a_rank(kind: Kind) -> bool {
    matches!(kind, Kind::Step | Kind::Hb | Kind::Phase)
}

impl Origins {
    /// Sets the rank on the events of a line from `origin`.
    pub(super) fn name(&self, origin: Origin, events: &mut [Event]) {
        let sole = if let Ranks::One(rank) = self.ranks { rank } else { None };
        let Some(rank) = origin.rank.or(sole) else { return };
        for e in events.iter_mut().filter(|e| is_foreign(e) && of_a_rank(e.kind)) {
            e.rank = Some(rank);
        }
    }

    /// Takes note of the events from `first` on, and takes out the steps of a process that only
    /// repeats another's.
    pub(super) fn seen(&mut self, origin: Origin, events: &mut Vec<Event>, first: usize) {
        for e in events[first..].iter().filter(|e| e.kind == Kind::Step) {
            self.ranks = match self.ranks {
                Ranks::None => Ranks::One(e.rank),
                Ranks::One(rank) if rank == e.rank => self.ranks,
                _ => Ranks::Several,
            };
        }
        let Some(process) = origin.process else { return };
        let steps = events[first..].iter().any(|e| e.kind == Kind::Step && is_foreign(e));
        let believed = if steps { self.believes(process) } else { self.process.is_none_or(|p| p == process) };
        if !believed {
            let mut at = 0;
            events.retain(|e| {
                at += 1;
                at <= first || !(of_a_rank(e.kind) && is_foreign(e))
            });
        }
    }

    fn believes(&mut self, process: (u32, u32)) -> bool {
        if self.process.is_some_and(|p| p != process) {
            if !self.others.contains_key(&process) && self.others.len() >= MAX_PROCESSES {
                return false;
            }
            let steps = self.others.entry(process).or_default();
            *steps += 1;
            if *steps <= SILENT_FOR {
                return false;
            }
        }
        self.process = Some(process);
        self.others.clear();
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::LogReader;

    fn read(lines: &[&str]) -> Vec<(Option<u32>, i64, f64)> {
        let mut reader = LogReader::new(None).unwrap();
        let mut out = Vec::new();
        for l in lines {
            reader.line(l, &mut out);
        }
        out.iter().map(|e| (e.rank, e.step.unwrap(), e.m.get("loss").unwrap())).collect()
    }

    fn line(prefix: &str, step: i64, loss: f64) -> String {
        format!("{prefix} iteration {step}/ 100 | lm loss: {loss} |")
    }

    fn lines(of: &[(&str, i64, f64)]) -> Vec<(Option<u32>, i64, f64)> {
        let lines: Vec<_> = of.iter().map(|(p, s, l)| line(p, *s, *l)).collect();
        read(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[test]
    fn the_rank_of_the_job_is_the_rank_of_the_step() {
        let got =
            lines(&[("0: ", 1, 2.0), ("3: ", 1, 3.0), ("[rank1]:", 1, 1.0), ("[1,2]<stdout>:", 1, 4.0)]);
        assert_eq!(got, [(Some(0), 1, 2.0), (Some(3), 1, 3.0), (Some(1), 1, 1.0), (Some(2), 1, 4.0)]);
        let got = lines(&[("3: ", 1, 2.0), ("", 2, 3.0), ("3:", 3, 4.0)]);
        assert_eq!(got, [(Some(3), 1, 2.0), (Some(3), 2, 3.0), (Some(3), 3, 4.0)], "one name for one rank");
        let got = lines(&[("3: ", 1, 2.0), ("0: ", 1, 3.0), ("", 2, 4.0)]);
        assert_eq!(got[2], (None, 2, 4.0), "several spoke: it may be anyone");
    }

    #[test]
    fn drawings_after_a_carriage_return_have_the_same_speaker() {
        let got = read(&[&format!("7:   1%|▏| 1/90 [00:01<00:01]\r{}", line("", 1, 2.0))]);
        assert_eq!(got, [(Some(7), 1, 2.0)]);
    }

    #[test]
    fn processes_of_a_node_that_repeat_each_other_are_one() {
        let said: Vec<_> =
            (1..4).flat_map(|s| ["[default0]:", "[default1]:", "[default2]:"].map(|p| (p, s, 0.5))).collect();
        assert_eq!(lines(&said), [(None, 1, 0.5), (None, 2, 0.5), (None, 3, 0.5)]);
        // A restart elsewhere: only the last process prints now.
        let said: Vec<_> =
            [("[default0]:", 9, 0.5)].into_iter().chain((1..8).map(|s| ("[default7]:", s, 0.5))).collect();
        assert_eq!(lines(&said).iter().map(|(_, s, _)| *s).collect::<Vec<_>>(), [9, 5, 6, 7]);
    }

    #[test]
    fn what_speaks_for_the_run_has_no_rank() {
        let mut reader = LogReader::new(None).unwrap();
        let mut out = Vec::new();
        for l in [
            "3:  iteration 5/ 9 | lm loss: 2.0 |",
            "0: saving checkpoint at iteration 5 to /x in torch_dist format",
            "3: validation loss at iteration 5 | lm loss value: 2.0E+00 |",
            "0: [after training is done] datetime: x",
            r#"4: {"k":"step","run":"r","step":1,"rank":9,"m":{"loss":1}}"#,
        ] {
            reader.line(l, &mut out);
        }
        assert_eq!(out.iter().map(|e| e.rank).collect::<Vec<_>>(), [Some(3), None, None, None]);
        let mut own = Vec::new();
        LogReader::new(None)
            .unwrap()
            .line(r#"4: {"k":"step","run":"r","step":1,"rank":9,"m":{"loss":1}}"#, &mut own);
        assert_eq!(own[0].rank, Some(9));
    }
}
