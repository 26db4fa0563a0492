//! TensorBoard event files: `events.out.tfevents.*`, by whichever library they were written.
//!
//! A record is a length and bytes, each with a masked CRC-32C. A wrong checksum of the bytes costs
//! that record; a wrong one of the length ends the file, because then the start of the next record
//! is unknown. A record that is not all there yet is waited for, so is a hole of zeros, which
//! network file systems show before the bytes arrive.
//!
//! A step is spread over as many records as it has tags. They are gathered until a record of
//! another step comes or the file is at rest; [`FileFormat::position`] stays before the first of
//! them. A file belongs to one writer, and a job that goes on from a checkpoint writes a new one,
//! whose first step is lower than the run's last: that, and not a mark in the file, is how a new
//! attempt is recognised. `SessionLog` START (TensorFlow, `purge_step` of PyTorch) marks it as
//! well: it is published as a hello with `resumed`, which makes the next step the first of a new
//! attempt, and from then on the steps may begin anywhere.
//!
//! Values are 32-bit floats in most files. They are published as the shortest decimal that is the
//! same float, which is what the trainer logged and prints elsewhere, and carry no resolution: it
//! is finer than any noise of training.

mod group;
mod record;
mod samples;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, Value};

use crate::file_format::{Chunk, FileFormat, MAX_RECORD_BYTES, Pushed};
use crate::format::Out;
use crate::protobuf::Malformed;
use crate::scalars::{Gathered, Printed, Scalars};
use group::Group;
use record::{Content, Scalar};
use samples::Samples;

/// Before the bytes of a record: their length and its checksum.
const HEADER_BYTES: usize = 12;
/// Behind them: their checksum.
const FOOTER_BYTES: usize = 4;
/// Numbers of one step that are held; a step with more is published in pieces.
const MAX_GATHERED: usize = 4096;
/// About what one takes beside its name.
const TAG_BYTES: usize = 64;
/// Tags remembered as not scalar.
const MAX_PLUGIN_TAGS: usize = 4096;

const DAMAGED: &str = "the length of a record has a wrong checksum";

/// Reads the records of one file.
#[derive(Debug, Default)]
pub(crate) struct TfEvents {
    /// Bytes consumed since the beginning of the file.
    offset: u64,
    /// The beginning of the first record whose numbers were not published.
    position: u64,
    /// Bytes to come of a record that is too long to be looked into.
    passing: u64,
    gathered: Gathered,
    group: Group,
    samples: Samples,
    scalars: Scalars,
    /// Tags whose first record was of another plugin: the later ones do not repeat it.
    not_scalar: BTreeSet<Box<str>>,
    /// A set of hyperparameters was logged: its results are scalars at step 0, of no training.
    hparams: bool,
    damaged: bool,
}

/// What is at the beginning of some bytes.
#[derive(Debug)]
enum Frame<'a> {
    /// Not all of it is there.
    Partial,
    Record(&'a [u8]),
    /// The bytes are not those that were written.
    Bad {
        len: u64,
    },
    Long {
        len: u64,
    },
    Damaged,
}

impl TfEvents {
    pub(crate) fn new(path: &Path) -> Self {
        Self { group: Group::from_path(path), ..Self::default() }
    }
}

impl FileFormat for TfEvents {
    fn name(&self) -> &'static str {
        "tfevents"
    }

    fn push(&mut self, chunk: Chunk<'_>, out: &mut Out<'_>) -> Pushed {
        let mut pushed = Pushed::default();
        let mut rest = chunk.bytes;
        while !self.damaged {
            rest = self.pass(rest);
            match frame(rest) {
                Frame::Partial => break,
                Frame::Record(data) => {
                    self.record(data, &mut pushed, out);
                    rest = self.advance(rest, framed(data.len() as u64));
                }
                Frame::Bad { len } => {
                    pushed.bad_records += 1;
                    rest = self.advance(rest, framed(len));
                }
                Frame::Long { len } => {
                    pushed.oversized += 1;
                    self.passing = framed(len);
                }
                Frame::Damaged => {
                    self.flush(&mut pushed, out);
                    self.damaged = true;
                }
            }
        }
        if chunk.at_rest {
            self.flush(&mut pushed, out);
        }
        pushed.consumed = chunk.bytes.len() - rest.len();
        if self.damaged {
            (pushed.consumed, pushed.stop) = (chunk.bytes.len(), Some(DAMAGED));
        }
        pushed
    }

    fn needs(&self, rest: &[u8]) -> u64 {
        let header = rest.get(..8).zip(rest.get(8..HEADER_BYTES));
        match header {
            None => HEADER_BYTES as u64,
            Some((len, crc)) if is_checksum(crc, len) => {
                framed(len.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)))
            }
            // A hole of unknown length, so it is looked at when it is longer by a part.
            Some(_) => (rest.len() + rest.len() / 8 + 1) as u64,
        }
    }

    fn pending_bytes(&self) -> usize {
        self.scalars.bytes() + self.not_scalar.iter().map(|tag| tag.len() + TAG_BYTES).sum::<usize>()
    }

    fn give_up_pending(&mut self) {
        self.scalars.give_up();
        self.not_scalar.clear();
        self.gathered.values.clear();
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn resume(&mut self, position: u64, last_step: Option<i64>) {
        (self.offset, self.position) = (position, position);
        if let Some(step) = last_step.filter(|_| position > 0) {
            self.scalars.axis.resume(step);
        }
    }
}

impl TfEvents {
    /// Consumes `len` bytes of a record that has been dealt with.
    fn advance<'a>(&mut self, bytes: &'a [u8], len: u64) -> &'a [u8] {
        let here = usize::try_from(len).unwrap_or(usize::MAX).min(bytes.len());
        self.offset += here as u64;
        self.settle();
        &bytes[here..]
    }

    /// Consumes what is there of a record that is passed over.
    fn pass<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if self.passing == 0 {
            return bytes;
        }
        let here = usize::try_from(self.passing).unwrap_or(usize::MAX).min(bytes.len());
        self.offset += here as u64;
        self.passing -= here as u64;
        self.settle();
        &bytes[here..]
    }

    /// Moves the position to here, if nothing before here is still needed.
    fn settle(&mut self) {
        if self.passing == 0 && self.gathered.values.is_empty() && !self.samples.is_waiting() {
            self.position = self.offset;
        }
    }

    fn record(&mut self, data: &[u8], pushed: &mut Pushed, out: &mut Out<'_>) {
        match record::event(data) {
            Ok(event @ record::Event { content: Content::Summary(summary), .. }) => {
                for value in record::values(summary) {
                    match value.and_then(|v| record::scalar(v)) {
                        Ok(Some(scalar)) => self.scalar(&event, &scalar, pushed, out),
                        Ok(None) => {}
                        Err(Malformed) => {
                            pushed.bad_records += 1;
                            break;
                        }
                    }
                }
            }
            Ok(record::Event { content: Content::SessionStart, wall_time, .. }) => {
                self.flush(pushed, out);
                self.scalars.begin_anew();
                let mut e = Event { ts: wall_time, ..Event::new(Kind::Hello) };
                e.extra.insert(hello::RESUMED.into(), Value::Bool(true));
                out.push(e);
            }
            Ok(_) => {}
            Err(Malformed) => pushed.bad_records += 1,
        }
    }

    fn scalar(
        &mut self,
        of: &record::Event<'_>,
        scalar: &Scalar<'_>,
        pushed: &mut Pushed,
        out: &mut Out<'_>,
    ) {
        let (step, ts) = (of.step, of.wall_time);
        if scalar.other_plugin {
            self.hparams |= scalar.tag.starts_with("_hparams_/");
            if self.not_scalar.len() < MAX_PLUGIN_TAGS {
                self.not_scalar.insert(scalar.tag.into());
            }
            return;
        }
        let Some(value) = scalar.value.filter(|_| !self.not_scalar.contains(scalar.tag)) else { return };
        if let Some(name) = samples::name(scalar.tag) {
            pushed.unmatched += self.samples.push(samples::Value { name: name.into(), step, ts, value });
            while let Some(v) = self.samples.pop() {
                self.gather(&v, pushed, out);
            }
        } else {
            let name = self.group.alone(scalar.tag);
            self.gather(&samples::Value { name, step, ts, value }, pushed, out);
        }
    }

    fn gather(&mut self, v: &samples::Value<impl AsRef<str>>, pushed: &mut Pushed, out: &mut Out<'_>) {
        let Some(id) = self.scalars.id(v.name.as_ref()) else { return };
        if v.step != self.gathered.step || self.gathered.values.len() >= MAX_GATHERED {
            self.flush(pushed, out);
        }
        if self.gathered.values.is_empty() {
            (self.gathered.step, self.gathered.ts) = (v.step, v.ts);
        }
        self.gathered.values.push((id, v.value));
    }

    /// Publishes what was gathered. The record being read, if there is one, is not consumed yet, so
    /// the position ends before it.
    fn flush(&mut self, pushed: &mut Pushed, out: &mut Out<'_>) {
        let gathered = &mut self.gathered;
        if !gathered.values.is_empty() {
            let result = self.hparams && gathered.step == 0 && !self.scalars.any_main(&gathered.values);
            pushed.unmatched += if result {
                gathered.values.len() as u64
            } else {
                self.scalars.give(gathered, Printed::Binary, out)
            };
            gathered.values.clear();
            self.settle();
        }
    }
}

/// Looks at the record that `bytes` begin with.
fn frame(bytes: &[u8]) -> Frame<'_> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Frame::Partial };
    let (len_bytes, len_crc) = header.split_at(8);
    let len = len_bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    if !is_checksum(len_crc, len_bytes) {
        let unwritten = bytes.iter().all(|b| *b == 0);
        return if unwritten { Frame::Partial } else { Frame::Damaged };
    }
    let Some(size) = usize::try_from(len).ok().filter(|n| *n <= MAX_RECORD_BYTES) else {
        return Frame::Long { len };
    };
    let Some(rest) = bytes[HEADER_BYTES..].get(..size + FOOTER_BYTES) else { return Frame::Partial };
    let (data, crc) = rest.split_at(size);
    if is_checksum(crc, data) { Frame::Record(data) } else { Frame::Bad { len } }
}

/// Bytes in the file of a record with so many bytes in it.
fn framed(len: u64) -> u64 {
    len.saturating_add((HEADER_BYTES + FOOTER_BYTES) as u64)
}

fn is_checksum(stored: &[u8], data: &[u8]) -> bool {
    stored == masked_crc(data).to_le_bytes()
}

/// Whether a file begins with a record: a length, and the checksum of it.
pub(crate) fn is_one(head: &[u8]) -> bool {
    match (head.get(..8), head.get(8..12)) {
        (Some(len), Some(crc)) => is_checksum(crc, len),
        _ => false,
    }
}

/// A checksum of bytes that hold checksums would be weak, so it is rotated and moved.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}
