//! A report as a stand-alone HTML page.

use std::fmt::Write as _;

use stepwatch_kit::build_info;

use super::text::{self, Cell, Table};
use super::view::ReportView;
use crate::markup::{escape, page};

pub(crate) fn render(view: &ReportView) -> String {
    let title = text::title(view);
    let mut body = format!(
        "<header><h1>{}</h1><p>{}</p></header>\n<main>\n",
        escape(&title),
        escape(&text::period(view))
    );
    if view.total.seconds <= 0.0 {
        body.push_str("<p>No time of any run is accounted.</p>\n");
    } else {
        sections(&mut body, view);
    }
    body.push_str("</main>\n");
    page(&title, &body, build_info::VERSION, "where the GPU time went")
}

fn sections(out: &mut String, view: &ReportView) {
    let figures = text::figures(view).into_iter().map(|row| row.map(Cell::Text).into()).collect();
    table(out, &Table { title: "Summary", columns: &[], rows: figures });
    text::tables(view).iter().for_each(|of| table(out, of));
    if view.runs_hidden > 0 {
        let _ = writeln!(out, "<p>{} more runs are counted above, and not listed.</p>", view.runs_hidden);
    }
}

fn table(out: &mut String, Table { title, columns, rows }: &Table) {
    let _ = writeln!(out, "<h2>{title}</h2>\n<section tabindex=\"0\" aria-label=\"{title}\"><table>");
    if !columns.is_empty() {
        out.push_str("<thead><tr>");
        columns.iter().for_each(|column| _ = write!(out, "<th scope=\"col\">{column}</th>"));
        out.push_str("</tr></thead>\n");
    }
    out.push_str("<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let cell = escape(cell.text());
            let _ = match at {
                0 => write!(out, "<th scope=\"row\">{cell}</th>"),
                _ => write!(out, "<td>{cell}</td>"),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></section>\n");
}
