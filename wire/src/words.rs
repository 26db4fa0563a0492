//! Removes unsafe characters from text of outside origin: anyone who trains or sends requests
//! controls run names, log lines, labels and comments.
//!
//! Text is cleaned once, on arrival. The code that writes to a channel escapes the markup of that
//! channel.

use std::borrow::Cow;

/// Returns the text without characters that control a terminal, change the direction of text, or
/// are invisible. Line breaks stay; a tab or other blank becomes a space.
pub fn clean(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| match c {
        c if kept(c) => Some(c),
        c if c == '\t' || is_other_blank(c) => Some(' '),
        _ => None,
    };
    Cow::Owned(text.chars().filter_map(shown).collect())
}

/// As [`clean`], for text of one line, such as a name or label: line breaks become spaces.
pub fn line(text: &str) -> Cow<'_, str> {
    match clean(text) {
        text if !text.contains('\n') => text,
        text => Cow::Owned(text.replace('\n', " ")),
    }
}

/// As [`line()`], for an owned text, which is usually returned without a copy.
pub fn into_line(text: String) -> String {
    match line(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(line) => line,
    }
}

/// As [`clean`], for an owned text.
pub fn into_clean(text: String) -> String {
    match clean(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(clean) => clean,
    }
}

/// Whether [`clean`] would keep the text unchanged. Nearly all text is ASCII, which is checked many
/// bytes at a time.
fn is_plain(text: &str) -> bool {
    let odd = |b: u8| (b < b' ' && b != b'\n') || b >= 0x7f;
    !text.bytes().fold(false, |any, b| any | odd(b)) || text.chars().all(kept)
}

fn kept(c: char) -> bool {
    c == '\n' || !(c.is_control() || is_hidden(c) || is_other_blank(c))
}

/// Whether the character looks like a space: two names must not differ only by it.
fn is_other_blank(c: char) -> bool {
    !c.is_ascii() && c.is_whitespace() && !c.is_control() && !is_hidden(c)
}

/// Whether the character is invisible, or changes the direction of text. Two names must not differ
/// only by such characters, and no name may hide a text in them.
fn is_hidden(c: char) -> bool {
    let after = HIDDEN.partition_point(|(first, _)| *first <= c);
    after.checked_sub(1).and_then(|at| HIDDEN.get(at)).is_some_and(|(_, last)| c <= *last)
}

/// Ranges in ascending order. They contain all of `Default_Ignorable_Code_Point` in
/// <https://www.unicode.org/Public/16.0.0/ucd/DerivedCoreProperties.txt>: soft hyphen, joiners,
/// fillers, bidirectional controls, variation selectors, tags. Also line and paragraph separators,
/// which would break a line; the blank Braille pattern; annotation and object marks; and the
/// private use area, which differs by font.
const HIDDEN: &[(char, char)] = &[
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{2800}', '\u{2800}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{e000}', '\u{f8ff}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffc}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

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
            ("a\u{a0}b\u{2003}c\u{3000}d\u{1680}e\u{205f}f\u{e000}g\u{fffc}h", "a b c d e fgh"),
        ] {
            assert_eq!(clean(text), want, "{text:?}");
            assert_eq!(line(text), want.replace('\n', " "), "{text:?}");
        }
        assert!(
            matches!(clean("plain\ntext"), Cow::Borrowed(_)) && matches!(line("größer"), Cow::Borrowed(_))
        );
    }

    #[test]
    fn two_names_do_not_differ_by_what_cannot_be_seen() {
        let blank = "\u{34f} \u{115f} \u{1160} \u{17b4} \u{17b5} \u{180b} \u{180d} \u{180f} \u{2065} \u{2800} \
            \u{3164} \u{fe00} \u{fe0f} \u{ffa0} \u{fff0} \u{1bca0} \u{1bca3} \u{1d173} \u{1d17a} \u{e0000} \
            \u{e0100} \u{e0fff}";
        for c in blank.chars().filter(|c| *c != ' ') {
            assert_eq!(line(&format!("llama{c}")), "llama", "{:x}", u32::from(c));
        }
        let seen =
            "\u{ac}\u{350}\u{115e}\u{1161}\u{17b6}\u{2801}\u{3163}\u{3165}\u{fe10}\u{ffa1}\u{fffd}\u{1d172}";
        assert_eq!(line(seen), seen);
        assert!(HIDDEN.windows(2).all(|pair| pair[0].1 < pair[1].0), "in their order");
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
