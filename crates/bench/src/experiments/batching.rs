//! # Batching: the ways to share syncs of FlatStore, compared (§3.3, Fig. 11 and 12)
//!
//! Each writer puts pairs of 8 + 8 bytes and keeps several commits in flight. When their number
//! reaches the requested one, it waits for the oldest. A round runs all modes before the next round
//! begins, and every other round reverses their order.
//!
//! ```text
//!   submit -> ... `flight` tickets ... -> wait for the oldest: that is its latency
//! ```
//!
//! The size of a batch is the number of commits divided by the number of sync rounds.

use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ::sheaf::{CommitTicket, Database, Durability, GroupCommitMode, Keyspace, KeyspaceOptions};
use hdrhistogram::Histogram;

use crate::Result;
use crate::args;
use crate::keys::permute;
use crate::measure::median;
use crate::run_dir::RunDir;

/// Disk space that a database may use.
const DISK_BYTES: u64 = 8 << 30;
/// Number of different keys.
const PAIRS: u64 = 1_000_000;

/// Figures of one phase.
struct PhaseResult {
    per_second: f64,
    mean_us: f64,
    p99_us: f64,
    mean_batch: f64,
}

/// Measures all modes and prints a table.
pub(crate) fn run(options: &args::BatchingArgs) -> Result<()> {
    let place = RunDir::new(&options.dir.path, DISK_BYTES)?;
    println!(
        "| durability | writers | in flight | batching | commits/s | mean µs | p99 µs | commits a round |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    // Durable commits run first: write-back and discards of the buffered ones would slow them down.
    for durability in [Durability::Sync, Durability::Buffer] {
        for flight in &options.flight {
            for threads in &options.threads {
                row(options, &place, durability, *threads, *flight)?;
            }
        }
    }
    Ok(())
}

fn row(
    options: &args::BatchingArgs,
    place: &RunDir,
    durability: Durability,
    threads: u64,
    flight: u64,
) -> Result<()> {
    let mut figures: [Vec<PhaseResult>; GroupCommitMode::ALL.len()] = Default::default();
    for round in 0..options.rounds {
        let mut ways: Vec<usize> = (0..GroupCommitMode::ALL.len()).collect();
        if round % 2 == 1 {
            ways.reverse();
        }
        for way in ways {
            let dir = place.fresh("batching")?;
            let db = Database::builder().group_commit_mode(GroupCommitMode::ALL[way]).open(&dir)?;
            let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(options.subject.name()))?;
            figures[way].push(phase(&db, &keyspace, durability, threads, flight, options.phase)?);
            drop(keyspace);
            db.close()?;
        }
    }
    for (way, figures) in GroupCommitMode::ALL.iter().zip(&figures) {
        let of = |field: fn(&PhaseResult) -> f64| {
            median(&figures.iter().map(field).collect::<Vec<_>>()).unwrap_or_default()
        };
        println!(
            "| {durability:?} | {threads} | {flight} | {way:?} | {:.0} | {:.1} | {:.0} | {:.1} |",
            of(|f| f.per_second),
            of(|f| f.mean_us),
            of(|f| f.p99_us),
            of(|f| f.mean_batch)
        );
    }
    Ok(())
}

/// Runs one phase of all writers.
fn phase(
    db: &Database,
    keyspace: &Keyspace,
    durability: Durability,
    threads: u64,
    flight: u64,
    time: Duration,
) -> Result<PhaseResult> {
    let stop = AtomicBool::new(false);
    let start = Barrier::new(usize::try_from(threads)? + 1);
    let before = db.stats().sync_rounds;
    let (took, parts) = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|thread| {
                let (stop, start) = (&stop, &start);
                scope.spawn(move || {
                    start.wait();
                    writer(db, keyspace, durability, thread, flight, stop)
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let parts: Vec<Result<Histogram<u64>>> = writers
            .into_iter()
            .map(|writer| writer.join().map_err(|_| "a writer panicked".into()).and_then(|part| part))
            .collect();
        (began.elapsed(), parts)
    });
    let mut all = Histogram::<u64>::new(3)?;
    for part in parts {
        all.add(part?)?;
    }
    let rounds = db.stats().sync_rounds - before;
    Ok(PhaseResult {
        per_second: all.len() as f64 / took.as_secs_f64(),
        mean_us: all.mean() / 1e3,
        p99_us: all.value_at_quantile(0.99) as f64 / 1e3,
        mean_batch: all.len() as f64 / rounds.max(1) as f64,
    })
}

/// Runs one writer. Returns the latencies of its commits in nanoseconds.
fn writer(
    db: &Database,
    keyspace: &Keyspace,
    durability: Durability,
    thread: u64,
    flight: u64,
    stop: &AtomicBool,
) -> Result<Histogram<u64>> {
    let mut latencies = Histogram::<u64>::new(3)?;
    let mut tickets: VecDeque<(Instant, CommitTicket)> = VecDeque::new();
    let mut number = thread << 32;
    let wait = |(began, ticket): (Instant, CommitTicket), latencies: &mut Histogram<u64>| -> Result<()> {
        ticket.wait()?;
        Ok(latencies.record(u64::try_from(began.elapsed().as_nanos())?)?)
    };
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let key = (permute(number) % PAIRS).to_be_bytes();
        let began = Instant::now();
        let mut batch = db.batch();
        batch.durability(durability).insert(keyspace, key, number.to_be_bytes());
        tickets.push_back((began, batch.submit()?));
        if tickets.len() as u64 >= flight
            && let Some(oldest) = tickets.pop_front()
        {
            wait(oldest, &mut latencies)?;
        }
    }
    tickets.into_iter().try_for_each(|ticket| wait(ticket, &mut latencies))?;
    Ok(latencies)
}
