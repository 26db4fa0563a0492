//! What launchers, container runtimes and terminals put round a line, taken off.
//!
//! The order in which prefixes are stacked depends on who started whom, so they are taken off in any order until
//! none is left. Nothing here reads a metric.

use std::borrow::Cow;

use crate::time::{self, Stamp};

/// Bytes of a line that a container runtime cut into pieces, put together again at most.
pub const MAX_JOINED_BYTES: usize = 256 * 1024;
/// Prefixes on one line: more is not a launcher but a log of numbers.
const MAX_PREFIXES: usize = 6;

/// A line without its prefixes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cleaned<'a> {
    pub(crate) text: &'a str,
    /// The stamp nearest to the text: the trainer's own where there are several.
    pub(crate) stamp: Option<Stamp>,
    /// The container runtime cut the line here; the rest comes next.
    pub(crate) partial: bool,
}

/// The drawings of a progress bar, each as a line of its own.
pub(crate) fn segments(line: &str) -> impl Iterator<Item = &str> {
    line.split(['\r', '\n']).filter(|s| !s.trim().is_empty())
}

/// Takes off prefixes of every kind.
pub(crate) fn strip(text: &str) -> Cleaned<'_> {
    let mut c = Cleaned { text: text.trim(), stamp: None, partial: false };
    for _ in 0..MAX_PREFIXES {
        if let Some((stamp, rest, partial)) = container(c.text) {
            (c.stamp, c.text, c.partial) = (Some(stamp), rest.trim(), partial);
        } else if let Some((stamp, rest)) = stamped(c.text) {
            (c.stamp, c.text) = (Some(stamp), rest.trim());
        } else if let Some(rest) = role(c.text).or_else(|| label(c.text)).or_else(|| ray(c.text)) {
            c.text = rest.trim();
        } else {
            break;
        }
    }
    c
}

/// Kubernetes CRI: `2026-05-29T03:52:45.118201123Z stdout F text`, where `P` marks a piece.
fn container(text: &str) -> Option<(Stamp, &str, bool)> {
    let (stamp @ Stamp::Exact(_), rest) = time::lead(text)? else { return None };
    let rest = rest.strip_prefix(" stdout ").or_else(|| rest.strip_prefix(" stderr "))?;
    if let Some(rest) = rest.strip_prefix("P ") {
        return Some((stamp, rest, true));
    }
    Some((stamp, rest.strip_prefix('F')?, false))
}

/// A stamp in brackets, or bare with a separator behind it.
fn stamped(text: &str) -> Option<(Stamp, &str)> {
    if let Some(inner) = text.strip_prefix('[') {
        let (stamp, rest) = time::lead(inner)?;
        return Some((stamp, rest.trim_start().strip_prefix(']')?));
    }
    let (stamp, rest) = time::lead(text)?;
    let rest = rest.strip_prefix([' ', '\t', ':', '|'])?;
    Some((stamp, rest.trim_start_matches([' ', '-', '|', ':'])))
}

/// torchrun: `[default7]:`, `[rank0]:`, `[<role><n>]:`.
fn role(text: &str) -> Option<&str> {
    let (name, rest) = text.strip_prefix('[')?.split_once("]:")?;
    let fits = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.ends_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
    fits.then_some(rest)
}

/// `srun --label` (`3: `), and launchers that prefix the host (`worker-0: `, `node017: `).
fn label(text: &str) -> Option<&str> {
    let (name, rest) = text.split_once(": ")?;
    let host = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
    (host && name.len() <= 64).then_some(rest)
}

/// Ray: `(TaskRunner pid=123, ip=10.0.0.1) `.
fn ray(text: &str) -> Option<&str> {
    let (who, rest) = text.strip_prefix('(')?.split_once(") ")?;
    who.contains(" pid=").then_some(rest)
}

/// Takes out ANSI escape sequences: colours, cursor movements, titles.
pub(crate) fn strip_ansi(text: &str) -> Cow<'_, str> {
    if memchr::memchr(0x1b, text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.push(c);
            continue;
        }
        match chars.next() {
            // CSI: ends at the first byte in @..~
            Some('[') => while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {},
            // OSC: ends at BEL or at ESC \
            Some(']') => while chars.next().is_some_and(|c| c != '\u{7}' && c != '\\') {},
            _ => {}
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(s: &str) -> &str {
        strip(s).text
    }

    #[test]
    fn takes_off_every_launcher() {
        for s in [
            "[default7]: iteration 5/ 9 | x",
            "[rank0]:iteration 5/ 9 | x",
            "[trainer_3]:iteration 5/ 9 | x",
            "3: iteration 5/ 9 | x",
            " 0:  iteration 5/ 9 | x",
            "worker-0: iteration 5/ 9 | x",
            "jean-zay-iam01: iteration 5/ 9 | x",
            "(TaskRunner pid=123, ip=10.0.0.1) iteration 5/ 9 | x",
            "2026-05-29T03:52:45.118201123Z stdout F iteration 5/ 9 | x",
            "3:  [2026-05-29 03:52:45] iteration 5/ 9 | x",
            "2026-05-29T03:52:45Z stderr F [rank0]: [2026-05-29 03:52:45.1] iteration 5/ 9 | x",
            "2026-05-29 03:52:45,123 - iteration 5/ 9 | x\r",
        ] {
            assert_eq!(text(s), "iteration 5/ 9 | x", "{s}");
        }
    }

    #[test]
    fn leaves_what_is_no_prefix() {
        for s in [
            "step: 20  loss: 11.8",
            "s:0 trl:11.0091",
            "step:1/1845 train_time:73ms",
            "loss: 3: 4",
            "[Rank 1] (after 1 iterations)",
            "[2, 12000] loss: 1.247",
            "(min, max) time across ranks (ms):",
            "{'loss': 1}",
        ] {
            assert_eq!(text(s), s);
        }
    }

    #[test]
    fn the_trainers_own_stamp_wins() {
        let c = strip("2026-05-29T03:52:46.5Z stdout F [2026-05-29 05:52:45] iteration");
        assert_eq!(c.stamp, Some(Stamp::Local(1780033965.0)));
        let c = strip("2026-05-29T03:52:45Z stdout P half");
        assert!(c.partial && c.text == "half");
    }

    #[test]
    fn colours_and_bars() {
        assert_eq!(strip_ansi("\u{1b}[31mloss\u{1b}[0m: 2\u{1b}]0;title\u{7}!"), "loss: 2!");
        assert_eq!(strip_ansi("\u{1b}"), "");
        let parts: Vec<_> = segments("\r  1%| 1/9\r  \r{'a': 1}\n").collect();
        assert_eq!(parts, ["  1%| 1/9", "{'a': 1}"]);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(s in "\\PC{0,60}") {
            let _ = (strip(&s), strip_ansi(&format!("\u{1b}[{s}\u{1b}]{s}")));
        }

        #[test]
        fn prefixes_in_front_change_nothing_behind(n in 0u32..9999, s in "[a-z{}][a-z0-9 |.]{0,30}[a-z]") {
            let line = format!("{n}: [default{n}]:{s}");
            proptest::prop_assert_eq!(strip(&line).text, text(&s));
        }
    }
}
