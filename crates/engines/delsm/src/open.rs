//! # Open: image and manifest
//!
//! The image of a checkpoint says up to which commit all were in tables: `layout 1 (= 1) | up to 8`. A manifest that has
//! less is damage: the journal has it no more. One that has more is what a crash after the checkpoint left.

use std::sync::Arc;

use sheaf_base::disk::How;
use sheaf_base::engine::{ImageSink, ImageSource};
use sheaf_base::error::{Damage, Error, IoContext, Result};
use sheaf_base::pair::{Pair, State};
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::types::Seq;

use crate::engine::{DelsmEngine, NAME};
use crate::list::{Home, List, What};
use crate::manifest::Manifest;
use crate::moves::Moving;
use crate::names;
use crate::pack::Pack;
use crate::tree::{Table, Version};
use crate::work::{Garbage, Job, Work};

const LAYOUT: u8 = 1;

/// The staged values that a table names.
pub(crate) fn staged_of(table: &Table) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    for block in 0..table.list.block_count() {
        for item in table.list.items(block)? {
            if let What::File { blob, home: Home::Staged } = item.what {
                ids.push(blob.id);
            }
        }
    }
    Ok(ids)
}

/// The staged values that these tables name, once they have other names: in the order of their inodes.
pub(crate) fn staged_garbage(tables: &[Arc<Table>]) -> Result<Vec<Garbage>> {
    let ids: Vec<Vec<u64>> = tables.iter().map(|table| staged_of(table)).collect::<Result<_>>()?;
    let mut ids = ids.concat();
    ids.sort_unstable();
    Ok(ids.into_iter().map(Garbage::Staged).collect())
}

impl DelsmEngine {
    /// Writes the image. All that was frozen is in tables.
    pub(crate) fn save_image(&self, out: &mut dyn ImageSink) -> Result<()> {
        out.put(&[LAYOUT])?;
        out.put(&self.work.lock().up_to.0.to_le_bytes())
    }

    /// Takes up an image, and what the manifest says.
    pub(crate) fn restore_image(&self, image: &mut dyn ImageSource) -> Result<()> {
        let (mut layout, mut up_to) = ([0; 1], [0; 8]);
        image.fill(&mut layout)?;
        if layout[0] != LAYOUT {
            return Err(image.nonsense("layout", u64::from(layout[0])));
        }
        image.fill(&mut up_to)?;
        let least = image.seq(u64::from_le_bytes(up_to))?;
        self.restore_files(least, None)
    }

    /// Takes up what the manifest says, which must have all up to `least`. Without an image that was to be there, both of its
    /// slots must be whole: then it is the newest that there was.
    pub(crate) fn restore_files(&self, least: Seq, damage: Option<Error>) -> Result<()> {
        let Some(home) = &self.shelf.ground.home else { return damage.map_or(Ok(()), Err) };
        let mut work = self.work.lock();
        let least = least.max(work.least); // what an image said that was not followed
        work.least = least;
        let pair = Pair::new(Arc::clone(&home.disk), &self.shelf.path);
        if let Some(damage) = damage {
            let mut is_whole = true;
            pair.check::<Manifest>(&mut |_| is_whole = false);
            if !is_whole {
                return Err(damage);
            }
        }
        let manifest: Option<Manifest> = pair.read()?;
        let up_to = manifest.as_ref().map_or(Seq::ZERO, |manifest| manifest.up_to);
        if up_to < least {
            // What is there is the older slot: the newer one was damaged.
            let slot = self.slot(manifest.as_ref().map_or(0, |manifest| manifest.generation + 1));
            let what = match home.disk.open(&slot, How::Read) {
                Ok(_) => Damage::BadField { field: "newest commit in tables", value: up_to.0 },
                Err(_) => Damage::Short { got: 0, expected: 1 },
            };
            return Err(Error::corrupt(&slot, 0, what));
        }
        let Some(manifest) = manifest else {
            // A directory without a manifest is what a crash left of the first flush.
            if !home.read_only && home.exists(self.id)? {
                home.remove(self.id)?;
            }
            return Ok(());
        };
        let owner = self.shelf.owner();
        if manifest.owner != owner {
            let (expected, got) = (u128::from(owner), u128::from(manifest.owner));
            let what = Damage::Foreign { field: "keyspace", expected, got };
            return Err(Error::corrupt(&self.slot(manifest.generation), 0, what));
        }
        if !home.read_only {
            pair.settle(&manifest)?;
            home.disk.spread(&self.shelf.path);
        }
        let version = self.load(&manifest, None)?;
        *work = self.work_after(&version, &manifest)?;
        work.pair = Some(pair);
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
        let home = self.shelf.ground.home.as_ref().filter(|home| home.read_only);
        let home =
            home.ok_or(Error::Unsupported { engine: NAME, feature: "partial recovery for writing" })?;
        let pair = Pair::new(Arc::clone(&home.disk), &self.shelf.path);
        let manifest: Manifest = pair
            .read()?
            .ok_or_else(|| Error::corrupt(&self.slot(0), 0, Damage::Short { got: 0, expected: 1 }))?;
        let version = self.load(&manifest, Some(skipped))?;
        let mut work = self.work.lock();
        *work = Work { generation: manifest.generation, up_to: manifest.up_to, ..Work::default() };
        drop(work);
        self.publish_version(version, false);
        Ok(())
    }

    /// The manifest's file of a generation.
    fn slot(&self, generation: u64) -> std::path::PathBuf {
        self.shelf.path.join(format!("{}.{}", Manifest::STEM, generation % 2))
    }

    /// Opens what the manifest names. A file that cannot be read is left out and reported to
    /// `skipped`, or is an error without it.
    fn load(&self, manifest: &Manifest, mut skipped: Option<&mut dyn FnMut(Error)>) -> Result<Version> {
        let disk = self.disk()?;
        let mut version = Version::default();
        for entry in &manifest.tables {
            let path = self.shelf.path.join(names::list_name(entry.list));
            let mut list = match (List::open(disk, path, manifest.owner, entry.list), &mut skipped) {
                (Err(error), Some(skipped)) => {
                    skipped(error);
                    continue;
                }
                (list, _) => list?,
            };
            if manifest.owner != self.shelf.owner() {
                list.forget_hashes();
            }
            let table = Table::new(&self.shelf, entry.dir, list, entry.marks);
            version.levels[usize::from(entry.level)].push(table);
        }
        for level in &version.levels[1..] {
            if !level.is_sorted_by(|a, b| a.list.last_key() < b.list.first_key()) {
                let what = Damage::BadField { field: "order of tables", value: level.len() as u64 };
                return Err(Error::corrupt(&self.slot(manifest.generation), 0, what));
            }
        }
        for number in &manifest.packs {
            let pack = match (Pack::open(disk, &self.shelf.path, manifest.owner, *number), &mut skipped) {
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
    fn work_after(&self, version: &Version, manifest: &Manifest) -> Result<Work> {
        let unsettled: Vec<Arc<Table>> =
            version.tables().filter(|table| !table.settled.load(Ordering::Relaxed)).cloned().collect();
        let after = staged_garbage(&unsettled)?;
        Ok(Work {
            generation: manifest.generation,
            up_to: manifest.up_to,
            next: self.next_number(manifest)?,
            job: (!unsettled.is_empty()).then(|| Job::Moving(Moving::new(unsettled, after))),
            sweep_due: true,
            ..Work::default()
        })
    }

    /// Above all numbers that a crash may have left in names.
    fn next_number(&self, manifest: &Manifest) -> Result<u64> {
        let found = self.disk()?.list(&self.shelf.path).during("list", &self.shelf.path)?;
        let used = found.iter().filter_map(|entry| names::number_of(&entry.name)).map(|number| number + 1);
        Ok(used.max().unwrap_or(0).max(manifest.next).max(1))
    }
}
