//! Incidents that ended before a receiver that notifies people once per key could be called.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::*;

const ID: &str = "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C";

/// An incident ended while the receiver was down: with and without an attempt, which may have
/// arrived.
#[tokio::test(start_paused = true)]
async fn nobody_is_rung_for_what_ended_during_an_outage() {
    use DeliveryState::{Delivered, Superseded};
    for (tried, ambiguous) in [(true, true), (true, false), (false, false)] {
        let up = Arc::new(AtomicBool::new(false));
        let is_up = Arc::clone(&up);
        let failure = move || Answer::Fail(Failure::transient("500", ambiguous));
        let answer = move |_| if is_up.load(SeqCst) { Answer::Take } else { failure() };
        let pager = Scripted::new(answer).ringing();
        let mut bench = Bench::new(&[("pager", &pager)]).await;
        bench.incident(ID, State::Open).await;
        if tried {
            bench.post([page("pager", 1, Action::Trigger)]).await;
            pager.attempted(3).await;
        }
        let mut resolve = page("pager", 2, Action::Resolve);
        resolve.message.status = Status::Resolved;
        let mut end = vec![Effect::Incident(Box::new(incident(ID, State::Resolved)))];
        let call = (!tried).then(|| page("pager", 1, Action::Trigger));
        end.extend(call.into_iter().chain([resolve]).map(|n| Effect::Notify(Box::new(n))));
        bench.commit(end).await;
        up.store(true, SeqCst);
        let ends = if tried { Delivered } else { Superseded };
        while bench.states(ID).await != [Superseded, ends] {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let actions: Vec<_> = pager.seen().iter().map(|s| s.action).collect();
        assert_eq!(actions, if tried { vec![Action::Resolve] } else { vec![] }, "{ambiguous}");
        let deliveries = bench.life().store.deliveries(ID).await.unwrap();
        assert_eq!(deliveries[0].error.as_deref(), Some("over before it could be sent"));
    }
}
