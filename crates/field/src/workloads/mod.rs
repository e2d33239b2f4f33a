//! # Workloads: typical writes, reads and removals of real programs

mod expiry;
mod keyspaces;
mod overwrite;
mod queue;
mod reads;
mod removal;
mod snapshot;
mod values;

use std::time::Duration;

use sheaf::Keyspace;

use crate::case::FieldCase;
use crate::figure::FieldFigure;
use crate::machine::Periods;

/// Minimum rate of the last period, as a fraction of the rate of the first.
const MIN_STEADY_RATE: f64 = 0.9;
/// Relaxation of wall times in the short form: CI shares its machine with other work.
const SHORT_RUN_SLACK: f64 = 5.0;

pub(crate) fn cases() -> Vec<FieldCase> {
    let mut cases = removal::cases();
    cases.extend(queue::cases());
    cases.extend(overwrite::cases());
    cases.extend(expiry::cases());
    cases.extend(keyspaces::cases());
    cases.extend(snapshot::cases());
    cases.extend(values::cases());
    cases.extend(reads::cases());
    cases
}

/// Returns the key of `number`: 8 bytes in the order of the numbers.
fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Inserts the pairs of `numbers` with values of `len` bytes.
fn fill(data: &Keyspace, numbers: impl Iterator<Item = u64>, len: usize) -> sheaf::Result<()> {
    let mut value = vec![0x5a; len];
    for number in numbers {
        let stamp = number.to_le_bytes();
        let count = stamp.len().min(len);
        value[..count].copy_from_slice(&stamp[..count]);
        data.insert(key(number), &value)?;
    }
    Ok(())
}

/// Number of parts of a run with compared rates.
const TENTHS: usize = 10;
/// Number of parts of a run with counted operations: a part is one second in the full form.
const PERIODS: u32 = 60;

/// Runs `step` for `seconds` and reports its rate. The last tenth must reach [`MIN_STEADY_RATE`] of
/// the first. The live data must have its final size before. A step is one operation, or one pair
/// of operations. Returns the counts.
///
/// # Errors
///
/// Returns the error of the first step that fails.
fn run_steady(
    name: &str,
    seconds: u64,
    mut step: impl FnMut(u64) -> sheaf::Result<()>,
) -> sheaf::Result<Periods> {
    let mut counted = Periods::new(Duration::from_secs(seconds), PERIODS);
    let mut number = 0;
    while counted.count() {
        step(number)?;
        number += 1;
    }
    let rates = counted.rates(TENTHS);
    let thousands: Vec<String> = rates.iter().map(|rate| format!("{:.0}", rate / 1000.0)).collect();
    println!("{name}: thousands a second in each tenth of the time: {}", thousands.join(" "));
    let (first, last) = (rates[0], rates[TENTHS - 1]);
    FieldFigure::new(format!("{name}: rate in the last tenth"), last, "/s").report();
    let steadiness = FieldFigure::new(format!("{name}: last tenth / first"), last / first.max(1.0), "x");
    steadiness.at_least(MIN_STEADY_RATE).slack(2.0).report();
    Ok(counted)
}

/// Reports the rate of the last period of a run, which must be at least `least`.
fn report_last_period(name: &str, counted: &Periods, least: f64) {
    let last = counted.rates(PERIODS as usize).pop().unwrap_or(0.0);
    let rate = FieldFigure::new(format!("{name}: rate in the last period"), last, "/s");
    rate.at_least(least).slack(SHORT_RUN_SLACK).report();
}
