//! # Change feed: puts with retention on, against off
//!
//! `cargo bench -p sheaf-db --bench changes -- [ENGINE] [PUTS]` opens a database with retention and
//! one without. In nine rounds, which alternate the order, both put the same pairs in random order.
//! Prints the median processor time of a put, for the calling thread and for the whole process with
//! its background work, and the ratios. Other load on the machine changes them little. Linux only:
//! the times are in /proc.

#![allow(clippy::disallowed_methods, reason = "the times are in files of the system")]
#![allow(clippy::cast_precision_loss, reason = "small numbers")]

use std::error::Error;
use std::time::Duration;

use sheaf::{ChangeRetention, Database, Keyspace, KeyspaceOptions};

const ROUNDS: u64 = 9;
const VALUE: [u8; 100] = [7; 100];

/// Nanoseconds of a tick in /proc/self/stat.
const TICK_NS: f64 = 1e7;

/// Returns the processor time in nanoseconds: of the calling thread, and of the process.
fn cpu_ns() -> Result<[f64; 2], Box<dyn Error>> {
    let thread = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let process = std::fs::read_to_string("/proc/self/stat")?;
    // The name of the program, which ends with the last parenthesis, may have spaces.
    let fields: Vec<&str> = process.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok([thread.split(' ').next().unwrap_or_default().parse()?, ticks * TICK_NS])
}

/// Puts pairs of this round. Returns the time of one put in nanoseconds: of the thread and of the
/// process, which includes a sync and the rest of the background work.
fn put_times(db: &Database, pairs: &Keyspace, round: u64, puts: u64) -> Result<[f64; 2], Box<dyn Error>> {
    let began = cpu_ns()?;
    for number in 0..puts {
        let key = (round * puts + number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        pairs.insert(key.to_be_bytes(), VALUE)?;
    }
    let thread = cpu_ns()?[0];
    db.quiesce()?;
    let process = cpu_ns()?[1];
    Ok([(thread - began[0]) / puts as f64, (process - began[1]) / puts as f64])
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let engine = args.next().unwrap_or_else(|| "flex".to_owned());
    let puts = args.next().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let dir = std::env::temp_dir().join(format!("sheaf-changes-{}", std::process::id()));
    let retention = ChangeRetention::new(1 << 30, Duration::from_secs(3600));
    let databases = [
        Database::builder().open(dir.join("off"))?,
        Database::builder().retain_changes(retention).open(dir.join("on"))?,
    ];
    let options = KeyspaceOptions::from(&*engine);
    let pairs = [databases[0].keyspace("pairs", options.clone())?, databases[1].keyspace("pairs", options)?];
    // By clock, then by database.
    let mut times = [const { [const { Vec::new() }; 2] }; 2];
    for round in 0..=ROUNDS {
        for turn in 0..2 {
            let which = (usize::try_from(round)? + turn) % 2;
            let found = put_times(&databases[which], &pairs[which], round, puts)?;
            if round > 0 {
                // The first round only warms up.
                (0..2).for_each(|clock| times[clock][which].push(found[clock]));
            }
        }
    }
    for (times, of) in times.iter_mut().zip(["calling thread", "process"]) {
        let [off, on] = times.each_mut().map(|times| median(times));
        println!("{engine}, {of}: {off:.0} ns a put without retention, {on:.0} ns with, {:.3} x", on / off);
    }
    drop(pairs);
    databases.into_iter().try_for_each(|db| db.close())?;
    drop(std::fs::remove_dir_all(&dir));
    Ok(())
}
