//! Lines about a start that are the same in the logs of many trainers: those of torchrun and NCCL,
//! and how trainers announce their first step. They become phases of the start (`names::start`),
//! and do not decide of which format a log is.
//!
//! They name no rank, whichever rank printed them: a rank that is only known from such a line would
//! be waited for.
//!
//! * torchrun (`torch/distributed/elastic/agent/server/api.py`): `[default] Rendezvous'ing worker
//!   group`, `[default] Starting worker group`.
//! * NCCL with `NCCL_DEBUG=INFO` (`src/init.cc`): `… comm 0x… rank 3 nranks 8 … - Init START` and
//!   `… - Init COMPLETE`, of each rank of the node. Only the largest communicator counts: if it has
//!   all ranks of the job, they have met once one of them completes it.
//! * Megatron-LM (`megatron/training/training.py`): `time to initialize megatron (seconds): 12.3`,
//!   `[before the start of training step] datetime: …`.
//! * torchtitan (`torchtitan/trainer.py`): `Training starts at step 1, …`.

use stepwatch_wire::names::start;
use stepwatch_wire::{Edge, Event, Kind, Value};

use crate::format::Line;
use crate::number;

/// The most ranks of a communicator that is believed.
const MAX_RANKS: i64 = 65_536;

#[derive(Debug, Default)]
pub(crate) struct StartLines {
    /// The ranks of the largest communicator, and how many of this log began and completed it.
    nranks: i64,
    begun: u32,
    completed: u32,
}

impl StartLines {
    /// The phase that a line begins or ends.
    pub(crate) fn read(&mut self, line: &Line<'_>) -> Option<Event> {
        // A logger's prefix, as torchtitan's.
        let text = line.text.split_once(" - INFO - ").map_or(line.text, |(_, message)| message);
        let (name, edge) = if text.ends_with("Rendezvous'ing worker group") {
            *self = Self::default();
            (start::RENDEZVOUS, Edge::Begin)
        } else if line.raw.ends_with("] Starting worker group") {
            (start::RENDEZVOUS, Edge::End)
        } else if text.starts_with("Training starts at step ")
            || text.starts_with("[before the start of training step]")
        {
            (start::FIRST_STEP, Edge::Begin)
        } else if let Some(rest) = text.strip_prefix("time to initialize megatron (seconds):") {
            let seconds = number::lex(rest).map(|n| n.value).filter(|seconds| seconds.is_finite())?;
            let mut e = phase(line, start::INIT, Edge::End);
            e.extra.insert("seconds".into(), Value::Number(seconds));
            return Some(e);
        } else {
            let edge = self.nccl(text)?;
            let mut e = phase(line, start::INIT, edge);
            e.extra.insert(start::RANKS.into(), Value::Number(self.nranks as f64));
            return Some(e);
        };
        Some(phase(line, name, edge))
    }

    fn nccl(&mut self, text: &str) -> Option<Edge> {
        let begins = text.ends_with("- Init START");
        if !begins && !text.contains("- Init COMPLETE") || !text.contains("NCCL INFO") {
            return None;
        }
        let (_, ranks) = text.split_once(" nranks ")?;
        let (nranks, _) = number::integer(ranks)?;
        if nranks > self.nranks && nranks <= MAX_RANKS {
            *self = Self { nranks, ..Self::default() };
        }
        if nranks != self.nranks {
            return None;
        }
        if begins {
            // No rank completes a communicator that another has not begun, so this is the next one.
            if self.completed > 0 {
                (self.begun, self.completed) = (0, 0);
            }
            self.begun = self.begun.saturating_add(1);
            return (self.begun == 1).then_some(Edge::Begin);
        }
        self.completed = self.completed.saturating_add(1);
        (self.completed == self.begun).then_some(Edge::End)
    }
}

fn phase(line: &Line<'_>, name: &str, edge: Edge) -> Event {
    Event { name: Some(name.to_owned()), edge: Some(edge), ..line.event(Kind::Phase, None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogReader;

    /// The phases in a log.
    fn phases(lines: &[&str]) -> Vec<(String, Edge, Option<f64>)> {
        let mut reader = LogReader::new(None).unwrap();
        let mut out = Vec::new();
        for line in lines {
            reader.line(line, &mut out);
        }
        assert!(out.iter().all(|e| e.kind == Kind::Phase && e.rank.is_none()), "{out:?}");
        let seconds = |e: &Event| e.extra.get("seconds").and_then(Value::as_f64);
        out.iter().map(|e| (e.name.clone().unwrap(), e.edge.unwrap(), seconds(e))).collect()
    }

    fn nccl(rank: u32, nranks: u32, what: &str) -> String {
        format!(
            "n1:22{rank}:30{rank} [{rank}] NCCL INFO ncclCommInitRankConfig comm 0x55d0 rank {rank} nranks {nranks} \
             cudaDev {rank} nvmlDev {rank} busId b000 commId 0x8c - Init {what}"
        )
    }

    #[test]
    fn a_launcher_meets_the_others_and_starts_its_ranks() {
        let agent = "INFO:torch.distributed.elastic.agent.server.api:[default] ";
        let lines = [format!("{agent}Rendezvous'ing worker group"), format!("{agent}Starting worker group")];
        assert_eq!(
            phases(&[&lines[0], &lines[1]]),
            [("rendezvous".to_owned(), Edge::Begin, None), ("rendezvous".to_owned(), Edge::End, None)]
        );
    }

    #[test]
    fn the_largest_communicator_begins_with_the_first_rank_and_ends_with_the_last() {
        let lines: Vec<String> = [
            nccl(0, 8, "START"),
            nccl(1, 8, "START"),
            nccl(0, 8, "COMPLETE"),
            nccl(0, 2, "START"),
            nccl(0, 2, "COMPLETE"),
            nccl(1, 8, "COMPLETE"),
            nccl(0, 8, "START"),
        ]
        .into();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let init = |edge| ("init".to_owned(), edge, None::<f64>);
        assert_eq!(phases(&lines), [init(Edge::Begin), init(Edge::End), init(Edge::Begin)]);
        // A rank that does not come to the end leaves it open.
        assert_eq!(phases(&lines[..3]), [init(Edge::Begin)]);
        let mut reader = LogReader::new(None).unwrap();
        let mut out = Vec::new();
        reader.line(lines[0], &mut out);
        assert_eq!(out[0].extra.get("nranks"), Some(&Value::Number(8.0)));
        assert_eq!(phases(&[&nccl(0, 4_000_000, "START"), &nccl(3, 8, "COMPLETE")]), []);
    }

    #[test]
    fn trainers_announce_their_first_step() {
        assert_eq!(
            phases(&[
                "time to initialize megatron (seconds): 12.500",
                "[before the start of training step] datetime: 2026-11-21 02:16:50 "
            ]),
            [("init".to_owned(), Edge::End, Some(12.5)), ("first_step".to_owned(), Edge::Begin, None)]
        );
        assert_eq!(
            phases(&[
                "[titan] 2026-08-21 10:00:00,000 - root - INFO - Training starts at step 1, with local batch size 8"
            ]),
            [("first_step".to_owned(), Edge::Begin, None)]
        );
        assert_eq!(
            phases(&["time to initialize megatron (seconds): soon", "We saw it Starting worker group"]),
            []
        );
    }
}
