//! Files that do not consist of lines: records of TensorBoard and W&B, and files that are written
//! as a whole.

use std::io::Read;

use stepwatch_formats::{FileKind, FileReader, MAX_WHOLE_BYTES};
use stepwatch_wire::Event;

use super::input::InputError;

/// The number of bytes per read.
const CHUNK_BYTES: u64 = 256 * 1024;

#[derive(Debug)]
pub(super) struct Records<R> {
    reader: FileReader,
    source: R,
    /// Bytes that do not form a whole record yet.
    pending: Vec<u8>,
    /// Whether the reader was offered all bytes.
    ended: bool,
    /// The number of skipped records.
    bad: u64,
    reported: bool,
}

impl<R: Read> Records<R> {
    pub(super) fn new(reader: FileReader, source: R) -> Self {
        Self { reader, source, pending: Vec::new(), ended: false, bad: 0, reported: false }
    }

    pub(super) fn format(&self) -> &'static str {
        self.reader.name()
    }

    /// The next events; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Vec<Event>>, InputError> {
        while !self.ended {
            let whole = self.reader.kind() == FileKind::Whole;
            let limit = if whole { MAX_WHOLE_BYTES + 1 } else { CHUNK_BYTES };
            let read = (&mut self.source).take(limit).read_to_end(&mut self.pending)?;
            if read as u64 > MAX_WHOLE_BYTES {
                return Err(InputError::TooLarge { bytes: read as u64, limit: MAX_WHOLE_BYTES });
            }
            self.ended = whole || read == 0;
            let events = self.offer()?;
            if !events.is_empty() {
                return Ok(Some(events));
            }
        }
        if self.bad > 0 && !std::mem::replace(&mut self.reported, true) {
            return Err(InputError::Records(format!("{} damaged records were left out", self.bad)));
        }
        Ok(None)
    }

    /// Offers the pending bytes until the reader takes no more.
    fn offer(&mut self) -> Result<Vec<Event>, InputError> {
        let mut events = Vec::new();
        loop {
            let pushed = self.reader.push(&self.pending, self.ended, &mut events);
            self.pending.drain(..pushed.consumed);
            self.bad += pushed.bad_records;
            if let Some(why) = pushed.stop {
                self.ended = true;
                self.pending = Vec::new();
                if events.is_empty() {
                    return Err(InputError::Records(format!("nothing is read from here on: {why}")));
                }
                self.bad += 1;
            }
            if pushed.consumed == 0 || self.pending.is_empty() {
                return Ok(events);
            }
        }
    }
}
