//! Text from outside on its way into HTML and SVG.

use core::fmt;

use askama::filters::Escaper;
use stepwatch_wire::words;

/// What the templates of our pages pass every value through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Html;

impl Escaper for Html {
    fn write_escaped_str<W: fmt::Write>(&self, dest: W, text: &str) -> fmt::Result {
        write_escaped(dest, text)
    }
}

/// Text that cannot become markup, in an element or a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    write_escaped(&mut out, text).expect("memory takes every write");
    out
}

fn write_escaped(mut dest: impl fmt::Write, text: &str) -> fmt::Result {
    for c in words::clean(text).chars() {
        match c {
            '&' => dest.write_str("&amp;")?,
            '<' => dest.write_str("&lt;")?,
            '>' => dest.write_str("&gt;")?,
            '"' => dest.write_str("&quot;")?,
            '\'' => dest.write_str("&#39;")?,
            c => dest.write_char(c)?,
        }
    }
    Ok(())
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
