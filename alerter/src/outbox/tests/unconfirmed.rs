//! A service that accepts a page and notifies nobody.

use super::*;

const PAGE_AGE: Duration = Duration::from_mins(2);
/// Longer than the time limit plus the interval of passes.
const LATER: Duration = Duration::from_secs(130);

/// An open incident whose call the receiver has accepted; returns its id.
async fn paged(bench: &mut Bench, number: u32, receiver: &str) -> String {
    let id = format!("01J9ZC7Q3F8D2V4X6Y8Z0A2B{number:02}");
    bench.incident(&id, State::Open).await;
    bench.post([for_incident(page(receiver, 1, Action::Trigger), &id)]).await;
    assert_eq!(bench.feedback().await.outcome, Outcome::Delivered);
    id
}

async fn confirm(bench: &mut Bench, id: &str) {
    bench.life().store.confirm(id, Ring { number: 1, page: true }).await.unwrap();
}

/// The reports in the meantime, except deliveries.
async fn reported(bench: &mut Bench) -> Vec<Feedback> {
    tokio::time::sleep(LATER).await;
    let mut all = Vec::new();
    while let Ok(feedback) = bench.life().feedback.try_recv() {
        all.push(feedback);
    }
    all.retain(|f| !matches!(f.outcome, Outcome::AllReached));
    all
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_accepted_and_calls_nobody_counts_as_not_accepted() {
    let pager = Scripted::new(|_| Answer::Take).confirming("a");
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    // Nothing was ever confirmed, so its webhooks may not include confirmations.
    paged(&mut bench, 1, "pager").await;
    assert_eq!(reported(&mut bench).await, []);
    let id = paged(&mut bench, 2, "pager").await;
    confirm(&mut bench, &id).await;
    assert_eq!(reported(&mut bench).await, []);
    // From now on the service is known to confirm; it accepted the first page less than an hour
    // ago.
    bench.incident("01J9ZC7Q3F8D2V4X6Y8Z0A2B01", State::Acknowledged).await;
    let id = paged(&mut bench, 3, "pager").await;
    let told = reported(&mut bench).await;
    assert_eq!(
        told.iter().map(|f| (f.incident.as_str(), f.receiver.as_str())).collect::<Vec<_>>(),
        [(id.as_str(), "pager")]
    );
    let Outcome::Unreached { waited, error } = &told[0].outcome else { panic!("{told:?}") };
    assert!(waited.0 >= PAGE_AGE.as_millis() as i64 && error == "nobody was called", "{told:?}");
    assert_eq!(reported(&mut bench).await, [], "once");
    assert_eq!(pager.attempts().len(), 3, "its service is not called again");
}

/// Confirmations that arrived while the process was down, or that could not be stored, are repeated
/// later.
#[tokio::test(start_paused = true)]
async fn what_was_accepted_before_the_start_is_not_judged() {
    let pager = Scripted::new(|_| Answer::Take).confirming("a");
    let mut bench = Bench::new(&[("pager", &pager)]).await;
    let id = paged(&mut bench, 1, "pager").await;
    confirm(&mut bench, &id).await;
    paged(&mut bench, 2, "pager").await;
    bench.die().await;
    bench.start().await;
    assert_eq!(reported(&mut bench).await, []);
}

/// The other receiver would be called instead, but it is the same service.
#[tokio::test(start_paused = true)]
async fn nothing_is_known_of_a_service_with_two_receivers() {
    for (twin, count) in [("a", 0), ("b", 1)] {
        let pager = Scripted::new(|_| Answer::Take).confirming("a");
        let other = Scripted::new(|_| Answer::Take).known_by(twin);
        let mut bench = Bench::new(&[("pager", &pager), ("other", &other)]).await;
        // A page that is accepted at the moment of the start counts as earlier.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let id = paged(&mut bench, 1, "pager").await;
        confirm(&mut bench, &id).await;
        paged(&mut bench, 2, "pager").await;
        assert_eq!(reported(&mut bench).await.len(), count, "{twin}");
    }
}
