//! Decodes `prometheus.WriteRequest` 1.0.

use super::Malformed;
use super::fields::Fields;
use super::request::{Buffers, MAX_LABELS, Totals, counted, push_sample};
use super::series::{SERIES, Series, Source};
use crate::hash::Secrets;

const REQUEST: &str = "WriteRequest";
/// The key byte of field 1 of a series with the wire type bytes.
const LABEL_KEY: u8 = 1 << 3 | 2;

pub(super) fn decode<'a>(
    secrets: &Secrets,
    buffers: &mut Buffers,
    body: &'a [u8],
    mut each: impl FnMut(Series<'a, '_>),
) -> Result<Totals, Malformed> {
    let mut totals = Totals::default();
    let mut request = Fields::new(body, REQUEST);
    while let Some(field) = request.next()? {
        match field.number {
            1 => {
                totals.begin()?;
                let series = series(secrets, buffers, field.bytes()?, totals.samples)?;
                totals.add(&series);
                each(series);
            }
            3 => {
                field.bytes()?;
                totals.metadata += 1;
            }
            _ => {}
        }
    }
    Ok(totals)
}

/// Decodes one series. `before` is the number of samples of the request so far.
#[inline]
fn series<'a, 'd>(
    secrets: &'d Secrets,
    buffers: &'d mut Buffers,
    message: &'a [u8],
    before: u64,
) -> Result<Series<'a, 'd>, Malformed>
where
    'a: 'd,
{
    let Buffers { samples, joined, .. } = buffers;
    samples.clear();
    let mut labels = Run { message, start: 0, end: 0, joined, apart: false };
    let (mut count, mut histograms, mut exemplars) = (0, 0, 0);
    let mut fields = Fields::new(message, SERIES);
    loop {
        let start = fields.position();
        // Senders write the labels first and contiguously, and nearly all are short.
        let short = fields.skip_short(LABEL_KEY);
        if short > 0 {
            count += short;
            labels.add(start, fields.position());
            continue;
        }
        let Some(field) = fields.next()? else { break };
        match field.number {
            1 => {
                field.bytes()?;
                count += 1;
                labels.add(start, fields.position());
            }
            2 => push_sample(samples, &field, before)?,
            3 => exemplars += counted(&field)?,
            4 => histograms += counted(&field)?,
            _ => {}
        }
    }
    if count > MAX_LABELS {
        return Err(Malformed::TooMany { what: "labels of a series", limit: MAX_LABELS as u64 });
    }
    let labels = Source::V1 { message, fields: labels.bytes() };
    Ok(Series { secrets, labels, samples, histograms, exemplars })
}

/// The label fields of a series: a slice of the message, or a joined copy if they are not
/// contiguous.
struct Run<'a, 'd> {
    message: &'a [u8],
    start: usize,
    end: usize,
    joined: &'d mut Vec<u8>,
    apart: bool,
}

impl<'a: 'd, 'd> Run<'a, 'd> {
    #[inline]
    fn add(&mut self, start: usize, end: usize) {
        if self.start == self.end {
            (self.start, self.end) = (start, end);
        } else if self.end == start && !self.apart {
            self.end = end;
        } else {
            self.join(start, end);
        }
    }

    #[cold]
    fn join(&mut self, start: usize, end: usize) {
        if !self.apart {
            self.apart = true;
            self.joined.clear();
            self.joined.extend_from_slice(self.message.get(self.start..self.end).unwrap_or_default());
        }
        self.joined.extend_from_slice(self.message.get(start..end).unwrap_or_default());
    }

    #[inline]
    fn bytes(self) -> &'d [u8] {
        if self.apart { self.joined } else { self.message.get(self.start..self.end).unwrap_or_default() }
    }
}
