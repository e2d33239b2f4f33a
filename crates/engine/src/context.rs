//! # Engine context: the services that an engine uses
//!
//! Gives engines access to segments, blobs, memory and the hash of keys. Offers no syncs and no
//! threads. Only an engine with files of its own gets a path ([`EngineDir`]).

use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use crate::decoding::DecodedValues;
use crate::window::CommitProgress;
use sheaf_log::blob::Blobs;
use sheaf_log::blob_reader::{BlobCache, ValueCache};
use sheaf_log::segment::{SLOT_COUNT, SegmentTable};
use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_platform::disk::{DirEntry, Disk, remove_tree};
use sheaf_platform::error::{IoContext, IoOp, Result};
use sheaf_platform::memory::Memory;
use sheaf_platform::memory::cache_arbiter::CacheArbiter;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of segments with tiny sizes. Small, because tests open such databases a million
/// times.
const TINY_SEGMENT_SLOTS: usize = 1 << 12;

/// Directory that contains the directories of the engines' own files.
pub const ENGINE_DIR: &str = "own";

fn file_name(id: KeyspaceId) -> String {
    format!("{:08x}", id.0)
}

/// Lists a directory; `None` if there is no such directory.
fn list(disk: &dyn Disk, dir: &Path) -> Result<Option<Vec<DirEntry>>> {
    match disk.list(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        entries => entries.during(IoOp::List, dir).map(Some),
    }
}

/// Directories for the engines' own files, one for each keyspace. An engine creates its directory
/// when it needs it.
#[derive(Debug)]
pub struct EngineDir {
    /// Disk that contains the directories.
    pub disk: Arc<dyn Disk>,
    /// True if the database is open read-only: the engine must not write.
    pub read_only: bool,
    dir: PathBuf,
}

impl EngineDir {
    /// Returns the engine directories below the directory of `database`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, database: &Path, read_only: bool) -> EngineDir {
        EngineDir { disk, read_only, dir: database.join(ENGINE_DIR) }
    }

    /// Returns the path of the directory of a keyspace.
    #[must_use]
    pub fn of(&self, id: KeyspaceId) -> PathBuf {
        self.dir.join(file_name(id))
    }

    /// Returns the path of a keyspace's directory relative to the database's directory.
    pub fn name_of(id: KeyspaceId) -> PathBuf {
        PathBuf::from(ENGINE_DIR).join(file_name(id))
    }

    /// Returns whether the keyspace has a directory.
    ///
    /// # Errors
    ///
    /// Returns [`Io`](sheaf_platform::error::Error::Io) if the directory cannot be listed.
    pub fn exists(&self, id: KeyspaceId) -> Result<bool> {
        Ok(list(&*self.disk, &self.of(id))?.is_some())
    }

    /// Returns the keyspaces that have a directory.
    ///
    /// # Errors
    ///
    /// Returns [`Io`](sheaf_platform::error::Error::Io) if the directory above them cannot be
    /// listed.
    pub fn ids(&self) -> Result<Vec<KeyspaceId>> {
        let entries = list(&*self.disk, &self.dir)?.unwrap_or_default();
        let names = entries.iter().filter(|entry| entry.is_dir && entry.name.len() == 8);
        Ok(names.filter_map(|entry| u32::from_str_radix(&entry.name, 16).ok().map(KeyspaceId)).collect())
    }

    /// Returns whether the directory of the keyspace contains anything.
    ///
    /// # Errors
    ///
    /// Returns [`Io`](sheaf_platform::error::Error::Io) if it cannot be listed.
    pub fn has_files(&self, id: KeyspaceId) -> Result<bool> {
        Ok(list(&*self.disk, &self.of(id))?.is_some_and(|entries| !entries.is_empty()))
    }

    /// Removes the directory of a keyspace with its content.
    ///
    /// # Errors
    ///
    /// Returns [`Io`](sheaf_platform::error::Error::Io) if the directory cannot be listed or
    /// removed.
    pub fn remove(&self, id: KeyspaceId) -> Result<()> {
        remove_tree(&*self.disk, &self.of(id))
    }

    /// Removes the directories of keyspaces that no longer exist, as `is_there` reports.
    ///
    /// # Errors
    ///
    /// Returns [`Io`](sheaf_platform::error::Error::Io) if a directory cannot be listed or removed.
    pub fn sweep(&self, is_there: impl Fn(KeyspaceId) -> bool) -> Result<()> {
        for entry in list(&*self.disk, &self.dir)?.unwrap_or_default() {
            let id = u32::from_str_radix(&entry.name, 16).map(KeyspaceId);
            if id.is_ok_and(|id| entry.name.len() == 8 && !is_there(id)) {
                remove_tree(&*self.disk, &self.dir.join(&entry.name))?;
            }
        }
        Ok(())
    }
}

/// Services of one open database.
#[derive(Debug)]
pub struct EngineContext {
    /// Table of the segments. It maps addresses to frames.
    pub segments: SegmentTable,
    /// Blobs of the database.
    pub blobs: Arc<Blobs>,
    /// Account of the memory budget.
    pub memory: Memory,
    /// Cache of recently read blobs.
    pub blob_cache: BlobCache,
    /// Cache of decompressed values.
    pub decoded_values: DecodedValues,
    /// Secret key of the keyed hashes.
    hash_key: [u64; 2],
    /// True if directories and buckets are so small that 200 operations reach every code path.
    pub tiny: bool,
    /// True if background work runs only on request.
    pub inline: bool,
    /// Space that an engine may use on disk, as a multiple of its live data. Engines try to stay
    /// below it.
    pub space_limit: f64,
    /// `space_limit`, if the caller has set it. An engine must then keep its own files and its part
    /// of the journal below it, and throttle writers for that.
    pub space_bound: Option<f64>,
    /// Directories for the engines' own files. `None` for a context without a database.
    pub engine_dir: Option<EngineDir>,
    /// Arbiter that divides the memory for caches.
    pub cache_arbiter: CacheArbiter,
    /// Progress of the commits: which ones are visible.
    pub commit_progress: Arc<CommitProgress>,
    /// Clock of the database.
    pub clock: Arc<dyn Clock>,
    retired_blobs: Mutex<Vec<(Seq, u64)>>,
    /// Whether the change feed keeps the blobs of past changes.
    retains_changes: AtomicBool,
}

impl ValueCache for EngineContext {
    fn insert_after_read(&self, id: u64, bytes: &[u8]) {
        self.blob_cache.insert_after_read(id, bytes, &self.memory);
    }
}

impl EngineContext {
    /// Returns the services of one open database.
    #[must_use]
    pub fn new(blobs: Arc<Blobs>, budget: u64, hash_key: u128, tiny: bool) -> EngineContext {
        let key = hash_key.to_le_bytes();
        EngineContext {
            segments: SegmentTable::with_slots(if tiny { TINY_SEGMENT_SLOTS } else { SLOT_COUNT }),
            blobs,
            memory: Memory::new(budget),
            blob_cache: BlobCache::new(budget),
            decoded_values: DecodedValues::new(budget),
            hash_key: [sheaf_platform::codec::u64_at(&key, 0), sheaf_platform::codec::u64_at(&key, 8)],
            tiny,
            inline: true,
            space_limit: 1.6,
            space_bound: None,
            engine_dir: None,
            cache_arbiter: CacheArbiter::default(),
            commit_progress: Arc::default(),
            clock: Arc::new(SystemClock),
            retired_blobs: Mutex::default(),
            retains_changes: AtomicBool::new(false),
        }
    }

    /// Returns the SipHash-1-3 of a key, keyed with the secret of the database. The formats on disk
    /// depend on this function.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let [k0, k1] = self.hash_key;
        let mut hasher = SipHasher13::new_with_keys(k0, k1);
        hasher.write(key);
        hasher.finish()
    }

    /// Waits until commit `seq` is visible. A reader that found an entry of `seq` calls this. Until
    /// then a kill of the process could still remove the entry (decisions/0027, W4). Usually
    /// returns at once. The caller must hold no lock that
    /// [`EngineCommits::apply`](crate::contract::EngineCommits::apply) takes.
    ///
    /// # Errors
    ///
    /// Returns [`Poisoned`](sheaf_platform::error::Error::Poisoned) if the commit, or an earlier
    /// one, failed and therefore never becomes visible.
    #[inline]
    pub fn wait_visible(&self, seq: Seq) -> Result<()> {
        self.commit_progress.wait(seq)
    }

    /// Returns the context with another value of [`EngineContext::space_limit`].
    #[must_use]
    pub fn with_space_limit(mut self, times: f64) -> EngineContext {
        self.space_limit = times;
        self
    }

    /// Returns the context with another value of [`EngineContext::space_bound`].
    #[must_use]
    pub fn with_space_bound(mut self, times: Option<f64>) -> EngineContext {
        self.space_bound = times;
        self
    }

    /// Returns the context with another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> EngineContext {
        self.clock = clock;
        self
    }

    /// Returns the context with directories for the engines' own files.
    #[must_use]
    pub fn with_engine_dir(mut self, engine_dir: EngineDir, inline: bool) -> EngineContext {
        (self.engine_dir, self.inline) = (Some(engine_dir), inline);
        self
    }

    /// Returns the directory of a keyspace. The path is empty if the context has no directories.
    #[must_use]
    pub fn dir_of(&self, id: KeyspaceId) -> PathBuf {
        self.engine_dir.as_ref().map_or_else(PathBuf::new, |engine_dir| engine_dir.of(id))
    }

    /// Removes the directory of a keyspace that was durably dropped. Ignores errors: the next
    /// opening removes the rest.
    pub fn remove_dir_of(&self, id: KeyspaceId) {
        if let Some(engine_dir) = self.engine_dir.as_ref().filter(|engine_dir| !engine_dir.read_only) {
            let _ = engine_dir.remove(id);
        }
    }

    /// Registers blob `id` as superseded by commit `seq`. No view needs it. The store frees the
    /// blob when `seq` is durable.
    pub fn retire_blob(&self, seq: Seq, id: u64) {
        self.retired_blobs.lock().push((seq, id));
    }

    /// Sets whether the change feed keeps the blobs of past changes.
    pub fn set_retains_changes(&self, retains: bool) {
        self.retains_changes.store(retains, Ordering::Release);
    }

    /// Removes the old name of blob `id`, which an engine has adopted under another name. The store
    /// removes it later if the change feed may refer to it. If the removal fails, the next opening
    /// removes the name.
    pub fn remove_adopted_blob(&self, id: u64) {
        match self.retains_changes.load(Ordering::Acquire) {
            true => self.retire_blob(Seq::ZERO, id),
            false => drop(self.blobs.remove(id)),
        }
    }

    /// Removes and returns the registered blobs that were superseded at or before `durable`.
    pub fn take_retired_blobs(&self, durable: Seq) -> Vec<u64> {
        let mut dead = self.retired_blobs.lock();
        let mut gone = Vec::new();
        dead.retain(|(seq, id)| {
            let stays = *seq > durable;
            if !stays {
                gone.push(*id);
            }
            stays
        });
        gone
    }
}
