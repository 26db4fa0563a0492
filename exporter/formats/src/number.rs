//! Numbers inside text: how frameworks print them, and how finely.

use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

/// A number at the start of a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Number<'a> {
    pub(crate) value: f64,
    /// The step between two neighbouring values in this notation; `None` of NaN and the infinities.
    pub(crate) quantum: Option<f64>,
    /// What follows it: the unit, a bracket, the next word.
    pub(crate) rest: &'a str,
}

/// Reads the number that `text` starts with: a sign, digits with or without thousands separators, a
/// fraction, an exponent; or a word for not-a-number or infinity. Stops before units
/// (`120.3TFLOPS`, `38.56%`).
pub(crate) fn lex(text: &str) -> Option<Number<'_>> {
    let t = text.trim_start();
    let b = t.as_bytes();
    let sign = usize::from(matches!(b.first(), Some(b'-' | b'+')));
    if let Some(len) = word(&b[sign..]) {
        let value = stepwatch_wire::num::parse(&t[..sign + len])?;
        let rest = &t[sign + len..];
        return Some(Number { value, quantum: None, rest: &rest[padding(rest.as_bytes())..] });
    }
    let whole = integer_part(&b[sign..]);
    let mut at = sign + whole;
    let mut decimals = 0;
    if b.get(at) == Some(&b'.') {
        decimals = digits(&b[at + 1..]);
        at += 1 + decimals;
    }
    if whole + decimals == 0 {
        return None;
    }
    let mut exponent = 0i32;
    if matches!(b.get(at), Some(b'e' | b'E')) {
        let signed = usize::from(matches!(b.get(at + 1), Some(b'-' | b'+')));
        let len = digits(&b[at + 1 + signed..]);
        if len > 0 {
            let end = at + 1 + signed + len;
            exponent = t[at + 1..end].parse().unwrap_or(i32::MAX);
            at = end;
        }
    }
    if let Some((value, len)) = t.get(at..).and_then(microsoft) {
        let value = if t.starts_with('-') { -value } else { value };
        return Some(Number { value, quantum: None, rest: &t[at + len..] });
    }
    let printed = &t[..at];
    let value = if printed.contains(',') {
        stepwatch_wire::num::parse(&printed.replace(',', ""))?
    } else {
        stepwatch_wire::num::parse(printed)?
    };
    let power = exponent.saturating_sub(i32::try_from(decimals).unwrap_or(i32::MAX));
    let quantum = Some(10f64.powi(power)).filter(|q| q.is_normal());
    Some(Number { value, quantum, rest: &t[at..] })
}

/// A number with a decimal suffix for people behind it: `5.39M`, `14K`, `2.34`.
pub(crate) fn human(text: &str) -> Option<Number<'_>> {
    let n = lex(text)?;
    let mut rest = n.rest.chars();
    let scale = match rest.next() {
        Some('K') => 1e3,
        Some('M') => 1e6,
        Some('B' | 'G') => 1e9,
        Some('T') => 1e12,
        Some('P') => 1e15,
        Some('E') => 1e18,
        _ => return Some(n),
    };
    if rest.clone().next().is_some_and(char::is_alphanumeric) {
        return Some(n);
    }
    Some(Number { value: n.value * scale, quantum: n.quantum.map(|q| q * scale), rest: rest.as_str() })
}

/// As `str::find`, which prepares for needles and haystacks far longer than a marker and a line:
/// that took longer than the search.
pub(crate) fn find(text: &str, marker: &str) -> Option<usize> {
    let (last, head) = marker.as_bytes().split_last()?;
    let mut ends = memchr::memchr_iter(*last, text.as_bytes());
    let at = |end| text.as_bytes()[..end].strip_suffix(head).map(<[u8]>::len);
    ends.find_map(at)
}

pub(crate) fn split_once<'a>(text: &'a str, marker: &str) -> Option<(&'a str, &'a str)> {
    let at = find(text, marker)?;
    Some((&text[..at], &text[at + marker.len()..]))
}

/// The quantum of a value that was printed with so many significant digits, whether or not its
/// trailing zeros were.
pub(crate) fn quantum_of_digits(value: f64, digits: i32) -> Option<f64> {
    if !value.is_finite() || value == 0.0 {
        return None;
    }
    let exponent: i32 = format!("{value:e}").split_once('e')?.1.parse().ok()?;
    Some(10f64.powi(exponent + 1 - digits)).filter(|q| q.is_normal())
}

/// The largest step there may be: what a JSON number carries exactly. Sums and differences of two
/// never overflow.
const MAX_INTEGER: i64 = 1 << 53;

/// A whole number at the start of `text`, and what follows it.
pub(crate) fn integer(text: &str) -> Option<(i64, &str)> {
    let t = text.trim_start();
    let sign = usize::from(t.starts_with('-'));
    let len = digits(&t.as_bytes()[sign..]);
    let n = t[..sign + len].parse().ok().filter(|n: &i64| n.unsigned_abs() <= MAX_INTEGER.unsigned_abs())?;
    Some((n, &t[sign + len..]))
}

/// A float as a step, if it is one.
pub(crate) fn whole(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && value.abs() <= MAX_INTEGER as f64).then_some(value as i64)
}

/// What `text` starts with before its number, cut off: `after("loss: 2.5", "loss:")` is `" 2.5"`.
/// The marker must begin a word, so that `loss:` does not find `val_loss:`.
pub(crate) fn after<'a>(text: &'a str, marker: &str) -> Option<&'a str> {
    let mut from = 0;
    while let Some(at) = find(text.get(from..)?, marker) {
        let at = from + at;
        let inside = text[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || "_-/".contains(c));
        if !inside {
            return Some(&text[at + marker.len()..]);
        }
        from = at + marker.len();
    }
    None
}

/// The quantum of a value that was printed without trailing zeros.
pub(crate) fn quantum_of(value: f64) -> Option<f64> {
    if !value.is_finite() {
        return None;
    }
    lex(&format!("{value}"))?.quantum
}

fn digits(b: &[u8]) -> usize {
    b.iter().take_while(|c| c.is_ascii_digit()).count()
}

/// Length of the digits before the point; a comma belongs to them only as a thousands separator,
/// which no group of zeros leads.
fn integer_part(b: &[u8]) -> usize {
    let mut len = digits(b);
    if (1..=3).contains(&len) && b.first() != Some(&b'0') {
        while b.get(len) == Some(&b',') && digits(&b[len + 1..]) == 3 {
            len += 4;
        }
    }
    len
}

/// What follows the `1.` of a number that is none, as the C library of Microsoft prints it, and its
/// length.
fn microsoft(rest: &str) -> Option<(f64, usize)> {
    let words = [("#QNAN", f64::NAN), ("#SNAN", f64::NAN), ("#IND", f64::NAN), ("#INF", f64::INFINITY)];
    let (word, value) = words.into_iter().find(|(word, _)| rest.starts_with(word))?;
    let padding = digits(&rest.as_bytes()[word.len()..]);
    Some((value, word.len() + padding))
}

/// Length of a word for a number that is none.
fn word(b: &[u8]) -> Option<usize> {
    let len = b.iter().take_while(|c| c.is_ascii_alphabetic()).count();
    let is = |w: &[u8]| b[..len].eq_ignore_ascii_case(w);
    (is(b"nan") || is(b"inf") || is(b"infinity")).then_some(len)
}

/// Length of the `.0` that Lightning's bar fills `nan` and `inf` up with, as every other number.
fn padding(rest: &[u8]) -> usize {
    let Some((b'.', rest)) = rest.split_first() else { return 0 };
    let zeros = rest.iter().take_while(|c| **c == b'0').count();
    if zeros == 0 || rest.get(zeros).is_some_and(u8::is_ascii_alphanumeric) { 0 } else { 1 + zeros }
}

/// How finely each metric is printed: below this step, detectors see noise of the printer and not
/// of the training.
///
/// Frameworks that drop trailing zeros sometimes look coarser than they are, and a number of four
/// significant digits gets finer as it falls: it is the finest step seen in the last one to two
/// `WINDOW`s of values.
#[derive(Debug, Clone, Default)]
pub struct Resolution(Vec<Metric>);

/// Values after which an old resolution starts to be forgotten.
const WINDOW: u32 = 64;
/// A step between two printed values smaller than this share of them is no one's noise.
const COARSE: f64 = 1e-6;
/// Metrics whose resolution is kept.
const MAX_METRICS: usize = 64;

#[derive(Debug, Clone)]
struct Metric {
    name: String,
    finest: f64,
    before: f64,
    seen: u32,
}

impl Resolution {
    pub(crate) fn saw(&mut self, name: &str, quantum: f64) {
        if let Some(m) = self.0.iter_mut().find(|m| m.name == name) {
            if m.seen >= WINDOW {
                (m.before, m.finest, m.seen) = (m.finest, f64::INFINITY, 0);
            }
            m.finest = m.finest.min(quantum);
            m.seen += 1;
        } else if self.0.len() < MAX_METRICS {
            self.0.push(Metric { name: name.to_owned(), finest: quantum, before: f64::INFINITY, seen: 1 });
        }
    }

    /// Reads a number out of a cell of a table, and how finely it is written.
    pub fn read(&mut self, name: &str, text: &str) -> Option<f64> {
        let n = lex(text).filter(|n| n.rest.trim().is_empty())?;
        if let Some(quantum) = n.quantum {
            self.saw(name, quantum);
        }
        Some(n.value)
    }

    /// Writes into an event how finely its values are printed, of the metrics that are judged and
    /// where it is coarse enough to matter.
    pub fn put_on(&self, event: &mut Event) {
        for m in &self.0 {
            let Some(value) = event.m.get(&m.name).filter(|v| v.is_finite()) else { continue };
            let quantum = m.finest.min(m.before);
            if metric::ALL.contains(&m.name.as_str()) && quantum > COARSE * value.abs() {
                event.q.set(&m.name, quantum);
            }
        }
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(n, _)| *n == name).map(|(_, q)| q)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|m| (m.name.as_str(), m.finest.min(m.before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_frameworks_print_them() {
        for (text, value, quantum, rest) in [
            ("2.198845E+00 ", 2.198845, 1e-6, " "),
            ("  0.242", 0.242, 1e-3, ""),
            ("120.3TFLOPS", 120.3, 0.1, "TFLOPS"),
            ("38.56%", 38.56, 0.01, "%"),
            ("4,376  tflops", 4376.0, 1.0, "  tflops"),
            ("1,271,000 |", 1271000.0, 1.0, " |"),
            ("1,5", 1.0, 1.0, ",5"),
            ("496.3 (avg 496.1)", 496.3, 0.1, " (avg 496.1)"),
            ("6e-07,", 6e-7, 1e-7, ","),
            ("-2.056", -2.056, 1e-3, ""),
            ("4.21s", 4.21, 0.01, "s"),
            ("3em", 3.0, 1.0, "em"),
            ("12.", 12.0, 1.0, ""),
            (".5", 0.5, 0.1, ""),
            ("0,001", 0.0, 1.0, ",001"),
        ] {
            let n = lex(text).unwrap();
            assert_eq!((n.value, n.rest), (value, rest), "{text}");
            assert!((n.quantum.unwrap() / quantum - 1.0).abs() < 1e-9, "{text}");
        }
        assert!(lex("NAN |").unwrap().value.is_nan());
        assert_eq!(lex("-INF").unwrap().value, f64::NEG_INFINITY);
        for (text, rest) in [("1.#QNAN |", " |"), ("-1.#IND00", ""), ("1.#QNAN0e+000", "e+000")] {
            let n = lex(text).unwrap();
            assert!(n.value.is_nan() && n.quantum.is_none() && n.rest == rest, "{text}");
        }
        for (text, rest) in [("nan.0, lr", ", lr"), ("nan.00", ""), ("nan.", "."), ("nan.0b", ".0b")] {
            let n = lex(text).unwrap();
            assert!(n.value.is_nan() && n.rest == rest, "{text}");
        }
        assert_eq!(lex("-inf.0").unwrap().value, f64::NEG_INFINITY);
        assert_eq!(lex("-1.#INF00").unwrap().value, f64::NEG_INFINITY);
        for text in ["", "-", "N/A", "nano", "infinite", ".", "e5", "None", "é"] {
            assert_eq!(lex(text), None, "{text}");
        }
        assert_eq!(lex("1e99999").unwrap().quantum, None);
    }

    #[test]
    fn suffixes_for_people() {
        for (text, value, quantum, rest) in [
            ("5.39M |", 5.39e6, 1e4, " |"),
            ("14K", 14e3, 1e3, ""),
            ("1.2T", 1.2e12, 1e11, ""),
            ("236B", 236e9, 1e9, ""),
            ("2.34", 2.34, 0.01, ""),
            ("48.87GiB", 48.87, 0.01, "GiB"),
            ("-1.5K", -1500.0, 100.0, ""),
        ] {
            let n = human(text).unwrap();
            assert_eq!((n.value, n.rest), (value, rest), "{text}");
            assert!((n.quantum.unwrap() / quantum - 1.0).abs() < 1e-9, "{text}");
        }
        assert!(human("nan").unwrap().value.is_nan() && human("K").is_none());
    }

    #[test]
    fn significant_digits() {
        for (value, digits, want) in
            [(5.39e6, 3, 1e4), (14e3, 3, 100.0), (2.0, 3, 0.01), (1000.0, 3, 10.0), (-0.0002, 3, 1e-6)]
        {
            assert!((quantum_of_digits(value, digits).unwrap() / want - 1.0).abs() < 1e-9, "{value}");
        }
        for value in [0.0, f64::NAN, f64::INFINITY] {
            assert_eq!(quantum_of_digits(value, 3), None);
        }
    }

    #[test]
    fn markers_begin_words() {
        assert_eq!(after("val_loss:1 loss:2", "loss:"), Some("2"));
        assert_eq!(after("train/loss: 1", "loss:"), None);
        assert_eq!(after("x", "loss:"), None);
    }

    #[test]
    fn resolution_follows_the_print() {
        let mut r = Resolution::default();
        for text in ["10.21", "9.871", "9.9"] {
            r.saw("loss", lex(text).unwrap().quantum.unwrap());
        }
        assert_eq!(r.get("loss"), Some(1e-3));
        for _ in 0..3 * WINDOW {
            r.saw("loss", 0.01);
        }
        assert_eq!(r.get("loss"), Some(0.01));
        assert_eq!(r.get("lr"), None);
    }

    #[test]
    fn an_event_keeps_how_finely_it_was_printed() {
        let mut r = Resolution::default();
        for (name, text) in
            [("loss", "2.34"), ("lr", "0.000123456789"), ("mine", "0.5"), ("grad_norm", "1.2")]
        {
            r.read(name, text);
        }
        assert_eq!(r.read("loss", "2.3x"), None);
        let mut e = Event::step("r", 1);
        for (name, v) in [("loss", 2.3), ("lr", 0.000_123_456_789), ("mine", 0.5), ("grad_norm", f64::NAN)] {
            e.m.set(name, v);
        }
        r.put_on(&mut e);
        assert_eq!(e.q.iter().collect::<Vec<_>>(), [("loss", 0.01)], "its zeros may have been dropped");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,40}") {
            let _ = (lex(&text), integer(&text), after(&text, "a:"), human(&text));
        }

        #[test]
        fn finds_what_the_standard_library_finds(text in "[ab:é]{0,12}", marker in "[ab:é]{1,3}") {
            proptest::prop_assert_eq!(find(&text, &marker), text.find(&marker));
            proptest::prop_assert_eq!(split_once(&text, &marker), text.split_once(&*marker));
        }

        #[test]
        fn reads_back_any_number(v: f64) {
            let text = format!("{v:?} x");
            let n = lex(&text).unwrap();
            let _ = quantum_of_digits(v, 3);
            proptest::prop_assert!(n.value == v || (v.is_nan() && n.value.is_nan()), "{}", text);
        }
    }
}
