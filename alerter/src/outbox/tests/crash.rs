//! Crashes at any point in random histories: no page is lost or doubled, every lane is in order,
//! and every outcome is reported.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;

/// The next step of a history.
#[derive(Debug, Clone)]
enum Doing {
    /// Posts the next message about incident 0..3 to receiver 0..2.
    Post { incident: u8, receiver: u8, action: Action, page: bool },
    /// Kills the process, possibly in the middle of an operation.
    Die,
    /// Advances the time, in milliseconds.
    Wait(u64),
}

fn doing() -> impl Strategy<Value = Doing> {
    let action = prop_oneof![
        2 => Just(Action::Trigger),
        4 => Just(Action::Update),
        1 => Just(Action::Ack),
        1 => Just(Action::Resolve),
    ];
    prop_oneof![
        6 => (0u8..3, 0u8..2, action, any::<bool>())
            .prop_map(|(incident, receiver, action, page)| Doing::Post { incident, receiver, action, page }),
        2 => Just(Doing::Die),
        2 => (0u64..20_000).prop_map(Doing::Wait),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        5 => Just(Answer::Take),
        2 => Just(Answer::TakeAndBreak),
        2 => Just(transient()),
        1 => Just(Answer::Fail(Failure::rate_limited("429", Some(Duration::from_secs(3))))),
        1 => Just(Answer::Hang { taken: true }),
        1 => Just(Answer::Hang { taken: false }),
    ]
}

const NAMES: [&str; 2] = ["chat", "pager"];

/// The committed messages by key.
type Said = BTreeMap<String, Notification>;

async fn live(doings: Vec<Doing>, answers: Vec<Answer>) -> Result<(), TestCaseError> {
    let script = move |n: usize| answers.get(n).cloned().unwrap_or(Answer::Take);
    let receivers = NAMES.map(|_| Scripted::new(script.clone()));
    let mut bench = Bench::new(&[(NAMES[0], &receivers[0]), (NAMES[1], &receivers[1])]).await;
    let (mut said, mut seqs) = (Said::new(), BTreeMap::<(u8, u8), u32>::new());
    let mut reported_keys = BTreeMap::<String, usize>::new();
    for doing in doings {
        match doing {
            Doing::Post { incident, receiver, action, page } => {
                let seq = seqs.entry((incident, receiver)).or_default();
                *seq += 1;
                let mut n = for_incident(
                    notification(NAMES[usize::from(receiver)], *seq, action),
                    &format!("01INCIDENT{incident}"),
                );
                n.page = page;
                said.insert(n.idem_key.clone(), n.clone());
                bench.post([n]).await;
            }
            Doing::Die => {
                bench.die().await;
                bench.start().await;
            }
            Doing::Wait(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
        }
        while let Ok(feedback) = bench.life().feedback.try_recv() {
            *reported_keys.entry(feedback.idem_key.clone()).or_default() += 1;
            let reported = vec![feedback.idem_key];
            bench.life().store.commit(&Commit { reported, ..Commit::default() }).await.unwrap();
        }
    }
    finish(&mut bench, &said, &mut reported_keys).await;
    check(&mut bench, &receivers, &said, &reported_keys).await
}

/// Runs until everything is sent and all outcomes were reported to the engine.
async fn finish(bench: &mut Bench, said: &Said, reported_keys: &mut BTreeMap<String, usize>) {
    let ids: BTreeSet<String> = said.values().map(|n| n.incident.clone()).collect();
    loop {
        let mut open = false;
        for id in &ids {
            for d in bench.life().store.deliveries(id).await.unwrap() {
                let over = matches!(d.state, DeliveryState::Superseded);
                open |= !over && !reported_keys.contains_key(&d.idem_key);
            }
        }
        if !open {
            return;
        }
        let feedback = bench.feedback().await;
        *reported_keys.entry(feedback.idem_key).or_default() += 1;
    }
}

async fn check(
    bench: &mut Bench,
    receivers: &[Scripted],
    said: &Said,
    reported_keys: &BTreeMap<String, usize>,
) -> Result<(), TestCaseError> {
    for (name, receiver) in NAMES.iter().zip(receivers) {
        let keys = receiver.keys();
        let once: BTreeSet<&String> = keys.iter().collect();
        prop_assert_eq!(once.len(), keys.len(), "sent twice: {:?}", keys);
        let mut last = BTreeMap::<&str, u32>::new();
        for key in &keys {
            let n = &said[key];
            prop_assert_eq!(n.receiver.as_str(), *name);
            let before = last.insert(n.incident.as_str(), n.seq);
            prop_assert!(before.is_none_or(|seq| seq < n.seq), "out of order: {:?}", keys);
        }
        // Every first message was sent, or a later first message of at least its severity.
        for n in said.values().filter(|n| n.receiver == **name && n.action == Action::Trigger) {
            let as_good = |m: &Notification| {
                m.incident == n.incident
                    && m.action == Action::Trigger
                    && m.seq >= n.seq
                    && (m.page || !n.page)
            };
            prop_assert!(keys.iter().any(|key| as_good(&said[key])), "lost: {} in {:?}", n.idem_key, keys);
        }
    }
    for id in said.values().map(|n| n.incident.clone()).collect::<BTreeSet<_>>() {
        for d in bench.life().store.deliveries(&id).await.unwrap() {
            let done = matches!(d.state, DeliveryState::Delivered | DeliveryState::Superseded);
            prop_assert!(done, "{:?}", d);
            let known = reported_keys.contains_key(&d.idem_key);
            prop_assert_eq!(known, d.state == DeliveryState::Delivered, "{:?}", d);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_page_is_lost_or_doubled(
        doings in prop::collection::vec(doing(), 1..25),
        answers in prop::collection::vec(answer(), 0..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(live(doings, answers))?;
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_the_engine_did_not_take_in_comes_again() {
    let chat = Scripted::new(|_| Answer::Take);
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    bench.post([page("chat", 1, Action::Trigger)]).await;
    let first = bench.life().feedback.recv().await.unwrap();
    bench.die().await;
    bench.start().await;
    assert_eq!(bench.feedback().await, first);
    bench.die().await;
    bench.start().await;
    bench.post([page("chat", 2, Action::Ack)]).await;
    assert_eq!(bench.feedback().await.action, Action::Ack, "once committed, it is not reported again");
    assert_eq!(chat.seen().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn death_between_send_and_mark() {
    for taken in [true, false] {
        let chat = Scripted::new(move |n| if n == 0 { Answer::Hang { taken } } else { Answer::Take });
        let mut bench = Bench::new(&[("chat", &chat)]).await;
        bench.post([page("chat", 1, Action::Trigger)]).await;
        chat.attempted(1).await;
        bench.die().await;
        bench.start().await;
        bench.feedback().await;
        assert_eq!(chat.keys().len(), 1, "taken before the death: {taken}");
        assert_eq!(chat.attempts().len(), 2);
    }
}
