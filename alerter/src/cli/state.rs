//! The runs, sources and status of a running alerter on a terminal.

use std::io::Write;

use clap::Args;
use stepwatch_model::time::{Span, Ts};

use super::client::ClientArgs;
use super::error::CliError;
use super::format::{Format, json};
use super::table::{BAD, FAINT, Row, Table, WARNING};
use crate::api::view::{LeaderView, RunList, RunView, SourceList, SourceView, Status, StoreState, When};
use crate::clock::wall;

#[derive(Debug, Args)]
pub(super) struct StateArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(super) async fn runs(args: StateArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let list: RunList = args.client.client()?.get(&["runs"], &[]).await?;
    match args.format {
        Format::Json => json(out, &list),
        Format::Table => Ok(run_table(&list, wall(), out)?),
    }
}

pub(super) async fn sources(args: StateArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let list: SourceList = args.client.client()?.get(&["sources"], &[]).await?;
    match args.format {
        Format::Json => json(out, &list),
        Format::Table => Ok(source_table(&list.sources, wall(), out)?),
    }
}

pub(super) async fn status(args: StateArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let status: Status = args.client.client()?.get(&["status"], &[]).await?;
    match args.format {
        Format::Json => json(out, &status),
        Format::Table => Ok(facts(&status, wall(), out)?),
    }
}

pub(super) fn run_table(list: &RunList, now: Ts, out: &mut dyn Write) -> std::io::Result<()> {
    if list.runs.is_empty() {
        return writeln!(out, "no runs");
    }
    let mut table =
        Table::new(&["RUN", "ATTEMPT", "STATE", "STEP", "HEARD", "RANKS", "SOURCES", "CHECKPOINT"]);
    for r in &list.runs {
        let row = table.painted([
            r.run.as_str(),
            &r.attempt.to_string(),
            &standing(r),
            &r.last_step.map_or_else(|| "-".into(), |step| step.to_string()),
            &ago(now, r.last_heard_at),
            &ranks(r),
            &r.sources.len().to_string(),
            &r.last_checkpoint_step.map_or_else(|| "-".into(), |step| step.to_string()),
        ]);
        paint(row, 2, r);
    }
    table.write(out)?;
    if list.hidden > 0 {
        writeln!(out, "and {} more", list.hidden)?;
    }
    Ok(())
}

/// Colours the state of a run.
pub(super) fn paint(row: &mut Row, column: usize, r: &RunView) {
    match r.ended {
        Some(0) => row.paint(column, FAINT),
        Some(_) => row.paint(column, BAD),
        None if !r.lost_sources.is_empty() => row.paint(column, WARNING),
        None => row,
    };
}

pub(super) fn ranks(r: &RunView) -> String {
    r.world.map_or_else(|| r.ranks.to_string(), |world| format!("{} of {world}", r.ranks))
}

pub(super) fn standing(r: &RunView) -> String {
    match (r.ended, r.last_step_age_seconds) {
        (Some(code), _) => format!("ended with {code}"),
        (None, _) if !r.lost_sources.is_empty() => {
            format!("{} of {} sources lost", r.lost_sources.len(), r.sources.len())
        }
        (None, Some(age)) => format!("stepped {} ago", Span::from_secs_f64(age)),
        (None, None) => "no step yet".into(),
    }
}

pub(super) fn source_table(sources: &[SourceView], now: Ts, out: &mut dyn Write) -> std::io::Result<()> {
    if sources.is_empty() {
        return writeln!(out, "no sources");
    }
    let mut table =
        Table::new(&["SOURCE", "STATE", "LAST RECORD", "RECORDS", "MALFORMED", "LOST", "REFUSED", "ERROR"]);
    for s in sources {
        let row = table.painted([
            s.source.as_str(),
            &format!("{} for {}", if s.up { "up" } else { "DOWN" }, Span((now - s.since.0).0.max(0))),
            &s.last_record_at.map_or_else(|| "-".into(), |at| ago(now, at)),
            &s.records.to_string(),
            &s.malformed_records.to_string(),
            &s.lost_records.to_string(),
            &s.refused_records.to_string(),
            s.error.as_deref().or(s.refused.as_deref()).unwrap_or_default(),
        ]);
        if !s.up {
            row.paint(1, BAD);
        }
    }
    table.write(out)
}

pub(super) fn facts(s: &Status, now: Ts, out: &mut dyn Write) -> std::io::Result<()> {
    let mut t = Table::facts();
    t.row(["version", &format!("{} ({})", s.version, s.revision)]);
    t.row(["running", &format!("for {}, since {}", Span((now - s.started_at.0).0.max(0)), s.started_at.0)]);
    if let (Some(up), Some(all)) = (s.sources_up, s.sources) {
        t.row(["sources", &format!("{up} of {all} up")]);
    }
    t.row(["runs", &s.runs.to_string()]);
    t.row(["incidents", &format!("{} open", s.open_incidents)]);
    let store = store(s.store);
    let pending = s.pending_effects.map(|n| format!(", {n} decisions not yet durable"));
    t.row(["store", &format!("{store}{}", pending.unwrap_or_default())]);
    if let Some(leader) = &s.leader {
        t.row(["leader", &lead(leader)]);
    }
    if let Some(at) = s.next_deadline_at {
        let why = s.next_deadline.as_deref().unwrap_or_default();
        t.row(["next", &format!("{why} in {}", Span((at.0 - now).0.max(0)))]);
    }
    t.write(out)
}

fn lead(leader: &LeaderView) -> String {
    let LeaderView { address, epoch, replicas, differing } = leader;
    let alone = if *replicas < 2 { ", NOBODY COULD TAKE OVER" } else { "" };
    let unlike = if *differing > 0 { format!(", {differing} DIFFER") } else { String::new() };
    format!("{address} under lease {epoch}; replicas: {replicas}{alone}{unlike}")
}

pub(super) fn store(state: StoreState) -> &'static str {
    match state {
        StoreState::Ok => "ok",
        StoreState::Refuses => "REFUSES COMMITS",
    }
}

pub(super) fn ago(now: Ts, at: When) -> String {
    format!("{} ago", Span((now - at.0).0.max(0)))
}
