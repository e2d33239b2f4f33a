//! # Sketches of load, over closings
//!
//! The file LOAD has the sketches of all keyspaces (docs/format/load.md). It is history, not data: nothing depends on it, no
//! error comes of it, a backup leaves it out.
//!
//! ## Picture
//!
//! ```text
//!   opening: LOAD read, if it is whole and of this database ──> each keyspace's `Load` goes on from there
//!   every five minutes in which something was sampled (the keeper), and at the orderly end:
//!       LOAD.new written and synced ──> renamed to LOAD, directory synced
//! ```
//!
//! A keyspace that was cleared or replaced goes on with its sketch: what it is used for is its users' doing. One that was converted does so
//! without latencies and stalls, which were the other engine's. One that was dropped takes its sketch along.
//!
//! ## Crash
//!
//! Whatever was sampled since LOAD was last written is lost; so is what a clearing or a conversion took over since, whose
//! number LOAD does not know. Until the directory is synced its name shows the file before, which is whole. What is not whole is
//! forgotten.
//!
//! ## Costs
//!
//! Some KiB a keyspace that is in use; two syncs that no commit waits for. An opening reads one file. A full disk keeps the old file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Kept, Store};
use crate::disk::{Disk, How};
use crate::load::{self, Call, LoadStats, Sample, Served};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The file's name.
pub(crate) const LOAD: &str = "LOAD";
/// Its name while it is written.
const UNBORN: &str = "LOAD.new";

/// Whether a file of that name has sketches, whole or not.
pub(super) fn is_sketch(name: &str) -> bool {
    name == LOAD || name == UNBORN
}
/// It is written at most so often, but for the end.
const INTERVAL: Duration = Duration::from_secs(300);
/// A longer one is none of ours.
const LONGEST: u64 = 64 << 20;

/// What the store knows of its own sketches.
#[derive(Debug, Default)]
pub(crate) struct Sketches {
    /// Something was sampled since LOAD was written.
    is_news: AtomicBool,
    /// Up to when time was told to the sketches: LOAD was written then, or read.
    told: Mutex<Duration>,
}

impl Store {
    /// The look at a call, if it is one to look at. To be asked once, at its beginning.
    #[inline(always)]
    pub fn sample(&self) -> Option<Sample> {
        if load::is_due() { Some(self.begin_sample()) } else { None }
    }

    /// The look at a call that is one to look at ([`load::is_due`]) begins.
    #[cold]
    #[inline(never)]
    pub fn begin_sample(&self) -> Sample {
        self.sketches.is_news.store(true, Ordering::Relaxed);
        Sample { began: self.clock.now() }
    }

    /// The sampled call is over.
    #[cold]
    #[inline(never)]
    pub fn record(&self, kept: &Kept, sample: Sample, served: Option<Served>, call: &Call<'_>) {
        let took = self.clock.now().saturating_sub(sample.began);
        kept.load().record(call, served.map(|served| (served, took)));
    }

    /// What `kept` is used for.
    pub fn load_stats(&self, kept: &Kept) -> LoadStats {
        let keys = kept.engine().map_or(0, |engine| engine.stats().keys);
        let mut stats = kept.load().stats(keys);
        if stats.samples > 0 && !self.options.read_only {
            let told = *self.sketches.told.lock();
            stats.seconds += self.clock.now().saturating_sub(told).as_secs_f64();
        }
        stats
    }

    /// At opening: goes on from what LOAD says.
    pub(super) fn recall_loads(&self) {
        *self.sketches.told.lock() = self.clock.now();
        if self.options.inline {
            load::restart();
        }
        if !self.options.read_only {
            let _ = self.disk.remove(&self.dir.join(UNBORN)); // of a crash
        }
        let Some(file) = read(&*self.disk, &self.dir.join(LOAD)) else { return };
        let Some(mut pasts) = load::decode(self.id, &file) else { return };
        for kept in self.catalogue.map().values() {
            if let Some(past) = pasts.remove(&kept.id()) {
                kept.set_load(Arc::new(load::Load::from_past(past)));
            }
        }
    }

    /// Writes LOAD if that was not done for long.
    pub(super) fn save_loads_if_due(&self) {
        let since = || self.clock.now().saturating_sub(*self.sketches.told.lock());
        if self.sketches.is_news.load(Ordering::Relaxed) && since() >= INTERVAL {
            self.save_loads();
        }
    }

    /// Writes LOAD if there is anything new. What fails is left: the file before stays, or none.
    pub(super) fn save_loads(&self) {
        if !self.sketches.is_news.swap(false, Ordering::Relaxed) {
            return;
        }
        let now = self.clock.now();
        let passed = now.saturating_sub(std::mem::replace(&mut *self.sketches.told.lock(), now));
        let past = |kept: &Arc<Kept>| {
            kept.load().pass(passed.as_secs_f64());
            Some((kept.id(), kept.load().past()?))
        };
        let pasts: Vec<_> = self.catalogue.map().values().filter_map(past).collect();
        let bytes = load::encode(self.id, &pasts);
        let unborn = self.dir.join(UNBORN);
        match write(&*self.disk, &unborn, &self.dir.join(LOAD), &bytes) {
            Ok(()) => drop(self.disk.sync_dir(&self.dir)),
            Err(_) => drop(self.disk.remove(&unborn)),
        }
    }
}

/// The bytes of a file; none if it cannot be had.
fn read(disk: &dyn Disk, path: &Path) -> Option<Vec<u8>> {
    let file = disk.open(path, How::Read).ok()?;
    let len = file.len().ok().filter(|len| *len <= LONGEST)?;
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    file.read_at(0, &mut bytes).ok()?;
    Some(bytes)
}

/// Has `path` hold these bytes, whole, by way of `unborn`.
fn write(disk: &dyn Disk, unborn: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    match disk.remove(unborn) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = disk.open(unborn, How::Create)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    disk.rename(unborn, path)
}
