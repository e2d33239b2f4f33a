//! # Ingest: loads the initial pairs of a keyspace, in the order of keys
//!
//! Writes tables that do not overlap, all into the first level that is not over its limit with
//! them. Small values are written to a pack per table. Blobs are named in place, and are linked
//! into the directories of the tables afterwards, as after a flush.
//!
//! ## Invariants
//!
//! 1. No other thread uses the keyspace during the load: it has no name, takes no commits, and is
//!    in no checkpoint.
//! 2. The manifest names the tables once all of them are durable. It says that all commits up to
//!    the commit of the pairs are in them.
//!
//! ## Costs
//!
//! Each value is written once. Memory: the list of one table, and a word for each blob.

use std::sync::Arc;

use sheaf_engine::contract::Ingest;
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;

use crate::engine::DelsmEngine;
use crate::files::list::{BlobLocation, ListEntry, ValueRef};
use crate::files::manifest::LEVELS;
use crate::files::pack::{Pack, PackWriter};
use crate::maintenance::file_moves::FileMoves;
use crate::maintenance::{Job, SortedTableBuilder, TableOutputs};
use crate::recovery::open::pending_blob_garbage;
use crate::tree::{Table, Version};

/// Table that is being filled.
struct OpenTable {
    made: SortedTableBuilder,
    pack: PackWriter,
    /// Bytes in the pack.
    packed: u64,
    files: u64,
}

/// Loader of the initial pairs of a keyspace.
pub(crate) struct DelsmIngest {
    engine: Arc<DelsmEngine>,
    seq: Seq,
    open: Option<OpenTable>,
    tables: Vec<Arc<Table>>,
    packs: Vec<Arc<Pack>>,
}

impl DelsmIngest {
    pub(crate) fn new(engine: Arc<DelsmEngine>, seq: Seq) -> DelsmIngest {
        DelsmIngest { engine, seq, open: None, tables: Vec::new(), packs: Vec::new() }
    }

    /// Starts a new table.
    fn begin_table(&self) -> Result<OpenTable> {
        let mut work = self.engine.work.lock();
        self.engine.create_keyspace_dir(&mut work)?;
        let (dir, number, pack) = (work.next_number(), work.next_number(), work.next_number());
        let keyspace = &self.engine.keyspace;
        let made = SortedTableBuilder::new(keyspace, dir, true, number);
        Ok(OpenTable {
            made,
            pack: PackWriter::new(&keyspace.path, keyspace.owner(), pack),
            packed: 0,
            files: 0,
        })
    }

    /// Makes the table that is being filled durable.
    fn end_table(&mut self) -> Result<()> {
        let Some(OpenTable { made, mut pack, .. }) = self.open.take() else { return Ok(()) };
        self.packs.extend(pack.finish(self.engine.disk()?)?.map(Arc::new));
        self.tables.extend(self.engine.finish_tables(TableOutputs::with_table(made))?);
        Ok(())
    }

    /// Returns a version with all tables in a level that is not over its limit with them.
    fn version(&self) -> Version {
        let mut version = Version::default();
        version.packs.extend(self.packs.iter().map(|pack| (pack.number, Arc::clone(pack))));
        for level in 1..LEVELS {
            version.levels[level] = self.tables.clone();
            if level == LEVELS - 1 || !self.engine.is_over_limit(&version, level) {
                break;
            }
            version.levels[level].clear();
        }
        version
    }
}

impl Ingest for DelsmIngest {
    fn push(&mut self, key: &[u8], content: RecordContent<'_>) -> Result<()> {
        if self.open.is_none() {
            self.open = Some(self.begin_table()?);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let what = match content {
            RecordContent::Put(value) => {
                open.packed += value.len() as u64;
                ValueRef::Packed {
                    pack: open.pack.number,
                    offset: open.pack.add(value),
                    len: u32::try_from(value.len()).unwrap_or(u32::MAX),
                    sum: crc32c::crc32c(value),
                }
            }
            RecordContent::Blob(blob) => {
                open.files += 1;
                self.engine.ingested_blobs.lock().push(blob.id);
                ValueRef::File { blob, location: BlobLocation::BlobStore }
            }
            RecordContent::Remove | RecordContent::RemoveRange(_) => return Ok(()), // nothing older
        };
        open.pack.write_if_full(self.engine.disk()?)?;
        let hash = self.engine.keyspace.hash(key);
        open.made.writer.add(hash, &ListEntry { key: key.to_vec(), seq: self.seq, value: what });
        let sizes = &self.engine.sizes;
        let is_full = open.files >= sizes.table_files
            || open.packed >= sizes.table_bytes
            || open.made.writer.totals().entries >= sizes.table_entries;
        if is_full { self.end_table() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.end_table()?;
        let version = self.version();
        let mut work = self.engine.work.lock();
        assert!(
            self.engine.version().is_empty() && work.job.is_none(),
            "ingest (I1): no other thread uses the keyspace during the load"
        );
        self.engine.write_manifest(&mut work, &version, self.seq)?;
        let unsettled: Vec<Arc<Table>> =
            version.tables().filter(|table| !table.is_linked()).cloned().collect();
        if !unsettled.is_empty() {
            let after = pending_blob_garbage(&unsettled)?;
            work.job = Some(Job::Moving(FileMoves::new(unsettled, after)));
        }
        self.engine.publish_version(version, 0);
        self.engine.ingested_blobs.lock().clear();
        Ok(())
    }
}
