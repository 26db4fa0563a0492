//! Decodes `io.prometheus.write.v2.Request` 2.0.

use super::Malformed;
use super::fields::{Field, Fields};
use super::request::{Buffers, MAX_LABELS, MAX_SYMBOLS, Totals, counted, push_sample};
use super::series::{REQUEST, SERIES, SYMBOLS, Series, Source, Symbol};
use crate::hash::Secrets;

/// Decoding makes two passes over the top level, because the symbols may follow the series.
pub(super) fn decode<'a>(
    secrets: &Secrets,
    buffers: &mut Buffers,
    body: &'a [u8],
    mut each: impl FnMut(Series<'a, '_>),
) -> Result<Totals, Malformed> {
    read_symbols(secrets, &mut buffers.symbols, body)?;
    let mut totals = Totals::default();
    let mut request = Fields::new(body, REQUEST);
    while let Some(field) = request.next()? {
        if field.number != 5 {
            continue;
        }
        totals.begin()?;
        let (series, described) = series(secrets, buffers, body, field.bytes()?, totals.samples)?;
        totals.add(&series);
        totals.metadata += u64::from(described);
        each(series);
    }
    Ok(totals)
}

fn read_symbols(secrets: &Secrets, symbols: &mut Vec<Symbol>, body: &[u8]) -> Result<(), Malformed> {
    symbols.clear();
    let mut request = Fields::new(body, REQUEST);
    while let Some(field) = request.next()? {
        if field.number != SYMBOLS {
            continue;
        }
        let bytes = field.bytes()?;
        if symbols.is_empty() && !bytes.is_empty() {
            return Err(Malformed::FirstSymbol { bytes: bytes.len() });
        }
        if symbols.len() >= MAX_SYMBOLS {
            return Err(Malformed::TooMany { what: "symbols in a request", limit: MAX_SYMBOLS as u64 });
        }
        // The bytes of a field end at the current position of the reader.
        let end = request.position();
        let start = end - bytes.len();
        symbols.push(Symbol { start: start as u32, end: end as u32, hash: secrets.symbol(bytes) });
    }
    Ok(())
}

/// Decodes one series, and whether it has metadata. `before` is the number of samples so far.
#[inline]
fn series<'a, 'd>(
    secrets: &'d Secrets,
    buffers: &'d mut Buffers,
    body: &'a [u8],
    message: &[u8],
    before: u64,
) -> Result<(Series<'a, 'd>, bool), Malformed> {
    let Buffers { samples, symbols, references, hashes, .. } = buffers;
    samples.clear();
    let mut filled = 0;
    let (mut histograms, mut exemplars, mut described) = (0, 0, false);
    let mut fields = Fields::new(message, SERIES);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => refer(symbols, references, hashes, &mut filled, &field)?,
            2 => push_sample(samples, &field, before)?,
            3 => histograms += counted(&field)?,
            4 => exemplars += counted(&field)?,
            5 => {
                field.bytes()?;
                described = true;
            }
            _ => {}
        }
    }
    if filled % 2 != 0 {
        return Err(Malformed::OddReferences { references: filled });
    }
    let references = references.get(..filled).unwrap_or_default();
    let hashes = hashes.get(..filled).unwrap_or_default();
    let labels = Source::V2 { body, symbols, references, hashes };
    Ok((Series { secrets, labels, samples, histograms, exemplars }, described))
}

#[inline]
fn refer(
    symbols: &[Symbol],
    references: &mut [u32],
    hashes: &mut [[u8; 8]],
    filled: &mut usize,
    field: &Field<'_>,
) -> Result<(), Malformed> {
    field.each_varint(|index| {
        // As in protobuf, the bits above 32 are dropped.
        let index = index as u32;
        let symbol = Symbol::of(symbols, index)?;
        let (Some(reference), Some(hash)) = (references.get_mut(*filled), hashes.get_mut(*filled)) else {
            return Err(Malformed::TooMany { what: "labels of a series", limit: MAX_LABELS as u64 });
        };
        *reference = index;
        *hash = symbol.hash.to_le_bytes();
        *filled += 1;
        Ok(())
    })
}
