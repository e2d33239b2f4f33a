//! # Workload statistics across openings
//!
//! The file LOAD contains the workload statistics of all keyspaces (docs/format/load.md). They are
//! history, not data: no operation depends on them or fails because of them, and backups omit them.
//!
//! ## Picture
//!
//! ```text
//!   opening: reads LOAD if it is valid and of this database ──> recorders continue from it
//!   every five minutes with samples (maintenance thread), and at a clean close:
//!       writes and syncs LOAD.new ──> renames it to LOAD, syncs the directory
//! ```
//!
//! A keyspace that was cleared or replaced keeps its statistics, because its users stay the same. A
//! converted keyspace loses latencies and stalls, which describe the previous engine. The
//! statistics of a dropped keyspace are dropped too.
//!
//! ## Crash
//!
//! Samples since the last write of LOAD are lost. A keyspace that was cleared or converted since
//! then loses its statistics, because LOAD does not contain its new id. Until the directory is
//! synced, the name LOAD may refer to the previous file, which is complete. An incomplete file is
//! ignored.
//!
//! ## Costs
//!
//! A few KiB for each keyspace in use, and two syncs for which no commit waits. On a full disk the
//! previous file stays.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::directory::{WORKLOAD_FILE, WORKLOAD_TEMP_FILE};
use crate::{KeyspaceState, Store};
use sheaf_engine::workload::{self, LatencyKind, SampleStart, SampledCall, WorkloadStats};
use sheaf_platform::disk::{Disk, OpenMode};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, Ordering};

/// Minimum interval between two writes, except at close.
const SAVE_INTERVAL: Duration = Duration::from_secs(300);
/// A larger file was not written by this code and is ignored.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// State of the writer of LOAD.
#[derive(Debug, Default)]
pub(crate) struct WorkloadSaver {
    /// Whether calls were sampled since LOAD was written.
    is_dirty: AtomicBool,
    /// Time up to which the open time is accounted for: the last write of LOAD, or the opening.
    accounted_until: Mutex<Duration>,
}

impl Store {
    /// Decides whether a call is sampled, and begins the sample. Must be called once, at the begin
    /// of the call.
    #[inline(always)]
    pub fn sample(&self) -> Option<SampleStart> {
        if workload::is_sample_due() { Some(self.begin_sample()) } else { None }
    }

    /// Begins a sample. The caller has checked [`workload::is_sample_due`].
    #[cold]
    #[inline(never)]
    pub fn begin_sample(&self) -> SampleStart {
        self.workload_saver.is_dirty.store(true, Ordering::Relaxed);
        SampleStart { began: self.clock.now() }
    }

    /// Records a sampled call at its end.
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

    /// Returns the workload statistics of `keyspace`.
    pub fn workload_stats(&self, keyspace: &KeyspaceState) -> WorkloadStats {
        let keys = keyspace.engine().map_or(0, |engine| engine.stats().keys);
        let mut stats = keyspace.workload().stats(keys);
        if stats.samples > 0 && !self.options.read_only {
            let told = *self.workload_saver.accounted_until.lock();
            stats.seconds += self.clock.now().saturating_sub(told).as_secs_f64();
        }
        stats
    }

    /// Restores the workload statistics from LOAD, at the opening.
    pub(crate) fn restore_workloads(&self) {
        *self.workload_saver.accounted_until.lock() = self.clock.now();
        if self.options.inline {
            workload::reseed();
        }
        if !self.options.read_only {
            let _ = self.disk.remove(&self.dir.join(WORKLOAD_TEMP_FILE)); // left by a crash
        }
        let Some(file) = read_file(&*self.disk, &self.dir.join(WORKLOAD_FILE)) else { return };
        let Some(mut pasts) = workload::decode(self.identity.id, &file) else { return };
        for keyspace in self.catalog.map().values() {
            if let Some(past) = pasts.remove(&keyspace.id()) {
                keyspace.set_workload(Arc::new(workload::WorkloadRecorder::from_history(past)));
            }
        }
    }

    /// Writes LOAD if the last write is long ago.
    pub(crate) fn save_workloads_if_due(&self) {
        let since = || self.clock.now().saturating_sub(*self.workload_saver.accounted_until.lock());
        if self.workload_saver.is_dirty.load(Ordering::Relaxed) && since() >= SAVE_INTERVAL {
            self.save_workloads();
        }
    }

    /// Writes LOAD if there are new samples. Ignores errors: the previous file stays, or none.
    pub(crate) fn save_workloads(&self) {
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
        let bytes = workload::encode(self.identity.id, &pasts);
        let temp_path = self.dir.join(WORKLOAD_TEMP_FILE);
        match replace_file(&*self.disk, &temp_path, &self.dir.join(WORKLOAD_FILE), &bytes) {
            Ok(()) => drop(self.disk.sync_dir(&self.dir)),
            Err(_) => drop(self.disk.remove(&temp_path)),
        }
    }
}

/// Returns the content of a file, or `None` if it cannot be read.
fn read_file(disk: &dyn Disk, path: &Path) -> Option<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read).ok()?;
    let len = file.len().ok().filter(|len| *len <= MAX_FILE_BYTES)?;
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    file.read_at(0, &mut bytes).ok()?;
    Some(bytes)
}

/// Replaces the file at `path` atomically. `temp_path` is the temporary name of the new file.
fn replace_file(disk: &dyn Disk, temp_path: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    match disk.remove(temp_path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = disk.open(temp_path, OpenMode::Create)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    disk.rename(temp_path, path)
}
