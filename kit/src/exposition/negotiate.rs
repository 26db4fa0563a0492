//! Content negotiation by `Accept` and `Accept-Encoding` (RFC 9110 section 12.5) for metrics pages.

/// The two text formats of the metrics page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text004,
    OpenMetrics,
}

impl Format {
    pub(super) const COUNT: usize = 2;
}

/// A format, compressed or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    pub(super) format: Format,
    pub(super) gzip: bool,
}

impl Form {
    /// All forms, in the order of their indices.
    pub const ALL: [Self; 2 * Format::COUNT] = [
        Self { format: Format::Text004, gzip: false },
        Self { format: Format::Text004, gzip: true },
        Self { format: Format::OpenMetrics, gzip: false },
        Self { format: Format::OpenMetrics, gzip: true },
    ];

    /// The index of the form in [`Self::ALL`].
    pub fn index(self) -> usize {
        self.format as usize * 2 + usize::from(self.gzip)
    }
}

/// One element of an `Accept` list: a lower-cased media range or coding, its version parameter and
/// its weight.
struct Element<'a> {
    name: String,
    version: Option<&'a str>,
    weight: f32,
}

/// Text 0.0.4, unless OpenMetrics 1.0.0 is named and has at least the same weight. So a browser,
/// `curl` and every client without a preference gets the format that every tool can parse.
pub(super) fn format<'a>(accept: impl Iterator<Item = &'a str>) -> Format {
    let (mut openmetrics, mut text) = (0.0_f32, Specific::default());
    for element in elements(accept) {
        match (element.name.as_str(), element.version) {
            ("application/openmetrics-text", None | Some("1.0.0")) => {
                openmetrics = openmetrics.max(element.weight)
            }
            ("text/plain", None | Some("0.0.4")) => text.offer(3, element.weight),
            ("text/*", _) => text.offer(2, element.weight),
            ("*/*", _) => text.offer(1, element.weight),
            _ => {}
        }
    }
    if openmetrics > 0.0 && openmetrics >= text.weight { Format::OpenMetrics } else { Format::Text004 }
}

/// Whether gzip is named, or covered by `*`, with a weight above zero.
pub(super) fn accepts_gzip<'a>(accept_encoding: impl Iterator<Item = &'a str>) -> bool {
    let mut gzip = Specific::default();
    for element in elements(accept_encoding) {
        match element.name.as_str() {
            "gzip" | "x-gzip" => gzip.offer(2, element.weight),
            "*" => gzip.offer(1, element.weight),
            _ => {}
        }
    }
    gzip.weight > 0.0
}

/// The weight of the most specific range that matched; the largest if several are equally specific.
#[derive(Default)]
struct Specific {
    rank: u8,
    weight: f32,
}

impl Specific {
    fn offer(&mut self, rank: u8, weight: f32) {
        if rank > self.rank {
            *self = Self { rank, weight };
        } else if rank == self.rank {
            self.weight = self.weight.max(weight);
        }
    }
}

fn elements<'a>(values: impl Iterator<Item = &'a str>) -> impl Iterator<Item = Element<'a>> {
    values.flat_map(|value| value.split(',')).map(|element| {
        let mut parts = element.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut version, mut weight) = (None, 1.0);
        for (key, value) in parts.filter_map(|parameter| parameter.split_once('=')) {
            match key.trim().to_ascii_lowercase().as_str() {
                "version" => version = Some(value.trim().trim_matches('"')),
                // An invalid weight counts as 0.
                "q" => weight = value.trim().parse().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0),
                _ => {}
            }
        }
        Element { name, version, weight }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms_are_numbered() {
        assert!(Form::ALL.iter().enumerate().all(|(i, form)| form.index() == i));
    }

    #[test]
    fn the_format_table() {
        use Format::{OpenMetrics, Text004};
        let prometheus_2_42 = "application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let prometheus_2_10 =
            "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let protobuf_first = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
            encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for (accept, want) in [
            ("", Text004),
            ("*/*", Text004),
            ("application/*", Text004),
            (prometheus_2_42, OpenMetrics),
            (prometheus_3, OpenMetrics),
            (prometheus_2_10, Text004),
            (protobuf_first, OpenMetrics),
            (browser, Text004),
            ("application/openmetrics-text", OpenMetrics),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8", OpenMetrics),
            ("application/openmetrics-text;q=0", Text004),
            ("application/openmetrics-text;q=0.5,text/plain", Text004),
            ("application/openmetrics-text,text/plain", OpenMetrics),
            ("application/openmetrics-text;version=2.0.0", Text004),
            ("application/openmetrics-text;q=0.5,text/plain;q=0,*/*", OpenMetrics),
            ("application/openmetrics-text;q=many", Text004),
            ("application/openmetrics-text;q=NaN", Text004),
        ] {
            assert_eq!(format([accept].into_iter()), want, "{accept}");
        }
        assert_eq!(format(std::iter::empty()), Text004);
        assert_eq!(format(["text/plain;q=0.1", "application/openmetrics-text"].into_iter()), OpenMetrics);
    }

    #[test]
    fn the_encoding_table() {
        for (accept, want) in [
            ("", false),
            ("identity", false),
            ("gzip", true),
            ("GZip;q=0.1", true),
            ("gzip;q=0", false),
            ("gzip;q=0, *", false),
            ("*", true),
            ("br, *;q=0", false),
            ("deflate, br", false),
        ] {
            assert_eq!(accepts_gzip([accept].into_iter()), want, "{accept}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(header in "[ -~]{0,80}") {
            let _ = format([header.as_str()].into_iter());
            let _ = accepts_gzip([header.as_str()].into_iter());
        }
    }
}
