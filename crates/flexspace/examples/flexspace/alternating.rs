//! # Alternating measurements
//!
//! Single runs of one second vary, because other programs share processors and device. Two targets
//! are therefore measured alternately, and the ratio of each pair is compared.

use std::fmt;

use crate::target::{BenchTarget, FlexSpaceTarget, PlainFileTarget};
use crate::{Options, Outcome, Pattern, RunDir, fill, read};

/// Pairs of runs.
const ROUNDS: usize = 7;

/// Results of one measurement in ascending order.
struct Quantiles(Vec<f64>);

impl Quantiles {
    fn new(mut figures: Vec<f64>) -> Quantiles {
        figures.sort_unstable_by(f64::total_cmp);
        Quantiles(figures)
    }

    fn ratios(one: &[f64], other: &[f64]) -> Quantiles {
        Quantiles::new(one.iter().zip(other).map(|(one, other)| one / other).collect())
    }
}

/// Shows the median, the minimum and the maximum.
impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        let (median, least, most) = (self.0[self.0.len() / 2], self.0[0], self.0[self.0.len() - 1]);
        write!(f, "{median:.digits$} ({least:.digits$}, {most:.digits$})")
    }
}

/// Compares random and sequential writes into new spaces.
pub(crate) fn writes(o: &Options) -> Outcome<()> {
    let [mut random, mut sequential] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (speeds, pattern) in [(&mut random, Pattern::Random), (&mut sequential, Pattern::Sequential)] {
            let place = RunDir::new(&o.dirs[0])?;
            let mut space = FlexSpaceTarget::new(&place.0.join("space"))?;
            speeds.push(fill(&mut space, pattern, o)?.0);
        }
    }
    println!(
        "\nWrites of {} bytes, {} MiB, MB/s, by turns; medians (least, most) of {ROUNDS}:\n",
        o.block,
        o.bytes >> 20
    );
    println!("| random | sequential | random : sequential |\n|---|---|---|");
    let ratios = Quantiles::ratios(&random, &sequential);
    println!("| {:.0} | {:.0} | {ratios:.2} |", Quantiles::new(random), Quantiles::new(sequential));
    Ok(())
}

/// Compares reads of a space and of a file, both in memory: after writing, and after a cold read in
/// order. That read gives a file large pages in reading order. The file is always written at
/// random, because inserts would take too long.
pub(crate) fn warm_reads(o: &Options) -> Outcome<()> {
    println!(
        "\nWarm reads of {} bytes, {} MiB, MB/s, by turns; medians (least, most) of {ROUNDS}:\n",
        o.block,
        o.bytes >> 20
    );
    println!("| after | in memory since | reads | threads | space | file | space : file |");
    println!("|---|---|---|---|---|---|---|");
    for pattern in [Pattern::Random, Pattern::Insert].into_iter().filter(|wanted| o.has_pattern(*wanted)) {
        let place = RunDir::new(&o.dirs[0])?;
        let mut space = FlexSpaceTarget::new(&place.0.join("space"))?;
        fill(&mut space, pattern, o)?;
        let mut file = PlainFileTarget::new(&o.dirs[0], &place.0.join("file"))?;
        fill(&mut file, Pattern::Random, o)?;
        for since in ["written", "read in order"] {
            if since != "written" {
                space.drop_page_cache()?;
                file.drop_page_cache()?;
            }
            let targets: [&dyn BenchTarget; 2] = [&space, &file];
            for target in targets {
                read(target, o.bytes / o.block, o.block, false, 1)?;
            }
            for (is_random, threads) in [(false, 1), (false, 8), (true, 1), (true, 8)] {
                let figures = compare_pair(targets, is_random, threads, o)?;
                let order = if is_random { "random" } else { "in order" };
                println!("| {pattern:?} | {since} | {order} | {threads} | {figures} |");
            }
        }
    }
    Ok(())
}

/// Measures both targets alternately. Returns three columns: both rates and their ratio.
fn compare_pair(
    targets: [&dyn BenchTarget; 2],
    is_random: bool,
    threads: u64,
    o: &Options,
) -> Outcome<String> {
    let mut speeds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (speeds, target) in speeds.iter_mut().zip(targets) {
            speeds.push(read(target, o.bytes / o.block, o.block, is_random, threads)?);
        }
    }
    let ratios = Quantiles::ratios(&speeds[0], &speeds[1]);
    let [one, other] = speeds.map(Quantiles::new);
    Ok(format!("{one:.0} | {other:.0} | {ratios:.2}"))
}
