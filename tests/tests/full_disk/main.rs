//! A disk that is full or hangs for a while: nothing is reported as done that is not, everybody is
//! notified that nothing is, and it heals by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod database;

use std::collections::BTreeSet;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwatch_fakes::{Alert, AlertState, FakePulse, Page, PagerDuty, Pulse, pagerduty_signature};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Alerter, FakeLibc, Inbound, Stack, StackOptions, exposition, http, poll_until};

/// Posts an alert that pages, and returns the status of the answer; `None` if none came.
async fn fire(alertmanager: &str, name: &str) -> Option<u16> {
    let alert = json!([{"labels": {"alertname": name, "severity": "critical", "instance": "gpu-1:9100"}}]);
    let request = http::client().post(format!("{alertmanager}/api/v2/alerts")).json(&alert).timeout(PATIENCE);
    request.send().await.ok().map(|answer| answer.status().as_u16())
}

async fn readiness(alerter: &Alerter) -> (u16, String) {
    let url = format!("{}/-/ready", alerter.url());
    match http::client().get(url).timeout(PATIENCE).send().await {
        Ok(answer) => (answer.status().as_u16(), answer.text().await.unwrap_or_default()),
        Err(err) => (0, err.to_string()),
    }
}

async fn wait_ready(alerter: &Alerter, status: u16) -> String {
    let what = format!("readiness to be {status}");
    let asked = async || Some(readiness(alerter).await).filter(|(now, _)| *now == status);
    poll_until(&what, PATIENCE, asked).await.unwrap().1
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), output.stderr.as_slice()].concat()).into_owned()
}

async fn silence(alerter: &Alerter, name: &str) -> Output {
    let matcher = format!("alertname=\"{name}\"");
    let args = ["silences", "add", &matcher, "--for", "1h", "--comment", "known", "--by", "ann"];
    alerter.cli(&args).await.unwrap()
}

async fn silences(alerter: &Alerter) -> String {
    said(&alerter.cli(&["silences", "list", "--format", "json"]).await.unwrap())
}

/// The state of the incident that an alert of this name opened.
async fn state(alerter: &Alerter, name: &str) -> Option<String> {
    let incidents = alerter.incidents().await.ok()?;
    let found: Vec<&Value> =
        incidents.iter().filter(|i| i["summary"].as_str().is_some_and(|s| s.contains(name))).collect();
    assert!(found.len() <= 1, "{found:#?}");
    Some(found.first()?["state"].as_str()?.to_owned())
}

async fn withheld(alerter: &Alerter) -> f64 {
    let name = "stepwatch_alerter_heartbeats_total";
    let page = alerter.metrics().await.unwrap_or_default();
    exposition::value(&page, name, &[("result", "withheld")]).unwrap_or_default()
}

/// The pages whose summary contains something.
fn pages<'a>(pd: &'a PagerDuty, what: &'a str) -> impl Iterator<Item = &'a Page> {
    pd.pages.iter().filter(move |page| page.summary.contains(what))
}

/// Waits until nothing is left to be sent.
async fn wait_sent(alerter: &Alerter) {
    let sent = async || {
        let page = alerter.metrics().await.ok()?;
        (exposition::value(&page, "stepwatch_alerter_outbox_depth", &[])? == 0.0).then_some(())
    };
    poll_until("nothing to be left to send", PATIENCE, sent).await.unwrap();
}

fn lines(alerter: &Alerter, what: &str) -> Vec<String> {
    alerter.daemon.log().into_iter().filter(|line| line.contains(what)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_disk_did_not_take_is_not_called_done_and_is_done_when_there_is_room() {
    let switch = FakePulse::start().await;
    let alerter = format!("watchdog: {{url: \"{}{}\", interval: 5s}}\n", switch.url(), Pulse::PATH);
    let options = StackOptions { alerter, blind: true, ..StackOptions::default() };
    let mut stack = Stack::start_with(options).await.unwrap();
    let url = stack.alerter.url();
    assert_eq!(fire(&url, "EarlyAlert").await, Some(200));
    let pd = stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
    let early = pd.pages[0].dedup_key.clone();
    switch.wait_for(|s| !s.beats.is_empty(), PATIENCE).await.unwrap();

    stack.alerter.daemon.fill_disk().unwrap();
    let alerter = &stack.alerter;
    let (fired, acked, silenced) =
        tokio::join!(fire(&url, "LateAlert"), alerter.ack(&early, "ann"), silence(alerter, "EarlySilence"));
    assert_eq!(fired, Some(503));
    let (acked, silenced) = (acked.unwrap(), silenced);
    assert!(!acked.status.success(), "{}", said(&acked));
    assert!(!silenced.status.success(), "{}", said(&silenced));
    let why = wait_ready(alerter, 503).await;
    assert!(why.contains("the store to take commits") && why.contains("disk I/O error"), "{why}");
    assert_eq!(state(alerter, "EarlyAlert").await.as_deref(), Some("open"));
    // The heartbeat stops: of those that were on their way one may have arrived.
    let beats = async |n: f64| (withheld(alerter).await >= n).then_some(());
    poll_until("a heartbeat to be withheld", PATIENCE, async || beats(1.0).await).await.unwrap();
    let before = switch.with(|s| s.beats.len());
    poll_until("more of them", PATIENCE, async || beats(2.0).await).await.unwrap();
    assert_eq!(switch.with(|s| s.beats.len()), before);
    wait_ready(alerter, 503).await;
    let refused = lines(alerter, "the store refuses a commit: nothing new is sent");
    assert!(refused.len() == 1 && refused[0].contains("disk I/O error"), "said once, and why: {refused:#?}");
    assert_eq!(lines(alerter, "takes commits again"), Vec::<String>::new());

    stack.alerter.daemon.empty_disk().unwrap();
    wait_ready(alerter, 200).await;
    stack.alerter.daemon.logged(|line| line.contains("takes commits again")).await.unwrap();
    let alerter = &stack.alerter;
    // Everything that waited is committed, notified and shown; where that took longer than ten
    // seconds the fault of the disk has paged as well.
    let late = |pd: &PagerDuty| pages(pd, "LateAlert").next().map(|page| page.dedup_key.clone());
    stack.pagerduty.wait_for(|pd| late(pd).is_some(), PATIENCE).await.unwrap();
    assert_eq!(state(alerter, "EarlyAlert").await.as_deref(), Some("acknowledged"));
    assert!(silences(alerter).await.contains("EarlySilence"));
    assert_eq!(lines(alerter, "takes commits again").len(), 1);
    let late = stack.pagerduty.with(late).unwrap();
    let acked = alerter.ack(&late, "ann").await.unwrap();
    assert!(acked.status.success(), "{}", said(&acked));
    let silenced = silence(alerter, "LateSilence").await;
    assert!(silenced.status.success(), "{}", said(&silenced));
    switch.wait_for(|s| s.beats.len() > before, PATIENCE).await.unwrap();

    stack.alerter.daemon.kill().await.unwrap();
    stack.alerter.restart(None).await.unwrap();
    stack.alerter.ready().await.unwrap();
    for name in ["EarlyAlert", "LateAlert"] {
        assert_eq!(state(&stack.alerter, name).await.as_deref(), Some("acknowledged"), "{name}");
    }
    let kept = silences(&stack.alerter).await;
    assert!(kept.contains("EarlySilence") && kept.contains("LateSilence"), "{kept}");
    let count = |name| stack.pagerduty.with(|pd| pages(pd, name).count());
    assert_eq!((count("EarlyAlert"), count("LateAlert")), (1, 1), "each notified once");
}

/// The disk is full for a moment, again and again, while alerts come in; the process is killed in
/// the middle of one.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_answered_between_full_disks_survives_them() {
    let alerter = "storm: {enabled: false}\n".into();
    let options = StackOptions { alerter, blind: true, ..StackOptions::default() };
    let mut stack = Stack::start_with(options).await.unwrap();
    let (answered, stop) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicBool::new(false)));
    let post = {
        let (url, answered, stop) = (stack.alerter.url(), Arc::clone(&answered), Arc::clone(&stop));
        async move {
            for n in 0.. {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let name = format!("Alert{n:05}");
                if fire(&url, &name).await == Some(200) {
                    answered.lock().unwrap().insert(name);
                }
            }
        }
    };
    let posting = tokio::spawn(post);
    let count = || answered.lock().unwrap().len();
    for _ in 0..4 {
        let before = count();
        poll_until("answers", PATIENCE, async || (count() >= before + 3).then_some(())).await.unwrap();
        stack.alerter.daemon.fill_disk().unwrap();
        wait_ready(&stack.alerter, 503).await;
        stack.alerter.daemon.empty_disk().unwrap();
        wait_ready(&stack.alerter, 200).await;
    }
    stack.alerter.daemon.fill_disk().unwrap();
    wait_ready(&stack.alerter, 503).await;
    stop.store(true, Ordering::SeqCst);
    stack.alerter.daemon.kill().await.unwrap();
    posting.await.unwrap();
    stack.alerter.restart(None).await.unwrap();
    stack.alerter.ready().await.unwrap();

    let alerts = http::get_json(&format!("{}/api/v2/alerts", stack.alerter.url())).await.unwrap();
    let name = |a: &Value| a["labels"]["alertname"].as_str().unwrap().to_owned();
    let kept: BTreeSet<String> = alerts.as_array().unwrap().iter().map(name).collect();
    let answered = answered.lock().unwrap().clone();
    let lost: Vec<&String> = answered.difference(&kept).collect();
    assert!(lost.is_empty(), "{lost:?} of {answered:?}");
    let paged = |pd: &PagerDuty| {
        answered.iter().all(|name| pd.pages.iter().any(|page| page.summary.contains(name.as_str())))
    };
    stack.pagerduty.wait_for(paged, PATIENCE).await.unwrap();
}

/// Nothing can be recorded, and somebody has to be woken all the same: from memory, once, with a
/// text that contains this.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_rings_although_the_disk_is_full_and_is_recorded_when_there_is_room() {
    let alerter = "resolve_after: 200ms\nalerts: {resolve_timeout: 5m}\n".into();
    let options = StackOptions { alerter, blind: true, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let url = stack.alerter.url();
    // The first refusal may come before `fill_disk` returns.
    let filled = Instant::now();
    stack.alerter.daemon.fill_disk().unwrap();
    assert_eq!(fire(&url, "LateAlert").await, Some(503));
    let pd = stack.pagerduty.wait_for(|pd| pages(pd, "LateAlert").count() == 1, PATIENCE).await.unwrap();
    let page = pages(&pd, "LateAlert").next().unwrap();
    let waited = page.at - filled;
    assert!(waited >= Duration::from_secs(10) && waited < Duration::from_secs(20), "rang after {waited:?}");
    assert!(page.summary.contains("Not recorded: the store refuses"), "{}", page.summary);
    let slack = stack.slack.wait_for(|s| s.top().next().is_some(), PATIENCE).await.unwrap();
    assert!(slack.top().next().unwrap().visible_text().contains("Not recorded"));
    let id = page.dedup_key.clone();

    stack.alerter.daemon.empty_disk().unwrap();
    wait_ready(&stack.alerter, 200).await;
    let recorded = async || state(&stack.alerter, "LateAlert").await;
    let found = poll_until("the incident in the list", PATIENCE, recorded).await.unwrap();
    assert_eq!(found, "open");
    let text = said(&stack.alerter.cli(&["explain", &id]).await.unwrap());
    assert!(text.contains("sent from memory, not recorded"), "{text}");

    // It is over, and so is the alert: under the key that paged.
    let over = json!([{"labels": {"alertname": "LateAlert", "severity": "critical", "instance": "gpu-1:9100"},
        "endsAt": "2020-01-01T00:00:00Z"}]);
    let sent = http::client().post(format!("{url}/api/v2/alerts")).json(&over).send().await.unwrap();
    assert_eq!(sent.status(), 200);
    let resolved = |pd: &PagerDuty| pd.alerts.iter().all(|a| a.state == AlertState::Resolved);
    let pd = stack.pagerduty.wait_for(resolved, PATIENCE).await.unwrap();
    let alerts: Vec<&Alert> = pd.alerts.iter().filter(|a| a.summary.contains("LateAlert")).collect();
    assert_eq!((pages(&pd, "LateAlert").count(), alerts.len()), (1, 1), "{:#?}", pd.alerts);
    let triggers = alerts[0].log.iter().filter(|l| l.what.contains("triggered")).count();
    assert_eq!(triggers, 1, "notified once, {:#?}", alerts[0].log);
    assert_eq!(stack.slack.with(|s| s.top().count()), 1);
}

/// Nobody is called again for it. Until it is recorded, nobody is told that it is done.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_a_page_that_is_not_recorded_counts_at_once() {
    let options = StackOptions { inbound: vec![Inbound::PagerDuty], blind: true, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let url = stack.alerter.url();
    stack.alerter.daemon.fill_disk().unwrap();
    let all = ["LateAlert", "OtherAlert"];
    let fired = tokio::join!(fire(&url, all[0]), fire(&url, all[1]));
    assert_eq!(fired, (Some(503), Some(503)));
    let called = |pd: &PagerDuty| all.iter().all(|name| pages(pd, name).count() == 1);
    let pd = stack.pagerduty.wait_for(called, PATIENCE).await.unwrap();
    let [late, later] = all.map(|name| pages(&pd, name).next().unwrap().dedup_key.clone());

    stack.pagerduty.change(|pd| pd.by_person(&late, "acknowledged", "Jane Doe")).unwrap();
    let hook = stack.pagerduty.with(|pd| pd.hooks.last().unwrap().to_string());
    let signature = pagerduty_signature(&[PagerDuty::WEBHOOK_SECRET], hook.as_bytes());
    let post = http::client().post(format!("{url}/pagerduty/webhook")).body(hook);
    let post = post.header("x-pagerduty-signature", signature).timeout(PATIENCE);
    let ack = ["incidents", "ack", &later];
    let (by_hook, by_cli) = tokio::join!(post.send(), stack.alerter.cli(&ack));
    assert_eq!(by_hook.unwrap().status(), 503, "PagerDuty sends it again");
    let by_cli = by_cli.unwrap();
    assert!(!by_cli.status.success() && said(&by_cli).contains("not yet durable"), "{}", said(&by_cli));
    let is_open = |a: &Alert| a.state == AlertState::Triggered && all.iter().any(|n| a.summary.contains(n));
    let answered = |pd: &PagerDuty| !pd.alerts.iter().any(is_open);
    stack.pagerduty.wait_for(answered, PATIENCE).await.unwrap();

    stack.alerter.daemon.empty_disk().unwrap();
    wait_ready(&stack.alerter, 200).await;
    for name in all {
        let recorded = async || state(&stack.alerter, name).await.filter(|state| state == "acknowledged");
        poll_until("the answer in the list", PATIENCE, recorded).await.unwrap();
    }
}

/// A disk may hang instead of failing: no call returns, and somebody has to be woken all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_rings_although_the_disk_hangs_and_is_recorded_when_it_does_not() {
    let home = tempfile::tempdir().unwrap();
    let machine = FakeLibc::new(home.path()).unwrap();
    let alerter = "resolve_after: 200ms\nalerts: {resolve_timeout: 5m}\n".into();
    let levels =
        Some("      - {after: 0s, notify: [primary]}\n      - {after: 15s, notify: [primary]}\n".into());
    let options =
        StackOptions { alerter, blind: true, levels, libc: Some(machine.clone()), ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let url = stack.alerter.url();
    // Notified before the disk hangs, and again by the policy while it does.
    assert_eq!(fire(&url, "EarlyAlert").await, Some(200));
    stack.pagerduty.wait_for(|pd| pages(pd, "EarlyAlert").count() == 1, PATIENCE).await.unwrap();
    wait_sent(&stack.alerter).await;

    let hung = Instant::now();
    machine.hang_disk(true).unwrap();
    let late = tokio::spawn({
        let url = url.clone();
        async move { fire(&url, "LateAlert").await }
    });
    let pd = stack.pagerduty.wait_for(|pd| pages(pd, "LateAlert").count() == 1, PATIENCE).await.unwrap();
    let page = pages(&pd, "LateAlert").next().unwrap();
    let waited = page.at - hung;
    // The ten seconds count from the start of the commit, and a commit that was under way when the
    // disk hung had started before.
    assert!(waited >= Duration::from_secs(9) && waited < Duration::from_secs(20), "rang after {waited:?}");
    assert!(page.summary.contains("Not recorded: the store refuses"), "{}", page.summary);
    let why = wait_ready(&stack.alerter, 503).await;
    assert!(why.contains("under way for more than 10 s"), "{why}");
    // What is decided after that does not wait for the commit that hangs.
    stack.pagerduty.wait_for(|pd| pages(pd, "EarlyAlert").count() == 2, PATIENCE).await.unwrap();
    let later = tokio::spawn(async move { fire(&url, "OtherAlert").await });
    stack.pagerduty.wait_for(|pd| pages(pd, "OtherAlert").count() == 1, PATIENCE).await.unwrap();

    machine.hang_disk(false).unwrap();
    wait_ready(&stack.alerter, 200).await;
    late.await.unwrap();
    later.await.unwrap();
    for name in ["EarlyAlert", "LateAlert", "OtherAlert"] {
        let recorded = async || state(&stack.alerter, name).await;
        assert_eq!(
            poll_until("the incident in the list", PATIENCE, recorded).await.unwrap(),
            "open",
            "{name}"
        );
    }
    let id = page.dedup_key.clone();
    let text = said(&stack.alerter.cli(&["explain", &id]).await.unwrap());
    assert!(text.contains("sent from memory, not recorded"), "{text}");
    // Everything that was sent is known to have been: each level pages once.
    let names = ["EarlyAlert", "LateAlert", "OtherAlert"];
    let all = |pd: &PagerDuty| names.iter().all(|name| pages(pd, name).count() >= 2);
    stack.pagerduty.wait_for(all, PATIENCE).await.unwrap();
    wait_sent(&stack.alerter).await;
    stack.pagerduty.with(|pd| {
        let paged = names.map(|name| pages(pd, name).count());
        assert_eq!(paged, [2, 2, 2], "{:#?}", pd.alerts);
        let once = |key: &str| pd.alerts_of(key).all(|alert| alert.log.len() == 1);
        let keys = names.iter().flat_map(|name| pages(pd, name)).map(|page| page.dedup_key.as_str());
        assert!(keys.into_iter().all(once), "{:#?}", pd.alerts);
    });
}

/// Neither can the numbers of earlier calls be read: the next one goes out under a key of its own,
/// as PagerDuty calls nobody under one that is open.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_level_rings_although_the_disk_cannot_even_be_read() {
    let home = tempfile::tempdir().unwrap();
    let machine = FakeLibc::new(home.path()).unwrap();
    let levels =
        Some("      - {after: 0s, notify: [primary]}\n      - {after: 8s, notify: [primary]}\n".into());
    let options =
        StackOptions { blind: true, levels, libc: Some(machine.clone()), ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    assert_eq!(fire(&stack.alerter.url(), "EarlyAlert").await, Some(200));
    stack.pagerduty.wait_for(|pd| pages(pd, "EarlyAlert").count() == 1, PATIENCE).await.unwrap();
    wait_sent(&stack.alerter).await;
    machine.hang_reads().unwrap();
    // Ten seconds after the level is due it is sent from memory.
    stack.pagerduty.wait_for(|pd| pages(pd, "EarlyAlert").count() == 2, 2 * PATIENCE).await.unwrap();
    machine.hang_disk(false).unwrap();
    wait_ready(&stack.alerter, 200).await;
    wait_sent(&stack.alerter).await;
    stack.pagerduty.with(|pd| {
        let keys: BTreeSet<&str> = pages(pd, "EarlyAlert").map(|page| page.dedup_key.as_str()).collect();
        assert_eq!(keys.len(), 2, "{:#?}", pd.pages);
    });
}
