//! A store that refuses writes for long: pages are still sent once, and are recorded when it works
//! again.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use stepwatch_model::time::Span;

use super::*;
use crate::store::FAIL_OPEN_AFTER;
use crate::store::busy::Busy;
use crate::store::tests::by_hand_at;

const ID: &str = "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C";

/// Triggers that make all writes fail, while reads succeed.
const FULL: &str = "CREATE TRIGGER no1 BEFORE INSERT ON outbox BEGIN SELECT RAISE(FAIL, 'no room'); END; \
    CREATE TRIGGER no2 BEFORE UPDATE ON outbox BEGIN SELECT RAISE(FAIL, 'no room'); END; \
    CREATE TRIGGER no3 BEFORE INSERT ON meta BEGIN SELECT RAISE(FAIL, 'no room'); END";
const ROOM: &str = "DROP TRIGGER no1; DROP TRIGGER no2; DROP TRIGGER no3";

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(super) async fn sql(bench: &Bench, sql: &'static str) {
    let _busy = Busy::now();
    by_hand_at(&bench.path, sql).await.unwrap();
}

/// Treats a page as the runtime does: it retries the commit, and passes the page to memory if that
/// takes too long.
async fn decide(bench: &mut Bench, all: &[Notification]) -> Commit {
    let record = Effect::Incident(Box::new(incident(ID, State::Open)));
    let posts = all.iter().map(|n| Effect::Notify(Box::new(n.clone())));
    let commit = Commit { effects: [record].into_iter().chain(posts).collect(), ..Commit::default() };
    let store = bench.life().store.clone();
    let (began, already) = (Instant::now(), store.fails_open());
    while !store.fails_open() {
        store.commit(&commit).await.unwrap_err();
        tokio::time::sleep(secs(1)).await;
    }
    assert!(already || began.elapsed() >= FAIL_OPEN_AFTER && began.elapsed() < FAIL_OPEN_AFTER + secs(2));
    for n in all {
        assert!(store.hold(n.clone(), START));
    }
    commit
}

/// Waits until the outbox has done everything by itself.
async fn idle() {
    tokio::time::sleep(secs(600)).await;
}

#[tokio::test(start_paused = true)]
async fn a_page_that_cannot_be_recorded_rings_once_and_is_recorded_as_sent() {
    let pager = Scripted::new(|_| Answer::Take).waking();
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    sql(&bench, FULL).await;
    let commit = decide(&mut bench, &[page("pager", 1, Action::Trigger)]).await;
    pager.attempted(1).await;
    let feedback = bench.life().feedback.recv().await.unwrap();
    assert_eq!((feedback.outcome, feedback.action), (Outcome::Delivered, Action::Trigger));
    idle().await;
    assert_eq!(pager.keys(), [format!("{ID}/pager/1")]);
    sql(&bench, ROOM).await;
    // The commit includes the engine's reaction to the outcome, which is not reported again.
    let commit = Commit { reported: vec![feedback.idem_key], ..commit };
    bench.life().store.commit(&commit).await.unwrap();
    assert_eq!(bench.states(ID).await, [DeliveryState::Delivered]);
    idle().await;
    assert_eq!(pager.attempts().len(), 1, "sent once in all");
    // The resolution is sent from the store.
    bench.incident(ID, State::Resolved).await;
    bench.post([page("pager", 2, Action::Resolve)]).await;
    assert_eq!(bench.feedback().await.action, Action::Resolve);
}

/// As from the store, the pager is not called for an ended incident, and a chat shows both
/// messages.
#[tokio::test(start_paused = true)]
async fn nobody_is_rung_from_memory_for_what_ended_meanwhile() {
    use DeliveryState::{Delivered, Superseded};
    // A call was tried or not before the incident ended, and may have arrived.
    for tried in [false, true] {
        let up = Arc::new(AtomicBool::new(false));
        let is_up = Arc::clone(&up);
        let answer = move |_| if is_up.load(SeqCst) { Answer::Take } else { transient() };
        let pager = Scripted::new(answer).ringing();
        let chat = Scripted::new(|_| Answer::Take);
        let mut bench = Bench::new(&[("pager", &pager), ("chat", &chat)]).await;
        sql(&bench, FULL).await;
        let call = page("pager", 1, Action::Trigger);
        let mut ends = ["pager", "chat"].map(|to| page(to, 2, Action::Resolve));
        ends.iter_mut().for_each(|n| n.message.status = Status::Resolved);
        let shown = page("chat", 1, Action::Trigger);
        let later = if tried {
            decide(&mut bench, core::slice::from_ref(&call)).await;
            pager.attempted(2).await;
            [&[shown], &ends[..]].concat()
        } else {
            [&[call.clone(), shown], &ends[..]].concat()
        };
        let commit = decide(&mut bench, &later).await;
        let call = tried.then(|| Effect::Notify(Box::new(call)));
        let commit = Commit { effects: call.into_iter().chain(commit.effects).collect(), ..commit };
        up.store(true, SeqCst);
        idle().await;
        let actions: Vec<_> = pager.seen().iter().map(|s| s.action).collect();
        assert_eq!(actions, if tried { vec![Action::Resolve] } else { vec![] }, "{tried}");
        let seen = chat.seen();
        assert!(seen[0].title.starts_with("Fired and resolved: "), "{seen:?}");
        sql(&bench, ROOM).await;
        bench.life().store.commit(&commit).await.unwrap();
        idle().await;
        let ends = if tried { Delivered } else { Superseded };
        let deliveries = bench.life().store.deliveries(ID).await.unwrap();
        let of = |to: &str| {
            let all = deliveries.iter().filter(|d| d.receiver == to);
            all.map(|d| d.state).collect::<Vec<_>>()
        };
        assert_eq!((of("pager"), of("chat")), (vec![Superseded, ends], vec![Delivered; 2]), "{tried}");
        let why = deliveries.iter().find(|d| d.receiver == "pager").unwrap().error.as_deref();
        assert_eq!(why, Some("over before it could be sent"));
    }
}

/// The incident is acknowledged by now, so nobody is woken.
#[tokio::test(start_paused = true)]
async fn nobody_is_rung_from_memory_for_what_was_answered_meanwhile() {
    let pager = Scripted::new(|_| Answer::Take).ringing();
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    sql(&bench, FULL).await;
    let all = [page("pager", 1, Action::Trigger), page("pager", 2, Action::Ack)];
    decide(&mut bench, &all).await;
    pager.attempted(1).await;
    idle().await;
    assert_eq!(pager.seen().iter().map(|s| s.action).collect::<Vec<_>>(), [Action::Ack]);
}

/// A page from memory has waited for at least ten seconds: it has the present state when it is
/// sent, and its record has the text that was sent.
#[tokio::test(start_paused = true)]
async fn a_page_from_memory_contains_the_present_state() {
    let pager = Scripted::new(|n| if n == 0 { transient() } else { Answer::Take }).waking();
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    bench.die().await;
    bench.reword = Some(Arc::new(|n: Notification| {
        let message = stepwatch_respond::message::Message { title: "as it is now".into(), ..n.message };
        Box::pin(std::future::ready(Some(message)))
    }));
    bench.start().await;
    sql(&bench, FULL).await;
    let commit = decide(&mut bench, &[page("pager", 1, Action::Trigger)]).await;
    pager.attempted(2).await;
    idle().await;
    assert_eq!(pager.seen()[0].title, "as it is now");
    sql(&bench, ROOM).await;
    bench.life().store.commit(&commit).await.unwrap();
    idle().await;
    let deliveries = bench.life().store.deliveries(ID).await.unwrap();
    assert_eq!(deliveries[0].message.as_ref().unwrap().title, "as it is now");
}

/// The receiver is down too: the page is retried until it is accepted, before and after the store
/// works again.
#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_down_too_is_tried_again_from_memory_and_from_the_store() {
    for heals_after in [3, usize::MAX] {
        let pager =
            Scripted::new(move |n| if n >= heals_after { Answer::Take } else { transient() }).waking();
        let mut bench = Bench::new(&[("pager", &pager)]).await;
        sql(&bench, FULL).await;
        let commit = decide(&mut bench, &[page("pager", 1, Action::Trigger)]).await;
        pager.attempted(4).await;
        idle().await;
        sql(&bench, ROOM).await;
        bench.life().store.commit(&commit).await.unwrap();
        let seen = pager.seen().len();
        assert_eq!(seen, usize::from(heals_after == 3));
        if seen == 0 {
            bench.receivers.insert("pager".into(), pager.with_script(|_| Answer::Take));
            let notifiers = bench.notifiers();
            bench.life().handle.replace(notifiers);
        }
        idle().await;
        assert_eq!(pager.keys(), [format!("{ID}/pager/1")]);
        assert_eq!(bench.states(ID).await, [DeliveryState::Delivered]);
    }
}

fn moment(text: &str) -> Ts {
    Ts(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
}

impl Bench {
    fn now(&self) -> Ts {
        self.time_of(Instant::now())
    }

    fn time_of(&self, at: Instant) -> Ts {
        Ts(START.0 + (at - self.began).as_millis() as i64)
    }

    /// The creation time, number of attempts and completion time of the first message.
    async fn times(&mut self) -> (Ts, u32, Option<Ts>) {
        let all = self.life().store.deliveries(ID).await.unwrap();
        (all[0].created_at, all[0].attempts, all[0].done_at.as_deref().map(moment))
    }
}

/// A late record has the page's own times and number of attempts.
#[tokio::test(start_paused = true)]
async fn a_page_sent_from_memory_is_recorded_with_its_own_times_and_attempts() {
    let pager = Scripted::new(|n| match n {
        0 => transient(),
        // A request for a pause does not count as a failed attempt.
        1 => Answer::Fail(Failure::rate_limited("429", Some(secs(5)))),
        2 => transient(),
        _ => Answer::Take,
    })
    .waking();
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    sql(&bench, FULL).await;
    let commit = decide(&mut bench, &[page("pager", 1, Action::Trigger)]).await;
    pager.attempted(4).await;
    let sent = bench.time_of(pager.attempts()[3].1);
    idle().await;
    sql(&bench, ROOM).await;
    let at = bench.now();
    assert!(at - sent > Span::secs(500), "recorded much later");
    bench.life().store.commit(&Commit { at, ..commit }).await.unwrap();
    assert_eq!(bench.times().await, (START, 3, Some(sent)));
}

/// A page that still waits when it is recorded keeps its creation time and its number of attempts.
#[tokio::test(start_paused = true)]
async fn a_page_that_waits_in_memory_goes_on_waiting_in_the_store() {
    let pager = Scripted::new(|_| transient()).waking();
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    sql(&bench, FULL).await;
    let commit = decide(&mut bench, &[page("pager", 1, Action::Trigger)]).await;
    pager.attempted(4).await;
    idle().await;
    sql(&bench, ROOM).await;
    let at = bench.now();
    let tried = pager.attempts().len() as u32;
    bench.life().store.commit(&Commit { at, ..commit }).await.unwrap();
    assert_eq!(bench.times().await, (START, tried, None));
    let waiting = bench.life().store.unreached(START).await.unwrap();
    assert_eq!(waiting.iter().map(|page| page.since).collect::<Vec<_>>(), [START]);
}

/// A message that was sent but could not be marked keeps its sending time, even if that took less
/// than ten seconds.
#[tokio::test(start_paused = true)]
async fn a_page_that_is_marked_late_keeps_the_time_at_which_it_was_sent() {
    for refused in [secs(6), secs(600)] {
        let gate = Arc::new(Notify::new());
        let answer = Answer::TakeAt(Arc::clone(&gate));
        let pager = Scripted::new(move |_| answer.clone()).waking();
        let mut bench = Bench::new(&[("pager", &pager)]).await;
        bench.incident(ID, State::Open).await;
        bench.post([page("pager", 1, Action::Trigger)]).await;
        let created = bench.times().await.0;
        pager.attempted(1).await;
        sql(&bench, FULL).await;
        tokio::time::sleep(secs(3)).await;
        gate.notify_one();
        let sent = bench.now();
        tokio::time::sleep(refused).await;
        sql(&bench, ROOM).await;
        tokio::time::sleep(secs(60)).await;
        assert_eq!(bench.times().await, (created, 1, Some(sent)), "{refused:?}");
    }
}

/// The page was recorded just before; its row can be read but not claimed.
#[tokio::test(start_paused = true)]
async fn a_page_that_was_recorded_and_cannot_be_claimed_rings_once() {
    let pager = Scripted::new(|_| Answer::Take).waking();
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    sql(&bench, "CREATE TRIGGER no2 BEFORE UPDATE ON outbox BEGIN SELECT RAISE(FAIL, 'no room'); END").await;
    bench.incident(ID, State::Open).await;
    bench.post([page("pager", 1, Action::Trigger)]).await;
    let full = "CREATE TRIGGER no1 BEFORE INSERT ON outbox BEGIN SELECT RAISE(FAIL, 'no room'); END; \
        CREATE TRIGGER no3 BEFORE INSERT ON meta BEGIN SELECT RAISE(FAIL, 'no room'); END";
    sql(&bench, full).await;
    pager.attempted(1).await;
    let (created, sent) = (bench.times().await.0, bench.time_of(pager.attempts()[0].1));
    idle().await;
    assert_eq!(bench.states(ID).await, [DeliveryState::Pending], "nothing can be written down");
    assert_eq!(pager.attempts().len(), 1);
    sql(&bench, ROOM).await;
    idle().await;
    assert_eq!(bench.states(ID).await, [DeliveryState::Delivered]);
    assert_eq!(bench.times().await, (created, 1, Some(sent)));
    assert_eq!(pager.attempts().len(), 1, "sent once in all");
}

/// The disk becomes full during the first attempt.
#[tokio::test(start_paused = true)]
async fn a_page_that_was_claimed_and_did_not_arrive_is_tried_again() {
    let pager = Scripted::new(|n| if n == 0 { Answer::Hang { taken: false } } else { Answer::Take }).waking();
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    bench.incident(ID, State::Open).await;
    bench.post([page("pager", 1, Action::Trigger)]).await;
    pager.attempted(1).await;
    sql(&bench, FULL).await;
    pager.attempted(2).await;
    idle().await;
    assert_eq!(pager.attempts().len(), 2);
    assert_eq!(bench.states(ID).await, [DeliveryState::Attempting]);
    let (created, sent) = (bench.times().await.0, bench.time_of(pager.attempts()[1].1));
    sql(&bench, ROOM).await;
    idle().await;
    assert_eq!(bench.states(ID).await, [DeliveryState::Delivered]);
    assert_eq!(bench.times().await, (created, 2, Some(sent)));
    assert_eq!(pager.attempts().len(), 2);
}

/// A kill loses only what was in memory; what was recorded is looked up under its key.
#[tokio::test(start_paused = true)]
async fn a_kill_while_the_store_refuses_repeats_under_the_same_key() {
    let pager = Scripted::new(|_| Answer::Take).waking();
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    sql(&bench, FULL).await;
    let commit = decide(&mut bench, &[page("pager", 1, Action::Trigger)]).await;
    pager.attempted(1).await;
    bench.die().await;
    sql(&bench, ROOM).await;
    bench.start().await;
    // The engine reads the streams again and makes the same decisions.
    bench.life().store.commit(&commit).await.unwrap();
    idle().await;
    let keys: Vec<String> = pager.attempts().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, vec![format!("{ID}/pager/1"); 2], "at least once, under one key");
}
