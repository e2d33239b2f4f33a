//! # Removal: keyspaces with most or all keys removed

use std::time::{Duration, Instant};

use sheaf::Keyspace;

use super::{SHORT_RUN_SLACK, fill, key};
use crate::CaseResult;
use crate::case::{ALL_ENGINES, CaseContext, FieldCase, ORDERED_ENGINES, RunSize};
use crate::figure::FieldFigure;
use crate::machine::{Latencies, cpu_seconds, disk_bytes, timed, wait_until};

/// Number of pairs in the cases that continue after the removal.
const PAIRS: u64 = 600_000;
/// One in this number of keys of the middle third is kept.
const KEPT_INTERVAL: u64 = 500;
/// Number of pairs in the case that removes all.
const EMPTIED_PAIRS: u64 = 200_000;
/// Number of keys removed in front of a seek.
const REMOVED_KEYS: u64 = 100_000;
const MB: f64 = 1e6;
/// One engine of each kind of files: journal and own files, store log with levels, store log.
const SPACE_SHORT: &[&str] = &["flex", "kreon", "flat"];

pub(super) fn cases() -> Vec<FieldCase> {
    let short = &["flex"];
    vec![
        FieldCase { name: "removed-all", engines: ALL_ENGINES, short, deadline_s: 300, run: removed_all },
        FieldCase {
            name: "removed-middle",
            engines: ALL_ENGINES,
            short,
            deadline_s: 300,
            run: removed_middle,
        },
        FieldCase {
            name: "removed-seek",
            engines: ORDERED_ENGINES,
            short: &["flex", "delsm"],
            deadline_s: 120,
            run: removed_seek,
        },
        FieldCase {
            name: "removed-space",
            engines: ALL_ENGINES,
            short: SPACE_SHORT,
            deadline_s: 180,
            run: space,
        },
    ]
}

fn removed_all(context: &CaseContext) -> CaseResult {
    run_removal(context, |data| match data.capabilities()?.ordered {
        true => data.remove_range::<&[u8]>(..).map(drop),
        false => data.clear(),
    })
}

fn removed_middle(context: &CaseContext) -> CaseResult {
    run_removal(context, |data| {
        let mut middle: Vec<u64> = (PAIRS / 3..PAIRS * 2 / 3).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut middle);
        middle.iter().filter(|&&number| number % KEPT_INTERVAL != 0).try_for_each(|&n| data.remove(key(n)))
    })
}

/// Loads, removes with `remove`, closes, opens, inserts 1,000 pairs and closes again.
fn run_removal(context: &CaseContext, remove: impl Fn(&Keyspace) -> sheaf::Result<()>) -> CaseResult {
    // The index of `flat-ordered` has all keys in memory: 16 MiB cannot hold 600,000.
    let budgets: &[u64] = match (context.form, context.engine.as_str()) {
        (RunSize::Short, _) => &[16],
        (_, "flat-ordered") => &[64],
        _ => &[64, 16],
    };
    for &mib in budgets {
        let (db, data) = context.open_data(mib)?;
        fill(&data, 0..PAIRS, 100)?;
        remove(&data)?;
        let before = cpu_seconds();
        drop(data);
        db.close()?;
        let (db, data) = context.open_data(mib)?;
        let mut longest = Duration::ZERO;
        for number in 0..1_000 {
            let began = Instant::now();
            data.insert(key(PAIRS / 2 + number), b"small")?;
            longest = longest.max(began.elapsed());
        }
        drop(data);
        db.close()?;
        let cpu = cpu_seconds() - before;
        FieldFigure::new(format!("{mib} MiB: CPU of close, open, 1000 puts, close"), cpu, "s")
            .at_most(2.0)
            .slack(2.0)
            .report();
        let longest = longest.as_secs_f64() * 1e3;
        let figure = FieldFigure::new(format!("{mib} MiB: longest insert"), longest, "ms");
        figure.at_most(100.0).slack(SHORT_RUN_SLACK).report();
        std::fs::remove_dir_all(context.db())?;
    }
    Ok(())
}

/// Measures seeks into a range of removed keys in an open database.
fn removed_seek(context: &CaseContext) -> CaseResult {
    let (db, data) = context.open_data(64)?;
    fill(&data, 0..2 * REMOVED_KEYS, 100)?;
    let seek = |name: &str, bound: f64| -> CaseResult {
        let mut latencies = Latencies::default();
        for number in 0..21 {
            let began = Instant::now();
            let found = data.range(&key(number)[..]..)?.next().transpose()?;
            latencies.add(began.elapsed());
            let found = found.map(|(key, _)| key.to_vec());
            if found.as_deref() != Some(&key(REMOVED_KEYS)[..]) {
                return Err(format!("{name}: found {found:?}").into());
            }
        }
        let figure = FieldFigure::new(format!("seek {name}"), latencies.quantile(0.5), "us");
        figure.at_most(bound).slack(SHORT_RUN_SLACK).report();
        Ok(())
    };
    let snapshot = db.snapshot()?;
    (0..REMOVED_KEYS).try_for_each(|number| data.remove(key(number)))?;
    seek("at once, with a snapshot", 1_000.0)?;
    if context.form != RunSize::Short {
        std::thread::sleep(Duration::from_secs(5));
        seek("after 5 s, with a snapshot", 1_000.0)?;
    }
    drop(snapshot);
    std::thread::sleep(Duration::from_secs(5));
    seek("5 s after the snapshot", 50.0)?;
    fill(&data, 0..REMOVED_KEYS, 100)?;
    (0..REMOVED_KEYS).rev().try_for_each(|number| data.remove(key(number)))?;
    seek("at once", 1_000.0)?;
    std::thread::sleep(Duration::from_secs(5));
    seek("after 5 s", 50.0)?;
    drop(data);
    Ok(db.close()?)
}

/// Writes each pair three times, removes all, and waits for the space with the database open. The
/// first run has ascending keys. The second has keys in random order and a large budget.
fn space(context: &CaseContext) -> CaseResult {
    let mut order: Vec<u64> = (0..EMPTIED_PAIRS).collect();
    emptied(context, 64, &order)?;
    if context.form != RunSize::Short {
        std::fs::remove_dir_all(context.db())?;
        fastrand::Rng::with_seed(3).shuffle(&mut order);
        emptied(context, 1_024, &order)?;
    }
    Ok(())
}

fn emptied(context: &CaseContext, mib: u64, order: &[u64]) -> CaseResult {
    let (db, data) = context.open_data(mib)?;
    for _ in 0..3 {
        fill(&data, order.iter().copied(), 300)?;
    }
    order.iter().try_for_each(|&number| data.remove(key(number)))?;
    let limit = 16.0 * MB;
    let dir = context.db();
    let took = wait_until(Duration::from_secs(10), || disk_bytes(&dir) as f64 <= limit);
    if context.form != RunSize::Short {
        // The space must not grow again.
        std::thread::sleep(Duration::from_secs(10).saturating_sub(took));
    }
    let disk = disk_bytes(&dir) as f64 / MB;
    FieldFigure::new("space 10 s after all was removed", disk, "MB").at_most(16.0).report();
    FieldFigure::new("space reached its bound after", took.as_secs_f64(), "s").report();
    let mut latencies = Latencies::default();
    for _ in 0..5 {
        let began = Instant::now();
        let count = data.iter()?.count();
        latencies.add(began.elapsed());
        if count != 0 {
            return Err(format!("{count} pairs after all were removed").into());
        }
    }
    let figure = FieldFigure::new("iter().count()", latencies.quantile(0.5) / 1e3, "ms");
    figure.at_most(1.0).slack(SHORT_RUN_SLACK).report();
    drop(data);
    let (ms, closed) = timed(|| db.close());
    FieldFigure::new("close", ms, "ms").report();
    Ok(closed?)
}
