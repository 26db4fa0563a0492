//! `kill -9` of the exporter: a log that it tails is read on from where it was, and the alerter
//! follows.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::trainer::healthy;
use stepwatch_tests::{Stack, StackOptions, exposition, poll_until};

const RUN: &str = "tailed";

/// A line as Megatron-LM prints it.
fn line(step: i64, loss: &str, grad_norm: f64) -> String {
    format!(
        " iteration {step:8}/  100000 | consumed samples: {:12} | elapsed time per iteration (ms): 1000.0 | learning rate: 1.500E-04 \
         | global batch size:   512 | lm loss: {loss} | loss scale: 1.0 | grad norm: {grad_norm:.3} | number of skipped iterations:   0 \
         | number of nan iterations:   0 |\n",
        step * 512
    )
}

fn append(path: &Path, steps: std::ops::Range<i64>) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    for step in steps {
        let (loss, grad_norm) = healthy(step);
        file.write_all(line(step, &format!("{loss:.6E}"), grad_norm).as_bytes()).unwrap();
    }
}

async fn reaches(stack: &Stack, step: f64) {
    poll_until(&format!("step {step}"), PATIENCE, async || {
        let page = stack.exporter.metrics().await.ok()?;
        exposition::value(&page, "train_step", &[("run", RUN)]).filter(|s| *s >= step)
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_resumes_where_it_was() {
    let log = tempfile::Builder::new().suffix(".log").tempfile().unwrap();
    let path = log.path().to_owned();
    append(&path, 1..101);
    let exporter = format!("sources:\n  - tail: {{path: {}, format: auto, run: {RUN}}}\n", path.display());
    let mut stack = Stack::start_with(StackOptions { exporter, ..StackOptions::default() }).await.unwrap();
    append(&path, 101..121);
    reaches(&stack, 120.0).await;

    stack.exporter.daemon.kill().await.unwrap();
    // While it is dead the job goes on, and goes wrong.
    append(&path, 121..131);
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(line(131, "NAN", 0.24).as_bytes()).unwrap();
    // The line that is being written when it comes back.
    let next = line(132, "2.2E+00", 0.24);
    file.write_all(&next.as_bytes()[..40]).unwrap();
    stack.exporter.restart().await.unwrap();
    reaches(&stack, 131.0).await;
    file.write_all(&next.as_bytes()[40..]).unwrap();
    drop(file);
    append(&path, 133..171);
    reaches(&stack, 170.0).await;

    stack.pagerduty.wait_for(|pd| !pd.pages.is_empty(), PATIENCE).await.unwrap();
    let incidents = stack.alerter.incidents().await.unwrap();
    let pages: Vec<_> = incidents.iter().filter(|i| i["severity"] == "page").collect();
    assert_eq!(pages.len(), 1, "{incidents:#?}");
    assert_eq!(pages[0]["kind"], "nonfinite");
    assert_eq!(pages[0]["start_step"], 131, "nothing was skipped");
    assert_eq!(stack.pagerduty.with(|pd| pd.pages.len()), 1);

    let page = stack.exporter.metrics().await.unwrap();
    let read = exposition::value(&page, "train_steps_total", &[("run", RUN)]).unwrap();
    assert!(
        (49.0..=51.0).contains(&read),
        "the second life read steps 121 to 170 and not the log from its start: {read}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn trainers_reconnect_to_a_new_exporter() {
    let mut stack = Stack::start().await.unwrap();
    let rank = stack.warm_run("before", 20).unwrap();
    stack.exporter.daemon.kill().await.unwrap();
    assert!(rank.step(21, &[("loss", 2.0)]).is_err(), "the old connection is gone");
    stack.exporter.restart().await.unwrap();
    let rank = stack.warm_run("after", 20).unwrap();
    rank.step(21, &[("loss", f64::NAN)]).unwrap();
    let pd = stack.pagerduty.wait_for(|pd| !pd.pages.is_empty(), PATIENCE).await.unwrap();
    assert_eq!(pd.alerts[0].source, "after");
}
