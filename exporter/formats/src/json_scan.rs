//! The outline of a JSON text: where members and items begin and end, without reading what is in
//! them.
//!
//! A `trainer_state.json` holds every step of the run, and is written anew with each checkpoint.
//! Reading it into a tree takes many times its size of memory; what is new in it are a few items at
//! the end. It also tells a text that is still being written.

/// The text ends before the value does, or it is no JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut;

/// The members of an object, each with the bytes of its value.
#[derive(Debug)]
pub(crate) struct Members<'a>(Parts<'a>);

/// The items of a list, each as its bytes.
#[derive(Debug)]
pub(crate) struct Items<'a>(Parts<'a>);

#[derive(Debug)]
struct Parts<'a> {
    bytes: &'a [u8],
    at: usize,
    close: u8,
    begun: bool,
    over: bool,
}

impl<'a> Members<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Result<Self, Cut> {
        Parts::open(bytes, b'{', b'}').map(Self)
    }
}

impl<'a> Items<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Result<Self, Cut> {
        Parts::open(bytes, b'[', b']').map(Self)
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<(&'a str, &'a [u8]), Cut>;

    fn next(&mut self) -> Option<Self::Item> {
        let parts = &mut self.0;
        if !parts.more() {
            return None;
        }
        let member = parts.value().and_then(|key| {
            // A key with an escape in it is none that is looked for.
            let key = core::str::from_utf8(key.get(1..key.len() - 1)?).ok()?;
            parts.skip_space();
            parts.byte(b':').then_some(())?;
            Some((key, parts.value_or_rest()?))
        });
        Some(parts.check(member))
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<&'a [u8], Cut>;

    fn next(&mut self) -> Option<Self::Item> {
        let parts = &mut self.0;
        if !parts.more() {
            return None;
        }
        let item = parts.value();
        Some(parts.check(item))
    }
}

impl<'a> Parts<'a> {
    fn open(bytes: &'a [u8], open: u8, close: u8) -> Result<Self, Cut> {
        let mut parts = Self { bytes, at: 0, close, begun: false, over: false };
        parts.skip_space();
        if parts.byte(open) { Ok(parts) } else { Err(Cut) }
    }

    /// Whether another part should follow; if the text ends here, reading that part tells of it.
    fn more(&mut self) -> bool {
        if self.over {
            return false;
        }
        self.skip_space();
        if self.byte(self.close) {
            self.over = true;
            return false;
        }
        if core::mem::replace(&mut self.begun, true) {
            self.byte(b',');
        }
        true
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        self.skip_space();
        let end = value_end(self.bytes, self.at)?;
        let value = &self.bytes[self.at..end];
        self.at = end;
        Some(value)
    }

    /// The value, or all that is there of it: the items of a list that was cut off are still worth
    /// reading.
    fn value_or_rest(&mut self) -> Option<&'a [u8]> {
        self.skip_space();
        let rest = self.bytes.get(self.at..).filter(|r| !r.is_empty())?;
        Some(self.value().unwrap_or_else(|| {
            self.at = self.bytes.len();
            rest
        }))
    }

    fn check<T>(&mut self, part: Option<T>) -> Result<T, Cut> {
        self.over |= part.is_none();
        part.ok_or(Cut)
    }

    fn byte(&mut self, wanted: u8) -> bool {
        let is = self.bytes.get(self.at) == Some(&wanted);
        self.at += usize::from(is);
        is
    }

    fn skip_space(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }
}

/// Where the value that begins at `at` ends.
fn value_end(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => string_end(bytes, at),
        b'{' | b'[' => {
            let mut depth = 0usize;
            let mut i = at;
            while let Some(byte) = bytes.get(i) {
                match byte {
                    b'"' => {
                        i = string_end(bytes, i)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    _ => {}
                }
                i += 1;
                if depth == 0 {
                    return Some(i);
                }
            }
            None
        }
        // A number or a word ends where something else begins; at the end of the text more digits
        // may follow.
        _ => {
            let len = bytes[at..].iter().position(|b| b",]}".contains(b) || b.is_ascii_whitespace())?;
            (len > 0).then_some(at + len)
        }
    }
}

/// Behind the quote that closes the string that begins at `at`.
fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut i = at + 1;
    loop {
        i += memchr::memchr2(b'"', b'\\', bytes.get(i..)?)?;
        if bytes[i] == b'"' {
            return Some(i + 1);
        }
        i += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(text: &str) -> Vec<Result<&str, Cut>> {
        let Ok(items) = Items::of(text.as_bytes()) else { return vec![Err(Cut)] };
        items.map(|i| i.map(|b| core::str::from_utf8(b).unwrap())).collect()
    }

    #[test]
    fn members_and_items() {
        let text = r#" {"a": 1.5, "b\"": [1, {"]": "}"}], "c":"x,\"y", "d" : null } "#;
        let members: Vec<_> = Members::of(text.as_bytes()).unwrap().map(|m| m.unwrap()).collect();
        let text = |b| core::str::from_utf8(b).unwrap();
        let members: Vec<_> = members.into_iter().map(|(k, v)| (k, text(v))).collect();
        let want = [("a", "1.5"), ("b\\\"", r#"[1, {"]": "}"}]"#), ("c", r#""x,\"y""#), ("d", "null")];
        assert_eq!(members, want);
        assert_eq!(items("[]"), []);
        assert_eq!(items("[1, [2] , {}]"), [Ok("1"), Ok("[2]"), Ok("{}")]);
    }

    #[test]
    fn what_is_cut_off_is_told() {
        assert_eq!(items("[{\"a\": 1}, {\"b\""), [Ok("{\"a\": 1}"), Err(Cut)]);
        for text in ["[1, 2", "[1,", "[", "", "{", "[\"a"] {
            assert_eq!(items(text).last(), Some(&Err(Cut)), "{text}");
        }
        let cut = Members::of(br#"{"a": 1, "log": [{"b": 2}, {"c"#).unwrap();
        let lengths: Vec<_> = cut.map(|m| m.map(|(_, value)| value.len())).collect();
        assert_eq!(lengths, [Ok(1), Ok(14), Err(Cut)], "what is there of it");
        assert_eq!(Members::of(br#"{"a": 1, "log"#).unwrap().last(), Some(Err(Cut)));
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_ends(text in "[\\[\\]{}:,\"a1\\\\ ]{0,60}") {
            let parts = Items::of(text.as_bytes()).map_or(0, Iterator::count);
            proptest::prop_assert!(parts <= text.len() + 1);
            let parts = Members::of(text.as_bytes()).map_or(0, Iterator::count);
            proptest::prop_assert!(parts <= text.len() + 1);
        }
    }
}
