//! Tests of the lists of incidents and receivers.

use super::*;

#[tokio::test]
async fn what_nobody_has_comes_first_and_a_page_of_it_is_cut_out() {
    let (_dir, store) = open().await;
    let rows = [
        ("a", State::Acknowledged, Severity::Page),
        ("b", State::Open, Severity::Ticket),
        ("c", State::Open, Severity::Page),
        ("d", State::Open, Severity::Info),
        ("e", State::Resolved, Severity::Page),
        ("f", State::Open, Severity::Page),
    ];
    let mut records = Vec::new();
    for (i, (id, state, severity)) in rows.into_iter().enumerate() {
        let mut record = incident(id, state);
        record.opened_at = Ts(record.opened_at.0 + i as i64 * 1000);
        record.severity = severity;
        record.acked_by = (state == State::Acknowledged).then(|| "ann".to_owned());
        records.push(put(record));
    }
    store.commit(&effects(records)).await.unwrap();
    let ids = async |filter: &Filter| -> String {
        store.incidents(filter).await.unwrap().into_iter().map(|r| r.id).collect()
    };
    let urgent = Filter { order: Order::Urgent, ..Filter::default() };
    let resolved_at = incident("e", State::Resolved).resolved_at.unwrap();
    for (filter, want) in [
        (urgent.clone(), "fcbdae"),
        (Filter { unresolved: true, limit: Some(2), offset: 1, ..urgent.clone() }, "cb"),
        (Filter { unresolved: true, no_info: true, ..urgent.clone() }, "fcba"),
        (Filter { acked_by: Some("ann".into()), ..urgent.clone() }, "a"),
        (Filter { resolved_since: Some(resolved_at), ..Filter::default() }, "e"),
        (Filter { resolved_since: Some(Ts(resolved_at.0 + 1)), ..Filter::default() }, ""),
        (Filter { offset: 4, ..Filter::default() }, "ba"),
    ] {
        assert_eq!(ids(&filter).await, want, "{filter:?}");
    }
    let unanswered =
        Filter { state: Some(State::Open), unresolved: true, no_info: true, ..Filter::default() };
    assert_eq!(store.count_incidents(&unanswered).await.unwrap(), 3);
    assert_eq!(store.count_incidents(&Filter { limit: Some(1), ..Filter::default() }).await.unwrap(), 6);
}

#[tokio::test]
async fn how_the_messages_to_a_receiver_fare() {
    let (_dir, store) = open().await;
    assert!(store.receiver_states().await.unwrap().is_empty());
    let first = page("chat", 1, Action::Trigger);
    let waits = page("pager", 1, Action::Trigger);
    let record = incident(&first.incident, State::Open);
    store.commit(&effects(vec![put(record), post(first), post(waits)])).await.unwrap();
    by_hand(
        &store,
        "UPDATE outbox SET state = 'delivered', done_at = '2026-11-21T02:17:00Z' WHERE receiver = 'chat'",
    )
    .await
    .unwrap();
    by_hand(&store, "UPDATE outbox SET error = 'no route' WHERE receiver = 'pager'").await.unwrap();
    let states = store.receiver_states().await.unwrap();
    let (chat, pager) = (&states["chat"], &states["pager"]);
    assert_eq!(
        (chat.waiting, chat.oldest, chat.delivered_at.as_deref()),
        (0, None, Some("2026-11-21T02:17:00Z"))
    );
    assert_eq!((pager.waiting, pager.delivered_at.as_deref(), pager.failed), (1, None, 0));
    assert!(pager.oldest.is_some() && pager.error.as_ref().is_some_and(|(_, error)| error == "no route"));
}
