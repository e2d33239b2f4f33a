//! # Collect: random overwrites in a space that is nearly full

use std::path::Path;
use std::time::{Duration, Instant};

use sheaf_flexspace::{FlexSpace, Options};

use crate::{Outcome, Random};

/// Time of overwriting at each fill.
const TIME: Duration = Duration::from_secs(20);

pub(crate) fn run(dir: &Path, limit: u64, block: u64) -> Outcome<()> {
    println!("\nRandom overwrites in a space limited to {} MiB:\n", limit >> 20);
    println!("| live | MB/s | longest stall, ms | p99.99, ms | moved for a byte written |");
    println!("|---|---|---|---|---|");
    let options = Options { limit: Some(limit), ..Options::default() };
    let space = FlexSpace::open(dir.join("full"), options)?;
    let bytes: Vec<u8> = (0..block).map(|n| (n * 31) as u8).collect();
    // 85 % of the limit, then as much as it takes: 30/32 of all but the reserve.
    for target in [limit / 100 * 85, u64::MAX] {
        while space.stats().live_bytes + 4 * block < target.min(space.stats().capacity) {
            space.insert(space.len(), &bytes)?;
        }
        space.sync()?;
        let blocks = space.len() / block;
        let before = space.stats();
        let mut random = Random(blocks);
        let mut times = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < TIME {
            let each = Instant::now();
            space.write(random.below(blocks) * block, &bytes)?;
            times.push(each.elapsed());
        }
        times.sort_unstable();
        let (count, stats) = (times.len(), space.stats());
        let speed = (count as u64 * block) as f64 / begun.elapsed().as_secs_f64() / 1e6;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let moved = (stats.moved_bytes - before.moved_bytes) as f64
            / (stats.written_bytes - before.written_bytes) as f64;
        println!(
            "| {:.1} % | {speed:.0} | {:.2} | {:.2} | {moved:.2} |",
            stats.live_bytes as f64 * 100.0 / limit as f64,
            ms(times[count - 1]),
            ms(times[count - 1 - count / 10_000]),
        );
    }
    Ok(space.close()?)
}
