//! Dumps of PyTorch's NCCL flight recorder (`nccl_trace_rank_7`). That one appears is the news: a
//! watchdog has seen a collective that did not end. What is in it is a pickle, which is a program,
//! and is never looked at.

use std::io;
use std::path::Path;

use stepwatch_wire::{Event, Kind, Value};

use crate::file_format::{Chunk, FileFormat, Pushed, Whole};
use crate::format::Out;

/// Name of the event.
pub const DUMP_EVENT: &str = "flight_recorder_dump";

/// The rank in the name of a dump; `None` for another file.
pub(crate) fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let within = path.parent().is_some_and(|dir| dir.ends_with("comm_traces"));
    let is_dump = bare.ends_with("rank_") && (bare.starts_with("nccl_trace") || within);
    is_dump.then(|| name[bare.len()..].parse().ok())?
}

/// What a dump of this rank at `path` means.
pub fn dump_event(path: &Path, rank: Option<u32>) -> Event {
    let whose = rank.map_or_else(|| "a rank".to_owned(), |rank| format!("rank {rank}"));
    let mut event = Event {
        rank,
        name: Some(DUMP_EVENT.into()),
        level: Some("error".into()),
        text: Some(format!(
            "the NCCL watchdog of {whose} dumped its flight recorder: a collective did not end; compare the dumps of all ranks to see which one did not join"
        )),
        ..Event::new(Kind::Event)
    };
    let path = path.display().to_string().chars().take(stepwatch_wire::MAX_TEXT).collect();
    event.extra.insert("path".into(), Value::Text(path));
    event
}

#[derive(Debug)]
pub(crate) struct FlightRecorder {
    event: Event,
    /// Bytes of the dump reported last; another dump replaces it.
    reported_bytes: u64,
}

impl FlightRecorder {
    pub(crate) fn new(path: &Path) -> Self {
        Self { event: dump_event(path, rank_of(path)), reported_bytes: 0 }
    }
}

impl FlightRecorder {
    fn saw(&mut self, bytes: u64, at_rest: bool, out: &mut Out<'_>) -> Pushed {
        // While it is being written it is reported once.
        if bytes > 0 && (self.reported_bytes == 0 || at_rest && self.reported_bytes > bytes) {
            out.push(self.event.clone());
        }
        self.reported_bytes = bytes;
        Pushed { consumed: bytes as usize, ..Pushed::default() }
    }
}

impl FileFormat for FlightRecorder {
    fn name(&self) -> &'static str {
        "flight-recorder"
    }

    fn push(&mut self, chunk: Chunk<'_>, out: &mut Out<'_>) -> Pushed {
        self.saw(chunk.bytes.len() as u64, chunk.at_rest, out)
    }

    /// Only its length counts.
    fn read(&mut self, whole: &Whole<'_>, out: &mut Out<'_>) -> io::Result<Pushed> {
        Ok(self.saw(whole.len, whole.at_rest, out))
    }

    fn position(&self) -> u64 {
        self.reported_bytes
    }

    fn resume(&mut self, position: u64, _last_step: Option<i64>) {
        self.reported_bytes = position;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileKind, FileReader, kind_of};

    #[test]
    fn a_dump_is_reported_once() {
        let path = Path::new("/tmp/nccl_trace_rank_7");
        assert_eq!(kind_of(path, b"\x80\x04"), FileKind::Whole);
        let mut reader = FileReader::new(path, b"").unwrap();
        let mut out = Vec::new();
        assert_eq!(reader.push(b"\x80\x04 half", false, &mut out).consumed, 7);
        reader.push(b"\x80\x04 half and the rest", true, &mut out);
        assert_eq!((out.len(), out[0].rank, out[0].name.as_deref()), (1, Some(7), Some(DUMP_EVENT)));
        let mut later = FileReader::new(path, b"").unwrap();
        later.resume(reader.position(), None);
        later.push(b"\x80\x04 half and the rest", true, &mut out);
        assert_eq!(out.len(), 1);
        later.push(b"\x80\x04 another", true, &mut out);
        assert_eq!(out.len(), 2, "a new dump took its place");
    }

    #[test]
    fn names_of_dumps() {
        for (path, rank) in [
            ("/tmp/nccl_trace_rank_0", Some(0)),
            ("/dumps/comm_traces/rank_12", Some(12)),
            ("/tmp/rank_3", None),
            ("/tmp/nccl_trace_rank_", None),
            ("/tmp/nccl_trace_rank_x", None),
            ("/tmp/nccl_trace_rank_99999999999", None),
        ] {
            assert_eq!(rank_of(Path::new(path)), rank, "{path}");
        }
    }
}
