//! Encodes samples as blocks, one a family, each of which is encoded again only when its samples
//! have changed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use stepwatch_kit::exposition::{Block, Head};

use crate::family::Family;
use crate::samples::{Chunk, Distribution, Sample, Slice, Value};

/// Whole numbers below this are exact.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The families of the last exposition in the order of their names.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    kept: Vec<KeptBlock>,
    /// The position of each family in that order, by its address. It changes when a family is new.
    ranks: HashMap<usize, u32>,
}

#[derive(Debug)]
struct KeptBlock {
    family: &'static Family,
    head: Arc<Head>,
    /// The slices in the order in which they were written.
    said: Vec<Slice>,
    block: Arc<Block>,
}

impl Blocks {
    /// The blocks of these samples in the order of their names.
    pub(super) fn render(&mut self, chunks: &[Arc<Chunk>]) -> Vec<Arc<Block>> {
        let mut before = std::mem::take(&mut self.kept).into_iter().peekable();
        let kept = self.by_name(chunks).into_iter().map(|(family, said)| {
            while before.next_if(|old| old.family.name < family.name).is_some() {}
            match before.next_if(|old| old.family.name == family.name) {
                Some(old) => old.now(family, said),
                None => KeptBlock::new(family, said),
            }
        });
        self.kept = kept.collect();
        self.kept.iter().map(|kept| Arc::clone(&kept.block)).collect()
    }

    /// The slices of each family in the chunks, in the order in which they were written. If several
    /// families have one name, the first one gives the metadata.
    fn by_name(&mut self, chunks: &[Arc<Chunk>]) -> Vec<(&'static Family, Vec<Slice>)> {
        let families = || chunks.iter().flat_map(|chunk| chunk.families());
        if families().any(|family| self.rank(family).is_none()) {
            self.learn(families().collect());
        }
        let mut said: Vec<Option<(&'static Family, Vec<Slice>)>> = Vec::new();
        said.resize_with(self.ranks.len(), || None);
        for (family, slice) in chunks.iter().flat_map(Chunk::slices) {
            if let Some(place) = self.rank(family).and_then(|rank| said.get_mut(rank)) {
                place.get_or_insert_with(|| (family, Vec::with_capacity(1))).1.push(slice);
            }
        }
        said.into_iter().flatten().collect()
    }

    fn rank(&self, family: &'static Family) -> Option<usize> {
        self.ranks.get(&std::ptr::from_ref(family).addr()).map(|rank| *rank as usize)
    }

    /// Sets the order to that of these families.
    fn learn(&mut self, mut families: Vec<&'static Family>) {
        families.sort_by_key(|family| family.name);
        let names = families.chunk_by(|a, b| a.name == b.name);
        let ranked = names.zip(0..).flat_map(|(same, rank)| same.iter().map(move |family| (family, rank)));
        self.ranks = ranked.map(|(family, rank)| (std::ptr::from_ref(*family).addr(), rank)).collect();
    }
}

impl KeptBlock {
    fn new(family: &'static Family, said: Vec<Slice>) -> Self {
        let head = Arc::new(Head::new(head(family)));
        let block = Arc::new(encode(&head, &said, 0));
        Self { family, head, said, block }
    }

    fn now(mut self, family: &'static Family, said: Vec<Slice>) -> Self {
        if !std::ptr::eq(self.family, family) {
            return Self::new(family, said);
        }
        if !same(&self.said, &said) {
            self.block = Arc::new(encode(&self.head, &said, self.block.lines_len()));
        }
        // The old slices would otherwise be held here besides the new ones.
        self.said = said;
        self
    }
}

fn same(before: &[Slice], now: &[Slice]) -> bool {
    let equal = |(a, b): (&Sample, &Sample)| {
        std::ptr::eq(a.family, b.family)
            && a.value == b.value
            && (a.labels.is(&b.labels) || a.labels == b.labels)
    };
    let alike = |(a, b): (&Slice, &Slice)| {
        let (before, now) = (a.samples(), b.samples());
        a.is(b) || before.len() == now.len() && before.zip(now).all(equal)
    };
    before.len() == now.len() && before.iter().zip(now).all(alike)
}

/// Encodes one family, whose lines had `before` bytes the last time.
fn encode(head: &Arc<Head>, said: &[Slice], before: usize) -> Block {
    let mut sorted: Vec<&Sample> = said.iter().flat_map(Slice::samples).collect();
    sorted.sort_by(|a, b| a.labels.cmp(&b.labels));
    // A series of two sources would make the whole exposition invalid.
    sorted.dedup_by(|a, b| a.labels == b.labels);
    // The lines are usually as long as before, or a few digits longer, which needs no reallocation.
    let mut lines = String::with_capacity(before + before / 64 + 16);
    for sample in &sorted {
        write_sample(&mut lines, sample);
    }
    if lines.capacity() - lines.len() > lines.len() / 8 {
        lines.shrink_to_fit();
    }
    Block::family(Arc::clone(head), lines)
}

fn head(family: &Family) -> String {
    let (name, kind) = (family.metadata_name(), family.kind.as_str());
    let mut text = format!("# HELP {name} {}.\n# TYPE {name} {kind}\n", family.help);
    if !family.unit.is_empty() {
        let _ = writeln!(text, "# UNIT {name} {}", family.unit);
    }
    text
}

fn write_sample(out: &mut String, sample: &Sample) {
    let family = sample.family;
    match &sample.value {
        Value::Number(value) => {
            write_series(out, family.name, "", sample, None);
            write_number(out, *value);
        }
        Value::Histogram(Distribution { sum, count, buckets }) => {
            write_series(out, family.name, "_sum", sample, None);
            let _ = writeln!(out, "{sum:?}");
            write_series(out, family.name, "_count", sample, None);
            let _ = writeln!(out, "{count}");
            let mut below = 0;
            for (bound, count) in buckets {
                below += count;
                write_series(out, family.name, "_bucket", sample, Some(*bound));
                let _ = writeln!(out, "{below}");
            }
        }
    }
}

/// Writes `name{le="0.5",a="b"} `.
fn write_series(out: &mut String, name: &str, ending: &str, sample: &Sample, bound: Option<f64>) {
    out.push_str(name);
    out.push_str(ending);
    let mut before = '{';
    if let Some(bound) = bound {
        let _ =
            if bound.is_finite() { write!(out, "{{le=\"{bound:?}\"") } else { write!(out, "{{le=\"+Inf\"") };
        before = ',';
    }
    for (label, value) in sample.family.labels.iter().zip(sample.labels.iter()) {
        out.push(before);
        out.push_str(label);
        out.push_str("=\"");
        escape(out, value);
        out.push('"');
        before = ',';
    }
    out.push_str(if before == ',' { "} " } else { " " });
}

/// Writes whole numbers without a fraction, which is shorter and usual for counts.
fn write_number(out: &mut String, value: f64) {
    let _ = if value.fract() == 0.0 && value.abs() < EXACT {
        writeln!(out, "{}", value as i64)
    } else {
        writeln!(out, "{value:?}")
    };
}

fn escape(out: &mut String, value: &str) {
    let mut rest = value;
    while let Some(at) = memchr::memchr3(b'\\', b'"', b'\n', rest.as_bytes()) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        out.push_str(match special.as_bytes().first() {
            Some(b'\\') => "\\\\",
            Some(b'"') => "\\\"",
            _ => "\\n",
        });
        rest = special.get(1..).unwrap_or_default();
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stepwatch_kit::exposition::Encoded;
    use stepwatch_kit::exposition::read::{self, Dialect};
    use stepwatch_kit::exposition::{Form, to_text_004};
    use stepwatch_wire::words;

    use super::*;
    use crate::samples::Samples;

    static COUNT: Family = Family::counter("x_things_total", "", &["a", "b"], "Things");
    static BYTES: Family = Family::gauge("x_size_bytes", "bytes", &[], "Size");
    static TIME: Family = Family::histogram("x_time_seconds", "seconds", &["a"], "Time");

    fn page(blocks: Vec<Arc<Block>>) -> Encoded {
        Encoded::new(&prometheus_client::registry::Registry::default(), blocks)
    }

    fn openmetrics(page: &Encoded) -> String {
        String::from_utf8(page.form(Form::ALL[2]).to_vec()).unwrap()
    }

    #[test]
    fn one_block_a_family_whatever_the_order() {
        let mut s = Samples::default();
        s.set(&COUNT, &["2", "quote \" slash \\ line\n"], 2u64);
        s.set(&BYTES, &[], 1.5);
        s.set(&COUNT, &["1", ""], 1u64);
        s.set(&COUNT, &["1", ""], 99u64);
        s.set(&BYTES, &[], f64::NAN);
        let buckets = vec![(0.5, 1), (f64::INFINITY, 2)];
        s.distribution(&TIME, &["x"], Distribution { sum: 9.0, count: 3, buckets });
        let page = page(Blocks::default().render(&s.into_chunks()));
        insta::assert_snapshot!(openmetrics(&page), @r#"
        # HELP x_size_bytes Size.
        # TYPE x_size_bytes gauge
        # UNIT x_size_bytes bytes
        x_size_bytes 1.5
        # HELP x_things Things.
        # TYPE x_things counter
        x_things_total{a="1",b=""} 1
        x_things_total{a="2",b="quote \" slash \\ line\n"} 2
        # HELP x_time_seconds Time.
        # TYPE x_time_seconds histogram
        # UNIT x_time_seconds seconds
        x_time_seconds_sum{a="x"} 9.0
        x_time_seconds_count{a="x"} 3
        x_time_seconds_bucket{le="0.5",a="x"} 1
        x_time_seconds_bucket{le="+Inf",a="x"} 3
        # EOF
        "#);
        assert_eq!(page.text(), to_text_004(&openmetrics(&page)), "the older format by the long way");
    }

    #[test]
    fn only_what_changed_is_encoded_anew() {
        let mut blocks = Blocks::default();
        let mut of = |things: u64, size: Option<f64>| {
            let mut s = Samples::default();
            s.set(&COUNT, &["1", ""], things);
            s.maybe(&BYTES, &[], size);
            blocks.render(&s.into_chunks())
        };
        let (first, second) = (of(1, Some(2.0)), of(2, Some(2.0)));
        assert!(Arc::ptr_eq(&first[0], &second[0]) && !Arc::ptr_eq(&first[1], &second[1]));
        let third = of(2, None);
        assert_eq!(third.len(), 1, "what is gone leaves the page");
        assert!(Arc::ptr_eq(&second[1], &third[0]));
        assert_eq!(of(2, Some(2.0)).len(), 2, "and comes back");
    }

    proptest! {
        /// A reader of the format gets the written values back.
        #[test]
        fn any_label_and_any_number_can_be_read_back(label: String, number: f64) {
            let mut s = Samples::default();
            s.set(&COUNT, &[&label, "b"], number);
            prop_assume!(!s.is_empty());
            let text = page(Blocks::default().render(&s.into_chunks())).text();
            let read: Vec<_> = read::read(&text, Dialect::Text).collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(read.len(), 1);
            prop_assert_eq!(read[0].value, number);
            let labels: Vec<_> = read[0].labels.iter().map(|(_, v)| v.into_owned()).collect();
            prop_assert_eq!(labels, [words::clean(&label).into_owned(), "b".to_owned()]);
        }
    }
}
