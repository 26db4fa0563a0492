//! `notify test`: sends a test page, because only a delivered page proves that pages arrive.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Notification;
use stepwatch_respond::message::{Fact, Link, Message};

use super::error::CliError;
use super::format::{Format, json};
use super::table::{Table, plain};
use crate::clock::wall;
use crate::config::Config;
use crate::notify::trial::{no_chart, test_message, try_out};
use crate::notify::{Notifier, line};
use crate::templates::{Failed, Templates};

/// The prefix of a test's title that a template wrote.
const TEST: &str = "TEST";
const TITLE_MAX: usize = 150;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter notify test --config alerter.yml
  stepwatch-alerter notify test --config alerter.yml --receiver primary")]
pub(super) struct TestArgs {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only this receiver
    #[arg(long, value_name = "NAME")]
    receiver: Option<String>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// The result of one test.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    receiver: &'a str,
    kind: &'static str,
    delivered: bool,
    error: Option<String>,
    /// Delivered; the reason why a message may be sent twice if its answer is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
    /// Delivered; the reason why the messages of incidents will have no chart.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_chart: Option<String>,
    /// Delivered; what this does not prove.
    #[serde(skip_serializing_if = "Option::is_none")]
    unproven: Option<&'static str>,
    seconds: f64,
    /// The rendered templates, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    says: Option<Says>,
}

#[derive(Debug, Serialize)]
struct Says {
    title: String,
    summary: String,
    facts: Vec<Fact>,
    links: Vec<Link>,
}

/// Sends each receiver a test incident, and resolves it so that nothing stays open.
pub(super) async fn test(args: TestArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let config = Config::load(&args.config)?;
    let names: Vec<&str> = config.file.receivers.iter().map(|r| r.name.as_str()).collect();
    let chosen: Vec<&str> = match &args.receiver {
        None if names.is_empty() => return Err(CliError::Other("the configuration has no receivers".into())),
        None => names,
        Some(name) if names.contains(&name.as_str()) => vec![name],
        Some(name) => {
            let all = names.join(", ");
            return Err(CliError::Other(format!("there is no receiver {name:?}; those that exist: {all}")));
        }
    };
    let now = wall();
    let mut outcomes = Vec::new();
    for name in chosen {
        let Some(notifier) = config.receivers.get(name) else { continue };
        let (first, failed) = worded(&config.templates, name, now);
        let says = config.file.has_templates(name).then(|| Says::from_message(&first.message));
        let started = Instant::now();
        let (error, warning) = match try_one(notifier.as_ref(), first, &failed).await {
            Ok(warning) => (None, warning),
            Err(error) => (Some(error), None),
        };
        let delivered = error.is_none();
        let no_chart = if delivered { no_chart(notifier.as_ref()).await } else { None };
        let seconds = started.elapsed().as_secs_f64();
        outcomes.push(Outcome {
            receiver: name,
            kind: notifier.kind(),
            delivered,
            error,
            warning,
            no_chart,
            unproven: notifier.unproven().filter(|_| delivered),
            seconds,
            says,
        });
    }
    match args.format {
        Format::Json => json(out, &outcomes)?,
        Format::Table => show(&outcomes, out)?,
    }
    if outcomes.iter().all(|o| o.delivered) { Ok(()) } else { Err(CliError::Said(1)) }
}

fn show(outcomes: &[Outcome<'_>], out: &mut dyn Write) -> std::io::Result<()> {
    let mut table = Table::new(&["RECEIVER", "KIND", "OUTCOME", "TIME"]);
    for o in outcomes {
        let took = format!("{:.0} ms", o.seconds * 1000.0);
        table.row([o.receiver, o.kind, o.error.as_deref().unwrap_or("delivered"), &took]);
    }
    table.write(out)?;
    for (o, warning) in outcomes.iter().filter_map(|o| Some((o, o.warning.as_ref()?))) {
        let (receiver, warning) = (plain(o.receiver), plain(warning));
        writeln!(
            out,
            "\nwarning: {receiver}: a message whose answer is lost would be sent twice: {warning}"
        )?;
    }
    for (o, why) in outcomes.iter().filter_map(|o| Some((o, o.no_chart.as_ref()?))) {
        writeln!(out, "\nnote: {}: messages will have no chart: {}", plain(o.receiver), plain(why))?;
    }
    for (o, why) in outcomes.iter().filter_map(|o| Some((o, o.unproven?))) {
        writeln!(out, "\nnote: {}: {why}", plain(o.receiver))?;
    }
    outcomes.iter().try_for_each(|o| o.says.as_ref().map_or(Ok(()), |says| says.write(o.receiver, out)))
}

/// A test message with the receiver's templates. Its title always says that it is a test, as the
/// built-in one does.
fn worded(templates: &Templates, receiver: &str, now: Ts) -> (Notification, Vec<Failed>) {
    let mut n = test_message(receiver, now);
    let built_in = n.message.title.clone();
    let failed = templates.dress(&mut n);
    if n.message.title != built_in {
        n.message.title = line(&format!("{TEST}: {}", n.message.title), TITLE_MAX);
    }
    (n, failed)
}

/// Delivers the message and its resolution; returns warnings.
async fn try_one(
    notifier: &dyn Notifier,
    first: Notification,
    failed: &[Failed],
) -> Result<Option<String>, String> {
    let doubt = try_out(notifier, first).await?;
    match failed.first() {
        None => Ok(doubt),
        Some(f) => {
            Err(format!("delivered in the built-in words: template {} failed: {}", f.template, f.error))
        }
    }
}

impl Says {
    fn from_message(m: &Message) -> Self {
        Self {
            title: m.title.clone(),
            summary: m.summary.clone(),
            facts: m.facts.clone(),
            links: m.links.clone(),
        }
    }

    fn write(&self, receiver: &str, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "\n{} says:", plain(receiver))?;
        let facts = self.facts.iter().map(|f| format!("{}: {}", f.label, f.text));
        let links = self.links.iter().map(|l| format!("{}: {}", l.text, l.href));
        let parts = [self.title.clone(), self.summary.clone()].into_iter().chain(facts).chain(links);
        for part in parts.collect::<Vec<_>>().iter().flat_map(|part| part.lines()) {
            writeln!(out, "  {}", plain(part))?;
        }
        Ok(())
    }
}
