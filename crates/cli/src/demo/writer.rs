//! # Writer: the process that is killed, and what it must have left
//!
//! Commits batch after batch over two keyspaces and tells each number, once acknowledged, on stdout.
//! Batch `n` is [`ROWS`] rows in `left` and as many in `right`; what a row holds follows from its
//! number, so that whoever comes later can tell a whole batch from a half one.

use std::io::Write;
use std::path::Path;

use sheaf::{Database, Keyspace, KeyspaceOptions};

use crate::failure::Result;
use crate::streams::Stdout;

/// Rows of a batch in each of the two keyspaces.
pub(crate) const ROWS: u64 = 32;
/// The writer stops by itself after so many batches, should nobody kill it.
const MOST: u64 = 2_000_000;

/// The two keyspaces.
pub(crate) const SIDES: [&str; 2] = ["left", "right"];

/// Writes until it is killed, or until nobody listens any more.
pub(crate) fn run(database: &Path) -> Result {
    let db = Database::builder().create(false).open(database)?;
    let sides = sides(&db)?;
    let mut out = Stdout::lock();
    for number in 1..=MOST {
        let mut batch = db.batch();
        for side in &sides {
            for row in 0..ROWS {
                batch.insert(side, key(number, row), value(number, row));
            }
        }
        batch.commit()?;
        writeln!(out, "{number}")?; // a line-buffered stream: one write a number
    }
    Ok(())
}

/// `left` and `right`, created if need be.
fn sides(db: &Database) -> Result<Vec<Keyspace>> {
    SIDES.iter().map(|side| Ok(db.keyspace(side, KeyspaceOptions::default())?)).collect()
}

/// How much of batch `number` is in `sides`: rows with the right value.
pub(crate) fn rows_of(sides: &[Keyspace], number: u64) -> Result<u64> {
    let mut rows = 0;
    for side in sides {
        for row in 0..ROWS {
            let expected = value(number, row);
            if side.get_with(key(number, row), |found| found == expected)? == Some(true) {
                rows += 1;
            }
        }
    }
    Ok(rows)
}

fn key(number: u64, row: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].copy_from_slice(&row.to_be_bytes());
    key
}

fn value(number: u64, row: u64) -> [u8; 96] {
    let seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ row;
    let mut value = [0; 96];
    for (index, piece) in (1..).zip(value.chunks_exact_mut(8)) {
        piece.copy_from_slice(&seed.wrapping_mul(index).to_le_bytes());
    }
    value
}
