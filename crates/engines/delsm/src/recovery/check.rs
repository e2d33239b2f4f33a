//! # Check: reads all data of a keyspace on disk
//!
//! Flushes, merges and moves continue during the check. If the manifest seems damaged, it is read
//! again under the work lock, so that no write interferes. The check holds one version: its lists
//! and packs are open files that never change. Values may be moved and removed. A missing value is
//! looked up in the newest version under the work lock, so that no file moves.

use std::sync::Arc;

use sheaf_log::blob::BlobRef;
use sheaf_log::blob_reader::OpenBlob;
use sheaf_log::double_slot::DoubleSlot;
use sheaf_platform::error::{Damage, Error, Result};

use crate::engine::DelsmEngine;
use crate::files::file_names;
use crate::files::list::{ListEntry, ValueRef};
use crate::files::manifest::TableManifest;
use crate::tree::{KeyspaceContext, Table, Version};

/// Returns the error for a pack that a list names and the manifest does not.
pub(crate) fn missing_pack_error(keyspace: &KeyspaceContext, pack: u64) -> Error {
    Error::corrupt(
        &keyspace.path.join(file_names::pack_name(pack)),
        0,
        "list of packs",
        Damage::bad_field("pack", "a pack that the manifest lists", pack),
    )
}

impl DelsmEngine {
    /// Reports all damage of the manifest, key lists, files and packs.
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
                let items = table.list.entries_of_block(block).map_err(&mut *report).unwrap_or_default();
                for item in items {
                    step(item.value.bytes())?;
                    if let Err(error) = self.check_item(&version, table, &item) {
                        report(error);
                    }
                }
            }
        }
        Ok(())
    }

    fn check_manifest(&self, report: &mut dyn FnMut(Error)) {
        let Some(engine_dir) =
            self.keyspace.context.engine_dir.as_ref().filter(|_| self.work.lock().generation > 1)
        else {
            return;
        };
        let (pair, mut findings) =
            (DoubleSlot::new(Arc::clone(&engine_dir.disk), &self.keyspace.path), Vec::new());
        pair.check::<TableManifest>(&mut |error| findings.push(error));
        if !findings.is_empty() {
            findings.clear();
            let _work = self.work.lock(); // excludes a concurrent write of a slot
            pair.check::<TableManifest>(&mut |error| findings.push(error));
        }
        findings.into_iter().for_each(report);
    }

    fn check_item(&self, version: &Version, table: &Table, item: &ListEntry) -> Result<()> {
        match item.value {
            ValueRef::Removed => Ok(()),
            ValueRef::Packed { pack, offset, len, sum } => match version.packs.get(&pack) {
                None => Err(missing_pack_error(&self.keyspace, pack)),
                Some(pack) => pack.read(offset, len, sum, |_| ()),
            },
            ValueRef::File { blob, location } => {
                let file = match table.open_blob(&item.key, &blob, location)? {
                    Some(file) => Some(file),
                    None => self.find_in_newest(item, &blob)?,
                };
                file.map_or(Ok(()), |file| file.check().map(drop))
            }
        }
    }

    /// Looks in the newest version for a value that is missing at its old place: it was moved.
    /// Returns `None` if it was removed after it was superseded.
    fn find_in_newest(&self, item: &ListEntry, blob: &BlobRef) -> Result<Option<OpenBlob>> {
        let _work = self.work.lock(); // no file moves while it is held
        let (version, hash) = (self.version(), self.keyspace.hash(&item.key));
        for table in version.tables().filter(|table| table.overlaps(&item.key, &item.key)) {
            match table.list.find(hash, &item.key, item.seq)? {
                Some((seq, ValueRef::File { blob: now, location }))
                    if seq == item.seq && now.id == blob.id =>
                {
                    let file = table.open_blob(&item.key, blob, location)?;
                    return file
                        .map_or_else(|| Err(table.missing_error(&item.key, blob)), |file| Ok(Some(file)));
                }
                _ => {}
            }
        }
        Ok(None)
    }
}
