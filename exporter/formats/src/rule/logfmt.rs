//! logfmt: `level=info msg="train step" global_step=12 train.loss=2.3`.

use std::borrow::Cow;

/// Pairs of one line; the rest is not looked at.
const MAX_PAIRS: usize = 256;

/// The keys with their values, unquoted; a word without a `=` is passed over.
pub(super) fn pairs(text: &str) -> Vec<(&str, Cow<'_, str>)> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() && pairs.len() < MAX_PAIRS {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let (key, behind) = rest.split_at(end);
        let Some(value) = behind.strip_prefix('=') else {
            rest = behind.trim_start();
            continue;
        };
        let (value, behind) = if let Some(quoted) = value.strip_prefix('"') {
            unquote(quoted)
        } else {
            let (value, behind) = value.split_at(value.find(char::is_whitespace).unwrap_or(value.len()));
            (Cow::Borrowed(value), behind)
        };
        pairs.push((key, value));
        rest = behind.trim_start();
    }
    pairs
}

/// A value up to its closing quote, and what follows that. Without one, all of it.
fn unquote(text: &str) -> (Cow<'_, str>, &str) {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' if out.len() == i => return (Cow::Borrowed(&text[..i]), &text[i + 1..]),
            '"' => return (Cow::Owned(out), &text[i + 1..]),
            '\\' => match chars.next().map(|(_, c)| c) {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some(c) => out.push(c),
                None => {}
            },
            c => out.push(c),
        }
    }
    (Cow::Owned(out), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values() {
        let got = pairs(r#"level=info msg="a \"b\" c" step=12  flag x= y="" loss=nan end"#);
        let want =
            [("level", "info"), ("msg", "a \"b\" c"), ("step", "12"), ("x", ""), ("y", ""), ("loss", "nan")];
        assert_eq!(got, want.map(|(k, v)| (k, Cow::from(v))));
        assert_eq!(pairs(r#"a="cut"#), [("a", Cow::from("cut"))]);
        assert_eq!(pairs("=5"), [("", Cow::from("5"))]);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,60}", near in "[a-z=\" \\\\]{0,40}") {
            let _ = (pairs(&text), pairs(&near));
        }
    }
}
