//! # Expiry: the cost of a put with a time to live, and the rate of the removal
//!
//! `cargo bench -p sheaf-db --bench expiry -- [ENGINE] [PAIRS]` prints, for one thread, the median
//! time of a put over rounds that take turns: in a keyspace without expiry, with expiry but without
//! a time, and with a time to live. Then it lets PAIRS pairs expire at once and prints how many of
//! them the background removes in a second, while the thread waits.

#![allow(clippy::disallowed_methods, reason = "measuring needs the real clock")]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "small numbers")]

use std::time::{Duration, Instant, SystemTime};

use sheaf::{Builder, Database, Expiry, Keyspace, KeyspaceOptions, Result};

const ROUNDS: usize = 21;
const CALLS: u64 = 20_000;
const NAMES: [&str; 3] = ["plain put", "put without a time", "put with a time to live"];
/// Pairs of one batch while the keyspace is filled.
const BATCH: u64 = 1000;

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes() // neighbours are far apart
}

fn measure_puts(spaces: &[Keyspace; 3], engine: &str) -> Result<()> {
    let mut times = [const { Vec::new() }; 3];
    for round in 0..ROUNDS {
        for turn in 0..3 {
            let kind = (round + turn) % 3;
            let began = Instant::now();
            for number in 0..CALLS {
                let (key, value) = (key(number + round as u64 * CALLS), [round as u8; 100]);
                match kind {
                    2 => spaces[2].insert_with_ttl(key, value, Duration::from_secs(3600))?,
                    _ => spaces[kind].insert(key, value)?,
                }
            }
            times[kind].push(began.elapsed().as_secs_f64() * 1e6 / CALLS as f64);
        }
    }
    let medians = times.each_mut().map(|times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    for (name, median) in NAMES.iter().zip(medians) {
        println!("{engine}: {name}: {median:.2} us, {:.2} x a plain put", median / medians[0]);
    }
    Ok(())
}

fn measure_removal(db: &Database, engine: &str, pairs: u64) -> Result<()> {
    let jobs = db.keyspace("jobs", KeyspaceOptions::from(engine).expiry())?;
    let end = SystemTime::now() + Duration::from_secs(2 + pairs / 50_000);
    for first in (0..pairs).step_by(BATCH as usize) {
        let mut batch = db.batch();
        for number in first..pairs.min(first + BATCH) {
            batch.insert_with_expiry(&jobs, key(number), [7; 100], Expiry::At(end));
        }
        batch.commit()?;
    }
    let before = db.stats().expiry.removed_pairs;
    let wait = end.duration_since(SystemTime::now()).unwrap_or_default();
    println!("{engine}: {pairs} pairs expire in {:.1} s", wait.as_secs_f64());
    std::thread::sleep(wait);
    let began = Instant::now();
    while db.stats().expiry.removed_pairs - before < pairs {
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = began.elapsed().as_secs_f64();
    println!("{engine}: {:.0} expired pairs a second removed ({took:.2} s)", pairs as f64 / took);
    assert!(jobs.is_empty()?);
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let engine = args.next().unwrap_or_else(|| "flex".to_owned());
    let pairs: u64 = args.next().and_then(|text| text.parse().ok()).unwrap_or(400_000);
    let dir = std::env::temp_dir().join(format!("sheaf-expiry-{}", std::process::id()));
    let db = Builder::default().open(&dir)?;
    let plain = db.keyspace("plain", KeyspaceOptions::from(&*engine))?;
    let permanent = db.keyspace("permanent", KeyspaceOptions::from(&*engine).expiry())?;
    let expiring = db.keyspace("expiring", KeyspaceOptions::from(&*engine).expiry())?;
    measure_puts(&[plain, permanent, expiring], &engine)?;
    measure_removal(&db, &engine, pairs)?;
    db.close()?;
    drop(std::fs::remove_dir_all(&dir));
    Ok(())
}
