//! `cargo demo` shows the main use on this machine in a minute: a real trainer diverges, and the
//! right people are notified.
//!
//! Everything is real except Slack and PagerDuty, which are fakes with a web page. It works without
//! a GPU, without Slack and without internet.

mod feed;
mod python;
mod replay;
mod replicas;
mod screen;
mod steps;
mod story;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use stepwatch_tests::{Stack, StackOptions, bins};
use tokio::process::Child;
use tokio::sync::mpsc;

use crate::feed::Feed;
use crate::python::Python;
use crate::replicas::Replicas;
use crate::screen::Screen;
use crate::steps::Steps;

/// News about the replicas that wait to be printed.
const NEWS: usize = 16;

/// A training run blows up; see who is notified of what, and how soon.
#[derive(Debug, Parser)]
#[command(name = "cargo demo")]
struct Options {
    /// End by itself; status 0 only if the incident was really delivered, acknowledged and resolved
    #[arg(long)]
    once: bool,
    /// Feed this training log through the exporter instead of training
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Lines of the replayed log a second
    #[arg(long, value_name = "N", default_value_t = 20.0)]
    lines_per_second: f64,
    /// Seconds of healthy training first
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    blow_up_after: u32,
    /// Run so many alerters on a PostgreSQL, and kill the one that leads while it pages
    #[arg(long, value_name = "N", conflicts_with = "replay")]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=9))]
    replicas: Option<u8>,
    /// Train the smaller model, without NumPy
    #[arg(long)]
    pure_python: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = tokio::runtime::Runtime::new().map_err(anyhow::Error::from).and_then(|rt| {
        let done = rt.block_on(async {
            tokio::select! {
                result = run(&options) => result,
                _ = tokio::signal::ctrl_c() => Ok(()),
            }
        });
        // A read of a log may hang in a file system, and need not be awaited.
        rt.shutdown_background();
        done
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            stepwatch_tests::say::line(&format!("\ncargo demo: {why:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> anyhow::Result<()> {
    let mut screen = Screen::new();
    screen.title("Stepwatch", "from a training step to a person, on this machine");
    screen.progress("building the two programs");
    tokio::task::spawn_blocking(|| bins::path(bins::ALERTER)).await??;
    let python = match &options.replay {
        Some(_) => None,
        None => Some(python::prepare(&mut screen, options.pure_python).await?),
    };

    let postgres = match options.replicas {
        Some(_) => Some(replicas::database(&mut screen).await?),
        None => None,
    };
    screen.progress("starting exporter, alerter, Slack and PagerDuty");
    let replay = options.replay.as_deref().map(replay::Replay::open).transpose()?;
    let stack_options = StackOptions {
        alerter_listen: Some(free_address()?),
        alerter: "resolve_after: 5s\n".into(),
        exporter: replay.as_ref().map_or_else(String::new, replay::Replay::source),
        storage: postgres.as_ref().map(replicas::storage),
        ..StackOptions::default()
    };
    let stack = Stack::start_with(stack_options).await?;
    screen.links(&[
        ("Slack", &stack.slack.url(), "the channel, as the team sees it"),
        ("PagerDuty", &stack.pagerduty.url(), "what wakes whoever is on call"),
        ("alerter", &stack.alerter.url(), "incidents, runs, sources"),
        ("exporter", &format!("{}/metrics", stack.exporter.url()), "what Prometheus scrapes"),
    ]);
    let steps = Steps::follow(&stack.exporter.url());
    // The trainer is kept alive, because a killed one would be a dead rank and page.
    let _trainer = match (replay, python) {
        (Some(replay), _) => {
            replay.play(&mut screen, &stack, &steps, options.lines_per_second).await?;
            None
        }
        (None, Some(python)) => Some(train(&mut screen, &stack, &steps, &python, options).await?),
        (None, None) => None,
    };
    if !options.once {
        screen.note("the pages above stay until Ctrl-C");
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Plays the story of a training; with replicas, the one that leads is killed while it pages.
async fn train(
    screen: &mut Screen,
    stack: &Stack,
    steps: &Steps,
    python: &Python,
    options: &Options,
) -> anyhow::Result<Child> {
    let after = options.blow_up_after;
    let Some(count) = options.replicas else {
        return story::play(screen, stack, steps, python, after, Feed::default()).await;
    };
    let mut replicas = Replicas::start(screen, stack, count).await?;
    let (tell, news) = mpsc::channel(NEWS);
    let story = story::play(screen, stack, steps, python, after, Feed::with(news));
    let (trainer, ()) = tokio::try_join!(story, replicas.lose_the_leader(stack, after, tell))?;
    screen.note("the replica that led was killed while it paged: nothing was lost or sent twice");
    Ok(trainer)
}

/// The usual port of the alerter if it is free, so that the link looks familiar.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:9766").or_else(|_| TcpListener::bind("127.0.0.1:0"))?;
    Ok(listener.local_addr()?)
}
