//! # One long snapshot under updates

use std::time::Duration;

use super::{fill, key};
use crate::Outcome;
use crate::case::{ALL, Case, Context};
use crate::figure::Figure;
use crate::machine::{disk_bytes, wait_until};

/// Bytes of a value.
const VALUE: usize = 1_000;
/// Updates under the snapshot, in multiples of the live data.
const TIMES: u64 = 5;

pub(super) fn cases() -> Vec<Case> {
    let short = &["flex"];
    vec![Case { name: "long-snapshot", engines: ALL, short, deadline_s: 180, run: held }]
}

fn held(context: &Context) -> Outcome {
    let (db, data) = context.open_data(64)?;
    let pairs = context.size(50_000, 100_000).min(200_000);
    let live = (pairs * (8 + VALUE as u64)) as f64;
    fill(&data, 0..pairs, VALUE)?;
    let snapshot = db.snapshot()?;
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..TIMES * pairs {
        data.insert(key(random.u64(..pairs)), [4; VALUE])?;
    }
    let old = snapshot.keyspace("data")?.get(key(pairs / 2))?.ok_or("the snapshot lost a key")?;
    assert_eq!(&old[..8], &(pairs / 2).to_le_bytes()[..], "the snapshot has the value of its time");
    drop((old, snapshot));
    let dir = context.db();
    let took = wait_until(Duration::from_secs(30), || disk_bytes(&dir) as f64 <= 2.0 * live);
    let times = disk_bytes(&dir) as f64 / live;
    let figure = Figure::new("space 30 s after the release / live data", times, "x");
    // The bound is that of `flex`; the log engines clean down to `Builder::space_limit`.
    figure.at_most(2.0).report();
    Figure::new("space reached its bound after", took.as_secs_f64(), "s").report();
    drop(data);
    Ok(db.close()?)
}
