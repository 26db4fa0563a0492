mod lists;
mod refusal;
mod server;

use std::path::Path;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;
use stepwatch_model::time::Ts;
use stepwatch_model::{Cause, Kind, Observation, Severity, Suspect, Target, clause};
use stepwatch_respond::effect::{Action, Effect, Notification, TimelineEntry};
use stepwatch_respond::incident::{End, Ended, IncidentRecord, State};
use stepwatch_respond::matcher::Labels;
use stepwatch_wire::Cursor;
use tempfile::TempDir;

use super::rows::text_of;
use super::sql::{query_as, query_scalar};
use super::*;
use crate::notify::Ring;
use crate::notify::tests::page;
use crate::outbox::tests::suppressed as suppressed_record;

pub(super) use server::{on_postgres, postgres_url};

fn suspect(target: Target, words: &str) -> Suspect {
    Suspect::new(target, Observation::Stated { words: words.into() })
}

async fn open() -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("deep/er/alerter.db")).await.unwrap();
    (dir, store)
}

/// Runs SQL on a separate connection.
pub(super) async fn by_hand(store: &Store, sql: &'static str) -> Result<()> {
    if store.inner.lease.is_some() {
        return server::by_hand(store.path(), sql).await.map(drop);
    }
    in_file(store.path(), sql).await
}

/// Like [`by_hand`], on the database that a file is or stands for.
pub(crate) async fn by_hand_at(path: &Path, sql: &'static str) -> Result<()> {
    if server::by_hand(path, sql).await? { Ok(()) } else { in_file(path, sql).await }
}

async fn in_file(path: &Path, sql: &'static str) -> Result<()> {
    let mut connection = SqliteConnectOptions::new().filename(path).connect().await?;
    sqlx::raw_sql(sql).execute(&mut connection).await?;
    Ok(())
}

/// Reopens the store after every handle was dropped. The last tasks with a handle may still run.
pub(crate) async fn reopen(path: &Path) -> Store {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        match Store::open(path).await {
            Ok(store) => return store,
            Err(StoreError::InUse { .. }) if std::time::Instant::now() < deadline => {
                tokio::task::yield_now().await;
            }
            Err(err) => panic!("{err}"),
        }
    }
}

pub(crate) fn incident(id: &str, state: State) -> IncidentRecord {
    IncidentRecord {
        id: id.to_owned(),
        run: "llama-70b".into(),
        nodes: Vec::new(),
        cause: Cause::Numerics,
        kind: Kind::Nonfinite,
        severity: Severity::Page,
        state,
        signal: "loss".into(),
        start_step: 100,
        opened_step: 101,
        detected_step: 101,
        end_step: (state == State::Resolved).then_some(140),
        value: f64::NAN,
        expected: 2.1,
        score: f64::INFINITY,
        summary: clause!("loss is NaN").into(),
        suspects: vec![suspect(Target::rank(17, None), "first to show it")],
        opened_at: Ts(1_795_227_404_000),
        resolved_at: (state == State::Resolved).then_some(Ts(1_795_227_504_000)),
        acked_by: None,
        acked_at: None,
        level: 1,
        next_at: Some(Ts(1_795_227_704_000)),
        flaps: 0,
        labels: Labels::new(),
        suppression: None,
        end: None,
        named: None,
        asked_anew_at: None,
        standstill: None,
    }
}

fn put(record: IncidentRecord) -> Effect {
    Effect::Incident(Box::new(record))
}

fn post(n: Notification) -> Effect {
    Effect::Notify(Box::new(n))
}

pub(crate) fn said(id: &str, at: i64, what: &str) -> Effect {
    let entry = TimelineEntry::new(id, Ts(at), "engine", what.into());
    Effect::Timeline(entry)
}

fn effects(effects: Vec<Effect>) -> Commit {
    Commit { effects, at: Ts(1_795_227_405_000), ..Commit::default() }
}

/// Compares the debug output, because `NaN` is not equal to itself.
fn same(a: &IncidentRecord, b: &IncidentRecord) -> bool {
    format!("{a:?}") == format!("{b:?}")
}

async fn states(store: &Store, id: &str) -> Vec<(u32, DeliveryState)> {
    store.deliveries(id).await.unwrap().into_iter().map(|d| (d.seq, d.state)).collect()
}

#[tokio::test]
async fn a_batch_survives_whole() {
    let (dir, store) = open().await;
    let n = page("chat", 1, Action::Trigger);
    let mut commit = effects(vec![
        put(incident(&n.incident, State::Open)),
        said(&n.incident, 1, "opened"),
        said(&n.incident, 2, "level 1 notified"),
        post(n.clone()),
    ]);
    commit.state = vec![("run/a".into(), Some(vec![1, 2, 3])), ("run/b".into(), Some(vec![4]))];
    commit.cursors = vec![("node1:9765".into(), Cursor { boot: "b00t".into(), seq: 42 })];
    store.commit(&commit).await.unwrap();
    let path = store.path().to_owned();
    drop(store);

    let store = reopen(&path).await;
    let back = store.incident(&n.incident).await.unwrap().unwrap();
    assert!(same(&back, &incident(&n.incident, State::Open)), "{back:?}");
    let timeline = store.timeline(&n.incident).await.unwrap();
    assert_eq!(
        timeline.iter().map(|t| (t.at.0, t.what.as_str())).collect::<Vec<_>>(),
        [(1, "opened"), (2, "level 1 notified")]
    );
    assert_eq!(
        store.load_state().await.unwrap(),
        [("run/a".into(), vec![1, 2, 3]), ("run/b".into(), vec![4])]
    );
    assert_eq!(store.load_cursors().await.unwrap(), commit.cursors);
    assert_eq!(states(&store, &n.incident).await, [(1, DeliveryState::Pending)]);

    // The next batch replaces, appends and deletes.
    let mut commit =
        effects(vec![put(incident(&n.incident, State::Resolved)), said(&n.incident, 3, "resolved")]);
    commit.state = vec![("run/a".into(), None), ("run/b".into(), Some(vec![5]))];
    commit.cursors = vec![("node1:9765".into(), Cursor { boot: "b00t".into(), seq: 43 })];
    store.commit(&commit).await.unwrap();
    assert_eq!(store.load_state().await.unwrap(), [("run/b".into(), vec![5])]);
    assert_eq!(store.load_cursors().await.unwrap()[0].1.seq, 43);
    assert_eq!(store.timeline(&n.incident).await.unwrap().len(), 3);
    assert_eq!(store.incident(&n.incident).await.unwrap().unwrap().state, State::Resolved);
    store.close().await;
    drop(dir);
}

#[tokio::test]
async fn a_cursor_that_does_not_read_costs_only_itself() {
    let (_dir, store) = open().await;
    let mut commit = effects(vec![]);
    commit.cursors = ["a", "b"].map(|s| (s.into(), Cursor { boot: "b00t".into(), seq: 42 })).into();
    store.commit(&commit).await.unwrap();
    let sql = "UPDATE cursors SET cursor = 'nonsense' WHERE source = 'a'";
    by_hand(&store, sql).await.unwrap();
    assert_eq!(store.load_cursors().await.unwrap(), commit.cursors[1..]);
}

#[tokio::test]
async fn a_batch_that_was_not_committed_left_nothing() {
    let (_dir, store) = open().await;
    let n = page("chat", 1, Action::Trigger);
    let mut commit = effects(vec![put(incident(&n.incident, State::Open)), post(n.clone())]);
    commit.state = (0..2000).map(|i| (format!("run/{i}"), Some(vec![0; 64]))).collect();
    // Dropped after this number of polls, as when a runtime is shut down.
    for polls in 1..40 {
        let mut future = Box::pin(store.commit(&commit));
        let mut finished = false;
        for _ in 0..polls {
            tokio::select! {
                biased;
                r = &mut future => { r.unwrap(); finished = true; break; }
                () = tokio::task::yield_now() => {}
            }
        }
        drop(future);
        if finished {
            break;
        }
        let parts = store.load_state().await.unwrap().len();
        let incidents = store.incidents(&Filter::default()).await.unwrap().len();
        assert!((parts, incidents) == (0, 0) || (parts, incidents) == (2000, 1), "{parts} {incidents}");
    }
    store.commit(&commit).await.unwrap();
    assert_eq!(store.load_state().await.unwrap().len(), 2000);
}

#[tokio::test]
async fn filters_and_prefixes() {
    let (_dir, store) = open().await;
    let mut records = Vec::new();
    for (i, state) in [State::Open, State::Acknowledged, State::Resolved].into_iter().enumerate() {
        let mut r = incident(&format!("01J9AB{i}"), state);
        r.opened_at = Ts(r.opened_at.0 + i as i64 * 1000);
        r.run = format!("run-{i}");
        r.severity = if i == 1 { Severity::Ticket } else { Severity::Page };
        r.nodes = (0..i).map(|n| format!("gpu-{n}")).collect();
        records.push(r);
    }
    let mut longer = incident("01J9AB00", State::Resolved);
    longer.opened_at = Ts(1);
    records.push(longer);
    store.commit(&effects(records.into_iter().map(put).collect())).await.unwrap();

    let ids = async |filter: Filter| -> Vec<String> {
        store.incidents(&filter).await.unwrap().into_iter().map(|r| r.id).collect()
    };
    assert_eq!(ids(Filter::default()).await, ["01J9AB2", "01J9AB1", "01J9AB0", "01J9AB00"], "latest first");
    assert_eq!(ids(Filter { state: Some(State::Open), ..Filter::default() }).await, ["01J9AB0"]);
    assert_eq!(ids(Filter { unresolved: true, ..Filter::default() }).await, ["01J9AB1", "01J9AB0"]);
    // A person resolved the incident while it fired; later it stops firing.
    let mut firing = incident("01J9AB2", State::Resolved);
    firing.end = Some(End {
        how: Ended::Person,
        by: Some("ann".into()),
        silent_since: None,
        reopens_at: Some(Ts(1_795_228_000_000)),
        verdict: None,
    });
    let not_over = Filter { unresolved: true, and_firing: true, ..Filter::default() };
    for reopens in [true, false] {
        if !reopens {
            firing.end = firing.end.map(|end| End { reopens_at: None, ..end });
        }
        store.commit(&effects(vec![put(firing.clone())])).await.unwrap();
        assert_eq!(ids(not_over.clone()).await.contains(&firing.id), reopens);
        assert_eq!(store.incident("01J9AB2").await.unwrap().unwrap().end, firing.end);
        assert_eq!(ids(Filter { unresolved: true, ..Filter::default() }).await, ["01J9AB1", "01J9AB0"]);
    }
    let mut as_it_was = incident("01J9AB2", State::Resolved);
    (as_it_was.run, as_it_was.nodes) = ("run-2".into(), vec!["gpu-0".into(), "gpu-1".into()]);
    store.commit(&effects(vec![put(as_it_was)])).await.unwrap();
    assert_eq!(ids(Filter { run: Some("run-1".into()), ..Filter::default() }).await, ["01J9AB1"]);
    assert_eq!(ids(Filter { node: Some("gpu-1".into()), ..Filter::default() }).await, ["01J9AB2"]);
    assert_eq!(ids(Filter { node: Some("gpu-0".into()), ..Filter::default() }).await, ["01J9AB2", "01J9AB1"]);
    assert_eq!(ids(Filter { node: Some("gpu".into()), ..Filter::default() }).await, [""; 0]);
    assert_eq!(ids(Filter { severity: Some(Severity::Ticket), ..Filter::default() }).await, ["01J9AB1"]);
    assert_eq!(ids(Filter { limit: Some(1), ..Filter::default() }).await, ["01J9AB2"]);

    let id = async |prefix: &str| store.incident(prefix).await.map(|r| r.map(|r| r.id));
    assert_eq!(id("01J9AB2").await.unwrap().as_deref(), Some("01J9AB2"));
    assert_eq!(
        id("01J9AB0").await.unwrap().as_deref(),
        Some("01J9AB0"),
        "the whole id wins over a longer one"
    );
    assert_eq!(id("01J9AB00").await.unwrap().as_deref(), Some("01J9AB00"));
    assert_eq!(id("nobody").await.unwrap(), None);
    assert_eq!(id("").await.unwrap(), None);
    assert_eq!(id("%").await.unwrap(), None);
    assert!(matches!(id("01J9").await, Err(StoreError::AmbiguousId(_))));
}

#[tokio::test]
async fn an_operator_can_read_the_columns() {
    let (_dir, store) = open().await;
    let mut r = incident("01J9", State::Open);
    r.value = 27.25;
    store.commit(&effects(vec![put(r)])).await.unwrap();
    let sql =
        "SELECT run, kind, severity, state, opened_at, next_at FROM incidents WHERE state <> 'resolved'";
    let row: (String, String, String, String, String, String) =
        query_as(sql).fetch_one(&store.inner.readers).await.unwrap();
    let at = |s: &str| s.to_owned();
    let (opened, next) = (at("2026-11-21T02:16:44.000Z"), at("2026-11-21T02:21:44.000Z"));
    let text = |s: &str| s.to_owned();
    assert_eq!(row, (text("llama-70b"), text("nonfinite"), text("page"), text("open"), opened, next));
}

#[tokio::test]
async fn one_file_one_alerter() {
    let (_dir, store) = open().await;
    let err = Store::open(store.path()).await.unwrap_err();
    assert!(matches!(err, StoreError::InUse { .. }));
    assert!(err.to_string().contains(&format!("process {}", std::process::id())), "{err}");
    let path = store.path().to_owned();
    store.close().await;
    reopen(&path).await;
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let (_dir, store) = open().await;
    let sql = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
               VALUES (9999, 'future', TRUE, X'00', 0)";
    by_hand(&store, sql).await.unwrap();
    let path = store.path().to_owned();
    store.close().await;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let err = loop {
        match Store::open(&path).await.unwrap_err() {
            StoreError::InUse { .. } if std::time::Instant::now() < deadline => {
                tokio::task::yield_now().await
            }
            err => break err,
        }
    };
    assert!(err.to_string().contains("newer stepwatch-alerter (schema 9999, this one knows "), "{err}");
}

#[tokio::test]
async fn a_file_that_is_no_database_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("alerter.db");
    std::fs::write(&path, "not a database, but long enough to look at".repeat(100)).unwrap();
    let err = Store::open(&path).await.unwrap_err();
    assert!(err.to_string().contains("alerter.db"), "{err}");
}

#[tokio::test]
async fn the_same_notification_twice_is_one() {
    let (_dir, store) = open().await;
    let n = page("chat", 1, Action::Trigger);
    store.commit(&effects(vec![post(n.clone()), post(n.clone())])).await.unwrap();
    store.commit(&effects(vec![post(n.clone())])).await.unwrap();
    assert_eq!(states(&store, &n.incident).await, [(1, DeliveryState::Pending)]);
}

#[tokio::test]
async fn newer_words_replace_older_ones() {
    use DeliveryState::{Ambiguous, Pending, Superseded};
    let (_dir, store) = open().await;
    let n = |seq, action| post(page("chat", seq, action));
    let id = page("chat", 1, Action::Trigger).incident;
    let all = vec![n(1, Action::Trigger), n(2, Action::Update), n(3, Action::Update), n(4, Action::Ack)];
    store.commit(&effects(all)).await.unwrap();
    assert_eq!(states(&store, &id).await, [(1, Pending), (2, Superseded), (3, Pending), (4, Pending)]);
    // Only a trigger replaces a trigger.
    store.commit(&effects(vec![n(5, Action::Resolve)])).await.unwrap();
    assert_eq!(states(&store, &id).await[..3], [(1, Pending), (2, Superseded), (3, Superseded)]);
    store.commit(&effects(vec![n(6, Action::Trigger)])).await.unwrap();
    assert_eq!(states(&store, &id).await[0], (1, Superseded));

    // Another lane of the same incident is independent.
    let other = page("pd", 1, Action::Trigger);
    store.commit(&effects(vec![post(other.clone())])).await.unwrap();
    // A message that may have arrived is not replaced, except an update by a page.
    let claim = store.claim(&id, "pd", true, Ts(0)).await.unwrap().unwrap();
    let unknown =
        DeliveryOutcome::Retry { next: Ts(i64::MAX / 2), ambiguous: true, pause: None, error: "?".into() };
    store.settle(&claim.notification, &unknown, None, Ts(0)).await.unwrap();
    store.commit(&effects(vec![post(page("pd", 2, Action::Trigger))])).await.unwrap();
    let pd = store.deliveries(&id).await.unwrap().into_iter().filter(|d| d.receiver == "pd");
    assert_eq!(pd.map(|d| (d.state, d.next_at)).collect::<Vec<_>>(), [(Ambiguous, None), (Pending, None)]);
}

#[tokio::test]
async fn a_ticket_cannot_take_the_place_of_a_page() {
    let (_dir, store) = open().await;
    let first = page("chat", 1, Action::Trigger);
    let mut second = page("chat", 2, Action::Trigger);
    second.page = false;
    store.commit(&effects(vec![post(first.clone()), post(second)])).await.unwrap();
    assert_eq!(states(&store, &first.incident).await[0], (1, DeliveryState::Pending));
}

#[tokio::test]
async fn outcomes_are_reported_until_they_are_recorded() {
    let (_dir, store) = open().await;
    let n = page("chat", 1, Action::Trigger);
    store.commit(&effects(vec![post(n.clone())])).await.unwrap();
    assert_eq!(store.unreported().await.unwrap(), []);
    let claim = store.claim(&n.incident, "chat", false, Ts(5)).await.unwrap().unwrap();
    assert!(store.claim(&n.incident, "chat", false, Ts(5)).await.unwrap().is_none(), "claimed twice");
    store.settle(&claim.notification, &DeliveryOutcome::Delivered, Some("memo"), Ts(6)).await.unwrap();
    let unreported = store.unreported().await.unwrap();
    assert_eq!(unreported.len(), 1);
    assert_eq!((unreported[0].idem_key.as_str(), &unreported[0].failed), (n.idem_key.as_str(), &None));
    store.commit(&Commit { reported: vec![n.idem_key], ..Commit::default() }).await.unwrap();
    assert_eq!(store.unreported().await.unwrap(), []);
}

#[tokio::test]
async fn a_row_that_does_not_read_does_not_stop_its_lane() {
    let (_dir, store) = open().await;
    let n = |seq| post(page("chat", seq, Action::Ack));
    let id = page("chat", 1, Action::Trigger).incident;
    store.commit(&effects(vec![n(1), n(2)])).await.unwrap();
    let sql = "UPDATE outbox SET notification = '{\"kind\":\"of the future\"}' WHERE seq = 1";
    by_hand(&store, sql).await.unwrap();
    let claim = store.claim(&id, "chat", false, Ts(0)).await.unwrap().unwrap();
    assert_eq!(claim.notification.seq, 2);
    assert_eq!(states(&store, &id).await, [(1, DeliveryState::Failed), (2, DeliveryState::Attempting)]);
}

#[tokio::test]
async fn pruning_forgets_what_is_over_and_old() {
    let (_dir, store) = open().await;
    let n = page("chat", 1, Action::Trigger);
    let old = incident(&n.incident, State::Resolved);
    let all =
        vec![put(old), put(incident("01OPEN", State::Open)), said(&n.incident, 1, "x"), post(n.clone())];
    store.commit(&effects(all)).await.unwrap();
    assert_eq!(store.prune(Ts(1_795_227_504_000)).await.unwrap(), 0, "not older");
    assert_eq!(store.prune(Ts(1_795_227_504_001)).await.unwrap(), 1);
    assert_eq!(store.incidents(&Filter::default()).await.unwrap().len(), 1);
    assert_eq!(store.timeline(&n.incident).await.unwrap(), []);
    assert_eq!(store.deliveries(&n.incident).await.unwrap(), []);
}

#[tokio::test]
async fn a_commit_without_effects_does_not_wait_for_the_disk() {
    let (_dir, store) = open().await;
    let mode = async || -> i64 {
        let mut writer = store.inner.writer.lock().await;
        query_scalar("PRAGMA synchronous").fetch_one(writer.kept().unwrap()).await.unwrap()
    };
    let (full, normal) = (2, 1);
    assert_eq!(mode().await, full);
    let state = vec![("k".to_owned(), Some(vec![1]))];
    store.commit(&Commit { state: state.clone(), ..Commit::default() }).await.unwrap();
    assert_eq!(mode().await, normal);
    let with_effect = Commit { state, ..effects(vec![said("01", 1, "x")]) };
    store.commit(&with_effect).await.unwrap();
    assert_eq!(mode().await, full);
}

#[test]
fn text_times_sort_as_time_does() {
    let times = [-1, 0, 999, 1000, 1_795_227_404_123].map(|ms| text_of(Ts(ms)));
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(times[4], "2026-11-21T02:16:44.123Z");
}

/// The query for many lanes and the decision about one agree; otherwise a lane that is due and held
/// would be examined forever.
#[tokio::test]
async fn what_is_due_is_not_held() {
    let rows = [
        (Action::Trigger, false),
        (Action::Trigger, true),
        (Action::Update, false),
        (Action::Update, true),
        (Action::Ack, true),
    ];
    // Some recipients may have a message: the memory has them, and the message waits.
    let befores = ["unheard", "sent", "partly"];
    let (_dir, store) = open().await;
    let mut effects = Vec::new();
    for suppressed in [false, true] {
        for before in befores {
            for n in 0..1_usize << rows.len() {
                let id = format!("01LANE-{suppressed}-{before}-{n:02}");
                let record = incident(&id, State::Open);
                effects.push(put(if suppressed { suppressed_record(record) } else { record }));
                let of = |seq: u32, action, despite_suppression| {
                    let idem_key = format!("{id}/{seq}");
                    let base = page("chat", seq, action);
                    post(Notification { incident: id.clone(), idem_key, despite_suppression, ..base })
                };
                effects.extend((before == "sent").then(|| of(1, Action::Trigger, false)));
                let chosen = rows.iter().enumerate().filter(|(bit, _)| n >> bit & 1 == 1);
                effects.extend(chosen.map(|(bit, (action, despite))| of(bit as u32 + 2, *action, *despite)));
            }
        }
    }
    store.commit(&Commit { effects, at: Ts(1000), ..Commit::default() }).await.unwrap();
    let sql = "UPDATE outbox SET state = 'delivered' WHERE seq = 1; \
               INSERT INTO lanes (incident, receiver, memory, updated_ms) \
               SELECT id, 'chat', '{}', 1000 FROM incidents WHERE id LIKE '01LANE-%-partly-%'";
    by_hand(&store, sql).await.unwrap();
    let due = store.due_lanes("chat", Ts(2000), 1000).await.unwrap();
    assert!(due.len() > 64, "{}", due.len());
    let due: Vec<String> = due.into_iter().map(|lane| lane.incident).collect();
    for suppressed in [false, true] {
        for before in befores {
            for n in 1..1_usize << rows.len() {
                let id = format!("01LANE-{suppressed}-{before}-{n:02}");
                let claimed = store.claim(&id, "chat", false, Ts(2000)).await.unwrap().is_some();
                assert_eq!(claimed, due.contains(&id), "{id}");
                assert!(claimed || suppressed, "{id}");
                // A receiver that was notified also gets the acknowledgement.
                let ack = n >> (rows.len() - 1) & 1 == 1;
                assert!(claimed || !ack || before == "unheard", "{id}");
            }
        }
    }
}

/// Sources take turns, and so do the users within each, so that a flood of one does not delay
/// others.
#[tokio::test]
async fn lanes_are_due_in_turn() {
    let (_dir, store) = open().await;
    let mut effects = Vec::new();
    let mut add = |id: &str, source: &str, reporter: &str| {
        let base = page("chat", 1, Action::Trigger);
        let (source, reporter) = (source.to_owned(), reporter.to_owned());
        effects.push(put(incident(id, State::Open)));
        effects.push(post(Notification {
            incident: id.to_owned(),
            idem_key: format!("{id}/chat/1"),
            source,
            reporter,
            ..base
        }));
    };
    (0..5).for_each(|n| add(&format!("1{n}"), "evil", "user 1 of evil"));
    (0..3).for_each(|n| add(&format!("2{n}"), "evil", "user 2 of evil"));
    add("30", "node1", "user 3 of node1");
    add("31", "node1", "user 4 of node1");
    add("40", "", "");
    store.commit(&Commit { effects, at: Ts(1000), ..Commit::default() }).await.unwrap();
    let due = store.due_lanes("chat", Ts(2000), 1000).await.unwrap();
    let due: Vec<String> = due.into_iter().map(|lane| lane.incident).collect();
    assert_eq!(due, ["10", "30", "40", "20", "31", "11", "21", "12", "22", "13", "14"]);
}

/// Half of the mailboxes had the page when a silence began: they get the resolution.
#[tokio::test]
async fn whoever_has_a_part_of_it_hears_the_end() {
    for some_have_it in [false, true] {
        let (_dir, store) = open().await;
        let n = page("mail", 1, Action::Trigger);
        let begun = vec![put(incident(&n.incident, State::Open)), post(n.clone())];
        store.commit(&effects(begun)).await.unwrap();
        let claim = store.claim(&n.incident, "mail", true, Ts(2000)).await.unwrap().unwrap();
        let outcome =
            DeliveryOutcome::Retry { next: Ts(2000), ambiguous: false, pause: None, error: "later".into() };
        let memory = some_have_it.then_some("{}");
        store.settle(&claim.notification, &outcome, memory, Ts(2000)).await.unwrap();
        let over = suppressed_record(incident(&n.incident, State::Resolved));
        let ended = vec![put(over), post(page("mail", 2, Action::Resolve))];
        store.commit(&effects(ended)).await.unwrap();
        let next = store.claim(&n.incident, "mail", true, Ts(3000)).await.unwrap();
        let next = next.map(|claim| claim.notification.action);
        assert_eq!(next, some_have_it.then_some(Action::Resolve));
    }
}

/// Two receivers of one service: each call has another number, which is stored before it is sent
/// and is never reused.
#[tokio::test]
async fn a_call_is_numbered_before_it_is_sent() {
    let (_dir, store) = open().await;
    let n = page("one", 1, Action::Trigger);
    let begun =
        vec![put(incident(&n.incident, State::Open)), post(n.clone()), post(page("two", 1, Action::Trigger))];
    store.commit(&effects(begun)).await.unwrap();
    let ring = |number| Some(Ring { number, page: true });
    let claim = async |receiver| {
        let means = Means { wakes: true, numbered: true };
        store.claim_by(&n.incident, receiver, means, Ts(9)).await.unwrap().unwrap()
    };
    let one = claim("one").await;
    assert_eq!((one.ring, one.unsure.len()), (ring(1), 0));
    assert_eq!(claim("two").await.ring, ring(2));
    // The next process cannot exclude that the message arrived.
    store.recover_attempts().await.unwrap();
    let again = claim("one").await;
    assert_eq!((again.ring, again.ambiguous), (ring(1), true));
    store.settle(&again.notification, &DeliveryOutcome::Delivered, Some("1"), Ts(10)).await.unwrap();
    store.commit(&effects(vec![post(page("one", 2, Action::Trigger))])).await.unwrap();
    assert_eq!(claim("one").await.ring, ring(3));
    // A person answers while it is unknown whether the third call arrived.
    store.recover_attempts().await.unwrap();
    let taken = vec![put(incident(&n.incident, State::Acknowledged)), post(page("one", 3, Action::Ack))];
    store.commit(&effects(taken)).await.unwrap();
    let answer = claim("one").await;
    assert_eq!(answer.notification.action, Action::Ack);
    assert_eq!((answer.ring, answer.unsure), (None, vec![Ring { number: 3, page: true }]));
}
