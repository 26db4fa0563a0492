//! One series of a request.

use super::Malformed;
use super::fields::Fields;
use crate::hash::{Key, Secrets};

// Names of messages for errors; the series has the same name in both versions.
pub(super) const SERIES: &str = "TimeSeries";
pub(super) const REQUEST: &str = "Request";
/// The field number of the symbols in a 2.0 request.
pub(super) const SYMBOLS: u32 = 4;

/// The stale marker that Prometheus sends once when a series ends: a NaN that is identified by its
/// bits.
const STALE: u64 = 0x7ff0_0000_0000_0002;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub ts_ms: i64,
    pub value: f64,
}

impl Sample {
    /// Whether the sample is a stale marker: its series has ended.
    pub fn is_stale(self) -> bool {
        self.value.to_bits() == STALE
    }
}

/// A symbol: the position of its text in the body. It is an offset, because a borrowed text could
/// not stay in the buffers after the body; 32 bits suffice, because a body is at most 32 MiB.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) hash: u64,
}

impl Symbol {
    #[inline]
    pub(super) fn of(symbols: &[Self], index: u32) -> Result<Self, Malformed> {
        let missing = || Malformed::Reference { index, symbols: symbols.len() };
        symbols.get(index as usize).copied().ok_or_else(missing)
    }

    fn text<'a>(body: &'a [u8], symbols: &[Self], index: u32) -> Result<&'a str, Malformed> {
        let symbol = Self::of(symbols, index)?;
        let bytes = body.get(symbol.start as usize..symbol.end as usize).unwrap_or_default();
        std::str::from_utf8(bytes).map_err(|_| Malformed::Utf8 { message: REQUEST, field: SYMBOLS })
    }
}

/// One series of a request, borrowed from the body (`'a`) and from the decoder (`'d`).
#[derive(Debug, Clone, Copy)]
pub struct Series<'a, 'd> {
    pub(super) secrets: &'d Secrets,
    pub(super) labels: Source<'a, 'd>,
    pub(super) samples: &'d [Sample],
    pub histograms: u32,
    pub exemplars: u32,
}

/// The position of the labels.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source<'a, 'd> {
    V1 {
        message: &'a [u8],
        /// The label fields, contiguous.
        fields: &'d [u8],
    },
    V2 {
        body: &'a [u8],
        symbols: &'d [Symbol],
        references: &'d [u32],
        hashes: &'d [[u8; 8]],
    },
}

impl<'a, 'd> Series<'a, 'd> {
    /// Hashes the labels as they were sent. Each call computes the hash again.
    #[inline]
    pub fn key(&self) -> Key {
        match self.labels {
            Source::V1 { fields, .. } => self.secrets.labels(fields),
            Source::V2 { hashes, .. } => self.secrets.references(hashes),
        }
    }

    /// Names and values as they were sent: in any order, empty, twice. Their text is checked only
    /// here: an error concerns this series alone and ends the labels.
    pub fn labels(&self) -> Labels<'a, 'd> {
        Labels(match self.labels {
            Source::V1 { message, .. } => Rest::V1(Fields::new(message, SERIES)),
            Source::V2 { body, symbols, references, .. } => Rest::V2 { body, symbols, references },
        })
    }

    /// The samples in the order of the body. Senders sort them by time; this is not checked.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = Sample> + use<'d> {
        self.samples.iter().copied()
    }
}

/// An iterator over labels, see [`Series::labels`].
#[derive(Debug, Clone)]
pub struct Labels<'a, 'd>(Rest<'a, 'd>);

#[derive(Debug, Clone)]
enum Rest<'a, 'd> {
    V1(Fields<'a>),
    V2 { body: &'a [u8], symbols: &'d [Symbol], references: &'d [u32] },
}

impl<'a> Labels<'a, '_> {
    fn read(&mut self) -> Result<Option<(&'a str, &'a str)>, Malformed> {
        match &mut self.0 {
            Rest::V1(fields) => next_label(fields),
            Rest::V2 { body, symbols, references } => {
                let [name, value, rest @ ..] = *references else { return Ok(None) };
                *references = rest;
                Ok(Some((Symbol::text(body, symbols, *name)?, Symbol::text(body, symbols, *value)?)))
            }
        }
    }
}

impl<'a> Iterator for Labels<'a, '_> {
    type Item = Result<(&'a str, &'a str), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.0 = Rest::V1(Fields::new(&[], SERIES));
        }
        read.transpose()
    }
}

/// The next label of a 1.0 series.
fn next_label<'a>(series: &mut Fields<'a>) -> Result<Option<(&'a str, &'a str)>, Malformed> {
    while let Some(field) = series.next()? {
        if field.number == 1 {
            return label(field.bytes()?).map(Some);
        }
    }
    Ok(None)
}

fn label(message: &[u8]) -> Result<(&str, &str), Malformed> {
    let (mut name, mut value) = ("", "");
    let mut fields = Fields::new(message, "Label");
    while let Some(field) = fields.next()? {
        match field.number {
            1 => name = field.text()?,
            2 => value = field.text()?,
            _ => {}
        }
    }
    Ok((name, value))
}
