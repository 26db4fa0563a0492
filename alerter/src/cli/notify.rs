//! `notify test`: the only way to know that a page would arrive is to send one.

use core::time::Duration;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use stepwatch_engine::effect::{Action, Notification};
use stepwatch_engine::message::Status;
use stepwatch_engine::time::Ts;

use super::CliError;
use super::incidents::{Format, json};
use super::table::Table;
use crate::clock::wall;
use crate::config::Config;
use crate::notify::{Attempt, FailureClass, Notifier, test_notification};

/// Far beyond what a notifier gives itself.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
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

/// What came of one test.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    receiver: &'a str,
    kind: &'static str,
    delivered: bool,
    error: Option<String>,
    seconds: f64,
}

/// Sends each receiver a test incident, and resolves it so that it leaves nothing open.
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
        let started = Instant::now();
        let error = try_one(notifier.as_ref(), name, now).await.err();
        let seconds = started.elapsed().as_secs_f64();
        outcomes.push(Outcome {
            receiver: name,
            kind: notifier.kind(),
            delivered: error.is_none(),
            error,
            seconds,
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
    table.write(out)
}

async fn try_one(notifier: &dyn Notifier, receiver: &str, now: Ts) -> Result<(), String> {
    let first = test_notification(receiver, &format!("test-{}", now.0), now);
    let memory = send(notifier, &first, None).await?;
    let last = resolution(first);
    send(notifier, &last, memory.as_deref())
        .await
        .map(drop)
        .map_err(|why| format!("delivered, but it could not be resolved and stays open there: {why}"))
}

fn resolution(mut n: Notification) -> Notification {
    n.seq = 2;
    n.action = Action::Resolve;
    n.idem_key = format!("{}/{}/2", n.incident, n.receiver);
    n.message.status = Status::Resolved;
    n.message.reason = "the end of the test".into();
    n
}

async fn send(
    notifier: &dyn Notifier,
    n: &Notification,
    memory: Option<&str>,
) -> Result<Option<String>, String> {
    let attempt = Attempt { memory, ..Attempt::first(n) };
    match tokio::time::timeout(PATIENCE, notifier.send(attempt)).await {
        Err(_) => Err(format!("failed: no answer within {PATIENCE:?}")),
        Ok(Ok(receipt)) => Ok(receipt.memory.or_else(|| memory.map(str::to_owned))),
        Ok(Err(failure)) => Err(match failure.class {
            FailureClass::Permanent => format!("refused: {}", failure.error),
            FailureClass::Transient => format!("failed: {}", failure.error),
            FailureClass::RateLimited { .. } => format!("rate limited: {}", failure.error),
        }),
    }
}
