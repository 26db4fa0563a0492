//! `error.json` of torchelastic: why a rank died, written by
//! `torch.distributed.elastic.multiprocessing.errors.record`.
//!
//! It is at `<log_dir>/<run>/attempt_<k>/<local_rank>/error.json`. The path gives the rank on its
//! node, and which restart it was; it does not give the rank in the job.

use std::path::Path;

use stepwatch_wire::{Event, Kind, MAX_TEXT, Value};

use crate::file_format::{Chunk, FileFormat, Pushed};
use crate::format::Out;
use crate::number;

/// Name of the event.
const NAME: &str = "torchelastic_error";
/// Bytes of the call stack's end that are kept.
const MAX_STACK_BYTES: usize = 2048;

#[derive(Debug)]
pub(crate) struct ErrorJson {
    local_rank: Option<i64>,
    attempt: Option<i64>,
    /// Time of the error published last, in Unix seconds; 0 where the file has none.
    last_reported: Option<u64>,
}

impl ErrorJson {
    pub(crate) fn new(path: &Path) -> Self {
        let mut above = path.ancestors().skip(1).map(|p| p.file_name().and_then(|n| n.to_str()));
        let local_rank = above.next().flatten().and_then(whole);
        let attempt = above.next().flatten().and_then(|n| n.strip_prefix("attempt_")).and_then(whole);
        Self { local_rank: local_rank.filter(|_| attempt.is_some()), attempt, last_reported: None }
    }
}

impl FileFormat for ErrorJson {
    fn name(&self) -> &'static str {
        "torchelastic-error"
    }

    fn push(&mut self, chunk: Chunk<'_>, out: &mut Out<'_>) -> Pushed {
        let done = Pushed { consumed: chunk.bytes.len(), ..Pushed::default() };
        let Ok(error) = Value::parse(chunk.bytes) else {
            let written = chunk.at_rest && !chunk.bytes.is_empty();
            return if written { Pushed { bad_records: 1, ..done } } else { Pushed::default() };
        };
        let Some(outer) = error.get("message") else { return Pushed { unmatched: 1, ..done } };
        let Some(message) = outer.as_str().or_else(|| outer.get("message")?.as_str()) else {
            return Pushed { unmatched: 1, ..done };
        };
        let info = |key: &str| outer.get("extraInfo")?.get(key);
        let ts = info("timestamp").and_then(Value::as_f64).filter(|t| t.is_finite() && *t > 0.0);
        let stamp = ts.map_or(0, |t| t as u64);
        if self.last_reported.is_some_and(|last_reported| stamp <= last_reported) {
            return done;
        }
        self.last_reported = Some(stamp);
        let mut e = Event { ts, ..Event::new(Kind::Event) };
        e.name = Some(NAME.into());
        e.level = Some("error".into());
        e.text = Some(last_line(message).chars().take(MAX_TEXT).collect());
        for (key, n) in [("local_rank", self.local_rank), ("restart", self.attempt)] {
            e.extra.extend(n.map(|n| (key.to_owned(), Value::Number(n as f64))));
        }
        if let Some(stack) = info("py_callstack").and_then(Value::as_str) {
            e.extra.insert("py_callstack".into(), Value::Text(end_of(stack.trim_end()).to_owned()));
        }
        out.push(e);
        done
    }

    fn position(&self) -> u64 {
        self.last_reported.map_or(0, |t| t.saturating_add(1))
    }

    fn resume(&mut self, position: u64, _last_step: Option<i64>) {
        self.last_reported = position.checked_sub(1);
    }
}

fn whole(text: &str) -> Option<i64> {
    number::integer(text).filter(|(n, rest)| *n >= 0 && rest.is_empty()).map(|(n, _)| n)
}

/// The last line with a word in it: the exception, below a traceback or above a ruler.
fn last_line(message: &str) -> &str {
    let mut lines = message.lines().rev().map(str::trim);
    lines.find(|l| l.chars().any(char::is_alphanumeric)).unwrap_or("")
}

/// The end of a text, from the beginning of a line.
fn end_of(text: &str) -> &str {
    let Some(mut from) = text.len().checked_sub(MAX_STACK_BYTES) else { return text };
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let end = &text[from..];
    end.split_once('\n').map_or(end, |(_, lines)| lines)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::FileReader;

    fn reader() -> FileReader {
        FileReader::new(Path::new("/logs/none_x1/attempt_2/3/error.json"), b"").unwrap()
    }

    fn error(timestamp: u64, message: &str) -> String {
        let mut text = String::new();
        Value::Text(message.into()).write(&mut text);
        let stack = "  File \\\"train.py\\\", line 5, in <module>\\n".repeat(100);
        format!(
            r#"{{"message": {{"message": {text}, "extraInfo": {{"py_callstack": "{stack}", "timestamp": "{timestamp}"}}}}}}"#
        )
    }

    #[test]
    fn why_a_rank_died() {
        let mut r = reader();
        let mut out = Vec::new();
        let text = error(
            1_795_226_853,
            "Traceback (most recent call last):\n  x\nRuntimeError: CUDA error\n=====\n",
        );
        assert_eq!(r.push(text.as_bytes(), false, &mut out).consumed, text.len());
        let e = &out[0];
        assert_eq!((e.kind, e.name.as_deref(), e.level.as_deref()), (Kind::Event, Some(NAME), Some("error")));
        assert_eq!((e.text.as_deref(), e.ts), (Some("RuntimeError: CUDA error"), Some(1_795_226_853.0)));
        assert_eq!(
            (e.rank, e.extra["local_rank"].as_f64(), e.extra["restart"].as_f64()),
            (None, Some(3.0), Some(2.0))
        );
        let stack = e.extra["py_callstack"].as_str().unwrap();
        assert!(stack.len() <= MAX_STACK_BYTES && stack.starts_with("  File"));
        r.push(text.as_bytes(), true, &mut out);
        let mut later = reader();
        later.resume(r.position(), None);
        later.push(text.as_bytes(), true, &mut out);
        assert_eq!(out.len(), 1, "once");
        later.push(error(1_795_226_999, "again").as_bytes(), true, &mut out);
        assert_eq!(out.len(), 2);
    }

    #[test]
    fn other_shapes() {
        let read = |text: &str, at_rest| {
            let mut out = Vec::new();
            let pushed = FileReader::new(Path::new("error.json"), b"").unwrap().push(
                text.as_bytes(),
                at_rest,
                &mut out,
            );
            (out.pop().and_then(|e| e.text), pushed.bad_records, pushed.unmatched)
        };
        assert_eq!(read(r#"{"message": "SIGKILL"}"#, false), (Some("SIGKILL".into()), 0, 0));
        assert_eq!(read(r#"{"message": "#, false), (None, 0, 0), "being written");
        assert_eq!(read(r#"{"message": "#, true), (None, 1, 0));
        assert_eq!(read(r#"{"error": 5}"#, true), (None, 0, 1));
        assert_eq!(read(r#"{"message": {"message": 5}}"#, true), (None, 0, 1));
    }

    proptest! {
        #[test]
        fn never_panics(text: String, at_rest: bool) {
            let mut out = Vec::new();
            reader().push(text.as_bytes(), at_rest, &mut out);
            reader().push(error(5, &text).as_bytes(), at_rest, &mut out);
            prop_assert!(out.iter().all(|e| e.to_json().len() <= stepwatch_wire::MAX_EVENT_BYTES));
        }
    }
}
