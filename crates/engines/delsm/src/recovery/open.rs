//! # Recovery: opening a keyspace from its image and manifest
//!
//! The image of a checkpoint contains the newest commit up to which all commits were in tables:
//! `layout 1 (= 1) | up to 8`. A manifest with a lower commit is damage: the journal no longer has
//! the commits in between. A manifest with a higher commit is left by a crash after the checkpoint.

use std::sync::Arc;

use sheaf_engine::contract::{ImageSink, ImageSource};
use sheaf_log::double_slot::{DoubleSlot, DoubleSlotState};
use sheaf_log::types::Seq;
use sheaf_platform::disk::OpenMode;
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::sync::atomic::Ordering;

use crate::engine::{DelsmEngine, NAME};
use crate::files::file_names;
use crate::files::list::{BlobLocation, KeyList, ValueRef};
use crate::files::manifest::TableManifest;
use crate::files::pack::Pack;
use crate::maintenance::file_moves::FileMoves;
use crate::maintenance::{Garbage, Job, MaintenanceState};
use crate::tree::{Table, Version};

const LAYOUT: u8 = 1;

/// Returns the ids of the blobs in the blob store that a table names.
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

/// Returns the blobs in the blob store that `tables` name, as garbage to remove once the files have
/// other names. They are in the order of their inodes.
pub(crate) fn pending_blob_garbage(tables: &[Arc<Table>]) -> Result<Vec<Garbage>> {
    let ids: Vec<Vec<u64>> = tables.iter().map(|table| pending_blobs_of(table)).collect::<Result<_>>()?;
    let mut ids = ids.concat();
    ids.sort_unstable();
    Ok(ids.into_iter().map(Garbage::Blob).collect())
}

impl DelsmEngine {
    /// Writes the image. All frozen commits must be in tables.
    pub(crate) fn save_image(&self, out: &mut dyn ImageSink) -> Result<()> {
        out.put(&[LAYOUT])?;
        out.put(&self.work.lock().flushed_seq.0.to_le_bytes())
    }

    /// Restores the keyspace from an image and the manifest.
    pub(crate) fn restore_image(&self, image: &mut dyn ImageSource) -> Result<()> {
        let (mut layout, mut flushed_seq) = ([0; 1], [0; 8]);
        image.fill(&mut layout)?;
        if layout[0] != LAYOUT {
            return Err(image.invalid_field("layout", u64::from(LAYOUT).into(), u64::from(layout[0])));
        }
        image.fill(&mut flushed_seq)?;
        let least = image.seq(u64::from_le_bytes(flushed_seq))?;
        self.restore_files(least, None)
    }

    /// Restores the tables of the manifest, which must contain all commits up to `least`. `damage`
    /// is the error of an image that could not be used. In that case both slots must be valid,
    /// which proves that the manifest is the newest one.
    pub(crate) fn restore_files(&self, least: Seq, damage: Option<Error>) -> Result<()> {
        let Some(engine_dir) = &self.keyspace.context.engine_dir else { return damage.map_or(Ok(()), Err) };
        let mut work = self.work.lock();
        // A failed restore from an image may have set a higher bound before.
        let least = least.max(work.min_flushed_seq);
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
            // The manifest is from the older slot: the newer one is damaged.
            let slot = self.manifest_path(manifest.as_ref().map_or(0, |manifest| manifest.generation + 1));
            if engine_dir.disk.open(&slot, OpenMode::Read).is_err() {
                return Err(Error::missing_file(&slot, "manifest"));
            }
            let what = Damage::bad_field("newest commit in tables", least.0.., flushed_seq.0);
            return Err(Error::corrupt(&slot, 0, "manifest", what));
        }
        let Some(manifest) = manifest else {
            // A crash during the first flush leaves a directory without a manifest.
            if !engine_dir.read_only && engine_dir.exists(self.id)? {
                engine_dir.remove(self.id)?;
            }
            return Ok(());
        };
        let owner = self.keyspace.owner();
        if manifest.owner != owner {
            let (expected, got) = (u128::from(owner), u128::from(manifest.owner));
            let what = Damage::Foreign { field: "keyspace", expected, got };
            return Err(Error::corrupt(&self.manifest_path(manifest.generation), 0, "manifest", what));
        }
        if !engine_dir.read_only {
            pair.rewrite_durably(&manifest)?;
            engine_dir.disk.spread_dirs(&self.keyspace.path);
        }
        let version = self.open_files(&manifest, None)?;
        *work = self.recovered_state(&version, &manifest)?;
        work.manifest_slots = Some(pair);
        drop(work);
        self.publish_version(version, 0);
        Ok(())
    }

    /// Restores the tables and packs that can be read, from the newest readable manifest. Calls
    /// `skipped` with the error of each file that cannot be read.
    ///
    /// Checks the files against the owner that the manifest names. It differs from the owner in
    /// this database if the secret of the hashes was lost with ROOT. The filters of key lists are
    /// useless then, and are dropped.
    pub(crate) fn restore_readable(&self, skipped: &mut dyn FnMut(Error)) -> Result<()> {
        let engine_dir = self.keyspace.context.engine_dir.as_ref().filter(|home| home.read_only);
        let engine_dir =
            engine_dir.ok_or(Error::Unsupported { engine: NAME, feature: "partial recovery for writing" })?;
        let pair = DoubleSlot::new(Arc::clone(&engine_dir.disk), &self.keyspace.path);
        let manifest: TableManifest =
            pair.read()?.ok_or_else(|| Error::missing_file(&self.manifest_path(0), "manifest"))?;
        let version = self.open_files(&manifest, Some(skipped))?;
        let mut work = self.work.lock();
        *work = MaintenanceState {
            generation: manifest.generation,
            flushed_seq: manifest.flushed_seq,
            ..MaintenanceState::default()
        };
        drop(work);
        self.publish_version(version, 0);
        Ok(())
    }

    /// Returns the path of the manifest slot of a generation.
    fn manifest_path(&self, generation: u64) -> std::path::PathBuf {
        self.keyspace.path.join(format!("{}.{}", TableManifest::STEM, generation % 2))
    }

    /// Opens the files that the manifest names. Reports a file that cannot be read to `skipped` and
    /// leaves it out; without `skipped` this is an error.
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
            let is_sorted = |pair: &[Arc<Table>]| pair[0].list.last_key() < pair[1].list.first_key();
            if let Some(before) = level.windows(2).position(|pair| !is_sorted(pair)) {
                let what = Damage::BadOrder { item: "table", index: before as u64 + 1 };
                return Err(Error::corrupt(&self.manifest_path(manifest.generation), 0, "manifest", what));
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

    /// Returns the state for maintenance, with the moves and the sweep that a crash may have
    /// interrupted.
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

    /// Returns a number above all numbers that a crash may have left in names.
    fn next_number(&self, manifest: &TableManifest) -> Result<u64> {
        let found = self.disk()?.list(&self.keyspace.path).during(IoOp::List, &self.keyspace.path)?;
        let used =
            found.iter().filter_map(|entry| file_names::number_in_name(&entry.name)).map(|number| number + 1);
        Ok(used.max().unwrap_or(0).max(manifest.next_number).max(1))
    }
}
