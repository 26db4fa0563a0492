//! Parses and writes numbers in the forms that trainers use.

/// Parses a number leniently: what Rust's parser accepts, and the spellings of NaN and the
/// infinities that Python, NumPy, PyTorch, C and JSON libraries print, in any case and with
/// surrounding space.
pub fn parse(text: &str) -> Option<f64> {
    let t = text.trim();
    let (sign, body) = match t.as_bytes().first()? {
        b'-' => (-1.0, &t[1..]),
        b'+' => (1.0, &t[1..]),
        _ => (1.0, t),
    };
    if body.eq_ignore_ascii_case("nan") || MICROSOFT_NAN.iter().any(|nan| body.eq_ignore_ascii_case(nan)) {
        return Some(f64::NAN);
    }
    if let Some(word) = body.strip_prefix("1.#") {
        return microsoft(word).map(|v| sign * v);
    }
    if body.eq_ignore_ascii_case("inf") || body.eq_ignore_ascii_case("infinity") {
        return Some(sign * f64::INFINITY);
    }
    // Rust's parser accepts "1e5" and "1.", but never an underscore or a second sign.
    if !body.as_bytes().first().is_some_and(|b| b.is_ascii_digit() || *b == b'.') {
        return None;
    }
    body.parse::<f64>().ok().map(|v| sign * v)
}

/// NaN as Microsoft's C library prints it.
const MICROSOFT_NAN: &[&str] = &["nan(ind)", "nan(snan)"];

/// Parses the text after `1.#` of older Microsoft libraries, which is padded with zeros.
fn microsoft(word: &str) -> Option<f64> {
    match word.trim_end_matches('0') {
        "INF" => Some(f64::INFINITY),
        "QNAN" | "SNAN" | "IND" => Some(f64::NAN),
        _ => None,
    }
}

/// Appends `v` as JSON. Non-finite values become strings, which strict parsers accept and [`parse`]
/// reads.
pub fn write_json(out: &mut String, v: f64) {
    use core::fmt::Write as _;
    if v.is_nan() {
        out.push_str("\"NaN\"");
    } else if v.is_infinite() {
        out.push_str(if v > 0.0 { "\"Infinity\"" } else { "\"-Infinity\"" });
    } else if v == v.trunc() && v.abs() < 1e15 {
        write_integer(out, v as i64);
    } else if !write_short(out, v) {
        // `{:?}` writes the shortest text that parses back to the same bits, with an exponent where
        // that is shorter.
        let _ = write!(out, "{v:?}");
    }
}

/// A buffer for a sign, the digits of any integer, a point and decimal places.
type Digits = [u8; 32];

fn write_integer(out: &mut String, v: i64) {
    let mut digits: Digits = [b'0'; 32];
    let at = put_digits(&mut digits, 32, v.unsigned_abs(), 1);
    push(out, &mut digits, at, 32, v < 0);
}

/// Writes digits before `end`, at least `width` of them. Returns where they begin.
fn put_digits(digits: &mut Digits, end: usize, mut v: u64, width: usize) -> usize {
    let mut at = end;
    while v > 0 || end - at < width {
        at -= 1;
        digits[at] = b'0' + (v % 10) as u8;
        v /= 10;
    }
    at
}

fn push(out: &mut String, digits: &mut Digits, mut at: usize, end: usize, negative: bool) {
    if negative {
        at -= 1;
        digits[at] = b'-';
    }
    out.push_str(core::str::from_utf8(&digits[at..end]).unwrap_or_default());
}

/// Writes `v` with few decimal places, as trainers print numbers, which is faster. Returns false if
/// more places are needed.
///
/// The quotient of two exact integers is rounded once, as a parser of decimal text rounds. So text
/// that divides back to `v` also parses back to it. Doubles of this size are closer together than
/// the last place, so there is no shorter text.
fn write_short(out: &mut String, v: f64) -> bool {
    match v.abs() {
        // Below 1e-4, the shortest text has an exponent.
        1e-4..1e6 => write_places::<4>(out, v) || write_places::<9>(out, v),
        // The range of Unix times.
        1e6..4e9 => write_places::<6>(out, v),
        _ => write_quantum(out, v),
    }
}

/// Writes `v` if this number of decimal places is exact.
fn write_places<const PLACES: u32>(out: &mut String, v: f64) -> bool {
    let (scale, one) = (10f64.powi(PLACES as i32), 10u64.pow(PLACES));
    // Rounded to the nearest; both are positive and less than 2^53.
    let scaled = (v.abs() * scale + 0.5) as i64;
    if scaled as f64 / scale != v.abs() {
        return false;
    }
    let scaled = scaled as u64;
    let mut digits: Digits = [b'0'; 32];
    let mut at = put_digits(&mut digits, 32, scaled % one, PLACES as usize) - 1;
    digits[at] = b'.';
    at = put_digits(&mut digits, at, scaled / one, 1);
    let zeros = digits[at..].iter().rev().take_while(|d| **d == b'0').count();
    push(out, &mut digits, at, 32 - zeros, v < 0.0);
    true
}

/// Writes `v` if it is a power of ten that occurs as the resolution of a printed number.
fn write_quantum(out: &mut String, v: f64) -> bool {
    const QUANTA: [(f64, &str); 6] =
        [(1e-5, "1e-5"), (1e-6, "1e-6"), (1e-7, "1e-7"), (1e-8, "1e-8"), (1e-9, "1e-9"), (1e-10, "1e-10")];
    let known = QUANTA.iter().find(|(quantum, _)| *quantum == v);
    known.is_some_and(|(_, text)| {
        out.push_str(text);
        true
    })
}

/// For `#[serde(with = "stepwatch_wire::num::any")]`: keeps every `f64` in a text format. JSON has
/// no NaN and infinities, and serde_json writes `null`, which does not parse back.
pub mod any {
    use serde::de::{Error, Visitor};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(v: &f64, s: S) -> Result<S::Ok, S::Error> {
        if v.is_finite() || !s.is_human_readable() {
            return s.serialize_f64(*v);
        }
        let mut quoted = String::new();
        super::write_json(&mut quoted, *v);
        s.serialize_str(quoted.trim_matches('"'))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        if d.is_human_readable() { d.deserialize_any(Number) } else { f64::deserialize(d) }
    }

    struct Number;

    impl Visitor<'_> for Number {
        type Value = f64;

        fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            f.write_str("a number, or \"NaN\", \"Infinity\" or \"-Infinity\"")
        }

        fn visit_f64<E: Error>(self, v: f64) -> Result<f64, E> {
            Ok(v)
        }

        fn visit_i64<E: Error>(self, v: i64) -> Result<f64, E> {
            Ok(v as f64)
        }

        fn visit_u64<E: Error>(self, v: u64) -> Result<f64, E> {
            Ok(v as f64)
        }

        fn visit_str<E: Error>(self, v: &str) -> Result<f64, E> {
            super::parse(v).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(v), &self))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_json() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct V(#[serde(with = "any")] f64);
        for v in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.5, 3.0, 1e300] {
            let text = serde_json::to_string(&V(v)).unwrap();
            let V(back) = serde_json::from_str(&text).unwrap();
            assert!(back == v || back.is_nan() && v.is_nan(), "{text}");
        }
        assert!(serde_json::from_str::<V>("null").is_err());
    }

    #[test]
    fn reads_what_python_writes() {
        for (text, want) in [("1.5", 1.5), ("-2", -2.0), ("+3e-4", 3e-4), (" .5 ", 0.5), ("1E3", 1000.0)] {
            assert_eq!(parse(text), Some(want), "{text}");
        }
        for text in ["NaN", "nan", "-nan", "NAN", "-nan(ind)", "nan(snan)", "1.#QNAN", "-1.#IND00"] {
            assert!(parse(text).is_some_and(f64::is_nan), "{text}");
        }
        assert_eq!(parse("Infinity"), Some(f64::INFINITY));
        assert_eq!(parse("-inf"), Some(f64::NEG_INFINITY));
        assert_eq!((parse("1.#INF"), parse("-1.#INF00")), (Some(f64::INFINITY), Some(f64::NEG_INFINITY)));
        for text in ["", "-", "abc", "1_000", "--1", "0x10", "1,5", "e5", "1.#", "nan(x)"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn written_numbers_are_the_shortest_that_read_back(bits: u64, digits in 0i64..10_000_000_000, places in 0u32..12) {
            let quotient = digits as f64 / 10f64.powi(places as i32);
            for v in [f64::from_bits(bits), quotient, -quotient, 1.7e9 + quotient, 10f64.powi(-(places as i32))] {
                let mut text = String::new();
                write_json(&mut text, v);
                let exact = v.is_finite() && !(v == v.trunc() && v.abs() < 1e15);
                if exact {
                    proptest::prop_assert_eq!(text, format!("{v:?}"));
                }
            }
        }
    }

    #[test]
    fn written_numbers_read_back() {
        for v in [0.0, 1.0, -7.0, 3e-4, 1e300, 5e-324, 4_194_304.0, 1795227416.98, 0.1 + 0.2] {
            let mut s = String::new();
            write_json(&mut s, v);
            assert_eq!(parse(&s), Some(v), "{s}");
        }
    }
}
