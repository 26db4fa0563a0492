//! Converts the results of both decoders to one form, and generates requests to compare them.

use proptest::prelude::*;
use prost::Message;

use crate::decode::{Decoder, Malformed, Totals, Version};
use crate::hash::Key;
use crate::schema::{Label, Request, Sample, TimeSeries, TimeSeries2, WriteRequest};

/// An owned series with the bits of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plain {
    pub(super) labels: Vec<(String, String)>,
    pub(super) samples: Vec<(i64, u64)>,
    pub(super) histograms: u32,
    pub(super) exemplars: u32,
}

/// The full result of our decoder for a body; the first bad label is an error of the whole body.
pub(super) fn ours(version: Version, body: &[u8]) -> Result<(Vec<Plain>, Vec<Key>, Totals), Malformed> {
    let mut read = Vec::new();
    let mut keys = Vec::new();
    let mut decoder = Decoder::new(7);
    let totals = decoder.decode(version, body, |series| {
        keys.push(series.key());
        read.push(
            series
                .labels()
                .map(|label| label.map(|(name, value)| (name.to_owned(), value.to_owned())))
                .collect::<Result<_, _>>()
                .map(|labels| Plain {
                    labels,
                    samples: series.samples().map(|at| (at.ts_ms, at.value.to_bits())).collect(),
                    histograms: series.histograms,
                    exemplars: series.exemplars,
                }),
        );
    })?;
    Ok((read.into_iter().collect::<Result<_, _>>()?, keys, totals))
}

/// The result of prost; `None` if it refuses the body.
pub(super) fn oracle(version: Version, body: &[u8]) -> Option<Vec<Plain>> {
    match version {
        Version::V1 => Some(WriteRequest::decode(body).ok()?.timeseries.iter().map(plain1).collect()),
        Version::V2 => {
            let request = Request::decode(body).ok()?;
            if request.symbols.first().is_some_and(|first| !first.is_empty()) {
                return None;
            }
            request.timeseries.iter().map(|series| plain2(&request.symbols, series)).collect()
        }
    }
}

fn plain1(series: &TimeSeries) -> Plain {
    Plain {
        labels: series.labels.iter().map(|label| (label.name.clone(), label.value.clone())).collect(),
        samples: series.samples.iter().map(|at| (at.timestamp, at.value.to_bits())).collect(),
        histograms: series.histograms.len() as u32,
        exemplars: series.exemplars.len() as u32,
    }
}

/// A 2.0 series; `None` if a reference or its text is invalid.
fn plain2(symbols: &[Vec<u8>], series: &TimeSeries2) -> Option<Plain> {
    let (pairs, []) = series.labels_refs.as_chunks::<2>() else { return None };
    let text = |index: u32| String::from_utf8(symbols.get(index as usize)?.clone()).ok();
    Some(Plain {
        labels: pairs
            .iter()
            .map(|[name, value]| Some((text(*name)?, text(*value)?)))
            .collect::<Option<_>>()?,
        samples: series.samples.iter().map(|at| (at.timestamp, at.value.to_bits())).collect(),
        histograms: series.histograms.len() as u32,
        exemplars: series.exemplars.len() as u32,
    })
}

/// A series of either version, before it is encoded.
#[derive(Debug, Clone)]
pub(super) struct Spec {
    pub(super) plain: Plain,
    pub(super) described: bool,
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => Just(String::new()),
        6 => proptest::collection::vec(any::<char>(), 0..8).prop_map(|chars| chars.into_iter().collect()),
        // Longer than one length byte can hold.
        1 => (100usize..400).prop_map(|length| "x".repeat(length)),
    ]
}

fn bits() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just((-0.0f64).to_bits()),
        Just(0x7ff0_0000_0000_0002),
        Just(0x7ff8_0000_0000_0001),
        any::<u64>(),
    ]
}

pub(super) fn labels() -> impl Strategy<Value = Vec<(String, String)>> {
    proptest::collection::vec((text(), text()), 0..14)
}

fn spec() -> impl Strategy<Value = Spec> {
    let time = prop_oneof![Just(0), any::<i64>(), -5i64..5, Just(1_790_000_000_000)];
    let samples = proptest::collection::vec((time, bits()), 0..4);
    (labels(), samples, 0u32..3, 0u32..3, any::<bool>()).prop_map(
        |(labels, samples, histograms, exemplars, described)| Spec {
            plain: Plain { labels, samples, histograms, exemplars },
            described,
        },
    )
}

pub(super) fn specs() -> impl Strategy<Value = Vec<Spec>> {
    proptest::collection::vec(spec(), 0..6)
}

pub(super) fn encode(version: Version, specs: &[Spec]) -> Vec<u8> {
    match version {
        Version::V1 => WriteRequest {
            timeseries: specs.iter().map(series1).collect(),
            metadata: specs.iter().filter(|spec| spec.described).map(|_| UNREAD.to_vec()).collect(),
        }
        .encode_to_vec(),
        Version::V2 => {
            let mut symbols = vec![vec![]];
            let timeseries = specs.iter().map(|spec| series2(&mut symbols, spec)).collect();
            Request { symbols, timeseries }.encode_to_vec()
        }
    }
}

/// A message that is only counted: it has one varint.
const UNREAD: &[u8] = &[8, 1];

pub(super) fn series1(Spec { plain, .. }: &Spec) -> TimeSeries {
    let label = |(name, value): &(String, String)| Label { name: name.clone(), value: value.clone() };
    TimeSeries {
        labels: plain.labels.iter().map(label).collect(),
        samples: samples(plain),
        exemplars: vec![UNREAD.to_vec(); plain.exemplars as usize],
        histograms: vec![UNREAD.to_vec(); plain.histograms as usize],
    }
}

pub(super) fn series2(symbols: &mut Vec<Vec<u8>>, Spec { plain, described }: &Spec) -> TimeSeries2 {
    let mut refer = |text: &String| {
        let known = symbols.iter().position(|symbol| symbol == text.as_bytes());
        known.unwrap_or_else(|| {
            symbols.push(text.clone().into_bytes());
            symbols.len() - 1
        }) as u32
    };
    TimeSeries2 {
        labels_refs: plain.labels.iter().flat_map(|(name, value)| [refer(name), refer(value)]).collect(),
        samples: samples(plain),
        exemplars: vec![UNREAD.to_vec(); plain.exemplars as usize],
        histograms: vec![UNREAD.to_vec(); plain.histograms as usize],
        metadata: described.then(|| UNREAD.to_vec()),
    }
}

fn samples(plain: &Plain) -> Vec<Sample> {
    let sample =
        |(timestamp, bits): &(i64, u64)| Sample { value: f64::from_bits(*bits), timestamp: *timestamp };
    plain.samples.iter().map(sample).collect()
}
