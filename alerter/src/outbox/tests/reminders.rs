//! Tests of receivers whose alerts expire.

use super::*;

/// More than one portion.
const STANDING: usize = 100;

fn id(n: usize) -> String {
    format!("01STANDING{n:03}")
}

/// The receiver is slow, and an incident that ends while one portion is accepted is not sent as
/// open in the next one.
#[tokio::test(start_paused = true)]
async fn what_ended_during_a_reminder_is_not_revived() {
    let gate = Arc::new(Notify::new());
    let forgetful = Scripted::new(|_| Answer::Take).reminded(Duration::from_mins(10), &gate);
    let mut bench = Bench::new(&[("am", &forgetful)]).await;
    for n in 0..STANDING {
        let effects = [
            Effect::Incident(Box::new(incident(&id(n), State::Open))),
            Effect::Notify(Box::new(for_incident(page("am", 1, Action::Trigger), &id(n)))),
        ];
        bench.commit(effects.into()).await;
        bench.feedback().await;
    }
    let first = forgetful.portions(0).await;
    assert!(first[0].len() < STANDING && first[0][0] == id(0), "a portion at a time: {first:?}");
    let last = id(STANDING - 1);
    bench.incident(&last, State::Resolved).await;
    let before = forgetful.world.lock().unwrap().portions.len();
    gate.notify_one();
    let portions = forgetful.portions(before).await;
    assert!(portions[before].contains(&id(STANDING - 2)), "the rest is sent: {portions:?}");
    assert!(!portions[before].contains(&last), "{portions:?}");
}
