//! The async functions on tokio: results and cancellation.

#![cfg(feature = "tokio")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use sheaf::asynchronous::{AsyncDatabase, AsyncKeyspace};
use sheaf::{Database, Durability, Error, KeyspaceOptions};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).max_blocking_threads(8).build().expect("a runtime")
}

async fn open(dir: &tempfile::TempDir, engine: &str) -> (AsyncDatabase, AsyncKeyspace) {
    let builder = Database::builder().durability(Durability::Sync);
    let db = AsyncDatabase::open_with(builder, dir.path()).await.expect("it opens");
    let options = KeyspaceOptions::default().engine(engine);
    let pairs = db.keyspace("pairs", options).await.expect("the keyspace opens");
    (db, pairs)
}

/// Polls a future once and drops it.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_cancelled_write_is_whole_or_absent() {
    let dir = tempfile::tempdir().expect("a directory");
    runtime().block_on(async {
        let (db, pairs) = open(&dir, "flex").await;
        for number in 0..200_u32 {
            let mut batch = db.batch();
            let key = number.to_be_bytes();
            batch.insert(pairs.blocking(), [&key[..], b"a"].concat(), "x");
            batch.insert(pairs.blocking(), [&key[..], b"b"].concat(), "x");
            if number % 2 == 0 {
                assert!(poll_once(db.commit(batch)).is_pending());
            } else {
                drop(db.commit(batch)); // never polled
            }
        }
        db.close().await.expect("it closes");
        // Calls that were still waiting for a thread of the pool found the database closed.
        let (db, pairs) = open(&dir, "flex").await;
        for number in 0..200_u32 {
            let key = number.to_be_bytes();
            let halves = [b"a", b"b"].map(|half| [&key[..], half].concat());
            let found = pairs.multi_get(&halves).await.expect("it reads");
            assert_eq!(found[0], found[1], "half of a batch");
            assert!(number % 2 == 0 || found[0].is_none(), "a future without a poll has no effect");
        }
        db.close().await.expect("it closes");
    });
}

#[test]
fn a_cancelled_next_loses_no_pair() {
    let dir = tempfile::tempdir().expect("a directory");
    runtime().block_on(async {
        let (db, pairs) = open(&dir, "flex").await;
        let mut batch = db.batch();
        for number in 0..3000_u32 {
            batch.insert(pairs.blocking(), number.to_be_bytes(), "x");
        }
        db.commit(batch).await.expect("it commits");
        let (mut iter, mut expected) = (pairs.iter().await.expect("it iterates"), 0_u32);
        let mut is_over = false;
        while !is_over {
            let pair = match poll_once(iter.next()) {
                Poll::Ready(pair) => pair,
                Poll::Pending => iter.next().await,
            };
            match pair {
                Some(pair) => {
                    assert_eq!(*pair.expect("it reads").0, expected.to_be_bytes());
                    expected += 1;
                }
                None => is_over = true,
            }
        }
        assert_eq!(expected, 3000);
        assert!(iter.next().await.is_none());
        drop(iter);
        db.close().await.expect("it closes");
    });
}

#[test]
fn verbs_answer_like_those_that_block() {
    let dir = tempfile::tempdir().expect("a directory");
    runtime().block_on(async {
        for engine in sheaf::engines() {
            let (db, pairs) = open(&dir, "flex").await;
            let pairs = match engine {
                "flex" => pairs,
                other => db.keyspace(other, other).await.expect("the keyspace opens"),
            };
            pairs.insert("a", "1").await.expect("it writes");
            let then = db.snapshot().await.expect("a snapshot");
            assert_eq!(pairs.insert_if_absent("a", "2").await.expect("it writes"), Some("1".into()));
            assert!(pairs.compare_and_swap("a", Some(b"1"), Some(b"3")).await.expect("it writes"));
            let appended = pairs.update("a", |old| Some([old.unwrap_or(b""), b"4"].concat())).await;
            assert_eq!(appended.expect("it writes"), Some("34".into()));
            assert_eq!(pairs.get("a").await.expect("it reads"), Some("34".into()));
            let then = then.keyspace(&pairs.blocking().name()).expect("it is there");
            assert_eq!(then.get("a").await.expect("it reads"), Some("1".into()));
            pairs.remove("a").await.expect("it writes");
            assert!(pairs.is_empty().await.expect("it reads"));
            db.close().await.expect("it closes");
            assert!(matches!(pairs.insert("a", "1").await, Err(Error::Closed)));
        }
    });
}

#[test]
fn a_rename_is_whole_or_absent_if_it_is_cancelled() {
    let dir = tempfile::tempdir().expect("a directory");
    runtime().block_on(async {
        let (db, pairs) = open(&dir, "flex").await;
        pairs.insert("a", "1").await.expect("it writes");
        pairs.rename("second").await.expect("it renames");
        assert_eq!(pairs.blocking().name(), "second");
        db.rename_keyspace("second", "third").await.expect("it renames");
        assert_eq!(pairs.blocking().name(), "third");
        let taken = db.rename_keyspace("third", "third").await;
        assert!(matches!(taken, Err(Error::KeyspaceExists { .. })), "{taken:?}");
        let missing = db.rename_keyspace("second", "fourth").await;
        assert!(matches!(missing, Err(Error::KeyspaceNotFound { .. })), "{missing:?}");
        drop(pairs.rename("never")); // never polled
        assert!(poll_once(pairs.rename("pairs")).is_pending());
        db.close().await.expect("it closes");
        let db = AsyncDatabase::open(dir.path()).await.expect("it opens");
        let names: Vec<String> = db.blocking().keyspaces().into_iter().map(|info| info.name).collect();
        assert!(names == ["pairs"] || names == ["third"], "{names:?}");
        let found = db.open_keyspace(&names[0]).await.expect("it opens").expect("it is there");
        assert_eq!(found.get("a").await.expect("it reads"), Some("1".into()));
        drop(found);
        db.close().await.expect("it closes");
    });
}

#[test]
fn futures_can_be_sent_to_other_threads() {
    fn check<F: Future + Send>(_: Pin<Box<F>>) {}
    let dir = tempfile::tempdir().expect("a directory");
    runtime().block_on(async {
        let (db, pairs) = open(&dir, "flex").await;
        check(Box::pin(pairs.get("a")));
        check(Box::pin(pairs.insert("a", "b")));
        check(Box::pin(pairs.range("a".."b")));
        check(Box::pin(db.commit(db.batch())));
        check(Box::pin(db.snapshot()));
        check(Box::pin(pairs.rename("b")));
        check(Box::pin(db.rename_keyspace("a", "b")));
        let mut iter = pairs.iter().await.expect("it iterates");
        check(Box::pin(iter.next()));
        drop(iter);
        db.close().await.expect("it closes");
    });
}
