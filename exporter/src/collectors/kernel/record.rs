//! Parses one record of the kernel log in the format of `/dev/kmsg`:
//!
//! ```text
//! 4,1523,91234567,-;nvme nvme0: I/O 12 QID 3 timeout, aborting
//!  SUBSYSTEM=nvme
//!  DEVICE=+pci:0000:01:00.0
//! ```
//!
//! Before the semicolon are facility and priority, sequence number, microseconds since boot, and
//! flags. Lines that begin with a space belong to the record. Unprintable bytes are escaped as
//! `\x0a`; invalid UTF-8 becomes the replacement character.

use std::borrow::Cow;

/// The most bytes of a message that are read; the kernel's own limit is 1 KiB.
pub(super) const MAX_TEXT: usize = 2048;

/// The names of the priorities, most urgent first.
pub(super) const PRIORITIES: [&str; 8] =
    ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// The index in [`PRIORITIES`].
    pub(super) priority: u8,
    /// 0 is the kernel itself; any other record was written to the device by a program.
    pub(super) facility: u16,
    pub(super) sequence: u64,
    /// Microseconds since boot.
    pub(super) micros: u64,
    pub(super) text: Cow<'a, str>,
}

impl<'a> Record<'a> {
    /// Parses a record; `None` if the bytes are not one.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let end = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
        let line = &bytes[..end];
        let (head, text) = line.split_at(memchr::memchr(b';', line)?);
        let mut fields = str::from_utf8(head).ok()?.split(',');
        let prefix: u32 = fields.next()?.parse().ok()?;
        let sequence = fields.next()?.parse().ok()?;
        let micros = fields.next()?.parse().ok()?;
        Some(Self {
            priority: (prefix & 7) as u8,
            facility: (prefix >> 3) as u16,
            sequence,
            micros,
            text: unescape(&text[1..text.len().min(MAX_TEXT + 1)]),
        })
    }
}

/// Decodes `\xNN`. It borrows if there is none, which is the usual case.
fn unescape(text: &[u8]) -> Cow<'_, str> {
    if memchr::memchr(b'\\', text).is_none() {
        return String::from_utf8_lossy(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let escaped = match after {
            [b'x', hi, lo, ..] if *first == b'\\' => hex(*hi).zip(hex(*lo)),
            _ => None,
        };
        rest = if let Some((hi, lo)) = escaped {
            bytes.push(hi << 4 | lo);
            &after[3..]
        } else {
            bytes.push(*first);
            after
        };
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|d| d as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    fn parse(text: &str) -> Record<'_> {
        Record::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_record_with_continuation_lines() {
        let r = parse(
            "4,1523,91234567,-;nvme nvme0: timeout; aborting\n SUBSYSTEM=nvme\n DEVICE=+pci:0000:01:00.0\n",
        );
        assert_eq!((r.priority, r.facility, r.sequence, r.micros), (4, 0, 1523, 91_234_567));
        assert_eq!(r.text, "nvme nvme0: timeout; aborting");
        assert_eq!(parse("30,1,2,-,caller=T12;systemd[1]: hello").facility, 3);
    }

    #[test]
    fn escapes_and_bytes_that_are_no_text() {
        assert_eq!(parse(r"6,1,2,-;a\x0ab\x5cx41\x zz\").text, "a\nb\\x41\\x zz\\");
        assert_eq!(Record::parse(b"6,1,2,-;a\xffb").unwrap().text, "a\u{fffd}b");
        assert_eq!(parse(&format!("6,1,2,-;{}", "x".repeat(100_000))).text.len(), MAX_TEXT);
    }

    #[test]
    fn what_is_no_record() {
        for text in
            ["", ";", "6,1,2", "6,1;x", "a,1,2,-;x", " KEY=value", "6,-1,2,-;x", "99999999999,1,2,-;x"]
        {
            assert_eq!(Record::parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>) {
            let _ = Record::parse(&bytes);
            let _ = unescape(&bytes);
        }

        #[test]
        fn what_the_kernel_escapes_comes_back(text in "[ -~\n\t]{0,200}") {
            let mut escaped = String::new();
            for b in text.bytes() {
                if b == b'\\' || !(b' '..=b'~').contains(&b) {
                    write!(escaped, "\\x{b:02x}").unwrap();
                } else {
                    escaped.push(char::from(b));
                }
            }
            let record = format!("4,7,8,-;{escaped}\n KEY=value\n");
            proptest::prop_assert_eq!(parse(&record).text, text);
        }
    }
}
