//! The transaction log of Weights & Biases: `run-<id>.wandb`, which its client writes online and
//! offline alike.
//!
//! It is a LevelDB log: blocks of 32 KiB, in them pieces of records, each with a CRC-32 (of IEEE,
//! where LevelDB has Castagnoli's) over its type and bytes. The length is in no checksum, so after
//! a wrong one the rest of the block is passed over, and a record whose other pieces were there is
//! lost with it. Where a piece stands in its block follows from its offset in the file, and a
//! position is always that of a piece: nothing else is needed to go on.
//!
//! The client writes whole blocks and holds the rest back, so a step can be minutes old when it
//! arrives. That makes it a source for what is nowhere else (`wandb.alert`, the exit code) and for
//! filling in, not the one to wake somebody by.

mod record;
#[cfg(test)]
mod tests;

use crate::file_format::{Chunk, FileFormat, MAX_RECORD_BYTES, Pushed};
use crate::format::Out;
use crate::number::Resolution;
use record::Records;

/// At the beginning of the file: `:W&B`, a number that gives the byte order, the version.
const HEADER: &[u8] = b":W&B\xe1\xbe\x00";
const BLOCK_BYTES: u64 = 32 * 1024;
/// Before the bytes of a piece: checksum, length, type.
const PIECE_HEADER_BYTES: usize = 7;

const NOT_WANDB: &str = "it does not begin as a W&B log of version 0";

/// Whether a file begins as one.
pub(crate) fn is_one(head: &[u8]) -> bool {
    head.starts_with(HEADER)
}

/// Reads the records of one file.
#[derive(Debug, Default)]
pub(crate) struct WandbLog {
    /// Bytes consumed since the beginning of the file.
    offset: u64,
    /// The beginning of the first piece whose record was not published.
    position: u64,
    record: Assembly,
    records: Records,
    not_wandb: bool,
}

/// A record that spans pieces.
#[derive(Debug, Default)]
enum Assembly {
    /// The next piece begins one.
    #[default]
    None,
    Taking(Vec<u8>),
    /// It is longer than anything of interest.
    Dropping,
}

/// What is at the beginning of some bytes inside a block.
#[derive(Debug)]
enum Piece<'a> {
    /// Not all of it is there.
    Partial,
    /// Nothing more is in this block.
    Padding,
    Data(Part<'a>),
    Bad,
}

/// What a piece has of a record.
#[derive(Debug)]
struct Part<'a> {
    data: &'a [u8],
    first: bool,
    last: bool,
}

impl WandbLog {
    /// `head` is the beginning of the file, as much as there is of it: it contains the run.
    pub(crate) fn new(head: &[u8]) -> Self {
        let mut first = Self::default();
        let mut unused = Vec::new();
        let mut resolution = Resolution::default();
        first.push(Chunk { bytes: head, at_rest: false }, &mut Out::new(&mut unused, &mut resolution, None));
        Self { records: first.records.same_run(), ..Self::default() }
    }

    fn advance<'a>(&mut self, bytes: &'a [u8], len: usize) -> &'a [u8] {
        self.offset += len as u64;
        if !matches!(self.record, Assembly::Taking(_)) {
            self.position = self.offset;
        }
        &bytes[len..]
    }

    /// Takes a piece in. True if the record is complete, or was.
    fn take(&mut self, part: &Part<'_>, pushed: &mut Pushed, out: &mut Out<'_>) {
        let Part { data, first, last } = *part;
        if first {
            // Its writer died between the pieces of the one before.
            pushed.bad_records += u64::from(matches!(self.record, Assembly::Taking(_)));
            self.record = if last { Assembly::None } else { Assembly::Taking(Vec::new()) };
        }
        match &mut self.record {
            Assembly::None if first => self.records.read(data, pushed, out),
            // The end of a record whose beginning was lost, or read in an earlier life.
            Assembly::None | Assembly::Dropping => {
                if last {
                    self.record = Assembly::None;
                }
            }
            Assembly::Taking(so_far) if so_far.len() + data.len() > MAX_RECORD_BYTES => {
                pushed.oversized += 1;
                self.record = if last { Assembly::None } else { Assembly::Dropping };
            }
            Assembly::Taking(so_far) => {
                so_far.extend_from_slice(data);
                if last {
                    let whole = core::mem::take(so_far);
                    self.record = Assembly::None;
                    self.records.read(&whole, pushed, out);
                }
            }
        }
    }

    /// Passes over the rest of a block in which nothing can be relied on. `None` while more of it
    /// may come.
    fn skip_block<'a>(&mut self, bytes: &'a [u8], left: usize, at_rest: bool) -> Option<&'a [u8]> {
        if bytes.len() < left && !at_rest {
            return None;
        }
        self.record = Assembly::None;
        Some(self.advance(bytes, left.min(bytes.len())))
    }
}

impl FileFormat for WandbLog {
    fn name(&self) -> &'static str {
        "wandb"
    }

    fn push(&mut self, chunk: Chunk<'_>, out: &mut Out<'_>) -> Pushed {
        let mut pushed = Pushed::default();
        let mut rest = chunk.bytes;
        if self.offset == 0 && !self.not_wandb {
            let Some(head) = rest.get(..HEADER.len()) else { return pushed };
            self.not_wandb = head != HEADER;
            rest = self.advance(rest, HEADER.len());
        }
        while !self.not_wandb && !rest.is_empty() {
            let left = usize::try_from(BLOCK_BYTES - self.offset % BLOCK_BYTES).unwrap_or(usize::MAX);
            match piece(rest, left) {
                Piece::Partial => break,
                Piece::Padding => rest = self.advance(rest, left),
                Piece::Data(part) => {
                    self.take(&part, &mut pushed, out);
                    rest = self.advance(rest, PIECE_HEADER_BYTES + part.data.len());
                }
                Piece::Bad => match self.skip_block(rest, left, chunk.at_rest) {
                    Some(after) => {
                        pushed.bad_records += 1;
                        rest = after;
                    }
                    None => break,
                },
            }
        }
        pushed.consumed = chunk.bytes.len() - rest.len();
        if self.not_wandb {
            (pushed.consumed, pushed.stop) = (chunk.bytes.len(), Some(NOT_WANDB));
        }
        pushed
    }

    fn needs(&self, rest: &[u8]) -> u64 {
        if self.offset == 0 {
            return HEADER.len() as u64;
        }
        let left = usize::try_from(BLOCK_BYTES - self.offset % BLOCK_BYTES).unwrap_or(usize::MAX);
        let size = match (piece(rest, left), rest.get(4..PIECE_HEADER_BYTES)) {
            (Piece::Partial, Some([l0, l1, _])) => usize::from(u16::from_le_bytes([*l0, *l1])),
            (Piece::Partial, _) => 0,
            _ => left,
        };
        left.min(PIECE_HEADER_BYTES + size) as u64
    }

    fn pending_bytes(&self) -> usize {
        let record = if let Assembly::Taking(so_far) = &self.record { so_far.capacity() } else { 0 };
        record + self.records.tag_bytes()
    }

    fn give_up_pending(&mut self) {
        if let Assembly::Taking(_) = self.record {
            self.record = Assembly::Dropping;
            self.position = self.offset;
        }
        self.records.give_up_tags();
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn resume(&mut self, position: u64, last_step: Option<i64>) {
        (self.offset, self.position) = (position, position);
        if position > 0 {
            self.records.resume(last_step);
        }
    }
}

/// Looks at the piece that `bytes` begin with, `left` bytes before the end of its block.
fn piece(bytes: &[u8], left: usize) -> Piece<'_> {
    if left < PIECE_HEADER_BYTES {
        return if bytes.len() < left { Piece::Partial } else { Piece::Padding };
    }
    let Some(header) = bytes.first_chunk::<PIECE_HEADER_BYTES>() else { return Piece::Partial };
    let [c0, c1, c2, c3, l0, l1, kind] = *header;
    let size = usize::from(u16::from_le_bytes([l0, l1]));
    // A type of 0 is a hole of zeros, which network file systems show before the bytes arrive.
    if kind == 0 || kind > 4 || PIECE_HEADER_BYTES + size > left {
        return Piece::Bad;
    }
    let Some(data) = bytes.get(PIECE_HEADER_BYTES..PIECE_HEADER_BYTES + size) else { return Piece::Partial };
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[kind]);
    crc.update(data);
    if crc.finalize() != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Piece::Bad;
    }
    Piece::Data(Part { data, first: matches!(kind, 1 | 2), last: matches!(kind, 1 | 4) })
}
