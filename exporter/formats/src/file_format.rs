//! The extension point of files that are not lines: what a reader of one is given, and what it
//! answers.

use core::fmt;

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
    /// Records and values that were read and say nothing about training.
    pub unmatched: u64,
    /// Records longer than [`MAX_RECORD_BYTES`].
    pub oversized: u64,
    /// Why nothing beyond this point can be read.
    pub stop: Option<&'static str>,
}

/// Some bytes of a file, and where they stand.
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
    fn position(&self) -> u64;
    fn resume(&mut self, position: u64, last_step: Option<i64>);
}
