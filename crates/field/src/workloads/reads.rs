//! # Gets beyond the memory budget, with all data in the page cache

use std::time::{Duration, Instant};

use super::SHORT_RUN_SLACK;
use crate::CaseResult;
use crate::case::{CaseContext, FieldCase};
use crate::figure::FieldFigure;
use crate::machine::Latencies;

/// Bytes of a key and of a value.
const KEY: usize = 27;
const VALUE: usize = 127;
/// Threads that read.
const READERS: u64 = 2;
/// Engines whose index need not be in memory.
const BEYOND_MEMORY: &[&str] = &["flex", "kreon", "delsm", "cedrus"];

pub(super) fn cases() -> Vec<FieldCase> {
    let short = &["flex"];
    vec![FieldCase { name: "long-gets", engines: BEYOND_MEMORY, short, deadline_s: 300, run: gets }]
}

fn key(number: u64) -> [u8; KEY] {
    let mut key = [b'k'; KEY];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

fn gets(context: &CaseContext) -> CaseResult {
    let pairs = context.size(500_000, 8_000_000).min(8_000_000);
    let mib = pairs * (KEY + VALUE) as u64 / 5 / (1 << 20);
    let (db, data) = context.open_data(mib)?;
    (0..pairs).try_for_each(|number| data.insert(key(number), [6; VALUE]))?;
    drop(data);
    db.close()?;
    let (db, data) = context.open_data(mib)?;
    let length = Duration::from_secs(context.size(5, 60));
    let read = |seed: u64| -> sheaf::Result<Latencies> {
        let (mut random, mut latencies) = (fastrand::Rng::with_seed(seed), Latencies::default());
        let end = Instant::now() + length;
        loop {
            let began = Instant::now();
            if began >= end {
                return Ok(latencies);
            }
            let found = data.get(key(random.u64(..pairs)))?.is_some();
            assert!(found, "every key is there");
            latencies.add(began.elapsed());
        }
    };
    let mut all = Latencies::default();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|seed| scope.spawn(move || read(seed))).collect();
        for reader in readers {
            all.extend(reader.join().expect("reading does not panic")?);
        }
        Ok::<_, sheaf::Error>(())
    })?;
    FieldFigure::new("get: median", all.quantile(0.5), "us").report();
    FieldFigure::new("get: p99.9", all.quantile(0.999), "us").report();
    let longest = all.quantile(1.0) / 1e3;
    // The required value is that of the default engine.
    let figure = FieldFigure::new("get: longest", longest, "ms").slack(4.0 * SHORT_RUN_SLACK);
    if context.engine == "flex" { figure.at_most(5.0) } else { figure }.report();
    drop(data);
    Ok(db.close()?)
}
