//! `trainer_state.json` of Hugging Face `Trainer`: every log of the run, written anew into each
//! checkpoint.
//!
//! It is no live source, since it appears at saves only. It fills in what was logged while the
//! exporter was away, and shows that a checkpoint is complete: it is written after the weights.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::path::Path;

use stepwatch_wire::{CkptPhase, Event, Kind, MAX_TEXT, Value};

use crate::file_format::{Chunk, FileFormat, Pushed, TURN_EVENTS, Whole};
use crate::format::Out;
use crate::json_scan::HistoryScan;
use crate::number;
use crate::scalars::{Gathered, Id, Printed, Scalars};

#[derive(Debug)]
pub(crate) struct TrainerState {
    /// The checkpoint's directory, if the file is in one.
    checkpoint: Option<String>,
    scalars: Scalars,
    /// Entries of the history that were published.
    published: usize,
    /// A sum of the first of them: another one is another run's.
    first: Option<u64>,
    /// The checkpoint was published.
    saved: bool,
    /// Steps up to this one are known from elsewhere.
    known: Option<i64>,
    /// Where the last turn stopped.
    going: Going,
}

/// The file is gone through twice, so that nothing is published of one that is half written.
#[derive(Debug, Default)]
struct Going {
    scan: HistoryScan,
    /// Where the entries begin that were not published.
    unpublished: Option<HistoryScan>,
    first: Option<u64>,
    /// What was found the first time.
    found: Option<Found>,
}

#[derive(Debug, Clone, Copy)]
struct Found {
    entries: usize,
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
            scalars: Scalars::of_whole(),
            published: 0,
            first: None,
            saved: false,
            known: None,
            going: Going::default(),
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

    /// Goes through the file for the first time; `None` until it came to the end.
    fn look(&mut self, whole: &Whole<'_>) -> io::Result<Option<Found>> {
        let Going { scan, unpublished, first, .. } = &mut self.going;
        let mut at = scan.offset;
        let published = self.published;
        let ended = whole.bytes(&mut at, |byte| {
            if scan.byte(byte) {
                if scan.entries == 1 {
                    let mut sum = DefaultHasher::new();
                    scan.item.hash(&mut sum);
                    *first = Some(sum.finish());
                }
                scan.next();
                if scan.entries == published {
                    *unpublished = Some(scan.clone());
                }
            }
            false
        })?;
        Ok(ended.then(|| Found {
            entries: scan.entries,
            global_step: number::integer(scan.global_step()).map(|(step, _)| step),
            whole: scan.is_whole(),
        }))
    }

    /// Makes ready to publish what is new in a file that was gone through.
    fn begin(&mut self, found: Found) {
        let Going { unpublished, first, .. } = core::mem::take(&mut self.going);
        let other_run = first.is_some() && self.first.is_some() && self.first != first;
        // A run that went on from an earlier checkpoint has the same beginning, and yields the
        // entries from here on.
        self.published = if other_run { 0 } else { self.published.min(found.entries) };
        self.first = self.first.filter(|_| !other_run).or(first);
        let scan = unpublished.filter(|scan| scan.entries == self.published).unwrap_or_default();
        self.going = Going { scan, found: Some(found), ..Going::default() };
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
        Whole::all(chunk, |whole| self.read(whole, out))
    }

    fn read(&mut self, whole: &Whole<'_>, out: &mut Out<'_>) -> io::Result<Pushed> {
        if whole.begins {
            self.going = Going::default();
        }
        let mut pushed = Pushed { more: true, ..Pushed::default() };
        let Some(found) = self.going.found else {
            let Some(found) = self.look(whole)? else { return Ok(pushed) };
            if !found.whole && !whole.at_rest {
                return Ok(Pushed::default()); // it is being written
            }
            pushed.bad_records += u64::from(!found.whole);
            self.begin(found);
            return Ok(pushed);
        };
        let mut scan = core::mem::take(&mut self.going.scan);
        let (mut at, full) = (scan.offset, out.len() + TURN_EVENTS);
        let mut enough = found.entries <= self.published;
        let ended = enough
            || whole.bytes(&mut at, |byte| {
                if scan.byte(byte) {
                    if scan.entries > self.published {
                        self.published = scan.entries;
                        if scan.is_oversized() {
                            pushed.oversized += 1;
                        } else {
                            self.entry(&scan.item, &mut pushed, out);
                        }
                    }
                    scan.next();
                    enough = scan.entries >= found.entries;
                }
                enough || out.len() >= full
            })?;
        if ended || enough {
            self.published = found.entries;
            if found.whole {
                self.checkpoint(found.global_step, out);
            }
            (pushed.consumed, pushed.more) = (whole.len as usize, false);
            self.going = Going::default();
        } else {
            self.going.scan = scan;
        }
        Ok(pushed)
    }

    /// Twice the entries that were published, and one if the checkpoint was.
    fn position(&self) -> u64 {
        (self.published as u64) << 1 | u64::from(self.saved)
    }

    fn resume(&mut self, position: u64, last_step: Option<i64>) {
        self.saved = position & 1 == 1;
        self.published = usize::try_from(position >> 1).unwrap_or(0);
        // For a file that was read before, the position is more exact.
        self.known = last_step.filter(|_| position == 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::FileReader;
    use crate::json_scan::MAX_ENTRY_BYTES;

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
    fn a_loss_that_turns_null_is_missing() {
        let entry = |step: i64| {
            let loss = if step > 30 { "null" } else { "2.5" };
            format!(r#"{{"grad_norm": 1.5, "learning_rate": 0.0002, "loss": {loss}, "step": {step}}}"#)
        };
        let entries: Vec<_> = (1..33).map(entry).collect();
        let state = format!(r#"{{"log_history": [{}], "max_steps": 100}}"#, entries.join(", "));
        let mut out = Vec::new();
        reader("/out/trainer_state.json").push(state.as_bytes(), false, &mut out);
        let missing = |e: &Event| (e.step.unwrap_or(0) > 30).then(|| "loss".to_owned()).into_iter().collect();
        let expected: Vec<Vec<String>> = out.iter().map(missing).collect();
        assert_eq!(out.iter().map(|e| e.missing.clone()).collect::<Vec<_>>(), expected);
        assert_eq!(out.len(), 32);
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

    /// However long it is, neither it nor its events are held at once.
    #[test]
    fn a_long_history_is_published_part_by_part() {
        let entries = 20_000;
        let entry = |n: usize| format!("{{\"step\":{n},\"loss\":2}}");
        let list: Vec<String> = (0..entries).map(entry).collect();
        let text = format!("{{\"log_history\":[{}],\"global_step\":19999}}", list.join(","));
        let longest = core::cell::Cell::new(0);
        let bytes = |buffer: &mut [u8], at: u64| {
            longest.set(longest.get().max(buffer.len()));
            let rest = &text.as_bytes()[at as usize..];
            let n = rest.len().min(buffer.len());
            buffer[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        };
        let mut r = reader("/out/checkpoint-1/trainer_state.json");
        let (mut begins, mut steps, mut turns) = (true, Vec::new(), 0);
        loop {
            let mut out = Vec::new();
            let whole = Whole { read: &bytes, len: text.len() as u64, at_rest: false, begins };
            let pushed = r.read(&whole, &mut out).unwrap();
            assert!(out.len() <= TURN_EVENTS + 1, "{} events", out.len());
            steps.extend(out.iter().filter(|e| e.kind == Kind::Step).filter_map(|e| e.step));
            (begins, turns) = (false, turns + 1);
            if !pushed.more {
                assert_eq!((pushed.consumed, out.last().unwrap().kind), (text.len(), Kind::Ckpt));
                break;
            }
            let mut later = reader("/out/checkpoint-1/trainer_state.json");
            later.resume(r.position(), None);
            assert_eq!(later.position(), r.position());
        }
        assert_eq!(steps, (0..entries as i64).collect::<Vec<_>>());
        assert!(turns > 19 && longest.get() <= 64 * 1024, "{turns} turns, {} bytes", longest.get());
    }

    #[test]
    fn an_entry_that_is_too_long_is_passed_over() {
        let text = format!(
            "{{\"log_history\":[{{\"step\":1,\"loss\":2,\"x\":\"{}\"}},{{\"step\":2,\"loss\":2}}]}}",
            "x".repeat(MAX_ENTRY_BYTES)
        );
        let (published, pushed) = push(&mut reader("/out/trainer_state.json"), &text, false);
        assert_eq!((published, pushed.oversized), (vec![(Kind::Step, Some(2))], 1));
    }

    #[test]
    fn a_file_that_is_being_written() {
        for cut in 0..STATE.len() {
            let mut r = reader("/out/trainer_state.json");
            assert_eq!(push(&mut r, &STATE[..cut], false), (vec![], Pushed::default()), "{cut}");
            assert_eq!(push(&mut r, STATE, false).0.len(), 4);
        }
        let (published, pushed) = push(&mut reader("/out/trainer_state.json"), &STATE[..270], true);
        assert_eq!((published.len(), pushed.bad_records), (2, 1), "what is there of one that stays as it is");
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
