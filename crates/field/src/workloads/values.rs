//! # Values of 0 bytes to 64 MiB, mixed

use crate::CaseResult;
use crate::case::{ALL_ENGINES, CaseContext, FieldCase};
use crate::figure::FieldFigure;

use super::key;

pub(super) fn cases() -> Vec<FieldCase> {
    let short = &["flex", "delsm"];
    vec![FieldCase { name: "mixed-values", engines: ALL_ENGINES, short, deadline_s: 180, run: mixed }]
}

/// Returns the length of value `number`: many are small, and few have 64 MiB.
fn len(number: u64, largest: u64, random: &mut fastrand::Rng) -> u64 {
    match number % 50 {
        0 => largest,
        1..5 => random.u64(..4 << 20),
        5..15 => random.u64(..64 << 10),
        15 => 0,
        _ => random.u64(..1_000),
    }
}

/// Returns byte `index` of value `number`.
fn byte(number: u64, index: usize) -> u8 {
    (number.wrapping_mul(31).wrapping_add(index as u64 / 4096) % 251) as u8
}

fn mixed(context: &CaseContext) -> CaseResult {
    let (db, data) = context.open_data(64)?;
    let count = context.size(60, 300);
    let largest = context.size(16 << 20, 64 << 20).min(64 << 20);
    let mut random = fastrand::Rng::with_seed(7);
    let mut lens = vec![0; usize::try_from(count / 2)?];
    for number in 0..count {
        let slot = number % (count / 2);
        let len = usize::try_from(len(number, largest, &mut random))?;
        lens[usize::try_from(slot)?] = len;
        let value: Vec<u8> = (0..len).map(|index| byte(number, index)).collect();
        data.insert(key(slot), &value)?;
    }
    let wrong = |data: &sheaf::Keyspace| -> sheaf::Result<usize> {
        let mut wrong = 0;
        for (slot, &len) in (0..).zip(&lens) {
            let number = slot + count / 2;
            let value = data.get(key(slot))?;
            let is_right = value.is_some_and(|value| {
                value.len() == len
                    && value.iter().enumerate().all(|(index, &found)| found == byte(number, index))
            });
            wrong += usize::from(!is_right);
        }
        Ok(wrong)
    };
    FieldFigure::new("wrong values", wrong(&data)? as f64, "").at_most(0.0).report();
    drop(data);
    db.close()?;
    let (db, data) = context.open_data(64)?;
    FieldFigure::new("wrong values after open", wrong(&data)? as f64, "").at_most(0.0).report();
    drop(data);
    Ok(db.close()?)
}
