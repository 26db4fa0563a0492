//! Overrides of on-call schedules on a terminal.

use std::io::Write;

use clap::{Args, Subcommand};
use stepwatch_model::time::Ts;
use stepwatch_respond::oncall::{Moment, OverridePhase};

use crate::api::view::{CoverView, OverrideList, OverrideView, OverrideWish, SwapWish, TurnWish};
use crate::cli::client::ClientArgs;
use crate::cli::error::CliError;
use crate::cli::format::{Format, json};
use crate::cli::incidents::whoami;
use crate::cli::table::{Table, plain};
use crate::clock::wall;

#[derive(Debug, Subcommand)]
pub(super) enum OverrideSubcommand {
    /// Put somebody on call for a while
    Add(AddArgs),
    /// Swap the shifts of two people: each is on call instead of the other
    Swap(SwapArgs),
    /// The overrides that people made; without those that are over unless a filter says otherwise
    List(ListArgs),
    /// End overrides now: whoever is on call without them is notified again
    Expire(ExpireArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter oncall override add primary --who ann --until 2026-12-24T18:00 --note dentist
  stepwatch-alerter oncall override add primary --who ann --replaces bob --from 2026-12-24T09:00 --until 2026-12-27T09:00")]
pub(super) struct AddArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Whose shifts
    schedule: String,
    /// Who takes over
    #[arg(long, value_name = "USER")]
    who: String,
    /// Whose place it is, if several are on call; by default that of all
    #[arg(long, value_name = "USER")]
    replaces: Option<String>,
    /// When it begins: 2026-12-24T09:00 on the clock of the schedule, or with a zone as in
    /// 2026-12-24T08:00:00Z; now unless given
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<String>,
    /// When it ends, in the same form
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: String,
    #[command(flatten)]
    reason: Reason,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter oncall override swap primary --who ann --from 2026-12-21T09:00 --until 2026-12-28T09:00 \
--with bob --with-from 2026-12-28T09:00 --with-until 2027-01-04T09:00")]
pub(super) struct SwapArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Whose shifts
    schedule: String,
    /// One of the two
    #[arg(long, value_name = "USER")]
    who: String,
    /// The begin of the shift of this person: 2026-12-24T09:00 on the clock of the schedule, or
    /// with a zone; now unless given
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<String>,
    /// The end of this shift
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: String,
    /// The other one
    #[arg(long = "with", value_name = "USER")]
    other: String,
    /// The begin of the shift of the other one; now unless given
    #[arg(long = "with-from", value_name = "TIME", value_parser = time)]
    other_from: Option<String>,
    /// The end of this shift
    #[arg(long = "with-until", value_name = "TIME", value_parser = time)]
    other_until: String,
    #[command(flatten)]
    reason: Reason,
}

#[derive(Debug, Args)]
struct Reason {
    /// Why
    #[arg(long, short, default_value = "")]
    note: String,
    /// Who asks; by default the user of this shell
    #[arg(long)]
    by: Option<String>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only those of this schedule
    schedule: Option<String>,
    /// coming, active, over, unended or all
    #[arg(long, default_value = "unended")]
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
    overrides: Vec<String>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(super) async fn run(command: OverrideSubcommand, out: &mut dyn Write) -> Result<(), CliError> {
    match command {
        OverrideSubcommand::Add(args) => add(args, out).await,
        OverrideSubcommand::Swap(args) => swap(args, out).await,
        OverrideSubcommand::List(args) => {
            let mut query = vec![("state", args.state.as_str())];
            query.extend(args.schedule.as_deref().map(|schedule| ("schedule", schedule)));
            let list: OverrideList = args.client.client()?.get(&["oncall", "overrides"], &query).await?;
            match args.format {
                Format::Json => json(out, &list),
                Format::Table => Ok(table(&list.overrides, wall(), out)?),
            }
        }
        OverrideSubcommand::Expire(args) => expire(args, out).await,
    }
}

async fn add(args: AddArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let format = args.reason.format;
    let (created_by, note) = args.reason.said();
    let wish = OverrideWish {
        schedule: args.schedule,
        user: args.who,
        replaces: args.replaces,
        from: args.from,
        until: args.until,
        created_by,
        note,
    };
    let made: OverrideView = args.client.client()?.post(&["oncall", "overrides"], &wish).await?;
    told(&made, format, out)
}

async fn swap(args: SwapArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let format = args.reason.format;
    let (created_by, note) = args.reason.said();
    let wish = SwapWish {
        schedule: args.schedule,
        first: TurnWish { user: args.who, from: args.from, until: args.until },
        second: TurnWish { user: args.other, from: args.other_from, until: args.other_until },
        created_by,
        note,
    };
    let made: OverrideView = args.client.client()?.post(&["oncall", "overrides", "swap"], &wish).await?;
    told(&made, format, out)
}

async fn expire(args: ExpireArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let client = args.client.client()?;
    let mut ended = Vec::new();
    let mut failed = Ok(());
    for id in &args.overrides {
        let removed: OverrideView = match client.delete(&["oncall", "overrides", id]).await {
            Ok(removed) => removed,
            Err(e) => {
                failed = Err(e.into());
                break;
            }
        };
        if args.format == Format::Table {
            writeln!(out, "{} is over (schedule {})", removed.id, plain(&removed.schedule))?;
        }
        ended.push(removed);
    }
    // The overrides before the failed one have been ended.
    if args.format == Format::Json {
        json(out, &OverrideList { overrides: ended })?;
    }
    failed
}

impl Reason {
    fn said(self) -> (String, String) {
        (self.by.unwrap_or_else(|| whoami(|name| std::env::var(name).ok())), self.note)
    }
}

/// What was made.
pub(super) fn told(made: &OverrideView, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
    if format == Format::Json {
        return json(out, made);
    }
    for cover in &made.covers {
        let (from, until) = (cover.from.0, cover.until.0);
        let who = plain(&cover.user);
        let instead = whom(cover);
        let schedule = plain(&made.schedule);
        writeln!(out, "{} puts {who} on call{instead} in {schedule} from {from} until {until}", made.id)?;
    }
    if !made.overlaps.is_empty() {
        let others = made.overlaps.join(", ");
        writeln!(out, "it overlaps {others}, made before: where they overlap, this one decides")?;
    }
    Ok(())
}

pub(super) fn table(overrides: &[OverrideView], now: Ts, out: &mut dyn Write) -> std::io::Result<()> {
    if overrides.is_empty() {
        return writeln!(out, "no overrides");
    }
    let mut table = Table::new(&["ID", "STATE", "SCHEDULE", "WHO", "FROM", "UNTIL", "BY", "NOTE"]);
    for o in overrides {
        let state = match (o.state, o.removed_at) {
            (OverridePhase::Over, Some(at)) => format!("removed {} ago", now - at.0),
            (OverridePhase::Over, None) => "over".to_owned(),
            _ if !o.effective => "no effect".to_owned(),
            (OverridePhase::Active, _) => "active".to_owned(),
            (OverridePhase::Coming, _) => "coming".to_owned(),
        };
        let state = if o.stored { state } else { format!("{state}, not yet stored") };
        for cover in &o.covers {
            let who = format!("{}{}", cover.user, whom(cover));
            let (from, until) = (cover.from.0.to_string(), cover.until.0.to_string());
            table.row([&o.id, &state, &o.schedule, &who, &from, &until, &o.created_by, &o.note]);
        }
    }
    table.write(out)
}

fn whom(cover: &CoverView) -> String {
    cover.replaces.as_ref().map_or_else(String::new, |name| format!(" for {}", plain(name)))
}

/// Checks a time, which the alerter reads on the clock of the schedule.
fn time(text: &str) -> Result<String, String> {
    Moment::parse(text).map(|moment| moment.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::view::When;
    use crate::cli::tests::stripped;

    /// 2026-11-21T02:16:56Z.
    const T0: Ts = Ts(1_795_227_416_000);

    fn cover(user: &str, replaces: Option<&str>) -> CoverView {
        let until = When(Ts(T0.0 + 3_600_000));
        CoverView { user: user.into(), replaces: replaces.map(str::to_owned), from: When(T0), until }
    }

    fn made(covers: Vec<CoverView>) -> OverrideView {
        OverrideView {
            id: "0b6f".into(),
            state: OverridePhase::Active,
            effective: true,
            stored: true,
            schedule: "primary".into(),
            covers,
            created_by: "ann".into(),
            note: "dentist\u{1b}[2J".into(),
            created_at: When(T0),
            removed_by: None,
            removed_at: None,
            overlaps: vec!["a1".into()],
        }
    }

    #[test]
    fn what_was_made_is_said_and_what_it_overlaps() {
        let mut out = Vec::new();
        told(&made(vec![cover("bob", None)]), Format::Table, &mut out).unwrap();
        let want = "0b6f puts bob on call in primary from 2026-11-21T02:16:56Z until 2026-11-21T03:16:56Z\n\
                    it overlaps a1, made before: where they overlap, this one decides\n";
        assert_eq!(stripped(out), want);
    }

    #[test]
    fn a_row_for_each_of_a_swap() {
        let mut out = Vec::new();
        table(&[], T0, &mut out).unwrap();
        let swap = made(vec![cover("bob", Some("alice")), cover("alice", Some("bob"))]);
        let removed = OverrideView {
            state: OverridePhase::Over,
            removed_at: Some(When(T0)),
            ..made(vec![cover("bob", None)])
        };
        let void = OverrideView { effective: false, stored: false, ..made(vec![cover("bob", None)]) };
        table(&[swap, removed, void], Ts(T0.0 + 60_000), &mut out).unwrap();
        let out = stripped(out);
        let lines: Vec<Vec<&str>> = out.lines().map(|l| l.split_whitespace().collect()).collect();
        let times = ["2026-11-21T02:16:56Z", "2026-11-21T03:16:56Z"];
        let [from, until] = times;
        assert_eq!(lines[0], ["no", "overrides"]);
        assert_eq!(lines[1], ["ID", "STATE", "SCHEDULE", "WHO", "FROM", "UNTIL", "BY", "NOTE"]);
        assert_eq!(
            lines[2],
            ["0b6f", "active", "primary", "bob", "for", "alice", from, until, "ann", "dentist[2J"]
        );
        assert_eq!(lines[3][3..6], ["alice", "for", "bob"]);
        assert_eq!(lines[4][1..4], ["removed", "1m", "ago"]);
        assert_eq!(lines[5][1..6], ["no", "effect,", "not", "yet", "stored"]);
    }

    #[test]
    fn times_are_checked_before_anybody_is_asked() {
        assert_eq!(time("2026-12-24T09:00").unwrap(), "2026-12-24T09:00:00");
        assert_eq!(time("2026-12-24T09:00[Europe/Berlin]").unwrap(), "2026-12-24T08:00:00Z");
        assert!(time("soon").unwrap_err().contains("\"soon\" is not a time"));
    }
}
