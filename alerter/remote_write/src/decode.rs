//! The body of a remote write request, read in place.
//!
//! Written by hand because it is the hot path: a general decoder copies each label of each sample,
//! and nearly all of them are known. Here the labels are one run of bytes that is hashed; their
//! text is looked at only when somebody asks, which is when the key is new.
//!
//! Decoding is as strict as protobuf asks and no stricter, but for what is listed at [`Malformed`].

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

/// Bytes that a body may have decompressed: twice what vmagent, the sender of the largest, packs.
pub const MAX_DECOMPRESSED: usize = 16 << 20;
/// Three bytes of snappy copy at most 64: no honest body grows more than this,
const MAX_GROWTH: usize = 22;
/// but for one so short that its header counts.
const GROWTH_SLACK: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `prometheus.WriteRequest`
    V1,
    /// `io.prometheus.write.v2.Request`
    V2,
}

/// What a body says that it has when it is decompressed, in bytes; nothing of one that is not
/// snappy.
pub fn declared_len(body: &[u8]) -> usize {
    snap::raw::decompress_len(body).unwrap_or_default()
}

/// Decompresses a body into `buffer`, which grows to the largest body so far and stays so.
///
/// The declared length is checked before anything is allocated for it.
pub fn decompress<'b>(body: &[u8], buffer: &'b mut Vec<u8>) -> Result<&'b [u8], Malformed> {
    let declared = snap::raw::decompress_len(body)?;
    if declared > MAX_DECOMPRESSED {
        return Err(Malformed::TooLarge { declared, limit: MAX_DECOMPRESSED });
    }
    if declared > body.len().saturating_mul(MAX_GROWTH).saturating_add(GROWTH_SLACK) {
        return Err(Malformed::Bomb { declared, body: body.len(), growth: MAX_GROWTH });
    }
    if buffer.len() < declared {
        // Never shortened: the zeros are written once, not for each request.
        buffer.resize(declared, 0);
    }
    let length = snap::raw::Decoder::new().decompress(body, buffer)?;
    Ok(buffer.get(..length).unwrap_or_default())
}

/// Reads bodies; reused, because its buffers then are too.
#[derive(Debug)]
pub struct Decoder {
    secrets: Secrets,
    buffers: Buffers,
}

impl Decoder {
    /// `seed` must be random and the same for all decoders of a process: keys are comparable only
    /// between decoders of one seed, and whoever knows it can make two series share a key.
    pub fn new(seed: u64) -> Self {
        Self { secrets: Secrets::new(seed), buffers: Buffers::new() }
    }

    /// What its buffers have grown to, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.buffers.held_bytes()
    }

    /// Calls `each` for every time series in the order of the body.
    ///
    /// One pass: if the body turns out to be malformed, the series before the fault have been
    /// handed over already.
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
