//! Megatron's `latest_checkpointed_iteration.txt`: the iteration of the last checkpoint that is
//! complete, and nothing else.

use std::path::Path;

use stepwatch_wire::names::ckpt;
use stepwatch_wire::{CkptPhase, Event, Kind, Value};

use crate::file_format::{Chunk, FileFormat, Pushed};
use crate::format::Out;
use crate::number;

/// The content in place of a number when the weights were converted from elsewhere.
const RELEASE: &str = "release";

#[derive(Debug)]
pub(crate) struct Latest {
    /// Directory that holds the checkpoints.
    dir: String,
    /// Iteration published last.
    last_published: Option<i64>,
}

impl Latest {
    pub(crate) fn new(path: &Path) -> Self {
        Self { dir: path.parent().map(|p| p.display().to_string()).unwrap_or_default(), last_published: None }
    }
}

impl FileFormat for Latest {
    fn name(&self) -> &'static str {
        "megatron-latest"
    }

    fn push(&mut self, chunk: Chunk<'_>, out: &mut Out<'_>) -> Pushed {
        let text = core::str::from_utf8(chunk.bytes).unwrap_or("?").trim();
        if text.is_empty() {
            return Pushed::default(); // caught between being emptied and being written
        }
        let done = Pushed { consumed: chunk.bytes.len(), ..Pushed::default() };
        if text == RELEASE {
            return done;
        }
        let Some((step, "")) = number::integer(text).filter(|(step, _)| *step >= 0) else {
            return Pushed { bad_records: 1, ..done };
        };
        if self.last_published.replace(step) != Some(step) {
            let mut e = Event { step: Some(step), ckpt: Some(CkptPhase::End), ..Event::new(Kind::Ckpt) };
            // Megatron writes it last, whether its steps waited for the checkpoint or not.
            e.extra.insert(ckpt::STAGE.into(), Value::Text(ckpt::DURABLE.into()));
            e.extra.insert(ckpt::SEEN.into(), Value::Bool(true));
            let path = format!("{}/iter_{step:07}", self.dir);
            e.extra.insert("path".into(), Value::Text(path.chars().take(stepwatch_wire::MAX_TEXT).collect()));
            out.push(e);
        }
        done
    }

    /// The iteration published last, plus one; 0 before any.
    fn position(&self) -> u64 {
        self.last_published.map_or(0, |step| step.unsigned_abs() + 1)
    }

    fn resume(&mut self, position: u64, _last_step: Option<i64>) {
        self.last_published = position.checked_sub(1).and_then(|step| i64::try_from(step).ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileReader;

    fn reader() -> FileReader {
        FileReader::new(Path::new("/ckpt/latest_checkpointed_iteration.txt"), b"").unwrap()
    }

    #[test]
    fn publishes_each_checkpoint_once() {
        let mut r = reader();
        let mut out = Vec::new();
        for text in ["", "1000", "1000\n", "release", "2000\n"] {
            assert_eq!(r.push(text.as_bytes(), false, &mut out).consumed, text.len());
        }
        let seen: Vec<_> = out.iter().map(|e| (e.kind, e.step, e.ckpt)).collect();
        let end = |step| (Kind::Ckpt, Some(step), Some(CkptPhase::End));
        assert_eq!(seen, [end(1000), end(2000)]);
        assert_eq!(out[1].extra["path"].as_str(), Some("/ckpt/iter_0002000"));
    }

    #[test]
    fn a_published_checkpoint_is_not_published_again() {
        let (mut first, mut out) = (reader(), Vec::new());
        first.push(b"1000", false, &mut out);
        let mut second = reader();
        second.resume(first.position(), None);
        second.push(b"1000", false, &mut out);
        assert_eq!(out.len(), 1);
    }

    #[test]
    fn anything_else_is_bad() {
        for text in ["12 monkeys", "-3", "x", "99999999999999999999", "\u{fffd}"] {
            let mut out = Vec::new();
            assert_eq!(reader().push(text.as_bytes(), false, &mut out).bad_records, 1, "{text}");
            assert!(out.is_empty());
        }
        assert_eq!(reader().push(b"\xff\xfe", false, &mut Vec::new()).bad_records, 1);
    }
}
