//! The on-call schedules on a terminal.

mod overrides;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use stepwatch_model::time::Ts;
use stepwatch_respond::oncall::{Moment, Zone};

use super::client::ClientArgs;
use super::error::CliError;
use super::format::{Format, json};
use super::table::{Table, plain};
use crate::api::oncall::{CalendarView, DAYS_DEFAULT, DAYS_MAX, OnCallView, ScheduleView};
use crate::clock::wall;
use crate::config::Config;
use crate::config::oncall::NO_FALLBACK;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  stepwatch-alerter oncall
  stepwatch-alerter oncall primary --at 2026-12-24T09:00 --days 3
  stepwatch-alerter oncall override list"
)]
pub(super) struct OnCallArgs {
    #[command(subcommand)]
    command: Option<OnCallCommand>,
    /// Only this schedule
    schedule: Option<String>,
    /// At this time instead of now: 2026-12-24T09:00 on the clock of the schedule, or with a zone
    /// as in 2026-12-24T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    at: Option<Moment>,
    /// How many days of shifts to list
    #[arg(long, value_name = "N", default_value_t = DAYS_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=i64::from(DAYS_MAX)))]
    days: u32,
    /// Read this configuration instead of asking a running alerter
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum OnCallCommand {
    /// Put somebody on call instead of those whom a schedule names, or swap two shifts
    #[command(subcommand)]
    Override(overrides::OverrideSubcommand),
}

pub(super) async fn run(
    mut args: OnCallArgs,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), CliError> {
    if let Some(OnCallCommand::Override(command)) = args.command.take() {
        return overrides::run(command, out).await;
    }
    let now = wall();
    let view = match &args.config {
        Some(path) => {
            let (oncall, missing) = Config::unarmed(path)?.oncall(now);
            for line in missing {
                writeln!(err, "{line}")?;
            }
            OnCallView::from_on_call(&oncall, args.schedule.as_deref(), args.at, args.days, now)
                .map_err(CliError::Other)?
        }
        None => asked(&args).await?,
    };
    match args.format {
        Format::Json => json(out, &view),
        Format::Table => Ok(table(&view, now, out)?),
    }
}

async fn asked(args: &OnCallArgs) -> Result<OnCallView, CliError> {
    let (days, at) = (args.days.to_string(), args.at.map(|at| at.to_string()));
    let mut query = vec![("days", days.as_str())];
    query.extend(args.schedule.as_deref().map(|s| ("schedule", s)));
    query.extend(at.as_deref().map(|at| ("at", at)));
    Ok(args.client.client()?.get(&["oncall"], &query).await?)
}

pub(super) fn table(view: &OnCallView, now: Ts, out: &mut dyn Write) -> std::io::Result<()> {
    if view.schedules.is_empty() {
        return writeln!(out, "no schedules");
    }
    for (i, schedule) in view.schedules.iter().enumerate() {
        if i > 0 {
            writeln!(out)?;
        }
        one(schedule, now, out)?;
    }
    Ok(())
}

fn one(s: &ScheduleView, now: Ts, out: &mut dyn Write) -> std::io::Result<()> {
    let zone = Zone::named(&s.time_zone).unwrap_or_default();
    writeln!(out, "{} ({})", plain(&s.schedule), plain(&s.time_zone))?;
    let mut facts = Table::facts().indented(2);
    let until = s.until.map_or_else(String::new, |until| format!(", until {}", zone.show(until.0)));
    let fallback = if s.fallback.is_empty() { NO_FALLBACK.into() } else { s.fallback.join(", ") };
    let who = if s.on_call.is_empty() {
        format!("NOBODY{until}; notified instead: {fallback}")
    } else {
        let person = |p: &crate::api::oncall::PersonView| format!("{} ({})", p.user, p.receivers.join(", "));
        let people = s.on_call.iter().map(person).collect::<Vec<_>>().join(" and ");
        format!("{people} by {}{until}", s.by)
    };
    facts.row([zone.show(s.at.0), who]);
    if let Some(calendar) = &s.calendar {
        facts.row(["calendar".to_owned(), words(calendar, now)]);
    }
    facts.write(out)?;
    let mut table = Table::new(&["FROM", "TO", "LASTS", "ON CALL", "BY"]).indented(2);
    for shift in &s.shifts {
        let lasts = (shift.to.0 - shift.from.0).to_string();
        let gap = shift.users.is_empty();
        let (who, by) =
            if gap { ("-- nobody --".into(), "gap") } else { (shift.users.join(", "), shift.by.as_str()) };
        table.row([zone.show(shift.from.0), zone.show(shift.to.0), lasts, who, by.to_owned()]);
    }
    table.write(out)
}

fn words(c: &CalendarView, now: Ts) -> String {
    let Some(read_at) = c.read_at else { return "never read".into() };
    let mut words = vec![format!("{} events, read {} ago", c.events, now - read_at.0)];
    if c.stale {
        words.push("STALE".into());
    }
    if c.skipped > 0 {
        words.push(format!("{} events not understood", c.skipped));
    }
    if !c.strangers.is_empty() {
        words.push(format!("events that name no user: {}", c.strangers.join(", ")));
    }
    words.join("; ")
}

#[cfg(test)]
pub(super) mod tests;
