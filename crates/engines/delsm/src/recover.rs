//! # Open: image and manifest
//!
//! The image of a checkpoint says up to which commit all were in tables:
//! `layout 1 (= 1) | up to 8`. A manifest that has less is damage: the journal has it no more. One
//! that has more is what a crash after the checkpoint left.

use std::sync::Arc;

use sheaf_base::disk::OpenMode;
use sheaf_base::double_slot::{DoubleSlot, DoubleSlotState};
use sheaf_base::engine::{ImageSink, ImageSource};
use sheaf_base::error::{Damage, Error, IoContext, Result};
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::types::Seq;

use crate::engine::{DelsmEngine, NAME};
use crate::file_moves::FileMoves;
use crate::file_names;
use crate::list::{BlobLocation, KeyList, ValueRef};
use crate::maintenance::{Garbage, Job, MaintenanceState};
use crate::manifest::TableManifest;
use crate::pack::Pack;
use crate::tree::{Table, Version};

const LAYOUT: u8 = 1;

/// The staged values that a table names.
pub(crate) fn pending_blobs_of(table: &Table) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    for block in 0..table.list.block_count() {
        for item in table.list.entries_of_block(block)? {
            if let ValueRef::File { blob, location: BlobLocation::BlobStore } = item.value {
                ids.push(blob.id);
            }
        }
    }
    Ok(ids)
}

/// The staged values that these tables name, once they have other names: in the order of their
/// inodes.
pub(crate) fn pending_blob_garbage(tables: &[Arc<Table>]) -> Result<Vec<Garbage>> {
    let ids: Vec<Vec<u64>> = tables.iter().map(|table| pending_blobs_of(table)).collect::<Result<_>>()?;
    let mut ids = ids.concat();
    ids.sort_unstable();
    Ok(ids.into_iter().map(Garbage::Blob).collect())
}

impl DelsmEngine {
    /// Writes the image. All that was frozen is in tables.
    pub(crate) fn save_image(&self, out: &mut dyn ImageSink) -> Result<()> {
        out.put(&[LAYOUT])?;
        out.put(&self.work.lock().flushed_seq.0.to_le_bytes())
    }

    /// Takes up an image, and what the manifest says.
    pub(crate) fn restore_image(&self, image: &mut dyn ImageSource) -> Result<()> {
        let (mut layout, mut flushed_seq) = ([0; 1], [0; 8]);
        image.fill(&mut layout)?;
        if layout[0] != LAYOUT {
            return Err(image.invalid_field("layout", u64::from(layout[0])));
        }
        image.fill(&mut flushed_seq)?;
        let least = image.seq(u64::from_le_bytes(flushed_seq))?;
        self.restore_files(least, None)
    }

    /// Takes up what the manifest says, which must have all up to `least`. Without an image that
    /// was to be there, both of its slots must be whole: then it is the newest that there was.
    pub(crate) fn restore_files(&self, least: Seq, damage: Option<Error>) -> Result<()> {
        let Some(engine_dir) = &self.keyspace.context.engine_dir else { return damage.map_or(Ok(()), Err) };
        let mut work = self.work.lock();
        let least = least.max(work.min_flushed_seq); // what an image said that was not followed
        work.min_flushed_seq = least;
        let pair = DoubleSlot::new(Arc::clone(&engine_dir.disk), &self.keyspace.path);
        if let Some(damage) = damage {
            let mut is_whole = true;
            pair.check::<TableManifest>(&mut |_| is_whole = false);
            if !is_whole {
                return Err(damage);
            }
        }
        let manifest: Option<TableManifest> = pair.read()?;
        let flushed_seq = manifest.as_ref().map_or(Seq::ZERO, |manifest| manifest.flushed_seq);
        if flushed_seq < least {
            // What is there is the older slot: the newer one was damaged.
            let slot = self.manifest_path(manifest.as_ref().map_or(0, |manifest| manifest.generation + 1));
            let what = match engine_dir.disk.open(&slot, OpenMode::Read) {
                Ok(_) => Damage::BadField { field: "newest commit in tables", value: flushed_seq.0 },
                Err(_) => Damage::Truncated { got: 0, expected: 1 },
            };
            return Err(Error::corrupt(&slot, 0, what));
        }
        let Some(manifest) = manifest else {
            // A directory without a manifest is what a crash left of the first flush.
            if !engine_dir.read_only && engine_dir.exists(self.id)? {
                engine_dir.remove(self.id)?;
            }
            return Ok(());
        };
        let owner = self.keyspace.owner();
        if manifest.owner != owner {
            let (expected, got) = (u128::from(owner), u128::from(manifest.owner));
            let what = Damage::Foreign { field: "keyspace", expected, got };
            return Err(Error::corrupt(&self.manifest_path(manifest.generation), 0, what));
        }
        if !engine_dir.read_only {
            pair.rewrite_durably(&manifest)?;
            engine_dir.disk.spread_dirs(&self.keyspace.path);
        }
        let version = self.open_files(&manifest, None)?;
        *work = self.recovered_state(&version, &manifest)?;
        work.manifest_slots = Some(pair);
        drop(work);
        self.publish_version(version, false);
        Ok(())
    }

    /// Takes up the tables and packs that can be read, of whichever manifest can be. Calls
    /// `skipped` with the error of each file that cannot be read.
    ///
    /// The files are checked against the owner that the manifest names. It differs from this
    /// database's if the secret of the hashes is lost with ROOT. The filters of key lists are
    /// useless then, and are left out.
    pub(crate) fn restore_readable(&self, skipped: &mut dyn FnMut(Error)) -> Result<()> {
        let engine_dir = self.keyspace.context.engine_dir.as_ref().filter(|home| home.read_only);
        let engine_dir =
            engine_dir.ok_or(Error::Unsupported { engine: NAME, feature: "partial recovery for writing" })?;
        let pair = DoubleSlot::new(Arc::clone(&engine_dir.disk), &self.keyspace.path);
        let manifest: TableManifest = pair.read()?.ok_or_else(|| {
            Error::corrupt(&self.manifest_path(0), 0, Damage::Truncated { got: 0, expected: 1 })
        })?;
        let version = self.open_files(&manifest, Some(skipped))?;
        let mut work = self.work.lock();
        *work = MaintenanceState {
            generation: manifest.generation,
            flushed_seq: manifest.flushed_seq,
            ..MaintenanceState::default()
        };
        drop(work);
        self.publish_version(version, false);
        Ok(())
    }

    /// The manifest's file of a generation.
    fn manifest_path(&self, generation: u64) -> std::path::PathBuf {
        self.keyspace.path.join(format!("{}.{}", TableManifest::STEM, generation % 2))
    }

    /// Opens what the manifest names. A file that cannot be read is left out and reported to
    /// `skipped`, or is an error without it.
    fn open_files(
        &self,
        manifest: &TableManifest,
        mut skipped: Option<&mut dyn FnMut(Error)>,
    ) -> Result<Version> {
        let disk = self.disk()?;
        let mut version = Version::default();
        for entry in &manifest.tables {
            let path = self.keyspace.path.join(file_names::list_name(entry.list));
            let mut list = match (KeyList::open(disk, path, manifest.owner, entry.list), &mut skipped) {
                (Err(error), Some(skipped)) => {
                    skipped(error);
                    continue;
                }
                (list, _) => list?,
            };
            if manifest.owner != self.keyspace.owner() {
                list.drop_filter();
            }
            let table = Table::new(&self.keyspace, entry.dir, list, entry.flags);
            version.levels[usize::from(entry.level)].push(table);
        }
        for level in &version.levels[1..] {
            if !level.is_sorted_by(|a, b| a.list.last_key() < b.list.first_key()) {
                let what = Damage::BadField { field: "order of tables", value: level.len() as u64 };
                return Err(Error::corrupt(&self.manifest_path(manifest.generation), 0, what));
            }
        }
        for number in &manifest.packs {
            let pack = match (Pack::open(disk, &self.keyspace.path, manifest.owner, *number), &mut skipped) {
                (Err(error), Some(skipped)) => {
                    skipped(error);
                    continue;
                }
                (pack, _) => pack?,
            };
            version.packs.insert(*number, Arc::new(pack));
        }
        Ok(version)
    }

    /// What a crash left undone.
    fn recovered_state(&self, version: &Version, manifest: &TableManifest) -> Result<MaintenanceState> {
        let unsettled: Vec<Arc<Table>> =
            version.tables().filter(|table| !table.files_linked.load(Ordering::Relaxed)).cloned().collect();
        let after = pending_blob_garbage(&unsettled)?;
        Ok(MaintenanceState {
            generation: manifest.generation,
            flushed_seq: manifest.flushed_seq,
            next_number: self.next_number(manifest)?,
            job: (!unsettled.is_empty()).then(|| Job::Moving(FileMoves::new(unsettled, after))),
            is_sweep_due: true,
            ..MaintenanceState::default()
        })
    }

    /// Above all numbers that a crash may have left in names.
    fn next_number(&self, manifest: &TableManifest) -> Result<u64> {
        let found = self.disk()?.list(&self.keyspace.path).during("list", &self.keyspace.path)?;
        let used =
            found.iter().filter_map(|entry| file_names::number_in_name(&entry.name)).map(|number| number + 1);
        Ok(used.max().unwrap_or(0).max(manifest.next_number).max(1))
    }
}
