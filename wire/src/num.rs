//! Numbers as trainers write them.

/// Reads a number leniently: what Rust's own parser takes, plus the spellings of not-a-number and the infinities
/// that Python, NumPy, PyTorch, C and JSON libraries print, in any case, with surrounding space.
pub fn parse(text: &str) -> Option<f64> {
    let t = text.trim();
    let (sign, body) = match t.as_bytes().first()? {
        b'-' => (-1.0, &t[1..]),
        b'+' => (1.0, &t[1..]),
        _ => (1.0, t),
    };
    if body.eq_ignore_ascii_case("nan") {
        return Some(f64::NAN);
    }
    if body.eq_ignore_ascii_case("inf") || body.eq_ignore_ascii_case("infinity") {
        return Some(sign * f64::INFINITY);
    }
    // Rust would also take "1e5" and "1." but never an underscore or a second sign: good.
    if !body.as_bytes().first().is_some_and(|b| b.is_ascii_digit() || *b == b'.') {
        return None;
    }
    body.parse::<f64>().ok().map(|v| sign * v)
}

/// Appends `v` as JSON. Non-finite values become strings, which strict readers survive and [`parse`] reads back.
pub fn write_json(out: &mut String, v: f64) {
    use core::fmt::Write as _;
    if v.is_nan() {
        out.push_str("\"NaN\"");
    } else if v.is_infinite() {
        out.push_str(if v > 0.0 { "\"Infinity\"" } else { "\"-Infinity\"" });
    } else if v == v.trunc() && v.abs() < 1e15 {
        let _ = write!(out, "{}", v as i64);
    } else {
        // `{:?}` is the shortest text that reads back to the same bits, with an exponent where it is shorter.
        let _ = write!(out, "{v:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_python_writes() {
        for (text, want) in [("1.5", 1.5), ("-2", -2.0), ("+3e-4", 3e-4), (" .5 ", 0.5), ("1E3", 1000.0)] {
            assert_eq!(parse(text), Some(want), "{text}");
        }
        for text in ["NaN", "nan", "-nan", "NAN"] {
            assert!(parse(text).is_some_and(f64::is_nan), "{text}");
        }
        assert_eq!(parse("Infinity"), Some(f64::INFINITY));
        assert_eq!(parse("-inf"), Some(f64::NEG_INFINITY));
        for text in ["", "-", "abc", "1_000", "--1", "0x10", "1,5", "e5"] {
            assert_eq!(parse(text), None, "{text}");
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
