//! # Overwriting: all pairs many times, one hot key, a counter

use std::time::{Duration, Instant};

use super::{SteadyLoad, fill, key, median};
use crate::CaseResult;
use crate::case::{ALL_ENGINES, CaseContext, FieldCase};
use crate::figure::FieldFigure;
use crate::machine::disk_bytes;

/// Rounds over all keys in the full form. The first third must be longer than the time before the
/// first merges of `delsm`, which are about six rounds.
const ROUNDS: u64 = 60;
/// Rounds in the short form: five in each third.
const SHORT_ROUNDS: u64 = 16;
/// Bytes of a value.
const VALUE: usize = 200;
/// Space for logs, prepared segments and checkpoints that does not grow with the data.
const FIXED_BYTES: f64 = 64e6;

pub(super) fn cases() -> Vec<FieldCase> {
    let case = |name, run| FieldCase { name, engines: ALL_ENGINES, short: &[], deadline_s: 300, run };
    vec![
        FieldCase { short: &["flex", "kreon"], ..case("overwrite-all", overwrite_all) },
        case("hot-key", hot_key),
        FieldCase { short: &["flex"], ..case("counter", counter) },
    ]
}

/// Overwrites all pairs repeatedly. Neither the time of a round nor the space may grow.
fn overwrite_all(context: &CaseContext) -> CaseResult {
    let (db, data) = context.open_data(64)?;
    let pairs = context.size(50_000, 200_000).min(200_000);
    let rounds = context.size(SHORT_ROUNDS, ROUNDS);
    let live = (pairs * (8 + VALUE as u64)) as f64;
    let (mut times, mut spaces) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let began = Instant::now();
        fill(&data, 0..pairs, VALUE)?;
        times.push(began.elapsed().as_secs_f64());
        spaces.push(disk_bytes(&context.db()) as f64);
    }
    // The first round overwrites nothing. The medians of the first and the last third of the other
    // rounds are compared: one pause of the device takes longer than a round of the short form.
    let third = (times.len() - 1) / 3;
    let growth = median(&times[times.len() - third..]) / median(&times[1..=third]);
    FieldFigure::new("time of a round: last third / first", growth, "x").at_most(1.25).slack(2.0).report();
    let peak = spaces.iter().copied().fold(0.0, f64::max);
    FieldFigure::new("space at most", peak / 1e6, "MB").at_most((4.0 * live + FIXED_BYTES) / 1e6).report();
    drop(data);
    Ok(db.close()?)
}

/// Writes one key repeatedly, in a keyspace with other keys that do not change.
fn hot_key(context: &CaseContext) -> CaseResult {
    let load = SteadyLoad {
        name: "write of one key",
        seconds: context.size(6, 60),
        fill: &|data| fill(data, 0..10_000, VALUE),
        step: &|data, _| data.insert(key(5_000), [7; VALUE]),
    };
    let (hot, _) = load.run(context)?;
    let dir = context.db();
    let took = crate::machine::wait_until(Duration::from_secs(10), || disk_bytes(&dir) < 100 << 20);
    FieldFigure::new("space within 10 s of the end", disk_bytes(&dir) as f64 / 1e6, "MB")
        .at_most(105.0)
        .report();
    FieldFigure::new("space reached its bound after", took.as_secs_f64(), "s").report();
    Ok(hot.close()?)
}

/// Counts in two threads. No update may be lost.
fn counter(context: &CaseContext) -> CaseResult {
    let (db, data) = context.open_data(64)?;
    let end = Instant::now() + Duration::from_secs(context.size(3, 20));
    let count = |data: &sheaf::Keyspace| -> sheaf::Result<u64> {
        let mut done = 0;
        while Instant::now() < end {
            data.update(b"hits", |old| {
                let old = old.map_or(0, |bytes| {
                    u64::from_le_bytes(bytes.try_into().expect("a number that this case wrote"))
                });
                Some((old + 1).to_le_bytes().to_vec())
            })?;
            done += 1;
        }
        Ok(done)
    };
    let other = data.clone();
    let steps = std::thread::scope(|scope| {
        let helper = scope.spawn(|| count(&other));
        let own = count(&data)?;
        Ok::<_, sheaf::Error>(own + helper.join().expect("counting does not panic")?)
    })?;
    let stored = data.get(b"hits")?.expect("a counter that was written");
    let stored = u64::from_le_bytes(stored[..].try_into()?);
    FieldFigure::new("counted / written", stored as f64 / steps as f64, "x").at_least(1.0).report();
    FieldFigure::new("steps", steps as f64, "").report();
    drop((other, data));
    Ok(db.close()?)
}
