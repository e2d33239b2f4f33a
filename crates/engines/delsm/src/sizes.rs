//! # Sizes: what is measured, what is chosen, and what is tiny in tests

use sheaf_base::options::{EngineOptions, OptionDomain, OptionSpec};

/// Which values get files.
const FILE_BYTES: OptionSpec = OptionSpec {
    name: "file-bytes",
    min: 256,
    max: 64 << 10, // above, the store stages whatever the engine wants
    domain: OptionDomain::Any,
    default: 8 << 10,
    help: "values larger than this many bytes are stored as plain files; smaller ones are packed",
};
/// How much level 0 has.
const LEVEL_FILES: OptionSpec = OptionSpec {
    name: "level-files",
    min: 100,
    max: 1_000_000,
    domain: OptionDomain::Any,
    default: 128 << 10,
    help: "maximum value files in level 0, and 8 KiB of packed values for each; more: fewer, larger merges",
};
/// How much more each level has.
const LEVEL_FACTOR: OptionSpec = OptionSpec {
    name: "level-factor",
    min: 2,
    max: 32,
    domain: OptionDomain::Any,
    default: 10,
    help: "ratio of the maximum size of a level to that of the level above",
};
/// What can be chosen.
pub(crate) const OPTIONS: [OptionSpec; 3] = [FILE_BYTES, LEVEL_FILES, LEVEL_FACTOR];

/// Numbers that differ between normal and tiny geometry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Values of more bytes get files of their own; the rest is packed.
    pub(crate) max_packed_bytes: usize,
    /// A memtable with so many values in files is moved to a table, or with so many bytes of them:
    /// what they supersede waits for that.
    pub(crate) max_memtable_files: u64,
    pub(crate) max_memtable_file_bytes: u64,
    /// Waste of the journal that makes no memtable due.
    pub(crate) least_waste: u64,
    /// One that rests is moved from so many keys on ...
    pub(crate) min_idle_keys: u64,
    /// ... once the store, which looks every 50 ms when it is idle, found it as it was so many
    /// times.
    pub(crate) idle_samples: u32,
    /// Files that level 0 may have; each level has `ratio` times those of the one above.
    pub(crate) level_files: u64,
    /// The same for bytes in packs.
    pub(crate) level_bytes: u64,
    /// Tables that level 0 may have.
    pub(crate) level_tables: usize,
    pub(crate) ratio: u64,
    /// About so many files, entries and packed bytes are in a table below level 0.
    pub(crate) table_files: u64,
    pub(crate) table_entries: u64,
    pub(crate) table_bytes: u64,
    /// Packs smaller than this are copied together when their tables are merged.
    pub(crate) small_pack_bytes: u64,
    /// Files that are put into the order in which they move.
    pub(crate) files_per_sort: usize,
    /// Files moved or removed in a step.
    pub(crate) files_per_step: usize,
    /// Entries of lists that a survey looks at in a step.
    pub(crate) entries_per_survey: usize,
    /// Removed keys in a row that are worth a dead range.
    pub(crate) min_removed_run: usize,
    /// Removals after which the next one looks around itself for a dead range.
    pub(crate) removals_per_scan: u64,
    /// Garbage that is not worth a merge at rest.
    pub(crate) min_garbage_bytes: u64,
    /// Bytes of memory that a key takes in a table's filter and index.
    pub(crate) index_bytes_per_key: u64,
    /// Bytes of the disk that steps may take beside lists and packs: directories, the manifest.
    pub(crate) min_reserve_bytes: u64,
}

impl Sizes {
    /// Those of a keyspace.
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
            ..usual
        }
    }

    fn new(tiny: bool) -> Sizes {
        if tiny {
            Sizes {
                max_packed_bytes: 256,
                max_memtable_files: 6,
                max_memtable_file_bytes: 1 << 20,
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
                entries_per_survey: 8,
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
                entries_per_survey: 256,
                min_removed_run: 32,
                removals_per_scan: 256,
                min_garbage_bytes: 64 << 10,
                index_bytes_per_key: 4,
                min_reserve_bytes: 256 << 10,
            }
        }
    }
}
