//! The audit log on a terminal.

use std::io::Write;

use clap::Args;
use stepwatch_model::time::{Span, Ts};

use super::client::ClientArgs;
use super::error::CliError;
use super::format::{Format, json};
use super::table::Table;
use crate::api::audit::{AuditList, AuditView};
use crate::api::view::When;
use crate::clock::wall;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter audit")]
pub(super) struct AuditArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only by this actor: api:NAME, user:NAME, slack:U123 (name)
    #[arg(long)]
    actor: Option<String>,
    /// Only this: ack, resolve, silence, expire, alerts, reload, ...
    #[arg(long)]
    action: Option<String>,
    /// Only about this incident, silence or path
    #[arg(long)]
    target: Option<String>,
    /// api, cli, alertmanager, slack, pagerduty, operator or signal
    #[arg(long)]
    door: Option<String>,
    /// done, unchanged, refused or failed
    #[arg(long)]
    outcome: Option<String>,
    /// Only of so long ago: 30m, 2h, 7d
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    since: Option<Span>,
    /// At most so many, the latest
    #[arg(long, default_value_t = 100)]
    limit: u32,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(super) async fn run(args: AuditArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let limit = args.limit.to_string();
    let since = args.since.map(|span| serde_json::to_value(When(Ts(wall().0 - span.0))).unwrap_or_default());
    let mut query = vec![("limit", limit.as_str())];
    for (key, value) in [
        ("actor", args.actor.as_deref()),
        ("action", args.action.as_deref()),
        ("target", args.target.as_deref()),
        ("door", args.door.as_deref()),
        ("outcome", args.outcome.as_deref()),
        ("since", since.as_ref().and_then(|at| at.as_str())),
    ] {
        query.extend(value.map(|value| (key, value)));
    }
    let list: AuditList = args.client.client()?.get(&["audit"], &query).await?;
    match args.format {
        Format::Json => json(out, &list),
        Format::Table => Ok(table(&list.entries, out)?),
    }
}

/// Writes the entries, oldest first, as in logs.
pub(super) fn table(entries: &[AuditView], out: &mut dyn Write) -> std::io::Result<()> {
    if entries.is_empty() {
        return writeln!(out, "no entries");
    }
    let mut table = Table::new(&["AT", "ACTOR", "DOOR", "FROM", "ACTION", "TARGET", "OUTCOME", "DETAIL"]);
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    for e in entries.iter().rev() {
        table.row([
            &e.at.0.to_string(),
            &or_dash(&e.actor),
            e.door.as_str(),
            e.remote.as_deref().unwrap_or("-"),
            &e.action,
            &or_dash(&e.target),
            e.outcome.as_str(),
            &e.detail,
        ]);
    }
    table.write(out)
}
