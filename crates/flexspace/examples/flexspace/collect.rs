//! # Garbage collection: random overwrites in a space that is nearly full

use std::path::Path;
use std::time::{Duration, Instant};

use sheaf_flexspace::{FlexSpace, SpaceOptions, SpaceStats};

use crate::{Outcome, Random};

/// Runs at each fill level.
const RUNS: u64 = 3;

/// Result of a run.
struct GcRun {
    speed: f64,
    /// Longest operation in milliseconds.
    longest: f64,
    rare: f64,
    /// Number of operations that took longer than 10 ms.
    slow: usize,
    moved: f64,
}

fn overwrite(space: &FlexSpace, bytes: &[u8], seed: u64, time: Duration) -> Outcome<GcRun> {
    let block = bytes.len() as u64;
    let blocks = space.len() / block;
    let (before, mut random, mut times) = (space.stats(), Random(seed), Vec::new());
    let begun = Instant::now();
    while begun.elapsed() < time {
        let each = Instant::now();
        space.write(random.below(blocks) * block, bytes)?;
        times.push(each.elapsed().as_secs_f64() * 1e3);
    }
    let seconds = begun.elapsed().as_secs_f64();
    times.sort_unstable_by(f64::total_cmp);
    let (count, after) = (times.len(), space.stats());
    let grown = |figure: fn(&SpaceStats) -> u64| (figure(&after) - figure(&before)) as f64;
    Ok(GcRun {
        speed: (count as u64 * block) as f64 / seconds / 1e6,
        longest: times[count - 1],
        rare: times[count - 1 - count / 10_000],
        slow: count - times.partition_point(|time| *time <= 10.0),
        moved: grown(|stats| stats.moved_bytes) / grown(|stats| stats.written_bytes),
    })
}

fn median(runs: &[GcRun], figure: fn(&GcRun) -> f64) -> f64 {
    let mut figures: Vec<f64> = runs.iter().map(figure).collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}

pub(crate) fn run(dir: &Path, o: &crate::Options) -> Outcome<()> {
    let (limit, block, time) = (o.bytes, o.block, Duration::from_secs(o.seconds));
    println!(
        "\nRandom overwrites in a space limited to {} MiB, medians of {RUNS} runs of {time:?}:\n",
        limit >> 20
    );
    println!(
        "| live | MB/s | longest stall, ms (of each run) | p99.99, ms | above 10 ms | moved for a byte written |"
    );
    println!("|---|---|---|---|---|---|");
    let options = SpaceOptions { limit: Some(limit), ..SpaceOptions::default() };
    let space = FlexSpace::open(dir.join("full"), options)?;
    let bytes: Vec<u8> = (0..block).map(|n| (n * 31) as u8).collect();
    // Fills to 85 % of the limit, and then to the capacity: 30/32 of all segments without the
    // reserve.
    for target in [limit / 100 * 85, u64::MAX] {
        while space.stats().live_bytes + 4 * block < target.min(space.stats().capacity) {
            space.insert(space.len(), &bytes)?;
        }
        space.sync()?;
        let runs: Vec<GcRun> =
            (0..RUNS).map(|seed| overwrite(&space, &bytes, seed, time)).collect::<Outcome<_>>()?;
        let longest: Vec<String> = runs.iter().map(|run| format!("{:.1}", run.longest)).collect();
        println!(
            "| {:.1} % | {:.0} | {:.1} ({}) | {:.2} | {} | {:.2} |",
            space.stats().live_bytes as f64 * 100.0 / limit as f64,
            median(&runs, |run| run.speed),
            median(&runs, |run| run.longest),
            longest.join(", "),
            median(&runs, |run| run.rare),
            runs.iter().map(|run| run.slow).sum::<usize>(),
            median(&runs, |run| run.moved),
        );
    }
    Ok(space.close()?)
}
