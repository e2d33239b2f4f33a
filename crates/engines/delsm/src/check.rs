//! # Check: reads everything that a keyspace has on disk

use sheaf_base::error::{Damage, Error, Result};

use crate::engine::DelsmEngine;
use crate::list::What;
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
    pub(crate) fn check(&self, report: &mut dyn FnMut(Error)) -> Result<()> {
        let work = self.work.lock(); // no file moves meanwhile
        if let Some(pair) = work.pair.as_ref().filter(|_| work.generation > 1) {
            pair.check::<Manifest>(&mut |error| report(error));
        }
        let version = self.version();
        for table in version.tables() {
            for block in 0..table.list.block_count() {
                if let Err(error) = self.check_block(&version, table, block, report) {
                    report(error);
                }
            }
        }
        Ok(())
    }

    fn check_block(
        &self,
        version: &Version,
        table: &Table,
        block: usize,
        report: &mut dyn FnMut(Error),
    ) -> Result<()> {
        for item in table.list.items(block)? {
            let checked = match item.what {
                What::Gone => Ok(()),
                What::Packed { pack, offset, len, sum } => match version.packs.get(&pack) {
                    None => Err(no_such_pack(&self.shelf, pack)),
                    Some(pack) => pack.read(offset, len, sum, |_| ()),
                },
                What::File { blob, home } => match table.file(&item.key, &blob, home) {
                    Ok(Some(file)) => file.check().map(drop),
                    Ok(None) => Err(table.missing(&item.key, &blob)),
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = checked {
                report(error);
            }
        }
        Ok(())
    }
}
