//! # Tree: tables in levels, and the state that readers use
//!
//! ## Picture
//!
//! ```text
//!  state ─> active memtable | frozen memtables | version ─> level 0: overlapping, newest first
//!                                                          level 1: tables in the order of keys,
//!                                                          ...      without overlap
//!  table ─> directory, key list (in memory: first keys of blocks, filter) ─> block
//!                                                          ─> file in the directory, or pack
//! ```
//!
//! ## Invariants
//!
//! 1. All versions of a key in a higher place (active, frozen ones and level 0 from the newest on,
//!    level 1, ...) are newer than those in a lower one. The first place with a version that is
//!    visible at a view therefore has the right version.
//! 2. A published `Version` never changes. The files that it names stay until no reader uses its
//!    state. Only value files may move. A reader that misses one looks again in the newest state
//!    (`engine.rs`).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use sheaf_engine::context::EngineContext;
use sheaf_engine::memtable::Memtables;
use sheaf_log::blob::{BlobRef, open_blob_file};
use sheaf_log::blob_reader::OpenBlob;
use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::atomic::{AtomicBool, Ordering};

use crate::files::file_names;
use crate::files::list::{BlobLocation, BlockEntries, KeyList, ValueRef};
use crate::files::manifest::{LEVELS, TableFlags};
use crate::files::pack::Pack;
use crate::read::recent::RecentBlock;

/// Services and paths that all parts of a keyspace use.
#[derive(Debug)]
pub(crate) struct KeyspaceContext {
    pub(crate) context: Arc<EngineContext>,
    id: KeyspaceId,
    /// Directory of the keyspace.
    pub(crate) path: PathBuf,
}

impl KeyspaceContext {
    pub(crate) fn new(context: Arc<EngineContext>, id: KeyspaceId, path: PathBuf) -> KeyspaceContext {
        KeyspaceContext { context, id, path }
    }

    /// Returns the keyed hash of a key.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.context.hash(key)
    }

    /// Returns the mark that distinguishes the files of this keyspace from those of other keyspaces
    /// and databases.
    pub(crate) fn owner(&self) -> u64 {
        self.hash(&self.id.0.to_le_bytes())
    }

    pub(crate) fn dir(&self, number: u64) -> PathBuf {
        self.path.join(file_names::dir_name(number))
    }

    /// Returns the path of the value `id` of `key` in directory `dir`.
    pub(crate) fn value_path(&self, dir: u64, key: &[u8], id: u64) -> PathBuf {
        let mut path = self.dir(dir);
        path.push(file_names::value_name(key, id));
        path
    }
}

/// Directory of values with its key list.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) dir: u64,
    pub(crate) list: KeyList,
    /// True if all its files are in its directory, durably.
    pub(crate) files_linked: AtomicBool,
    /// True if its directory may contain files that the list does not name.
    pub(crate) has_unlisted_files: AtomicBool,
    /// True if a key of the table has several versions.
    pub(crate) has_old_versions: bool,
    /// Cached result of [`Version::superseding_count`].
    superseding_count: OnceLock<u64>,
    recent: RecentBlock,
    keyspace: Arc<KeyspaceContext>,
}

impl Table {
    pub(crate) fn new(
        keyspace: &Arc<KeyspaceContext>,
        dir: u64,
        list: KeyList,
        flags: TableFlags,
    ) -> Arc<Table> {
        keyspace.context.memory.take(MemoryPart::Index, list.memory_bytes());
        let TableFlags { files_linked, has_unlisted_files, has_old_versions } = flags;
        let files_linked = AtomicBool::new(files_linked);
        let has_unlisted_files = AtomicBool::new(has_unlisted_files);
        let (superseding_count, recent) = (OnceLock::new(), RecentBlock::default());
        Arc::new(Table {
            dir,
            list,
            files_linked,
            has_unlisted_files,
            has_old_versions,
            superseding_count,
            recent,
            keyspace: Arc::clone(keyspace),
        })
    }

    /// Returns the entries of the block in which a walk begins.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the block is damaged, and [`Error::Io`] if it cannot be read.
    pub(crate) fn entries_to_begin(&self, block: usize) -> Result<Arc<BlockEntries>> {
        self.recent.entries(&self.list, block, &self.keyspace.context.memory)
    }

    pub(crate) fn is_linked(&self) -> bool {
        self.files_linked.load(Ordering::Acquire)
    }

    /// Returns true if a key from `low` to `high` may be in the table.
    pub(crate) fn overlaps(&self, low: &[u8], high: &[u8]) -> bool {
        self.list.first_key() <= high && low <= self.list.last_key()
    }

    /// Returns the path of a value with the given location before the files of the table were
    /// linked. Returns `None` if the value was in this directory from the start.
    pub(crate) fn path_before_linking(
        &self,
        key: &[u8],
        blob: &BlobRef,
        location: BlobLocation,
    ) -> Option<PathBuf> {
        match location {
            BlobLocation::OwnDir => None,
            BlobLocation::BlobStore => Some(self.keyspace.context.blobs.path(blob.id)),
            BlobLocation::OtherDir(number) => Some(self.keyspace.value_path(number, key, blob.id)),
        }
    }

    /// Returns the path of a value once the files of the table are linked.
    pub(crate) fn linked_path(&self, key: &[u8], blob: &BlobRef) -> PathBuf {
        self.keyspace.value_path(self.dir, key, blob.id)
    }

    /// Opens the file of a value. Returns `None` if the file is missing: it was moved, or the value
    /// was superseded.
    pub(crate) fn open_blob(
        &self,
        key: &[u8],
        blob: &BlobRef,
        location: BlobLocation,
    ) -> Result<Option<OpenBlob>> {
        let Some(engine_dir) = &self.keyspace.context.engine_dir else { return Ok(None) };
        // The old place first: the file is removed there only after it was linked here.
        if let Some(source) = self.path_before_linking(key, blob, location).filter(|_| !self.is_linked())
            && let Some(file) = open_blob_file(&*engine_dir.disk, source, blob)?
        {
            return Ok(Some(file));
        }
        open_blob_file(&*engine_dir.disk, self.linked_path(key, blob), blob)
    }

    /// Returns the error for a value without a file.
    pub(crate) fn missing_error(&self, key: &[u8], blob: &BlobRef) -> Error {
        let expected = u64::from(blob.len);
        Error::corrupt(
            &self.linked_path(key, blob),
            0,
            "value file",
            sheaf_platform::error::Damage::Truncated { got: 0, expected },
        )
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.recent.forget(&self.keyspace.context.memory);
        self.keyspace.context.memory.give_back(MemoryPart::Index, self.list.memory_bytes());
    }
}

/// Start of a search downwards: tables of level 0 from the index `newest` on, then `level` and all
/// levels below it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TablesBelow {
    newest: usize,
    level: usize,
}

/// Tables in levels, and packs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    pub(crate) levels: [Vec<Arc<Table>>; LEVELS],
    pub(crate) packs: HashMap<u64, Arc<Pack>>,
}

impl Version {
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.levels.iter().flatten()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.levels.iter().all(Vec::is_empty)
    }

    /// Returns the bytes of values in the largest level. This estimates the live bytes: the levels
    /// above hold a small part of them, or newer versions of some of them.
    pub(crate) fn largest_level(&self) -> u64 {
        let bytes = |table: &Arc<Table>| table.list.totals().packed_bytes() + table.list.totals().file_bytes;
        self.levels.iter().map(|level| level.iter().map(bytes).sum()).max().unwrap_or(0)
    }

    /// Returns the tables of a level that may have a key from `low` to `high`.
    pub(crate) fn overlapping(&self, level: usize, low: &[u8], high: &[u8]) -> Vec<Arc<Table>> {
        self.levels[level].iter().filter(|table| table.overlaps(low, high)).cloned().collect()
    }

    /// Returns the start of the tables that may have older versions of the keys of `table`. Returns
    /// `None` if `table` is not in this version.
    pub(crate) fn tables_below(&self, table: &Arc<Table>) -> Option<TablesBelow> {
        let in_level = |tables: &Vec<Arc<Table>>| tables.iter().position(|other| Arc::ptr_eq(table, other));
        let (level, index) = (0..LEVELS).find_map(|level| Some((level, in_level(&self.levels[level])?)))?;
        Some(if level == 0 {
            TablesBelow { newest: index + 1, level: 1 }
        } else {
            TablesBelow { newest: usize::MAX, level: level + 1 }
        })
    }

    /// Returns true if no table from `below` on may have a key of `table`.
    pub(crate) fn is_bottom(&self, table: &Table, below: TablesBelow) -> bool {
        let (low, high) = (table.list.first_key(), table.list.last_key());
        let siblings = self.levels[0].iter().skip(below.newest);
        !siblings.chain(self.levels[below.level..].iter().flatten()).any(|other| other.overlaps(low, high))
    }

    /// Returns the version of `key` that is visible at `at`, and its table.
    #[inline]
    pub(crate) fn find(
        &self,
        hash: u64,
        key: &[u8],
        at: Seq,
    ) -> Result<Option<(&Arc<Table>, Seq, ValueRef)>> {
        self.find_below(TablesBelow { newest: 0, level: 1 }, hash, key, at)
    }

    /// Like [`Version::find`], in the tables from `below` on.
    pub(crate) fn find_below(
        &self,
        below: TablesBelow,
        hash: u64,
        key: &[u8],
        at: Seq,
    ) -> Result<Option<(&Arc<Table>, Seq, ValueRef)>> {
        for table in self.levels[0].iter().skip(below.newest).filter(|table| table.overlaps(key, key)) {
            if let Some((seq, what)) = table.list.find(hash, key, at)? {
                return Ok(Some((table, seq, what)));
            }
        }
        for level in &self.levels[below.level..] {
            let index = level.partition_point(|table| table.list.last_key() < key);
            if let Some(table) = level.get(index).filter(|table| table.list.first_key() <= key)
                && let Some((seq, what)) = table.list.find(hash, key, at)?
            {
                return Ok(Some((table, seq, what)));
            }
        }
        Ok(None)
    }

    /// Returns the number of versions in `table` with keys that tables below may also have,
    /// according to their filters. The first call computes it. Returns the number of all entries if
    /// a block cannot be read.
    pub(crate) fn superseding_count(&self, table: &Arc<Table>) -> u64 {
        *table
            .superseding_count
            .get_or_init(|| self.count_superseding(table).unwrap_or(table.list.totals().entries))
    }

    fn count_superseding(&self, table: &Arc<Table>) -> Result<u64> {
        let Some(below) = self.tables_below(table).filter(|below| !self.is_bottom(table, *below)) else {
            return Ok(0);
        };
        let (mut hidden, mut entries) = (0, BlockEntries::default());
        for block in 0..table.list.block_count() {
            entries.clear();
            table.list.read(block, &mut entries)?;
            let keys = (0..entries.len()).map(|index| entries.key(index));
            hidden +=
                keys.filter(|key| self.may_be_below(below, table.keyspace.hash(key), key)).count() as u64;
        }
        Ok(hidden)
    }

    fn may_be_below(&self, below: TablesBelow, hash: u64, key: &[u8]) -> bool {
        let is_there = |table: &Arc<Table>| table.overlaps(key, key) && table.list.may_contain(hash);
        let in_level = |level: &Vec<Arc<Table>>| {
            level.get(level.partition_point(|table| table.list.last_key() < key)).is_some_and(is_there)
        };
        self.levels[0].iter().skip(below.newest).any(is_there)
            || self.levels[below.level..].iter().any(in_level)
    }

    /// Returns the live bytes of each pack, which tables name.
    pub(crate) fn live_pack_bytes(&self) -> HashMap<u64, u64> {
        let mut live: HashMap<u64, u64> = HashMap::new();
        for (pack, bytes) in self.tables().flat_map(|table| &table.list.totals().packs) {
            *live.entry(*pack).or_default() += bytes;
        }
        live
    }
}

/// State that readers use.
#[derive(Clone, Debug)]
pub(crate) struct DelsmState {
    pub(crate) memtables: Memtables,
    pub(crate) version: Arc<Version>,
}
