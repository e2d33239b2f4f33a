//! # Sizes: fixed limits, options, and their values in tiny tests

use sheaf_log::options::{EngineOptions, OptionDomain, OptionSpec};

/// Size from which a value gets a file.
const FILE_BYTES: OptionSpec = OptionSpec {
    name: "file-bytes",
    min: 256,
    max: 64 << 10, // above, the store writes a blob for any engine
    domain: OptionDomain::Any,
    default: 8 << 10,
    help: "values larger than this many bytes are stored as plain files; smaller ones are packed",
};
/// Limit of level 0.
const LEVEL_FILES: OptionSpec = OptionSpec {
    name: "level-files",
    min: 100,
    max: 1_000_000,
    domain: OptionDomain::Any,
    default: 128 << 10,
    help: "maximum value files in level 0, and 8 KiB of packed values for each; more: fewer, larger merges",
};
/// Ratio of the limits of two adjacent levels.
const LEVEL_FACTOR: OptionSpec = OptionSpec {
    name: "level-factor",
    min: 2,
    max: 32,
    domain: OptionDomain::Any,
    default: 10,
    help: "ratio of the maximum size of a level to that of the level above",
};
/// Memtables that wait for the flush.
const FROZEN_MEMTABLES: OptionSpec = OptionSpec {
    name: "frozen-memtables",
    min: 1,
    max: 4, // with the active one they use 5/6 of the budget
    domain: OptionDomain::Any,
    default: 1,
    help: "maximum memtables that wait for the flush, each up to 1/6 of the memory budget",
};
/// Options that the user may set.
pub(crate) const OPTIONS: [OptionSpec; 4] = [FILE_BYTES, LEVEL_FILES, LEVEL_FACTOR, FROZEN_MEMTABLES];

/// Limits and thresholds. They differ between normal and tiny geometry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Maximum size of a packed value. Larger values get files of their own.
    pub(crate) max_packed_bytes: usize,
    /// Number of value files, and their bytes, above which a memtable is due for a flush.
    /// Superseded files are removed only after the flush.
    pub(crate) max_memtable_files: u64,
    pub(crate) max_memtable_file_bytes: u64,
    /// Maximum number of frozen memtables.
    pub(crate) max_frozen: usize,
    /// Waste in the journal that does not make a memtable due.
    pub(crate) least_waste: u64,
    /// Minimum number of keys in a memtable that is flushed because it is idle.
    pub(crate) min_idle_keys: u64,
    /// Number of observations without a new commit after which a memtable is idle. An idle store
    /// observes it every 50 ms.
    pub(crate) idle_samples: u32,
    /// Maximum number of files in level 0. Each level has `ratio` times the limit of the level
    /// above.
    pub(crate) level_files: u64,
    /// Maximum bytes of packed values in level 0.
    pub(crate) level_bytes: u64,
    /// Maximum number of tables in level 0.
    pub(crate) level_tables: usize,
    pub(crate) ratio: u64,
    /// Approximate number of files, entries and packed bytes of a table below level 0.
    pub(crate) table_files: u64,
    pub(crate) table_entries: u64,
    pub(crate) table_bytes: u64,
    /// Packs smaller than this are combined when their tables are merged.
    pub(crate) small_pack_bytes: u64,
    /// Number of files that are sorted at a time into the order of their moves.
    pub(crate) files_per_sort: usize,
    /// Number of files that a step moves or removes.
    pub(crate) files_per_step: usize,
    /// Number of list entries that a step of a scan reads.
    pub(crate) entries_per_scan_step: usize,
    /// Minimum length of a run of removed keys that is recorded as a removed range.
    pub(crate) min_removed_run: usize,
    /// Number of removals after which the next one scans for a removed range.
    pub(crate) removals_per_scan: u64,
    /// Garbage up to this size does not cause a merge of an idle database.
    pub(crate) min_garbage_bytes: u64,
    /// Bytes of memory that a key needs in the filter and the index of a table.
    pub(crate) index_bytes_per_key: u64,
    /// Disk space for a step in addition to lists and packs: directories, the manifest.
    pub(crate) min_reserve_bytes: u64,
}

impl Sizes {
    /// Returns the sizes of a keyspace.
    pub(crate) fn from_options(options: &EngineOptions, tiny: bool) -> Sizes {
        let usual = Sizes::new(tiny);
        let of = |spec: &OptionSpec, usual: u64| options.get(spec.name).unwrap_or(usual);
        let level_files = of(&LEVEL_FILES, usual.level_files);
        Sizes {
            max_packed_bytes: of(&FILE_BYTES, usual.max_packed_bytes as u64)
                .try_into()
                .unwrap_or(usual.max_packed_bytes),
            level_files,
            level_bytes: usual.level_bytes * level_files / usual.level_files,
            ratio: of(&LEVEL_FACTOR, usual.ratio),
            max_frozen: of(&FROZEN_MEMTABLES, usual.max_frozen as u64).try_into().unwrap_or(usual.max_frozen),
            ..usual
        }
    }

    fn new(tiny: bool) -> Sizes {
        if tiny {
            Sizes {
                max_packed_bytes: 256,
                max_memtable_files: 6,
                max_memtable_file_bytes: 1 << 20,
                max_frozen: 1,
                least_waste: 8 << 10,
                min_idle_keys: 4,
                idle_samples: 3,
                level_files: 8,
                level_bytes: 2 << 10,
                level_tables: 3,
                ratio: 3,
                table_files: 4,
                table_entries: 8,
                table_bytes: 1 << 10,
                small_pack_bytes: 256,
                files_per_sort: 8,
                files_per_step: 3,
                entries_per_scan_step: 8,
                min_removed_run: 2,
                removals_per_scan: 3,
                min_garbage_bytes: 0,
                index_bytes_per_key: 4,
                min_reserve_bytes: 48 << 10,
            }
        } else {
            Sizes {
                max_packed_bytes: 8 << 10,
                max_memtable_files: 32 << 10,
                max_memtable_file_bytes: 512 << 20,
                max_frozen: 1,
                least_waste: 32 << 20,
                min_idle_keys: 64,
                idle_samples: 8,
                level_files: 128 << 10,
                level_bytes: 1 << 30,
                level_tables: 8,
                ratio: 10,
                table_files: 4 << 10,
                table_entries: 64 << 10,
                table_bytes: 64 << 20,
                small_pack_bytes: 256 << 10,
                files_per_sort: 32 << 10,
                files_per_step: 256,
                entries_per_scan_step: 256,
                min_removed_run: 32,
                removals_per_scan: 256,
                min_garbage_bytes: 64 << 10,
                index_bytes_per_key: 4,
                min_reserve_bytes: 256 << 10,
            }
        }
    }
}
