//! A database that is removed, emptied or cut short while the alerter has it open, or before a
//! start.

use std::fs::File;
use std::time::{Duration, Instant};

use stepwatch_fakes::{AlertState, FakePulse, Page, PagerDuty, Pulse};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Stack, StackOptions, poll_until};

use super::{fire, lines, pages, readiness, state, wait_ready, wait_sent, withheld};

/// Makes a file of the database shorter while it is open.
fn cut(stack: &Stack, end: &str, length: u64) {
    let file = stack.dir.path().join(format!("alerter/alerter.db{end}"));
    File::options().write(true).open(file).unwrap().set_len(length).unwrap();
}

/// Waits until nothing was written for longer than the alerter waits with what is in no hurry. A
/// process that uses SQLite at the moment when its index is cut short is killed.
async fn wait_idle(stack: &Stack) {
    let log = stack.dir.path().join("alerter/alerter.db-wal");
    let idle = async || {
        let written = log.metadata().ok()?.modified().ok()?;
        (written.elapsed().ok()? > Duration::from_secs(3)).then_some(())
    };
    poll_until("nothing to be written", PATIENCE, idle).await.unwrap();
}

/// A stack that has paged for `EarlyAlert` and writes nothing now.
async fn start_idle() -> Stack {
    let options = StackOptions { blind: true, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    assert_eq!(fire(&stack.alerter.url(), "EarlyAlert").await, Some(200));
    wait_sent(&stack.alerter).await;
    wait_idle(&stack).await;
    stack
}

/// A page that cannot be recorded is sent all the same after ten seconds; so is the fault of the
/// database.
async fn pages_unrecorded(stack: &Stack, since: Instant, why: &str) {
    assert_eq!(fire(&stack.alerter.url(), "LateAlert").await, Some(503));
    let said = wait_ready(&stack.alerter, 503).await;
    assert!(said.contains(why), "{said}");
    let both = ["LateAlert", "The database takes nothing"];
    let paged = |pd: &PagerDuty| both.iter().all(|what| pages(pd, what).count() == 1);
    let pd = stack.pagerduty.wait_for(paged, PATIENCE).await.unwrap();
    for what in both {
        let page = pages(&pd, what).next().unwrap();
        let waited = page.at - since;
        assert!(
            waited >= Duration::from_secs(10) && waited < Duration::from_secs(20),
            "{what} after {waited:?}"
        );
        assert!(page.summary.contains("Not recorded: the store refuses"), "{}", page.summary);
    }
    let said = wait_ready(&stack.alerter, 503).await;
    assert!(said.contains(why), "{said}");
}

/// What cannot be recorded may be lost: whoever can be woken is notified of that.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_removed_rings_at_every_receiver_that_wakes() {
    let switch = FakePulse::start().await;
    let watchdog = format!("watchdog: {{url: \"{}{}\", interval: 5s}}\n", switch.url(), Pulse::PATH);
    let alerter = format!("resolve_after: 200ms\n{watchdog}");
    let options = StackOptions { alerter, blind: true, twin: true, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let database = stack.dir.path().join("alerter/alerter.db");
    std::fs::rename(&database, database.with_extension("aside")).unwrap();
    assert_eq!(fire(&stack.alerter.url(), "LateAlert").await, Some(503));
    let why = wait_ready(&stack.alerter, 503).await;
    assert!(why.contains("was removed"), "{why}");
    // Anybody may ask for it.
    assert!(!why.contains("alerter.db") && !why.contains('/'), "{why}");
    let fault = "The database takes nothing";
    stack.pagerduty.wait_for(|pd| pages(pd, fault).count() == 2, PATIENCE).await.unwrap();
    let silent = async || (withheld(&stack.alerter).await >= 1.0).then_some(());
    poll_until("a heartbeat to be withheld", PATIENCE, silent).await.unwrap();
    std::fs::rename(database.with_extension("aside"), &database).unwrap();
    wait_ready(&stack.alerter, 200).await;
    let over = |pd: &PagerDuty| {
        pd.alerts.iter().filter(|a| a.summary.contains(fault)).all(|a| a.state == AlertState::Resolved)
    };
    stack.pagerduty.wait_for(over, PATIENCE).await.unwrap();
}

/// Nobody writes anything for up to a minute: that the database is gone is noticed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_alerter_misses_its_database_at_once_and_rings_after_ten_seconds() {
    let options =
        StackOptions { alerter: "resolve_after: 200ms\n".into(), blind: true, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    assert_eq!(readiness(&stack.alerter).await.0, 200);
    // A commit that is still to come would notice it first, and report it in other words.
    wait_idle(&stack).await;
    let file = |aside: bool, end: &str| {
        stack.dir.path().join(format!("alerter/{}alerter.db{end}", if aside { "aside-" } else { "" }))
    };
    // All that `rm alerter.db*` removes.
    let files = ["", "-wal", "-shm"];
    let removed = Instant::now();
    files.iter().for_each(|end| std::fs::rename(file(false, end), file(true, end)).unwrap());
    let (status, why) = readiness(&stack.alerter).await;
    assert_eq!((status, why.contains("the database was removed")), (503, true), "{why}");
    let fault = "The database takes nothing";
    let pd = stack.pagerduty.wait_for(|pd| pages(pd, fault).next().is_some(), PATIENCE).await.unwrap();
    let waited = pages(&pd, fault).next().unwrap().at - removed;
    assert!(waited >= Duration::from_secs(10) && waited < Duration::from_secs(20), "rang after {waited:?}");
    assert_eq!(lines(&stack.alerter, "is not in its place").len(), 1, "said once");

    files.iter().for_each(|end| std::fs::rename(file(true, end), file(false, end)).unwrap());
    wait_ready(&stack.alerter, 200).await;
    let over = |pd: &PagerDuty| pd.alerts.iter().all(|alert| alert.state == AlertState::Resolved);
    stack.pagerduty.wait_for(over, PATIENCE).await.unwrap();
}

/// SQLite maps this file, and a process that touches what is mapped and not there is killed.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_emptied_kills_nobody_and_rings() {
    let mut stack = start_idle().await;
    let since = Instant::now();
    cut(&stack, "-shm", 0);
    pages_unrecorded(&stack, since, "the database's index was cut short").await;
    let ended = stack.alerter.daemon.terminate().await.unwrap();
    assert!(ended.success(), "{ended}");
    // Nothing was lost but what was never recorded.
    stack.alerter.restart(None).await.unwrap();
    stack.alerter.ready().await.unwrap();
    assert_eq!(state(&stack.alerter, "EarlyAlert").await.as_deref(), Some("open"));
}

/// The disk is empty, for readers and for the next start, which reports it before it ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_emptied_rings_and_rings_once_more_where_the_next_start_refuses_it() {
    let mut stack = start_idle().await;
    let since = Instant::now();
    for end in ["", "-wal", "-shm"] {
        cut(&stack, end, 0);
    }
    pages_unrecorded(&stack, since, "the database was emptied").await;
    // As by the signal that ends a process that uses SQLite at that very moment.
    stack.alerter.daemon.kill().await.unwrap();
    for _ in 0..2 {
        let refused = format!("{:#}", stack.alerter.restart(None).await.unwrap_err());
        assert!(refused.contains("is empty") && refused.contains("--new-store"), "{refused}");
        stack.pagerduty.with(|pd| {
            let found: Vec<&Page> = pages(pd, "does not start").collect();
            assert!(found.len() == 1 && found[0].summary.contains("is empty"), "{found:#?}");
            let alert = pd.alerts_of(&found[0].dedup_key).next().unwrap();
            assert_eq!(alert.log.len(), 1, "notified once, {:#?}", alert.log);
        });
    }
}

/// A receiver that does not answer holds up a start that is refused for ten seconds, and no other
/// receiver.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_refused_ends_although_a_receiver_hangs() {
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let receivers = format!(
        "  - name: refusing\n    wakes: true\n    webhook: {{url: \"http://{}/\", secret_file: pd}}\n",
        refusing.local_addr().unwrap()
    );
    let options = StackOptions { blind: true, receivers, ..StackOptions::default() };
    let mut stack = Stack::start_with(options).await.unwrap();
    assert_eq!(stack.alerter.daemon.terminate().await.unwrap().code(), Some(0));
    cut(&stack, "", 0);
    let began = Instant::now();
    let refused = format!("{:#}", stack.alerter.restart(None).await.unwrap_err());
    let took = began.elapsed();
    assert!(refused.contains("is empty"), "{refused}");
    assert!(took >= Duration::from_secs(10) && took < Duration::from_secs(20), "it took {took:?}");
    let pd = stack.pagerduty.with(|pd| pages(pd, "does not start").next().map(|page| page.at)).unwrap();
    assert!(pd - began < Duration::from_secs(5), "{:?}", pd - began);
}

/// Another alerter has the database, and does its work.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_alerter_on_a_database_rings_nobody() {
    let options = StackOptions { blind: true, ..StackOptions::default() };
    let mut stack = Stack::start_with(options).await.unwrap();
    // The first one runs on.
    let refused = format!("{:#}", stack.alerter.restart(None).await.unwrap_err());
    assert!(refused.contains("is in use by another"), "{refused}");
    assert_eq!(stack.pagerduty.with(|pd| pd.pages.len()), 0);
}

/// SQLite still writes to a log that was cut short, and nothing of that can be read.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_cut_short_rings_after_ten_seconds() {
    let stack = start_idle().await;
    let since = Instant::now();
    cut(&stack, "-wal", 100);
    pages_unrecorded(&stack, since, "the database's log was cut short").await;
}

/// Half of the database is gone: what is left of it is in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cannot_be_read_takes_nothing_and_rings() {
    let switch = FakePulse::start().await;
    let alerter = format!("watchdog: {{url: \"{}{}\", interval: 5s}}\n", switch.url(), Pulse::PATH);
    let options = StackOptions { alerter, blind: true, ..StackOptions::default() };
    let mut stack = Stack::start_with(options).await.unwrap();
    assert_eq!(fire(&stack.alerter.url(), "EarlyAlert").await, Some(200));
    wait_sent(&stack.alerter).await;
    // All of it is written back into the file.
    stack.alerter.daemon.terminate().await.unwrap();
    stack.alerter.restart(None).await.unwrap();
    stack.alerter.ready().await.unwrap();
    let since = Instant::now();
    cut(&stack, "", 4096);
    let said = wait_ready(&stack.alerter, 503).await;
    assert!(said.contains("malformed"), "{said}");
    let before = switch.with(|s| s.beats.len());
    pages_unrecorded(&stack, since, "malformed").await;
    let beats = switch.with(|s| s.beats.len());
    assert!(beats <= before + 1, "of those that were on their way one may arrive: {before}, {beats}");
}

/// What was committed last is in SQLite's log until it is written back. Without the log an older
/// database is left, which does not show that it is older.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_removed_after_a_kill_is_missed_at_the_start() {
    let options = StackOptions { blind: true, ..StackOptions::default() };
    let mut stack = Stack::start_with(options).await.unwrap();
    assert_eq!(fire(&stack.alerter.url(), "EarlyAlert").await, Some(200));
    stack.alerter.daemon.kill().await.unwrap();
    stack.alerter.restart(None).await.unwrap();
    stack.alerter.ready().await.unwrap();
    assert_eq!(state(&stack.alerter, "EarlyAlert").await.as_deref(), Some("open"), "an ordinary kill");
    assert_eq!(fire(&stack.alerter.url(), "LateAlert").await, Some(200));
    stack.alerter.daemon.kill().await.unwrap();
    let log = stack.dir.path().join("alerter/alerter.db-wal");
    let aside = log.with_extension("aside");
    std::fs::rename(&log, &aside).unwrap();
    let refused = format!("{:#}", stack.alerter.restart(None).await.unwrap_err());
    assert!(refused.contains("alerter.db-wal was removed") && refused.contains("--new-store"), "{refused}");

    // The start that was refused has destroyed nothing.
    let _ = std::fs::remove_file(&log);
    std::fs::rename(&aside, &log).unwrap();
    stack.alerter.restart(None).await.unwrap();
    stack.alerter.ready().await.unwrap();
    for name in ["EarlyAlert", "LateAlert"] {
        assert_eq!(state(&stack.alerter, name).await.as_deref(), Some("open"), "{name}");
    }
}
