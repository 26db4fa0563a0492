//! Silences on a terminal.

use std::io::Write;

use clap::{Args, Subcommand};
use serde::Serialize;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::matcher::Matcher;
use stepwatch_respond::silence::Phase;

use super::client::ClientArgs;
use super::error::CliError;
use super::format::{Format, json};
use super::incidents::{listing, whoami};
use super::table::{Table, plain};
use crate::api::view::{PreviewView, SilenceList, SilenceView, When, WishView};
use crate::clock::wall;

#[derive(Debug, Subcommand)]
pub(super) enum SilencesCommand {
    /// Suppress notifications of incidents that match, for a while
    Add(AddArgs),
    /// The silences; without those that are over unless a filter says otherwise
    List(ListArgs),
    /// End silences now: people are notified of what they suppressed and is still open
    Expire(ExpireArgs),
    /// What a silence would keep quiet now, and would have in the last days
    Preview(PreviewArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter silences add run=llama-70b --for 2h --comment 'data loader is replaced'
  stepwatch-alerter silences add node=gpu-042 'kind=~\"gpu_fault|link_fault\"' --for 1d -c 'in repair' --expire-on-resolve")]
pub(super) struct AddArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// What it is about: run=llama-70b, kind=~"hang|stall", node!="gpu-042"; all of them must hold
    #[arg(required = true, value_name = "MATCHER")]
    matchers: Vec<Matcher>,
    /// How long: 30m, 2h, 1d
    #[arg(long = "for", value_name = "DURATION", value_parser = Span::parse, default_value = "1h")]
    length: Span,
    /// When it begins, in RFC 3339; now unless given
    #[arg(long, value_name = "TIME", value_parser = time)]
    start: Option<Ts>,
    /// Why
    #[arg(long, short)]
    comment: String,
    /// Who asks; by default the user of this shell
    #[arg(long)]
    by: Option<String>,
    /// End it when the last incident that it matches resolves
    #[arg(long)]
    expire_on_resolve: bool,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// active, pending, expired, unexpired or all
    #[arg(long, default_value = "unexpired")]
    state: String,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Args)]
pub(super) struct ExpireArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Their ids, or any unique beginnings of them
    #[arg(required = true, value_name = "ID")]
    silences: Vec<String>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter silences preview run=llama-70b")]
pub(super) struct PreviewArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// As for `add`
    #[arg(required = true, value_name = "MATCHER")]
    matchers: Vec<Matcher>,
    /// How far to look back
    #[arg(long, default_value_t = 7)]
    days: u32,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct PreviewWish {
    matchers: Vec<Matcher>,
    days: u32,
}

pub(super) async fn run(command: SilencesCommand, out: &mut dyn Write) -> Result<(), CliError> {
    match command {
        SilencesCommand::Add(args) => add(args, out).await,
        SilencesCommand::List(args) => {
            let query = [("state", args.state.as_str())];
            let list: SilenceList = args.client.client()?.get(&["silences"], &query).await?;
            match args.format {
                Format::Json => json(out, &list),
                Format::Table => Ok(table(&list.silences, wall(), out)?),
            }
        }
        SilencesCommand::Expire(args) => expire(args, out).await,
        SilencesCommand::Preview(args) => {
            let wish = PreviewWish { matchers: args.matchers, days: args.days };
            let preview: PreviewView = args.client.client()?.post(&["silences", "preview"], &wish).await?;
            match args.format {
                Format::Json => json(out, &preview),
                Format::Table => Ok(foresee(&preview, wall(), out)?),
            }
        }
    }
}

async fn add(args: AddArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let wish = WishView {
        id: None,
        matchers: args.matchers,
        starts_at: args.start.map(When),
        ends_at: Some(When(args.start.unwrap_or_else(wall) + args.length)),
        duration: None,
        created_by: args.by.unwrap_or_else(|| whoami(|name| std::env::var(name).ok())),
        comment: args.comment,
        expire_on_resolve: args.expire_on_resolve,
    };
    let silence: SilenceView = args.client.client()?.post(&["silences"], &wish).await?;
    if args.format == Format::Json {
        return json(out, &silence);
    }
    let (from, until) = (silence.starts_at.0, silence.ends_at.0);
    let from = if silence.state == Phase::Pending { format!(" from {from}") } else { String::new() };
    writeln!(out, "{} keeps {} quiet{from} until {until}", silence.id, plain(&selector(&silence)))?;
    for warning in &silence.warnings {
        writeln!(out, "warning: {}", plain(warning))?;
    }
    if !silence.incidents.is_empty() {
        writeln!(out, "open incidents that nobody is notified of now: {}", silence.incidents.join(", "))?;
    }
    Ok(())
}

async fn expire(args: ExpireArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let client = args.client.client()?;
    let mut ended = Vec::new();
    let mut failed = Ok(());
    for id in &args.silences {
        let silence: SilenceView = match client.delete(&["silences", id]).await {
            Ok(silence) => silence,
            Err(e) => {
                failed = Err(e.into());
                break;
            }
        };
        if args.format == Format::Table {
            writeln!(out, "{} is over ({})", silence.id, plain(&selector(&silence)))?;
        }
        ended.push(silence);
    }
    // The silences before the failed one have been ended.
    if args.format == Format::Json {
        json(out, &SilenceList { silences: ended })?;
    }
    failed
}

pub(super) fn table(silences: &[SilenceView], now: Ts, out: &mut dyn Write) -> std::io::Result<()> {
    if silences.is_empty() {
        return writeln!(out, "no silences");
    }
    let mut table = Table::new(&["ID", "STATE", "MATCHERS", "ENDS", "BY", "KEEPS QUIET", "COMMENT"]);
    for s in silences {
        let state = match s.state {
            Phase::Pending => "pending",
            Phase::Active => "active",
            Phase::Expired => "expired",
        };
        let ends = match s.state {
            Phase::Pending => format!("begins in {}", s.starts_at.0 - now),
            Phase::Active => format!("in {}", s.ends_at.0 - now),
            Phase::Expired => format!("{} ago", now - s.ends_at.0),
        };
        let quiet = match s.incidents.len() {
            0 => "-".to_owned(),
            n => format!("{n} open"),
        };
        table.row([&s.id, state, &selector(s), &ends, &s.created_by, &quiet, &s.comment]);
    }
    table.write(out)
}

pub(super) fn foresee(p: &PreviewView, now: Ts, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "open now: {}", p.open.len())?;
    if !p.open.is_empty() {
        listing(&p.open, now, out)?;
    }
    writeln!(out, "\nresolved within {} days: {}", p.days, p.recent.len())?;
    if !p.recent.is_empty() {
        listing(&p.recent, now, out)?;
    }
    if !p.alerts.is_empty() {
        writeln!(out, "\nalerts of other programs that fire: {}", p.alerts.len())?;
        for labels in &p.alerts {
            let pairs: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
            writeln!(out, "  {}", plain(&pairs.join(" ")))?;
        }
    }
    if !p.complete {
        writeln!(out, "\nthere were more incidents than could be looked through")?;
    }
    Ok(())
}

fn selector(s: &SilenceView) -> String {
    s.matchers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn time(text: &str) -> Result<Ts, String> {
    let time: jiff::Timestamp =
        text.parse().map_err(|e| format!("not a time as in 2026-11-21T02:00:00Z: {e}"))?;
    Ok(Ts(time.as_millisecond()))
}
