//! The story of the demo: a run fails, a person is woken, acknowledges, and restarts from the last
//! good checkpoint, and the incident resolves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use stepwatch_fakes::AlertState;
use stepwatch_tests::Stack;
use tokio::process::Child;

use crate::feed::{Feed, delivered};
use crate::python::{self, Python};
use crate::screen::{Colour, Screen};
use crate::steps::Steps;

const RUN: &str = "tiny-lm";
const STEPS_PER_SECOND: u32 = 15;
/// The time limit from the first bad step to a page, far longer than usual.
const PAGE_DEADLINE: Duration = Duration::from_secs(30);
const WORD_DEADLINE: Duration = Duration::from_secs(15);
/// The detectors need a number of good steps before the incident resolves.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(90);
/// The reaction time of a person.
const WAKING_UP: Duration = Duration::from_secs(4);
const WHO: &str = "you";

/// Plays the story; returns the trainer, which continues in good health.
pub(crate) async fn play(
    screen: &mut Screen,
    stack: &Stack,
    steps: &Steps,
    python: &Python,
    blow_up_after: u32,
    mut feed: Feed,
) -> anyhow::Result<Child> {
    let checkpoints = stack.dir.path().join("checkpoints");
    let blow_up = blow_up_after * STEPS_PER_SECOND;
    let with = if python.numpy { "NumPy" } else { "pure Python" };
    screen.progress(&format!(
        "training a tiny language model for real ({with}); from step {blow_up}, in {blow_up_after} s, its learning rate runs away\n"
    ));
    screen.start_clock();
    let mut trainer = start(python, stack, &checkpoints, &["--blow-up-at", &blow_up.to_string()])?;

    let healthy = Duration::from_secs(u64::from(blow_up_after) * 2) + PAGE_DEADLINE;
    let everywhere = |t: &Feed| delivered(t, stack, Some(AlertState::Triggered));
    let paged = feed.until(screen, (stack, steps), healthy, everywhere).await;
    ensure!(paged, "nobody was paged; {}", state_of(&mut trainer));

    feed.until(screen, (stack, steps), WAKING_UP, |_| false).await;
    let ids: Vec<_> =
        feed.known.iter().filter(|i| i["severity"] == "page").map(|i| i["id"].clone()).collect();
    for id in ids.iter().filter_map(|id| id.as_str()) {
        screen.event(Colour::Plain, "YOU", &format!("stepwatch-alerter incidents ack {id}"));
        let out = stack.alerter.ack(id, WHO).await?;
        ensure!(out.status.success(), "ack: {}", String::from_utf8_lossy(&out.stderr));
    }
    let acked = |t: &Feed| delivered(t, stack, Some(AlertState::Acknowledged));
    ensure!(
        feed.until(screen, (stack, steps), WORD_DEADLINE, acked).await,
        "the acknowledgement did not arrive"
    );

    python::interrupt(&mut trainer).await?;
    feed.until(screen, (stack, steps), WAKING_UP / 4, |_| false).await;
    let checkpoint = newest(&checkpoints)?;
    let name = checkpoint.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    screen.event(
        Colour::Plain,
        "YOU",
        &format!("restart with the old learning rate, from the last good checkpoint ({name})"),
    );
    let mut trainer = start(python, stack, &checkpoints, &["--resume", &checkpoint.display().to_string()])?;
    let over = |t: &Feed| delivered(t, stack, Some(AlertState::Resolved));
    let resolved = feed.until(screen, (stack, steps), RESOLVE_DEADLINE, over).await;
    ensure!(resolved, "the incident did not resolve; {}", state_of(&mut trainer));
    // The end: Slack's message is edited after PagerDuty is notified.
    feed.until(screen, (stack, steps), Duration::from_secs(3), |_| false).await;
    ensure!(stack.pagerduty.with(|pd| pd.pages.len()) == 1, "one disaster, one page");
    let within = feed
        .delay
        .map_or_else(String::new, |s| format!(", {:.0} ms after the step that gave it away", s * 1e3));
    let messages = stack.slack.with(|s| s.top().count());
    let plural = if messages == 1 { "" } else { "s, each with its thread" };
    screen.event(Colour::Green, "OVER", &format!("one page{within}, and {messages} Slack message{plural}"));
    Ok(trainer)
}

fn start(python: &Python, stack: &Stack, checkpoints: &Path, args: &[&str]) -> anyhow::Result<Child> {
    let (rate, checkpoints) = (STEPS_PER_SECOND.to_string(), checkpoints.display().to_string());
    let common =
        ["--run", RUN, "--steps", "1000000", "--steps-per-second", &rate, "--checkpoint-dir", &checkpoints];
    python.trainer(&stack.ingest(), &[&common, args].concat())
}

fn state_of(trainer: &mut Child) -> String {
    match trainer.try_wait() {
        Ok(Some(status)) => format!("the trainer ended: {status}"),
        _ => "the trainer still runs".into(),
    }
}

/// The checkpoint with the highest step.
fn newest(dir: &Path) -> anyhow::Result<PathBuf> {
    let step = |p: &PathBuf| -> Option<u64> { p.file_stem()?.to_str()?.strip_prefix("step-")?.parse().ok() };
    let files =
        std::fs::read_dir(dir).with_context(|| dir.display().to_string())?.flatten().map(|e| e.path());
    files.max_by_key(step).context("the trainer has written no checkpoint")
}
