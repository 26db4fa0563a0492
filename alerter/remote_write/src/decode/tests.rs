mod oracle;
mod written;

use proptest::prelude::*;
use prost::Message;

use super::{
    Accepted, Decoder, MAX_DECOMPRESSED, MAX_LABELS, MAX_SAMPLES, MAX_SERIES, MAX_SYMBOLS, Malformed, Sample,
    Totals, Version, decompress,
};
use crate::hash::Key;
use crate::schema::{Request, WriteRequest};
use oracle::{Plain, Spec, encode, labels, oracle, ours, series1, series2, specs};
use written::{Wire, fields, write};

const BOTH: [Version; 2] = [Version::V1, Version::V2];

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V1), Just(Version::V2)]
}

fn keys(version: Version, specs: &[Spec]) -> Vec<Key> {
    ours(version, &encode(version, specs)).unwrap().1
}

fn spec(labels: &[(String, String)]) -> Spec {
    let plain = Plain { labels: labels.to_vec(), samples: vec![(5, 6)], histograms: 0, exemplars: 0 };
    Spec { plain, described: false }
}

fn label(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

proptest! {
    #[test]
    fn what_prost_writes_is_read(version in version(), specs in specs()) {
        let body = encode(version, &specs);
        let (read, _, totals) = ours(version, &body).unwrap();
        let mut plain: Vec<_> = specs.iter().map(|spec| spec.plain.clone()).collect();
        for (_, bits) in plain.iter_mut().flat_map(|series| &mut series.samples) {
            // prost leaves out what equals zero, and so loses the sign of this one.
            *bits = if *bits == (-0.0f64).to_bits() { 0 } else { *bits };
        }
        prop_assert_eq!(&read, &plain);
        let expected = oracle(version, &body);
        prop_assert_eq!(Some(&read), expected.as_ref());
        prop_assert_eq!(totals, Totals {
            series: plain.len() as u64,
            samples: plain.iter().map(|series| series.samples.len() as u64).sum(),
            histograms: plain.iter().map(|series| u64::from(series.histograms)).sum(),
            exemplars: plain.iter().map(|series| u64::from(series.exemplars)).sum(),
            metadata: specs.iter().filter(|spec| spec.described).count() as u64,
        });
    }

    #[test]
    fn any_bytes_are_read_or_refused(version in version(), body in any::<Vec<u8>>()) {
        agrees(version, &body)?;
        let _ = decompress(&body, &mut Vec::new());
    }

    #[test]
    fn any_fields_are_read_as_prost_reads_them(version in version(), fields in fields()) {
        agrees(version, &write(&fields))?;
    }

    #[test]
    fn any_fields_of_a_series_are_read_as_prost_reads_them(
        version in version(),
        fields in proptest::collection::vec(fields(), 1..3),
    ) {
        let table = ["", "a", "b", "c"].map(|symbol| Wire::Bytes(4, symbol.into()));
        let series = fields.into_iter().map(|fields| match version {
            Version::V1 => Wire::Message(1, fields),
            Version::V2 => Wire::Message(5, fields),
        });
        let body: Vec<_> = match version {
            Version::V1 => series.collect(),
            // The symbol table comes last.
            Version::V2 => series.chain(table).collect(),
        };
        agrees(version, &write(&body))?;
    }

    #[test]
    fn a_damaged_body_is_read_as_prost_reads_it(
        version in version(),
        specs in specs(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut body = encode(version, &specs);
        for (at, byte) in damage {
            if !body.is_empty() {
                let at = at.index(body.len());
                body[at] = byte;
            }
        }
        agrees(version, &body)?;
    }

}

proptest! {
    // Each case decodes its body once per byte.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_body_cut_short_is_read_or_refused(version in version(), specs in specs()) {
        let body = encode(version, &specs);
        for end in 0..body.len() {
            agrees(version, &body[..end])?;
        }
    }
}

proptest! {
    #[test]
    fn the_order_of_the_fields_is_free(version in version(), specs in specs()) {
        // The series stay in order; all other fields, theirs and the request's, are reversed.
        let fields: Vec<Wire> = match version {
            Version::V1 => specs.iter().map(|spec| {
                let series = series1(spec);
                let labels = series.labels.iter().map(|label| Wire::Message(1, vec![
                    Wire::Bytes(2, label.value.clone().into_bytes()),
                    Wire::Bytes(1, label.name.clone().into_bytes()),
                ]));
                let samples = samples(&spec.plain);
                Wire::Message(1, interleave(labels.collect(), samples))
            }).collect(),
            Version::V2 => {
                let mut symbols = vec![vec![]];
                let mut fields: Vec<_> = specs.iter().map(|spec| {
                    let references = series2(&mut symbols, spec).labels_refs;
                    let references = references.iter().map(|index| Wire::Varint(1, u64::from(*index)));
                    Wire::Message(5, interleave(references.collect(), samples(&spec.plain)))
                }).collect();
                fields.extend(symbols.into_iter().map(|symbol| Wire::Bytes(4, symbol)));
                fields
            }
        };
        let body = write(&fields);
        let (read, ..) = ours(version, &body).unwrap();
        let expected = oracle(version, &body);
        prop_assert_eq!(Some(&read), expected.as_ref());
        for (read, spec) in read.iter().zip(&specs) {
            prop_assert_eq!(&read.labels, &spec.plain.labels);
            prop_assert_eq!(&read.samples, &spec.plain.samples);
        }
    }

    #[test]
    fn a_key_is_the_labels_and_nothing_else(version in version(), specs in specs(), labels in labels()) {
        let alone = keys(version, &[spec(&labels)])[0];
        // The series after others, with another symbol table, other samples and other fields.
        let mut others = specs.clone();
        others.push(Spec {
            plain: Plain { labels: labels.clone(), samples: vec![], histograms: 1, exemplars: 2 },
            described: true,
        });
        let mut all = keys(version, &others);
        prop_assert_eq!(all.pop(), Some(alone));
        for (key, spec) in all.iter().zip(&specs) {
            prop_assert_eq!(*key == alone, spec.plain.labels == labels);
        }
    }

    #[test]
    fn labels_apart_have_the_key_of_labels_in_a_run(labels in labels()) {
        let fields: Vec<Wire> = labels.iter().map(|(name, value)| {
            let text = |number, text: &String| {
                (!text.is_empty()).then(|| Wire::Bytes(number, text.clone().into_bytes()))
            };
            Wire::Message(1, [text(1, name), text(2, value)].into_iter().flatten().collect())
        }).collect();
        let apart = interleave(fields.clone(), vec![Wire::Varint(9, 1), Wire::Message(2, vec![])]);
        let (run, apart) = (Wire::Message(1, fields), Wire::Message(1, apart));
        let (read, keys, _) = ours(Version::V1, &write(&[run, apart])).unwrap();
        prop_assert_eq!(keys[0], keys[1]);
        prop_assert_eq!(&read[1].labels, &labels);
    }

    #[test]
    fn what_snappy_packs_is_unpacked(bodies in proptest::collection::vec(any::<Vec<u8>>(), 1..4)) {
        // A long body after a short one and the reverse, in one buffer.
        let mut buffer = Vec::new();
        for body in bodies {
            let packed = snap::raw::Encoder::new().compress_vec(&body).unwrap();
            prop_assert_eq!(decompress(&packed, &mut buffer).unwrap(), &body[..]);
        }
    }
}

/// Our decoder reads and refuses what prost reads and refuses; groups are the only difference.
fn agrees(version: Version, body: &[u8]) -> Result<(), TestCaseError> {
    match (ours(version, body), oracle(version, body)) {
        (Ok((read, ..)), Some(expected)) => prop_assert_eq!(read, expected),
        (Err(Malformed::WireType { accepted: Accepted::NoGroup, .. }), _) | (Err(_), None) => {}
        (Err(error), Some(_)) => prop_assert!(false, "prost accepts it: {}", error),
        (Ok(_), None) => prop_assert!(false, "prost refuses it"),
    }
    Ok(())
}

/// Puts a field of `between` after each of `fields`, until none is left.
fn interleave(fields: Vec<Wire>, between: Vec<Wire>) -> Vec<Wire> {
    let mut between = between.into_iter();
    let mut mixed: Vec<_> =
        fields.into_iter().flat_map(|field| [Some(field), between.next()]).flatten().collect();
    mixed.extend(between);
    mixed
}

/// Timestamps first, each preceded by a field with another value: the last one counts. Field 3 is a
/// start of 2.0 and unknown to 1.0.
fn samples(plain: &Plain) -> Vec<Wire> {
    let sample = |(ts, bits): &(i64, u64)| {
        let time = |ts| Wire::Varint(2, ts);
        Wire::Message(2, vec![time(77), Wire::Varint(3, 1), time(*ts as u64), Wire::Fixed64(1, *bits)])
    };
    plain.samples.iter().map(sample).collect()
}

fn refused(version: Version, body: &[u8]) -> Malformed {
    ours(version, body).unwrap_err()
}

#[test]
fn nothing_is_an_empty_request() {
    for version in BOTH {
        assert_eq!(ours(version, &[]).unwrap(), (vec![], vec![], Totals::default()));
    }
}

#[test]
fn the_versions_do_not_share_keys() {
    assert_ne!(keys(Version::V1, &[spec(&[])]), keys(Version::V2, &[spec(&[])]));
    let up = [label("__name__", "up")];
    assert_ne!(keys(Version::V1, &[spec(&up)]), keys(Version::V2, &[spec(&up)]));
}

#[test]
fn another_seed_is_another_key() {
    let body = encode(Version::V1, &[spec(&[label("__name__", "up")])]);
    let key = |seed| {
        let mut key = None;
        Decoder::new(seed).decode(Version::V1, &body, |series| key = Some(series.key())).unwrap();
        key
    };
    assert_eq!(key(1), key(1));
    assert_ne!(key(1), key(2));
}

#[test]
fn only_one_nan_is_stale() {
    let sample = |bits| Sample { ts_ms: 0, value: f64::from_bits(bits) };
    assert!(sample(0x7ff0_0000_0000_0002).is_stale());
    assert!(!sample(0x7ff8_0000_0000_0001).is_stale());
    assert!(!sample(f64::NAN.to_bits()).is_stale());
}

#[test]
fn unknown_fields_are_skipped() {
    let unknown = vec![
        Wire::Varint(30, u64::MAX),
        Wire::Fixed64(31, 1),
        Wire::Bytes(536_870_911, vec![1, 2, 3]),
        Wire::Fixed32(33, 1),
    ];
    let with = |mut fields: Vec<Wire>| {
        fields.splice(1..1, unknown.clone());
        fields.extend(unknown.clone());
        fields
    };
    let sample = Wire::Message(2, with(vec![Wire::Fixed64(1, 9), Wire::Varint(2, 8)]));
    let text = |number, text: &str| Wire::Bytes(number, text.into());
    let label = Wire::Message(1, with(vec![text(1, "a"), text(2, "b")]));
    let v1 = with(vec![Wire::Message(1, with(vec![label, sample.clone()]))]);
    let series = with(vec![Wire::Bytes(1, vec![1, 2]), sample, Wire::Varint(6, 3)]);
    let v2 = with(vec![text(4, ""), text(4, "a"), text(4, "b"), Wire::Message(5, series)]);
    for (version, body) in [(Version::V1, v1), (Version::V2, v2)] {
        let (read, ..) = ours(version, &write(&body)).unwrap();
        assert_eq!(read[0].labels, [("a".to_owned(), "b".to_owned())]);
        assert_eq!(read[0].samples, [(8, 9)]);
    }
}

fn references(series: Vec<Wire>) -> Vec<u8> {
    let symbols = ["", "a", "b"].map(|symbol| Wire::Bytes(4, symbol.into()));
    write(&symbols.into_iter().chain([Wire::Message(5, series)]).collect::<Vec<_>>())
}

#[test]
fn references_may_be_packed_or_not() {
    let packed = references(vec![Wire::Bytes(1, vec![1, 2, 2, 1])]);
    let apart = references([1, 2, 2, 1].map(|index| Wire::Varint(1, index)).into());
    let mixed = references(vec![Wire::Varint(1, 1), Wire::Bytes(1, vec![2, 2]), Wire::Varint(1, 1)]);
    let read = |body: &[u8]| ours(Version::V2, body).unwrap();
    assert_eq!(read(&packed).0[0].labels.len(), 2);
    assert_eq!(read(&packed), read(&apart));
    assert_eq!(read(&packed), read(&mixed));
}

#[test]
fn bad_references_are_refused() {
    let refused = |series| refused(Version::V2, &references(series));
    assert_eq!(refused(vec![Wire::Bytes(1, vec![1])]), Malformed::OddReferences { references: 1 });
    let beyond = Malformed::Reference { index: 3, symbols: 3 };
    assert_eq!(refused(vec![Wire::Bytes(1, vec![1, 3])]), beyond);
    assert_eq!(refused(vec![Wire::Varint(1, 3)]), beyond);
    assert_eq!(refused(vec![Wire::Bytes(1, vec![1, 0x80])]), Malformed::Truncated { message: "TimeSeries" });
    let double =
        Malformed::WireType { message: "TimeSeries", field: 1, found: 1, accepted: Accepted::VarintOrBytes };
    assert_eq!(refused(vec![Wire::Fixed64(1, 3)]), double);
    let first = Request { symbols: vec![b"up".to_vec()], timeseries: vec![] };
    let first = super::tests::refused(Version::V2, &first.encode_to_vec());
    assert_eq!(first, Malformed::FirstSymbol { bytes: 2 });
}

#[test]
fn broken_fields_are_refused_by_name() {
    let request = |bytes: &[u8]| refused(Version::V1, bytes);
    let message = "WriteRequest";
    assert_eq!(request(&[0x0a]), Malformed::Truncated { message });
    assert_eq!(request(&[0x0a, 5, 1]), Malformed::Truncated { message });
    assert_eq!(request(&[0x80]), Malformed::Truncated { message });
    assert_eq!(request(&[0x0a, 2, 0x0a, 1]), Malformed::Truncated { message: "TimeSeries" });
    assert_eq!(request(&[0x02, 0]), Malformed::FieldNumber { message, key: 2 });
    assert_eq!(request(&[0xff; 11]), Malformed::Varint { message });
    let mut long = vec![0x08 | 7 << 4];
    long.extend([0xff; 9]);
    long.push(1);
    assert_eq!(ours(Version::V1, &long).unwrap().2, Totals::default(), "ten bytes are 64 bits");
    let wire = |field, found, accepted| Malformed::WireType { message, field, found, accepted };
    assert_eq!(request(&[0x08, 0]), wire(1, 0, Accepted::Bytes));
    for found in [3, 4, 6, 7] {
        assert_eq!(request(&[9 << 3 | found]), wire(9, found, Accepted::NoGroup));
    }
    let error = request(&[0x08, 0]).to_string();
    assert_eq!(error, "WriteRequest has field 1 with wire type 0; bytes are accepted (2)");
}

#[test]
fn a_label_that_is_not_text_is_an_error_of_its_series() {
    let bad = Wire::Message(1, vec![Wire::Bytes(1, b"a".into()), Wire::Bytes(2, vec![0xff])]);
    let good = Wire::Message(1, vec![Wire::Bytes(1, b"b".into())]);
    let v1 = write(&[Wire::Message(1, vec![bad, good.clone()]), Wire::Message(1, vec![good])]);
    let symbols = [&b""[..], b"a", &[0xff], b"b"].map(|symbol| Wire::Bytes(4, symbol.into()));
    let series = [vec![1, 2, 3, 0], vec![3, 0]].map(|refs| Wire::Message(5, vec![Wire::Bytes(1, refs)]));
    let v2 = write(&symbols.into_iter().chain(series).collect::<Vec<_>>());
    let cases = [(Version::V1, v1, "Label", 2), (Version::V2, v2, "Request", 4)];
    for (version, body, message, field) in cases {
        let mut read = Vec::new();
        let mut decoder = Decoder::new(7);
        decoder.decode(version, &body, |series| read.push(series.labels().collect::<Vec<_>>())).unwrap();
        assert_eq!(read[0], [Err(Malformed::Utf8 { message, field })], "nothing comes behind an error");
        assert_eq!(read[1], [Ok(("b", ""))]);
    }
}

#[test]
fn bombs_are_refused_before_anything_is_allocated() {
    let mut buffer = Vec::new();
    let four_gib = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let declared = u32::MAX as usize;
    let limit = MAX_DECOMPRESSED;
    assert_eq!(decompress(&four_gib, &mut buffer), Err(Malformed::TooLarge { declared, limit }));
    let mut lie = Vec::new();
    written::varint(22 * 103 + 64 + 1, &mut lie);
    lie.resize(103, 0);
    let bomb = Malformed::Bomb { declared: 22 * 103 + 65, body: 103, growth: 22 };
    assert_eq!(decompress(&lie, &mut buffer), Err(bomb));
    assert_eq!(buffer.capacity(), 0);
    assert!(matches!(decompress(&[], &mut buffer), Err(Malformed::Snappy(_))), "no length");
    assert!(matches!(decompress(&[3, 0xf0], &mut buffer), Err(Malformed::Snappy(_))));
    assert!(matches!(decompress(&[0xff; 6], &mut buffer), Err(Malformed::Snappy(_))));
}

#[test]
fn the_densest_honest_body_is_no_bomb() {
    let body = vec![0; MAX_DECOMPRESSED];
    let packed = snap::raw::Encoder::new().compress_vec(&body).unwrap();
    let mut buffer = Vec::new();
    assert_eq!(decompress(&packed, &mut buffer).unwrap().len(), body.len());
    let more = snap::raw::Encoder::new().compress_vec(&vec![0; MAX_DECOMPRESSED + 1]).unwrap();
    assert!(matches!(decompress(&more, &mut buffer), Err(Malformed::TooLarge { .. })));
    let too_large = Decoder::new(0).decode(Version::V1, &vec![0; MAX_DECOMPRESSED + 1], |_| {});
    assert!(matches!(too_large, Err(Malformed::TooLarge { .. })));
}

#[test]
fn there_is_a_limit_to_everything_that_takes_memory() {
    let too_many =
        |version, body: &[u8], accepted: usize, each: &[u8], around: &dyn Fn(Vec<u8>) -> Vec<u8>| {
            let inner = |count| around([body, &each.repeat(count)].concat());
            let read = |count| Decoder::new(7).decode(version, &inner(count), |_| {});
            assert!(read(accepted).is_ok());
            let Err(Malformed::TooMany { limit, what }) = read(accepted + 1) else { panic!("accepted") };
            (limit, what)
        };
    let bare = |bytes| bytes;
    let in_series = |number: u32| move |bytes| write(&[Wire::Bytes(4, vec![]), Wire::Bytes(number, bytes)]);
    let series = MAX_SERIES as usize;
    let samples = MAX_SAMPLES as usize;
    let of = |limit: usize, what| (limit as u64, what);
    let labels = of(MAX_LABELS, "labels of a series");
    for (version, number, key) in [(Version::V1, 1, 0x0a), (Version::V2, 5, 0x2a)] {
        assert_eq!(too_many(version, &[], series, &[key, 0], &bare), of(series, "series in a request"));
        let wrapped = in_series(number);
        let found = too_many(version, &[], samples, &[0x12, 0], &wrapped);
        assert_eq!(found, of(samples, "samples in a request"));
    }
    assert_eq!(too_many(Version::V1, &[], MAX_LABELS, &[0x0a, 0], &in_series(1)), labels);
    assert_eq!(too_many(Version::V2, &[], MAX_LABELS, &[8, 0, 8, 0], &in_series(5)), labels);
    let symbols = too_many(Version::V2, &[0x22, 0], MAX_SYMBOLS - 1, &[0x22, 0], &bare);
    assert_eq!(symbols, of(MAX_SYMBOLS, "symbols in a request"));
}

#[test]
fn a_decoder_forgets_the_request_before() {
    let mut decoder = Decoder::new(7);
    let specs = [spec(&[label("a", "b")]), spec(&[])];
    let mut body = encode(Version::V2, &specs);
    decoder.decode(Version::V2, &body, |_| {}).unwrap();
    // The table is empty, so the references have no target.
    body = Request { symbols: vec![], ..Request::decode(&body[..]).unwrap() }.encode_to_vec();
    let lost = decoder.decode(Version::V2, &body, |_| {}).unwrap_err();
    assert!(matches!(lost, Malformed::Reference { symbols: 0, .. }), "{lost}");
    let empty = WriteRequest { timeseries: vec![series1(&spec(&[]))], metadata: vec![] }.encode_to_vec();
    let totals = decoder
        .decode(Version::V1, &empty, |series| {
            assert_eq!((series.labels().count(), series.samples().len()), (0, 1));
        })
        .unwrap();
    assert_eq!(totals.samples, 1);
}
