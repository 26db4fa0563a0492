//! Words and numbers that the written forms of a report share.

use stepwatch_model::Target;
use stepwatch_model::number;
use stepwatch_model::time::Span;

use super::view::{CostlyView, InterruptionView, ReportView, RunReport};
use crate::api::view::StateTime;

pub(super) const NOT_EXPLAINED: &str = "not explained";

/// What is suspected, coarsely, and whether that is hardware or software.
pub(super) fn component(target: Option<&Target>) -> (&'static str, &'static str) {
    match target {
        Some(Target::Gpu { .. }) => ("GPU", "hardware"),
        Some(Target::Link { .. } | Target::Switch) => ("network", "hardware"),
        Some(Target::Node { .. }) => ("node", "hardware"),
        Some(Target::Part { .. }) => ("part of a node", "hardware"),
        Some(Target::Power) => ("power", "hardware"),
        Some(Target::Storage(_) | Target::Checkpoint { .. }) => ("storage", "hardware"),
        Some(Target::DataLoading) => ("data loading", "software"),
        Some(Target::Rank { .. } | Target::Ranks { .. } | Target::Stage { .. }) => ("rank", "software"),
        Some(Target::Layer { .. } | Target::Batch { .. } | Target::Recipe { .. } | Target::LearningRate) => {
            ("training", "software")
        }
        _ => ("unknown", "unknown"),
    }
}

pub(crate) fn title(view: &ReportView) -> String {
    match &view.run {
        Some(run) => format!("Report on {run}"),
        None => "Report".to_owned(),
    }
}

pub(crate) fn period(view: &ReportView) -> String {
    format!("From {} to {}.", view.since.0, view.until.0)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// `91.2 %`, or `91.2 to 94.0 %` where nothing is known of some of the time.
fn goodput(run: &RunReport) -> String {
    match (run.goodput, run.goodput_at_most) {
        (Some(least), Some(most)) if most - least >= 0.0005 => {
            format!("{:.1} to {}", 100.0 * least, percent(most))
        }
        (Some(goodput), _) => percent(goodput),
        (None, _) => "-".to_owned(),
    }
}

fn hours(gpu_hours: Option<f64>) -> String {
    gpu_hours.map_or_else(|| "size not known".to_owned(), number)
}

fn dollars(amount: Option<f64>) -> String {
    amount.map_or_else(|| "-".to_owned(), |amount| format!("${amount:.2}"))
}

fn span(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |seconds| Span::from_secs_f64(seconds).to_string())
}

/// The figures of the whole, with their names.
pub(crate) fn figures(view: &ReportView) -> Vec<[String; 2]> {
    let t = &view.total;
    let rows = [
        ("GPU hours", hours(t.gpu_hours)),
        (
            "Cost",
            t.dollars
                .map_or_else(|| "no price is set (cost_per_gpu_hour)".to_owned(), |d| format!("${d:.2}")),
        ),
        ("Goodput", goodput(t)),
        ("Interruptions", t.interruptions.to_string()),
        ("Mean time between interruptions", span(t.seconds_between_interruptions)),
        ("Mean time to the first step", span(t.seconds_to_first_step)),
        ("Waiting for saves", t.save_share.map_or_else(|| "-".to_owned(), percent)),
        ("Pages and tickets", view.incidents.to_string()),
    ];
    rows.map(|(name, value)| [name.to_owned(), value]).into()
}

/// A table of the report, in any form.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) columns: &'static [&'static str],
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// The cells of a row with the names of their columns.
    pub(crate) fn cells<'a>(&self, row: &'a [String]) -> impl Iterator<Item = (&'static str, &'a String)> {
        self.columns.iter().copied().zip(row)
    }
}

/// Those that have rows.
pub(crate) fn tables(view: &ReportView) -> Vec<Table> {
    let is_fleet = view.run.is_none();
    let all = [
        Table { title: "Where the time went", columns: STATE_COLUMNS, rows: state_rows(&view.total) },
        Table {
            title: "Runs",
            columns: RUN_COLUMNS,
            rows: view.runs.iter().filter(|_| is_fleet).map(run_row).collect(),
        },
        Table { title: "Interruptions", columns: INTERRUPTION_COLUMNS, rows: interruption_rows(view) },
        Table { title: "The costliest incidents", columns: COSTLY_COLUMNS, rows: costly_rows(view) },
    ];
    all.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

const RUN_COLUMNS: &[&str] =
    &["Run", "GPU hours", "Cost", "Goodput", "Interruptions", "Between them", "To first step", "Saves"];
const STATE_COLUMNS: &[&str] = &["State", "GPU hours", "Share", "Cost"];
const INTERRUPTION_COLUMNS: &[&str] = &["Component", "Class", "What", "Count", "Share", "GPU hours lost"];
const COSTLY_COLUMNS: &[&str] = &["Incident", "Run", "Opened", "What", "Lasted", "GPU hours lost", "Cost"];

fn run_row(run: &RunReport) -> Vec<String> {
    vec![
        run.run.clone(),
        hours(run.gpu_hours),
        dollars(run.dollars),
        goodput(run),
        run.interruptions.to_string(),
        span(run.seconds_between_interruptions),
        span(run.seconds_to_first_step),
        run.save_share.map_or_else(|| "-".to_owned(), percent),
    ]
}

fn state_rows(run: &RunReport) -> Vec<Vec<String>> {
    let row = |t: &StateTime| {
        vec![
            t.state.clone(),
            hours(t.gpu_seconds.map(|seconds| seconds / 3600.0)),
            percent(t.seconds / run.seconds.max(f64::MIN_POSITIVE)),
            dollars(t.dollars),
        ]
    };
    run.time.iter().map(row).collect()
}

fn interruption_rows(view: &ReportView) -> Vec<Vec<String>> {
    let row = |i: &InterruptionView| {
        let count = i.count.to_string();
        vec![
            i.component.clone(),
            i.class.clone(),
            i.what.clone(),
            count,
            percent(i.share),
            number(i.lost_gpu_hours),
        ]
    };
    view.interruptions.iter().map(row).collect()
}

fn costly_rows(view: &ReportView) -> Vec<Vec<String>> {
    let row = |c: &CostlyView| {
        vec![
            c.id.clone(),
            c.run.clone(),
            c.opened_at.0.to_string(),
            format!("{}: {}", c.title, c.summary),
            span(Some(c.lasted_seconds)),
            number(c.lost_gpu_hours),
            dollars(c.lost_dollars),
        ]
    };
    view.costliest.iter().map(row).collect()
}
