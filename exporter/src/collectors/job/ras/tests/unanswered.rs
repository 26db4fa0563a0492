//! Ranks that do not answer, as facts for a start that hangs.

use super::*;

fn numbers(all: &[f64]) -> Value {
    Value::List(all.iter().copied().map(Value::Number).collect())
}

#[test]
fn ranks_that_do_not_answer_twice_are_told_with_their_hosts() {
    let mut poller = Poller::new(true);
    poller.fake.set(|job| job.missing = vec![2, 6]);
    assert!(poller.at(0).1.is_empty(), "one poll may miss a process");
    let mut told = Vec::new();
    for i in 1..12u64 {
        told.extend(poller.at(i * 10).1);
    }
    // Once, and again after a minute.
    let [first, second] = &told[..] else { panic!("{told:?}") };
    assert_eq!((first.kind, first.name.as_deref(), first.code), (Kind::Health, Some("ras"), Some(1)));
    assert_eq!(first.extra["ranks"], numbers(&[2.0, 6.0]));
    assert_eq!(
        (&first.extra["comm_size"], &first.extra["unanswered"]),
        (&Value::Number(8.0), &Value::Number(2.0))
    );
    let hosts = ["127.0.0.1", "192.0.2.9"].map(|host| Value::Text(host.into()));
    assert_eq!(first.extra["hosts"], Value::List(hosts.into()));
    assert_eq!([first, second].map(|e| &e.extra["seconds"]), [&Value::Number(10.0), &Value::Number(70.0)]);
    poller.fake.set(|job| job.missing = vec![]);
    let over = poller.at(120).1;
    assert_eq!(
        over.iter().map(|e| (e.name.as_deref(), e.code)).collect::<Vec<_>>(),
        [(Some("ras"), Some(0))]
    );
}
