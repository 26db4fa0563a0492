//! Converts OpenMetrics 1.0 to Prometheus text 0.0.4, for scrapers that do not support OpenMetrics.
//!
//! In text 0.0.4 the name of a counter family ends in `_total`. The format has no `info`,
//! `unknown`, `# UNIT`, `# EOF`, exemplars or `_created`, has timestamps in milliseconds, and does
//! not escape quotes in help. A line that is not OpenMetrics is dropped, because one invalid line
//! would fail the whole scrape.

use std::borrow::Cow;

/// Converts a whole OpenMetrics page.
pub fn to_text_004(openmetrics: &str) -> String {
    let mut out =
        Page { text: String::with_capacity(openmetrics.len()), family: Family::default(), help: None };
    for line in openmetrics.lines() {
        match line.strip_prefix('#') {
            Some(rest) if rest.trim() == "EOF" => break,
            Some(rest) => out.metadata(rest),
            None => out.sample(line),
        }
    }
    out.flush_help();
    out.text
}

struct Page<'a> {
    text: String,
    family: Family<'a>,
    /// Name and text of a help line before the type line, which decides the family's name.
    help: Option<(&'a str, &'a str)>,
}

#[derive(Default, Clone, Copy)]
struct Family<'a> {
    name: &'a str,
    kind: DeclaredType,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum DeclaredType {
    Counter,
    Gauge,
    Histogram,
    Summary,
    Info,
    #[default]
    Untyped,
}

impl<'a> Page<'a> {
    fn metadata(&mut self, rest: &'a str) {
        let mut words = rest.trim_start().splitn(3, ' ');
        let (Some(keyword), Some(name)) = (words.next(), words.next()) else { return };
        let text = words.next().unwrap_or_default();
        match keyword {
            "HELP" if self.family.name == name => self.write_help(name, text),
            "HELP" => {
                self.flush_help();
                self.help = Some((name, text));
            }
            "TYPE" => self.start_family(Family { name, kind: DeclaredType::parse(text) }),
            _ => {}
        }
    }

    fn start_family(&mut self, family: Family<'a>) {
        if self.help.is_some_and(|(name, _)| name != family.name) {
            self.flush_help();
        }
        self.family = family;
        self.flush_help();
        self.push(&["# TYPE ", family.name, family.kind.suffix(), " ", family.kind.name_004(), "\n"]);
    }

    fn flush_help(&mut self) {
        if let Some((name, text)) = self.help.take() {
            self.write_help(name, text);
        }
    }

    fn write_help(&mut self, name: &str, text: &str) {
        let suffix = if self.family.name == name { self.family.kind.suffix() } else { "" };
        self.push(&["# HELP ", name, suffix, " ", &text.replace("\\\"", "\""), "\n"]);
    }

    fn sample(&mut self, line: &str) {
        self.flush_help();
        let Some(sample) = Sample::parse(line) else { return };
        if self.family.kind.has_created() && sample.name().strip_suffix("_created") == Some(self.family.name)
        {
            return;
        }
        let Some(timestamp) = sample.timestamp_ms() else { return };
        self.push(&[sample.series, " ", sample.value, &timestamp, "\n"]);
    }

    fn push(&mut self, parts: &[&str]) {
        for part in parts {
            self.text.push_str(part);
        }
    }
}

impl DeclaredType {
    fn parse(text: &str) -> Self {
        match text.trim() {
            "counter" => Self::Counter,
            "gauge" | "stateset" => Self::Gauge,
            "histogram" => Self::Histogram,
            "summary" => Self::Summary,
            "info" => Self::Info,
            _ => Self::Untyped,
        }
    }

    fn name_004(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge | Self::Info => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
            Self::Untyped => "untyped",
        }
    }

    /// The suffix that the samples of a family add to its OpenMetrics name.
    fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            _ => "",
        }
    }

    fn has_created(self) -> bool {
        matches!(self, Self::Counter | Self::Histogram | Self::Summary)
    }
}

/// One line: `name{labels} value [timestamp] [# exemplar]`.
struct Sample<'a> {
    /// The name and the labels.
    series: &'a str,
    value: &'a str,
    timestamp: Option<&'a str>,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (series, rest) = line.split_at(series_len(line)?);
        let rest = rest.strip_prefix(' ')?;
        // An exemplar follows " # "; neither a value nor a timestamp contains one.
        let rest = rest.split_once(" # ").map_or(rest, |(before, _)| before);
        let mut words = rest.split_ascii_whitespace();
        let value = words.next().filter(|value| value.parse::<f64>().is_ok())?;
        let timestamp = words.next();
        words.next().is_none().then_some(Self { series, value, timestamp })
    }

    fn name(&self) -> &'a str {
        self.series.split('{').next().unwrap_or_default()
    }

    /// The timestamp with a blank before it: OpenMetrics has seconds, text 0.0.4 whole
    /// milliseconds.
    fn timestamp_ms(&self) -> Option<Cow<'static, str>> {
        let Some(seconds) = self.timestamp else { return Some("".into()) };
        let ms = seconds.parse::<f64>().ok().filter(|s| s.is_finite())? * 1000.0;
        Some(format!(" {}", ms.round() as i64).into())
    }
}

/// The length of `name{labels}` in bytes. Label values are quoted and may contain anything, escaped
/// quotes included.
fn series_len(line: &str) -> Option<usize> {
    let name_end = line.find(['{', ' '])?;
    if name_end == 0 {
        return None;
    }
    if line.as_bytes()[name_end] == b' ' {
        return Some(name_end);
    }
    let (mut quoted, mut escaped) = (false, false);
    for (i, byte) in line.bytes().enumerate().skip(name_end) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(i + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::exemplar::CounterWithExemplar;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::metrics::info::Info;
    use prometheus_client::registry::{Registry, Unit};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_our_own_encoder_writes() {
        let mut registry = Registry::default();
        let steps = CounterWithExemplar::<Vec<(String, String)>>::default();
        steps.inc_by(7, Some(vec![("trace".into(), "a # b".into())]), None);
        registry.register("train_steps", "Steps seen", steps);
        registry.register("dropped_events", "Events dropped", Counter::<u64>::default());
        registry.register_with_unit("train_lag", "Lag", Unit::Seconds, Gauge::<i64>::default());
        let histogram = Histogram::new([0.5]);
        histogram.observe(0.25);
        registry.register("step_duration_seconds", "Step time", histogram);
        registry.register("build", "The build", Info::new([("version", "1")]));
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        insta::assert_snapshot!(to_text_004(&page));
    }

    #[test]
    fn what_the_standard_allows_beyond_it() {
        let page = r##"# TYPE a counter
# HELP a Say \"hello\" \\ \n twice
# UNIT a seconds
a_total{path="/x y} # \"q\"",b="\\"} 17.5 1520879607.789 # {id="k # j"} 0.67 1.5
a_created{path="/x"} 1520430000.123
# TYPE b unknown
b 1 -1.5
# HELP lonely Help without a type
lonely +Inf
# TYPE job_created gauge
job_created 5
# TYPE s stateset
s{s="on"} 1
# TYPE h gaugehistogram
h_bucket{le="+Inf"} 4
h_gcount 4
# TYPE q summary
q{quantile="0.5"} NaN
q_created 3
broken{a="b 1
noval
 2
x 1 2 3
# EOF
after 1
"##;
        insta::assert_snapshot!(to_text_004(page));
    }

    #[test]
    fn an_empty_page_stays_empty() {
        assert_eq!(to_text_004("# EOF\n"), "");
        assert_eq!(to_text_004(""), "");
    }

    proptest! {
        #[test]
        fn never_panics(page in "(# (HELP|TYPE|UNIT|EOF) ?|[a-c_]{1,3}|\\{|\\}|\"|\\\\|=|,| |#|[0-9.e]|\n|\\PC){0,60}") {
            let _ = to_text_004(&page);
        }

        #[test]
        fn a_mutated_page_never_panics(at in 0usize..200, byte in any::<u8>()) {
            let mut page = b"# HELP a b\n# TYPE a counter\na_total{x=\"y\\\"\"} 1 2 # {z=\"w\"} 3 4\n# EOF\n".to_vec();
            let at = at % page.len();
            page[at] = byte;
            let _ = to_text_004(&String::from_utf8_lossy(&page));
        }

        #[test]
        fn labels_survive_as_they_are(value in "[^\n\"\\\\]{0,20}") {
            let line = format!("a{{x=\"{value}\",y=\"\\\"\"}} 1");
            prop_assert_eq!(to_text_004(&format!("{line}\n# EOF\n")), line + "\n");
        }
    }
}
