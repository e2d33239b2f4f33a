//! # Recovery: opening by replay of the whole log, and from a checkpoint (FlatStore §3.5)
//!
//! Fills a database that makes no checkpoints, closes it, and opens it again: every entry of the
//! log is replayed into an empty index. Then one more time after a close that made a checkpoint.
//! The page cache is warm.

use ::sheaf::{Database, KeyspaceOptions};

use crate::Result;
use crate::args;
use crate::keys::{KeyLayout, KeyMaker, UDB_VALUE_BYTES, ValueGenerator};
use crate::measure::median;
use crate::run_dir::RunDir;

/// Bytes that a pair takes on disk, at most.
const DISK_BYTES_PER_PAIR: u64 = 400;

/// Measures and prints.
pub(crate) fn run(options: &args::RecoveryArgs) -> Result<()> {
    let place = RunDir::new(&options.dir.path, options.pairs * DISK_BYTES_PER_PAIR)?;
    let (mut replays, mut images) = (Vec::new(), Vec::new());
    let builder = |checkpoints| Database::builder().memory(4 << 30).checkpoints(checkpoints);
    for _ in 0..options.rounds {
        let dir = place.fresh("recovery")?;
        let db = builder(false).open(&dir)?;
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(options.subject.name()))?;
        let (mut keys, mut values) = (KeyMaker::new(KeyLayout::UDB), ValueGenerator::new());
        for index in 0..options.pairs {
            keyspace.insert(keys.make(index), values.make(index, 0, UDB_VALUE_BYTES))?;
        }
        drop(keyspace);
        db.close()?;
        let db = builder(true).open(&dir)?;
        let opening = db.stats().opening;
        if opening.records_replayed < options.pairs {
            return Err(format!("{} records were replayed", opening.records_replayed).into());
        }
        replays.push(opening.duration.as_secs_f64());
        db.close()?;
        let db = builder(true).open(&dir)?;
        images.push(db.stats().opening.duration.as_secs_f64());
        let keyspace = db.keyspace("k", KeyspaceOptions::default())?;
        if keyspace.len()? != options.pairs {
            return Err(format!("{} keys came back", keyspace.len()?).into());
        }
        drop(keyspace);
        db.close()?;
    }
    let of = |times: &[f64]| median(times).unwrap_or_default();
    println!("| pairs | by replay, s | M entries/s | from a checkpoint, s | M entries/s |");
    println!("|---|---|---|---|---|");
    let rate = |seconds: f64| options.pairs as f64 / seconds / 1e6;
    let (replay, image) = (of(&replays), of(&images));
    println!("| {} | {replay:.2} | {:.2} | {image:.2} | {:.2} |", options.pairs, rate(replay), rate(image));
    Ok(())
}
