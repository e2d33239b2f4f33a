//! # Writer: the process that is killed, and the check of its rows
//!
//! Commits batch after batch over two keyspaces and prints the number of each acknowledged batch on
//! stdout. Batch `n` has [`BATCH_ROWS`] rows in `left` and as many in `right`. The content of a row
//! follows from its number, so that a check can tell a complete batch from a partial one.

use std::io::Write;
use std::path::Path;

use sheaf::{Database, Keyspace, KeyspaceOptions};

use crate::failure::Result;
use crate::streams::Stdout;

/// Rows of a batch in each of the two keyspaces.
pub(crate) const BATCH_ROWS: u64 = 32;
/// Number of batches after which the writer ends if it is not killed.
const MAX_BATCHES: u64 = 2_000_000;

/// Names of the two keyspaces.
pub(crate) const KEYSPACES: [&str; 2] = ["left", "right"];

/// Writes until it is killed, or until the reader closes stdout.
pub(crate) fn run(database: &Path) -> Result {
    let db = Database::builder().create(false).open(database)?;
    let sides = sides(&db)?;
    let mut out = Stdout::lock();
    for number in 1..=MAX_BATCHES {
        let mut batch = db.batch();
        for side in &sides {
            for row in 0..BATCH_ROWS {
                batch.insert(side, key(number, row), value(number, row));
            }
        }
        batch.commit()?;
        writeln!(out, "{number}")?; // the stream is line-buffered: one write per number
    }
    Ok(())
}

/// Returns `left` and `right`; creates them if they do not exist.
fn sides(db: &Database) -> Result<Vec<Keyspace>> {
    KEYSPACES.iter().map(|side| Ok(db.keyspace(side, KeyspaceOptions::default())?)).collect()
}

/// Returns the number of rows of batch `number` in `sides` that have the right value.
pub(crate) fn count_rows(sides: &[Keyspace], number: u64) -> Result<u64> {
    let mut rows = 0;
    for side in sides {
        for row in 0..BATCH_ROWS {
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
