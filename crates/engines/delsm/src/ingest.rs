//! # Ingest: the pairs that a keyspace begins with, in the order of their keys
//!
//! Tables that do not overlap, all in one level: the first that is not full with them. Small values go into a pack for each table,
//! staged ones are named where they are, and get their names in the tables' directories afterwards, as after a flush.
//!
//! ## Invariants
//!
//! 1. Nobody else touches the keyspace meanwhile: it has no name, takes no commits, and no checkpoint knows it.
//! 2. The manifest names the tables once all of them are durable, and says that all commits up to the one that the pairs are of
//!    are in them.
//!
//! ## Costs
//!
//! Each value is written once. Memory: a table's list, and a word for each staged value.

use std::sync::Arc;

use sheaf_base::engine::Ingest;
use sheaf_base::error::Result;
use sheaf_base::record::Content;
use sheaf_base::types::Seq;

use crate::engine::DelsmEngine;
use crate::list::{Home, Item, What};
use crate::manifest::LEVELS;
use crate::moves::Moving;
use crate::open::staged_garbage;
use crate::pack::{Pack, PackWriter};
use crate::tree::{Table, Version};
use crate::work::{Job, Made, Outputs};

/// A table that is being filled.
struct Open {
    made: Made,
    pack: PackWriter,
    /// Bytes of the pack.
    packed: u64,
    files: u64,
}

/// Pairs on their way.
pub(crate) struct DelsmIngest {
    engine: Arc<DelsmEngine>,
    seq: Seq,
    open: Option<Open>,
    tables: Vec<Arc<Table>>,
    packs: Vec<Arc<Pack>>,
}

impl DelsmIngest {
    pub(crate) fn new(engine: Arc<DelsmEngine>, seq: Seq) -> DelsmIngest {
        DelsmIngest { engine, seq, open: None, tables: Vec::new(), packs: Vec::new() }
    }

    /// A new table.
    fn begin_table(&self) -> Result<Open> {
        let mut work = self.engine.work.lock();
        self.engine.make_home(&mut work)?;
        let (dir, number, pack) = (work.number(), work.number(), work.number());
        let shelf = &self.engine.shelf;
        let made = Made::new(shelf, dir, true, number);
        Ok(Open { made, pack: PackWriter::new(&shelf.path, shelf.owner(), pack), packed: 0, files: 0 })
    }

    /// Makes the table that is being filled durable.
    fn end_table(&mut self) -> Result<()> {
        let Some(Open { made, mut pack, .. }) = self.open.take() else { return Ok(()) };
        self.packs.extend(pack.finish(self.engine.disk()?)?.map(Arc::new));
        self.tables.extend(self.engine.end_lists(Outputs::of(made))?);
        Ok(())
    }

    /// All tables, in a level that is not over full with them.
    fn version(&self) -> Version {
        let mut version = Version::default();
        version.packs.extend(self.packs.iter().map(|pack| (pack.number, Arc::clone(pack))));
        for level in 1..LEVELS {
            version.levels[level] = self.tables.clone();
            if level == LEVELS - 1 || !self.engine.is_over_full(&version, level) {
                break;
            }
            version.levels[level].clear();
        }
        version
    }
}

impl Ingest for DelsmIngest {
    fn push(&mut self, key: &[u8], content: Content<'_>) -> Result<()> {
        if self.open.is_none() {
            self.open = Some(self.begin_table()?);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let what = match content {
            Content::Put(value) => {
                open.packed += value.len() as u64;
                What::Packed {
                    pack: open.pack.number,
                    offset: open.pack.add(value),
                    len: u32::try_from(value.len()).unwrap_or(u32::MAX),
                    sum: crc32c::crc32c(value),
                }
            }
            Content::Staged(blob) => {
                open.files += 1;
                self.engine.ingested.lock().push(blob.id);
                What::File { blob, home: Home::Staged }
            }
            Content::Remove => return Ok(()), // nothing is there
        };
        open.pack.write_if_full(self.engine.disk()?)?;
        let hash = self.engine.shelf.hash(key);
        open.made.writer.add(hash, &Item { key: key.to_vec(), seq: self.seq, what });
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
        self.engine.write_manifest(&mut work, &version, self.seq)?;
        let unsettled: Vec<Arc<Table>> =
            version.tables().filter(|table| !table.is_settled()).cloned().collect();
        if !unsettled.is_empty() {
            let after = staged_garbage(&unsettled)?;
            work.job = Some(Job::Moving(Moving::new(unsettled, after)));
        }
        self.engine.publish_version(version, false);
        self.engine.ingested.lock().clear();
        Ok(())
    }
}
