//! The HTML that the pages need: everything that came from outside passes [`escape`].

use core::fmt::{self, Write as _};

pub(super) use crate::markup::escape;

/// A cell of a table.
pub(super) enum Cell {
    Text(String),
    Number(String),
    Link {
        href: String,
        text: String,
    },
    /// One of our own words, coloured by the style sheet by its class.
    Badge(&'static str),
}

impl Cell {
    pub(super) fn text(v: impl fmt::Display) -> Self {
        Self::Text(v.to_string())
    }

    pub(super) fn number(v: impl fmt::Display) -> Self {
        Self::Number(v.to_string())
    }

    /// A number, or nothing.
    pub(super) fn maybe(v: Option<impl fmt::Display>) -> Self {
        Self::Number(v.map(|v| v.to_string()).unwrap_or_default())
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(t) => write!(f, "<td>{}</td>", escape(t)),
            Self::Number(t) => write!(f, "<td class=\"num\">{}</td>", escape(t)),
            Self::Link { href, text } => {
                write!(f, "<td><a href=\"{}\">{}</a></td>", escape(href), escape(text))
            }
            Self::Badge(word) => write!(f, "<td><span class=\"badge {word}\">{word}</span></td>"),
        }
    }
}

/// A table with a heading, or a sentence in place of an empty one.
pub(super) fn table(out: &mut String, title: &str, columns: &[&str], rows: &[Vec<Cell>], empty: &str) {
    let _ = write!(out, "<section><h2>{}</h2>", escape(title));
    if rows.is_empty() {
        let _ = write!(out, "<p class=\"empty\">{}</p></section>", escape(empty));
        return;
    }
    out.push_str("<table><thead><tr>");
    for c in columns {
        let _ = write!(out, "<th>{}</th>", escape(c));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "{cell}");
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></section>");
}

/// A whole document.
pub(super) fn document(title: &str, refresh_seconds: u32, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"refresh\" content=\"{refresh_seconds}\">\
         <link rel=\"stylesheet\" href=\"/assets/page.css\"></head><body>{body}</body></html>",
        escape(title)
    )
}
