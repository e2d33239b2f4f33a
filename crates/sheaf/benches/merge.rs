//! # Merge: counters by merges, against updates and inserts
//!
//! `cargo bench -p sheaf-db --bench merge -- [ENGINE] [THREADS] [CALLS]` prints the median rate of
//! five rounds that take turns: all threads increment one counter by `update`, then by `merge`, and
//! insert a value of the same key; then each thread does so with a key of its own. An insert reads
//! nothing, so it is the limit for merges that do not read. Last come gets of a merged and of a
//! plain value.

#![allow(clippy::disallowed_methods, reason = "measuring needs the real clock")]
#![allow(clippy::cast_precision_loss, reason = "small numbers")]

use std::time::Instant;

use sheaf::{Builder, Keyspace, KeyspaceOptions, Result};

const ROUNDS: usize = 5;
const GETS: u64 = 200_000;
const KINDS: usize = 6;
const CALLS: [&str; KINDS / 2] = ["update", "merge", "insert"];

/// Makes a call of `kind`: a number below 3 is a call for the one key, the others are for a key of
/// the thread.
fn increment(counters: &Keyspace, kind: usize, thread: usize) -> Result<()> {
    let key = if kind < CALLS.len() { [0] } else { [u8::try_from(thread).unwrap_or(u8::MAX)] };
    let number = |old: Option<&[u8]>| old.and_then(|old| old.try_into().ok()).map_or(0, u64::from_le_bytes);
    match kind % CALLS.len() {
        0 => counters.update(key, |old| Some((number(old) + 1).to_le_bytes().to_vec())).map(drop),
        1 => counters.merge(key, 1_u64.to_le_bytes()),
        _ => counters.insert(key, 1_u64.to_le_bytes()),
    }
}

/// Returns the calls of all threads in a second.
fn rate(counters: &Keyspace, kind: usize, threads: usize, calls: usize) -> Result<f64> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let work = |thread| move || (0..calls).try_for_each(|_| increment(counters, kind, thread));
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(work(thread))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("a thread that counts"))
    })?;
    Ok((threads * calls) as f64 / began.elapsed().as_secs_f64())
}

fn get_time(keyspace: &Keyspace) -> Result<f64> {
    let began = Instant::now();
    for _ in 0..GETS {
        std::hint::black_box(keyspace.get([0])?);
    }
    Ok(began.elapsed().as_secs_f64() * 1e9 / GETS as f64)
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let engine = args.next().unwrap_or_else(|| "flex".to_owned());
    let threads = args.next().and_then(|text| text.parse().ok()).unwrap_or(8);
    let calls = args.next().and_then(|text| text.parse().ok()).unwrap_or(50_000);
    let dir = std::env::temp_dir().join(format!("sheaf-merge-{}", std::process::id()));
    let db = Builder::default().open(&dir)?;
    let counters = db.keyspace("counters", KeyspaceOptions::from(&*engine).merge_operator("add"))?;
    let plain = db.keyspace("plain", KeyspaceOptions::from(&*engine))?;
    plain.insert([0], [7; 8])?;
    let mut rates = [const { Vec::new() }; KINDS];
    for round in 0..ROUNDS {
        for turn in 0..KINDS {
            let kind = (round + turn) % KINDS;
            rates[kind].push(rate(&counters, kind, threads, calls)?);
        }
    }
    let medians = rates.each_mut().map(|rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    for (kind, median) in medians.iter().enumerate() {
        let (call, update) = (CALLS[kind % CALLS.len()], medians[kind - kind % CALLS.len()]);
        let keys = if kind < CALLS.len() { "one key" } else { "a key for each thread" };
        let times = median / update;
        println!("{engine}, {threads} threads: {call}, {keys}: {median:.0} a second, {times:.2} x update");
    }
    let (merged, plain) = (get_time(&counters)?, get_time(&plain)?);
    println!("{engine}: get of a merged value {merged:.0} ns, of a plain value {plain:.0} ns");
    db.close()?;
    drop(std::fs::remove_dir_all(&dir));
    Ok(())
}
