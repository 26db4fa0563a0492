//! Tests of a store that refuses writes: its errors, and its complete recovery.

use super::*;

/// Makes COMMIT fail for any insert into a timeline, as a full disk does.
const BREAK: &str = "CREATE TABLE creditors (id INTEGER PRIMARY KEY); \
    CREATE TABLE owed (id INTEGER REFERENCES creditors (id) DEFERRABLE INITIALLY DEFERRED); \
    CREATE TRIGGER owing AFTER INSERT ON timeline BEGIN INSERT INTO owed VALUES (1); END";
const MEND: &str = "DROP TRIGGER owing";

fn paged(seq: u32) -> Effect {
    Effect::Notify(Box::new(page("pd", seq, Action::Trigger)))
}

async fn entries(store: &Store) -> Vec<String> {
    store.timeline("01").await.unwrap().into_iter().map(|entry| entry.what).collect()
}

#[tokio::test]
async fn a_commit_that_fails_is_followed_by_commits_and_not_by_parts_of_it() {
    let (_dir, store) = open().await;
    store.commit(&effects(vec![said("01", 1, "before")])).await.unwrap();
    assert_eq!(store.refusal(), None);
    by_hand(&store, BREAK).await.unwrap();
    for _ in 0..3 {
        let err = store.commit(&effects(vec![said("01", 2, "lost?")])).await.unwrap_err();
        assert!(err.to_string().contains("FOREIGN KEY"), "{err}");
    }
    assert_eq!(entries(&store).await, ["before"]);
    let why = store.refusal().unwrap();
    assert!(why.contains("FOREIGN KEY") && !why.contains("alerter.db"), "{why}");

    // A smaller write fits, but the decision still waits, and the store still refuses it.
    store.touch(Ts(1_795_227_999_000)).await.unwrap();
    assert_eq!(store.alive_at().await.unwrap(), Some(Ts(1_795_227_999_000)), "seen by readers");
    assert!(store.refusal().is_some());

    by_hand(&store, MEND).await.unwrap();
    store.commit(&effects(vec![said("01", 2, "lost?")])).await.unwrap();
    assert_eq!(entries(&store).await, ["before", "lost?"]);
    assert_eq!(store.refusal(), None);
    let path = store.path().to_owned();
    drop(store);
    assert_eq!(entries(&reopen(&path).await).await, ["before", "lost?"]);
}

#[tokio::test]
async fn what_is_smaller_than_a_decision_refuses_until_anything_is_taken() {
    let (_dir, store) = open().await;
    by_hand(&store, "CREATE TRIGGER no BEFORE INSERT ON audit BEGIN SELECT RAISE(FAIL, 'no room'); END")
        .await
        .unwrap();
    let entry = Entry::new(Door::Api, "ann", "ack", "01");
    store.write_audit(&[entry]).await.unwrap_err();
    assert!(store.refusal().unwrap().contains("no room"));
    store.touch(Ts(1)).await.unwrap();
    assert_eq!(store.refusal(), None);
}

/// A disk that fills up during a transaction, by SQLite's own limit.
#[tokio::test]
async fn what_did_not_fit_is_committed_when_it_fits() {
    let (_dir, store) = open().await;
    {
        let mut writer = store.inner.writer.lock().await;
        let pages: i64 =
            query_scalar("PRAGMA max_page_count = 1").fetch_one(writer.kept().unwrap()).await.unwrap();
        assert!(pages > 1, "as many as there are");
    }
    let long = "x".repeat(100_000);
    let err = store.commit(&effects(vec![said("01", 1, &long)])).await.unwrap_err();
    assert!(err.to_string().contains("full"), "{err}");
    assert!(store.refusal().unwrap().contains("full"));
    // The limit belonged to the connection that is gone.
    store.commit(&effects(vec![said("01", 1, &long)])).await.unwrap();
    assert_eq!(entries(&store).await, [long]);
    assert_eq!(store.refusal(), None);
}

/// A request may be cancelled at any moment, also between BEGIN and COMMIT.
#[tokio::test]
async fn a_transaction_that_nobody_waits_for_any_more_holds_up_nobody() {
    let (_dir, store) = open().await;
    for polls in 1..40 {
        let commit = effects(vec![said("gone", polls, "half way")]);
        let mut half = std::pin::pin!(store.commit(&commit));
        for _ in 0..polls {
            if futures_util::poll!(half.as_mut()).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    store.commit(&effects(vec![said("01", 1, "whole")])).await.unwrap();
    assert_eq!(entries(&store).await, ["whole"]);
}

#[tokio::test]
async fn a_file_that_was_replaced_is_noticed() {
    let (dir, store) = open().await;
    store.touch(Ts(1)).await.unwrap();
    let copy = dir.path().join("copy");
    by_hand(&store, "PRAGMA wal_checkpoint(TRUNCATE)").await.unwrap();
    std::fs::copy(store.path(), &copy).unwrap();
    for end in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", store.path().display())).unwrap();
    }
    std::fs::rename(&copy, store.path()).unwrap();
    store.inner.writer.lock().await.lose();
    let err = store.touch(Ts(2)).await.unwrap_err();
    assert!(matches!(err, StoreError::NotInPlace { .. }), "{err}");
    assert!(store.refusal().unwrap().contains("replaced"));
}

#[tokio::test]
async fn a_store_of_which_what_is_to_be_sent_cannot_be_read_takes_nothing_of_the_engine() {
    let (_dir, store) = open().await;
    store.note_read(Some(&StoreError::Sql(sqlx::Error::PoolTimedOut)));
    let why = store.refusal().unwrap();
    assert!(why.contains("cannot be read"), "{why}");
    let err = store.commit(&effects(vec![said("01", 1, "late")])).await.unwrap_err().to_string();
    assert!(err.contains("cannot be read"), "{err}");
    // Other writes succeed, which does not end the refusal.
    store.touch(Ts(1)).await.unwrap();
    assert!(store.refusal().is_some());
    store.note_read(None);
    store.commit(&effects(vec![said("01", 1, "late")])).await.unwrap();
    assert_eq!((store.refusal(), entries(&store).await.len()), (None, 1));
}

#[tokio::test]
async fn a_page_that_nobody_would_find_again_is_not_taken() {
    let (_dir, store) = open().await;
    store.commit(&effects(vec![paged(1)])).await.unwrap();
    store.inner.finders.close().await;
    store.commit(&effects(vec![said("01", 1, "no page")])).await.unwrap();
    let taken = store.commit(&effects(vec![paged(2)])).await;
    assert_eq!(taken.is_ok(), store.epoch().is_some(), "PostgreSQL has what it committed: {taken:?}");
    assert!(store.refusal().unwrap().contains("cannot be read"));
}
