//! # Across: costs of many keyspaces, of all engines, in one database
//!
//! ```text
//!  durable      one writer with synced commits, in turns: one key of one keyspace,
//!               and one key of a keyspace of each engine
//!  snapshots    taken and dropped, in a database with data in all engines
//!  many         empty keyspaces: created, closed, and opened by a process of their own
//! ```

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ::sheaf::{Database, Durability, Keyspace, KeyspaceOptions};

use crate::Result;
use crate::args;
use crate::measure::{disk_bytes, median, memory_bytes};
use crate::run_dir::RunDir;

/// Bound on the disk space of a run.
const MAX_DISK_BYTES: u64 = 4 << 30;
/// Commits of each kind in a round.
const COMMITS: u64 = 400;
/// Snapshots in a round.
const SNAPSHOTS: u32 = 20_000;
/// Pairs in each engine's keyspace.
const PAIRS: u64 = 20_000;

/// Measures and prints all figures.
pub(crate) fn run(options: &args::AcrossArgs) -> Result<()> {
    if let Some(dir) = &options.open {
        return open_and_report(dir);
    }
    let place = RunDir::new(&options.dir.path, MAX_DISK_BYTES)?;
    println!("| measurement | figure |\n|---|---|");
    durable_and_snapshots(options, &place)?;
    for engine in ::sheaf::engines() {
        measure_many_keyspaces(options, &place, engine)?;
    }
    Ok(())
}

fn durable_and_snapshots(options: &args::AcrossArgs, place: &RunDir) -> Result<()> {
    let db = Database::open(place.fresh("across")?)?;
    let of = |engine: &&str| db.keyspace(engine, KeyspaceOptions::default().engine(engine));
    let spaces = ::sheaf::engines().iter().map(of).collect::<::sheaf::Result<Vec<_>>>()?;
    for index in 0..PAIRS {
        for space in &spaces {
            space.insert(index.to_be_bytes(), [7; 100])?;
        }
    }
    db.persist()?;
    let (mut ones, mut alls, mut snapshots) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let (one, all) = median_durable_commits(&db, &spaces)?;
        ones.push(one);
        alls.push(all);
        let began = Instant::now();
        for _ in 0..SNAPSHOTS {
            drop(db.snapshot()?);
        }
        snapshots.push(began.elapsed().as_secs_f64() / f64::from(SNAPSHOTS) * 1e9);
    }
    let of = |values: &[f64]| median(values).unwrap_or_default();
    let (one, all, count) = (of(&ones), of(&alls), spaces.len());
    println!("| a durable commit of one key | {one:.0} µs |");
    println!(
        "| a durable batch over {count} keyspaces, one of each engine | {all:.0} µs, {:.2} × |",
        all / one
    );
    println!("| a snapshot, taken and dropped | {:.0} ns |", of(&snapshots));
    drop(spaces);
    Ok(db.close()?)
}

/// Returns the median microseconds of a durable commit to one keyspace, and of one to all, in
/// turns.
fn median_durable_commits(db: &Database, spaces: &[Keyspace]) -> Result<(f64, f64)> {
    let mut took = [Vec::new(), Vec::new()];
    for (index, space) in (0..COMMITS).zip(spaces.iter().cycle()) {
        for (took, among) in took.iter_mut().zip([std::slice::from_ref(space), spaces]) {
            let began = Instant::now();
            let mut batch = db.batch();
            for space in among {
                batch.insert(space, (index * 37 % PAIRS).to_be_bytes(), [8; 100]);
            }
            batch.durability(Durability::Sync);
            batch.commit()?;
            took.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    let [one, all] = took.map(|took| median(&took).unwrap_or_default());
    Ok((one, all))
}

/// Creates the keyspaces and measures another process that opens them.
fn measure_many_keyspaces(options: &args::AcrossArgs, place: &RunDir, engine: &str) -> Result<()> {
    let dir = place.fresh("many")?;
    let db = Database::open(&dir)?;
    let began = Instant::now();
    for number in 0..options.keyspaces {
        db.keyspace(&format!("keyspace-{number:05}"), KeyspaceOptions::default().engine(engine))?;
    }
    let made = began.elapsed();
    db.close()?;
    let opened = (0..options.rounds).map(|_| open_in_child(&dir)).collect::<Result<Vec<_>>>()?;
    let of =
        |which: usize| median(&opened.iter().map(|told| told[which]).collect::<Vec<_>>()).unwrap_or_default();
    println!(
        "| {} empty keyspaces of {engine} | opened in {:.0} ms, {:.1} KiB of memory each, {:.1} KiB of disk each; created in {:.2} s |",
        options.keyspaces,
        of(0),
        of(1) / 1024.0 / options.keyspaces as f64,
        disk_bytes(&dir) as f64 / 1024.0 / options.keyspaces as f64,
        made.as_secs_f64(),
    );
    Ok(())
}

/// Returns the milliseconds of the opening, and the bytes of memory after it.
fn open_in_child(dir: &Path) -> Result<[f64; 2]> {
    let mut command = Command::new(std::env::current_exe()?);
    let told = command.arg("across").arg("--open").arg(dir).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8(told.stdout)?;
    let mut numbers = text.split_whitespace().map(str::parse::<f64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(took)), Some(Ok(bytes))) => Ok([took, bytes]),
        _ => Err(format!("the opening process printed {text:?} and ended with {}", told.status).into()),
    }
}

/// Opens the database in the other process and prints time and memory.
fn open_and_report(dir: &Path) -> Result<()> {
    let before = memory_bytes();
    let began = Instant::now();
    let db = Database::builder().create(false).open(dir)?;
    let took = began.elapsed();
    // The memory includes the work of background threads after the opening.
    std::thread::sleep(Duration::from_millis(300));
    println!("{} {}", took.as_secs_f64() * 1e3, memory_bytes().saturating_sub(before));
    Ok(db.close()?)
}
