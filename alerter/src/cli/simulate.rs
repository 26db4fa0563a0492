//! Runs the engine through a simulated incident to find who would be notified, of what and when.
//!
//! The simulation uses the real engine with its routes, conditions, schedules and timers, in
//! virtual time. No message is sent.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Labels, Severity};
use stepwatch_respond::config::{ResponderConfig, Route};
use stepwatch_respond::effect::{Action, Effect};
use stepwatch_respond::oncall::{Moment, OnCall, Zone};
use stepwatch_respond::route::{Router, STORE, Way, WayName};

use super::error::CliError;
use super::format::{Format, json};
use super::table::{Table, plain};
use crate::api::view::When;
use crate::clock::wall;
use crate::config::{Config, File};
use crate::notify::ReceiverConfig;
use crate::simulation::{Simulated, simulate};
use crate::templates::Failed;

/// The engine's name for the first route.
const OUR_ROUTE: &str = "routes[0]";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter simulate --config alerter.yml --kind nonfinite --run llama-70b
  stepwatch-alerter simulate --config alerter.yml --at 2026-12-24T03:00[Europe/Berlin] --ack-after 20m")]
pub(super) struct SimulateArgs {
    #[arg(long, value_name = "FILE", default_value = "/etc/stepwatch/alerter.yml")]
    config: PathBuf,
    /// Climb this policy, instead of what the routes say
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// When it begins: 2026-12-24T03:00 in UTC, or 2026-12-24T03:00[Europe/Berlin], whose clock is
    /// then shown; by default now
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// page or ticket
    #[arg(long, default_value = "page", value_parser = word::<Severity>)]
    severity: Severity,
    /// What is wrong, as in hang or grad_spike
    #[arg(long, default_value = "hang", value_parser = word::<Kind>)]
    kind: Kind,
    /// The run that is hit
    #[arg(long, default_value = "simulated-run", value_parser = name)]
    run: String,
    /// The node that is faulty, if one is
    #[arg(long, value_parser = name)]
    node: Option<String>,
    /// Dollars an hour that it burns
    #[arg(long, value_name = "DOLLARS")]
    burn: Option<f64>,
    /// Somebody acknowledges after so long; by default nobody ever does
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    ack_after: Option<Span>,
    /// How long to look: a page is sent again and again for as long as nobody answers
    #[arg(long = "for", value_name = "DURATION", default_value = "2h", value_parser = Span::parse)]
    lasts: Span,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// The events of the simulation, in order.
#[derive(Debug, Serialize)]
struct Story {
    at: When,
    severity: Severity,
    kind: Kind,
    run: String,
    node: Option<String>,
    policy: Option<String>,
    entries: Vec<Entry>,
    /// For a fault of the alerter: the receivers of a fault of its store, which do not depend on
    /// the routes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    of_the_store: Vec<StoreFaultRoute>,
    /// The parts that could not be simulated.
    missing: Vec<String>,
}

/// The receivers of a route, on all of its levels.
#[derive(Debug, Serialize)]
struct StoreFaultRoute {
    route: String,
    notify: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Entry {
    at: When,
    after_seconds: f64,
    #[serde(flatten)]
    what: What,
}

#[derive(Debug, Serialize)]
#[serde(tag = "what", rename_all = "lowercase")]
enum What {
    /// A line of the incident's history: a decision and its reason.
    Decided { why: String },
    /// A message.
    Notified {
        receiver: String,
        channel: String,
        users: Vec<String>,
        action: Action,
        title: String,
        /// The text of the message, if it is not the built-in one.
        #[serde(skip_serializing_if = "Option::is_none")]
        summary: Option<String>,
        reason: String,
        /// The number of calls of this receiver so far, if this message is a call.
        #[serde(skip_serializing_if = "Option::is_none")]
        ring: Option<u32>,
        /// The service that repeats an earlier call, if this message is no new call.
        #[serde(skip_serializing_if = "Option::is_none")]
        left_to: Option<String>,
    },
}

pub(super) fn run(args: SimulateArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let file = Config::unarmed(&args.config)?;
    let (at, zone) = begin(args.at.as_deref())?;
    let story = live(&args, &file, at)?;
    match args.format {
        Format::Json => json(out, &story),
        Format::Table => Ok(table(&story, &zone, out)?),
    }
}

/// Cleans a name like external input, because it may have been pasted.
#[expect(clippy::unnecessary_wraps, reason = "as clap asks for it")]
fn name(text: &str) -> Result<String, String> {
    Ok(stepwatch_wire::words::line(text).into_owned())
}

/// The serde name of a unit variant.
fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).map_err(|e| e.to_string())
}

/// The start time, and the time zone in which to show it.
fn begin(text: Option<&str>) -> Result<(Ts, Zone), CliError> {
    let Some(text) = text else { return Ok((wall(), Zone::default())) };
    let wrong = |e: String| CliError::Other(format!("--at: {e}"));
    let zone = text.strip_suffix(']').and_then(|t| t.split_once('[')).map(|(_, name)| Zone::named(name));
    let zone = zone.transpose().map_err(wrong)?.unwrap_or_default();
    Ok((Moment::parse(text).map_err(wrong)?.at(&zone), zone))
}

/// The configuration with the overrides of the command line.
fn config(args: &SimulateArgs, file: &File) -> Result<ResponderConfig, CliError> {
    let mut config = ResponderConfig { external_url: None, ..file.responder() };
    if let Some(policy) = &args.policy {
        if !config.policies.iter().any(|p| p.name == *policy) {
            let names = config.policies.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
            let names = if names.is_empty() { "none".into() } else { names };
            return Err(CliError::Other(format!(
                "--policy: there is no policy {policy:?}; those that exist: {names}"
            )));
        }
        config.routes = vec![Route { policy: Some(policy.clone()), ..Route::default() }];
    }
    if args.burn.is_some() {
        config.cost_per_gpu_hour = args.burn;
    }
    Ok(config)
}

fn live(args: &SimulateArgs, file: &File, begin: Ts) -> Result<Story, CliError> {
    let config = config(args, file)?;
    let (mut oncall, mut missing) = (OnCall::new(config.oncall.clone()), Vec::new());
    for s in &file.schedules {
        let read = s.calendar_text().map(|text| oncall.read_calendar(&s.name, &text?, begin));
        missing.extend(read.and_then(Result::err));
    }
    let what = Simulated {
        run: &args.run,
        node: args.node.as_deref(),
        kind: args.kind,
        severity: args.severity,
        // The price of one is `--burn`.
        gpus: Some(1),
        labels: &Labels::new(),
        begin,
        ack: args.ack_after.map(|after| begin + after),
        lasts: args.lasts,
    };
    let templates = file.templates(&mut Vec::new());
    let mut entries = Vec::new();
    let keep = |at: Ts, effects: &mut Vec<Effect>| {
        for mut effect in effects.drain(..) {
            if let Effect::Notify(n) = &mut effect {
                let failed = templates.dress(n);
                let why = |f: Failed| {
                    format!("template {} fails, so that the built-in text is sent: {}", f.template, f.error)
                };
                entries
                    .extend(failed.into_iter().map(|f| Entry::new(at, begin, What::Decided { why: why(f) })));
            }
            entries.extend(Entry::from_effect(at, begin, effect, file));
        }
    };
    simulate(&config, &oncall, &what, keep);
    count_rings(file, &mut entries);
    if let Some(policy) = &args.policy {
        entries.iter_mut().for_each(|entry| entry.by_policy(policy));
    }
    Ok(Story {
        at: When(begin),
        severity: args.severity,
        kind: args.kind,
        run: args.run.clone(),
        node: args.node.clone(),
        policy: args.policy.clone(),
        entries,
        of_the_store: of_the_store(args, &config),
        missing,
    })
}

/// The routes of the notification about a store that refuses writes.
fn of_the_store(args: &SimulateArgs, config: &ResponderConfig) -> Vec<StoreFaultRoute> {
    if args.kind != Kind::AlerterFault {
        return Vec::new();
    }
    let (kind, severity) = (args.kind, Severity::Page);
    let cause = kind.cause();
    let labels = [
        ("kind", kind.as_str()),
        ("cause", cause.as_str()),
        ("severity", severity.as_str()),
        ("signal", STORE),
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    // The routes of a checked configuration can be parsed.
    let router = Router::new(&config.routes, &config.teams).unwrap_or_default();
    let recipients = |way: Way| {
        let mut notify = Vec::new();
        for name in way.levels.into_iter().flat_map(|level| level.notify) {
            if !notify.contains(&name) {
                notify.push(name);
            }
        }
        let route = match &args.policy {
            Some(policy) if way.name == WayName::Route(OUR_ROUTE.to_owned()) => format!("--policy {policy}"),
            _ => way.name.to_string(),
        };
        StoreFaultRoute { route, notify }
    };
    router.ways(config, &labels).into_iter().map(recipients).collect()
}

impl Entry {
    fn from_effect(at: Ts, begin: Ts, effect: Effect, file: &File) -> Option<Self> {
        let what = match effect {
            Effect::Timeline(entry) => What::Decided { why: entry.what },
            Effect::Notify(n) => What::Notified {
                channel: channel(file, &n.receiver),
                summary: file.has_templates(&n.receiver).then_some(n.message.summary),
                receiver: n.receiver,
                users: n.users,
                action: n.action,
                title: n.message.title,
                reason: n.message.reason,
                ring: None,
                left_to: n.left_to,
            },
            Effect::Incident(_)
            | Effect::Silence(_)
            | Effect::Override(_)
            | Effect::Alert(_)
            | Effect::AlertOver(_) => {
                return None;
            }
        };
        Some(Self::new(at, begin, what))
    }

    /// Replaces the name of the route: the only route of a simulated policy is not in the
    /// configuration.
    fn by_policy(&mut self, policy: &str) {
        if let What::Decided { why } = &mut self.what {
            *why = why.replace(OUR_ROUTE, &format!("--policy {policy}"));
        }
    }

    fn new(at: Ts, begin: Ts, what: What) -> Self {
        Self { at: When(at), after_seconds: (at - begin).as_secs_f64(), what }
    }
}

/// Numbers the calls, by receiver.
fn count_rings(file: &File, entries: &mut [Entry]) {
    let mut rung = BTreeMap::<String, u32>::new();
    for entry in entries {
        let What::Notified { receiver, action: Action::Trigger, ring, left_to: None, .. } = &mut entry.what
        else {
            continue;
        };
        if file.receivers.iter().any(|r| r.name == *receiver && r.wakes()) {
            let count = rung.entry(receiver.clone()).or_default();
            *count += 1;
            *ring = Some(*count);
        }
    }
}

/// The number of calls of each receiver.
fn rings(story: &Story) -> BTreeMap<&str, u32> {
    let rings = story.entries.iter().filter_map(|e| match &e.what {
        What::Notified { receiver, ring: Some(ring), .. } => Some((receiver.as_str(), *ring)),
        _ => None,
    });
    rings.collect()
}

/// The service that repeats a call to this receiver.
fn repeated_by<'a>(story: &'a Story, called: &str) -> Option<&'a str> {
    story.entries.iter().find_map(|e| match &e.what {
        What::Notified { receiver, left_to, .. } if receiver == called => left_to.as_deref(),
        _ => None,
    })
}

/// The kind of a receiver: the name of its key other than `name`.
fn channel(file: &File, receiver: &str) -> String {
    let config =
        file.receivers.iter().find(|r| r.name == receiver).and_then(|r| serde_json::to_value(r).ok());
    let kind = |k: &&String| ReceiverConfig::KINDS.contains(&k.as_str());
    config.as_ref().and_then(|c| c.as_object()?.keys().find(kind)).cloned().unwrap_or_default()
}

fn table(story: &Story, zone: &Zone, out: &mut dyn Write) -> std::io::Result<()> {
    let node = story.node.as_ref().map_or_else(String::new, |node| format!(" on {node}"));
    let about = format!("{} {} of {}{node}", story.severity.as_str(), story.kind.as_str(), story.run);
    writeln!(out, "simulated: {} at {}; nothing is sent", plain(&about), zone.show(story.at.0))?;
    for line in &story.missing {
        writeln!(out, "note: {}", plain(line))?;
    }
    writeln!(out)?;
    let mut table = Table::new(&["AT", "AFTER", "NOTIFIED", "BY", "WHAT, AND WHY"]);
    for entry in &story.entries {
        let (at, after) = (zone.show(entry.at.0), (entry.at.0 - story.at.0).to_string());
        match &entry.what {
            What::Decided { why } => table.row([at.as_str(), &after, "", "", why]),
            What::Notified { receiver, channel, users, action, title, summary, reason, ring, .. } => {
                let who = if users.is_empty() { "everybody there".to_owned() } else { users.join(", ") };
                let by = format!("{receiver} ({channel})");
                table.row([
                    at.as_str(),
                    &after,
                    &who,
                    &by,
                    &format!(
                        "{}{}: {title}{} [{reason}]",
                        action.as_str(),
                        ring.map(|n| format!(", ring {n}")).unwrap_or_default(),
                        summary.as_ref().map(|s| format!(" - {s}")).unwrap_or_default()
                    ),
                ]);
            }
        }
    }
    table.write(out)?;
    let rung = rings(story);
    if !rung.is_empty() {
        writeln!(out)?;
    }
    for (receiver, times) in rung {
        let more = if times == 1 { "" } else { "s" };
        let repeats = repeated_by(story, receiver);
        let repeats = repeats.map_or_else(String::new, |who| format!(", and then {} repeats", plain(who)));
        writeln!(out, "{} rings {times} time{more}{repeats}", plain(receiver))?;
    }
    if !story.entries.iter().any(|e| matches!(e.what, What::Notified { .. })) {
        writeln!(out, "\nnobody is notified")?;
    }
    for StoreFaultRoute { route, notify } in &story.of_the_store {
        let whom = if notify.is_empty() { "nobody".to_owned() } else { notify.join(", ") };
        writeln!(out, "\na database that refuses writes notifies {} ({})", plain(&whom), plain(route))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
