//! One replica leads, the others pass everything on to it.

use std::collections::BTreeSet;

use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::poll_until;

use crate::stage::{AT_ONCE, Stage, ack, fire, fire_until_taken, get, leads, metric, pages, post};

/// Calls somebody else if nobody answers.
const ESCALATES: &str = "      - {after: 0s, notify: [chat, primary]}\n      - {after: 4s, notify: [twin]}\n";

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_and_what_any_of_them_is_told_counts_once() {
    let Some(stage) = Stage::start(AT_ONCE).await else { return };
    let leader = stage.leader().await;
    for n in stage.others(leader) {
        assert_eq!(metric(&stage.url(n), "stepwatch_alerter_leader").await, Some(0.0));
    }
    let url = stage.url(leader);
    let three = async || metric(&url, "stepwatch_alerter_replicas").await.filter(|count| *count == 3.0);
    poll_until("the leader to know all replicas", PATIENCE, three).await.unwrap();
    assert_eq!(metric(&url, "stepwatch_alerter_replicas_differing").await, Some(0.0));
    let epoch = metric(&url, "stepwatch_alerter_lease_epoch").await;
    assert!(epoch.is_some_and(|epoch| epoch >= 1.0), "{epoch:?}");

    // As Prometheus does, whose list of Alertmanagers has all replicas.
    for url in stage.urls() {
        assert_eq!(fire(&url, "a").await.map(|(status, _)| status), Some(200));
    }
    fire_until_taken(&stage.url(stage.others(leader)[0]), "b").await;
    let runs = BTreeSet::from(["a", "b"].map(str::to_owned));
    for n in 0..stage.replicas.len() {
        stage.each_paged_once(n, &runs).await;
    }
    assert_eq!(stage.slack.with(|slack| slack.top().count()), 2, "a message each");

    // What belongs to a process is not passed on.
    let standby = stage.url(stage.others(leader)[0]);
    for path in ["/-/healthy", "/-/ready"] {
        assert_eq!(get(&standby, path).await.map(|(status, _)| status), Some(200), "{path}");
    }
    assert!(!leads(&standby).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_a_standby_is_durable_and_ends_the_escalation() {
    let Some(mut stage) = Stage::start(ESCALATES).await else { return };
    let leader = stage.leader().await;
    let standby = stage.others(leader)[0];
    fire_until_taken(&stage.url(standby), "answered").await;
    let answered = stage.paged(standby, "answered", 1).await;
    assert!(ack(&stage.url(standby), &answered).await);
    // The leader dies right after the answer.
    stage.replicas[leader].alerter.daemon.kill().await.unwrap();
    let new = stage.leader_among(&stage.others(leader)).await;
    let incidents = stage.incidents(new, "answered").await;
    assert_eq!(incidents[0]["state"], "acknowledged", "{incidents:#?}");
    // Nobody answers this one, so that the level is reached while the other one waits too.
    fire_until_taken(&stage.url(new), "ignored").await;
    stage.paged(new, "ignored", 2).await;
    stage.pagerduty.with(|pd| assert_eq!(pages(pd, &answered), 1, "{:#?}", pd.pages));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_configuration_is_shown() {
    let Some(mut stage) = Stage::start(AT_ONCE).await else { return };
    let leader = stage.leader().await;
    let url = stage.url(leader);
    assert_eq!(metric(&url, "stepwatch_alerter_replicas_differing").await, Some(0.0));
    stage.start_differing("cost_per_gpu_hour: 2.50", "cost_per_gpu_hour: 3.50").await;
    let differs =
        async || metric(&url, "stepwatch_alerter_replicas_differing").await.filter(|count| *count == 1.0);
    poll_until("the leader to see the difference", PATIENCE, differs).await.unwrap();
    assert_eq!(metric(&url, "stepwatch_alerter_replicas").await, Some(4.0));
    // The line comes after the metric, and by another way.
    let daemon = &mut stage.replicas[leader].alerter.daemon;
    daemon.logged(|line| line.contains("a replica differs from the leader")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_passes_on_that_the_leader_is_to_hand_over() {
    let Some(stage) = Stage::start(AT_ONCE).await else { return };
    let leader = stage.leader().await;
    let others = stage.others(leader);
    let asked = stage.url(others[0]);
    let accepted = async || {
        post(&asked, "/-/handover", &serde_json::Value::Null).await.filter(|(status, _)| *status == 202)
    };
    poll_until("the handover to be accepted", PATIENCE, accepted).await.unwrap();
    // Whichever of the others takes over, it is not the one that led.
    let new = stage.leader_among(&others).await;
    assert_ne!(new, leader);
}
