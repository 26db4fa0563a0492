//! Which messages of an incident ring in PagerDuty, in order and each twice.

use stepwatch_engine::message::Fact;
use stepwatch_fakes::{AlertState, FakePagerDuty, PagerDuty as Service};

use super::tests::page;
use super::*;

fn to(fake: &FakePagerDuty, dir: &tempfile::TempDir) -> PagerDuty {
    let key = dir.path().join("key");
    std::fs::write(&key, Service::ROUTING_KEY).unwrap();
    Config { routing_key_file: Some(key), events_url: fake.url(), ..Config::default() }.build().unwrap()
}

/// Everything in order, as the outbox sends it; each twice, as after a crash before the receipt was kept.
async fn send_all(pagerduty: &PagerDuty, all: &[Notification]) {
    let mut memory: Option<String> = None;
    for n in all {
        let attempt = Attempt { memory: memory.as_deref(), ..Attempt::first(n) };
        pagerduty.send(attempt).await.unwrap();
        let again = Attempt { ambiguous: true, ..attempt };
        memory = pagerduty.send(again).await.unwrap().memory.or(memory);
    }
}

fn told_as((severity, action): (Severity, Action)) -> Notification {
    let mut n = page(action);
    n.message.severity = severity;
    n
}

fn rung(s: &Service) -> Vec<&str> {
    s.pages.iter().map(|p| p.dedup_key.as_str()).collect()
}

#[tokio::test]
async fn a_ticket_that_becomes_a_page_rings() {
    let (fake, dir) = (FakePagerDuty::start().await, tempfile::tempdir().unwrap());
    let all = [
        (Severity::Ticket, Action::Trigger),
        (Severity::Ticket, Action::Ack),
        (Severity::Page, Action::Trigger),
        (Severity::Page, Action::Update),
        (Severity::Page, Action::Ack),
        (Severity::Page, Action::Resolve),
    ];
    let all = all.map(told_as);
    send_all(&to(&fake, &dir), &all).await;
    let id = page(Action::Trigger).incident;
    fake.with(|s| {
        assert_eq!(rung(s), [format!("{id}-ticket").as_str(), &id]);
        assert!(s.alerts.iter().all(|a| a.state == AlertState::Resolved), "{:?}", s.alerts);
        // Resolved by the page, long before the incident was.
        assert_eq!(s.alerts[0].log.last().map(|l| l.what.as_str()), Some("resolved"));
    });
}

/// What nobody has any more is another call: PagerDuty rings once an alert.
#[tokio::test]
async fn what_somebody_had_and_has_no_more_rings_again() {
    let (fake, dir) = (FakePagerDuty::start().await, tempfile::tempdir().unwrap());
    let told = |action, because, reason: &str| {
        let mut n = page(action);
        (n.message.because, n.message.reason) = (because, reason.to_owned());
        n
    };
    let trigger = |because| told(Action::Trigger, because, "");
    let ack = || told(Action::Ack, Reason::Acknowledged, "");
    let mut acked_there = ack();
    acked_there.message.facts.push(Fact { label: "Acknowledged by".into(), text: actor("Jane", Some("pd")) });
    let back =
        |by: &str| told(Action::Update, Reason::Unacknowledged, &format!("no longer acknowledged ({by})"));
    let all = [
        trigger(Reason::First),
        trigger(Reason::StillFiring),
        ack(),
        // It expired: the second page.
        trigger(Reason::AckExpired),
        trigger(Reason::StillFiring),
        acked_there.clone(),
        // News of what somebody passed on call nobody; a call does: the third page.
        told(Action::Update, Reason::News, ""),
        trigger(Reason::Escalated),
        acked_there,
        // Taken back there, it rings there by itself.
        back(&actor("Jane", Some("pd"))),
        trigger(Reason::StillFiring),
        ack(),
        // Taken back elsewhere: the fourth.
        back("api:ann"),
        told(Action::Resolve, Reason::Resolved, ""),
    ];
    send_all(&to(&fake, &dir), &all).await;
    let id = page(Action::Trigger).incident;
    fake.with(|s| {
        assert_eq!(rung(s), [id.clone(), format!("{id}-2"), format!("{id}-3"), format!("{id}-4")]);
        assert!(s.alerts.iter().all(|a| a.state == AlertState::Resolved), "{:?}", s.alerts);
        let log = |n: usize| s.alerts[n].log.iter().map(|l| l.what.as_str()).collect::<Vec<_>>();
        assert!(log(0).ends_with(&["acknowledged", "acknowledged", "resolved"]), "{:?}", log(0));
        // At no time were two open for somebody to answer.
        let opened: Vec<_> = s.pages.iter().map(|p| p.at).collect();
        let closed = s.alerts.iter().filter_map(|a| a.log.last().map(|l| l.at));
        assert!(closed.zip(&opened[1..]).all(|(closed, next)| closed <= *next));
    });
}

/// An acknowledged ticket that is told anew is one more ticket, and the page that it becomes has a key of its own.
#[tokio::test]
async fn a_ticket_rings_again_too() {
    let (fake, dir) = (FakePagerDuty::start().await, tempfile::tempdir().unwrap());
    let all = [
        (Severity::Ticket, Action::Trigger),
        (Severity::Ticket, Action::Ack),
        (Severity::Ticket, Action::Trigger),
        (Severity::Page, Action::Trigger),
        (Severity::Page, Action::Resolve),
    ];
    let all = all.map(told_as);
    send_all(&to(&fake, &dir), &all).await;
    let id = page(Action::Trigger).incident;
    fake.with(|s| {
        assert_eq!(rung(s), [format!("{id}-ticket"), format!("{id}-ticket-2"), format!("{id}-2")]);
        assert!(s.alerts.iter().all(|a| a.state == AlertState::Resolved), "{:?}", s.alerts);
    });
}

/// Resolved by hand while it still fired, answered before or not: PagerDuty has closed its alert, and the next call opens one.
#[tokio::test]
async fn what_comes_back_after_it_was_resolved_rings() {
    for answered in [false, true] {
        let (fake, dir) = (FakePagerDuty::start().await, tempfile::tempdir().unwrap());
        let mut back = page(Action::Trigger);
        back.message.because = Reason::Reopened;
        let ack = answered.then(|| page(Action::Ack));
        let first = [page(Action::Trigger)].into_iter().chain(ack);
        let all: Vec<_> = first.chain([page(Action::Resolve), back, page(Action::Resolve)]).collect();
        send_all(&to(&fake, &dir), &all).await;
        fake.with(|s| {
            assert_eq!(rung(s).len(), 2, "{:?}", rung(s));
            assert!(s.alerts.iter().all(|a| a.state == AlertState::Resolved), "{:?}", s.alerts);
        });
    }
}
