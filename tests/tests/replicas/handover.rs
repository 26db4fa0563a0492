//! The leader gives the lease up, and requests wait for the next one.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{poll_until, say};

use crate::stage::{AT_ONCE, LEASE, Stage, fire, get, median, post};

const TIMES: usize = 5;
/// The aim, of the median. Tests run beside others on machines that are slow at times.
const AIM: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(3);

fn report(what: &str, times: Vec<Duration>) {
    let (longest, median) = (times.iter().max().copied().unwrap_or_default(), median(times));
    say::figure(&format!(
        "{what}: another replica leads after {} ms (median of {TIMES}, at most {} ms; aim {} ms)",
        median.as_millis(),
        longest.as_millis(),
        AIM.as_millis()
    ));
    assert!(median < LIMIT, "{what}: {median:?}");
}

/// From the answer to the request until the metrics page of another replica says that it leads.
#[tokio::test(flavor = "multi_thread")]
async fn a_handover_takes_a_moment() {
    let Some(mut stage) = Stage::start(AT_ONCE).await else { return };
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let leader = stage.leader().await;
        let url = stage.url(leader);
        // A new leader learns of the others within a second.
        let accepted = async || match post(&url, "/-/handover", &Value::Null).await {
            Some((202, _)) => Some(Instant::now()),
            said => {
                assert!(said.is_none_or(|(status, _)| status == 409));
                None
            }
        };
        let began = poll_until("the handover to be accepted", PATIENCE, accepted).await.unwrap();
        stage.leader_among(&stage.others(leader)).await;
        times.push(began.elapsed());
        // The same process is a standby now, which leaves the lease to others for ten seconds. A
        // new process does not.
        stage.all_ready().await;
        let ended = stage.replicas[leader].alerter.daemon.terminate().await.unwrap();
        assert!(ended.success(), "a standby ends in order: {ended}");
        stage.revive(leader).await;
        stage.all_ready().await;
    }
    report("POST /-/handover", times);
}

/// From the signal until the metrics page of another replica says that it leads.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_by_sigterm_takes_a_moment() {
    let Some(mut stage) = Stage::start(AT_ONCE).await else { return };
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let leader = stage.leader().await;
        let others = stage.others(leader);
        let began = Instant::now();
        // The process of the leader ends while another one takes over.
        let mut ending = stage.replicas.remove(leader);
        let rest: Vec<_> = others.iter().map(|n| n - usize::from(*n > leader)).collect();
        let (ended, ()) = tokio::join!(ending.alerter.daemon.terminate(), async {
            stage.leader_among(&rest).await;
            times.push(began.elapsed());
        });
        assert!(ended.unwrap().success(), "an end in order");
        stage.replicas.insert(leader, ending);
        stage.revive(leader).await;
        stage.all_ready().await;
    }
    report("SIGTERM", times);
}

/// What is asked of a standby while no replica leads is answered by the next leader.
#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_the_next_leader() {
    let Some(mut stage) = Stage::start(AT_ONCE).await else { return };
    let leader = stage.leader().await;
    stage.replicas[leader].alerter.daemon.kill().await.unwrap();
    let began = Instant::now();
    let [a, b] = stage.others(leader)[..] else { panic!("three replicas") };
    let (a, b) = (stage.url(a), stage.url(b));
    let said = tokio::join!(
        fire(&a, "held"),
        fire(&b, "held"),
        get(&a, "/api/v1/incidents"),
        get(&b, "/api/v1/runs"),
    );
    let statuses = [&said.0, &said.1, &said.2, &said.3].map(|said| said.as_ref().map(|(status, _)| *status));
    assert_eq!(statuses, [Some(200); 4], "{said:?}");
    say::figure(&format!(
        "requests that came while no replica led were answered after at most {} ms (a lease lasts {} ms)",
        began.elapsed().as_millis(),
        LEASE.as_millis()
    ));
    let new = stage.leader_among(&stage.others(leader)).await;
    stage.each_paged_once(new, &BTreeSet::from(["held".to_owned()])).await;
}

/// Prometheus and people go on asking a standby while the lead changes hands.
#[tokio::test(flavor = "multi_thread")]
async fn a_handover_fails_no_request_to_the_others() {
    let Some(stage) = Stage::start(AT_ONCE).await else { return };
    let leader = stage.leader().await;
    let urls: Vec<_> = stage.others(leader).into_iter().map(|n| stage.url(n)).collect();
    let (mut refused, mut asked) = (Vec::new(), 0);
    let handed_over = Cell::new(false);
    let load = async {
        while !handed_over.get() {
            for url in &urls {
                asked += 1;
                // One that only reads: what writes may be answered with 502, if its connection
                // broke.
                match get(url, "/api/v1/incidents").await {
                    Some((200, _)) => {}
                    said => refused.push(said),
                }
            }
        }
    };
    let hand_over = async {
        let accepted = async || {
            post(&stage.url(leader), "/-/handover", &Value::Null).await.filter(|(status, _)| *status == 202)
        };
        poll_until("the handover to be accepted", PATIENCE, accepted).await.unwrap();
        stage.leader_among(&stage.others(leader)).await;
        handed_over.set(true);
    };
    tokio::join!(load, hand_over);
    assert!(refused.is_empty(), "{} of {asked}: {refused:?}", refused.len());
}
