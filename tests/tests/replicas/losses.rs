//! The leader or its database is lost: another replica goes on where it was, and the old one does
//! nothing more.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use stepwatch_fakes::Fault;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{poll_until, say};

use crate::stage::{
    AT_ONCE, Stage, ack, fire, fire_until_any_took_it, fire_until_taken, get, metric, triggers,
};

/// A page that was pending when the leader died is sent within this time.
const PAGE_LIMIT: Duration = Duration::from_secs(10);
/// Alerts of the test of a restart of the database.
const ALERTS: usize = 60;

/// Posts an alert that cannot be sent; returns the id of its incident once an attempt has failed.
async fn pending(stage: &Stage, by: usize, run: &str) -> String {
    let before = stage.pagerduty.with(|pd| pd.requests.len());
    stage.pagerduty.script().always("enqueue", Fault::Status(503));
    fire_until_taken(&stage.url(by), run).await;
    stage.pagerduty.wait_for(|pd| pd.requests.len() > before, PATIENCE).await.unwrap();
    stage.paged(by, run, 0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_was_pending_when_the_leader_was_killed_is_sent_once() {
    let Some(mut stage) = Stage::start(AT_ONCE).await else { return };
    let leader = stage.leader().await;
    let [a, b] = stage.others(leader)[..] else { panic!("three replicas") };
    fire_until_taken(&stage.url(a), "before").await;
    stage.paged(a, "before", 1).await;
    let waits = pending(&stage, b, "pending").await;
    stage.replicas[leader].alerter.daemon.kill().await.unwrap();
    let killed = Instant::now();
    stage.pagerduty.script().clear();
    // And one that comes while no replica leads.
    fire_until_taken(&stage.url(a), "after").await;
    let runs = BTreeSet::from(["before", "pending", "after"].map(str::to_owned));
    stage.each_paged_once(b, &runs).await;
    let after = |key: &str| {
        let at = stage.pagerduty.with(|pd| pd.pages.iter().find(|p| p.dedup_key == key).map(|p| p.at));
        at.unwrap().saturating_duration_since(killed)
    };
    let incidents = stage.incidents(b, "after").await;
    let times = [after(&waits), after(incidents[0]["id"].as_str().unwrap())];
    say::figure(&format!(
        "kill -9 of the leader: the pending page after {} ms, a new one after {} ms",
        times[0].as_millis(),
        times[1].as_millis()
    ));
    assert!(times.iter().all(|time| *time < PAGE_LIMIT), "{times:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stood_still_does_nothing_more_and_ends() {
    let Some(mut stage) = Stage::start(AT_ONCE).await else { return };
    let leader = stage.leader().await;
    let others = stage.others(leader);
    let id = pending(&stage, others[0], "frozen").await;
    stage.replicas[leader].alerter.daemon.freeze().unwrap();
    stage.pagerduty.script().clear();
    let new = stage.leader_among(&others).await;
    stage.paged(new, "frozen", 1).await;
    assert!(ack(&stage.url(new), &id).await);
    let acked = |pd: &stepwatch_fakes::PagerDuty| pd.triggered().next().is_none();
    stage.pagerduty.wait_for(acked, PATIENCE).await.unwrap();
    let told = |stage: &Stage| stage.pagerduty.with(|pd| pd.requests.len());
    let before = told(&stage);
    let epoch = metric(&stage.url(new), "stepwatch_alerter_lease_epoch").await;

    // Its attempt to send the page is overdue by now.
    let old = &mut stage.replicas[leader].alerter.daemon;
    old.thaw().unwrap();
    let status = old.wait(PATIENCE).await.unwrap();
    assert!(!status.success(), "it ends as one that failed: {status}");
    old.logged(|line| line.contains("this replica leads no more")).await.unwrap();
    assert_eq!(told(&stage), before, "it sent something");
    assert_eq!(stage.pagerduty.with(|pd| triggers(pd, &id)), 1);
    assert_eq!(stage.slack.with(|slack| slack.top().count()), 1);
    let incidents = stage.incidents(new, "frozen").await;
    assert_eq!((incidents.len(), &incidents[0]["state"]), (1, &"acknowledged".into()), "{incidents:#?}");
    assert_eq!(
        metric(&stage.url(new), "stepwatch_alerter_lease_epoch").await,
        epoch,
        "it took the lease back"
    );
    stage.revive(leader).await;
    stage.all_ready().await;
    stage.each_paged_once(leader, &BTreeSet::from(["frozen".to_owned()])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_its_database_sends_nothing_and_accepts_nothing() {
    let Some(mut stage) = Stage::start(AT_ONCE).await else { return };
    let leader = stage.leader().await;
    let others = stage.others(leader);
    let id = pending(&stage, others[0], "cut-off").await;
    stage.replicas[leader].database.hang();
    let new = stage.leader_among(&others).await;
    // Both could reach PagerDuty from now on, and only one may.
    stage.pagerduty.script().clear();
    // An answer that cannot be stored is not accepted.
    let url = stage.url(leader);
    assert!(!ack(&url, &id).await, "the old leader accepted an answer");
    stage.paged(new, "cut-off", 1).await;
    assert_eq!(stage.pagerduty.with(|pd| triggers(pd, &id)), 1, "sent by the new leader alone");

    stage.replicas[leader].database.cut();
    fire_until_taken(&stage.url(new), "while-cut").await;
    stage.paged(new, "while-cut", 1).await;
    stage.replicas[leader].database.resume();
    let status = stage.replicas[leader].alerter.daemon.wait(PATIENCE).await.unwrap();
    assert!(!status.success(), "it ends as one that failed: {status}");
    assert_eq!(stage.pagerduty.with(|pd| triggers(pd, &id)), 1, "sent by the new leader alone");
    let incidents = stage.incidents(new, "cut-off").await;
    assert_eq!(incidents[0]["state"], "open", "nobody answered: {incidents:#?}");
    stage.revive(leader).await;
    stage.all_ready().await;
    stage.each_paged_once(leader, &BTreeSet::from(["cut-off", "while-cut"].map(str::to_owned))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_database_under_load_loses_and_doubles_nothing() {
    let Some(mut stage) = Stage::start(AT_ONCE).await else { return };
    let urls = stage.urls();
    let runs: Vec<_> = (0..ALERTS).map(|n| format!("load-{n:02}")).collect();
    let load = async {
        for (n, run) in runs.iter().enumerate() {
            // Taken by one replica; the others may have heard of it before. The leader ends if the
            // restart cost it commits that nobody was told of.
            fire_until_any_took_it(&urls, n, run).await;
        }
    };
    let Stage { postgres, pagerduty, .. } = &mut stage;
    let restart = async {
        // Early in it, whatever the machine is worth.
        pagerduty.wait_for(|pd| pd.pages.len() >= ALERTS / 10, PATIENCE).await.unwrap();
        let began = Instant::now();
        postgres.restart().await.unwrap();
        began.elapsed()
    };
    let ((), took) = tokio::join!(load, restart);
    let runs: BTreeSet<_> = runs.into_iter().collect();
    for n in 0..stage.replicas.len() {
        // One that the restart has cost the lease starts anew, as by its supervisor.
        if stage.replicas[n].alerter.daemon.ended().is_some() {
            stage.revive(n).await;
        }
    }
    let leader = stage.leader().await;
    stage.each_paged_once(leader, &runs).await;
    say::figure(&format!(
        "an immediate restart of PostgreSQL ({} ms) under load: {ALERTS} alerts, {ALERTS} pages",
        took.as_millis()
    ));
}

/// The address of the database has moved, and what the connections were made to is gone without a
/// word. No connection ends by itself for a quarter of an hour.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_dead_keep_nobody_from_going_on() {
    let Some(mut stage) = Stage::start(AT_ONCE).await else { return };
    let leader = stage.leader().await;
    let others = stage.others(leader);
    fire_until_taken(&stage.url(others[0]), "before").await;
    stage.paged(others[0], "before", 1).await;
    stage.replicas.iter().for_each(|replica| replica.database.strand());
    fire_until_taken(&stage.url(others[0]), "stranded").await;
    // The leader goes on by a new connection, or another replica leads.
    let runs = BTreeSet::from(["before", "stranded"].map(str::to_owned));
    stage.each_paged_once(others[0], &runs).await;

    // And replicas that only look on notice it too.
    let leader = stage.leader().await;
    stage.replicas.iter().for_each(|replica| replica.database.strand());
    stage.replicas[leader].alerter.daemon.kill().await.unwrap();
    let others = stage.others(leader);
    let new = stage.leader_among(&others).await;
    fire_until_taken(&stage.url(new), "after").await;
    let runs = BTreeSet::from(["before", "stranded", "after"].map(str::to_owned));
    stage.each_paged_once(new, &runs).await;
}

/// A process whose database does not answer ends when it is asked to.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_without_its_database_ends_by_sigterm() {
    let Some(mut stage) = Stage::start(AT_ONCE).await else { return };
    let leader = stage.leader().await;
    let standby = stage.others(leader)[0];
    stage.replicas[standby].database.hang();
    // It has noticed, so it is in the middle of a wait.
    let url = stage.url(standby);
    let lost = async || get(&url, "/-/ready").await.filter(|(status, _)| *status != 200);
    poll_until("the standby to miss its database", PATIENCE, lost).await.unwrap();
    let ended = stage.replicas[standby].alerter.daemon.terminate().await.unwrap();
    assert!(ended.success(), "{ended}");
}

/// A machine that is gone closes no connection, so requests that were passed on to it wait for
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_passed_on_to_a_leader_that_stands_still_is_answered() {
    let Some(mut stage) = Stage::start(AT_ONCE).await else { return };
    let leader = stage.leader().await;
    let standby = stage.url(stage.others(leader)[0]);
    stage.replicas[leader].alerter.daemon.freeze().unwrap();
    let (read, written) = tokio::join!(get(&standby, "/api/v1/incidents"), fire(&standby, "frozen"));
    assert_eq!(read.map(|(status, _)| status), Some(200), "reading is repeated at the next leader");
    // The old leader may have acted, so what writes is not repeated by itself.
    assert!(written.is_some(), "no answer to what writes");
    fire_until_taken(&standby, "frozen").await;
    stage.replicas[leader].alerter.daemon.thaw().unwrap();
    stage.replicas[leader].alerter.daemon.wait(PATIENCE).await.unwrap();
    let new = stage.leader_among(&stage.others(leader)).await;
    stage.each_paged_once(new, &BTreeSet::from(["frozen".to_owned()])).await;
}
