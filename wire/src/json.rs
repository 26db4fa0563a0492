//! A small JSON parser that accepts bare `NaN`, `Infinity` and `-Infinity` wherever a value is
//! allowed.
//!
//! serde_json rejects them, Python writes them, and the most important events contain them. The
//! parser reads one value from a byte slice, limits the depth, and never panics on any input.

use core::fmt;
use std::collections::BTreeMap;

use crate::num;

/// The most levels of nesting, which bounds the use of the stack.
const MAX_DEPTH: u32 = 16;

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    Map(BTreeMap<String, Value>),
}

/// A syntax error and its byte offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError {
    pub at: usize,
    pub what: &'static str,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.at)
    }
}

impl core::error::Error for JsonError {}

impl Value {
    /// Parses exactly one value, with only white space around it.
    pub fn parse(bytes: &[u8]) -> Result<Self, JsonError> {
        let mut r = JsonReader::new(bytes);
        let (v, _, left_out) = r.value_within(MAX_VALUES)?;
        r.end()?;
        if left_out > 0 { r.err("too many values") } else { Ok(v) }
    }

    /// The value of a number, or of a string with a number: `"NaN"`, or Hugging Face's `'%.4g'`.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Number(v) => Some(*v),
            Self::Text(t) => num::parse(t),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Self::Text(t) = self { Some(t) } else { None }
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        if let Self::Map(m) = self { m.get(key) } else { None }
    }

    pub fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Self::Number(v) => num::write_json(out, *v),
            Self::Text(t) => write_string(out, t),
            Self::List(items) => {
                out.push('[');
                for (i, v) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    v.write(out);
                }
                out.push(']');
            }
            Self::Map(m) => {
                out.push('{');
                for (i, (k, v)) in m.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    write_string(out, k);
                    out.push(':');
                    v.write(out);
                }
                out.push('}');
            }
        }
    }
}

pub(crate) fn write_string(out: &mut String, s: &str) {
    use fmt::Write as _;
    let special = |b: u8| b < 0x20 || matches!(b, b'"' | b'\\');
    out.push('"');
    let mut plain = 0; // what stands before this is written
    // Usually nothing needs an escape; this loop checks many bytes at a time.
    let any = s.bytes().fold(false, |any, b| any | special(b));
    for (at, byte) in s.bytes().enumerate().filter(|(_, b)| any && special(*b)) {
        out.push_str(&s[plain..at]);
        plain = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            control => {
                let _ = write!(out, "\\u{control:04x}");
            }
        }
    }
    out.push_str(&s[plain..]);
    out.push('"');
}

/// The most values in a value. A value of two bytes takes a hundred times as many in memory.
const MAX_VALUES: usize = 32_768;

pub(crate) struct JsonReader<'a> {
    b: &'a [u8],
    at: usize,
    depth: u32,
    /// Values in lists and maps that may still be kept: a value of two bytes takes a hundred times
    /// as many in memory.
    room: usize,
    /// Values that were parsed but not kept.
    left_out: u32,
}

impl<'a> JsonReader<'a> {
    pub(crate) fn new(b: &'a [u8]) -> Self {
        Self { b, at: 0, depth: 0, room: usize::MAX, left_out: 0 }
    }

    /// As [`Self::value`], but keeps at most `room` values within the value. Also returns the room
    /// that is left, and the number of values that were not kept.
    pub(crate) fn value_within(&mut self, room: usize) -> Result<(Value, usize, u32), JsonError> {
        (self.room, self.left_out) = (room, 0);
        let v = self.value()?;
        let left = core::mem::replace(&mut self.room, usize::MAX);
        Ok((v, left, core::mem::take(&mut self.left_out)))
    }

    /// Parses a value within another one; `None` if there is no room to keep it.
    fn inner(&mut self) -> Result<Option<Value>, JsonError> {
        let has_room = self.room > 0;
        self.room = self.room.saturating_sub(1);
        let v = self.value()?;
        self.left_out = self.left_out.saturating_add(u32::from(!has_room));
        Ok(has_room.then_some(v))
    }

    fn err<T>(&self, what: &'static str) -> Result<T, JsonError> {
        Err(JsonError { at: self.at, what })
    }

    fn skip_space(&mut self) {
        while matches!(self.b.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.b.get(self.at).copied()
    }

    pub(crate) fn end(&mut self) -> Result<(), JsonError> {
        if self.peek().is_some() { self.err("unexpected text after the value") } else { Ok(()) }
    }

    /// Calls `each(key, reader)` for every member; `each` must read the member's value.
    pub(crate) fn object<E: From<JsonError>>(
        &mut self,
        mut each: impl FnMut(&str, &mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.peek() != Some(b'{') {
            return Err(JsonError { at: self.at, what: "expected an object" }.into());
        }
        self.enter()?;
        if self.peek() == Some(b'}') {
            self.leave();
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(JsonError { at: self.at, what: "expected a member name in quotes" }.into());
            }
            let key = self.string()?;
            if self.peek() != Some(b':') {
                return Err(JsonError { at: self.at, what: "expected ':'" }.into());
            }
            self.at += 1;
            each(&key, self)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.leave();
                    return Ok(());
                }
                _ => return Err(JsonError { at: self.at, what: "expected ',' or '}'" }.into()),
            }
        }
    }

    fn enter(&mut self) -> Result<(), JsonError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.err("nested too deeply");
        }
        self.at += 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
        self.at += 1;
    }

    pub(crate) fn value(&mut self) -> Result<Value, JsonError> {
        match self.peek() {
            None => self.err("expected a value, found the end"),
            Some(b'{') => {
                let mut m = BTreeMap::new();
                self.object::<JsonError>(|k, r| {
                    if let Some(v) = r.inner()? {
                        m.insert(k.to_owned(), v);
                    }
                    Ok(())
                })?;
                Ok(Value::Map(m))
            }
            Some(b'[') => self.list(),
            Some(b'"') => Ok(Value::Text(self.string()?.into_owned())),
            Some(_) => self.word(),
        }
    }

    fn list(&mut self) -> Result<Value, JsonError> {
        self.enter()?;
        let mut items = Vec::new();
        if self.peek() == Some(b']') {
            self.leave();
            return Ok(Value::List(items));
        }
        loop {
            items.extend(self.inner()?);
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.leave();
                    return Ok(Value::List(items));
                }
                _ => return self.err("expected ',' or ']'"),
            }
        }
    }

    /// Parses a value that is neither a container nor a string: a literal or a number.
    fn word(&mut self) -> Result<Value, JsonError> {
        let rest = &self.b[self.at..];
        let len = rest
            .iter()
            .position(|c| !(c.is_ascii_alphanumeric() || matches!(c, b'+' | b'-' | b'.')))
            .unwrap_or(rest.len());
        // The loop above accepts only ASCII bytes.
        let Some(text) = core::str::from_utf8(&rest[..len]).ok().filter(|t| !t.is_empty()) else {
            return self.err("expected a value");
        };
        let v = match text {
            "null" | "None" => Value::Null,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            t => match num::parse(t) {
                Some(v) => Value::Number(v),
                None => return self.err("expected a value"),
            },
        };
        self.at += len;
        Ok(v)
    }

    pub(crate) fn string(&mut self) -> Result<std::borrow::Cow<'a, str>, JsonError> {
        let start = self.at + 1;
        let mut i = start;
        loop {
            match self.b.get(i) {
                None => return self.err("unterminated string"),
                Some(b'"') => {
                    let raw = core::str::from_utf8(&self.b[start..i])
                        .map_err(|_| JsonError { at: start, what: "string is not UTF-8" })?;
                    self.at = i + 1;
                    return Ok(raw.into());
                }
                Some(b'\\') => return self.escaped(start, i).map(Into::into),
                Some(_) => i += 1,
            }
        }
    }

    fn escaped(&mut self, start: usize, first: usize) -> Result<String, JsonError> {
        let mut buf = self.b[start..first].to_vec();
        let mut i = first;
        loop {
            match self.b.get(i) {
                None => return self.err("unterminated string"),
                Some(b'"') => break,
                Some(b'\\') => {
                    let c = match self.b.get(i + 1) {
                        Some(b'n') => '\n',
                        Some(b'r') => '\r',
                        Some(b't') => '\t',
                        Some(b'b') => '\u{8}',
                        Some(b'f') => '\u{c}',
                        Some(c @ (b'"' | b'\\' | b'/')) => char::from(*c),
                        Some(b'u') => {
                            let (c, used) = self.unicode(i + 2)?;
                            i += used;
                            c
                        }
                        _ => return Err(JsonError { at: i, what: "unknown escape" }),
                    };
                    buf.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    i += 2;
                }
                Some(b) => {
                    buf.push(*b);
                    i += 1;
                }
            }
        }
        self.at = i + 1;
        String::from_utf8(buf).map_err(|_| JsonError { at: start, what: "string is not UTF-8" })
    }

    /// The character of `\uXXXX` at `at` (a surrogate pair takes two escapes), and the number of
    /// bytes it used.
    fn unicode(&self, at: usize) -> Result<(char, usize), JsonError> {
        let hex = |at: usize| {
            let digits = self.b.get(at..at + 4)?;
            if !digits.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            u32::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
        };
        let bad = JsonError { at, what: "bad \\u escape" };
        let hi = hex(at).ok_or_else(|| bad.clone())?;
        if (0xd800..0xdc00).contains(&hi) && self.b.get(at + 4..at + 6) == Some(b"\\u") {
            if let Some(lo @ 0xdc00..0xe000) = hex(at + 6) {
                let c = 0x10000 + ((hi - 0xd800) << 10) + (lo - 0xdc00);
                return Ok((char::from_u32(c).ok_or(bad)?, 10));
            }
        }
        // A lone surrogate is a mistake of the trainer, and does not justify losing the event.
        Ok((char::from_u32(hi).unwrap_or('\u{fffd}'), 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(t: &str) -> Result<Value, JsonError> {
        Value::parse(t.as_bytes())
    }

    #[test]
    fn bare_nan_and_infinities() {
        let v = read(r#"{"a": NaN, "b": -Infinity, "c": [Infinity, "nan"]}"#).unwrap();
        assert!(v.get("a").unwrap().as_f64().unwrap().is_nan());
        assert_eq!(v.get("b").unwrap().as_f64(), Some(f64::NEG_INFINITY));
        let Some(Value::List(l)) = v.get("c") else { panic!() };
        assert!(l[1].as_f64().unwrap().is_nan());
    }

    #[test]
    fn strings_and_escapes() {
        let v = read(r#""a\n\u00e9\ud83d\ude00\/\"""#).unwrap();
        assert_eq!(v.as_str(), Some("a\né😀/\""));
        let mut out = String::new();
        v.write(&mut out);
        assert_eq!(read(&out).unwrap(), v);
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        for (t, what, at) in [
            ("{", "expected a member name in quotes", 1),
            ("{\"a\" 1}", "expected ':'", 5),
            ("[1 2]", "expected ',' or ']'", 3),
            ("1 2", "unexpected text after the value", 2),
            ("\"abc", "unterminated string", 0),
            ("nope", "expected a value", 0),
            ("", "expected a value, found the end", 0),
        ] {
            assert_eq!(read(t), Err(JsonError { at, what }), "{t}");
        }
        assert_eq!(read(&"[".repeat(100)).unwrap_err().what, "nested too deeply");
    }

    #[test]
    fn a_text_of_too_many_values_is_refused() {
        let list = |n: usize| format!("[{}0]", "{},".repeat(n - 1));
        assert!(Value::parse(list(MAX_VALUES).as_bytes()).is_ok());
        let refused = Value::parse(list(MAX_VALUES + 1).as_bytes()).unwrap_err();
        assert!(refused.to_string().contains("too many values"), "{refused}");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>) {
            let _ = Value::parse(&bytes);
        }

        #[test]
        fn agrees_with_serde_json_on_strict_json(text in "[\\[\\]{}:,\"a-c0-9.eE+\\- \\\\nut]{0,40}") {
            if let Ok(strict) = serde_json::from_str::<serde_json::Value>(&text) {
                let ours = read(&text);
                proptest::prop_assert!(ours.is_ok(), "{text} {strict}");
            }
        }
    }
}
