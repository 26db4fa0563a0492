//! One incident at a time, with a death at every place where it matters; then many at once, with
//! deaths at any moment.

use std::time::{Duration, Instant};

use stepwatch_fakes::{AlertState, Fault, PagerDuty, Slack};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::trainer::{Rank, healthy};
use stepwatch_tests::{Random, Stack, StackOptions, poll_until, say};

use super::crash_points;

/// Passes of one point that are tried at most; a scenario that survives ends the search sooner.
const MAX_PASSES: u32 = 12;
/// Incidents, and kills, of the random test.
const INCIDENTS: usize = 16;
const KILLS: usize = 12;
/// Incidents resolve soon, so that a test sees the whole life of one; and each is notified by
/// itself, however many there are.
const QUICK: &str = "resolve_after: 200ms\nstorm: {enabled: false}\n";

/// Restarts the alerter, unarmed, whenever it is found dead.
async fn revive(stack: &mut Stack) -> bool {
    let dead = stack.alerter.daemon.ended().is_some();
    if dead {
        stack.alerter.restart(None).await.unwrap();
    }
    dead
}

/// Polls `done` until it holds, reviving the alerter as often as it dies; whether it died.
async fn survive(stack: &mut Stack, what: &str, mut done: impl AsyncFnMut(&Stack) -> bool) -> bool {
    let mut died = false;
    let deadline = Instant::now() + PATIENCE;
    loop {
        died |= revive(stack).await;
        let held =
            poll_until(what, Duration::from_millis(100), async || done(stack).await.then_some(())).await;
        if held.is_ok() {
            return died;
        }
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} for {what}\n{}",
            stack.alerter.daemon.log().join("\n")
        );
    }
}

fn state_of(pd: &PagerDuty, run: &str) -> Option<AlertState> {
    pd.alerts.iter().find(|a| a.source == run).map(|a| a.state)
}

fn top_of(slack: &Slack, run: &str) -> Vec<String> {
    slack.top().map(|p| p.visible_text()).filter(|t| t.contains(run)).collect()
}

/// What must hold of a run's incident whenever the dust has settled.
fn notified_once(stack: &Stack, run: &str) {
    stack.pagerduty.with(|pd| {
        assert_eq!(pd.alerts.iter().filter(|a| a.source == run).count(), 1, "{run}: {:#?}", pd.alerts);
    });
    stack.slack.with(|s| assert_eq!(top_of(s, run).len(), 1, "{run}: {:#?}", s.posts));
}

/// One incident from NaN to resolve, acknowledged on the way. Returns whether the alerter died.
async fn life_of_an_incident(stack: &mut Stack, run: &str) -> bool {
    let rank = stack.warm_run(run, 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    let mut died =
        survive(stack, "the page", async |s| s.pagerduty.with(|pd| state_of(pd, run).is_some())).await;
    let id = stack.pagerduty.with(|pd| pd.alerts.iter().find(|a| a.source == run).unwrap().dedup_key.clone());
    died |= survive(stack, "the ack", async |s| {
        let _ = s.alerter.ack(&id, "test").await;
        s.pagerduty.with(|pd| state_of(pd, run) != Some(AlertState::Triggered))
    })
    .await;
    for step in 5..40 {
        let (loss, grad_norm) = healthy(step);
        rank.step(step, &[("loss", loss), ("grad_norm", grad_norm)]).unwrap();
    }
    died |= survive(stack, "the resolve", async |s| {
        let slack = s.slack.with(|s| top_of(s, run).iter().any(|t| t.to_lowercase().contains("resolved")));
        slack && s.pagerduty.with(|pd| state_of(pd, run) == Some(AlertState::Resolved))
    })
    .await;
    notified_once(stack, run);
    rank.bye().unwrap();
    died
}

#[tokio::test(flavor = "multi_thread")]
async fn at_every_crash_point() {
    // Pictures follow their messages in their own time, after the life of a short incident: they
    // have a test of their own (`alerter/src/pictures/tests/kill.rs`).
    let points: Vec<_> = crash_points().into_iter().filter(|point| !point.starts_with("pictures.")).collect();
    assert!(points.len() >= 4, "the alerter names its crash points: {points:?}");
    let options = StackOptions { alerter: QUICK.into(), ..StackOptions::default() };
    let mut stack = Stack::start_with(options).await.unwrap();
    let mut deaths = 0;
    for point in &points {
        for pass in 1..=MAX_PASSES {
            stack.alerter.daemon.kill().await.unwrap();
            // Armed, it may die before it is ready: that is a pass too.
            let _ = stack.alerter.restart(Some(&format!("{point}:{pass}"))).await;
            let died = life_of_an_incident(&mut stack, &format!("{point}-{pass:02}")).await;
            assert!(died || pass > 1, "{point} was never reached");
            if !died {
                break;
            }
            deaths += 1;
        }
    }
    say::figure(&format!(
        "killed at {} crash points {deaths} times: one page and one message each",
        points.len()
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn at_any_moment() {
    let seed = jiff::Timestamp::now().as_microsecond() as u64;
    say::line(&format!("seed {seed}"));
    let mut random = Random::new(seed);
    // So many pages of one exporter would be a storm.
    let alerter = "storm: {enabled: false}\n".into();
    let mut stack = Stack::start_with(StackOptions { alerter, ..StackOptions::default() }).await.unwrap();
    // Receivers fail as well, in the ways in which it is unknown whether a message arrived.
    for endpoint in ["chat.postMessage", "chat.update"] {
        stack.slack.script().push(endpoint, Fault::TakenThenReset).push(endpoint, Fault::Status(500));
    }
    stack
        .pagerduty
        .script()
        .push("enqueue", Fault::TakenThenStatus(500))
        .push("enqueue", Fault::TakenThenReset);

    let ingest = stack.ingest();
    let mut ranks = Vec::new();
    let mut kills = 0;
    while ranks.len() < INCIDENTS || kills < KILLS {
        if ranks.len() < INCIDENTS {
            let run = format!("random-{:02}", ranks.len());
            let rank = Rank::join(&ingest, &run, 0, 1).unwrap();
            rank.step(1, &[("loss", 2.0)]).unwrap();
            rank.step(2, &[("loss", f64::NAN)]).unwrap();
            ranks.push((run, rank));
        }
        // Not a synchronisation: the moment of the kill is what is being varied.
        tokio::time::sleep(Duration::from_millis(random.range(0, 250))).await;
        if kills < KILLS && random.unit() < 0.8 {
            kills += 1;
            stack.alerter.daemon.kill().await.unwrap();
            stack.alerter.restart(None).await.unwrap();
        }
    }
    survive(&mut stack, "every page and message", async |s| {
        let paged = |run: &str| s.pagerduty.with(|pd| state_of(pd, run).is_some());
        let notified = |run: &str| s.slack.with(|s| !top_of(s, run).is_empty());
        ranks.iter().all(|(run, _)| paged(run) && notified(run))
    })
    .await;
    for (run, _) in &ranks {
        notified_once(&stack, run);
    }
    say::figure(&format!(
        "killed {kills} times at random: {INCIDENTS} incidents, one page and one message each"
    ));
}
