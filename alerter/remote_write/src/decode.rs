//! Decodes the body of a remote write request in place.
//!
//! This is written by hand because it is the hot path: a general decoder copies each label of each
//! sample, although nearly all are known. Here the labels are one run of bytes that is hashed;
//! their text is read only if the key is new.
//!
//! Decoding is as strict as protobuf, except for the cases listed at [`Malformed`].

mod fields;
mod malformed;
mod request;
mod series;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

pub use malformed::{Accepted, Malformed};
pub use request::{MAX_LABELS, MAX_SAMPLES, MAX_SERIES, MAX_SYMBOLS, Totals};
pub use series::{Labels, Sample, Series};

use crate::hash::Secrets;
use request::Buffers;

/// The most bytes of a decompressed body: twice the largest of vmagent, which sends the largest.
pub const MAX_DECOMPRESSED: usize = 16 << 20;
/// The most times that a body may grow: three bytes of snappy copy at most 64.
const MAX_GROWTH: usize = 22;
/// Extra bytes for a body so short that its header counts.
const GROWTH_SLACK: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `prometheus.WriteRequest`
    V1,
    /// `io.prometheus.write.v2.Request`
    V2,
}

/// The decompressed length that a body declares, in bytes; 0 if it is not snappy.
pub fn declared_len(body: &[u8]) -> usize {
    snap::raw::decompress_len(body).unwrap_or_default()
}

/// Decompresses a body into `buffer`, which keeps the size of the largest body so far.
///
/// The declared length is checked before any allocation for it.
pub fn decompress<'b>(body: &[u8], buffer: &'b mut Vec<u8>) -> Result<&'b [u8], Malformed> {
    let declared = snap::raw::decompress_len(body)?;
    if declared > MAX_DECOMPRESSED {
        return Err(Malformed::TooLarge { declared, limit: MAX_DECOMPRESSED });
    }
    if declared > body.len().saturating_mul(MAX_GROWTH).saturating_add(GROWTH_SLACK) {
        return Err(Malformed::Bomb { declared, body: body.len(), growth: MAX_GROWTH });
    }
    if buffer.len() < declared {
        // The buffer is never shortened, so the zeros are written once and not for each request.
        buffer.resize(declared, 0);
    }
    let length = snap::raw::Decoder::new().decompress(body, buffer)?;
    Ok(buffer.get(..length).unwrap_or_default())
}

/// A decoder of bodies. It is reused to keep its buffers.
#[derive(Debug)]
pub struct Decoder {
    secrets: Secrets,
    buffers: Buffers,
}

impl Decoder {
    /// `seed` must be random and the same for all decoders of a process: keys can be compared only
    /// between decoders of one seed, and a sender who knows it can make two series share a key.
    pub fn new(seed: u64) -> Self {
        Self { secrets: Secrets::new(seed), buffers: Buffers::new() }
    }

    /// The size of the buffers in bytes.
    pub fn held_bytes(&self) -> usize {
        self.buffers.held_bytes()
    }

    /// Calls `each` for every time series, in the order of the body.
    ///
    /// Decoding makes one pass: if the body is malformed, `each` has already received the series
    /// before the fault.
    pub fn decode<'a>(
        &mut self,
        version: Version,
        body: &'a [u8],
        each: impl FnMut(Series<'a, '_>),
    ) -> Result<Totals, Malformed> {
        if body.len() > MAX_DECOMPRESSED {
            return Err(Malformed::TooLarge { declared: body.len(), limit: MAX_DECOMPRESSED });
        }
        match version {
            Version::V1 => v1::decode(&self.secrets, &mut self.buffers, body, each),
            Version::V2 => v2::decode(&self.secrets, &mut self.buffers, body, each),
        }
    }
}
