//! The fleet on one screen: the state of the alerter, the incidents, the runs, and the nodes with
//! the worst first.

use std::io::Write;
use std::time::Duration;

use anstyle::Style;
use clap::Args;
use serde::Serialize;
use stepwatch_model::Severity;
use stepwatch_model::time::{Span, Ts};
use stepwatch_wire::names::metric;
use tokio::time::MissedTickBehavior;

use super::client::{Client, ClientArgs, ClientError};
use super::error::CliError;
use super::format::{Format, json};
use super::incidents;
use super::screen::{self, Key, Screen};
use super::state;
use super::table::{BAD, FAINT, HEADING, Table, WARNING};
use crate::api::nodes::{NodeList, NodeStateView, NodeView};
use crate::api::view::{IncidentList, IncidentView, RunList, RunView, Status, StoreState};
use crate::clock::wall;

/// The shortest refresh interval. The alerter reads its own state for each answer, so a shorter one
/// shows nothing new.
const SHORTEST: Span = Span::millis(500);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter top
  stepwatch-alerter top --interval 10s
  stepwatch-alerter top --format json | jq '.nodes[] | select(.state != \"healthy\") | .node'")]
pub(super) struct TopArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Ask the alerter this often
    #[arg(long, value_name = "DURATION", value_parser = Span::parse, default_value = "2s")]
    interval: Span,
    /// Print the whole once; where standard output is no terminal this is always so
    #[arg(long)]
    once: bool,
    /// json: print the whole once, for programs
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// The data of the screen.
#[derive(Debug, Serialize)]
pub(super) struct Fleet {
    pub(super) status: Status,
    /// The unresolved incidents.
    pub(super) incidents: Vec<IncidentView>,
    pub(super) runs: Vec<RunView>,
    pub(super) nodes: Vec<NodeView>,
}

pub(super) async fn run(args: TopArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let client = args.client.client()?;
    let fleet = read(&client).await?;
    if args.format == Format::Json {
        return json(out, &fleet);
    }
    if args.once || !screen::is_terminal() {
        let lines = lines(&fleet, None, wall(), usize::MAX, usize::MAX);
        return Ok(lines.iter().try_for_each(|line| writeln!(out, "{line}"))?);
    }
    live(&client, fleet, args.interval.max(SHORTEST)).await
}

async fn read(client: &Client) -> Result<Fleet, ClientError> {
    let (status, incidents, runs, nodes): (Status, IncidentList, RunList, NodeList) = tokio::try_join!(
        client.get(&["status"], &[]),
        client.get(&["incidents"], &[("state", "unresolved")]),
        client.get(&["runs"], &[]),
        client.get(&["nodes"], &[]),
    )?;
    Ok(Fleet { status, incidents: incidents.incidents, runs: runs.runs, nodes: nodes.nodes })
}

async fn live(client: &Client, mut fleet: Fleet, interval: Span) -> Result<(), CliError> {
    let mut screen = Screen::open()?;
    let mut ticks = tokio::time::interval(Duration::from_millis(interval.0.unsigned_abs()));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let mut lost = None;
    loop {
        let (columns, rows) = Screen::size();
        Screen::draw(&lines(&fleet, lost.as_ref(), wall(), columns, rows))?;
        tokio::select! {
            key = screen.key() => if key == Key::Quit { return Ok(()) },
            _ = ticks.tick() => match read(client).await {
                Ok(read) => (fleet, lost) = (read, None),
                Err(error) => lost = Some(error),
            },
        }
    }
}

/// At most `rows` lines of at most `columns` columns. Incidents and runs leave room for the nodes.
pub(super) fn lines(
    fleet: &Fleet,
    lost: Option<&ClientError>,
    now: Ts,
    columns: usize,
    rows: usize,
) -> Vec<String> {
    let mut lines = vec![headline(&fleet.status, now, columns)];
    if let Some(error) = lost {
        lines.push(screen::line(&format!("{error}; trying again"), WARNING, columns));
    }
    // Each part has a blank line, a heading and its rows.
    let mut part = |table: &Table, most: usize| {
        let all = table.lines(columns);
        lines.push(String::new());
        let shown = all.len().min(most.saturating_sub(1).max(2));
        lines.extend(all.iter().take(shown).cloned());
        if all.len() > shown {
            // The last row is replaced with the number of hidden rows.
            lines.pop();
            let hidden = all.len() - shown + 1;
            lines.push(screen::line(&format!("and {hidden} more"), FAINT, columns));
        }
        lines.len()
    };
    let mut used = 1;
    if !fleet.incidents.is_empty() {
        used = part(&incidents::table(&fleet.incidents, now), rows / 3);
    }
    if !fleet.runs.is_empty() {
        used = part(&runs(fleet), (rows - used.min(rows)) / 2);
    }
    part(&nodes(fleet), rows - used.min(rows));
    lines.truncate(rows);
    lines
}

fn headline(status: &Status, now: Ts, columns: usize) -> String {
    let mut parts = vec![format!("stepwatch-alerter {}", status.version)];
    parts.push(format!("up {}", Span((now - status.started_at.0).0.max(0))));
    if let (Some(up), Some(all)) = (status.sources_up, status.sources) {
        parts.push(format!("{up} of {all} sources up"));
    }
    parts.push(format!("{} runs", status.runs));
    parts.push(format!("{} open incidents", status.open_incidents));
    parts.push(format!("store {}", state::store(status.store)));
    parts.push(now.to_string());
    let style = if status.store == StoreState::Ok { HEADING } else { BAD };
    screen::line(&parts.join("   "), style, columns)
}

/// The runs with the worst incident first, and ended runs last.
fn runs(fleet: &Fleet) -> Table {
    let all = &fleet.incidents;
    let of = |run: &RunView| all.iter().filter(|i| i.run == run.run).collect::<Vec<&IncidentView>>();
    let mut rows: Vec<(&RunView, Vec<&IncidentView>)> = fleet.runs.iter().map(|r| (r, of(r))).collect();
    rows.sort_by_key(|(run, of)| {
        let worst = of.iter().map(|i| i.severity).max();
        (run.ended.is_some(), core::cmp::Reverse(worst), run.run.clone())
    });
    let columns = ["RUN", "STATE", "STEP", "STEP TIME", "LOSS", "MFU", "RANKS", "CHECKPOINT", "INCIDENTS"];
    let mut table = Table::new(&columns);
    for (run, of) in rows {
        let step = |step: Option<i64>| step.map_or_else(|| "-".to_owned(), |step| step.to_string());
        let row = table.painted([
            run.run.as_str(),
            &state::standing(run),
            &step(run.last_step),
            &value(run, metric::STEP_TIME),
            &value(run, metric::LOSS),
            &value(run, metric::MFU),
            &state::ranks(run),
            &step(run.last_checkpoint_step),
            &(if of.is_empty() { String::new() } else { of.len().to_string() }),
        ]);
        state::paint(row, 1, run);
        match of.iter().map(|i| i.severity).max() {
            Some(Severity::Page) => row.paint(8, BAD),
            Some(_) => row.paint(8, WARNING),
            None => row,
        };
    }
    table
}

fn value(run: &RunView, signal: &str) -> String {
    let value = run.signals.iter().find(|s| s.signal == signal).and_then(|s| s.value);
    value.map_or_else(|| "-".to_owned(), |value| super::runs::in_unit(signal, value))
}

/// The nodes. The alerter sorts them with the worst first.
fn nodes(fleet: &Fleet) -> Table {
    let mut table = Table::new(&["NODE", "STATE", "GPUS", "RUNS", "WORST"]);
    for node in &fleet.nodes {
        let (word, style) = match node.state {
            NodeStateView::Faulty => ("faulty", BAD),
            NodeStateView::Suspect => ("suspect", WARNING),
            NodeStateView::Silent => ("silent", WARNING),
            NodeStateView::Healthy => ("healthy", Style::new()),
        };
        let row = table.painted([
            node.node.as_str(),
            word,
            &node.gpus.to_string(),
            &node.runs.join(", "),
            node.worst.as_deref().unwrap_or_default(),
        ]);
        row.paint(1, style);
    }
    table
}
