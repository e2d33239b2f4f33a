//! # Recovery: opening by replay of the whole log, and from a checkpoint (FlatStore §3.5)
//!
//! Fills a database that makes no checkpoints, closes it, and opens it: opening replays every entry
//! of the log into an empty index. A close then makes a checkpoint, and the database is opened
//! again. The page cache is warm.

use ::sheaf::{Database, KeyspaceOptions};

use crate::Result;
use crate::args;
use crate::keys::{KeyLayout, KeyMaker, UDB_VALUE_BYTES, ValueGenerator};
use crate::measure::median;
use crate::run_dir::RunDir;

/// Upper bound on the bytes of a pair on disk.
const DISK_BYTES_PER_PAIR: u64 = 400;

/// Measures all rounds and prints a table.
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
