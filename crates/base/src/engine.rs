//! # Contract of an engine
//!
//! An engine stores the pairs of a keyspace, or an index of them. It receives operations, records
//! and images. The store syncs the logs and runs the background work. An engine may have files of
//! its own below [`crate::engine_context::EngineDir`], which it syncs itself. It may read the
//! clock, and run threads within a call. With `EngineContext::inline` its results must not depend
//! on either.
//!
//! Everything that can fail happens in [`Engine::prepare`], before a commit has a number. A call
//! between a commit's number and its end must not fail and must not wait for the disk.
//!
//! ## Life of a write
//!
//! ```text
//!   prepare (any thread, may fail)
//!        -> [stripes of the keys: is_current? -> seq -> bytes to the log -> apply] -> acknowledged
//!        ^                           | no
//!        +---------------------------+  (prepares again)
//! ```
//!
//! The store holds the stripe of each key of a commit from `is_current` to the end of `apply`.
//! Several commits do this at once, with different stripes. So an engine sees the applies of one
//! key one at a time and in the order of their seqs. The applies of different keys run in parallel,
//! in any order. `apply` runs after the bytes of its own commit are in the kernel. Bytes of an
//! earlier commit may still be missing: a reader that finds an entry calls
//! [`EngineContext::wait_visible`](crate::engine_context::EngineContext::wait_visible) before it
//! hands out the value (decisions/0027).
//!
//! `freeze` and `saved` run *alone*: no commit is between `is_current` and the end of its `apply`.
//!
//! ## Life of a checkpoint
//!
//! ```text
//!   [alone: position, freeze] -> a sync round, ROOT -> work, step by step -> save -> ROOT
//! ```
//!
//! An engine of the journal may keep its data in files of its own, below
//! [`crate::engine_context::EngineDir`]. It writes there only what was frozen: that is durable in
//! the journal and below ROOT's floor by then, so that no recovery ends before what the files hold
//! (commit.md R12, scenario 8).
//!
//! ## Life of an opening
//!
//! `restore` from the last published image (else `restore_without_image`), `replay` of records
//! (each at most once in ascending seq per key is *not* promised: an engine compares seqs;
//! replaying a record twice changes nothing), `finish_replay`, `replayed`, then live.

use std::any::Any;
use std::ops::Bound;
use std::sync::Arc;

use crate::backup_files::PinnedFiles;
use crate::blob::BlobRef;
use crate::blob_reader::StoredValue;
use crate::cache_arbiter::CacheShare;
use crate::error::{Error, Result};
use crate::keys::{borrow_bound, is_above, is_below};
use crate::options::{EngineOptions, OptionSpec};
use crate::record::RecordContent;
use crate::segment::Address;
use crate::types::{KeyspaceId, LogId, Seq};
use crate::views::Views;

/// Features of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// True if the engine supports ranges, prefixes, first and last, and iteration in key order
    /// from both ends. Without it, `iter` returns every pair once in no particular order, and the
    /// other calls return `Unsupported`.
    pub ordered: bool,
}

/// What an operation does to its key.
#[derive(Clone, Copy, Debug)]
pub enum Action<'a> {
    /// Sets the value.
    Put(&'a [u8]),
    /// Sets a value that was staged beside the log.
    Blob(BlobRef),
    /// Removes the key.
    Remove,
    /// Writes nothing; the commit fails as stale if the key changes between `prepare` and it.
    Expect,
}

impl<'a> Action<'a> {
    /// What its record says; none for an expectation, which has none.
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

/// A key on its way into an engine's index, as [`Engine::hashed_key`] made it: hashed once, however
/// often it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'k> {
    /// The key.
    pub key: &'k [u8],
    /// Its hash; zero for an engine that needs none.
    pub hash: u64,
}

/// One operation on its way into the log.
#[derive(Clone, Copy, Debug)]
pub struct EngineOp<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The key's hash, if it is known: the store sets it before `prepare`.
    pub hash: Option<u64>,
    /// What to do to it.
    pub action: Action<'a>,
    /// Set by `prepare`: the number of the key's newest entry; zero if it has none. For
    /// [`Action::Expect`] it says what is expected: the commit happens only if it is still this.
    pub prior: Seq,
    /// The engine's private words from `prepare` to `apply`.
    pub note: [u64; 5],
    /// Where the record came to stand; set before `apply`.
    pub address: Address,
    /// Bytes of its frame; set before `apply`.
    pub span: u32,
    /// Set before `prepare`: how many operations of the same commit are before it. What they take
    /// is not taken yet.
    pub ops_before: u32,
    /// Set before `prepare`: its commit would rather wait for a checkpoint than have a full engine
    /// read from the device, to know whether the key is new. Refused as beyond the budget, it comes
    /// again without this.
    pub may_wait: bool,
}

impl<'a> EngineOp<'a> {
    /// An operation that nobody has looked at yet.
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

/// Whether an operation needs a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// It does.
    Record,
    /// It changes nothing: a removal of a key that is not there.
    NoChange,
}

/// One record read back from a log at opening.
#[derive(Clone, Copy, Debug)]
pub struct ReplayRecord<'a> {
    /// Its commit.
    pub seq: Seq,
    /// The key.
    pub key: &'a [u8],
    /// What became of it.
    pub content: RecordContent<'a>,
    /// Where it stands.
    pub address: Address,
    /// Bytes of its frame.
    pub span: u32,
}

/// What an engine knows about an entry that the cleaner asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It is the key's newest version.
    Newest,
    /// It is an older version that a view needs.
    Pinned,
    /// Nothing points to it.
    Dead,
}

/// Which part of a pair a cursor should fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// The key only.
    Keys,
    /// Key and value.
    Pairs,
}

/// Limits of a range, as unsigned bytes.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Lower end.
    pub low: Bound<Vec<u8>>,
    /// Upper end.
    pub high: Bound<Vec<u8>>,
}

impl Bounds {
    /// Everything.
    #[must_use]
    pub fn all() -> Bounds {
        Bounds { low: Bound::Unbounded, high: Bound::Unbounded }
    }

    /// True without limits.
    #[must_use]
    pub fn is_all(&self) -> bool {
        matches!((&self.low, &self.high), (Bound::Unbounded, Bound::Unbounded))
    }

    /// True if no key can lie within.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match (&self.low, &self.high) {
            (Bound::Included(l), Bound::Included(h)) => l > h,
            (Bound::Included(l) | Bound::Excluded(l), Bound::Included(h) | Bound::Excluded(h)) => l >= h,
            _ => false,
        }
    }

    /// True if `key` lies within.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        is_above(key, borrow_bound(&self.low)) && is_below(key, borrow_bound(&self.high))
    }
}

/// Walks the pairs of one keyspace at one view, in one direction per cursor: `next` from the low
/// end or `prev` from the high end.
///
/// [`Error::Corrupt`] stands for a damaged stretch: an entry, or a range of keys that one damaged
/// block decides. The next call goes on behind it. Each pair outside of damaged stretches is shown,
/// once. A stretch is reported once, so a walk ends after finitely many errors. Where the end of a
/// stretch is not known, and after any other error, every later call says that there is nothing.
pub trait Cursor: Send {
    /// Moves to the next pair; the first call to the first one. False at the end.
    fn next(&mut self) -> Result<bool>;
    /// Moves to the previous pair; the first call to the last one. False at the end.
    fn prev(&mut self) -> Result<bool>;
    /// The key of the present pair.
    fn key(&self) -> &[u8];
    /// The value of the present pair.
    fn value(&self) -> &[u8];
    /// Both.
    fn pair(&self) -> (&[u8], &[u8]) {
        (self.key(), self.value())
    }
    /// Moves on, upwards or downwards, and shows the pair where it stands then; `None` at the end.
    fn step(&mut self, forward: bool) -> Result<Option<(&[u8], &[u8])>> {
        let is_there = if forward { self.next()? } else { self.prev()? };
        Ok(if is_there { Some(self.pair()) } else { None })
    }
}

/// Takes the pairs that a keyspace begins with, past its log: see [`Engine::ingest`]. No commit
/// goes to the keyspace meanwhile, and no checkpoint has it. Dropped before the end, it leaves what
/// only [`Engine::drop_data`] is called for, or the next opening's sweep.
pub trait Ingest: Send {
    /// Takes the next pair, whose key is above all before: a put, inline or staged and durable.
    fn push(&mut self, key: &[u8], content: RecordContent<'_>) -> Result<()>;
    /// That was all. On return everything is durable, is found without an image, and the engine
    /// takes commits.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Takes an engine's image, checksums and writes it.
pub trait ImageSink {
    /// Appends bytes to the image.
    fn put(&mut self, bytes: &[u8]) -> Result<()>;
}

/// Gives an engine's image back, already checked.
pub trait ImageSource {
    /// Fills `bytes`; damage if the image ends before.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()>;
    /// An error that says that the image makes no sense although its checksum holds.
    fn invalid_field(&self, field: &'static str, value: u64) -> Error;
    /// The present slot of the segment that had `slot` when the image was made, or `None` if it is
    /// gone. Segments keep their slots from one life to the next, so that it is the same slot
    /// wherever an engine has kept addresses in files of its own; and until all is replayed, the
    /// slot of one that is gone stays empty.
    fn slot_of(&self, slot: u32) -> Option<u32>;
    /// The commit number `stored` in the image; damage if no commit that counts has it.
    fn seq(&self, stored: u64) -> Result<Seq>;
}

/// Statistics of a keyspace that its engine provides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Number of keys.
    pub keys: u64,
    /// Bytes of the index in memory.
    pub index_bytes: u64,
    /// Old versions that snapshots and iterators pin.
    pub pinned_versions: u64,
}

/// One keyspace of an engine.
pub trait Engine: Send + Sync {
    /// The engine's name, as in the catalogue.
    fn name(&self) -> &'static str;
    /// What it can do.
    fn capabilities(&self) -> Capabilities;
    /// The log its commits go to.
    fn log(&self) -> LogId;
    /// For tools that know the engine.
    fn as_any(&self) -> &dyn Any;

    /// Values of more bytes than this are to be staged, if it wants that earlier than the store.
    /// Always the same.
    fn blob_threshold(&self) -> usize {
        usize::MAX
    }
    /// Whether it makes staged files its own, so that each of its values needs one.
    fn takes_blob_files(&self) -> bool {
        false
    }

    /// `key`, with its hash if the engine looks it up by one: what the calls below are told.
    fn hashed_key<'k>(&self, key: &'k [u8]) -> HashedKey<'k> {
        HashedKey { key, hash: 0 }
    }
    /// A hint that `wanted` is looked up after a moment's other work: asks for what that reads
    /// first, and waits for nothing.
    fn prefetch_index(&self, hashed_key: HashedKey<'_>) {
        let _ = hashed_key;
    }
    /// Everything that can fail for `op`: limits, memory, reading what it replaces.
    fn prepare(&self, op: &mut EngineOp<'_>) -> Result<Preparation>;
    /// Returns whether the state that `prepare` saw still holds. The caller holds the stripe of the
    /// key: commits to other keys run `is_current` and `apply` at the same time, none to this key.
    /// Must not fail or wait for the disk. May return false without a reason, if that is rare: the
    /// commit is prepared again.
    fn is_current(&self, op: &EngineOp<'_>) -> bool;
    /// Applies `op` of commit `seq` to the index, after its record is in the kernel. The caller
    /// holds the stripe of the key: other keys are applied at the same time, in any order, this key
    /// in the order of its seqs. `views` was collected after `seq` was taken: a view that is
    /// missing reads this commit.
    fn apply(&self, seq: Seq, op: &EngineOp<'_>, views: &Views);

    /// Calls `found` with the value of `key` at `at`, whose view is registered (or is
    /// [`Seq::LATEST`]): its bytes, or the file that is it, opened and not read. False if there is
    /// none. `found` may run at most once. At [`Seq::LATEST`] it calls
    /// [`EngineContext::wait_visible`](crate::engine_context::EngineContext::wait_visible) with the
    /// seq of the entry before it calls `found` or returns true, and holds no lock then that
    /// `apply` takes. (The store takes care of keys that are missing.)
    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(StoredValue<'_>)) -> Result<bool>;
    /// The same with the bytes, whatever they stand in.
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
    /// True if `key` has a value at `at`.
    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        self.get(at, key, &mut |_| {})
    }
    /// A hint that these keys are about to be looked up and, if `entries`, their entries read.
    fn prefetch(&self, keys: &[HashedKey<'_>], entries: bool) {
        let _ = (keys, entries);
    }
    /// Returns a cursor over `bounds` at `at`, whose view the caller keeps registered while the
    /// cursor lives. It must not touch what other cursors or writers write, such as the count of
    /// references to the engine: scans would slow each other down.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] for bounds, if the engine is not ordered.
    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, projection: Projection) -> Result<Box<dyn Cursor + 'e>>;
    /// Live keys at the newest state.
    fn len(&self) -> Result<u64>;
    /// True if there is no live key.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Views went: versions superseded at or before `visible` that none of `views` needs may go.
    /// `views` is a copy of the registry as of `visible`; later views cannot need such versions.
    fn trim(&self, views: &Views, visible: Seq);
    /// Alone: a checkpoint begins, and everything committed so far is to be in the image that ends
    /// it. Short: an engine that moves data sets aside here what [`Engine::maintain`] then moves.
    fn freeze(&self) {}
    /// One bounded step of moving what was frozen to where it stays, or of what else is due.
    /// Commits up to `certain` are durable, and ROOT says so: nothing above may be handed to the
    /// kernel in another place than the log. `views` is a copy of the registry; what is superseded
    /// while it works may be needed by views that it does not know ([`Views::may_need`]). Several
    /// threads may call it at once. True if there is more to do.
    fn maintain(&self, views: &Views, durable_seq: Seq) -> Result<bool> {
        let _ = (views, durable_seq);
        Ok(false)
    }
    /// Performs one bounded step of maintenance that gains disk space, or speed of readers, and can
    /// wait under load: called while the database is idle, and for a caller that asked for it
    /// ([`Store::quiesce`](crate::store::Store::quiesce), a compaction). Arguments and threads as
    /// for [`Engine::maintain`]. Returns true if another step would gain more.
    ///
    /// Must return false once little is left to gain, and go on doing so until commits or released
    /// views change that: an idle database comes to rest. The bytes that its steps write must be
    /// bounded by the bytes that they gain, times a constant. What views pin must be left alone.
    ///
    /// # Errors
    ///
    /// As [`Engine::maintain`].
    fn reclaim(&self, views: &Views, durable_seq: Seq) -> Result<bool> {
        let _ = (views, durable_seq);
        Ok(false)
    }
    /// Nothing that was replayed waits to be taken in: a checkpoint can begin. Until then
    /// [`Engine::maintain`] takes it in, as far as damage lets it.
    fn is_replay_finished(&self) -> bool {
        true
    }
    /// What was frozen has been moved, and nobody is in the midst of it: the image can be saved.
    fn is_flushed(&self) -> bool {
        true
    }
    /// Bytes of its log after which a checkpoint pays at the earliest, if it knows better than the
    /// store.
    fn checkpoint_after(&self) -> u64 {
        0
    }
    /// It wants a checkpoint, because what would be frozen takes too much memory, or has been at
    /// rest for long.
    fn wants_checkpoint(&self) -> bool {
        false
    }
    /// Bytes of its log that only this keyspace needs. For an engine of the journal: its records
    /// since the position of the newest complete checkpoint. For an engine of a store log: the
    /// newest versions of its keys. Cheap; called for each keyspace when it is dropped, and for
    /// figures.
    fn log_bytes_needed(&self) -> u64 {
        0
    }
    /// How much of what it froze is not moved yet, in hundredths; all of it, where the engine
    /// cannot say.
    fn flush_remaining_percent(&self) -> u64 {
        if self.is_flushed() { 0 } else { 100 }
    }
    /// How far what gathers in memory while a checkpoint moves what it froze is beyond its share,
    /// in hundredths; 100 is at it. Beyond, writers are slowed down.
    fn pressure_percent(&self) -> u64 {
        0
    }
    /// Bytes of the disk that it counts on for moving what its log has to files of its own: nothing
    /// else may take them. None if a checkpoint of it is an image and nothing else.
    fn disk_reserve(&self) -> Option<u64> {
        None
    }
    /// What its cache has of the budget, if it has one.
    fn cache_share(&self) -> Option<&CacheShare> {
        None
    }
    /// Lets about so many bytes of its cache go: what was not used for longest.
    fn evict(&self, bytes: u64) {
        let _ = bytes;
    }
    /// Much of the budget would come back with a checkpoint.
    fn is_memory_high(&self) -> bool {
        false
    }
    /// Writes an image of at least everything up to the last commit before [`Engine::freeze`],
    /// fuzzily: later commits may be in it or not. What it names elsewhere is durable on return.
    fn save(&self, out: &mut dyn ImageSink) -> Result<()>;
    /// Alone: the image is durable, and the records before the freeze are about to go.
    fn image_published(&self) {}
    /// Neither slot of ROOT names the image before the one that was saved last but this call any
    /// more: called once after each [`Engine::image_published`], in their order, so that what only
    /// older images name may be used again.
    fn image_superseded(&self) {}
    /// Its own files as of now, for a backup: they can be read, as they are, until what is returned
    /// is dropped. None if it has none that counts. No checkpoint begins or ends meanwhile; work
    /// may be under way. An engine that never writes again what an image names, and waits for
    /// [`Engine::image_superseded`] before it does, need not hold anything: that is not called
    /// while a state stays.
    fn pin_files(self: Arc<Self>) -> Result<Option<Box<dyn PinnedFiles>>> {
        Ok(None)
    }
    /// Takes up an image. Entries in segments that are gone are dropped: replay brings them.
    fn restore(&self, image: &mut dyn ImageSource) -> Result<()>;
    /// Takes up what there is without an image: none was made, or it is damaged, as `damage` says.
    /// An engine whose data stands elsewhere finds it there; the others fail with the damage.
    fn restore_without_image(&self, damage: Option<Error>) -> Result<()> {
        damage.map_or(Ok(()), Err)
    }
    /// For a repair, which only reads: takes up what can be read of its own files, whatever image
    /// there was and whatever is missing. What it answers from then on may have been superseded or
    /// removed. An engine whose files make no sense in parts fails. Must call `skipped` with the
    /// error of each file that may hold pairs and is left out: these are lost.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`], or the damage of what says which files there are.
    fn restore_partial(&self, skipped: &mut dyn FnMut(Error)) -> Result<()> {
        let _ = skipped;
        Err(Error::Unsupported { engine: self.name(), feature: "partial recovery" })
    }
    /// One record, at opening: of the journal in the order of the log, from one thread; of the flat
    /// log in any order, from several.
    fn replay(&self, record: &ReplayRecord<'_>) -> Result<()>;
    /// As [`Engine::replay`] for some records of one segment, whose look-ups may overlap.
    fn replay_run(&self, records: &[ReplayRecord<'_>]) -> Result<()> {
        let keys: Vec<HashedKey<'_>> = records.iter().map(|record| self.hashed_key(record.key)).collect();
        self.prefetch(&keys, true);
        records.iter().try_for_each(|record| self.replay(record))
    }
    /// All records were replayed, and the engine may take in what it has only gathered of them:
    /// called by some threads side by side, each with a number below `parts` of its own. What can
    /// wait until somebody needs it may wait longer ([`Engine::is_replay_finished`]).
    fn finish_replay(&self, part: usize, parts: usize) -> Result<()> {
        let _ = (part, parts);
        Ok(())
    }
    /// Everything is taken in, but for what waits.
    fn replay_finished(&self) {}
    /// Blobs that live entries name, added to `out`.
    ///
    /// # Errors
    ///
    /// That of a read, where it takes any: then `out` may lack some, and nothing may be taken for
    /// nobody's.
    fn blobs(&self, out: &mut Vec<u64>) -> Result<()>;

    /// Whether the entry at `address` is still needed. Store logs only.
    fn liveness(&self, hashed_key: HashedKey<'_>, address: Address) -> Result<Liveness> {
        let _ = (hashed_key, address);
        Ok(Liveness::Dead)
    }
    /// Whether the entry at `address` is the key's newest version. Changes nothing. Store logs
    /// only.
    fn is_newest(&self, hashed_key: HashedKey<'_>, address: Address) -> Result<bool> {
        Ok(self.liveness(hashed_key, address)? == Liveness::Newest)
    }
    /// Where the newest record of `key` stands. Store logs only.
    fn locate(&self, key: &[u8]) -> Result<Option<Address>> {
        let _ = key;
        Ok(None)
    }
    /// Before [`Engine::relocate`], under a guard that is kept until then: brings into memory what
    /// that needs to find the key.
    fn prefetch_for_relocate(&self, hashed_key: HashedKey<'_>) -> Result<()> {
        let _ = hashed_key;
        Ok(())
    }
    /// The entry at `from`, which names the value `staged` if it names one, was copied to `to`.
    /// False if it is no longer needed. The caller holds the stripe of the key, as for
    /// [`Engine::apply`].
    fn relocate(&self, hashed_key: HashedKey<'_>, from: Address, to: Address, staged: Option<u64>) -> bool {
        let _ = (hashed_key, from, to, staged);
        false
    }

    /// The keyspace is empty, and nobody knows it yet: a way for pairs in the order of their keys
    /// straight into files of the engine's own, past the log, as versions of commit `seq`. None
    /// where commits are as good: the log is the data, or there is no place for files.
    fn ingest(self: Arc<Self>, seq: Seq) -> Result<Option<Box<dyn Ingest>>> {
        let _ = seq;
        Ok(None)
    }

    /// Figures.
    fn stats(&self) -> EngineStats;
    /// What it did since opening, each thing by its name: for people who want to see an engine at
    /// work.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// Reads everything it holds; each finding goes to `report`. Nobody waits for it: no lock that
    /// commits, steps or figures take is held while a device is read or `report` called, and what
    /// moved meanwhile is no finding. `step` is told now and then how many bytes were read since
    /// the last time; its error ends the verification.
    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()>;
    /// The keyspace was dropped and nobody reads it any more: give back memory and account its
    /// entries as dead.
    fn drop_data(&self);
    /// The database closes: files of the engine's own are closed before its lock is given back.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Makes the keyspaces of one kind.
pub trait EngineFactory: Send + Sync {
    /// The engine's name.
    fn name(&self) -> &'static str;
    /// What can be chosen of a keyspace at its creation.
    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }
    /// A new or about to be restored keyspace, with values that its options allow.
    fn create(
        &self,
        id: KeyspaceId,
        options: &EngineOptions,
        context: &Arc<crate::engine_context::EngineContext>,
    ) -> Arc<dyn Engine>;
}
