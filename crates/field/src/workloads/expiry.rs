//! # Time series: inserts at the end, expiry by `remove_range`

use std::time::Duration;

use sheaf::Keyspace;

use super::{SteadyLoad, fill, key};
use crate::CaseResult;
use crate::case::{CaseContext, FieldCase, ORDERED_ENGINES};
use crate::figure::FieldFigure;
use crate::machine::{disk_bytes, wait_until};

/// Number of samples kept.
const KEPT_SAMPLES: u64 = 100_000;
/// Samples between two removals.
const STEP: u64 = 1_000;
/// Bytes of a sample.
const VALUE: usize = 100;

pub(super) fn cases() -> Vec<FieldCase> {
    let short = &["flex"];
    vec![FieldCase { name: "expiry", engines: ORDERED_ENGINES, short, deadline_s: 180, run: expiry }]
}

fn expiry(context: &CaseContext) -> CaseResult {
    let expire = |data: &Keyspace, step: u64| {
        let number = KEPT_SAMPLES + step;
        data.insert(key(number), [3; VALUE])?;
        if number.is_multiple_of(STEP) && number > KEPT_SAMPLES {
            data.remove_range(&key(0)[..]..&key(number - KEPT_SAMPLES)[..])?;
            let first = data.first()?.expect("samples that are kept").0;
            assert_eq!(&first[..], &key(number - KEPT_SAMPLES)[..], "older samples are removed");
        }
        Ok(())
    };
    let load = SteadyLoad {
        name: "insert and expire",
        seconds: context.size(6, 60),
        fill: &|data| fill(data, 0..KEPT_SAMPLES, VALUE),
        step: &expire,
    };
    let (series, _) = load.run(context)?;
    let live = (KEPT_SAMPLES * (8 + VALUE as u64)) as f64;
    let bound = 3.0 * live + 32e6;
    let dir = context.db();
    let took = wait_until(Duration::from_secs(10), || disk_bytes(&dir) as f64 <= bound);
    let disk = disk_bytes(&dir) as f64 / 1e6;
    FieldFigure::new("space within 10 s of the end", disk, "MB").at_most(bound / 1e6).report();
    FieldFigure::new("space reached its bound after", took.as_secs_f64(), "s").report();
    Ok(series.close()?)
}
