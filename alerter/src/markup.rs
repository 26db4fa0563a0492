//! Text from outside on its way into HTML and SVG.

use stepwatch_wire::words;

/// Text that cannot become markup, in an element or a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in words::clean(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_escapes(text: String) {
            let out = escape(&text);
            prop_assert!(!out.contains(['<', '>', '"', '\'']), "markup");
            prop_assert!(!out.contains('\u{202e}'), "turned round");
        }
    }
}
