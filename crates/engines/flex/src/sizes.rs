//! # Sizes: of intervals, which may be chosen, and of steps

use sheaf_base::options::{EngineOptions, OptionDomain, OptionSpec};

/// Pairs of an interval.
const INTERVAL_PAIRS: OptionSpec = OptionSpec {
    name: "interval-pairs",
    min: 4,
    max: 128,
    domain: OptionDomain::Any,
    default: 16,
    help: "a rewrite splits an interval of more pairs; more: smaller index, larger reads for one pair",
};
/// Bytes of an interval.
const INTERVAL_BYTES: OptionSpec = OptionSpec {
    name: "interval-bytes",
    min: 1 << 10,
    max: 64 << 10,
    domain: OptionDomain::Any,
    default: 16 << 10,
    help: "a rewrite splits an interval of more bytes",
};
/// What can be chosen.
pub(crate) const OPTIONS: [OptionSpec; 2] = [INTERVAL_PAIRS, INTERVAL_BYTES];

/// Limits of an interval, and of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// An interval is split beyond so many pairs ...
    pub(crate) pairs: usize,
    /// ... or bytes.
    pub(crate) bytes: usize,
    /// Runs it may have.
    pub(crate) runs: u32,
    /// Changes of a step, and their bytes.
    pub(crate) step_changes: usize,
    pub(crate) step_bytes: usize,
    /// Bytes that a step writes, about.
    pub(crate) step_written: u64,
    /// Pairs of a keyspace that stay in memory and in the image, in bytes, as long as it has no
    /// space.
    pub(crate) max_in_memory_bytes: u64,
    /// Bytes of the disk that a new space takes.
    pub(crate) min_space: u64,
    /// Bytes that a pair takes in the index and that of the space, at most: intervals half full,
    /// with their runs.
    pub(crate) index_bytes_per_pair: u64,
    /// Waste of the journal that is nothing to speak of.
    pub(crate) min_waste: u64,
    /// Hundredths of the live data: what the journal may waste, ...
    pub(crate) journal_waste_percent: u64,
    /// ... and what may be superseded in an interval.
    pub(crate) max_dead_percent: u64,
}

/// At the usual limit of 1.6 the journal may waste half of the live data, and an interval be
/// superseded as much as it lives: see docs/decisions/0009.
const DEFAULT_LIMIT: f64 = 1.6;
const JOURNAL_WASTE_PERCENT: f64 = 50.0;
const MAX_DEAD_PERCENT: f64 = 100.0;

impl Sizes {
    pub(crate) fn new(tiny: bool, limit: f64) -> Sizes {
        let scale = |usual: f64| {
            let hundredths = usual * (limit - 1.0) / (DEFAULT_LIMIT - 1.0);
            // Between a few and some thousand: the store takes limits from 1.1 to 10.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let hundredths = hundredths.clamp(1.0, 10_000.0) as u64;
            hundredths
        };
        let (journal_waste_percent, slack) = (scale(JOURNAL_WASTE_PERCENT), scale(MAX_DEAD_PERCENT));
        if tiny {
            Sizes {
                pairs: 4,
                bytes: 512,
                runs: 3,
                step_changes: 6,
                step_bytes: 1 << 10,
                step_written: 2 << 10,
                max_in_memory_bytes: 1 << 10,
                min_space: 32 << 10,
                index_bytes_per_pair: 80,
                min_waste: 8 << 10,
                journal_waste_percent,
                max_dead_percent: slack,
            }
        } else {
            Sizes {
                pairs: 16,
                bytes: 16 << 10,
                runs: 8,
                step_changes: 256,
                step_bytes: 256 << 10,
                step_written: 1 << 20,
                max_in_memory_bytes: 64 << 10,
                min_space: 5 << 20,
                index_bytes_per_pair: 32,
                min_waste: 16 << 20,
                journal_waste_percent,
                max_dead_percent: slack,
            }
        }
    }

    /// The same with intervals as they were chosen.
    pub(crate) fn with_options(options: &EngineOptions, tiny: bool, limit: f64) -> Sizes {
        let usual = Sizes::new(tiny, limit);
        let of = |spec: &OptionSpec| options.get(spec.name).and_then(|value| usize::try_from(value).ok());
        let pairs = of(&INTERVAL_PAIRS).unwrap_or(usual.pairs);
        let bytes = of(&INTERVAL_BYTES).unwrap_or(usual.bytes);
        // An interval takes what it takes; of smaller ones there are more.
        let more = |usual: usize, chosen: usize| usual.div_ceil(chosen).max(1) as u64;
        let indexed = usual.index_bytes_per_pair * more(usual.pairs, pairs).max(more(usual.bytes, bytes));
        Sizes { pairs, bytes, index_bytes_per_pair: indexed, ..usual }
    }

    /// So many hundredths of `bytes`.
    pub(crate) fn percent_of(&self, bytes: u64, hundredths: u64) -> u64 {
        bytes / 100 * hundredths
    }
}
