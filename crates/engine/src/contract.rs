//! # Contract of an engine
//!
//! An engine stores the pairs of a keyspace, or an index of them. It receives operations, records
//! and images; the store syncs the logs and runs the background work. An engine may have files of
//! its own below [`crate::context::EngineDir`], which it syncs itself. It may read the
//! clock, and run threads within a call. With `EngineContext::inline` its results must not depend
//! on either.
//!
//! ## Picture
//!
//! ```text
//!   prepare (any thread, may fail)
//!        -> [stripes of the keys: is_current? -> seq -> bytes to the log -> apply] -> acknowledged
//!        ^                           | no
//!        +---------------------------+  (prepares again)
//! ```
//!
//! Everything that can fail happens in [`Engine::prepare`], before a commit has a number. A call
//! between a commit's number and its end must not fail and must not wait for the disk.
//!
//! ## Threads
//!
//! The store holds the stripe of each key of a commit from `is_current` to the end of `apply`. An
//! engine sees the applies of one key one at a time, in the order of their seqs. The applies of
//! different keys run in parallel, in any order. [`Engine::freeze`] and [`Engine::image_published`]
//! run *alone*: no commit is between `is_current` and the end of its `apply`.

use std::ops::Bound;
use std::sync::Arc;

use crate::backup_files::PinnedFiles;
use crate::keys::{borrow_bound, is_above, is_below};
use crate::views::Views;
use sheaf_log::blob::BlobRef;
use sheaf_log::blob_reader::StoredValue;
use sheaf_log::options::{EngineOptions, OptionSpec};
use sheaf_log::record::RecordContent;
use sheaf_log::segment::Address;
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Error, Expected, Result};
use sheaf_platform::memory::cache_arbiter::CacheShare;

/// Features of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// True if the engine supports ranges, prefixes, first and last, and iteration in key order
    /// from both ends. Without it, `iter` returns every pair once in no particular order, and the
    /// other calls return `Unsupported`.
    pub ordered: bool,
}

/// Effect of an operation on its key.
#[derive(Clone, Copy, Debug)]
pub enum Action<'a> {
    /// Sets the value.
    Put(&'a [u8]),
    /// Sets a value that was written to a blob file before the commit.
    Blob(BlobRef),
    /// Removes the key.
    Remove,
    /// Writes nothing. The commit fails as stale if the key changes between `prepare` and the
    /// commit.
    Expect,
}

impl<'a> Action<'a> {
    /// Returns the content of the operation's record. Returns `None` for [`Action::Expect`], which
    /// has no record.
    #[must_use]
    pub fn content(&self) -> Option<RecordContent<'a>> {
        match self {
            Action::Put(value) => Some(RecordContent::Put(value)),
            Action::Blob(blob) => Some(RecordContent::Blob(*blob)),
            Action::Remove => Some(RecordContent::Remove),
            Action::Expect => None,
        }
    }
}

/// A key and its hash, as returned by [`Engine::hashed_key`]. A caller hashes a key once and passes
/// the result to several lookups.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'k> {
    /// The key.
    pub key: &'k [u8],
    /// Hash of the key. Zero for an engine that needs none.
    pub hash: u64,
}

/// One operation, from `prepare` to `apply`.
#[derive(Clone, Copy, Debug)]
pub struct EngineOp<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Hash of the key, if it is known. The store sets it before `prepare`.
    pub hash: Option<u64>,
    /// Effect on the key.
    pub action: Action<'a>,
    /// Seq of the key's newest entry, set by `prepare`; zero if there is none. For
    /// [`Action::Expect`] this is the expected version: the commit happens only if it is still the
    /// newest one.
    pub prior: Seq,
    /// Private words of the engine, carried from `prepare` to `apply`.
    pub note: [u64; 5],
    /// Log address of the record, set before `apply`.
    pub address: Address,
    /// Bytes of the record's frame, set before `apply`.
    pub span: u32,
    /// Number of earlier operations of the same commit, set before `prepare`. The memory that these
    /// operations need is not allocated yet.
    pub ops_before: u32,
    /// True if the commit may wait for a checkpoint, set before `prepare`. An engine over its
    /// budget may then return [`Error::MemoryBudgetExceeded`] at once. Otherwise it must read from
    /// the device to learn whether the key is new. The store repeats a refused operation with
    /// `may_wait` cleared.
    pub may_wait: bool,
}

impl<'a> EngineOp<'a> {
    /// Returns an operation that is not prepared yet.
    #[must_use]
    pub fn new(key: &'a [u8], action: Action<'a>) -> EngineOp<'a> {
        EngineOp {
            key,
            hash: None,
            action,
            prior: Seq::ZERO,
            note: [0; 5],
            address: Address::NONE,
            span: 0,
            ops_before: 0,
            may_wait: false,
        }
    }
}

/// Result of [`Engine::prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// The operation needs a record.
    Record,
    /// The operation needs no record: it removes a key that does not exist, or is an
    /// [`Action::Expect`].
    NoChange,
}

/// One record read back from a log by recovery.
#[derive(Clone, Copy, Debug)]
pub struct ReplayRecord<'a> {
    /// Seq of the record's commit.
    pub seq: Seq,
    /// The key.
    pub key: &'a [u8],
    /// Content of the record: a value, a reference to a blob, or a tombstone.
    pub content: RecordContent<'a>,
    /// Log address of the record.
    pub address: Address,
    /// Bytes of the record's frame.
    pub span: u32,
}

/// Liveness of an entry of the log, as GC asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The entry is the newest version of its key.
    Newest,
    /// The entry is an older version that a view needs.
    Pinned,
    /// The index does not refer to the entry.
    Dead,
}

/// Part of a pair that a cursor fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// Only the key.
    Keys,
    /// Key and value.
    Pairs,
}

/// Limits of a range. Keys are compared as unsigned bytes.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Lower end.
    pub low: Bound<Vec<u8>>,
    /// Upper end.
    pub high: Bound<Vec<u8>>,
}

impl Bounds {
    /// Returns the range of all keys.
    #[must_use]
    pub fn all() -> Bounds {
        Bounds { low: Bound::Unbounded, high: Bound::Unbounded }
    }

    /// Returns true if the range has no limits.
    #[must_use]
    pub fn is_all(&self) -> bool {
        matches!((&self.low, &self.high), (Bound::Unbounded, Bound::Unbounded))
    }

    /// Returns true if no key can be in the range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match (&self.low, &self.high) {
            (Bound::Included(l), Bound::Included(h)) => l > h,
            (Bound::Included(l) | Bound::Excluded(l), Bound::Included(h) | Bound::Excluded(h)) => l >= h,
            _ => false,
        }
    }

    /// Returns true if `key` is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        is_above(key, borrow_bound(&self.low)) && is_below(key, borrow_bound(&self.high))
    }
}

/// Iterator over the pairs of one keyspace at one view. A cursor moves in one direction: `next`
/// from the low end or `prev` from the high end.
///
/// A damaged entry, or a range of keys that a damaged block covers, is reported once as
/// [`Error::Corrupt`]. The next call continues behind it. Each pair outside of damaged ranges is
/// returned exactly once, so a walk ends after finitely many errors. If the end of a damaged range
/// is unknown, and after any other error, every later call reports the end.
pub trait Cursor: Send {
    /// Moves to the next pair; the first call moves to the first pair. Returns false at the end.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] for damaged data, as the trait describes, and [`Error::Io`] if a
    /// read fails.
    fn next(&mut self) -> Result<bool>;
    /// Moves to the previous pair; the first call moves to the last pair. Returns false at the end.
    ///
    /// # Errors
    ///
    /// Same as [`Cursor::next`].
    fn prev(&mut self) -> Result<bool>;
    /// Returns the key of the current pair.
    fn key(&self) -> &[u8];
    /// Returns the value of the current pair.
    fn value(&self) -> &[u8];
    /// Returns key and value of the current pair.
    fn pair(&self) -> (&[u8], &[u8]) {
        (self.key(), self.value())
    }
    /// Moves by one pair, upwards if `forward`, and returns that pair. Returns `None` at the end.
    ///
    /// # Errors
    ///
    /// Same as [`Cursor::next`].
    fn step(&mut self, forward: bool) -> Result<Option<(&[u8], &[u8])>> {
        let is_there = if forward { self.next()? } else { self.prev()? };
        Ok(if is_there { Some(self.pair()) } else { None })
    }
}

/// Loader for the initial pairs of a keyspace, which bypass the log ([`Engine::ingest`]). During
/// the load no commit writes to the keyspace and no checkpoint includes it. A loader that is
/// dropped before `finish` leaves files behind. [`Engine::drop_data`] or the sweep of the next
/// opening removes them.
pub trait Ingest: Send {
    /// Adds the next pair: a put of inline bytes or of a durable blob. Keys must be strictly
    /// ascending.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a write fails, and the engine's error if memory or disk space runs
    /// out.
    fn push(&mut self, key: &[u8], content: RecordContent<'_>) -> Result<()>;
    /// Ends the load. On return all pairs are durable, recovery finds them without an image, and
    /// the engine accepts commits.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a write or a sync fails.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Writer of an engine's image. Computes the checksums.
pub trait ImageSink {
    /// Appends bytes to the image.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the write fails.
    fn put(&mut self, bytes: &[u8]) -> Result<()>;
}

/// Reader of an engine's image. The checksums are already verified.
pub trait ImageSource {
    /// Fills `bytes` with the next bytes of the image.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the image ends before, and [`Error::Io`] if a read fails.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()>;
    /// Returns an error for a field with the invalid value `got` below a valid checksum.
    fn invalid_field(&self, field: &'static str, expected: Expected, got: u64) -> Error;
    /// Returns the slot of the segment that had `slot` when the image was made, or `None` if that
    /// segment was freed. A segment keeps its slot across openings, so addresses in an engine's own
    /// files remain valid. The slot of a freed segment stays empty until replay is complete.
    fn slot_of(&self, slot: u32) -> Option<u32>;
    /// Returns the seq `stored` in the image.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if `stored` is above the last commit that recovery accepts.
    fn seq(&self, stored: u64) -> Result<Seq>;
}

/// Statistics of a keyspace that its engine provides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Number of live keys.
    pub keys: u64,
    /// Bytes of the index in memory.
    pub index_bytes: u64,
    /// Number of old versions that snapshots and iterators pin.
    pub pinned_versions: u64,
}

/// Engine instance of one keyspace.
///
/// A checkpoint is this sequence of calls and steps of the store:
///
/// ```text
///   [alone: position, freeze] -> a sync round, ROOT -> maintain, step by step -> save -> ROOT
/// ```
///
/// An opening calls [`Engine::restore`] with the last published image, or else
/// [`Engine::restore_without_image`]. Then follow [`Engine::replay`] of records,
/// [`Engine::finish_replay`] and [`Engine::replay_finished`].
pub trait Engine: Send + Sync {
    /// Returns the name of the engine, as in the catalog.
    fn name(&self) -> &'static str;
    /// Returns the features of the engine.
    fn capabilities(&self) -> Capabilities;
    /// Returns the log that receives the commits of the keyspace.
    fn log(&self) -> LogId;

    /// Returns the size in bytes above which a value must be a blob, if the engine's limit is below
    /// the store's. The result must be constant.
    fn blob_threshold(&self) -> usize {
        usize::MAX
    }
    /// Returns whether the engine takes over blob files. Each of its blobs then needs a file of its
    /// own.
    fn takes_blob_files(&self) -> bool {
        false
    }

    /// Returns `key` with its hash, if the engine looks keys up by hash. Other calls take the
    /// result.
    fn hashed_key<'k>(&self, key: &'k [u8]) -> HashedKey<'k> {
        HashedKey { key, hash: 0 }
    }
    /// Prefetches the memory that a lookup of the key reads first. Must not wait.
    fn prefetch_index(&self, hashed_key: HashedKey<'_>) {
        let _ = hashed_key;
    }
    /// Does everything for `op` that can fail: checks limits, takes memory, reads the version that
    /// the operation replaces. Any thread may call this.
    ///
    /// # Errors
    ///
    /// Returns [`Error::MemoryBudgetExceeded`] if the operation does not fit into the budget, and
    /// [`Error::Io`] or [`Error::Corrupt`] if the replaced version cannot be read.
    fn prepare(&self, op: &mut EngineOp<'_>) -> Result<Preparation>;
    /// Returns whether the state that `prepare` saw still holds. The caller holds the stripe of the
    /// key. Other commits may run `is_current` and `apply` at the same time, but only for other
    /// keys. Must not fail or wait for the disk. May rarely return false without a reason: the
    /// store then prepares the commit again.
    fn is_current(&self, op: &EngineOp<'_>) -> bool;
    /// Applies `op` of commit `seq` to the index, after the bytes of its own commit are in the
    /// kernel. The caller holds the stripe of the key, so the applies of one key come in the order
    /// of their seqs. Other keys are applied at the same time, in any order. `views` was collected
    /// after `seq` was assigned: a view that is missing there reads this commit.
    ///
    /// Bytes of an earlier commit may still be missing. A reader that finds the new entry therefore
    /// calls [`EngineContext::wait_visible`](crate::context::EngineContext::wait_visible)
    /// before it returns the value (decisions/0027).
    fn apply(&self, seq: Seq, op: &EngineOp<'_>, views: &Views);

    /// Calls `found` with the value of `key` at `at`: its bytes, or the opened but unread blob.
    /// Returns false if there is no value. `at` is a registered view or [`Seq::LATEST`]. `found`
    /// may run at most once.
    ///
    /// At [`Seq::LATEST`] the engine must call
    /// [`EngineContext::wait_visible`](crate::context::EngineContext::wait_visible) with the
    /// seq of the entry before it calls `found` or returns true. During that call it must hold no
    /// lock that `apply` takes. For a missing key the store does the waiting.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::Corrupt`] if the entry cannot be read, and
    /// [`Error::Poisoned`] if a commit that the reader waits for failed.
    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(StoredValue<'_>)) -> Result<bool>;
    /// Like [`Engine::get_stored`], but reads a blob and passes its bytes to `found`.
    ///
    /// # Errors
    ///
    /// Same as [`Engine::get_stored`]; also if the blob cannot be read.
    fn get(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut file = None;
        let is_there = self.get_stored(at, key, &mut |stored| match stored {
            StoredValue::Bytes(bytes) => found(bytes),
            StoredValue::Blob(value) => file = Some(value),
        })?;
        if let Some(file) = file {
            file.read(found)?;
        }
        Ok(is_there)
    }
    /// Returns true if `key` has a value at `at`.
    ///
    /// # Errors
    ///
    /// Same as [`Engine::get`].
    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        self.get(at, key, &mut |_| {})
    }
    /// Prefetches the memory for lookups of `keys` and, if `entries` is true, their entries. Must
    /// not wait for the device.
    fn prefetch(&self, keys: &[HashedKey<'_>], entries: bool) {
        let _ = (keys, entries);
    }
    /// Returns a cursor over `bounds` at `at`. The caller keeps the view registered while the
    /// cursor lives. The cursor must not write memory that other cursors or writers write, such as
    /// a reference count of the engine. Otherwise scans would slow each other down.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] for bounds, if the engine is not ordered.
    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, projection: Projection) -> Result<Box<dyn Cursor + 'e>>;
    /// Returns the number of live keys in the newest state.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::Corrupt`] if the engine must read to count and the read
    /// fails.
    fn len(&self) -> Result<u64>;
    /// Returns true if there is no live key.
    ///
    /// # Errors
    ///
    /// Same as [`Engine::len`].
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Tells the engine that views were released. It may free versions that were superseded at or
    /// before `visible` and that none of `views` needs. `views` is a copy of the registry as of
    /// `visible`; later views cannot need such versions.
    fn trim(&self, views: &Views, visible: Seq);
    /// Starts a checkpoint, *alone*. The image that ends the checkpoint must contain everything
    /// committed so far. Must be short: an engine with files of its own only sets aside the data
    /// that [`Engine::maintain`] then moves.
    fn freeze(&self) {}
    /// Performs one bounded step of flushing frozen data, or of other work that is due. Returns
    /// true if there is more to do. Several threads may call this at once.
    ///
    /// Commits up to `durable_seq` are durable and below ROOT's floor. The engine must not write
    /// newer commits to any file but the log. Otherwise a recovery could end before the content of
    /// the engine's files (commit.md R12, scenario 8). `views` is a copy of the registry. A view
    /// that is registered during the step may need a version that is superseded during the step
    /// ([`Views::may_need`]).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::Corrupt`] if a file cannot be read or written.
    fn maintain(&self, views: &Views, durable_seq: Seq) -> Result<bool> {
        let _ = (views, durable_seq);
        Ok(false)
    }
    /// Performs one bounded step of optional maintenance that frees disk space or speeds up
    /// readers. The store calls this while the database is idle, and for a caller that asked for it
    /// (`Store::quiesce`, a compaction). Arguments and threads are
    /// as for [`Engine::maintain`]. Returns true if another step would gain more.
    ///
    /// Must return false once little is left to gain, and continue to do so until new commits or
    /// released views change that. Otherwise an idle database would never come to rest. The bytes
    /// written must be bounded by the bytes gained, times a constant. Versions pinned by views must
    /// be left alone.
    ///
    /// # Errors
    ///
    /// Same as [`Engine::maintain`].
    fn reclaim(&self, views: &Views, durable_seq: Seq) -> Result<bool> {
        let _ = (views, durable_seq);
        Ok(false)
    }
    /// Returns true if all replayed records are in the index, so that a checkpoint can begin. While
    /// it returns false, [`Engine::maintain`] inserts the rest, as far as damage permits.
    fn is_replay_finished(&self) -> bool {
        true
    }
    /// Returns true if all frozen data is flushed and no thread is flushing, so that the image can
    /// be saved.
    fn is_flushed(&self) -> bool {
        true
    }
    /// Returns the number of log bytes below which a checkpoint is not worth its cost, if the
    /// engine has a better estimate than the store.
    fn checkpoint_after(&self) -> u64 {
        0
    }
    /// Returns true if the engine needs a checkpoint. For example, the data to freeze uses too much
    /// memory, was not written for a long time, or would take long to replay.
    fn wants_checkpoint(&self) -> bool {
        false
    }
    /// Returns the bytes of the log that only this keyspace needs. For an engine of the journal:
    /// its records since the position of the newest complete checkpoint. For an engine of a store
    /// log: the newest versions of its keys. Must be cheap: the store calls it when a keyspace is
    /// dropped, and for statistics.
    fn log_bytes_needed(&self) -> u64 {
        0
    }
    /// Returns the percentage of the frozen data that is not flushed yet. An engine that cannot
    /// tell returns 100 until all of it is flushed.
    fn flush_remaining_percent(&self) -> u64 {
        if self.is_flushed() { 0 } else { 100 }
    }
    /// Returns the memory of commits since the freeze, as a percentage of its share. Above 100 the
    /// store throttles writers.
    fn pressure_percent(&self) -> u64 {
        0
    }
    /// Returns the disk space in bytes that the engine needs to move the content of its log to its
    /// own files. The store reserves this space. Returns `None` if a checkpoint of the engine
    /// writes only an image.
    fn disk_reserve(&self) -> Option<u64> {
        None
    }
    /// Returns the cache's share of the memory budget, if the engine has a cache.
    fn cache_share(&self) -> Option<&CacheShare> {
        None
    }
    /// Evicts about `bytes` bytes of the cache, least recently used entries first.
    fn evict(&self, bytes: u64) {
        let _ = bytes;
    }
    /// Returns true if a checkpoint would free a large part of the memory budget.
    fn is_memory_high(&self) -> bool {
        false
    }
    /// Writes an image of at least everything up to the last commit before [`Engine::freeze`]. The
    /// image is fuzzy: it may contain later commits. All data that the image refers to must be
    /// durable on return.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a write or a sync fails.
    fn save(&self, out: &mut dyn ImageSink) -> Result<()>;
    /// Tells the engine, *alone*, that the image is durable and that the records before the freeze
    /// are about to be freed.
    fn image_published(&self) {}
    /// Tells the engine that neither slot of ROOT refers to the image before the last one any more.
    /// The engine may then reuse space that only older images refer to. The store calls this once
    /// after each [`Engine::image_published`], in the same order.
    fn image_superseded(&self) {}
    /// Pins the engine's own files in their current state, for a backup or an attached reader. They
    /// must be readable, unchanged, until the result is dropped. Returns `None` if the engine has
    /// no files that matter. No checkpoint begins or ends during the call; maintenance may run.
    ///
    /// The store does not call [`Engine::image_superseded`] while a state is pinned. An engine that
    /// overwrites nothing that an image refers to before that call needs no pin of its own.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a file cannot be opened.
    fn pin_files(self: Arc<Self>) -> Result<Option<Box<dyn PinnedFiles>>> {
        Ok(None)
    }
    /// Loads an image. Drops entries in segments that were freed: replay supplies them.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the image is invalid, and [`Error::Io`] if a read fails.
    fn restore(&self, image: &mut dyn ImageSource) -> Result<()>;
    /// Loads the keyspace without an image: none exists, or it is damaged, as `damage` says. An
    /// engine that has its data in files of its own loads it from there.
    ///
    /// # Errors
    ///
    /// Returns `damage`, if the engine cannot load its data without the image.
    fn restore_without_image(&self, damage: Option<Error>) -> Result<()> {
        damage.map_or(Ok(()), Err)
    }
    /// Loads the readable part of the engine's own files for a repair, with any image or none, and
    /// with files missing. Must not write. Versions that it finds may have been superseded or
    /// removed. Must call `skipped` with the error of each file that is left out and may contain
    /// pairs: these pairs are lost.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine has no files of its own, and [`Error::Corrupt`]
    /// if the list of its files is damaged.
    fn restore_partial(&self, skipped: &mut dyn FnMut(Error)) -> Result<()> {
        let _ = skipped;
        Err(Error::Unsupported { engine: self.name(), feature: "partial recovery" })
    }
    /// Replays one record at opening. Records of the journal come in the order of the log, from one
    /// thread. Records of a store log come in any order, from several threads. The seqs of one key
    /// are not necessarily ascending, so the engine must compare them. Replaying a record twice
    /// must change nothing.
    ///
    /// # Errors
    ///
    /// Returns [`Error::MemoryBudgetExceeded`] if the index does not fit into the budget, and the
    /// error of a read that the engine needs.
    fn replay(&self, record: &ReplayRecord<'_>) -> Result<()>;
    /// Like [`Engine::replay`] for several records of one segment. The lookups may overlap.
    ///
    /// # Errors
    ///
    /// Same as [`Engine::replay`].
    fn replay_run(&self, records: &[ReplayRecord<'_>]) -> Result<()> {
        let keys: Vec<HashedKey<'_>> = records.iter().map(|record| self.hashed_key(record.key)).collect();
        self.prefetch(&keys, true);
        records.iter().try_for_each(|record| self.replay(record))
    }
    /// Tells the engine that all records were replayed, so that it can insert the ones that it has
    /// only collected. Several threads call this in parallel, each with its own `part` below
    /// `parts`. The engine may leave work for later ([`Engine::is_replay_finished`]).
    ///
    /// # Errors
    ///
    /// Same as [`Engine::replay`].
    fn finish_replay(&self, part: usize, parts: usize) -> Result<()> {
        let _ = (part, parts);
        Ok(())
    }
    /// Tells the engine that every call of [`Engine::finish_replay`] has returned.
    fn replay_finished(&self) {}
    /// Appends to `out` the blobs that live entries refer to.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed read. `out` may then be incomplete, and the caller must not
    /// treat any blob as unreferenced.
    fn blobs(&self, out: &mut Vec<u64>) -> Result<()>;

    /// Returns whether the entry at `address` is still needed. Only for store logs.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::Corrupt`] if the engine must read to decide and the read
    /// fails.
    fn liveness(&self, hashed_key: HashedKey<'_>, address: Address) -> Result<Liveness> {
        let _ = (hashed_key, address);
        Ok(Liveness::Dead)
    }
    /// Returns whether the entry at `address` is the newest version of its key. Changes nothing.
    /// Only for store logs.
    ///
    /// # Errors
    ///
    /// Same as [`Engine::liveness`].
    fn is_newest(&self, hashed_key: HashedKey<'_>, address: Address) -> Result<bool> {
        Ok(self.liveness(hashed_key, address)? == Liveness::Newest)
    }
    /// Returns the address of the newest record of `key`. Only for store logs.
    ///
    /// # Errors
    ///
    /// Same as [`Engine::liveness`].
    fn locate(&self, key: &[u8]) -> Result<Option<Address>> {
        let _ = key;
        Ok(None)
    }
    /// Reads from disk the part of the index that [`Engine::relocate`] needs to find the key. The
    /// caller keeps its epoch guard until then.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::Corrupt`] if the read fails.
    fn prefetch_for_relocate(&self, hashed_key: HashedKey<'_>) -> Result<()> {
        let _ = hashed_key;
        Ok(())
    }
    /// Repoints the index from the entry at `from` to its copy at `to`. `staged` is the blob that
    /// the entry refers to, if any. Returns false if the entry is no longer needed. The caller
    /// holds the stripe of the key, as for [`Engine::apply`].
    fn relocate(&self, hashed_key: HashedKey<'_>, from: Address, to: Address, staged: Option<u64>) -> bool {
        let _ = (hashed_key, from, to, staged);
        false
    }

    /// Returns a loader that writes pairs in key order directly to the engine's own files, without
    /// the log, as versions of commit `seq`. The keyspace must be empty and not yet published.
    /// Returns `None` if commits are as good: the log is the data, or there is no engine directory.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a file cannot be created.
    fn ingest(self: Arc<Self>, seq: Seq) -> Result<Option<Box<dyn Ingest>>> {
        let _ = seq;
        Ok(None)
    }

    /// Returns statistics of the keyspace.
    fn stats(&self) -> EngineStats;
    /// Returns counters of the engine's work since opening, each with its name, for diagnosis.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// Reads all data of the engine and calls `report` for each finding. The engine calls `step`
    /// regularly with the number of bytes read since the last call.
    ///
    /// No lock that commits, maintenance or statistics take may be held while a device is read or
    /// `report` runs. Data that moves during the verification must not be reported as a finding.
    ///
    /// # Errors
    ///
    /// Returns the error of `step`, which ends the verification.
    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()>;
    /// Frees the memory of a dropped keyspace and accounts its entries as dead. No reader uses the
    /// keyspace any more.
    fn drop_data(&self);
    /// Closes the engine's own files. The store calls this before it releases the lock of the
    /// database.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a final sync or a close fails.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Constructor for the keyspaces of one engine.
pub trait EngineFactory: Send + Sync {
    /// Returns the name of the engine.
    fn name(&self) -> &'static str;
    /// Returns the options that can be set when a keyspace is created.
    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }
    /// Returns true if the engine creates files of this name in the directory of a keyspace. Repair
    /// recognizes the engine of a keyspace by them if the catalog is lost.
    fn owns_file(&self, _name: &str) -> bool {
        false
    }
    /// Creates the engine instance of a new keyspace, or of one that is about to be restored.
    /// `options` contains valid values only.
    fn create(
        &self,
        id: KeyspaceId,
        options: &EngineOptions,
        context: &Arc<crate::context::EngineContext>,
    ) -> Arc<dyn Engine>;
}
