//! Words from outside, made fit to be shown: run names, log lines, labels and comments come from
//! whoever trains or asks.
//!
//! This is asked once, where a text comes in. What is markup in one channel only is for whoever
//! writes to that channel.

use std::borrow::Cow;

/// The text without characters that steer a terminal, turn round what stands beside them, or cannot
/// be seen. Line breaks stay, and a tab is a space.
pub fn clean(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.chars().filter_map(|c| if c == '\t' { Some(' ') } else { kept(c).then_some(c) }).collect(),
    )
}

/// The same for a name, a label or whatever else has one line: a line break is a space.
pub fn line(text: &str) -> Cow<'_, str> {
    match clean(text) {
        text if !text.contains('\n') => text,
        text => Cow::Owned(text.replace('\n', " ")),
    }
}

/// [`line()`] of a text that nobody else has: mostly it is moved, and not copied.
pub fn into_line(text: String) -> String {
    match line(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(line) => line,
    }
}

/// [`clean`] of a text that nobody else has.
pub fn into_clean(text: String) -> String {
    match clean(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(clean) => clean,
    }
}

/// Whether a text is what [`clean`] makes of it. Nearly all text is ASCII, and looked at many bytes
/// at a time.
fn is_plain(text: &str) -> bool {
    let odd = |b: u8| (b < b' ' && b != b'\n') || b >= 0x7f;
    !text.bytes().fold(false, |any, b| any | odd(b)) || text.chars().all(kept)
}

fn kept(c: char) -> bool {
    c == '\n' || !(c.is_control() || is_hidden(c))
}

/// What cannot be seen, and what changes the direction of the text beside it: the soft hyphen, the
/// bidirectional controls, zero-width characters, the byte order mark, annotations, and the plane
/// of tags, which can spell a hidden text.
fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_steers_turns_or_hides_goes_and_the_rest_stands() {
        for (text, want) in [
            ("loss 2.5", "loss 2.5"),
            ("größer 模型 🚀", "größer 模型 🚀"),
            ("a\tb\r\nc", "a b\nc"),
            ("\u{1b}[31mred\u{7f}\u{0}\u{85}", "[31mred"),
            ("a\u{202e}b\u{2066}c\u{200b}d\u{feff}e\u{2028}f\u{e0041}g\u{ad}h\u{61c}", "abcdefgh"),
            ("*b* <!channel> `x`", "*b* <!channel> `x`"),
        ] {
            assert_eq!(clean(text), want, "{text:?}");
            assert_eq!(line(text), want.replace('\n', " "), "{text:?}");
        }
        assert!(
            matches!(clean("plain\ntext"), Cow::Borrowed(_)) && matches!(line("größer"), Cow::Borrowed(_))
        );
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_left_and_twice_is_once(text: String) {
            let cleaned = clean(&text).into_owned();
            prop_assert!(cleaned.chars().all(kept) && !line(&text).contains('\n'));
            prop_assert_eq!(clean(&cleaned), cleaned.as_str());
            prop_assert_eq!(into_line(text.clone()), line(&text));
            prop_assert_eq!(into_clean(text), cleaned);
        }
    }
}
