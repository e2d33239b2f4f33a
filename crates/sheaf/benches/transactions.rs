//! # Transactions: their cost next to that of a compare-and-swap
//!
//! `cargo bench -p sheaf-db --bench transactions -- [ENGINE] [PAIRS]` prints, for one thread, the
//! median time of each call over rounds that take turns, and its ratio to a compare-and-swap. A
//! call reads a random key of a resident keyspace and writes it.

#![allow(clippy::disallowed_methods, reason = "measuring needs the real clock")]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "small numbers")]

use std::time::Instant;

use sheaf::{Builder, Database, Keyspace, KeyspaceOptions, Result};

const ROUNDS: usize = 31;
const CALLS: u64 = 20_000;
const NAMES: [&str; 5] =
    ["compare-and-swap", "transaction", "transact", "update", "transaction that reads a range"];

fn key(number: u64, pairs: u64) -> [u8; 8] {
    // Neighbouring numbers are far apart.
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % pairs).to_be_bytes()
}

/// Makes one call, the `kind`-th of `NAMES`.
fn call(kind: usize, db: &Database, keyspace: &Keyspace, key: [u8; 8], value: &[u8]) -> Result<()> {
    match kind {
        0 => {
            let old = keyspace.get(key)?;
            assert!(keyspace.compare_and_swap(key, old.as_deref(), Some(value))?);
            Ok(())
        }
        1 => {
            let tx = db.transaction()?;
            assert!(tx.get(keyspace, key)?.is_some());
            tx.insert(keyspace, key, value)?;
            tx.commit()
        }
        2 => db.transact(|tx| {
            assert!(tx.get(keyspace, key)?.is_some());
            tx.insert(keyspace, key, value)
        }),
        3 => keyspace.update(key, |_| Some(value.to_vec())).map(drop),
        _ => {
            let tx = db.transaction()?;
            assert!(tx.range(keyspace, key..)?.next().transpose()?.is_some());
            tx.insert(keyspace, key, value)?;
            tx.commit()
        }
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let engine = args.next().unwrap_or_else(|| "flex".to_owned());
    let pairs: u64 = args.next().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let dir = std::env::temp_dir().join(format!("sheaf-transactions-{}", std::process::id()));
    let db = Builder::default().open(&dir)?;
    let keyspace = db.keyspace("calls", KeyspaceOptions::default().engine(&engine))?;
    for number in 0..pairs {
        keyspace.insert(number.to_be_bytes(), [7; 100])?;
    }
    let kinds = if keyspace.capabilities()?.ordered { NAMES.len() } else { NAMES.len() - 1 };
    let mut times = vec![Vec::new(); kinds];
    for round in 0..ROUNDS {
        for turn in 0..kinds {
            let kind = (round + turn) % kinds;
            let began = Instant::now();
            for number in 0..CALLS {
                call(kind, &db, &keyspace, key(number + round as u64, pairs), &[round as u8; 100])?;
            }
            times[kind].push(began.elapsed().as_secs_f64() * 1e6 / CALLS as f64);
        }
    }
    let medians = times.iter_mut().map(|times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    let medians: Vec<f64> = medians.collect();
    for (name, median) in NAMES.iter().zip(&medians) {
        println!("{engine}: {name}: {median:.2} us, {:.2} x a compare-and-swap", median / medians[0]);
    }
    db.close()?;
    drop(std::fs::remove_dir_all(&dir));
    Ok(())
}
