//! Tests which messages of an incident notify people in PagerDuty. They are sent in order, each
//! twice.

use super::page;
use crate::notify::pagerduty::*;
use stepwatch_fakes::{AlertState, FakePagerDuty, PagerDuty as Service};
use stepwatch_respond::message::Reason;

fn to(fake: &FakePagerDuty, dir: &tempfile::TempDir) -> PagerDuty {
    let key = dir.path().join("key");
    std::fs::write(&key, Service::ROUTING_KEY).unwrap();
    Config { routing_key_file: Some(key), events_url: fake.url(), ..Config::default() }.build().unwrap()
}

/// Sends all messages in order, each twice, as after a crash before the receipt was stored.
async fn send_all(pagerduty: &PagerDuty, all: &[Notification]) {
    let mut memory: Option<String> = None;
    let mut rung = [0, 0];
    for n in all {
        let is_page = n.message.severity == Severity::Page;
        let ring = n.calls().then(|| {
            rung[usize::from(is_page)] += 1;
            Ring { number: rung[usize::from(is_page)], page: is_page }
        });
        let attempt = Attempt { memory: memory.as_deref(), ring, ..Attempt::first(n) };
        pagerduty.send(attempt).await.unwrap();
        let again = Attempt { ambiguous: true, ..attempt };
        memory = pagerduty.send(again).await.unwrap().memory.or(memory);
    }
}

fn notification((severity, action): (Severity, Action)) -> Notification {
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
    let all = all.map(notification);
    send_all(&to(&fake, &dir), &all).await;
    let id = page(Action::Trigger).incident;
    fake.with(|s| {
        assert_eq!(rung(s), [format!("{id}-ticket").as_str(), &id]);
        assert!(s.alerts.iter().all(|a| a.state == AlertState::Resolved), "{:?}", s.alerts);
        // The page resolved this alert, long before the incident was resolved.
        assert_eq!(s.alerts[0].log.last().map(|l| l.what.as_str()), Some("resolved"));
    });
}

/// An incident whose acknowledgement was lost is called again, and so is each call of a policy
/// without an acknowledgement.
#[tokio::test]
async fn what_somebody_had_and_has_no_more_rings_again() {
    let (fake, dir) = (FakePagerDuty::start().await, tempfile::tempdir().unwrap());
    let sent = |action, because, reason: &str| {
        let mut n = page(action);
        (n.message.because, n.message.reason) = (because, reason.to_owned());
        n
    };
    let trigger = |because| sent(Action::Trigger, because, "");
    let ack = || sent(Action::Ack, Reason::Acknowledged, "");
    let mut acked_there = ack();
    acked_there.message.details.acknowledged_by = Some(actor("Jane", Some("pd")));
    let back = |by: &str| {
        let mut n = sent(Action::Update, Reason::Unacknowledged, "no longer acknowledged");
        n.message.details.unacknowledged_by = Some(by.to_owned());
        n
    };
    let all = [
        trigger(Reason::First),
        trigger(Reason::Repeated),
        // Both are acknowledged; the acknowledgement expires: the third page.
        ack(),
        trigger(Reason::AckExpired),
        acked_there.clone(),
        // An update of an acknowledged incident calls nobody; a call does: the fourth page.
        sent(Action::Update, Reason::News, ""),
        trigger(Reason::Escalated),
        acked_there,
        // Taken back in PagerDuty, which notifies people by itself; only the call after that
        // counts.
        back(&actor("Jane", Some("pd"))),
        trigger(Reason::StillFiring),
        ack(),
        // Taken back elsewhere: one more page.
        back("api:ann"),
        sent(Action::Resolve, Reason::Resolved, ""),
    ];
    send_all(&to(&fake, &dir), &all).await;
    let id = page(Action::Trigger).incident;
    fake.with(|s| {
        let keys = [1, 2, 3, 4, 6, 7].map(|number| key(&id, Ring { number, page: true }));
        assert_eq!(rung(s), keys);
        assert!(s.alerts.iter().all(|a| a.state == AlertState::Resolved), "{:?}", s.alerts);
        let log = |n: usize| s.alerts[n].log.iter().map(|l| l.what.as_str()).collect::<Vec<_>>();
        assert!(log(0).ends_with(&["acknowledged", "acknowledged", "resolved"]), "{:?}", log(0));
        // The acknowledged alert is closed before the next call.
        let (closed, rang) = (s.alerts[1].log.last().map(|l| l.at), s.pages[2].at);
        assert!(closed.is_some_and(|closed| closed <= rang));
    });
}

/// A service that groups alerts notifies nobody of alerts that it adds to an incident. It does
/// notify for an incident whose acknowledgement was lost.
#[tokio::test]
async fn a_service_that_groups_rings_again_for_what_nobody_has_any_more() {
    let (fake, dir) = (FakePagerDuty::start().await, tempfile::tempdir().unwrap());
    fake.change(|s| s.groups_alerts = true);
    let all = [Action::Trigger, Action::Trigger, Action::Ack, Action::Trigger];
    send_all(&to(&fake, &dir), &all.map(|action| notification((Severity::Page, action)))).await;
    let id = page(Action::Trigger).incident;
    fake.with(|s| assert_eq!(rung(s), [id.clone(), format!("{id}-3")]));
}

/// An acknowledged ticket that is sent again is a new ticket, and the page that it becomes has a
/// key of its own.
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
    let all = all.map(notification);
    send_all(&to(&fake, &dir), &all).await;
    let id = page(Action::Trigger).incident;
    fake.with(|s| {
        assert_eq!(rung(s), [format!("{id}-ticket"), format!("{id}-ticket-2"), id.clone()]);
        assert!(s.alerts.iter().all(|a| a.state == AlertState::Resolved), "{:?}", s.alerts);
    });
}

/// A call that waited until the incident was over notifies nobody, and an alert that an earlier
/// attempt may have opened is resolved.
#[tokio::test]
async fn nobody_is_called_for_what_is_over() {
    let id = page(Action::Trigger).incident;
    for called in [true, false] {
        let (fake, dir) = (FakePagerDuty::start().await, tempfile::tempdir().unwrap());
        let pagerduty = to(&fake, &dir);
        let call = notification((Severity::Page, Action::Trigger));
        let ring = Some(Ring { number: 1, page: true });
        let attempt = Attempt { ring, ..Attempt::first(&call) };
        if called {
            // The answer and the memory are lost.
            pagerduty.send(attempt).await.unwrap();
        }
        let mut late = call.clone();
        late.message.status = Status::Resolved;
        let late = Attempt { notification: &late, ambiguous: called, ..attempt };
        pagerduty.send(late).await.unwrap();
        fake.with(|s| {
            assert_eq!(rung(s), if called { vec![id.as_str()] } else { vec![] });
            assert!(s.alerts.iter().all(|a| a.state == AlertState::Resolved), "{:?}", s.alerts);
        });
    }
}

/// A person resolved the incident while it still fired, acknowledged or not: PagerDuty has closed
/// its alert, and the next call opens one.
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

/// The service resolves alerts that are open for too long, after which an update would open another
/// alert.
#[tokio::test]
async fn news_of_what_the_service_resolved_by_itself_ring_nobody() {
    let (fake, dir) = (FakePagerDuty::start().await, tempfile::tempdir().unwrap());
    let pagerduty = to(&fake, &dir);
    let call = page(Action::Trigger);
    let first = Attempt { ring: Some(Ring { number: 1, page: true }), ..Attempt::first(&call) };
    let memory = pagerduty.send(first).await.unwrap().memory;
    fake.change(Service::auto_resolve);
    let news = page(Action::Update);
    let late = Attempt {
        memory: memory.as_deref(),
        at: first.at + Config::default().auto_resolve,
        ..Attempt::first(&news)
    };
    let memory = pagerduty.send(late).await.unwrap().memory;
    fake.with(|s| assert_eq!(rung(s).len(), 1, "{:?}", s.pages));
    let again = Attempt { ring: Some(Ring { number: 2, page: true }), notification: &call, ..late };
    pagerduty.send(Attempt { memory: memory.as_deref(), ..again }).await.unwrap();
    fake.with(|s| {
        assert_eq!(
            rung(s),
            [key(&call.incident, first.ring.unwrap()), key(&call.incident, again.ring.unwrap())]
        )
    });
}
