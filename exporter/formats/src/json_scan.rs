//! The outline of a `trainer_state.json`: where the entries of its history begin and end, without
//! reading what is in them.
//!
//! It holds every step of the run, and is written anew with each checkpoint. Reading it into a tree
//! takes many times its size of memory; what is new in it are a few entries at the end. It is taken
//! byte by byte, so that of a long one no more than an entry is held. It also recognises a text
//! that is still being written.

/// The longest entry that is looked into.
pub(crate) const MAX_ENTRY_BYTES: usize = 64 * 1024;
/// Longer than any key or number that is looked for.
const MAX_WORD_BYTES: usize = 32;

/// The position of a byte in the text.
#[derive(Debug, Clone, Default)]
pub(crate) struct HistoryScan {
    /// Bytes that were taken.
    pub(crate) offset: u64,
    /// Entries that have ended.
    pub(crate) entries: usize,
    /// The entry, as much of it as is kept.
    pub(crate) item: Vec<u8>,
    item_bytes: usize,
    depth: usize,
    text: Text,
    /// The key of a member of the object, or the value of one that counts.
    key: Vec<u8>,
    global_step: Vec<u8>,
    expects_key: bool,
    history: bool,
    broken: bool,
}

/// Whether a byte is in a string.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Text {
    #[default]
    No,
    Yes,
    /// Behind a backslash.
    Escaped,
}

impl HistoryScan {
    /// Takes the next byte. True where it ends an entry: look at it, and go on with [`Self::next`].
    pub(crate) fn byte(&mut self, byte: u8) -> bool {
        self.offset += 1;
        if self.text != Text::No {
            self.text = match (self.text, byte) {
                (Text::Yes, b'\\') => Text::Escaped,
                (Text::Yes, b'"') => Text::No,
                _ => Text::Yes,
            };
            self.keep(byte);
            return false;
        }
        let in_list = self.history && self.depth == 2;
        match byte {
            b'"' => {
                self.text = Text::Yes;
                self.keep(byte);
            }
            b'{' | b'[' if self.depth == 0 => self.open_root(byte),
            b'[' if self.depth == 1 && self.is_key(b"\"log_history\"") => {
                (self.history, self.depth) = (true, 2);
            }
            b'{' | b'[' => {
                self.keep(byte);
                self.depth += 1;
            }
            b']' | b',' if in_list => {
                if byte == b']' {
                    (self.history, self.depth) = (false, 1);
                }
                let ends = self.item_bytes > 0;
                self.entries += usize::from(ends);
                return ends;
            }
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                self.keep(byte);
            }
            b',' if self.depth == 1 => {
                self.expects_key = true;
                self.key.clear();
            }
            b':' if self.depth == 1 && self.expects_key => self.expects_key = false,
            _ if byte.is_ascii_whitespace() && self.depth <= 2 => {}
            _ => self.keep(byte),
        }
        false
    }

    /// Goes on behind an entry.
    pub(crate) fn next(&mut self) {
        self.item.clear();
        self.item_bytes = 0;
    }

    pub(crate) fn is_oversized(&self) -> bool {
        self.item_bytes > self.item.len()
    }

    pub(crate) fn global_step(&self) -> &str {
        core::str::from_utf8(&self.global_step).unwrap_or("")
    }

    /// The closing brace is the last that is written.
    pub(crate) fn is_whole(&self) -> bool {
        self.offset > 0 && self.depth == 0 && self.expects_key_once() && !self.broken
    }

    /// It was opened at all.
    fn expects_key_once(&self) -> bool {
        self.expects_key || !self.key.is_empty()
    }

    fn open_root(&mut self, byte: u8) {
        self.broken |= byte != b'{' || self.expects_key_once();
        (self.depth, self.expects_key) = (1, true);
    }

    fn is_key(&self, wanted: &[u8]) -> bool {
        !self.expects_key && self.key == wanted
    }

    fn keep(&mut self, byte: u8) {
        if self.history {
            self.item_bytes += 1;
            if self.item.len() < MAX_ENTRY_BYTES {
                self.item.push(byte);
            }
        } else if self.depth == 1 && self.expects_key {
            push(&mut self.key, byte);
        } else if self.depth == 1 && self.is_key(b"\"global_step\"") {
            push(&mut self.global_step, byte);
        } else if self.depth == 0 && byte != b'}' {
            self.broken = true;
        }
    }
}

fn push(word: &mut Vec<u8>, byte: u8) {
    if word.len() < MAX_WORD_BYTES {
        word.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> (Vec<String>, String, bool) {
        let mut scan = HistoryScan::default();
        let mut items = Vec::new();
        for byte in text.bytes() {
            if scan.byte(byte) {
                items.push(String::from_utf8(scan.item.clone()).unwrap());
                scan.next();
            }
        }
        (items, scan.global_step().to_owned(), scan.is_whole())
    }

    fn found(items: &[&str], step: &str, whole: bool) -> (Vec<String>, String, bool) {
        (items.iter().map(|i| (*i).to_owned()).collect(), step.to_owned(), whole)
    }

    #[test]
    fn entries_and_the_step() {
        let text = r#" {"a": [1, {"]": "}"}], "log_history": [ {"x\"": "],}"} , {"y": [1, 2]},3 ], "global_step" : 12 } "#;
        assert_eq!(scan(text), found(&[r#"{"x\"": "],}"}"#, r#"{"y": [1, 2]}"#, "3"], "12", true));
        assert_eq!(scan(r#"{"log_history":[],"b":{"log_history":[1]}}"#), found(&[], "", true));
        assert_eq!(scan("{}"), found(&[], "", true));
        for cut in ["", "{", "[1]", r#"{"log_history":["#, r#"{"log_history":[1"#, "x{}", "{}x", "}"] {
            assert_eq!(scan(cut), found(&[], "", false), "{cut}");
        }
        assert_eq!(scan(r#"{"log_history":[1,2"#), found(&["1"], "", false));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_scanned(text in r#"[\[\]{}:,"\\ a1]{0,60}"#) {
            let mut scan = HistoryScan::default();
            for byte in text.bytes() {
                if scan.byte(byte) {
                    scan.next();
                }
            }
            proptest::prop_assert!(scan.item.len() <= text.len());
        }
    }
}
