//! # Sizes: limits of intervals, which options may change, and of flush steps

use sheaf_log::options::{COMPRESSION, EngineOptions, OptionDomain, OptionSpec};

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
/// Options of the engine.
pub(crate) const OPTIONS: [OptionSpec; 3] = [INTERVAL_PAIRS, INTERVAL_BYTES, COMPRESSION];

/// Limits of intervals and of flush steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// An interval of more pairs is split.
    pub(crate) pairs: usize,
    /// An interval of more bytes is split.
    pub(crate) bytes: usize,
    /// Maximum number of runs of an interval.
    pub(crate) runs: u32,
    /// Maximum number of changes of a step.
    pub(crate) step_changes: usize,
    /// Bytes of changes at which a step ends.
    pub(crate) step_bytes: usize,
    /// Approximate number of bytes that a step writes.
    pub(crate) step_written: u64,
    /// Maximum number of bytes of pairs that stay in memory and in the image while the keyspace has
    /// no space.
    pub(crate) max_in_memory_bytes: u64,
    /// Bytes of disk space that a new space takes.
    pub(crate) min_space: u64,
    /// Upper bound of the bytes per pair in the index and in the index of the space, with intervals
    /// half full and with their runs.
    pub(crate) index_bytes_per_pair: u64,
    /// Waste of the journal that is always allowed.
    pub(crate) min_waste: u64,
    /// Allowed waste of the journal, in percent of the live data.
    pub(crate) journal_waste_percent: u64,
    /// Allowed superseded versions of an interval, in percent of the live ones.
    pub(crate) max_dead_percent: u64,
}

/// Limit of disk space to which the two percentages below belong (docs/decisions/0009). Other
/// limits scale them.
const DEFAULT_LIMIT: f64 = 1.6;
const JOURNAL_WASTE_PERCENT: f64 = 50.0;
const MAX_DEAD_PERCENT: f64 = 100.0;

impl Sizes {
    pub(crate) fn new(tiny: bool, limit: f64) -> Sizes {
        let scale = |usual: f64| {
            let hundredths = usual * (limit - 1.0) / (DEFAULT_LIMIT - 1.0);
            // The result is between a few and some thousand, because the store accepts limits from
            // 1.1 to 10.
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

    /// Like [`Sizes::new`], with the interval sizes from `options`.
    pub(crate) fn with_options(options: &EngineOptions, tiny: bool, limit: f64) -> Sizes {
        let usual = Sizes::new(tiny, limit);
        let of = |spec: &OptionSpec| options.get(spec.name).and_then(|value| usize::try_from(value).ok());
        let pairs = of(&INTERVAL_PAIRS).unwrap_or(usual.pairs);
        let bytes = of(&INTERVAL_BYTES).unwrap_or(usual.bytes);
        // An interval takes the same bytes of index at any size, and smaller intervals are more
        // numerous.
        let more = |usual: usize, chosen: usize| usual.div_ceil(chosen).max(1) as u64;
        let indexed = usual.index_bytes_per_pair * more(usual.pairs, pairs).max(more(usual.bytes, bytes));
        Sizes { pairs, bytes, index_bytes_per_pair: indexed, ..usual }
    }

    /// Returns a percentage of `bytes`.
    pub(crate) fn percent_of(&self, bytes: u64, hundredths: u64) -> u64 {
        bytes / 100 * hundredths
    }
}
