//! Charts within messages: a message is sent without a chart that is late.

use super::*;

/// The longest time that a person may wait for a chart.
const SOON: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_page_does_not_wait_for_its_chart() {
    let (mail, hook) = (Scripted::new(|_| Answer::Take).embedding(), Scripted::new(|_| Answer::Take));
    let mut bench = Bench::new(&[("mail", &mail), ("hook", &hook)]).await;
    let began = Instant::now();
    bench.post([page("mail", 1, Action::Trigger), page("hook", 1, Action::Trigger)]).await;
    for _ in 0..2 {
        assert_eq!(bench.feedback().await.outcome, Outcome::Delivered);
    }
    for receiver in [&mail, &hook] {
        let (_, at) = receiver.attempts()[0];
        assert!(at - began < SOON, "{:?}", at - began);
    }
    assert!(hook.attempts()[0].1 <= mail.attempts()[0].1, "only the mail has a chart in it");
}
