//! A report as Markdown.

use std::fmt::Write as _;

use super::text::{self, Cell};
use super::view::ReportView;
use crate::markdown::{Table, escape};

pub(crate) fn render(view: &ReportView) -> String {
    let mut out = format!("# {}\n\n{}\n\n", escape(&text::title(view)), text::period(view));
    if view.total.seconds <= 0.0 {
        out.push_str("No time of any run is accounted.\n");
        return out;
    }
    let mut figures = Table::new(&["", ""]);
    text::figures(view).into_iter().for_each(|row| figures.row(row));
    figures.write(&mut out);
    for table in text::tables(view) {
        let _ = writeln!(out, "## {}\n", table.title);
        let mut written = Table::new(table.columns);
        table.rows.iter().for_each(|row| written.row(row.iter().map(Cell::text)));
        written.write(&mut out);
    }
    if view.runs_hidden > 0 {
        let _ = writeln!(out, "{} more runs are counted above, and not listed.", view.runs_hidden);
    }
    out
}
