//! The account of a run's GPU time through kills of the alerter: every second is counted once.

use std::time::Instant;

use stepwatch_tests::http::{get, get_json};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::trainer::{Rank, healthy};
use stepwatch_tests::{Stack, poll_until, say};

const KILLS: usize = 50;
const WORLD: u32 = 8;
const RUN: &str = "accounted";
/// After so many kills, the count must go on before the next one.
const LIVES: usize = 10;

/// The seconds of the run in all states together, of one GPU.
async fn accounted(stack: &Stack) -> Option<f64> {
    let page = get(&format!("{}/metrics", stack.alerter.url())).await.ok()?;
    let family = format!("train_gpu_seconds_total{{run=\"{RUN}\"");
    let rows = page.lines().filter(|line| line.starts_with(&family));
    let seconds: Vec<f64> = rows.filter_map(|row| row.rsplit(' ').next()?.parse().ok()).collect();
    (!seconds.is_empty()).then(|| seconds.iter().sum::<f64>() / f64::from(WORLD))
}

/// The first account that is shown. It is never less than one before it.
async fn not_behind(stack: &Stack, seen: f64) -> f64 {
    let shown = async || accounted(stack).await;
    let now = poll_until("an account of the run", PATIENCE, shown).await.unwrap();
    assert!(now >= seen, "the account went back from {seen} s to {now} s");
    now
}

async fn at_least(stack: &Stack, seconds: f64) -> f64 {
    let reached = async || accounted(stack).await.filter(|now| *now >= seconds);
    poll_until("the account of the run", PATIENCE, reached).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_of_a_run_adds_up_through_fifty_kills() {
    let mut stack = Stack::start().await.unwrap();
    let began = Instant::now();
    let rank = Rank::join(&stack.ingest(), RUN, 0, WORLD).unwrap();
    let mut step = 0;
    let mut make_step = || {
        step += 1;
        rank.step(step, &[("loss", healthy(step).0), ("step_time", 0.2)]).unwrap();
    };
    let mut seen = 0.0;
    for kill in 0..KILLS {
        make_step();
        if kill > 0 {
            seen = not_behind(&stack, seen).await;
        }
        stack.alerter.daemon.kill().await.unwrap();
        make_step();
        stack.alerter.restart(None).await.unwrap();
        stack.alerter.ready().await.unwrap();
        seen = not_behind(&stack, seen).await;
        if kill % LIVES == 0 {
            (0..3).for_each(|_| make_step());
            seen = at_least(&stack, seen + 0.001).await;
        }
    }
    make_step();
    let allocated = began.elapsed().as_secs_f64();
    rank.bye().unwrap();
    // Nothing is added once the run is over.
    let over = async || {
        let runs = get_json(&format!("{}/api/v1/runs", stack.alerter.url())).await.ok()?;
        let run = runs["runs"].as_array()?.iter().find(|run| run["run"] == RUN)?;
        run["ended"].is_number().then_some(())
    };
    poll_until("the end of the run", PATIENCE, over).await.unwrap();
    let all = at_least(&stack, allocated - 1.0).await;
    say::figure(&format!("{allocated:.1} s through {KILLS} kills: {all:.1} s accounted"));
    assert!((all - allocated).abs() < 1.0, "{all} s of {allocated} s");
}
