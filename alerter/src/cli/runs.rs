//! Runs on a terminal: the list, or one run with its signals.

use std::io::Write;

use clap::{Args, Subcommand};
use stepwatch_model::time::Ts;
use stepwatch_model::{Signal, number};

use super::client::ClientArgs;
use super::error::CliError;
use super::format::{Format, json};
use super::incidents::listing;
use super::runs_diff::{self, DiffArgs};
use super::state::{self, StateArgs};
use super::table::{Table, plain};
use crate::api::series::SeriesView;
use crate::api::view::{IncidentList, RunList, RunView};
use crate::clock::wall;

/// The width of the sparkline of a signal in columns, and its bars.
const WIDTH: &str = "48";
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct RunsArgs {
    #[command(flatten)]
    list: StateArgs,
    #[command(subcommand)]
    command: Option<RunsCommand>,
}

#[derive(Debug, Subcommand)]
enum RunsCommand {
    /// One run: where it is, and how its signals went
    Show(ShowArgs),
    /// Two runs side by side: set-up, steps, loss at equal steps, speed, incidents
    Diff(DiffArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter runs show llama-70b")]
struct ShowArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Its name
    run: String,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(super) async fn run(args: RunsArgs, out: &mut dyn Write) -> Result<(), CliError> {
    match args.command {
        None => state::runs(args.list, out).await,
        Some(RunsCommand::Show(args)) => show(args, out).await,
        Some(RunsCommand::Diff(args)) => runs_diff::diff(args, out).await,
    }
}

async fn show(args: ShowArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let client = args.client.client()?;
    let all: RunList = client.get(&["runs"], &[]).await?;
    let name = &args.run;
    let found = all.runs.into_iter().find(|r| r.run == *name);
    let run = found.ok_or_else(|| CliError::Other(format!("there is no run {name:?}")))?;
    if args.format == Format::Json {
        return json(out, &run);
    }
    let mut series = Vec::new();
    for signal in &run.signals {
        let query = [("signal", signal.signal.as_str()), ("points", WIDTH)];
        series.push(client.get::<SeriesView>(&["runs", name, "series"], &query).await?);
    }
    let query = [("run", name.as_str()), ("state", "unresolved")];
    let incidents: IncidentList = client.get(&["incidents"], &query).await?;
    facts(&run, &series, wall(), out)?;
    writeln!(out)?;
    Ok(listing(&incidents.incidents, wall(), out)?)
}

pub(super) fn facts(
    run: &RunView,
    series: &[SeriesView],
    now: Ts,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    writeln!(out, "{}", plain(&run.run))?;
    let mut t = Table::facts();
    t.row(["state", &state::standing(run)]);
    t.row(["step", &run.last_step.map_or_else(|| "-".into(), |step| step.to_string())]);
    t.row(["attempt", &run.attempt.to_string()]);
    t.row(["heard", &state::ago(now, run.last_heard_at)]);
    t.row(["ranks", &state::ranks(run)]);
    let checkpoint =
        run.last_checkpoint_step.map_or_else(|| "none known".into(), |step| format!("step {step}"));
    t.row(["checkpoint", &checkpoint]);
    t.write(out)?;
    if run.signals.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let mut table = Table::new(&["SIGNAL", "LAST", "EXPECTED", "NOT FINITE", "FROM", "TO", ""]);
    for signal in &run.signals {
        let shown =
            |value: Option<f64>| value.map_or_else(|| "-".into(), |value| in_unit(&signal.signal, value));
        let series = series.iter().find(|s| s.signal == signal.signal);
        let first = series.and_then(|s| s.step.first());
        table.row([
            signal.signal.as_str(),
            &shown(signal.value),
            &shown(signal.expected),
            &series.map_or(0, |s| s.nonfinite.iter().map(|n| u64::from(*n)).sum()).to_string(),
            &first.map_or_else(|| "-".into(), |step| step.to_string()),
            &signal.step.to_string(),
            &series.map_or_else(String::new, |s| picture(&s.last)),
        ]);
    }
    table.write(out)
}

/// A value in the unit of its signal.
pub(super) fn in_unit(signal: &str, value: f64) -> String {
    let unit = Signal::find(signal).and_then(|signal| signal.unit.text(value));
    unit.unwrap_or_else(|| number(value))
}

/// A sparkline with one bar per point, scaled from the lowest to the highest value; a space for a
/// missing point.
fn picture(values: &[Option<f32>]) -> String {
    let finite = || values.iter().flatten().copied();
    let (low, high) = (finite().fold(f32::INFINITY, f32::min), finite().fold(f32::NEG_INFINITY, f32::max));
    let bar = |value: &Option<f32>| {
        let Some(value) = value else { return ' ' };
        let share = if high > low { (value - low) / (high - low) } else { 0.0 };
        BARS[((share * 7.0).round() as usize).min(7)]
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::doc::examples;

    #[test]
    fn a_picture_has_a_bar_a_point() {
        assert_eq!(picture(&[Some(0.0), None, Some(1.0), Some(7.0)]), "▁ ▂█");
        assert_eq!(picture(&[Some(2.0), Some(2.0)]), "▁▁");
        assert_eq!(picture(&[None]), " ");
    }

    #[test]
    fn a_run_shows_its_signals() {
        let mut run: RunView = serde_json::from_value(examples::run()).unwrap();
        let series: SeriesView = serde_json::from_value(examples::series()).unwrap();
        run.signals = vec![crate::api::view::SignalValue {
            signal: "loss".into(),
            step: 12344,
            value: Some(2.35),
            expected: Some(2.37),
        }];
        let mut out = Vec::new();
        facts(&run, &[series], Ts(1_795_227_480_000), &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let row = out.lines().find(|line| line.starts_with("loss")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["loss", "2.35", "2.37", "0", "12336", "12344", "█▁"], "{out}");
        assert!(out.starts_with(&format!("{}\n", run.run)), "{out}");
    }
}
