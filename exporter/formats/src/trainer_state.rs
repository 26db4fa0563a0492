//! `trainer_state.json` of Hugging Face `Trainer`: every log of the run, written anew into each
//! checkpoint.
//!
//! It is no live source, since it appears at saves only. It fills in what was logged while nobody
//! looked, and says that a checkpoint is complete: it is written after the weights.

use std::path::Path;

use stepwatch_wire::{CkptPhase, Event, Kind, MAX_TEXT, Value};

use crate::file_format::{Chunk, FileFormat, Pushed};
use crate::format::Out;
use crate::json_scan::{Items, Members};
use crate::number;
use crate::scalars::{Gathered, Id, Printed, Scalars};

#[derive(Debug)]
pub(crate) struct TrainerState {
    /// The checkpoint's directory, if the file is in one.
    checkpoint: Option<String>,
    scalars: Scalars,
    /// Entries of the history that were told.
    told: usize,
    /// The first of them: another one is another run's.
    first: Vec<u8>,
    /// The checkpoint was told.
    saved: bool,
    /// Steps up to this one are known from elsewhere.
    known: Option<i64>,
}

/// What there is in the file.
#[derive(Debug, Default)]
struct State<'a> {
    history: Vec<&'a [u8]>,
    global_step: Option<i64>,
    whole: bool,
}

/// Whether a file begins like one. The keys are sorted, so the history comes early.
pub(crate) fn is_one(head: &[u8]) -> bool {
    let key = b"\"log_history\"";
    head.trim_ascii_start().starts_with(b"{") && head.windows(key.len()).any(|w| w == key)
}

impl TrainerState {
    pub(crate) fn new(path: &Path) -> Self {
        let dir = path.parent();
        let name = dir.and_then(Path::file_name).and_then(|n| n.to_str());
        let is_checkpoint = name.is_some_and(|n| n.starts_with("checkpoint-"));
        Self {
            checkpoint: dir.filter(|_| is_checkpoint).map(|d| d.display().to_string()),
            scalars: Scalars::default(),
            told: 0,
            first: Vec::new(),
            saved: false,
            known: None,
        }
    }

    fn entry(&mut self, raw: &[u8], pushed: &mut Pushed, out: &mut Out<'_>) {
        let Ok(Value::Map(entry)) = Value::parse(raw) else {
            pushed.bad_records += 1;
            return;
        };
        let Some(step) = entry.get("step").and_then(Value::as_f64).and_then(number::whole) else {
            pushed.unmatched += 1;
            return;
        };
        if self.known.is_some_and(|known| step <= known) {
            return;
        }
        let values: Vec<(Id, f64)> = entry
            .iter()
            .filter(|(key, _)| *key != "step")
            .filter_map(|(key, v)| Some((self.scalars.id(key)?, v.as_f64()?)))
            .collect();
        let nulls = entry.iter().filter(|(_, v)| **v == Value::Null).map(|(key, _)| key.as_str());
        self.scalars.nulls(nulls, &values, out);
        pushed.unmatched += self.scalars.give(&Gathered { step, ts: None, values }, Printed::AsText, out);
    }

    fn checkpoint(&mut self, step: Option<i64>, out: &mut Out<'_>) {
        let (Some(dir), Some(step)) = (&self.checkpoint, step.filter(|s| *s >= 0)) else { return };
        if !core::mem::replace(&mut self.saved, true) {
            let mut e = Event { step: Some(step), ckpt: Some(CkptPhase::End), ..Event::new(Kind::Ckpt) };
            e.extra.insert("path".into(), Value::Text(dir.chars().take(MAX_TEXT).collect()));
            out.push(e);
        }
    }
}

impl FileFormat for TrainerState {
    fn name(&self) -> &'static str {
        "trainer_state"
    }

    fn push(&mut self, chunk: Chunk<'_>, out: &mut Out<'_>) -> Pushed {
        let mut pushed = Pushed::default();
        let state = State::of(chunk.bytes);
        if !state.whole {
            if !chunk.at_rest {
                return pushed; // it is being written
            }
            pushed.bad_records += 1;
        }
        let other_run =
            state.history.first().is_some_and(|first| !self.first.is_empty() && self.first != *first);
        // A run that went on from an earlier checkpoint has the same beginning, and tells what
        // comes from here on.
        self.told = if other_run { 0 } else { self.told.min(state.history.len()) };
        if let Some(first) = state.history.first().filter(|_| other_run || self.first.is_empty()) {
            self.first = first.to_vec();
        }
        for raw in &state.history[self.told..] {
            self.entry(raw, &mut pushed, out);
        }
        self.told = state.history.len();
        if state.whole {
            self.checkpoint(state.global_step, out);
        }
        pushed.consumed = chunk.bytes.len();
        pushed
    }

    /// Twice the entries that were told, and one if the checkpoint was.
    fn position(&self) -> u64 {
        (self.told as u64) << 1 | u64::from(self.saved)
    }

    fn resume(&mut self, position: u64, last_step: Option<i64>) {
        self.saved = position & 1 == 1;
        self.told = usize::try_from(position >> 1).unwrap_or(0);
        // Of a file that was read before, the position says it better.
        self.known = last_step.filter(|_| position == 0);
    }
}

impl<'a> State<'a> {
    /// As much of it as is there.
    fn of(bytes: &'a [u8]) -> Self {
        let mut state = Self::default();
        let Ok(members) = Members::of(bytes) else { return state };
        for member in members {
            let Ok((key, value)) = member else { return state };
            match key {
                "global_step" => {
                    let text = core::str::from_utf8(value).unwrap_or("");
                    state.global_step = number::integer(text).map(|(step, _)| step);
                }
                "log_history" => {
                    let Ok(items) = Items::of(value) else { return state };
                    for item in items {
                        let Ok(item) = item else { return state };
                        state.history.push(item);
                    }
                }
                _ => {}
            }
        }
        // The closing brace is the last that is written.
        state.whole = bytes.trim_ascii_end().ends_with(b"}");
        state
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::FileReader;

    const STATE: &str = r#"{
  "epoch": 0.3, "global_step": 30,
  "log_history": [
    {"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 0.0002, "loss": 5.4962, "step": 10},
    {"epoch": 0.2, "grad_norm": NaN, "learning_rate": 0.0002, "loss": 3.355, "step": 20},
    {"epoch": 0.2, "eval_loss": 3.5, "eval_runtime": 6.1, "step": 20},
    {"epoch": 0.3, "learning_rate": 0.0001, "loss": 2.7981, "step": 30}
  ],
  "max_steps": 100
}"#;

    fn reader(path: &str) -> FileReader {
        FileReader::new(Path::new(path), b"").unwrap()
    }

    fn push(r: &mut FileReader, text: &str, at_rest: bool) -> (Vec<(Kind, Option<i64>)>, Pushed) {
        let mut out = Vec::new();
        let pushed = r.push(text.as_bytes(), at_rest, &mut out);
        (out.iter().map(|e| (e.kind, e.step)).collect(), pushed)
    }

    #[test]
    fn the_history_and_the_checkpoint() {
        let mut r = reader("/out/checkpoint-30/trainer_state.json");
        let mut out = Vec::new();
        assert_eq!(r.push(STATE.as_bytes(), false, &mut out).consumed, STATE.len());
        let seen: Vec<_> = out.iter().map(|e| (e.kind, e.step)).collect();
        let step = |n| (Kind::Step, Some(n));
        assert_eq!(seen, [step(10), step(20), (Kind::Eval, Some(20)), step(30), (Kind::Ckpt, Some(30))]);
        assert_eq!((out[0].m.get("loss"), out[0].m.get("lr")), (Some(5.4962), Some(0.0002)));
        assert!(out[1].m.get("grad_norm").unwrap().is_nan());
        assert_eq!((out[2].name.as_deref(), out[2].m.get("loss")), (Some("eval"), Some(3.5)));
        assert_eq!(out[4].extra["path"].as_str(), Some("/out/checkpoint-30"));
        assert!((r.resolution().get("loss").unwrap() / 1e-4 - 1.0).abs() < 1e-9, "four decimals");
        assert_eq!(push(&mut r, STATE, true).0, [], "once");
    }

    #[test]
    fn only_what_is_new() {
        let mut r = reader("/out/trainer_state.json");
        push(&mut r, STATE, false);
        let before = r.position();
        let more =
            STATE.replace("2.7981, \"step\": 30}", "2.7981, \"step\": 30}, {\"loss\": 2.5, \"step\": 40}");
        assert_eq!(push(&mut r, &more, false).0, [(Kind::Step, Some(40))]);
        let mut later = reader("/out/trainer_state.json");
        later.resume(before, None);
        assert_eq!(push(&mut later, &more, false).0, [(Kind::Step, Some(40))]);
        let mut sibling = reader("/out/checkpoint-40/trainer_state.json");
        sibling.resume(0, Some(30));
        assert_eq!(push(&mut sibling, &more, false).0, [(Kind::Step, Some(40)), (Kind::Ckpt, Some(30))]);
        let mut again = reader("/out/checkpoint-40/trainer_state.json");
        again.resume(sibling.position(), Some(40));
        assert_eq!(push(&mut again, &more, false).0, []);
        let other = STATE.replace("5.4962", "6.5");
        assert_eq!(push(&mut r, &other, false).0.len(), 4, "another run's");
    }

    #[test]
    fn seconds_at_every_step_are_no_end() {
        let seconds = |loss: &str, of: &str| {
            format!("{loss}, \"train_runtime\": 9.5, \"train_tokens_per_second\": 456.7{of}")
        };
        let last = r#", "step": 30}, {"epoch": 0.3, "train_loss": 3.1, "train_runtime": 20.5, "train_samples_per_second": 5.4, "step": 30}"#;
        let state = STATE
            .replace("5.4962", &seconds("5.4962", ""))
            .replace("3.355", &seconds("NaN", ""))
            .replace("2.7981, \"step\": 30}", &seconds("2.7981", last));
        let mut out = Vec::new();
        reader("/out/trainer_state.json").push(state.as_bytes(), true, &mut out);
        let seen: Vec<_> = out.iter().map(|e| (e.kind, e.step)).collect();
        let step = |n| (Kind::Step, Some(n));
        let end = (Kind::Bye, Some(30));
        assert_eq!(seen, [step(10), step(20), (Kind::Eval, Some(20)), step(30), step(30), end]);
        assert!(out[1].m.get("loss").unwrap().is_nan());
    }

    #[test]
    fn a_file_that_is_being_written() {
        for cut in 0..STATE.len() {
            let mut r = reader("/out/trainer_state.json");
            assert_eq!(push(&mut r, &STATE[..cut], false), (vec![], Pushed::default()), "{cut}");
            assert_eq!(push(&mut r, STATE, false).0.len(), 4);
        }
        let (told, pushed) = push(&mut reader("/out/trainer_state.json"), &STATE[..270], true);
        assert_eq!((told.len(), pushed.bad_records), (2, 1), "what is there of one that stays as it is");
    }

    proptest! {
        #[test]
        fn mutated(flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6)) {
            let mut bytes = STATE.as_bytes().to_vec();
            for (at, with) in flips {
                let at = at.index(bytes.len());
                bytes[at] = with;
            }
            let mut out = Vec::new();
            reader("/out/trainer_state.json").push(&bytes, true, &mut out);
            prop_assert!(out.len() <= 8);
        }
    }
}
