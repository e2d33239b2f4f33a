//! # Check: reads everything that a keyspace has on disk
//!
//! Flushes, merges and moves go on meanwhile. A manifest that is not right is read again while none is written. A version is held: its lists and packs are open files that never change. Values move
//! on and go; one that is missing is looked for in the newest version, while nothing moves.

use std::sync::Arc;

use sheaf_base::blob::BlobRef;
use sheaf_base::error::{Damage, Error, Result};
use sheaf_base::pair::Pair;
use sheaf_base::value::ValueFile;

use crate::engine::DelsmEngine;
use crate::list::{Item, What};
use crate::manifest::Manifest;
use crate::names;
use crate::tree::{Shelf, Table, Version};

/// The error for a pack that a list names and the manifest does not.
pub(crate) fn no_such_pack(shelf: &Shelf, pack: u64) -> Error {
    Error::corrupt(
        &shelf.path.join(names::pack_name(pack)),
        0,
        Damage::BadField { field: "pack", value: pack },
    )
}

impl DelsmEngine {
    /// Reports all damage of manifest, key lists, files and packs.
    pub(crate) fn check(
        &self,
        report: &mut dyn FnMut(Error),
        step: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        self.check_manifest(report);
        let version = self.version();
        let heads = version.packs.values().map(|pack| pack.check_head());
        heads.filter_map(Result::err).for_each(&mut *report);
        for table in version.tables() {
            table.list.check_head().unwrap_or_else(&mut *report);
            for block in 0..table.list.block_count() {
                let items = table.list.items(block).map_err(&mut *report).unwrap_or_default();
                for item in items {
                    step(read_for(&item))?;
                    if let Err(error) = self.check_item(&version, table, &item) {
                        report(error);
                    }
                }
            }
        }
        Ok(())
    }

    fn check_manifest(&self, report: &mut dyn FnMut(Error)) {
        let Some(home) = self.shelf.ground.home.as_ref().filter(|_| self.work.lock().generation > 1) else {
            return;
        };
        let (pair, mut findings) = (Pair::new(Arc::clone(&home.disk), &self.shelf.path), Vec::new());
        pair.check::<Manifest>(&mut |error| findings.push(error));
        if !findings.is_empty() {
            findings.clear();
            let _work = self.work.lock(); // a slot may have been written just then, and none is now
            pair.check::<Manifest>(&mut |error| findings.push(error));
        }
        findings.into_iter().for_each(report);
    }

    fn check_item(&self, version: &Version, table: &Table, item: &Item) -> Result<()> {
        match item.what {
            What::Gone => Ok(()),
            What::Packed { pack, offset, len, sum } => match version.packs.get(&pack) {
                None => Err(no_such_pack(&self.shelf, pack)),
                Some(pack) => pack.read(offset, len, sum, |_| ()),
            },
            What::File { blob, home } => {
                let file = match table.file(&item.key, &blob, home)? {
                    Some(file) => Some(file),
                    None => self.find_again(item, &blob)?,
                };
                file.map_or(Ok(()), |file| file.check().map(drop))
            }
        }
    }

    /// Where a value is that a version names and that is not there: it has moved on, or, if there is none, it went after something
    /// superseded it.
    fn find_again(&self, item: &Item, blob: &BlobRef) -> Result<Option<ValueFile>> {
        let _work = self.work.lock(); // no file moves meanwhile
        let (version, hash) = (self.version(), self.shelf.hash(&item.key));
        for table in version.tables().filter(|table| table.overlaps(&item.key, &item.key)) {
            match table.list.find(hash, &item.key, item.seq)? {
                Some((seq, What::File { blob: now, home })) if seq == item.seq && now.id == blob.id => {
                    let file = table.file(&item.key, blob, home)?;
                    return file.map_or_else(|| Err(table.missing(&item.key, blob)), |file| Ok(Some(file)));
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

/// Bytes that are read to check what an item names.
fn read_for(item: &Item) -> u64 {
    match item.what {
        What::Gone => 0,
        What::Packed { len, .. } => u64::from(len),
        What::File { blob, .. } => u64::from(blob.len),
    }
}
