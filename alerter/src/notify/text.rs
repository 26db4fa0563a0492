//! Limits untrusted text to the limits of a channel: run names, log lines and labels are set by
//! users. Templates of the operator may add more, which is cleaned here too.

use std::fmt::Write as _;

pub(crate) use stepwatch_wire::words::clean;
use stepwatch_wire::words::{self, line as one_line};

/// The first `max` characters; if the text is longer, an ellipsis replaces the last one.
pub(crate) fn shorten(text: &str, max: usize) -> String {
    if text.char_indices().nth(max).is_none() {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(max.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// The text on one line, with at most `max` characters.
pub(crate) fn line(text: &str, max: usize) -> String {
    shorten(one_line(text).trim(), max)
}

/// A link that is safe to show: http or https, without characters that could end it early.
pub(crate) fn web_link(href: &str, max: usize) -> Option<&str> {
    let parsed = url::Url::parse(href).ok()?;
    let web = matches!(parsed.scheme(), "http" | "https") && parsed.host().is_some();
    let plain = words::line(href) == href && !href.chars().any(|c| c.is_whitespace() || "<>|\"".contains(c));
    (web && plain && href.chars().count() <= max).then_some(href)
}

/// Encodes bytes as lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_line_and_no_longer_than_asked() {
        assert_eq!(line("  two\nlines ", 80), "two lines");
        assert_eq!(line("größer", 4), "grö…");
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(shorten("abcd", 0), "…");
    }

    #[test]
    fn only_web_links_pass() {
        assert_eq!(web_link("https://x.org/a?b=1#c", 3000), Some("https://x.org/a?b=1#c"));
        for bad in [
            "javascript:alert(1)",
            "data:text/html,x",
            "https://x.org/a b",
            "https://x.org/>|evil",
            "https://x.org/\u{202e}",
            "//x.org",
            "http://",
            "file:///etc/passwd",
            "",
        ] {
            assert_eq!(web_link(bad, 3000), None, "{bad}");
        }
        assert_eq!(web_link("https://x.org/long", 10), None);
    }

    proptest! {
        #[test]
        fn never_longer_than_asked(text: String, max in 1usize..200) {
            prop_assert!(line(&text, max).chars().count() <= max);
            prop_assert!(!line(&text, max).contains('\n'));
        }
    }
}
