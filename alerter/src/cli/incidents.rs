//! Incidents on a terminal.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::incident::{State, SuppressionReason, Verdict};

use super::client::ClientArgs;
use super::error::CliError;
use super::format::{Format, json};
use super::table::{BAD, Table, of_severity, plain};
use super::watch;
use crate::api::incident_actions::Note;
use crate::api::view::{
    IncidentDetail, IncidentList, IncidentView, PostmortemView, Resolution, SuppressionView, When,
};
use crate::clock::wall;
use crate::money::money;
use crate::postmortem::Cost;

#[derive(Debug, Subcommand)]
pub(super) enum IncidentsCommand {
    /// The latest incidents; only unresolved ones unless a filter says otherwise
    List(ListArgs),
    /// Follow what opens, changes and is resolved: a live table on a terminal, else a line a change
    Watch(watch::WatchArgs),
    /// The facts of one incident
    Show(OneArgs),
    /// Take an incident: its escalation stops
    Ack(AnswerArgs),
    /// Close an incident by hand
    Resolve(ResolveArgs),
    /// Notify the next level now
    Escalate(AnswerArgs),
    /// Give an incident back: its escalation begins again
    Unack(AnswerArgs),
    /// Keep something in an incident's history
    Note(NoteArgs),
    /// Write what is known of an incident as Markdown, for the account of it afterwards
    Postmortem(PostmortemArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter incidents resolve 01KAHTZ7 --as false")]
pub(super) struct ResolveArgs {
    #[command(flatten)]
    answer: AnswerArgs,
    /// What it was: real, noise (true, and not worth a message) or false; kept with the incident
    #[arg(long = "as", value_name = "WHAT", value_parser = verdict)]
    verdict: Option<Verdict>,
}

fn verdict(text: &str) -> Result<Verdict, String> {
    let found = Verdict::ALL.into_iter().find(|verdict| verdict.as_str() == text);
    found.ok_or_else(|| "expected real, noise or false".to_owned())
}

/// What the incidents are about.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// Only of this run
    #[arg(long)]
    pub(super) run: Option<String>,
    /// Only of this node
    #[arg(long)]
    pub(super) node: Option<String>,
    /// page, ticket or info
    #[arg(long)]
    pub(super) severity: Option<String>,
}

impl Which {
    /// The query parameters of the API.
    pub(super) fn query(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [("run", &self.run), ("node", &self.node), ("severity", &self.severity)];
        all.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)))
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter incidents list
  stepwatch-alerter incidents list --state all --run llama-70b --limit 20")]
pub(super) struct ListArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// open, acknowledged, resolved, unresolved or all
    #[arg(long, default_value = "unresolved")]
    state: String,
    #[command(flatten)]
    which: Which,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    limit: u32,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Args)]
pub(super) struct OneArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Its id, or any unique beginning of it
    incident: String,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter incidents postmortem 01KAHTZ7 --output nan-at-12345.md")]
pub(super) struct PostmortemArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Its id, or any unique beginning of it
    incident: String,
    /// Where to write it; a file that exists is left alone. By default to standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Document::Markdown)]
    format: Document,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Document {
    Markdown,
    Json,
}

pub(super) type ExplainArgs = OneArgs;

#[derive(Debug, Args)]
pub(super) struct AnswerArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Its id, or any unique beginning of it
    incident: String,
    /// Who answers; by default the user of this shell
    #[arg(long)]
    by: Option<String>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Args)]
pub(super) struct NoteArgs {
    #[command(flatten)]
    answer: AnswerArgs,
    /// What to note, in one line
    note: String,
}

pub(super) async fn run(command: IncidentsCommand, out: &mut dyn Write) -> Result<(), CliError> {
    match command {
        IncidentsCommand::List(args) => list(args, out).await,
        IncidentsCommand::Watch(args) => watch::run(args, out).await,
        IncidentsCommand::Show(args) => {
            let detail: IncidentDetail =
                args.client.client()?.get(&["incidents", &args.incident], &[]).await?;
            match args.format {
                Format::Json => json(out, &detail),
                Format::Table => Ok(facts(&detail, wall(), out)?),
            }
        }
        IncidentsCommand::Ack(args) => answer(args, None, "ack", "acknowledged", out).await,
        IncidentsCommand::Resolve(ResolveArgs { answer: args, verdict }) => {
            answer(args, verdict, "resolve", "resolved", out).await
        }
        IncidentsCommand::Escalate(args) => answer(args, None, "escalate", "escalated", out).await,
        IncidentsCommand::Unack(args) => answer(args, None, "unack", "given back", out).await,
        IncidentsCommand::Note(args) => note(args, out).await,
        IncidentsCommand::Postmortem(args) => postmortem(args, out).await,
    }
}

pub(super) async fn explain(args: ExplainArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let detail: IncidentDetail = args.client.client()?.get(&["incidents", &args.incident], &[]).await?;
    match args.format {
        Format::Json => json(out, &detail),
        Format::Table => Ok(super::explain::story(&detail, wall(), out)?),
    }
}

async fn postmortem(args: PostmortemArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let (client, path) = (args.client.client()?, ["incidents", &args.incident, "postmortem"]);
    let text = match args.format {
        Document::Markdown => client.text(&path).await?,
        Document::Json => {
            let account: PostmortemView = client.get(&path, &[("format", "json")]).await?;
            let mut text = Vec::new();
            json(&mut text, &account)?;
            String::from_utf8(text).map_err(|e| CliError::Other(e.to_string()))?
        }
    };
    let Some(path) = args.output else { return Ok(out.write_all(text.as_bytes())?) };
    // A file that a person may have edited is not overwritten.
    let mut file =
        std::fs::File::create_new(&path).map_err(|e| CliError::Other(format!("{}: {e}", path.display())))?;
    file.write_all(text.as_bytes())?;
    Ok(writeln!(out, "{}", path.display())?)
}

async fn list(args: ListArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let limit = args.limit.to_string();
    let mut query = vec![("state", args.state.as_str()), ("limit", limit.as_str())];
    query.extend(args.which.query());
    let list: IncidentList = args.client.client()?.get(&["incidents"], &query).await?;
    match args.format {
        Format::Json => json(out, &list),
        Format::Table => {
            listing(&list.incidents, wall(), out)?;
            Ok(unheard(&list.incidents, out)?)
        }
    }
}

async fn answer(
    args: AnswerArgs,
    verdict: Option<Verdict>,
    verb: &str,
    done: &str,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let client = args.client.client()?;
    let me = args.by.unwrap_or_else(|| whoami(|name| std::env::var(name).ok()));
    let by = Resolution { by: me.clone(), verdict };
    let incident: IncidentView = client.post(&["incidents", &args.incident, verb], &by).await?;
    if args.format == Format::Json {
        return json(out, &incident);
    }
    let (already, who, when) = match (&incident.acked_by, incident.acked_at) {
        // Another person was faster: the answer names that person.
        (Some(first), at) if verb == "ack" && incident.signed.as_ref().is_some_and(|me| me != first) => {
            ("was already ", first.clone(), at.map(|at| format!(" at {}", at.0)).unwrap_or_default())
        }
        _ => ("", me, String::new()),
    };
    let (id, summary) = (&incident.id, plain(&incident.summary));
    let as_what = verdict.map(Verdict::words).unwrap_or_default();
    writeln!(out, "{id} {already}{done} by {}{as_what}{when}: {summary}", plain(&who))?;
    if let Some(at) = incident.reopens_at {
        writeln!(
            out,
            "still firing: comes back at {} unless it is over by then; silence it to keep it quiet: \
             stepwatch-alerter silences add --help",
            at.0
        )?;
    }
    Ok(())
}

async fn note(NoteArgs { note, answer: args }: NoteArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let client = args.client.client()?;
    let by = args.by.unwrap_or_else(|| whoami(|name| std::env::var(name).ok()));
    let note = Note { by, note };
    let incident: IncidentView = client.post(&["incidents", &args.incident, "notes"], &note).await?;
    match args.format {
        Format::Json => json(out, &incident),
        Format::Table => Ok(writeln!(out, "{} noted by {}", incident.id, plain(&note.by))?),
    }
}

/// The name of the person at the terminal. An answer must not fail for lack of a name, for example
/// in a container without a user.
pub(super) fn whoami(env: impl Fn(&str) -> Option<String>) -> String {
    let named = ["USER", "LOGNAME"].into_iter().filter_map(env).find(|name| !name.trim().is_empty());
    named.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

pub(super) fn listing(incidents: &[IncidentView], now: Ts, out: &mut dyn Write) -> std::io::Result<()> {
    if incidents.is_empty() {
        return writeln!(out, "no incidents");
    }
    table(incidents, now).write(out)
}

pub(super) fn table(incidents: &[IncidentView], now: Ts) -> Table {
    let columns = ["ID", "SEVERITY", "STATE", "NOTIFIED", "ABOUT", "KIND", "OPENED", "STEP", "SUMMARY"];
    let mut table = Table::new(&columns);
    for i in incidents {
        let row = table.painted([
            i.id.as_str(),
            i.severity.as_str(),
            i.standing(),
            &notified(i, now),
            &i.place(),
            i.kind.as_str(),
            &ago(now, i.opened_at),
            &if has_steps(i) { i.start_step.to_string() } else { "-".to_owned() },
            &i.summary,
        ]);
        if i.state == State::Open {
            row.paint(1, of_severity(i.severity));
        }
        if is_unheard(i) {
            row.paint(3, BAD);
        }
    }
    table
}

fn is_unheard(i: &IncidentView) -> bool {
    i.state == State::Open && i.severity == Severity::Page && i.suppression.is_some()
}

/// Prints the number of open pages that notify nobody.
pub(super) fn unheard(incidents: &[IncidentView], out: &mut dyn Write) -> std::io::Result<()> {
    match incidents.iter().filter(|i| is_unheard(i)).count() {
        0 => Ok(()),
        1 => writeln!(out, "\n1 open page notifies nobody"),
        n => writeln!(out, "\n{n} open pages notify nobody"),
    }
}

/// Who is notified of the incident, or what suppresses it.
fn notified(i: &IncidentView, now: Ts) -> String {
    match (&i.suppression, i.state) {
        (_, State::Resolved) => match i.reopens_at {
            Some(at) => format!("back in {}", Span((at.0 - now).0.max(0))),
            None => "-".into(),
        },
        (Some(SuppressionView { why, by, .. }), _) => match why {
            SuppressionReason::Silenced => format!("NOBODY: silence {by}"),
            SuppressionReason::Inhibited => format!("NOBODY: inhibited by {by}"),
            SuppressionReason::RolledUp => format!("NOBODY: part of {by}"),
        },
        (None, State::Acknowledged) => i.acked_by.clone().unwrap_or_else(|| "-".into()),
        (None, State::Open) => match (i.level, i.next_escalation_at) {
            (0, Some(at)) => format!("in {}", Span((at.0 - now).0.max(0))),
            (0, None) => "nobody".into(),
            (level, _) => format!("level {level}"),
        },
    }
}

/// The value of the incident. A kind without a scale of its own has no score.
fn value(i: &IncidentView) -> String {
    if i.kind == Kind::AlertStorm {
        return format!(
            "{} incidents more than the {} that are notified one by one",
            short(i.value),
            short(i.expected)
        );
    }
    let score = if i.score.is_nan() { String::new() } else { format!(", score {}", short(i.score)) };
    format!("{} = {}, expected {}{score}", i.signal, short(i.value), short(i.expected))
}

pub(super) fn facts(d: &IncidentDetail, now: Ts, out: &mut dyn Write) -> std::io::Result<()> {
    let i = &d.incident;
    let severity = i.severity.as_str();
    let place = i.place();
    let place = plain(&place);
    let place = if i.run.is_empty() { format!("on {place}") } else { format!("in run {place}") };
    // An older alerter does not send a title.
    let title = if i.title.is_empty() { i.kind.title() } else { &i.title };
    writeln!(out, "{}  {severity}: {} ({}) {place}", i.id, plain(title), i.kind.as_str())?;
    writeln!(out)?;
    let mut t = Table::facts();
    t.row(["what", &i.summary]);
    if let Some(text) = &d.description {
        t.row(["description", text]);
    }
    if !i.kind.is_external() {
        t.row(["value", &value(i)]);
    }
    if has_steps(i) {
        t.row(["step", &steps(i)]);
    }
    for s in &i.suspects {
        t.row(["suspect", &format!("{}: {}", s.what(), s.why())]);
    }
    t.row(["opened", &format!("{} ({})", i.opened_at.0, ago(now, i.opened_at))]);
    t.row(["state", &standing(i, now)]);
    if let Some(cost) = &d.cost {
        t.row(["cost", &cost_of(i, cost)]);
    }
    if i.flaps > 0 {
        t.row(["flaps", &format!("came back {} times", i.flaps)]);
    }
    if let Some(suppression) = &i.suppression {
        t.row(["notifies", &format!("nobody: {} ({})", suppression.words, suppression.by)]);
    }
    for link in &d.links {
        t.row([link.text.to_lowercase().as_str(), &link.href]);
    }
    t.write(out)
}

/// The cost while the incident lasted. It is not a loss, because the GPUs may have computed all the
/// time.
fn cost_of(i: &IncidentView, cost: &Cost) -> String {
    let when = if i.state == State::Resolved { "while it lasted" } else { "since it opened" };
    let (rate, so_far) = (money(cost.dollars_per_hour), money(cost.dollars));
    format!("{so_far} {when}: {} GPUs at {rate} an hour", cost.gpus)
}

/// Whether the incident has steps. An alert of another program about a run that is not watched has
/// none.
fn has_steps(i: &IncidentView) -> bool {
    let unwatched = i.kind.is_external() && i.start_step == 0 && i.opened_step == 0;
    !i.run.is_empty() && !unwatched
}

fn steps(i: &IncidentView) -> String {
    let until = i.end_step.map(|s| format!(", over at {s}")).unwrap_or_default();
    let severity = i.severity.as_str();
    format!(
        "began {}, first reported {}, became a {severity} {}{until}",
        i.start_step, i.opened_step, i.detected_step
    )
}

/// The state of the incident, and what happens next.
fn standing(i: &IncidentView, now: Ts) -> String {
    match i.state {
        State::Open => {
            let next = match i.next_escalation_at {
                Some(at) => format!("escalates in {}", Span((at.0 - now).0.max(0))),
                None => "no further escalation".into(),
            };
            format!("open, level {}, {next}", i.level)
        }
        State::Acknowledged => format!(
            "acknowledged by {}{}",
            i.acked_by.as_deref().unwrap_or("somebody"),
            i.acked_at.map(|at| format!(" after {}", at.0 - i.opened_at.0)).unwrap_or_default()
        ),
        State::Resolved => match i.resolved_at {
            Some(at) => {
                let back = i.reopens_at.map_or_else(String::new, |at| {
                    format!("; still firing: comes back at {} unless it is over by then", at.0)
                });
                let how = i.how_it_ended();
                format!("resolved {} after {}{how}{back}", at.0, at.0 - i.opened_at.0)
            }
            None => "resolved".into(),
        },
    }
}

fn ago(now: Ts, at: When) -> String {
    format!("{} ago", Span((now - at.0).0.max(0)))
}

/// The value with enough digits to recognise it.
fn short(v: f64) -> String {
    if v.is_finite() && v != 0.0 && !(1e-3..1e6).contains(&v.abs()) {
        format!("{v:.3e}")
    } else {
        let text = format!("{v:.4}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    }
}
