//! Text and number formats that all written reports share.

use stepwatch_model::time::Span;
use stepwatch_model::{Target, number};

use super::view::{CostlyView, InterruptionView, ReportView, RunReport, SavesView};
use crate::state_time::StateTime;

pub(super) const NOT_EXPLAINED: &str = "not explained";

/// The class of the suspect, and whether it is hardware or software.
pub(super) fn component(target: Option<&Target>) -> (&'static str, &'static str) {
    match target {
        Some(Target::Gpu { .. }) => ("GPU", "hardware"),
        Some(Target::Link { .. } | Target::Switch) => ("network", "hardware"),
        Some(Target::Node { .. }) => ("node", "hardware"),
        Some(Target::Part { .. }) => ("part of a node", "hardware"),
        Some(Target::Power) => ("power", "hardware"),
        Some(Target::Storage(_) | Target::Checkpoint { .. }) => ("storage", "hardware"),
        Some(Target::DataLoading) => ("data loading", "software"),
        Some(Target::Saving) => ("saving", "software"),
        Some(Target::Rank { .. } | Target::Ranks { .. } | Target::Stage { .. }) => ("rank", "software"),
        Some(Target::Setting { .. }) => ("set-up", "software"),
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

/// The goodput: `91.2 %`, or `91.2 to 94.0 %` if some of the time is unknown.
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
    gpu_hours.map_or_else(|| "size not known".to_owned(), amount)
}

pub(super) fn dollars(dollars: Option<f64>) -> String {
    dollars.map_or_else(|| "-".to_owned(), |dollars| format!("${}", grouped(dollars, 2)))
}

/// A number with three significant digits, or all digits before the decimal point.
pub(super) fn amount(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.1 {
        return number(value);
    }
    let digits = match value.abs() {
        0.0 | 99.95.. => 0,
        9.995.. => 1,
        _ => 2,
    };
    grouped(value, digits)
}

/// A number with thousands separators, such as `1,234,567.8`.
fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

/// The energy as `1,234 kWh`, with the share of the time if it does not cover all.
fn energy(run: &RunReport) -> Option<String> {
    let kwh = amount(run.energy_kwh?);
    Some(match run.energy_measured {
        Some(share) if share < 0.995 => format!("{kwh} kWh, measured of {} of the GPU time", percent(share)),
        _ => format!("{kwh} kWh"),
    })
}

fn span(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |seconds| Span::from_secs_f64(seconds).to_string())
}

/// The names and values of the overall figures.
pub(crate) fn figures(view: &ReportView) -> Vec<[String; 2]> {
    let t = &view.total;
    let cost = match t.dollars {
        Some(_) => dollars(t.dollars),
        None => "no price is set (cost_per_gpu_hour)".to_owned(),
    };
    let rows = [
        ("GPU hours", Some(hours(t.gpu_hours))),
        ("Cost", Some(cost)),
        ("Goodput", Some(goodput(t))),
        ("Interruptions", Some(t.interruptions.to_string())),
        ("Mean time between interruptions", Some(span(t.seconds_between_interruptions))),
        ("Mean time to the first step", Some(span(t.seconds_to_first_step))),
        ("Waiting for saves", Some(t.save_share.map_or_else(|| "-".to_owned(), percent))),
        ("Energy", energy(t)),
        ("CO2 equivalent", t.carbon_kg.map(|kg| format!("{} kg", amount(kg)))),
        ("Tokens per joule", t.tokens_per_joule.map(amount)),
        ("Tokens per dollar", t.tokens_per_dollar.map(amount)),
        (
            "Runs of unknown size",
            Some(view.runs_unsized).filter(|n| *n > 0).map(|n| format!("{n}, which no share contains")),
        ),
        ("Pages and tickets", Some(view.incidents.to_string())),
    ];
    rows.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?])).collect()
}

/// A table of the report, for any format.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) columns: &'static [&'static str],
    pub(crate) rows: Vec<Vec<Cell>>,
}

#[derive(Debug)]
pub(crate) enum Cell {
    Text(String),
    /// The name of a run, which is linked to its page.
    Run(String),
    /// The id of an incident, which is linked to its page.
    Incident(String),
}

impl Cell {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Run(text) | Self::Incident(text) => text,
        }
    }
}

impl Table {
    /// The cells of a row with the names of their columns.
    pub(crate) fn cells<'a>(&self, row: &'a [Cell]) -> impl Iterator<Item = (&'static str, &'a Cell)> {
        self.columns.iter().copied().zip(row)
    }
}

/// The tables that have rows.
pub(crate) fn tables(view: &ReportView) -> Vec<Table> {
    let is_fleet = view.run.is_none();
    let all = [
        Table { title: "Where the time went", columns: STATE_COLUMNS, rows: state_rows(&view.total) },
        Table {
            title: "Runs",
            columns: RUN_COLUMNS,
            rows: view.runs.iter().filter(|_| is_fleet).map(run_row).collect(),
        },
        Table { title: "Saves", columns: SAVES_COLUMNS, rows: view.saves.iter().map(saves_row).collect() },
        Table { title: "Interruptions", columns: INTERRUPTION_COLUMNS, rows: interruption_rows(view) },
        Table { title: "The costliest incidents", columns: COSTLY_COLUMNS, rows: costly_rows(view) },
    ];
    all.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

const RUN_COLUMNS: &[&str] = &[
    "Run",
    "GPU hours",
    "Cost",
    "Goodput",
    "Interruptions",
    "Between them",
    "To first step",
    "Saves",
    "kWh",
];
const SAVES_COLUMNS: &[&str] =
    &["Run", "Saves", "Each blocks", "Between failures", "Cost", "Best interval", "Cost then", "Saved a day"];
const STATE_COLUMNS: &[&str] = &["State", "GPU hours", "Share", "Cost"];
const INTERRUPTION_COLUMNS: &[&str] =
    &["Component", "Class", "What", "Count", "Share", "Between them", "GPU hours lost", "Cost"];
const COSTLY_COLUMNS: &[&str] = &["Incident", "Run", "Opened", "What", "Lasted", "GPU hours lost", "Cost"];

fn run_row(run: &RunReport) -> Vec<Cell> {
    let figures = [
        hours(run.gpu_hours),
        dollars(run.dollars),
        goodput(run),
        run.interruptions.to_string(),
        span(run.seconds_between_interruptions),
        span(run.seconds_to_first_step),
        run.save_share.map_or_else(|| "-".to_owned(), percent),
        run.energy_kwh.map_or_else(|| "-".to_owned(), amount),
    ];
    [Cell::Run(run.run.clone())].into_iter().chain(figures.map(Cell::Text)).collect()
}

fn saves_row(saves: &SavesView) -> Vec<Cell> {
    let i = &saves.interval;
    let figures = [
        i.interval(),
        span(Some(i.save_seconds)),
        i.failures(),
        percent(i.cost),
        i.best(),
        if i.advised { percent(i.best_cost) } else { "-".to_owned() },
        i.saved().unwrap_or_else(|| "-".to_owned()),
    ];
    [Cell::Run(saves.run.clone())].into_iter().chain(figures.map(Cell::Text)).collect()
}

fn state_rows(run: &RunReport) -> Vec<Vec<Cell>> {
    let of_gpus = |t: &StateTime| t.gpu_seconds.unwrap_or_default();
    let gpu_seconds: f64 = run.time.iter().map(of_gpus).sum();
    let row = |t: &StateTime| {
        // Of what stands in the column before, where anything does.
        let share = match gpu_seconds {
            all if all > 0.0 => of_gpus(t) / all,
            _ => t.seconds / run.seconds.max(f64::MIN_POSITIVE),
        };
        let cells = [
            t.state.clone(),
            hours(t.gpu_seconds.map(|seconds| seconds / 3600.0)),
            percent(share),
            dollars(t.dollars),
        ];
        cells.map(Cell::Text).into()
    };
    run.time.iter().map(row).collect()
}

fn interruption_rows(view: &ReportView) -> Vec<Vec<Cell>> {
    let row = |i: &InterruptionView| {
        let cells = [
            i.component.clone(),
            i.class.clone(),
            i.what.clone(),
            i.count.to_string(),
            percent(i.share),
            span(Some(i.seconds_between)),
            hours(i.lost_gpu_hours),
            dollars(i.lost_dollars.filter(|dollars| *dollars > 0.0)),
        ];
        cells.map(Cell::Text).into()
    };
    view.interruptions.iter().map(row).collect()
}

fn costly_rows(view: &ReportView) -> Vec<Vec<Cell>> {
    let row = |c: &CostlyView| {
        let figures = [
            c.opened_at.0.to_string(),
            format!("{}: {}", c.title, c.summary),
            span(Some(c.lasted_seconds)),
            hours(c.lost_gpu_hours),
            dollars(c.lost_dollars),
        ];
        let named = [Cell::Incident(c.id.clone()), Cell::Run(c.run.clone())];
        named.into_iter().chain(figures.map(Cell::Text)).collect()
    };
    view.costliest.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_groups_of_three() {
        let said: Vec<_> = [0.0, 0.0571, 7.25, 99.94, 1000.4, 368_123_456.0, -1234.5].map(amount).into();
        assert_eq!(said, ["0", "0.0571", "7.25", "99.9", "1,000", "368,123,456", "-1,234"]);
        assert_eq!(dollars(Some(1_234_567.891)), "$1,234,567.89");
        assert_eq!(dollars(None), "-");
    }
}
