//! # Sketches of load, over closings
//!
//! The file LOAD has the sketches of all keyspaces (docs/format/load.md). It is history, not data:
//! nothing depends on it, no error comes of it, a backup leaves it out.
//!
//! ## Picture
//!
//! ```text
//!   opening: LOAD read, if it is whole and of this database ──> each keyspace's `Load` goes on from there
//!   every five minutes in which something was sampled (the keeper), and at the orderly end:
//!       LOAD.new written and synced ──> renamed to LOAD, directory synced
//! ```
//!
//! A keyspace that was cleared or replaced goes on with its sketch: what it is used for is its
//! users' doing. One that was converted does so without latencies and stalls, which were the other
//! engine's. One that was dropped takes its sketch along.
//!
//! ## Crash
//!
//! Whatever was sampled since LOAD was last written is lost; so is what a clearing or a conversion
//! took over since, whose number LOAD does not know. Until the directory is synced its name shows
//! the file before, which is whole. What is not whole is forgotten.
//!
//! ## Costs
//!
//! Some KiB a keyspace that is in use; two syncs that no commit waits for. An opening reads one
//! file. A full disk keeps the old file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{KeyspaceState, Store};
use crate::disk::{Disk, OpenMode};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::workload::{self, LatencyKind, SampleStart, SampledCall, WorkloadStats};

/// The file's name.
pub(crate) const WORKLOAD_FILE: &str = "LOAD";
/// Its name while it is written.
const WORKLOAD_TEMP_FILE: &str = "LOAD.new";

/// Whether a file of that name has sketches, whole or not.
pub(super) fn is_workload_file(name: &str) -> bool {
    name == WORKLOAD_FILE || name == WORKLOAD_TEMP_FILE
}
/// It is written at most so often, but for the end.
const SAVE_INTERVAL: Duration = Duration::from_secs(300);
/// A longer one is none of ours.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// What the store knows of its own sketches.
#[derive(Debug, Default)]
pub(crate) struct WorkloadSaver {
    /// Something was sampled since LOAD was written.
    is_dirty: AtomicBool,
    /// Up to when time was told to the sketches: LOAD was written then, or read.
    accounted_until: Mutex<Duration>,
}

impl Store {
    /// The look at a call, if it is one to look at. To be asked once, at its beginning.
    #[inline(always)]
    pub fn sample(&self) -> Option<SampleStart> {
        if workload::is_sample_due() { Some(self.begin_sample()) } else { None }
    }

    /// The look at a call that is one to look at ([`workload::is_sample_due`]) begins.
    #[cold]
    #[inline(never)]
    pub fn begin_sample(&self) -> SampleStart {
        self.workload_saver.is_dirty.store(true, Ordering::Relaxed);
        SampleStart { began: self.clock.now() }
    }

    /// The sampled call is over.
    #[cold]
    #[inline(never)]
    pub fn record_call(
        &self,
        keyspace: &KeyspaceState,
        sample: SampleStart,
        served: Option<LatencyKind>,
        call: &SampledCall<'_>,
    ) {
        let took = self.clock.now().saturating_sub(sample.began);
        keyspace.workload().record(call, served.map(|served| (served, took)));
    }

    /// What `kept` is used for.
    pub fn workload_stats(&self, keyspace: &KeyspaceState) -> WorkloadStats {
        let keys = keyspace.engine().map_or(0, |engine| engine.stats().keys);
        let mut stats = keyspace.workload().stats(keys);
        if stats.samples > 0 && !self.options.read_only {
            let told = *self.workload_saver.accounted_until.lock();
            stats.seconds += self.clock.now().saturating_sub(told).as_secs_f64();
        }
        stats
    }

    /// At opening: goes on from what LOAD says.
    pub(super) fn restore_workloads(&self) {
        *self.workload_saver.accounted_until.lock() = self.clock.now();
        if self.options.inline {
            workload::reseed();
        }
        if !self.options.read_only {
            let _ = self.disk.remove(&self.dir.join(WORKLOAD_TEMP_FILE)); // of a crash
        }
        let Some(file) = read_file(&*self.disk, &self.dir.join(WORKLOAD_FILE)) else { return };
        let Some(mut pasts) = workload::decode(self.id, &file) else { return };
        for keyspace in self.catalog.map().values() {
            if let Some(past) = pasts.remove(&keyspace.id()) {
                keyspace.set_workload(Arc::new(workload::WorkloadRecorder::from_history(past)));
            }
        }
    }

    /// Writes LOAD if that was not done for long.
    pub(super) fn save_workloads_if_due(&self) {
        let since = || self.clock.now().saturating_sub(*self.workload_saver.accounted_until.lock());
        if self.workload_saver.is_dirty.load(Ordering::Relaxed) && since() >= SAVE_INTERVAL {
            self.save_workloads();
        }
    }

    /// Writes LOAD if there is anything new. What fails is left: the file before stays, or none.
    pub(super) fn save_workloads(&self) {
        if !self.workload_saver.is_dirty.swap(false, Ordering::Relaxed) {
            return;
        }
        let now = self.clock.now();
        let passed =
            now.saturating_sub(std::mem::replace(&mut *self.workload_saver.accounted_until.lock(), now));
        let past = |keyspace: &Arc<KeyspaceState>| {
            keyspace.workload().add_open_time(passed.as_secs_f64());
            Some((keyspace.id(), keyspace.workload().history()?))
        };
        let pasts: Vec<_> = self.catalog.map().values().filter_map(past).collect();
        let bytes = workload::encode(self.id, &pasts);
        let unborn = self.dir.join(WORKLOAD_TEMP_FILE);
        match replace_file(&*self.disk, &unborn, &self.dir.join(WORKLOAD_FILE), &bytes) {
            Ok(()) => drop(self.disk.sync_dir(&self.dir)),
            Err(_) => drop(self.disk.remove(&unborn)),
        }
    }
}

/// The bytes of a file; none if it cannot be had.
fn read_file(disk: &dyn Disk, path: &Path) -> Option<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read).ok()?;
    let len = file.len().ok().filter(|len| *len <= MAX_FILE_BYTES)?;
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    file.read_at(0, &mut bytes).ok()?;
    Some(bytes)
}

/// Has `path` hold these bytes, whole, by way of `unborn`.
fn replace_file(disk: &dyn Disk, unborn: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    match disk.remove(unborn) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = disk.open(unborn, OpenMode::Create)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    disk.rename(unborn, path)
}
