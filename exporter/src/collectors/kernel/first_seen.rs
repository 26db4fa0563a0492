//! Detects messages that this node's kernel has never printed before.
//!
//! No list of patterns is complete, and a new kind of failure matches none of them. So every
//! message of warning or worse is stripped of its variable parts, and the rest is stored: when it
//! is first seen, it is counted and logged. A node without stored messages first learns from the
//! present log without counting.
//!
//! They are stored in a text file with one message a line, which can be read, merged and copied to
//! other nodes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use stepwatch_wire::words;

use crate::persisted_state::open_private;

/// The most messages stored. Above it, a new one is counted each time.
const MAX_KNOWN: usize = 8192;
/// The most bytes of a message that are compared.
const MAX_MESSAGE: usize = 200;
/// The most bytes read from a file of known messages.
const MAX_FILE: u64 = (MAX_KNOWN * MAX_MESSAGE) as u64;

#[derive(Debug, Default)]
pub(super) struct KnownMessages {
    messages: BTreeSet<Box<str>>,
    /// Whether there are messages that were not saved.
    changed: bool,
}

impl KnownMessages {
    /// Loads the messages in these files. Returns whether the node's own file existed. The other
    /// file may contain messages as they were printed.
    pub(super) fn load(own: Option<&Path>, shipped: Option<&Path>) -> (Self, bool) {
        let mut known = Self::default();
        let learned = own.is_some_and(|own| {
            own.exists() && known.read(own, open_private(own, File::options().read(true)))
        });
        if let Some(shipped) = shipped {
            known.read(shipped, File::open(shipped));
        }
        known.changed = false;
        (known, learned)
    }

    fn read(&mut self, path: &Path, file: io::Result<File>) -> bool {
        let mut bytes = Vec::new();
        match file.and_then(|f| f.take(MAX_FILE).read_to_end(&mut bytes)) {
            Ok(_) => {
                let text = String::from_utf8_lossy(&bytes);
                for line in text.lines().filter(|line| !line.is_empty() && line.len() <= MAX_MESSAGE) {
                    self.insert(line.to_owned());
                    self.learn(line);
                }
                true
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read the known messages of the kernel");
                false
            }
        }
    }

    /// Stores a message. Returns whether no such message was stored before.
    pub(super) fn learn(&mut self, message: &str) -> bool {
        normalise(message).is_some_and(|message| self.insert(message))
    }

    fn insert(&mut self, message: String) -> bool {
        if self.messages.contains(message.as_str()) {
            return false;
        }
        if self.messages.len() < MAX_KNOWN {
            self.messages.insert(message.into());
            self.changed = true;
        }
        true
    }

    /// Marks the messages returned by `changed` as not saved.
    pub(super) fn not_saved(&mut self) {
        self.changed = true;
    }

    /// Whether no more messages can be stored.
    pub(super) fn full(&self) -> bool {
        self.messages.len() >= MAX_KNOWN
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// The contents of the file; `None` if nothing has changed since the last call.
    pub(super) fn changed(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let mut text = String::new();
        for message in &self.messages {
            text.push_str(message);
            text.push('\n');
        }
        Some(text)
    }
}

/// A message without its variable parts: numbers, addresses, names of processes, paths. `None` if
/// it is part of a dump of registers or a stack.
pub(super) fn normalise(message: &str) -> Option<String> {
    let message = words::line(message);
    let message = message.trim();
    if message.is_empty() || is_dump(message) {
        return None;
    }
    let mut out = String::with_capacity(message.len().min(MAX_MESSAGE));
    let body = match process(message) {
        Some(rest) => {
            out.push('*');
            rest
        }
        None => message,
    };
    let mut rest = body;
    while let Some(c) = rest.chars().next() {
        if out.len() >= MAX_MESSAGE {
            break;
        }
        let word_end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        if word_end > 0 {
            word(&rest[..word_end], &mut out);
            rest = &rest[word_end..];
        } else if c == '/' && out.ends_with([' ', '=', '"', '(', '\'']) {
            // A path counts as one word.
            let end = rest.find([' ', ',', '"', ')', '\'']).unwrap_or(rest.len());
            out.push_str("/*");
            rest = &rest[end..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
        collapse(&mut out);
    }
    while out.len() > MAX_MESSAGE {
        out.pop();
    }
    Some(out.trim().to_owned()).filter(|text| text.bytes().any(|b| b.is_ascii_alphabetic()))
}

/// The text after the name in `python3[4242]: ...`, where the process may be any.
fn process(message: &str) -> Option<&str> {
    let (name, rest) = message.split_once('[')?;
    let (pid, _) = rest.split_once("]: ")?;
    let named =
        !name.is_empty() && name.len() <= 15 && (pid == "#" || pid.bytes().all(|b| b.is_ascii_digit()));
    named.then(|| &message[name.len()..])
}

/// Replaces a run of letters and digits if it is a number or contains one.
fn word(word: &str, out: &mut String) {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let hex = word.bytes().all(|b| b.is_ascii_hexdigit());
    let hexadecimal = word.strip_prefix("0x").is_some_and(|w| w.bytes().all(|b| b.is_ascii_hexdigit()));
    // Letters alone belong to an address if they are next to numbers, or too long for a word.
    let address = hex && digits == 0 && (word.len() >= 8 || word.len() <= 4 && out.ends_with("#:"));
    if hexadecimal || address || hex && digits > 0 {
        out.push('#');
    } else if digits == 0 {
        match word.strip_prefix("sd").filter(|letters| !letters.is_empty() && letters.len() <= 2) {
            Some(_) => out.push_str("sd#"),
            None => out.push_str(word),
        }
    } else {
        for c in word.chars() {
            match c {
                '0'..='9' if out.ends_with('#') => {}
                '0'..='9' => out.push('#'),
                c => out.push(c),
            }
        }
    }
}

/// Replaces lists of numbers, of any length, by one number.
fn collapse(out: &mut String) {
    for list in ["# #", "#, #", "#,#", "#-#", "#:#", "#.#", "##"] {
        if out.ends_with(list) {
            out.truncate(out.len() - list.len() + 1);
        }
    }
}

/// Whether a line is part of a dump: `RIP: 0010:func+0x1a/0x30`, ` ? func+0x1a/0x30 [module]`,
/// `RAX: 0000... RBX: ...`, `Code: 48 8b`.
fn is_dump(message: &str) -> bool {
    const BEGINNINGS: [&str; 12] = [
        "RIP:",
        "RSP:",
        "RAX:",
        "RDX:",
        "RBP:",
        "R10:",
        "R13:",
        "FS:",
        "CR2:",
        "CS:",
        "Code:",
        "Modules linked in",
    ];
    let register = || message.starts_with('x') && message.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
    BEGINNINGS.iter().any(|b| message.starts_with(b))
        || message.contains("+0x") && message.contains("/0x")
        || register()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_between_occurrences_is_left_out() {
        for (a, b, normal) in [
            (
                "nvme nvme0: I/O 12 QID 3 timeout",
                "nvme nvme11: I/O 7 QID 14 timeout",
                "nvme nvme#: I/O # QID # timeout",
            ),
            ("pcieport 0000:16:00.0: AER", "pcieport 0001:ff:1f.3: AER", "pcieport #: AER"),
            (
                "python3[42]: segfault at 7f01 ip 0x0",
                "sh[7]: segfault at 0 ip 0xdeadbeef",
                "*[#]: segfault at # ip #",
            ),
            (
                "mlx5 GUID ab12:cd34:ef56:0001 is odd",
                "mlx5 GUID 0011:0022:0033:abcd is odd",
                "mlx# GUID # is odd",
            ),
            ("cannot open \"/a/b\" twice", "cannot open \"/c\" twice", "cannot open \"/*\" twice"),
            ("sd 0:0:0:0: [sda] failed", "sd 1:0:0:0: [sdbc] failed", "sd #: [sd#] failed"),
        ] {
            assert_eq!(normalise(a).as_deref(), Some(normal), "{a}");
            assert_eq!(normalise(b).as_deref(), Some(normal), "{b}");
        }
        for dump in ["RIP: 0010:x", " ? vfs_read+0x1a/0x30 [ext4]", "", "12 34", "x29: 000 x28: 111"] {
            assert_eq!(normalise(dump), None, "{dump}");
        }
    }

    #[test]
    fn learned_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (own, shipped) = (dir.path().join("own"), dir.path().join("shipped"));
        let (mut known, learned) = KnownMessages::load(Some(&own), None);
        assert!(!learned && known.learn("nvme nvme0: odd") && !known.learn("nvme nvme1: odd"));
        std::fs::write(&own, known.changed().unwrap()).unwrap();
        assert_eq!(known.changed(), None);
        std::fs::write(&shipped, "as it was printed 0x17\n").unwrap();
        let (mut known, learned) = KnownMessages::load(Some(&own), Some(&shipped));
        assert!(learned && !known.learn("nvme nvme7: odd") && !known.learn("as it was printed 0x18"));
        assert_eq!((known.len(), known.changed()), (3, None), "as it was printed, and what is left of it");
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut known = KnownMessages::default();
        let letters = |mut i: usize| {
            let mut word = String::from("q");
            while i > 0 {
                word.push(char::from(b'g' + (i % 16) as u8));
                i /= 16;
            }
            word
        };
        (0..MAX_KNOWN + 10).for_each(|i| assert!(known.learn(&letters(i))));
        assert_eq!(known.len(), MAX_KNOWN);
        assert!(known.learn("something new") && known.learn("something new"));
    }

    proptest::proptest! {
        #[test]
        fn what_is_normal_is_short_and_the_same_again(message in "[ -~]{0,300}") {
            let normal = normalise(&message);
            proptest::prop_assert!(normal.as_ref().is_none_or(|n| n.len() <= MAX_MESSAGE));
            proptest::prop_assert_eq!(normal, normalise(&message));
        }

        #[test]
        fn never_panics(message: String) {
            let _ = normalise(&message);
        }
    }
}
