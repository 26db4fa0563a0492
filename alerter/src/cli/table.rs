//! Columns for a terminal.

use std::borrow::Cow;
use std::io::{self, Write};

use stepwatch_wire::words;

/// Removes control characters: text from outside must not steer the terminal.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    words::line(text)
}

/// Rows under headings, as wide as their widest cell; the last column is left as long as it is.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    indent: usize,
}

impl Table {
    pub(super) fn new(columns: &[&str]) -> Self {
        Self { rows: vec![columns.iter().map(|c| (*c).to_owned()).collect()], indent: 0 }
    }

    /// Two columns without a heading.
    pub(super) fn facts() -> Self {
        Self::default()
    }

    pub(super) fn indented(mut self, by: usize) -> Self {
        self.indent = by;
        self
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        self.rows.push(cells.into_iter().map(|c| plain(c.as_ref()).into_owned()).collect());
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |i: usize| {
            self.rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(core::iter::repeat_n(' ', width - cell.chars().count() + 2));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_control_characters_do_not_pass() {
        let mut t = Table::new(&["id", "what"]).indented(2);
        t.row(["a", "x\u{1b}[31mred\nnext"]);
        t.row(["été", ""]);
        let mut out = Vec::new();
        t.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  id   what\n  a    x[31mred next\n  été\n");
    }
}
