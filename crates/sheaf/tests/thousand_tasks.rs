//! A thousand tasks: the number of threads is bounded, and no task blocks the runtime. The only
//! test of this program, since it counts the threads of the process.
//!
//! `cargo test --release -p sheaf-db --features tokio --test thousand_tasks -- --nocapture` prints
//! the figures.

#![cfg(feature = "tokio")]
#![allow(clippy::disallowed_methods, reason = "measures real time, with a thread of its own")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sheaf::asynchronous::{AsyncDatabase, AsyncKeyspace};
use sheaf::{Database, Durability};

const POOL_THREADS: usize = 8;
const WORKERS: usize = 2;

async fn open(dir: &tempfile::TempDir, engine: &str) -> (AsyncDatabase, AsyncKeyspace) {
    let builder = Database::builder().durability(Durability::Sync).background_threads(1);
    let db = AsyncDatabase::open_with(builder, dir.path()).await.expect("it opens");
    let pairs = db.keyspace("pairs", engine).await.expect("the keyspace opens");
    (db, pairs)
}

/// Returns the number of threads of this process.
fn thread_count() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("Threads:")).expect("the kernel counts");
    line.trim().parse().expect("a number")
}

/// Largest delay of a task that sleeps for a millisecond again and again, in microseconds.
async fn heartbeat(is_over: Arc<AtomicBool>) -> u64 {
    let mut largest = 0;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let late = began.elapsed().saturating_sub(Duration::from_millis(1));
        largest = largest.max(u64::try_from(late.as_micros()).unwrap_or(u64::MAX));
    }
    largest
}

/// Runs 1,000 tasks that write durably and read. Prints the figures.
fn a_thousand_tasks(engine: &'static str) {
    let dir = tempfile::tempdir().expect("a directory");
    let before = thread_count();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(POOL_THREADS)
        .enable_time()
        .build()
        .expect("a runtime");
    let (db, pairs) = runtime.block_on(open(&dir, engine));
    let idle = thread_count();
    let is_over = Arc::new(AtomicBool::new(false));
    let beat = runtime.spawn(heartbeat(Arc::clone(&is_over)));
    let most = Arc::new(AtomicU64::new(0));
    let watcher = {
        let (is_over, most) = (Arc::clone(&is_over), Arc::clone(&most));
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(thread_count() as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let began = Instant::now();
    let rounds = db.blocking().stats().sync_rounds;
    runtime.block_on(async {
        let tasks: Vec<_> = (0..1000_u32)
            .map(|task| {
                let pairs = pairs.clone();
                tokio::spawn(async move {
                    for round in 0..10_u32 {
                        let key = [task.to_be_bytes(), round.to_be_bytes()].concat();
                        pairs.insert(&key, vec![b'v'; 100]).await.expect("it writes");
                        let value = pairs.get(&key).await.expect("it reads");
                        assert_eq!(value.map(|value| value.len()), Some(100));
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task fails");
        }
    });
    let took = began.elapsed();
    is_over.store(true, Ordering::Relaxed);
    watcher.join().expect("it ends");
    let late = runtime.block_on(beat).expect("it ends");
    let rounds = db.blocking().stats().sync_rounds - rounds;
    println!(
        "{engine}: 10,000 durable inserts and gets in {} ms, {rounds} sync rounds; threads: {before} before, \
         {idle} idle, at most {} with the watcher; heartbeat late by at most {late} us",
        took.as_millis(),
        most.load(Ordering::Relaxed)
    );
    // The runtime, its pool, three threads of the database, the IPC socket, and the watcher.
    let limit = before + WORKERS + POOL_THREADS + 3 + 1 + 1;
    assert!(most.load(Ordering::Relaxed) <= limit as u64, "too many threads");
    assert!(late < 1_000_000, "a task blocked the runtime for {late} us");
    runtime.block_on(db.close()).expect("it closes");
}

#[test]
fn a_thousand_tasks_share_few_threads_and_block_no_other_task() {
    for engine in ["flat", "flex"] {
        a_thousand_tasks(engine);
    }
}
