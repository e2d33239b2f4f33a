//! # Sizes: what is measured, what is chosen, and what is tiny in tests

use sheaf_base::options::{EngineOptions, OptionSpec, Values};

/// Which values get files.
const FILE_BYTES: OptionSpec = OptionSpec {
    name: "file-bytes",
    least: 256,
    most: 64 << 10, // above, the store stages whatever the engine wants
    values: Values::Any,
    default: 8 << 10,
    help: "values larger than this many bytes are stored as plain files; smaller ones are packed",
};
/// How much level 0 has.
const LEVEL_FILES: OptionSpec = OptionSpec {
    name: "level-files",
    least: 100,
    most: 1_000_000,
    values: Values::Any,
    default: 128 << 10,
    help: "maximum value files in level 0, and 8 KiB of packed values for each; more: fewer, larger merges",
};
/// How much more each level has.
const LEVEL_FACTOR: OptionSpec = OptionSpec {
    name: "level-factor",
    least: 2,
    most: 32,
    values: Values::Any,
    default: 10,
    help: "ratio of the maximum size of a level to that of the level above",
};
/// What can be chosen.
pub(crate) const OPTIONS: [OptionSpec; 3] = [FILE_BYTES, LEVEL_FILES, LEVEL_FACTOR];

/// Numbers that differ between normal and tiny geometry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Values of more bytes get files of their own; the rest is packed.
    pub(crate) packed: usize,
    /// A memtable with so many values in files is moved to a table, or with so many bytes of them: what they supersede waits for that.
    pub(crate) files: u64,
    pub(crate) file_bytes: u64,
    /// Waste of the journal that makes no memtable due.
    pub(crate) least_waste: u64,
    /// One that rests is moved from so many keys on ...
    pub(crate) resting: u64,
    /// ... once the store, which looks every 50 ms when it is idle, found it as it was so many times.
    pub(crate) looks: u32,
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
    pub(crate) small_pack: u64,
    /// Files that are put into the order in which they move.
    pub(crate) moving: usize,
    /// Files moved or removed in a step.
    pub(crate) step: usize,
    /// Entries of lists that a survey looks at in a step.
    pub(crate) surveyed: usize,
    /// Removed keys in a row that are worth a dead range.
    pub(crate) dead: usize,
    /// Removals after which the next one looks around itself for a dead range.
    pub(crate) removals: u64,
    /// Garbage that is not worth a merge at rest.
    pub(crate) least_garbage: u64,
    /// Bytes of memory that a key takes in a table's filter and index.
    pub(crate) indexed: u64,
    /// Bytes of the disk that steps may take beside lists and packs: directories, the manifest.
    pub(crate) least_room: u64,
}

impl Sizes {
    /// Those of a keyspace.
    pub(crate) fn chosen(options: &EngineOptions, tiny: bool) -> Sizes {
        let usual = Sizes::new(tiny);
        let of = |spec: &OptionSpec, usual: u64| options.get(spec.name).unwrap_or(usual);
        let level_files = of(&LEVEL_FILES, usual.level_files);
        Sizes {
            packed: of(&FILE_BYTES, usual.packed as u64).try_into().unwrap_or(usual.packed),
            level_files,
            level_bytes: usual.level_bytes * level_files / usual.level_files,
            ratio: of(&LEVEL_FACTOR, usual.ratio),
            ..usual
        }
    }

    fn new(tiny: bool) -> Sizes {
        if tiny {
            Sizes {
                packed: 256,
                files: 6,
                file_bytes: 1 << 20,
                least_waste: 8 << 10,
                resting: 4,
                looks: 3,
                level_files: 8,
                level_bytes: 2 << 10,
                level_tables: 3,
                ratio: 3,
                table_files: 4,
                table_entries: 8,
                table_bytes: 1 << 10,
                small_pack: 256,
                moving: 8,
                step: 3,
                surveyed: 8,
                dead: 2,
                removals: 3,
                least_garbage: 0,
                indexed: 4,
                least_room: 48 << 10,
            }
        } else {
            Sizes {
                packed: 8 << 10,
                files: 32 << 10,
                file_bytes: 512 << 20,
                least_waste: 32 << 20,
                resting: 64,
                looks: 8,
                level_files: 128 << 10,
                level_bytes: 1 << 30,
                level_tables: 8,
                ratio: 10,
                table_files: 4 << 10,
                table_entries: 64 << 10,
                table_bytes: 64 << 20,
                small_pack: 256 << 10,
                moving: 32 << 10,
                step: 256,
                surveyed: 256,
                dead: 32,
                removals: 256,
                least_garbage: 64 << 10,
                indexed: 4,
                least_room: 256 << 10,
            }
        }
    }
}
