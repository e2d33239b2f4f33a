//! # Ground: what an engine may use
//!
//! Services of the base that engines read from. No syncs, no threads; a path only for the engine
//! that keeps files of its own ([`EngineDir`]).

use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use crate::blob::Blobs;
use crate::blob_reader::BlobCache;
use crate::cache_arbiter::CacheArbiter;
use crate::disk::{DirEntry, Disk, remove_tree};
use crate::error::{IoContext, Result};
use crate::memory::Memory;
use crate::segment::{SLOT_COUNT, SegmentTable};
use crate::sync::Mutex;
use crate::types::{KeyspaceId, Seq};
use crate::window::CommitProgress;

/// Segments there can be at a time in tiny geometry, which is opened a million times.
const TINY_SEGMENT_SLOTS: usize = 1 << 12;

/// Where the directories of engines' own files are.
pub(crate) const ENGINE_DIR: &str = "own";

fn file_name(id: KeyspaceId) -> String {
    format!("{:08x}", id.0)
}

/// What a directory has; `None` if there is no such directory.
fn list(disk: &dyn Disk, dir: &Path) -> Result<Option<Vec<DirEntry>>> {
    match disk.list(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        entries => entries.during("list", dir).map(Some),
    }
}

/// A place for files of an engine's own: one directory a keyspace, which is made when it is needed.
#[derive(Debug)]
pub struct EngineDir {
    /// The disk it is on.
    pub disk: Arc<dyn Disk>,
    /// Nothing may be written.
    pub read_only: bool,
    dir: PathBuf,
}

impl EngineDir {
    /// Below the database's directory.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, database: &Path, read_only: bool) -> EngineDir {
        EngineDir { disk, read_only, dir: database.join(ENGINE_DIR) }
    }

    /// The directory of a keyspace.
    #[must_use]
    pub fn of(&self, id: KeyspaceId) -> PathBuf {
        self.dir.join(file_name(id))
    }

    /// Its name below the database's directory.
    pub(crate) fn name_of(id: KeyspaceId) -> PathBuf {
        PathBuf::from(ENGINE_DIR).join(file_name(id))
    }

    /// Returns whether the keyspace has a directory.
    ///
    /// # Errors
    ///
    /// Returns [`Io`](crate::error::Error::Io) if the directory cannot be listed.
    pub fn exists(&self, id: KeyspaceId) -> Result<bool> {
        Ok(list(&*self.disk, &self.of(id))?.is_some())
    }

    /// Returns the keyspaces that have a directory.
    ///
    /// # Errors
    ///
    /// Returns [`Io`](crate::error::Error::Io) if the directory above them cannot be listed.
    pub(crate) fn ids(&self) -> Result<Vec<KeyspaceId>> {
        let entries = list(&*self.disk, &self.dir)?.unwrap_or_default();
        let names = entries.iter().filter(|entry| entry.is_dir && entry.name.len() == 8);
        Ok(names.filter_map(|entry| u32::from_str_radix(&entry.name, 16).ok().map(KeyspaceId)).collect())
    }

    /// Returns whether there is anything in the directory of the keyspace.
    ///
    /// # Errors
    ///
    /// Returns [`Io`](crate::error::Error::Io) if it cannot be listed.
    pub fn has_files(&self, id: KeyspaceId) -> Result<bool> {
        Ok(list(&*self.disk, &self.of(id))?.is_some_and(|entries| !entries.is_empty()))
    }

    /// Removes the directory of a keyspace.
    pub fn remove(&self, id: KeyspaceId) -> Result<()> {
        remove_tree(&*self.disk, &self.of(id))
    }

    /// Removes the directories of keyspaces that are not there any more.
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

/// The services.
#[derive(Debug)]
pub struct EngineContext {
    /// From addresses to frames.
    pub segments: SegmentTable,
    /// Values beside the logs.
    pub blobs: Arc<Blobs>,
    /// The budget.
    pub memory: Memory,
    /// Values from files that were read lately.
    pub blob_cache: BlobCache,
    /// Secret of the keyed hashes.
    hash_key: [u64; 2],
    /// Directory and bucket sizes small enough that everything happens within 200 operations.
    pub tiny: bool,
    /// Background work is done when asked for only.
    pub inline: bool,
    /// How many times the live data what engines keep may take on disk, as far as they can help it.
    pub space_limit: f64,
    /// For files of engines' own; none where there is no database around.
    pub engine_dir: Option<EngineDir>,
    /// Of the shares of caches.
    pub cache_arbiter: CacheArbiter,
    /// The progress of the commits.
    pub(crate) commit_progress: Arc<CommitProgress>,
    retired_blobs: Mutex<Vec<(Seq, u64)>>,
}

impl EngineContext {
    /// The services of one open database.
    #[must_use]
    pub fn new(blobs: Arc<Blobs>, budget: u64, hash_key: u128, tiny: bool) -> EngineContext {
        let key = hash_key.to_le_bytes();
        EngineContext {
            segments: SegmentTable::with_slots(if tiny { TINY_SEGMENT_SLOTS } else { SLOT_COUNT }),
            blobs,
            memory: Memory::new(budget),
            blob_cache: BlobCache::new(budget),
            hash_key: [crate::frame::u64_at(&key, 0), crate::frame::u64_at(&key, 8)],
            tiny,
            inline: true,
            space_limit: 1.6,
            engine_dir: None,
            cache_arbiter: CacheArbiter::default(),
            commit_progress: Arc::default(),
            retired_blobs: Mutex::default(),
        }
    }

    /// The hash of a key, by the database's secret: SipHash-1-3. Formats rely on it.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let [k0, k1] = self.hash_key;
        let mut hasher = SipHasher13::new_with_keys(k0, k1);
        hasher.write(key);
        hasher.finish()
    }

    /// Waits until all readers may see commit `seq`, of which an entry was found: until then a kill
    /// of the process could remove it (decisions/0027, W4). Returns at once as a rule. The caller
    /// holds no lock that [`Engine::apply`](crate::engine::Engine::apply) takes.
    ///
    /// # Errors
    ///
    /// Returns [`Poisoned`](crate::error::Error::Poisoned) if the commit, or one before it, failed,
    /// so that it never becomes visible.
    #[inline]
    pub fn wait_visible(&self, seq: Seq) -> Result<()> {
        self.commit_progress.wait(seq)
    }

    /// The same, with another limit of the disk that is taken.
    #[must_use]
    pub fn with_space_limit(mut self, times: f64) -> EngineContext {
        self.space_limit = times;
        self
    }

    /// The same, with a place for files of engines' own.
    #[must_use]
    pub fn with_engine_dir(mut self, engine_dir: EngineDir, inline: bool) -> EngineContext {
        (self.engine_dir, self.inline) = (Some(engine_dir), inline);
        self
    }

    /// The directory of a keyspace; nowhere if there is no place for it.
    #[must_use]
    pub fn dir_of(&self, id: KeyspaceId) -> PathBuf {
        self.engine_dir.as_ref().map_or_else(PathBuf::new, |engine_dir| engine_dir.of(id))
    }

    /// The keyspace is durably dropped: its directory goes. What stays is swept at the next
    /// opening.
    pub fn remove_dir_of(&self, id: KeyspaceId) {
        if let Some(engine_dir) = self.engine_dir.as_ref().filter(|engine_dir| !engine_dir.read_only) {
            let _ = engine_dir.remove(id);
        }
    }

    /// Blob `id` was superseded by commit `seq` and no view needs it: it goes when that is durable.
    pub fn retire_blob(&self, seq: Seq, id: u64) {
        self.retired_blobs.lock().push((seq, id));
    }

    /// Blobs superseded at or before `durable`.
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
