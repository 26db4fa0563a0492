//! A comparison of two runs: setup, position, loss at equal steps, speed, and incidents.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use clap::Args;
use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;
use stepwatch_model::{Severity, number, short};
use stepwatch_wire::names::metric;
use stepwatch_wire::setting::topic;

use super::client::{Client, ClientArgs, ClientError};
use super::error::CliError;
use super::format::{Format, json};
use super::runs::in_unit;
use super::state;
use super::table::Table;
use crate::api::attempts::{AspectView, HistoryView, SettingView};
use crate::api::series::SeriesView;
use crate::api::view::{IncidentList, RunList, RunView};
use crate::when::When;

/// Signals of the speed of a run.
const SPEED: [&str; 3] = [metric::STEP_TIME, metric::TOKENS_PER_SECOND, metric::MFU];
/// The number of points that are read, and of equal steps that are shown.
const POINTS: &str = "4096";
const STEPS: i64 = 10;
/// The most nodes that are listed of those that only one of the runs has, and of settings in the
/// table.
const NODES: usize = 20;
const ROWS: usize = 40;
/// The most incidents that are counted.
const INCIDENTS: &str = "1000";

#[derive(Debug, Args)]
#[command(after_help = "\
Loss is that of the same steps. Step time, tokens and MFU are medians of the steps that both have.
How a run was set up is kept when it is over; its signals are for a week. Of its setup, what may explain most
comes first.

Examples:
  stepwatch-alerter runs diff llama-70b llama-70b-lr3e-4
  stepwatch-alerter runs diff llama-70b llama-70b-lr3e-4 --format json")]
pub(super) struct DiffArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// A run
    a: String,
    /// Another run
    b: String,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// The data of one of the two runs.
#[derive(Debug)]
struct Side {
    run: RunView,
    history: HistoryView,
    signals: BTreeMap<&'static str, SeriesView>,
    incidents: Counts,
    watched: bool,
}

#[derive(Debug, Serialize)]
struct Diff {
    a: SideView,
    b: SideView,
    /// The steps that both runs have made.
    steps: Option<(i64, i64)>,
    setup: Vec<Setting>,
    /// The nodes beyond the limit that only one of the runs has.
    more_nodes: usize,
    loss: Vec<AtStep>,
    speed: Vec<Speed>,
}

#[derive(Debug, Serialize)]
struct SideView {
    #[serde(flatten)]
    run: RunView,
    /// The number of attempts, and of the latest incidents by severity.
    attempts: u32,
    incidents: Counts,
    /// `false` of a run that is over for so long that it is not watched any more.
    watched: bool,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Counts {
    page: usize,
    ticket: usize,
    info: usize,
}

/// A setting in which the runs differ; `null` if a run does not report it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Setting {
    of: AspectView,
    name: String,
    a: Option<String>,
    b: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct AtStep {
    step: i64,
    a: Option<f64>,
    b: Option<f64>,
    /// `b` minus `a`.
    difference: Option<f64>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Speed {
    signal: &'static str,
    a: Option<f64>,
    b: Option<f64>,
    /// The relative change from `a` to `b`.
    change: Option<f64>,
}

pub(super) async fn diff(args: DiffArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let client = args.client.client()?;
    let all: RunList = client.get(&["runs"], &[]).await?;
    let (a, b) = (side(&client, &all, &args.a).await?, side(&client, &all, &args.b).await?);
    let diff = Diff::new(a, b);
    match args.format {
        Format::Json => json(out, &diff),
        Format::Table => Ok(diff.write(out)?),
    }
}

async fn side(client: &Client, all: &RunList, name: &str) -> Result<Side, CliError> {
    // Of a name that nobody knows, the answer is an error with the nearest one.
    let history: Result<HistoryView, ClientError> = client.get(&["runs", name, "attempts"], &[]).await;
    let history = history?;
    let found = all.runs.iter().find(|r| r.run == name).cloned();
    let watched = found.is_some();
    let run = found.unwrap_or_else(|| forgotten(&history));
    let mut signals = BTreeMap::new();
    for signal in core::iter::once(metric::LOSS).chain(SPEED) {
        if watched && run.signals.iter().all(|s| s.signal != signal) {
            continue;
        }
        let query = [("signal", signal), ("points", POINTS)];
        let series: Result<SeriesView, ClientError> = client.get(&["runs", name, "series"], &query).await;
        match series {
            Ok(series) => drop(signals.insert(signal, series)),
            // Signals are kept for a week after the last step.
            Err(ClientError::Refused(_)) if !watched => {}
            Err(error) => return Err(error.into()),
        }
    }
    let query = [("run", name), ("state", "all"), ("limit", INCIDENTS)];
    let list: IncidentList = client.get(&["incidents"], &query).await?;
    Ok(Side { run, history, signals, incidents: Counts::of(&list), watched })
}

/// What is known of a run that is not watched any more.
fn forgotten(history: &HistoryView) -> RunView {
    let (kept, last) = (history.forgotten.as_ref(), history.attempts.first());
    RunView {
        run: history.run.clone(),
        attempt: kept.map(|kept| kept.attempt).or(last.map(|last| last.attempt)).unwrap_or(0),
        last_step: kept.and_then(|kept| kept.last_step).or(last.and_then(|last| last.last_step)),
        last_step_at: None,
        last_step_age_seconds: None,
        last_heard_at: kept.map_or(When(Ts::default()), |kept| kept.last_heard_at),
        steps: kept.map_or(0, |kept| kept.steps),
        world: None,
        ranks: kept.map_or(0, |kept| kept.ranks as usize),
        sources: Vec::new(),
        lost_sources: Vec::new(),
        last_checkpoint_step: None,
        save_interval: None,
        duplicate_steps: 0,
        stale_steps: 0,
        ended: None,
        signals: Vec::new(),
        goodput: None,
        time: Vec::new(),
    }
}

impl Counts {
    fn of(list: &IncidentList) -> Self {
        let count = |severity| list.incidents.iter().filter(|i| i.severity == severity).count();
        Self { page: count(Severity::Page), ticket: count(Severity::Ticket), info: count(Severity::Info) }
    }

    fn words(self) -> String {
        format!("{} page, {} ticket, {} info", self.page, self.ticket, self.info)
    }
}

impl Diff {
    fn new(a: Side, b: Side) -> Self {
        let steps = common(&a, &b);
        let speed = SPEED.into_iter().filter(|s| a.signals.contains_key(s) || b.signals.contains_key(s));
        let speed = speed.map(|signal| Speed::new(signal, &a, &b, steps)).collect();
        let mut setup = settings(&a.history.setup, &b.history.setup);
        let more_nodes = limit_nodes(&mut setup);
        // What explains most comes first, and what only says where a run lives comes last.
        setup.sort_by_key(|s| (s.of == AspectView::Node, topic(&s.name)));
        Self {
            steps,
            setup,
            more_nodes,
            loss: loss(&a, &b, steps),
            speed,
            a: SideView::from(a),
            b: SideView::from(b),
        }
    }

    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let (a, b) = (&self.a.run, &self.b.run);
        let mut table = Table::new(&["", &a.run, &b.run]);
        let mut row = |name: &str, of: &dyn Fn(&SideView) -> String| {
            table.row([name.to_owned(), of(&self.a), of(&self.b)]);
        };
        row("state", &|s| {
            if s.watched { state::standing(&s.run) } else { "not watched any more".to_owned() }
        });
        row("step", &|s| s.run.last_step.map_or_else(|| "-".into(), |step| step.to_string()));
        row("attempts", &|s| s.attempts.to_string());
        row("ranks", &|s| state::ranks(&s.run));
        row("incidents", &|s| s.incidents.words());
        for speed in &self.speed {
            let change = speed.change.map(|by| format!(" ({})", percent(by))).unwrap_or_default();
            let shown = |value: Option<f64>| {
                value.map_or_else(|| "-".to_owned(), |value| in_unit(speed.signal, value))
            };
            table.row([speed.signal, &shown(speed.a), &format!("{}{change}", shown(speed.b))]);
        }
        table.write(out)?;
        writeln!(out)?;
        self.write_setup(out)?;
        writeln!(out)?;
        self.write_loss(out)
    }

    fn write_setup(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if self.setup.is_empty() {
            return writeln!(out, "no known difference in how they are set up");
        }
        let mut table = Table::new(&["SET UP", "OF", &self.a.run.run, &self.b.run.run]);
        for s in self.setup.iter().take(ROWS) {
            let value = |value: &Option<String>| value.as_deref().map_or_else(|| "-".to_owned(), short);
            table.row([s.name.clone(), s.of.words().to_owned(), value(&s.a), value(&s.b)]);
        }
        if self.more_nodes > 0 {
            let (more, of) = (format!("{} more", self.more_nodes), AspectView::Node.words().to_owned());
            table.row([more, of, String::new(), String::new()]);
        }
        table.write(out)?;
        match self.setup.len().saturating_sub(ROWS) {
            0 => Ok(()),
            more => writeln!(out, "and {more} more: --format json has all"),
        }
    }

    fn write_loss(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if self.loss.is_empty() {
            return writeln!(out, "no step of which both have a loss");
        }
        let heads = [&self.a, &self.b].map(|side| format!("LOSS {}", side.run.run));
        let mut table = Table::new(&["STEP", &heads[0], &heads[1], "DIFFERENCE"]);
        for l in &self.loss {
            let value = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
            let difference = l.difference.map_or_else(|| "-".to_owned(), signed);
            table.row([l.step.to_string(), value(l.a), value(l.b), difference]);
        }
        table.write(out)
    }
}

fn signed(value: f64) -> String {
    format!("{}{}", if value > 0.0 { "+" } else { "" }, number(value))
}

fn percent(share: f64) -> String {
    format!("{}{:.1} %", if share > 0.0 { "+" } else { "" }, 100.0 * share)
}

impl From<Side> for SideView {
    fn from(side: Side) -> Self {
        let (attempts, incidents, watched) = (side.run.attempt + 1, side.incidents, side.watched);
        Self { attempts, incidents, watched, run: side.run }
    }
}

impl Speed {
    fn new(signal: &'static str, a: &Side, b: &Side, steps: Option<(i64, i64)>) -> Self {
        let of = |side: &Side| median(side.signals.get(signal)?, steps);
        let (a, b) = (of(a), of(b));
        let change = a.zip(b).filter(|(a, _)| *a != 0.0).map(|(a, b)| b / a - 1.0);
        Self { signal, a, b, change }
    }
}

/// The range of steps that both runs have made and for which losses, or else other signals, are
/// kept.
fn common(a: &Side, b: &Side) -> Option<(i64, i64)> {
    let range = |side: &Side| {
        let series = side.signals.get(metric::LOSS).or_else(|| side.signals.values().next())?;
        Some((*series.step.first()?, side.run.last_step.or(series.step.last().copied())?))
    };
    let ((a_from, a_to), (b_from, b_to)) = range(a).zip(range(b))?;
    let (from, to) = (a_from.max(b_from), a_to.min(b_to));
    (from <= to).then_some((from, to))
}

/// Every setting that only one run reports or that differs. If a run reports nothing of an aspect,
/// the aspect is left out.
fn settings(a: &[SettingView], b: &[SettingView]) -> Vec<Setting> {
    let of = |list: &[SettingView]| -> BTreeMap<(AspectView, String), String> {
        list.iter().map(|s| ((s.of, s.name.clone()), s.value.clone())).collect()
    };
    let (a, b) = (of(a), of(b));
    let reports = |list: &BTreeMap<(AspectView, String), String>, of| list.keys().any(|key| key.0 == of);
    let both: BTreeSet<&(AspectView, String)> = a.keys().chain(b.keys()).collect();
    let differs =
        |key: &&&(AspectView, String)| a.get(*key) != b.get(*key) && reports(&a, key.0) && reports(&b, key.0);
    let setting = |key: &(AspectView, String)| Setting {
        of: key.0,
        name: key.1.clone(),
        a: a.get(key).cloned(),
        b: b.get(key).cloned(),
    };
    both.iter().filter(differs).map(|key| setting(key)).collect()
}

/// Leaves out the nodes above the limit, and returns how many they are.
fn limit_nodes(setup: &mut Vec<Setting>) -> usize {
    let (before, mut nodes) = (setup.len(), 0);
    setup.retain(|s| {
        nodes += usize::from(s.of == AspectView::Node);
        s.of != AspectView::Node || nodes <= NODES
    });
    before - setup.len()
}

/// Losses at steps spread over the common range, including its ends.
fn loss(a: &Side, b: &Side, steps: Option<(i64, i64)>) -> Vec<AtStep> {
    let series = a.signals.get(metric::LOSS).zip(b.signals.get(metric::LOSS));
    let (Some((a, b)), Some((from, to))) = (series, steps) else { return Vec::new() };
    let parts = (to - from).min(STEPS - 1);
    let step = |i: i64| {
        if parts == 0 { to } else { from + (to - from) / parts * i + (to - from) % parts * i / parts }
    };
    let at = |i: i64| {
        let step = step(i);
        let (a, b) = (value_at(a, step), value_at(b, step));
        AtStep { step, a, b, difference: a.zip(b).map(|(a, b)| b - a) }
    };
    (0..=parts).map(at).collect()
}

/// The mean of the point that contains a step.
fn value_at(series: &SeriesView, step: i64) -> Option<f64> {
    let i = series.step.partition_point(|first| *first <= step).checked_sub(1)?;
    series.mean.get(i).copied().flatten().map(exact)
}

/// The shortest decimal number for this value: 4.4 and not 4.400000095367432.
fn exact(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

/// The median over the steps in the range: the mean of each point, weighted with its number of
/// values.
fn median(series: &SeriesView, steps: Option<(i64, i64)>) -> Option<f64> {
    let (from, to) = steps?;
    let points = series.step.iter().zip(&series.mean).zip(&series.count);
    let within = points.filter(|((step, _), _)| (from..=to).contains(step));
    let mut values: Vec<(f64, u64)> =
        within.filter_map(|((_, mean), count)| Some((exact((*mean)?), u64::from(*count)))).collect();
    values.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let half = values.iter().map(|(_, count)| count).sum::<u64>().div_ceil(2);
    let mut seen = 0;
    values
        .into_iter()
        .find(|(_, count)| {
            seen += count;
            seen >= half
        })
        .map(|(value, _)| value)
}

#[cfg(test)]
mod tests;
