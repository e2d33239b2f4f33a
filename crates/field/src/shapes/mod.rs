//! # Shapes of use: how real programs write, read and remove

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

use crate::Outcome;
use crate::case::Case;
use crate::figure::Figure;
use crate::machine::Periods;

/// Least rate of the last period, in parts of the rate of the first.
const STEADY: f64 = 0.9;
/// Relaxation of wall times in the short form: CI shares its machine with other work.
const NOISY: f64 = 5.0;

pub(crate) fn cases() -> Vec<Case> {
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

/// Runs `step` until `seconds` are over and reports its rate: the last sixtieth must keep
/// [`STEADY`] of the first. A step is one operation, or one pair of operations.
fn steady(
    name: &str,
    seconds: u64,
    least_rate: Option<f64>,
    mut step: impl FnMut(u64) -> sheaf::Result<()>,
) -> Outcome {
    let periods = u32::try_from(seconds.min(60)).unwrap_or(60).max(6);
    let mut counted = Periods::new(Duration::from_secs(seconds), periods);
    let mut number = 0;
    while counted.count() {
        step(number)?;
        number += 1;
    }
    let (first, last) = counted.first_and_last();
    let rate = Figure::new(format!("{name}: rate in the last period"), last, "/s").slack(NOISY);
    match least_rate {
        Some(least) => rate.at_least(least).report(),
        None => rate.report(),
    }
    let steadiness = Figure::new(format!("{name}: last period / first"), last / first.max(1.0), "x");
    steadiness.at_least(STEADY).slack(2.0).report();
    Ok(())
}
