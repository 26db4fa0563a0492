//! Tests of receivers that ask for a long pause.

use stepwatch_model::time::Span;

use super::*;

const ID: &str = "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C";

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A pause of any length holds, also across a restart, because only pages cannot wait.
#[tokio::test(start_paused = true)]
async fn what_is_not_a_page_waits_for_as_long_as_it_is_asked_to() {
    let chat = Scripted::new(|n| match n {
        0 => Answer::Fail(Failure::rate_limited("429", Some(secs(7200)))),
        _ => Answer::Take,
    });
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    let ticket = || Notification { page: false, ..page("chat", 1, Action::Trigger) };
    bench.post([ticket()]).await;
    chat.attempted(1).await;
    while bench.states(ID).await != [DeliveryState::Pending] {}
    tokio::time::sleep(secs(1800)).await;
    bench.die().await;
    bench.start().await;
    bench.post([for_incident(ticket(), "01OTHER")]).await;
    for _ in 0..2 {
        assert_eq!(bench.feedback().await.outcome, Outcome::Delivered);
    }
    let attempts = chat.attempts();
    let waited = attempts[1].1 - attempts[0].1;
    assert!(waited >= secs(7200) && waited <= secs(8000), "{waited:?}");
}

/// A page does not wait for hours: it is retried within minutes, and the engine is informed at once
/// that others must be called.
#[tokio::test(start_paused = true)]
async fn a_page_does_not_wait_out_a_long_pause() {
    let chat = Scripted::new(|n| match n {
        0 | 1 => Answer::Fail(Failure::rate_limited("429", Some(secs(7200)))),
        _ => Answer::Take,
    });
    let mut bench = Bench::new(&[("chat", &chat)]).await;
    bench.incident(ID, State::Open).await;
    let ticket = Notification { page: false, ..page("chat", 1, Action::Trigger) };
    bench.post([for_incident(ticket, "01TICKET")]).await;
    chat.attempted(1).await;
    let before = Instant::now();
    bench.post([page("chat", 1, Action::Trigger)]).await;
    let put_off = bench.any_feedback().await;
    assert!(
        matches!(put_off.outcome, Outcome::PutOff { wait, .. } if wait >= Span::secs(7200)),
        "{put_off:?}"
    );
    assert!(before.elapsed() < secs(10), "{:?}", before.elapsed());
    assert_eq!(bench.feedback().await.outcome, Outcome::Delivered);
    let attempts = chat.attempts();
    let waited = attempts[2].1 - attempts[1].1;
    assert!(waited >= secs(300) && waited <= secs(340), "{waited:?}");
    assert_eq!(bench.states("01TICKET").await, [DeliveryState::Pending], "that one can wait");
}
