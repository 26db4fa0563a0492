//! Tables for a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use stepwatch_model::Severity;
use stepwatch_wire::words;

/// The style of what a person should check now.
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
/// The style of what a person should check at some time.
pub(super) const WARNING: Style = AnsiColor::Yellow.on_default();
pub(super) const FAINT: Style = Style::new().dimmed();
pub(super) const HEADING: Style = Style::new().bold();
/// The number of blanks between columns.
const GAP: usize = 2;

/// Removes control characters, because external text must not control the terminal.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    words::line(text)
}

pub(super) fn of_severity(severity: Severity) -> Style {
    match severity {
        Severity::Page => BAD,
        Severity::Ticket => WARNING,
        Severity::Info => FAINT,
    }
}

/// Rows under headings. A column is as wide as its widest cell; the last column is not padded.
///
/// Styles are written as escape sequences, which standard output removes if it is not a terminal.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Row>,
    indent: usize,
}

#[derive(Debug, Default)]
pub(super) struct Row {
    cells: Vec<(String, Style)>,
}

impl Row {
    fn new(cells: impl IntoIterator<Item = impl AsRef<str>>, style: Style) -> Self {
        let cells = cells.into_iter().map(|c| (plain(c.as_ref()).into_owned(), style));
        Self { cells: cells.collect() }
    }

    /// Sets the style of a cell by its number.
    pub(super) fn paint(&mut self, column: usize, style: Style) -> &mut Self {
        if let Some((_, of_cell)) = self.cells.get_mut(column) {
            *of_cell = style;
        }
        self
    }
}

impl Table {
    pub(super) fn new(columns: &[&str]) -> Self {
        Self { rows: vec![Row::new(columns, HEADING)], indent: 0 }
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
        self.rows.push(Row::new(cells, Style::new()));
    }

    /// A row whose cells can be painted.
    pub(super) fn painted(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) -> &mut Row {
        self.rows.push(Row::new(cells, Style::new()));
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.lines(usize::MAX).iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    /// The rows, each truncated to `columns` columns.
    pub(super) fn lines(&self, columns: usize) -> Vec<String> {
        let count = self.rows.iter().map(|r| r.cells.len()).max().unwrap_or(0);
        let width = |i: usize| {
            let cells = self.rows.iter().filter_map(|r| r.cells.get(i));
            cells.map(|(text, _)| text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..count).map(width).collect();
        self.rows.iter().map(|row| self.line(row, &widths, columns)).collect()
    }

    fn line(&self, row: &Row, widths: &[usize], columns: usize) -> String {
        let mut line = String::new();
        // Pending blanks, which are written only if text follows.
        let (mut blanks, mut room) = (self.indent, columns);
        for ((text, style), width) in row.cells.iter().zip(widths) {
            let length = text.chars().count();
            if length > 0 && blanks < room {
                line.extend(core::iter::repeat_n(' ', blanks));
                room -= blanks;
                let shown: String = text.chars().take(room).collect();
                room -= length.min(room);
                // Writing to a string cannot fail.
                let _ = write!(line, "{style}{shown}{style:#}");
                blanks = 0;
            }
            blanks += width - length + GAP;
        }
        line
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
        let out = anstream::adapter::strip_str(core::str::from_utf8(&out).unwrap()).to_string();
        assert_eq!(out, "  id   what\n  a    x[31mred next\n  été\n");
    }

    #[test]
    fn rows_are_cut_to_the_terminal_and_cells_have_styles() {
        let mut t = Table::facts();
        t.painted(["abc", "def"]).paint(1, BAD);
        t.row(["a", "ghi"]);
        assert_eq!(t.lines(7), [format!("abc  {BAD}de{BAD:#}"), "a    gh".to_owned()]);
        assert_eq!(t.lines(5), ["abc", "a"]);
        assert_eq!(t.lines(2), ["ab", "a"]);
    }
}
