//! The parts that decoding shares between both versions: limits, counts and buffers.

use super::Malformed;
use super::fields::{Field, Fields};
use super::series::{Sample, Series, Symbol};

// An empty message is two bytes, so 16 MiB could hold 8 million of anything.
pub const MAX_SERIES: u64 = 50_000;
pub const MAX_SAMPLES: u64 = 200_000;
pub const MAX_LABELS: usize = 256;
pub const MAX_SYMBOLS: usize = 200_000;

/// The counts of a body. They include samples that the receiver refuses later.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    pub series: u64,
    pub samples: u64,
    /// Native histograms, counted and skipped.
    pub histograms: u64,
    /// Exemplars, counted and skipped.
    pub exemplars: u64,
    /// Metric metadata, counted and skipped: each description in 1.0, each series with one in 2.0.
    pub metadata: u64,
}

impl Totals {
    /// Counts a new series. Fails beyond the limit of series.
    pub(super) fn begin(&mut self) -> Result<(), Malformed> {
        if self.series >= MAX_SERIES {
            return Err(Malformed::TooMany { what: "series in a request", limit: MAX_SERIES });
        }
        self.series += 1;
        Ok(())
    }

    /// Adds the counts of a finished series.
    pub(super) fn add(&mut self, series: &Series<'_, '_>) {
        self.samples += series.samples.len() as u64;
        self.histograms += u64::from(series.histograms);
        self.exemplars += u64::from(series.exemplars);
    }
}

/// Buffers that requests and series reuse.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) samples: Vec<Sample>,
    /// The labels of a 1.0 series that are not contiguous, joined.
    pub(super) joined: Vec<u8>,
    /// The symbol table of a 2.0 request.
    pub(super) symbols: Vec<Symbol>,
    /// The symbol references of a 2.0 series.
    pub(super) references: Vec<u32>,
    /// The hashes of those symbols. Both buffers have the length of the limit and are filled from
    /// the front: one check then covers the limit and the bounds.
    pub(super) hashes: Vec<[u8; 8]>,
}

impl Buffers {
    pub(super) fn new() -> Self {
        Self {
            samples: Vec::new(),
            joined: Vec::new(),
            symbols: Vec::new(),
            references: vec![0; 2 * MAX_LABELS],
            hashes: vec![[0; 8]; 2 * MAX_LABELS],
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        let Self { samples, joined, symbols, references, hashes } = self;
        size_of::<Sample>() * samples.capacity()
            + joined.capacity()
            + size_of::<Symbol>() * symbols.capacity()
            + size_of::<u32>() * references.capacity()
            + size_of::<[u8; 8]>() * hashes.capacity()
    }
}

/// Decodes a sample, which is the same in both versions; the `start_timestamp` of 2.0 is skipped.
#[inline]
pub(super) fn push_sample(
    samples: &mut Vec<Sample>,
    field: &Field<'_>,
    before: u64,
) -> Result<(), Malformed> {
    let mut fields = Fields::new(field.bytes()?, "Sample");
    let mut sample = Sample { ts_ms: 0, value: 0.0 };
    while let Some(field) = fields.next()? {
        match field.number {
            1 => sample.value = field.double()?,
            2 => sample.ts_ms = field.varint()? as i64,
            _ => {}
        }
    }
    if before + samples.len() as u64 >= MAX_SAMPLES {
        return Err(Malformed::TooMany { what: "samples in a request", limit: MAX_SAMPLES });
    }
    samples.push(sample);
    Ok(())
}

/// Counts one message without reading it.
pub(super) fn counted(field: &Field<'_>) -> Result<u32, Malformed> {
    field.bytes().map(|_| 1)
}
