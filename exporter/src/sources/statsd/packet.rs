//! Parses one line of statsd, with DogStatsD's extensions:
//! `name:value[:value…]|type[|@rate][|#tag:value,…]`.

/// The most values of one line.
const MAX_VALUES: usize = 1024;
/// The most bytes of the name of a metric.
const MAX_NAME: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatsdType {
    Counter,
    Gauge,
    /// In milliseconds.
    Timer,
    /// A histogram or distribution.
    Histogram,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    pub(super) kind: StatsdType,
    /// The last value of the line; the next fields are the number and the sum of all values.
    pub(super) last: f64,
    pub(super) count: f64,
    pub(super) sum: f64,
    /// Whether the last value has a sign, and so changes a gauge instead of setting it.
    pub(super) relative: bool,
    /// The sample rate: the share of events that were sent.
    pub(super) rate: f64,
    tags: &'a str,
}

/// Whether a line is of an ignored type: sets, events and service checks.
pub(super) fn is_foreign(line: &str) -> bool {
    line.starts_with("_e{") || line.starts_with("_sc|") || line.split('|').nth(1) == Some("s")
}

impl<'a> Line<'a> {
    pub(super) fn read(line: &'a str) -> Option<Self> {
        let mut parts = line.split('|');
        let (name, values) = parts.next()?.split_once(':')?;
        let kind = match parts.next()? {
            "c" => StatsdType::Counter,
            "g" => StatsdType::Gauge,
            "ms" => StatsdType::Timer,
            "h" | "d" => StatsdType::Histogram,
            _ => return None,
        };
        if name.is_empty() || name.len() > MAX_NAME {
            return None;
        }
        let mut read =
            Self { name, kind, last: 0.0, count: 0.0, sum: 0.0, relative: false, rate: 1.0, tags: "" };
        for value in values.split(':').take(MAX_VALUES) {
            read.last = stepwatch_wire::num::parse(value)?;
            read.count += 1.0;
            read.sum += read.last;
            // In statsd, a gauge below zero can only be set by setting it to zero first.
            read.relative =
                kind == StatsdType::Gauge && value.starts_with(['+', '-']) && read.last.is_finite();
        }
        for part in parts {
            if let Some(rate) = part.strip_prefix('@') {
                read.rate = rate.parse().ok().filter(|r| (0.0..=1.0).contains(r) && *r > 0.0)?;
            } else if let Some(tags) = part.strip_prefix('#') {
                read.tags = tags;
            }
            // Container ids, times and future extensions are ignored.
        }
        Some(read)
    }

    /// The value of a tag.
    pub(super) fn tag(&self, name: &str) -> Option<&'a str> {
        let mut tags = self.tags.split(',').filter_map(|tag| tag.split_once(':'));
        tags.find(|(n, _)| *n == name).map(|(_, v)| v.trim()).filter(|v| !v.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let read = |line| Line::read(line).unwrap();
        let gauge = read("loss:2.5|g|#run:a,rank:3,step:17");
        assert_eq!(
            (gauge.name, gauge.kind, gauge.last, gauge.relative),
            ("loss", StatsdType::Gauge, 2.5, false)
        );
        assert_eq!(
            (gauge.tag("run"), gauge.tag("rank"), gauge.tag("ran"), gauge.tag("x")),
            (Some("a"), Some("3"), None, None)
        );
        let counter = read("tokens:4096|c|@0.5");
        assert_eq!((counter.sum, counter.rate), (4096.0, 0.5));
        let timer = read("step_time:100:200:300|ms|c:container|T1656581400");
        assert_eq!((timer.kind, timer.count, timer.sum), (StatsdType::Timer, 3.0, 600.0));
        assert!(read("x:+4|g").relative && read("x:-4|g").relative);
        assert!(read("loss:nan|g").last.is_nan() && !read("loss:-inf|g").relative);
        for bad in [
            "",
            "loss",
            "loss:1",
            "loss:|g",
            ":1|g",
            "loss:1|q",
            "loss:x|g",
            "loss:1|g|@0",
            "loss:1|c|@2",
            "loss:1:|g",
        ] {
            assert_eq!(Line::read(bad), None, "{bad}");
        }
        assert!(is_foreign("users:7|s") && is_foreign("_e{5,4}:title|text") && is_foreign("_sc|name|0"));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(line in "\\PC{0,60}", like in "[a-z]{0,3}:[0-9.+:e-]{0,8}\\|(c|g|ms|h|s)?(\\|@[0-9.]{0,4})?(\\|#[a-z:,]{0,12})?") {
            for line in [&line, &like] {
                if let Some(read) = Line::read(line) {
                    let _ = (read.tag("run"), read.tag(""));
                    proptest::prop_assert!(read.rate > 0.0 && read.count >= 1.0);
                }
                let _ = is_foreign(line);
            }
        }
    }
}
