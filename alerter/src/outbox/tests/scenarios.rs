//! Tests of delivery, one rule each.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::sync::Notify;

use super::unrecorded::sql;
use super::*;
use crate::notify::Budget;

const ID: &str = "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C";

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_sent_at_once_and_reported() {
    let chat = Scripted::new(|_| Answer::Take);
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    let before = Instant::now();
    bench.post([page("chat", 1, Action::Trigger)]).await;
    let feedback = bench.feedback().await;
    assert_eq!(feedback.outcome, Outcome::Delivered);
    assert_eq!((feedback.incident.as_str(), feedback.action), (ID, Action::Trigger));
    assert!(chat.seen()[0].at - before < secs(1), "it waited for the sweep");
    assert_eq!(bench.states(ID).await, [DeliveryState::Delivered]);
    assert_eq!(bench.life().handle.metrics.sent_total("chat", Action::Trigger), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_sent_in_order_whatever_fails() {
    let chat = Scripted::new(|n| if n % 3 == 2 { Answer::Take } else { transient() });
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    for (seq, action) in (1..).zip([Action::Trigger, Action::Ack, Action::Resolve]) {
        bench.post([page("chat", seq, action)]).await;
    }
    for seq in 1..=3 {
        assert_eq!(bench.feedback().await.idem_key, format!("{ID}/chat/{seq}"));
    }
    assert_eq!(chat.attempts().len(), 9);
    assert_eq!(chat.concurrent_max(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_passes_a_receiver_that_hangs() {
    let slow = Scripted::new(|_| Answer::Hang { taken: false });
    let pager = Scripted::new(|_| Answer::Take);
    let mut bench = Bench::new(&[("pager", &pager), ("slow", &slow)]).await;
    for i in 0..40 {
        bench.post([for_incident(page("slow", 1, Action::Trigger), &format!("01SLOW{i:02}"))]).await;
    }
    slow.attempted(1).await;
    let before = Instant::now();
    bench.post([page("pager", 1, Action::Trigger)]).await;
    assert_eq!(bench.feedback().await.receiver, "pager");
    assert!(pager.seen()[0].at - before < secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_page_passes_a_crowd_of_tickets_to_the_same_receiver() {
    // Tickets hang, and pages are accepted.
    let pager = Scripted::new(|n| if n < 8 { Answer::Hang { taken: false } } else { Answer::Take });
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    for i in 0..30 {
        let mut n = for_incident(page("pager", 1, Action::Trigger), &format!("01TICKET{i:02}"));
        n.page = false;
        bench.post([n]).await;
    }
    pager.attempted(8).await;
    let before = Instant::now();
    bench.post([page("pager", 1, Action::Trigger)]).await;
    assert_eq!(bench.feedback().await.incident, ID);
    assert!(pager.seen()[0].at - before < secs(1));
}

#[tokio::test(start_paused = true)]
async fn news_that_pile_up_become_one() {
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let chat = Scripted::new(move |n| if n == 0 || is_up.load(SeqCst) { Answer::Take } else { transient() });
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    bench.post([page("chat", 1, Action::Trigger)]).await;
    bench.feedback().await;
    for seq in 2..=9 {
        bench.post([page("chat", seq, Action::Update)]).await;
    }
    up.store(true, SeqCst);
    // An attempt in flight when the next message arrived ends before the last one.
    let mut key = bench.feedback().await.idem_key;
    if !key.ends_with("/9") {
        key = bench.feedback().await.idem_key;
    }
    assert_eq!(key, format!("{ID}/chat/9"));
    assert!(chat.seen().len() <= 3, "of eight pieces of news: {:?}", chat.seen());
}

#[tokio::test(start_paused = true)]
async fn an_incident_that_ends_during_an_outage_is_sent_in_one_message() {
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let answer = move |_| if is_up.load(SeqCst) { Answer::Take } else { transient() };
    let pager = Scripted::new(answer).waking();
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    bench.incident(ID, State::Open).await;
    bench.post([page("pager", 1, Action::Trigger)]).await;
    pager.attempted(6).await;
    let mut resolve = page("pager", 2, Action::Resolve);
    resolve.message.status = Status::Resolved;
    bench.incident(ID, State::Resolved).await;
    bench.post([resolve]).await;
    pager.attempted(pager.attempts().len() + 1).await;
    up.store(true, SeqCst);
    assert_eq!(bench.feedback().await.action, Action::Trigger);
    assert_eq!(bench.feedback().await.action, Action::Resolve);
    let seen = pager.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen[0].title.starts_with("Fired and resolved: "), "{}", seen[0].title);
    assert_eq!(seen[0].status, Status::Resolved);
    assert_eq!(seen[0].key, format!("{ID}/pager/1"), "under the key it always had");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_woken_after_an_ack() {
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let answer = move |_| if is_up.load(SeqCst) { Answer::Take } else { transient() };
    let pager = Scripted::new(answer).waking();
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    bench.incident(ID, State::Open).await;
    bench.post([page("pager", 1, Action::Trigger)]).await;
    pager.attempted(2).await;
    bench.incident(ID, State::Acknowledged).await;
    bench.post([page("pager", 2, Action::Ack)]).await;
    pager.attempted(pager.attempts().len() + 1).await;
    up.store(true, SeqCst);
    assert_eq!(bench.feedback().await.action, Action::Ack);
    assert!(pager.seen().iter().all(|s| s.action != Action::Trigger));
    assert_eq!(bench.states(ID).await, [DeliveryState::Superseded, DeliveryState::Delivered]);
}

/// Leaves a few attempts until a message that is not a page is given up.
async fn tried_for_hours(bench: &Bench) {
    sql(bench, "UPDATE outbox SET attempts = 296 WHERE done_at IS NULL").await;
}

#[tokio::test(start_paused = true)]
async fn a_page_is_never_given_up_while_it_is_open() {
    let pager = Scripted::new(|n| if n < 8 { transient() } else { Answer::Take });
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    bench.incident(ID, State::Open).await;
    bench.post([page("pager", 1, Action::Trigger)]).await;
    pager.attempted(2).await;
    tried_for_hours(&bench).await;
    assert_eq!(bench.feedback().await.outcome, Outcome::Delivered);
    assert_eq!(pager.attempts().len(), 9);
}

#[tokio::test(start_paused = true)]
async fn anything_else_is_given_up_in_the_end() {
    let chat = Scripted::new(|_| transient());
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    let mut ticket = page("chat", 1, Action::Trigger);
    ticket.page = false;
    bench.post([ticket]).await;
    chat.attempted(2).await;
    tried_for_hours(&bench).await;
    let Outcome::Failed { error } = bench.feedback().await.outcome else { panic!("delivered") };
    assert_eq!(error, "503 (after 300 attempts)");
    // A page whose incident is acknowledged.
    bench.incident("01ACKED", State::Acknowledged).await;
    bench.post([for_incident(page("chat", 1, Action::Trigger), "01ACKED")]).await;
    chat.attempted(chat.attempts().len() + 2).await;
    tried_for_hours(&bench).await;
    assert!(matches!(bench.feedback().await.outcome, Outcome::Failed { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_reported_at_once() {
    let chat = Scripted::new(|_| Answer::Fail(Failure::permanent("channel_not_found")));
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    bench.incident(ID, State::Open).await;
    let before = Instant::now();
    bench.post([page("chat", 1, Action::Trigger)]).await;
    let failed = Outcome::Failed { error: "channel_not_found".into() };
    assert_eq!(bench.feedback().await.outcome, failed);
    assert!(before.elapsed() < secs(1));
    assert_eq!(chat.attempts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_all_refuse_is_reported_and_tried_again() {
    let refused = || Answer::Fail(Failure::permanent("403"));
    let phone = Scripted::new(move |n| if n < 3 { refused() } else { Answer::Take });
    let mut bench = Bench::new(&[("phone", &phone)]).await;
    bench.incident(ID, State::Open).await;
    bench.post([page("phone", 1, Action::Trigger)]).await;
    let (mut failed, mut unreached) = (0, 0);
    loop {
        match bench.any_feedback().await.outcome {
            Outcome::Failed { .. } => failed += 1,
            Outcome::Unreached { .. } => unreached += 1,
            Outcome::AllReached | Outcome::PutOff { .. } => {}
            Outcome::Delivered => break,
        }
    }
    assert_eq!((failed, unreached), (3, 1));
    let attempts = phone.attempts();
    assert!(attempts.windows(2).all(|w| w[1].1 - w[0].1 <= secs(300)), "half an hour is too long");
    assert!(attempts.windows(2).all(|w| w[1].1 - w[0].1 >= secs(100)), "nobody is hammered");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_was_refused_is_over_when_somebody_has_the_incident_or_was_notified() {
    let phone = Scripted::new(|_| Answer::Fail(Failure::permanent("403")));
    let chat = Scripted::new(|_| Answer::Take);
    let mut bench = Bench::new(&[("chat", &chat), ("phone", &phone)]).await;
    bench.incident(ID, State::Open).await;
    bench.incident("01SENT", State::Open).await;
    bench
        .post([page("phone", 1, Action::Trigger), for_incident(page("phone", 1, Action::Trigger), "01SENT")])
        .await;
    bench.post([for_incident(page("chat", 1, Action::Trigger), "01SENT")]).await;
    for _ in 0..3 {
        bench.feedback().await;
    }
    bench.incident(ID, State::Acknowledged).await;
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(phone.attempts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_is_obeyed_and_costs_no_attempt() {
    let limited = || Answer::Fail(Failure::rate_limited("429", Some(secs(30))));
    let chat = Scripted::new(move |n| if n < 12 { limited() } else { Answer::Take });
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    let mut ticket = page("chat", 1, Action::Trigger);
    ticket.page = false;
    bench.post([ticket]).await;
    chat.attempted(2).await;
    tried_for_hours(&bench).await;
    assert_eq!(bench.feedback().await.outcome, Outcome::Delivered);
    let attempts = chat.attempts();
    assert_eq!(attempts.len(), 13);
    assert!(attempts.windows(2).all(|w| w[1].1 - w[0].1 >= secs(30)), "came too early");
    assert!(attempts.windows(2).all(|w| w[1].1 - w[0].1 <= secs(35)), "came too late");
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_holds_for_every_lane_of_the_receiver() {
    let chat = Scripted::new(|n| match n {
        0 => Answer::Fail(Failure::rate_limited("429", Some(secs(60)))),
        _ => Answer::Take,
    });
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    bench.post([page("chat", 1, Action::Trigger)]).await;
    chat.attempted(1).await;
    while bench.states(ID).await != [DeliveryState::Pending] {}
    // Everything stored is processed before time advances.
    tokio::time::sleep(secs(1)).await;
    bench.post([for_incident(page("chat", 1, Action::Trigger), "01OTHER")]).await;
    bench.feedback().await;
    bench.feedback().await;
    let attempts = chat.attempts();
    let pause = attempts[1].1 - attempts[0].1;
    assert!(pause >= secs(60), "{pause:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_retry_is_quick_and_later_ones_are_not() {
    let chat = Scripted::new(|n| if n < 12 { transient() } else { Answer::Take });
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    let mut ticket = page("chat", 1, Action::Trigger);
    ticket.page = false;
    bench.post([ticket]).await;
    bench.feedback().await;
    let at: Vec<Instant> = chat.attempts().into_iter().map(|(_, at)| at).collect();
    let gaps: Vec<Duration> = at.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps[0] <= secs(1), "{gaps:?}");
    assert!(gaps[11] >= secs(120) && gaps[11] <= secs(300), "{gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_comes_back_gets_everything_at_once() {
    let down_until = Instant::now() + secs(3600);
    let answer = move |_| if Instant::now() < down_until { transient() } else { Answer::Take };
    let chat = Scripted::new(answer);
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    for i in 0..20 {
        let mut n = for_incident(page("chat", 1, Action::Trigger), &format!("01LANE{i:02}"));
        n.page = i == 7;
        bench.post([n]).await;
    }
    for _ in 0..20 {
        bench.feedback().await;
    }
    let seen = chat.seen();
    assert!(
        seen.iter().any(|s| s.key == "01LANE07/chat/1" && s.at < down_until + secs(31)),
        "the page probes"
    );
    let last = seen.iter().map(|s| s.at).max().unwrap();
    assert!(last - seen[0].at < secs(5), "the others need not wait for their own time");
    // A receiver that is down is probed one message at a time, not by all lanes.
    assert!(chat.attempts().len() < 20 + 8 * 20 + 3600 / 15, "{}", chat.attempts().len());
}

#[tokio::test(start_paused = true)]
async fn a_pace_is_kept() {
    let chat = Scripted::paced(Some(Pace { per_second: 1.0, burst: 3.0 }), |_| Answer::Take);
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    let began = Instant::now();
    for i in 0..20 {
        bench.post([for_incident(page("chat", 1, Action::Trigger), &format!("01LANE{i:02}"))]).await;
    }
    for _ in 0..20 {
        bench.feedback().await;
    }
    assert!(began.elapsed() >= secs(16), "{:?}", began.elapsed());
    assert_eq!(chat.seen().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn silence_and_bugs_are_survived() {
    let chat = Scripted::new(|n| match n {
        0 => Answer::Hang { taken: true },
        1 => Answer::Panic,
        2 => Answer::TakeAndBreak,
        _ => Answer::Take,
    });
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    bench.post([page("chat", 1, Action::Trigger)]).await;
    assert_eq!(bench.feedback().await.outcome, Outcome::Delivered);
    assert_eq!(chat.keys(), [format!("{ID}/chat/1")]);
    assert_eq!(chat.concurrent_max(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_definite_failure_does_not_undo_a_doubt() {
    let chat = Scripted::new(|n| match n {
        0 => Answer::TakeAndBreak,
        1 => transient(),
        2 => Answer::Fail(Failure::rate_limited("429", None)),
        _ => Answer::Take,
    });
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    bench.post([page("chat", 1, Action::Trigger)]).await;
    bench.feedback().await;
    assert_eq!(chat.keys(), [format!("{ID}/chat/1")], "sent twice");
}

#[tokio::test(start_paused = true)]
async fn a_reload_mends_what_waits() {
    let broken = Scripted::new(|_| transient());
    let mut bench = Bench::new(&[("chat", &broken)]).await;
    let mut ticket = page("chat", 1, Action::Trigger);
    ticket.page = false;
    bench.post([ticket]).await;
    broken.attempted(10).await;
    let mended = broken.with_script(|_| Answer::Take);
    bench.receivers.insert("chat".into(), mended);
    let notifiers = bench.notifiers();
    let before = Instant::now();
    bench.life().handle.replace(notifiers);
    assert_eq!(bench.feedback().await.outcome, Outcome::Delivered);
    assert!(before.elapsed() < secs(2), "{:?}", before.elapsed());
}

/// Neither reloads nor a restart shorten a pause that the receiver asked for; another account may
/// send.
#[tokio::test(start_paused = true)]
async fn a_pause_outlives_reloads_and_a_restart() {
    let limited = |n| match n {
        0 => Answer::Fail(Failure::rate_limited("429", Some(secs(60)))),
        _ => Answer::Take,
    };
    for restart in [false, true] {
        let chat = Scripted::new(limited);
        let mut bench = Bench::new(&[("chat", &chat)]).await;
        bench.post([page("chat", 1, Action::Trigger)]).await;
        chat.attempted(1).await;
        while bench.states(ID).await != [DeliveryState::Pending] {}
        tokio::time::sleep(secs(1)).await;
        for i in 0..4 {
            tokio::time::advance(secs(3)).await;
            if restart {
                bench.die().await;
                bench.start().await;
            } else {
                let notifiers = bench.notifiers();
                bench.life().handle.replace(notifiers);
            }
            bench.post([for_incident(page("chat", 1, Action::Trigger), &format!("01LANE{i:02}"))]).await;
        }
        for _ in 0..5 {
            bench.feedback().await;
        }
        let attempts = chat.attempts();
        let pause = attempts[1].1 - attempts[0].1;
        assert!(pause >= secs(60) && pause <= secs(80), "{pause:?}, restart: {restart}");
    }
}

/// A page to a receiver that is down until `up` is set, and a silence that begins meanwhile.
async fn suppressed_meanwhile() -> (Bench, Scripted, Arc<AtomicBool>) {
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let phone = Scripted::new(move |_| if is_up.load(SeqCst) { Answer::Take } else { transient() });
    let mut bench = Bench::new(&[("phone", &phone.clone().waking())]).await;
    bench.incident(ID, State::Open).await;
    bench.post([page("phone", 1, Action::Trigger)]).await;
    phone.attempted(1).await;
    bench.suppressed(ID, State::Open).await;
    // An attempt may be in flight.
    while bench.states(ID).await != [DeliveryState::Pending] {}
    up.store(true, SeqCst);
    (bench, phone, up)
}

#[tokio::test(start_paused = true)]
async fn a_page_whose_incident_is_suppressed_waits_and_worries_nobody() {
    let (mut bench, phone, _) = suppressed_meanwhile().await;
    let before = phone.attempts().len();
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(phone.attempts().len(), before, "a page in a silence");
    assert_eq!(bench.states(ID).await, [DeliveryState::Pending], "held, not dropped");
    assert_eq!(bench.life().store.queue_depth().await.unwrap().oldest_page, None);
    assert!(bench.life().feedback.try_recv().is_err(), "nobody complains of it");
    // The silence survives a restart.
    bench.die().await;
    bench.start().await;
    tokio::time::sleep(secs(600)).await;
    assert_eq!(phone.attempts().len(), before);
    // The silence is over: the page is sent, and nothing reports an hour of waiting.
    let loud = Instant::now();
    bench.incident(ID, State::Open).await;
    assert_eq!(bench.any_feedback().await.outcome, Outcome::Delivered);
    assert!(loud.elapsed() < secs(10), "{:?}", loud.elapsed());
    assert_eq!(phone.keys(), [format!("{ID}/phone/1")]);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_ended_suppressed_notifies_nobody() {
    let (mut bench, phone, _) = suppressed_meanwhile().await;
    let before = phone.attempts().len();
    let mut resolve = page("phone", 2, Action::Resolve);
    resolve.despite_suppression = true;
    let record = suppressed(incident(ID, State::Resolved));
    bench.commit(vec![Effect::Incident(Box::new(record)), Effect::Notify(Box::new(resolve))]).await;
    while bench.states(ID).await != [DeliveryState::Superseded; 2] {
        tokio::time::sleep(secs(1)).await;
    }
    assert_eq!(phone.attempts().len(), before, "neither called nor notified that it is over");
}

#[tokio::test(start_paused = true)]
async fn a_person_who_asks_for_more_is_heard_although_it_is_suppressed() {
    let (mut bench, phone, _) = suppressed_meanwhile().await;
    let mut asked = page("phone", 2, Action::Trigger);
    asked.despite_suppression = true;
    bench.post([asked]).await;
    assert_eq!(bench.feedback().await.idem_key, format!("{ID}/phone/2"));
    assert_eq!(phone.keys(), [format!("{ID}/phone/2")]);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_was_refused_is_not_tried_again_while_it_is_suppressed() {
    let phone = Scripted::new(|_| Answer::Fail(Failure::permanent("403")));
    let mut bench = Bench::new(&[("phone", &phone)]).await;
    bench.incident(ID, State::Open).await;
    bench.post([page("phone", 1, Action::Trigger)]).await;
    bench.feedback().await;
    bench.suppressed(ID, State::Open).await;
    let before = phone.attempts().len();
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(phone.attempts().len(), before);
    assert!(bench.life().feedback.try_recv().is_err(), "nobody complains of it");
    bench.incident(ID, State::Open).await;
    phone.attempted(before + 1).await;
}

#[tokio::test(start_paused = true)]
async fn another_account_need_not_keep_a_pause() {
    let chat = Scripted::new(|_| Answer::Fail(Failure::rate_limited("429", Some(secs(60)))));
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    bench.post([page("chat", 1, Action::Trigger)]).await;
    chat.attempted(1).await;
    while bench.states(ID).await != [DeliveryState::Pending] {}
    tokio::time::sleep(secs(1)).await;
    bench.receivers.insert("chat".into(), chat.with_script(|_| Answer::Take).known_by("another token"));
    let (notifiers, before) = (bench.notifiers(), Instant::now());
    bench.life().handle.replace(notifiers);
    assert_eq!(bench.feedback().await.outcome, Outcome::Delivered);
    assert!(before.elapsed() < secs(6), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_receiver_nobody_configured_sends_the_engine_on() {
    let chat = Scripted::new(|_| Answer::Take);
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    let before = Instant::now();
    bench.post([page("gone", 1, Action::Trigger)]).await;
    let Outcome::Failed { error } = bench.feedback().await.outcome else { panic!("delivered to nobody") };
    assert!(error.contains("not in the configuration"), "{error}");
    assert!(before.elapsed() >= secs(30), "a reload may be under way");
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_what_is_under_way_arrive() {
    let chat = Scripted::new(|_| Answer::Take);
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    bench.post([page("chat", 1, Action::Trigger)]).await;
    chat.attempted(1).await;
    let life = bench.life.take().unwrap();
    life.trigger.fire();
    life.handle.stopped().await;
    let deliveries = life.store.deliveries(ID).await.unwrap();
    assert_eq!(deliveries[0].state, DeliveryState::Delivered);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_set_back_holds_nothing_up() {
    let chat = Scripted::new(|n| if n == 0 { transient() } else { Answer::Take });
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    bench.post([page("chat", 1, Action::Trigger)]).await;
    chat.attempted(1).await;
    bench.die().await;
    bench.wall_ms = -86_400_000;
    bench.start().await;
    let before = Instant::now();
    assert_eq!(bench.feedback().await.outcome, Outcome::Delivered);
    assert!(before.elapsed() < secs(60), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_operator_who_locks_the_file_delays_and_loses_nothing() {
    let gate = Arc::new(Notify::new());
    let opened = Arc::clone(&gate);
    let chat = Scripted::new(move |_| Answer::TakeAt(Arc::clone(&opened)));
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    bench.post([page("chat", 1, Action::Trigger)]).await;
    chat.attempted(1).await;
    // During the delivery, an operator opens the database and begins a write.
    let mut operator = SqliteConnectOptions::new().filename(&bench.path).connect().await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut operator).await.unwrap();
    gate.notify_one();
    let metrics = bench.life().handle.metrics.clone();
    while metrics.store_errors() == 0 {
        tokio::task::yield_now().await;
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut operator).await.unwrap();
    assert_eq!(bench.feedback().await.outcome, Outcome::Delivered);
    assert_eq!(chat.attempts().len(), 1, "what was sent is marked, not sent again");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_waits_too_long_is_reported_once_and_still_tried() {
    let phone = Scripted::new(|n| if n < 40 { transient() } else { Answer::Take });
    let mut bench = Bench::new(&[("phone", &phone)]).await;
    bench.incident(ID, State::Open).await;
    bench.post([page("phone", 1, Action::Trigger)]).await;
    let first = bench.any_feedback().await;
    let Outcome::Unreached { waited, error } = first.outcome else { panic!("{first:?}") };
    assert!(waited >= stepwatch_model::time::Span::secs(120), "{waited}");
    assert!(!error.is_empty());
    assert_eq!(bench.any_feedback().await.outcome, Outcome::Delivered, "once, and then that it arrived");
    assert_eq!(bench.any_feedback().await.outcome, Outcome::AllReached);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_tickets_ends_in_one_summary_and_pages_are_sent() {
    let budget = Budget { messages: 3, per: stepwatch_model::time::Span::secs(600) };
    let chat = Scripted::new(|_| Answer::Take).within(budget);
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    let ticket = |i: usize| {
        let mut n = page("chat", 1, Action::Trigger);
        (n.incident, n.page) = (format!("01TICKET{i:02}"), false);
        n.idem_key = format!("{}/chat/1", n.incident);
        n
    };
    for i in 0..10 {
        bench.post([ticket(i)]).await;
    }
    bench.post([page("chat", 1, Action::Trigger)]).await;
    chat.attempted(5).await;
    let seen = chat.seen();
    let pages = seen.iter().filter(|s| s.key.starts_with(ID)).count();
    assert_eq!(pages, 1, "a page is sent whatever was sent before");
    let tickets = seen.iter().filter(|s| s.key.starts_with("01TICKET")).count();
    assert_eq!(tickets, 3);
    let last = seen.last().unwrap();
    assert_eq!(last.title, "7 messages were left out here");
    assert!(last.at - seen[0].at >= secs(590), "when the window is over");
    // The next window begins.
    bench.post([ticket(11)]).await;
    chat.attempted(6).await;
}
