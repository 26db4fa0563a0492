//! Parses the metrics that other programs expose, in the text format 0.0.4 or OpenMetrics, with
//! quoted UTF-8 names.
//!
//! Samples borrow from the text and a line needs no allocation, so that a page of a hundred
//! thousand series can be searched for a dozen series. A malformed line is one error and does not
//! end the parsing: half a page is better than none, as long as the errors are counted.

use std::borrow::Cow;
use std::fmt;

/// The most labels of one series.
pub const MAX_LABELS: usize = 64;

/// The format of a page. The two differ in the unit of timestamps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `text/plain; version=0.0.4`.
    #[default]
    Text,
    OpenMetrics,
}

/// The type of a family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MetricType {
    Counter,
    Gauge,
    Histogram,
    Summary,
    /// Not declared, or of a type that has no counterpart here.
    #[default]
    Unknown,
}

/// Iterates over the samples of a page, in order.
#[derive(Debug, Clone)]
pub struct Page<'a> {
    rest: Option<&'a str>,
    line: usize,
    dialect: Dialect,
    /// The family that was declared last.
    family: &'a str,
    kind: MetricType,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sample<'a> {
    /// The name as written; samples of a histogram end in `_bucket`, `_sum` and `_count`.
    pub name: Cow<'a, str>,
    /// The type of the family of the sample.
    pub kind: MetricType,
    pub labels: Labels<'a>,
    pub value: f64,
    /// The Unix time in seconds, if the sample has a timestamp.
    pub time: Option<f64>,
}

/// The labels of a sample, in the order of the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Labels<'a>(&'a str);

/// A line that does not parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    /// The number of the line, counted from 1.
    pub line: usize,
    pub why: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for Malformed {}

impl Dialect {
    /// The format that the `Content-Type` of a response names.
    pub fn of_content_type(content_type: &str) -> Self {
        let openmetrics = content_type.trim_start().starts_with("application/openmetrics-text");
        if openmetrics { Self::OpenMetrics } else { Self::Text }
    }
}

/// Parses a page.
pub fn read(page: &str, dialect: Dialect) -> Page<'_> {
    Page { rest: Some(page), line: 0, dialect, family: "", kind: MetricType::Unknown }
}

impl<'a> Iterator for Page<'a> {
    type Item = Result<Sample<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.rest?;
            let (line, after) = match rest.split_once('\n') {
                Some((line, after)) => (line, Some(after)),
                None => (rest, None),
            };
            self.rest = after;
            self.line += 1;
            let line = line.trim_matches([' ', '\t', '\r']);
            if let Some(comment) = line.strip_prefix('#') {
                if comment.trim() == "EOF" && self.dialect == Dialect::OpenMetrics {
                    self.rest = None;
                }
                self.declare(comment);
            } else if !line.is_empty() {
                return Some(self.sample(line).map_err(|why| Malformed { line: self.line, why }));
            }
        }
    }
}

impl<'a> Page<'a> {
    fn declare(&mut self, comment: &'a str) {
        let Some(declared) = comment.trim_start().strip_prefix("TYPE") else { return };
        let Some((name, kind)) = declared.trim_start().rsplit_once([' ', '\t']) else { return };
        self.family = name.trim().trim_matches('"');
        self.kind = match kind {
            "counter" => MetricType::Counter,
            "gauge" => MetricType::Gauge,
            "histogram" | "gaugehistogram" => MetricType::Histogram,
            "summary" => MetricType::Summary,
            _ => MetricType::Unknown,
        };
    }

    /// The type of a sample if it belongs to the family declared last, otherwise unknown.
    fn kind_of(&self, name: &str) -> MetricType {
        const SUFFIXES: [&str; 5] = ["", "_total", "_sum", "_count", "_bucket"];
        match name.strip_prefix(self.family) {
            Some(suffix) if !self.family.is_empty() && SUFFIXES.contains(&suffix) => self.kind,
            _ => MetricType::Unknown,
        }
    }

    fn sample(&self, line: &'a str) -> Result<Sample<'a>, &'static str> {
        let bare = line.bytes().take_while(|b| name_byte(*b)).count();
        let (mut name, mut rest) = (Cow::Borrowed(&line[..bare]), &line[bare..]);
        if bare == 0 && !rest.starts_with('{') {
            return Err("a name was expected");
        }
        let mut labels = Labels::default();
        rest = rest.trim_start_matches([' ', '\t']);
        if let Some(inside) = rest.strip_prefix('{') {
            let (quoted, found, after) = label_set(inside)?;
            match quoted {
                Some(_) if bare > 0 => return Err("a second name"),
                Some(quoted) => name = unescape(quoted),
                None if bare == 0 => return Err("a name was expected"),
                None => {}
            }
            (labels, rest) = (found, after);
        } else if rest.len() == line.len() - bare {
            return Err("a value was expected after the name");
        }
        let mut words = rest.split_ascii_whitespace();
        let value = words.next().and_then(number).ok_or("the value is not a number")?;
        let time = match words.next() {
            // An exemplar follows.
            None | Some("#") => None,
            Some(word) => Some(number(word).filter(|t| t.is_finite()).ok_or("the time is not a number")?),
        };
        let time = time.map(|t| if self.dialect == Dialect::Text { t / 1000.0 } else { t });
        Ok(Sample { kind: self.kind_of(&name), name, labels, value, time })
    }
}

impl<'a> Labels<'a> {
    pub fn iter(self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            loop {
                let (item, after) = item(rest).ok().flatten()?;
                rest = after;
                if let Item::Label(name, value) = item {
                    return Some((unescape(name), unescape(value)));
                }
            }
        })
    }

    pub fn get(self, name: &str) -> Option<Cow<'a, str>> {
        self.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    pub fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }
}

enum Item<'a> {
    /// The quoted name of the metric, which is among the labels.
    Name(&'a str),
    Label(&'a str, &'a str),
}

/// Parses up to the closing brace. Returns the quoted name if there is one, the labels, and the
/// rest of the line after the brace.
fn label_set(text: &str) -> Result<(Option<&str>, Labels<'_>, &str), &'static str> {
    let (mut rest, mut name, mut count) = (text, None, 0);
    loop {
        match item(rest)? {
            None => break,
            Some((Item::Name(quoted), after)) => {
                if name.replace(quoted).is_some() {
                    return Err("a second name");
                }
                rest = after;
            }
            Some((Item::Label(..), after)) => {
                count += 1;
                if count > MAX_LABELS {
                    return Err("too many labels");
                }
                rest = after;
            }
        }
    }
    let labels = Labels(&text[..text.len() - rest.len()]);
    let after = rest.trim_start_matches([' ', '\t']).strip_prefix('}').ok_or("the labels do not end")?;
    Ok((name, labels, after))
}

/// Parses the next label with its comma; `None` before the closing brace.
fn item(text: &str) -> Result<Option<(Item<'_>, &str)>, &'static str> {
    let text = text.trim_start_matches([' ', '\t']);
    if text.is_empty() || text.starts_with('}') {
        return Ok(None);
    }
    let (name, quoted, rest) = if text.starts_with('"') {
        let (name, rest) = string(text)?;
        (name, true, rest)
    } else {
        let len = text.bytes().take_while(|b| name_byte(*b)).count();
        if len == 0 {
            return Err("the name of a label was expected");
        }
        (&text[..len], false, &text[len..])
    };
    let rest = rest.trim_start_matches([' ', '\t']);
    let (item, rest) = match rest.strip_prefix('=') {
        Some(value) => {
            let (value, rest) = string(value.trim_start_matches([' ', '\t']))?;
            (Item::Label(name, value), rest)
        }
        None if quoted => (Item::Name(name), rest),
        None => return Err("a label has no value"),
    };
    let rest = rest.trim_start_matches([' ', '\t']);
    match rest.strip_prefix(',') {
        Some(rest) => Ok(Some((item, rest))),
        None if rest.is_empty() || rest.starts_with('}') => Ok(Some((item, rest))),
        None => Err("a comma was expected between labels"),
    }
}

/// Parses a quoted text. Returns it with its escapes, and the rest of the line.
fn string(text: &str) -> Result<(&str, &str), &'static str> {
    let inside = text.strip_prefix('"').ok_or("a text in quotes was expected")?;
    let mut escaped = false;
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Ok((&inside[..at], &inside[at + 1..])),
            _ => {}
        }
    }
    Err("a quote is not closed")
}

fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (c, false) => out.push(c),
            _ => match chars.next() {
                Some('n') => out.push('\n'),
                Some(c @ ('"' | '\\')) => out.push(c),
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
        }
    }
    Cow::Owned(out)
}

fn name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':')
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(page: &str) -> Vec<Result<Sample<'_>, Malformed>> {
        read(page, Dialect::Text).collect()
    }

    fn one(line: &str) -> Sample<'_> {
        all(line).pop().unwrap().unwrap()
    }

    #[test]
    fn a_page_as_programs_write_it() {
        let page = "# HELP loss Training \\n loss\n# TYPE loss gauge\nloss 2.5\n\n# TYPE steps counter\nsteps_total{rank=\"0\"} 12 1795227416980\r\n\
                    # TYPE d histogram\nd_bucket{le=\"+Inf\"} 3\nd_sum 1.5\nd_count 3\nother NaN\n  spaced{ a = \"x\" , b=\"y\", }   1e3  \n";
        let samples: Vec<_> = all(page).into_iter().map(|s| s.unwrap()).collect();
        let seen: Vec<_> = samples.iter().map(|s| (s.name.as_ref(), s.kind)).collect();
        assert_eq!(
            seen,
            [
                ("loss", MetricType::Gauge),
                ("steps_total", MetricType::Counter),
                ("d_bucket", MetricType::Histogram),
                ("d_sum", MetricType::Histogram),
                ("d_count", MetricType::Histogram),
                ("other", MetricType::Unknown),
                ("spaced", MetricType::Unknown),
            ]
        );
        assert_eq!((samples[1].value, samples[1].time), (12.0, Some(1_795_227_416.98)));
        assert_eq!(samples[1].labels.get("rank").as_deref(), Some("0"));
        assert!(samples[5].value.is_nan() && samples[5].labels.is_empty());
        assert_eq!(samples[6].labels.iter().count(), 2);
    }

    #[test]
    fn openmetrics_has_seconds_exemplars_and_an_end() {
        let page = "# TYPE a counter\na_total 17 1795227416.5 # {trace=\"x\"} 1.0 2.0\na_total 18 # {trace=\"y\"} 1\n# EOF\nlate 1\n";
        let samples: Vec<_> = read(page, Dialect::OpenMetrics).map(|s| s.unwrap()).collect();
        assert_eq!(samples.len(), 2);
        assert_eq!((samples[0].time, samples[1].time), (Some(1_795_227_416.5), None));
        assert_eq!(
            Dialect::of_content_type("application/openmetrics-text; version=1.0.0"),
            Dialect::OpenMetrics
        );
        assert_eq!(Dialect::of_content_type("text/plain; version=0.0.4"), Dialect::Text);
    }

    #[test]
    fn escapes_and_quoted_names() {
        let sample = one(r#"m{path="C:\\dir\n\"x\"",odd="a\tb}"} +Inf"#);
        assert_eq!(sample.labels.get("path").unwrap(), "C:\\dir\n\"x\"");
        assert_eq!(sample.labels.get("odd").unwrap(), "a\\tb}");
        assert_eq!(sample.value, f64::INFINITY);
        let sample = one(r#"{"megatron.training.loss","run.id"="a b"} 2"#);
        assert_eq!(sample.name, "megatron.training.loss");
        assert_eq!(sample.labels.get("run.id").unwrap(), "a b");
    }

    #[test]
    fn a_bad_line_costs_itself() {
        for (line, why) in [
            ("loss", "a value was expected after the name"),
            ("loss x", "the value is not a number"),
            ("loss 1 y", "the time is not a number"),
            ("loss 1 NaN", "the time is not a number"),
            ("loss{a} 1", "a label has no value"),
            ("loss{a=\"x\" 1", "a comma was expected between labels"),
            ("loss{a=\"x 1", "a quote is not closed"),
            ("loss{a=\"x\"", "the labels do not end"),
            ("{a=\"x\"} 1", "a name was expected"),
            ("{\"a\",\"b\"} 1", "a second name"),
            ("é 1", "a name was expected"),
        ] {
            let page = format!("good 1\n{line}\ngood 2\n");
            let read = all(&page);
            assert_eq!(read[1], Err(Malformed { line: 2, why }), "{line}");
            assert!(read[0].is_ok() && read[2].is_ok(), "{line}");
        }
        let many: Vec<_> = (0..=MAX_LABELS).map(|i| format!("l{i}=\"\"")).collect();
        assert_eq!(all(&format!("m{{{}}} 1", many.join(",")))[0].clone().unwrap_err().why, "too many labels");
    }

    #[test]
    fn our_own_page_reads_back() {
        use prometheus_client::registry::Registry;
        let mut registry = Registry::default();
        let gauge = prometheus_client::metrics::gauge::Gauge::<i64>::default();
        gauge.set(7);
        registry.register("seven", "Help", gauge);
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        let back: Vec<_> = read(&page, Dialect::OpenMetrics).map(|s| s.unwrap()).collect();
        assert_eq!((back.len(), back[0].value, back[0].kind), (1, 7.0, MetricType::Gauge));
    }

    proptest! {
        #[test]
        fn never_panics(page in "(?s).{0,200}") {
            for sample in read(&page, Dialect::Text).flatten() {
                prop_assert!(sample.labels.iter().count() <= MAX_LABELS);
            }
        }

        #[test]
        fn damage_costs_at_most_the_lines_it_touches(at in 0usize..400, byte in 0u8..128) {
            let line = "train_loss{run=\"a\\\\b\",rank=\"0\"} 2.5 1795227416980\n";
            let mut page = line.repeat(8).into_bytes();
            let at = at % page.len();
            page[at] = byte;
            let page = String::from_utf8(page).unwrap();
            let good = read(&page, Dialect::Text).flatten().filter(|s| s.value == 2.5).count();
            prop_assert!(good >= 6, "{page}");
        }

        #[test]
        fn what_is_written_reads_back(
            name in "[a-z_:][a-z0-9_:]{0,12}",
            labels in prop::collection::vec(("[a-z_][a-z0-9_]{0,8}", "\\PC{0,12}|[\"\\\\\n]{0,4}"), 0..5),
            value: f64,
        ) {
            let escape = |v: &str| v.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let pairs: Vec<_> = labels.iter().map(|(n, v)| format!("{n}=\"{}\"", escape(v))).collect();
            let line = format!("{name}{{{}}} {value}\n", pairs.join(","));
            let read = read(&line, Dialect::Text).next().unwrap().unwrap();
            prop_assert_eq!(&read.name, &name);
            prop_assert!(read.value == value || value.is_nan() && read.value.is_nan());
            let back: Vec<_> = read.labels.iter().map(|(n, v)| (n.into_owned(), v.into_owned())).collect();
            prop_assert_eq!(back, labels);
        }
    }
}
