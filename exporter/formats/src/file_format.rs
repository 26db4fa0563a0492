//! The extension point of files that are not lines: the input of a reader and its result.

use core::fmt;
use std::io;

use crate::format::Out;

/// The longest record that is looked into; a longer one (an image, a model graph) is passed over
/// and counted.
pub const MAX_RECORD_BYTES: usize = 1024 * 1024;

/// What came of some bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Bytes of what was offered that the caller may forget. Of a `Whole` file all of them, or none
    /// of one that was caught half written: offer it again when it changed.
    pub consumed: usize,
    /// Records whose checksum or structure is wrong; they were passed over.
    pub bad_records: u64,
    /// Records and values that were read and are not about training.
    pub unmatched: u64,
    /// Records longer than [`MAX_RECORD_BYTES`].
    pub oversized: u64,
    /// Why nothing beyond this point can be read.
    pub stop: Option<&'static str>,
    /// Of a `Whole` file: this was enough for one turn, and there is more.
    pub more: bool,
}

/// Bytes of a file that is written as a whole which are looked at in one turn.
const TURN_BYTES: usize = 4 * 1024 * 1024;
/// Events of such a file that are published in one turn, and those of one more entry.
pub const TURN_EVENTS: usize = 1024;
/// The largest of these files that is read into memory: a format that may be longer is read part by
/// part.
const MAX_HELD_BYTES: u64 = 4 * 1024 * 1024;
const BUFFER_BYTES: usize = 64 * 1024;

/// A file that is written as a whole, as it is now.
pub struct Whole<'a> {
    /// Reads at an offset; nothing at the end.
    pub read: &'a dyn Fn(&mut [u8], u64) -> io::Result<usize>,
    pub len: u64,
    /// It stayed as it is for a while.
    pub at_rest: bool,
    /// It is not the content that the last turn was about.
    pub begins: bool,
}

impl fmt::Debug for Whole<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len, at_rest, begins, .. } = self;
        f.debug_struct("Whole")
            .field("len", len)
            .field("at_rest", at_rest)
            .field("begins", begins)
            .finish_non_exhaustive()
    }
}

impl Whole<'_> {
    /// Hands on bytes from `offset`. True where there are no more; false where `each` returns false
    /// because it has enough, or where it is enough for one turn.
    pub(crate) fn bytes(&self, offset: &mut u64, mut each: impl FnMut(u8) -> bool) -> io::Result<bool> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut left = TURN_BYTES;
        while left > 0 {
            let rest = self.len.saturating_sub(*offset).min(BUFFER_BYTES as u64) as usize;
            let part = buffer.get_mut(..rest.min(left)).unwrap_or_default();
            let n = if part.is_empty() { 0 } else { (self.read)(part, *offset)? };
            if n == 0 {
                return Ok(true);
            }
            for byte in part.iter().take(n) {
                *offset += 1;
                if each(*byte) {
                    return Ok(false);
                }
            }
            left = left.saturating_sub(n);
        }
        Ok(false)
    }

    /// All of it, as a format that reads parts is offered it at once.
    pub(crate) fn all(chunk: Chunk<'_>, mut read: impl FnMut(&Whole<'_>) -> io::Result<Pushed>) -> Pushed {
        let bytes = |buffer: &mut [u8], at: u64| {
            let rest = usize::try_from(at).ok().and_then(|at| chunk.bytes.get(at..)).unwrap_or_default();
            let n = rest.len().min(buffer.len());
            buffer.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            Ok(n)
        };
        let len = chunk.bytes.len() as u64;
        let mut whole = Whole { read: &bytes, len, at_rest: chunk.at_rest, begins: true };
        let mut sum = Pushed::default();
        loop {
            let Ok(part) = read(&whole) else { return sum };
            sum.bad_records += part.bad_records;
            sum.unmatched += part.unmatched;
            sum.oversized += part.oversized;
            sum.consumed = part.consumed;
            if !part.more {
                return sum;
            }
            whole.begins = false;
        }
    }
}

/// Some bytes of a file, and their offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk<'a> {
    pub(crate) bytes: &'a [u8],
    /// Nothing was appended for a while.
    pub(crate) at_rest: bool,
}

/// One way to write a file that is not lines. Reads any bytes without panicking.
pub(crate) trait FileFormat: fmt::Debug + Send {
    fn name(&self) -> &'static str;
    fn push(&mut self, chunk: Chunk<'_>, out: &mut Out<'_>) -> Pushed;

    /// Whether a record has a place for each number, so that one that is left out is missing.
    fn has_rows(&self) -> bool {
        false
    }

    /// Whether the times of the last records have no zone: they are given as if they were UTC.
    fn has_local_times(&self) -> bool {
        false
    }

    /// The time of a row, if it has no zone, as if it were UTC.
    fn local_stamp(&self, _row: &str) -> Option<f64> {
        None
    }

    /// Reads a file that is written as a whole, or as much of it as is enough for one turn.
    fn read(&mut self, whole: &Whole<'_>, out: &mut Out<'_>) -> io::Result<Pushed> {
        if whole.len > MAX_HELD_BYTES {
            return Ok(Pushed { consumed: whole.len as usize, oversized: 1, ..Pushed::default() });
        }
        let mut bytes = vec![0; whole.len as usize];
        let mut at = 0;
        while at < bytes.len() {
            match (whole.read)(&mut bytes[at..], at as u64)? {
                // Shorter than it was a moment ago, it is being written.
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => at += n,
            }
        }
        Ok(self.push(Chunk { bytes: &bytes, at_rest: whole.at_rest }, out))
    }

    /// So many bytes must be there before anything of `rest` is consumed, which was not.
    fn needs(&self, rest: &[u8]) -> u64 {
        rest.len() as u64 + 1
    }

    /// Memory that an unfinished record takes which was consumed.
    fn pending_bytes(&self) -> usize {
        0
    }

    /// Passes over that record.
    fn give_up_pending(&mut self) {}

    fn position(&self) -> u64;
    fn resume(&mut self, position: u64, last_step: Option<i64>);
}
