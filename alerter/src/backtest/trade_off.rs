//! The result of `--tune`, for a terminal, for programs and for the HTML report.

use core::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;
use stepwatch_respond::message::number;

use super::tune::{Outcome, Role, Tune};
use super::words;
use crate::chart::scatter::{Dot, DotKind, Scatter, scatter};
use crate::markup::escape;

#[derive(Debug, Serialize)]
struct Line<'a> {
    tune: Object<'a>,
}

#[derive(Debug, Serialize)]
struct Object<'a> {
    detector: &'a str,
    run_weeks: f64,
    labelled: bool,
    settings: &'a [Outcome],
}

pub(super) fn json(tune: &Tune, out: &mut dyn Write) -> io::Result<()> {
    let object = Object {
        detector: tune.detector,
        run_weeks: tune.weeks(),
        labelled: tune.labelled,
        settings: &tune.outcomes,
    };
    serde_json::to_writer(&mut *out, &Line { tune: object })?;
    writeln!(out)
}

/// The rows of the table; the first has the column headings.
fn rows(tune: &Tune) -> Vec<Vec<String>> {
    let mut head: Vec<String> = vec![String::new()];
    head.extend(keys(tune).map(str::to_owned));
    head.extend(["pages/week", "tickets/week"].map(str::to_owned));
    if tune.labelled {
        head.extend(["false pages", "false tickets"].map(str::to_owned));
    }
    head.extend(["found", "median delay"].map(str::to_owned));
    let mut rows = vec![head];
    for o in &tune.outcomes {
        let mut row = vec![mark(o).to_owned()];
        if o.setting == Role::Off {
            row.extend(keys(tune).map(|_| "off".to_owned()));
        }
        row.extend(o.keys.iter().map(|(_, v)| v.clone()));
        row.extend([number(o.pages_per_week), number(o.tickets_per_week)]);
        if tune.labelled {
            row.extend([o.false_pages, o.false_tickets].map(|n| n.unwrap_or(0).to_string()));
        }
        row.push(format!("{} of {}", o.found, o.of));
        row.push(o.median_delay_steps.map_or("most missed".into(), |d| format!("{} steps", number(d))));
        rows.push(row);
    }
    rows
}

fn keys(tune: &Tune) -> impl Iterator<Item = &str> {
    tune.outcomes
        .iter()
        .find(|o| o.setting == Role::Now)
        .into_iter()
        .flat_map(|o| o.keys.iter().map(|(k, _)| k.as_str()))
}

fn mark(o: &Outcome) -> &'static str {
    match (o.setting, o.best) {
        (Role::Now, true) => "now, best",
        (Role::Now, false) => "now",
        (_, true) => "best",
        (..) => "",
    }
}

fn explained(tune: &Tune) -> String {
    let wanted = if tune.labelled {
        "`found` and the delay are counted against the labels"
    } else {
        "`found` and the delay are counted against what the detector adds as it is set now: what would not have been announced, or later, without it"
    };
    format!(
        "{wanted}. Pages and tickets are those of the whole alerter, so that `off` shows what is there without {}. \
         `best`: no other setting is as quiet, finds as much and is as quick.",
        tune.detector
    )
}

pub(super) fn text(tune: &Tune, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}: sensitivity over {}\n", tune.detector, words::length(tune.weeks()))?;
    let rows = rows(tune);
    let columns = rows.first().map_or(0, Vec::len);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|v| v.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(v, w)| format!("{v:>w$}")).collect();
        writeln!(out, "  {}", cells.join("  ").trim_end())?;
    }
    writeln!(out, "\n{}", explained(tune))
}

/// The section of the HTML report.
pub(super) fn html(tune: &Tune) -> String {
    let mut out = format!(
        "<section><h2>Sensitivity of {}</h2><p class=\"note\">{}</p>\n<figure>{}</figure>\n",
        escape(tune.detector),
        escape(&explained(tune)).replace('`', ""),
        scatter(&picture(tune)),
    );
    let rows = rows(tune);
    out.push_str("<table><thead><tr>");
    for cell in rows.first().into_iter().flatten() {
        let _ = write!(out, "<th scope=\"col\" class=\"num\">{}</th>", escape(cell));
    }
    out.push_str("</tr></thead><tbody>\n");
    for (row, o) in rows.iter().skip(1).zip(&tune.outcomes) {
        out.push_str(if o.setting == Role::Now { "<tr class=\"now\">" } else { "<tr>" });
        for cell in row {
            let _ = write!(out, "<td class=\"num\">{}</td>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></section>\n");
    out
}

fn picture(tune: &Tune) -> Scatter {
    let weeks = tune.weeks();
    let dots = tune.outcomes.iter().filter_map(|o| {
        let (pages, tickets) = o.noise();
        let kind = match (o.setting, o.best) {
            (Role::Off, _) => return None,
            (Role::Now, _) => DotKind::Now,
            (_, true) => DotKind::Best,
            (..) => DotKind::Other,
        };
        let keys: Vec<String> = o.keys.iter().map(|(k, v)| format!("{k} {v}")).collect();
        Some(Dot {
            x: if weeks > 0.0 { (pages + tickets) as f64 / weeks } else { 0.0 },
            y: o.median_delay_steps?,
            size: o.found as f64 / o.of.max(1) as f64,
            label: format!(
                "{}: {pages} pages, {tickets} tickets, found {} of {}",
                keys.join(", "),
                o.found,
                o.of
            ),
            kind,
        })
    });
    Scatter {
        title: format!("Trade-off of {}", tune.detector),
        x: if tune.labelled { "false pages and tickets a run-week" } else { "pages and tickets a run-week" }
            .into(),
        y: "median delay, steps".into(),
        dots: dots.collect(),
    }
}
