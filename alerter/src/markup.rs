//! Untrusted text in HTML and SVG, and stand-alone HTML pages: without scripts and resources,
//! readable from a disk, on paper and by a screen reader.

use core::fmt;

use askama::filters::Escaper;
use base64::Engine as _;
use sha2::{Digest, Sha256};
use stepwatch_wire::words;

const STYLE: &str = include_str!("assets/report.css");

/// A stand-alone page. `body` is the markup up to the end of `main`.
pub(crate) fn page(title: &str, body: &str, version: &str, by: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{}</title>\n<style>{STYLE}</style></head>\n<body>\n{body}\
         <footer><p>stepwatch-alerter {} &middot; {}</p></footer>\n</body></html>\n",
        base64::engine::general_purpose::STANDARD.encode(Sha256::digest(STYLE)),
        escape(title),
        escape(version),
        escape(by),
    )
}

/// The escaper for all values in the templates of our pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Html;

impl Escaper for Html {
    fn write_escaped_str<W: fmt::Write>(&self, dest: W, text: &str) -> fmt::Result {
        write_escaped(dest, text)
    }
}

/// Escapes text for an element or a quoted attribute.
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
