//! # One long snapshot under updates

use std::time::Duration;

use super::{fill, key};
use crate::CaseResult;
use crate::case::{ALL_ENGINES, CaseContext, FieldCase};
use crate::figure::FieldFigure;
use crate::machine::{disk_bytes, wait_until};

/// Bytes of a value.
const VALUE: usize = 1_000;
/// Updates under the snapshot, in multiples of the live data.
const UPDATE_FACTOR: u64 = 5;

pub(super) fn cases() -> Vec<FieldCase> {
    let short = &["flex"];
    vec![FieldCase {
        name: "long-snapshot",
        engines: ALL_ENGINES,
        short,
        deadline_s: 180,
        run: long_snapshot,
    }]
}

fn long_snapshot(context: &CaseContext) -> CaseResult {
    let (db, data) = context.open_data(64)?;
    let pairs = context.size(50_000, 100_000).min(200_000);
    let live = (pairs * (8 + VALUE as u64)) as f64;
    fill(&data, 0..pairs, VALUE)?;
    let snapshot = db.snapshot()?;
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..UPDATE_FACTOR * pairs {
        data.insert(key(random.u64(..pairs)), [4; VALUE])?;
    }
    let old = snapshot.keyspace("data")?.get(key(pairs / 2))?.ok_or("the snapshot lost a key")?;
    assert_eq!(&old[..8], &(pairs / 2).to_le_bytes()[..], "the snapshot has the value of its time");
    drop((old, snapshot));
    let dir = context.db();
    let took = wait_until(Duration::from_secs(30), || disk_bytes(&dir) as f64 <= 2.0 * live);
    let times = disk_bytes(&dir) as f64 / live;
    let figure = FieldFigure::new("space 30 s after the release / live data", times, "x");
    // The bound is that of `flex`. The engines of the store log collect down to
    // `Builder::space_limit`.
    figure.at_most(2.0).report();
    FieldFigure::new("space reached its bound after", took.as_secs_f64(), "s").report();
    drop(data);
    Ok(db.close()?)
}
