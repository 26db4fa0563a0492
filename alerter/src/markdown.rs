//! Escapes untrusted text for Markdown.

use std::fmt::Write as _;

use crate::notify::text::line;

/// The most characters of one cell, because a log line in an error can be very long.
const CELL_MAX: usize = 1000;

/// The text on one line, without effective markup.
pub(crate) fn escape(text: &str) -> String {
    let text = line(text, CELL_MAX);
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    for (i, c) in chars.iter().enumerate() {
        let word = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(|c| c.is_alphanumeric());
        let escaped = match c {
            '&' => {
                out.push_str("&amp;");
                continue;
            }
            '\\' | '`' | '*' | '[' | ']' | '<' | '>' | '|' | '~' => true,
            // An underscore within a word is literal.
            '_' => !(word(i.checked_sub(1)) && word(Some(i + 1))),
            '#' | '-' | '+' | '=' => i == 0,
            // An `@` is a mention only at the beginning of a word.
            '@' => !word(i.checked_sub(1)),
            _ => false,
        };
        if escaped {
            out.push('\\');
        }
        out.push(*c);
    }
    out
}

pub(crate) struct Table {
    text: String,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { text: format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len())) }
    }

    /// Adds a row. It must have as many cells as the head.
    pub(crate) fn row<S: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| escape(cell.as_ref())).collect();
        let _ = writeln!(self.text, "| {} |", cells.join(" | "));
    }

    pub(crate) fn write(self, out: &mut String) {
        out.push_str(&self.text);
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_looks_like_markup_is_text() {
        assert_eq!(
            escape("grad_norm of a|b <b> [x](y) `c` *d* _e_"),
            "grad_norm of a\\|b \\<b\\> \\[x\\](y) \\`c\\` \\*d\\* \\_e\\_"
        );
        assert_eq!(escape("# not a heading\n- nor a list"), "\\# not a heading - nor a list");
        assert_eq!(
            escape("R&D &lt; @everyone me@example.com"),
            "R&amp;D &amp;lt; \\@everyone me@example.com"
        );
    }

    proptest! {
        #[test]
        fn a_row_is_one_line_of_as_many_cells(a: String, b: String) {
            let mut t = Table::new(&["x", "y"]);
            t.row([&a, &b]);
            let row = t.text.lines().nth(2).unwrap_or_default().to_owned();
            prop_assert_eq!(t.text.lines().count(), 3);
            let bars = row.replace("\\\\", "").replace("\\|", "").matches('|').count();
            prop_assert_eq!(bars, 3);
            prop_assert!(!row.replace("\\\\", "").replace("\\<", "").contains('<'));
        }
    }
}
