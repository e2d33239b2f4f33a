//! # Reader of the change feed

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::lifetimes::Lifetimes;
use super::merge::{FeedFrame, FeedMerge};
use super::position::ChangePosition;
use super::signal::ChangeWakerKey;
use crate::Store;
use crate::expiry::header;
use crate::expiry::index::{hint_parts, is_hidden_name, owner_of_index};
use crate::keyspace::catalog::{CatalogCause, decode_entry};
use sheaf_log::blob::BlobRef;
use sheaf_log::compression::{DecodeError, ValueForm, encoded_len};
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::clock::UnixMillis;
use sheaf_platform::error::{Damage, Error, Result};

/// Commits that the feed delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeBound {
    /// Commits that survive a power failure.
    #[default]
    Durable = 0,
    /// All visible commits.
    Visible = 1,
}

/// Value of a change.
#[derive(Clone)]
pub struct ChangeValue {
    source: ChangeValueSource,
    /// Bytes in front of the value that are not part of it.
    skip: usize,
    len: usize,
}

#[derive(Clone)]
enum ChangeValueSource {
    Inline(Vec<u8>),
    /// Stored value with a codec that this build lacks.
    Encoded(Vec<u8>, EncodedForm),
    Blob {
        store: Arc<Store>,
        blob: BlobRef,
        seq: Seq,
        form: EncodedForm,
    },
}

/// Form of a value that is not decoded yet.
#[derive(Clone, Copy)]
struct EncodedForm {
    form: ValueForm,
    /// Engine of the keyspace, for errors.
    engine: &'static str,
}

impl EncodedForm {
    /// Returns the error of a value of the database in `path`.
    fn error(self, path: &Path, error: DecodeError) -> Error {
        error.into_error(self.engine, path, 0)
    }

    /// Returns header and value that have the stored bytes `stored`.
    fn decode(self, path: &Path, stored: Vec<u8>) -> Result<Vec<u8>> {
        let mut buffer = Vec::new();
        let value = self.form.decode(&stored, &mut buffer).map_err(|error| self.error(path, error))?;
        // A value that is not compressed is at the start of the stored bytes.
        let (is_in_place, len) = (std::ptr::eq(value.as_ptr(), stored.as_ptr()), value.len());
        let mut whole = if is_in_place { stored } else { buffer };
        whole.truncate(len);
        Ok(whole)
    }
}

impl std::fmt::Debug for ChangeValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChangeValue({} bytes)", self.len())
    }
}

impl ChangeValue {
    /// Returns a value that was received from another process.
    #[doc(hidden)]
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> ChangeValue {
        ChangeValue { len: bytes.len(), source: ChangeValueSource::Inline(bytes), skip: 0 }
    }

    /// Returns the length of the value in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if [`ChangeValue::read`] reads a file.
    #[must_use]
    pub fn is_stored_apart(&self) -> bool {
        matches!(self.source, ChangeValueSource::Blob { .. })
    }

    /// Returns the value. Reads and checks it, if it is stored apart from the logs.
    ///
    /// # Errors
    ///
    /// Returns [`Error::ChangesTooOld`] if the change is no longer retained, [`Error::Corrupt`] if
    /// the value is damaged, [`Error::Unsupported`] if this build lacks its codec,
    /// [`Error::Closed`], and errors of reading the file.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut value = match &self.source {
            ChangeValueSource::Inline(bytes) => return Ok(bytes[self.skip..].to_vec()),
            ChangeValueSource::Encoded(stored, form) => form.decode(Path::new(""), stored.clone())?,
            ChangeValueSource::Blob { store, blob, seq, form } => {
                store.check_open()?;
                let read = store.context.blobs.read(blob);
                // The blob may be freed, and its place reused, when the change is not retained.
                store.check_available(Seq(seq.0.saturating_sub(1)))?;
                let stored = read?.ok_or_else(|| store.context.blobs.missing_error(blob))?;
                form.decode(store.path(), stored)?
            }
        };
        value.drain(..self.skip);
        Ok(value)
    }

    /// Returns the value if it needs no read. Returns `None` too if this build
    /// lacks the codec of the value.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match &self.source {
            ChangeValueSource::Inline(bytes) => Some(&bytes[self.skip..]),
            ChangeValueSource::Encoded(..) | ChangeValueSource::Blob { .. } => None,
        }
    }
}

/// Kind of a change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ChangeKind {
    /// A key got a value.
    Put {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: ChangeValue,
        /// Time at which the pair expires, if it has one.
        expires_at: Option<SystemTime>,
    },
    /// A key was removed.
    Removed {
        /// The key.
        key: Vec<u8>,
    },
    /// All keys of a range were removed by one record. An engine without range tombstones has a
    /// [`ChangeKind::Removed`] for each key instead.
    RangeRemoved {
        /// First key of the range.
        start: Vec<u8>,
        /// End of the range, which is not in it; `None` if there is none.
        end: Option<Vec<u8>>,
    },
    /// An expired pair was removed. Reads have treated it as absent since its time.
    Expired {
        /// The key.
        key: Vec<u8>,
    },
    /// The keyspace was created.
    Created {
        /// Engine of the keyspace.
        engine: String,
        /// Options that differ from the defaults.
        options: Vec<(String, u64)>,
    },
    /// All pairs of the keyspace were removed.
    Cleared,
    /// The content of the keyspace was replaced by a bulk load. Its pairs are not in the feed: the
    /// consumer copies the keyspace from a snapshot.
    Loaded {
        /// Engine of the keyspace.
        engine: String,
        /// Options that differ from the defaults.
        options: Vec<(String, u64)>,
    },
    /// The keyspace was moved to another engine or to other options. Its pairs are the same.
    Converted {
        /// New engine of the keyspace.
        engine: String,
        /// New options that differ from the defaults.
        options: Vec<(String, u64)>,
    },
    /// The keyspace got another name. [`Change::keyspace`] is the name before; later changes have
    /// the new name. A filter by name delivers this change if it selects either name.
    Renamed {
        /// The new name.
        to: Arc<str>,
    },
    /// The keyspace was dropped.
    Dropped,
}

impl ChangeKind {
    /// Returns the name of the kind, as `sheaf changes` prints it, for example `range-removed`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ChangeKind::Put { .. } => "put",
            ChangeKind::Removed { .. } => "removed",
            ChangeKind::RangeRemoved { .. } => "range-removed",
            ChangeKind::Expired { .. } => "expired",
            ChangeKind::Created { .. } => "created",
            ChangeKind::Cleared => "cleared",
            ChangeKind::Loaded { .. } => "loaded",
            ChangeKind::Converted { .. } => "converted",
            ChangeKind::Renamed { .. } => "renamed",
            ChangeKind::Dropped => "dropped",
        }
    }

    /// Returns the key, or the first key of a removed range; `None` for a change of a keyspace.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        match self {
            ChangeKind::Put { key, .. }
            | ChangeKind::Removed { key }
            | ChangeKind::Expired { key }
            | ChangeKind::RangeRemoved { start: key, .. } => Some(key),
            _ => None,
        }
    }

    /// Returns the engine and the options of a keyspace that was created, loaded or converted.
    #[must_use]
    pub fn engine(&self) -> Option<(&str, &[(String, u64)])> {
        match self {
            ChangeKind::Created { engine, options }
            | ChangeKind::Loaded { engine, options }
            | ChangeKind::Converted { engine, options } => Some((engine, options)),
            _ => None,
        }
    }
}

/// One change of a commit.
#[derive(Clone, Debug)]
pub struct Change {
    /// Name of the keyspace.
    pub keyspace: Arc<str>,
    /// The change.
    pub kind: ChangeKind,
}

/// All changes of one commit.
#[derive(Clone, Debug)]
pub struct CommittedChanges {
    /// Position after the commit.
    pub position: ChangePosition,
    /// The changes: those of each log in the order of the batch.
    pub changes: Vec<Change>,
}

/// Reader of the change feed.
#[derive(Debug)]
pub struct ChangeReader {
    store: Arc<Store>,
    position: ChangePosition,
    bound: ChangeBound,
    /// The merge has all segments with commits up to this one.
    known: Seq,
    merge: FeedMerge,
    lifetimes: Arc<Lifetimes>,
}

impl Store {
    /// Returns a reader of the changes after `position`.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`] if the database retains no changes, or if `position` belongs to
    ///   another database or to a commit that does not exist.
    /// - [`Error::ChangesTooOld`] if the changes after `position` are no longer available.
    /// - [`Error::Closed`] if the database is closed.
    pub fn read_changes(self: &Arc<Store>, position: ChangePosition) -> Result<ChangeReader> {
        self.check_open()?;
        self.check_position(&position)?;
        Ok(ChangeReader {
            store: Arc::clone(self),
            known: position.seq(),
            position,
            bound: ChangeBound::Durable,
            merge: FeedMerge::default(),
            lifetimes: Arc::default(),
        })
    }
}

/// Returns an expiry time. A stored time is at most the end of the year 9999, which every platform
/// can represent.
fn system_time(time: Option<UnixMillis>) -> Option<SystemTime> {
    time.and_then(|time| UNIX_EPOCH.checked_add(Duration::from_millis(time.0)))
}

impl ChangeReader {
    /// Sets the commits that the reader delivers.
    pub fn set_bound(&mut self, bound: ChangeBound) {
        self.bound = bound;
    }

    /// Returns the position after the last commit that the reader has returned.
    #[must_use]
    pub fn position(&self) -> ChangePosition {
        self.position
    }

    /// Returns the next commit, or `None` if there is none yet. Does not wait.
    ///
    /// # Errors
    ///
    /// Returns [`Error::ChangesTooOld`] if the reader was too slow, [`Error::Corrupt`] if a log is
    /// damaged, [`Error::Closed`], and errors of reading the logs.
    pub fn try_next(&mut self) -> Result<Option<CommittedChanges>> {
        self.store.check_open()?;
        match self.try_next_unchecked() {
            Err(error) => {
                // A segment that was freed cannot be read.
                self.merge = FeedMerge::default();
                self.known = self.position.seq();
                self.store.check_available(self.position.seq())?;
                Err(error)
            }
            found => found,
        }
    }

    fn try_next_unchecked(&mut self) -> Result<Option<CommittedChanges>> {
        loop {
            let position = self.position.seq();
            let frames = self.merge.next_commit(&self.store, position, self.known)?;
            if let Some(first) = frames.first() {
                let seq = first.header.seq;
                let commit = self.decode(seq, &frames)?;
                self.position = ChangePosition::new(self.position.feed(), seq);
                if commit.changes.is_empty() {
                    continue; // a step of a conversion or a bulk load
                }
                return Ok(Some(commit));
            }
            if !self.find_segments()? {
                // Everything up to `known` was returned.
                self.position = ChangePosition::new(self.position.feed(), self.known);
                return Ok(None);
            }
        }
    }

    /// Finds the segments of commits that are new since the last call. Returns false if there are
    /// none.
    fn find_segments(&mut self) -> Result<bool> {
        let store = &self.store;
        let (newest, ends) = match self.bound {
            ChangeBound::Durable => (store.durable(), None),
            ChangeBound::Visible => {
                let (reserved, ends) = store.pipeline.window.tail_ends();
                let newest = store.pipeline.progress.last_assigned(reserved);
                store.wait_visible(newest)?;
                (newest, Some(ends))
            }
        };
        if newest <= self.known {
            return Ok(false);
        }
        let position = self.position.seq();
        self.merge.add_segments(store, position, ends.as_deref())?;
        self.lifetimes = store.changes.with(|state| Arc::clone(&state.lifetimes)).unwrap_or_default();
        // After the list was taken: a segment that it lacks has raised the start.
        store.check_available(position)?;
        self.known = newest;
        Ok(true)
    }

    fn decode(&self, seq: Seq, frames: &[FeedFrame]) -> Result<CommittedChanges> {
        let damaged = |what| Error::corrupt(self.store.path(), 0, "record of a change", what);
        let mut changes = Vec::with_capacity(frames.len());
        let mut expired = ExpiredKeys::default();
        for frame in frames {
            let record = Record::decode(&frame.payload).map_err(damaged)?;
            if record.keyspace == KeyspaceId::CATALOG {
                if let Some(change) = self.catalog_change(seq, &record).map_err(damaged)? {
                    push_catalog_change(&mut changes, change);
                }
                continue;
            }
            let Some((keyspace, form)) = self.lifetimes.at(record.keyspace, seq) else { continue };
            if let Some(owner) = owner_of_index(keyspace) {
                expired.add_hint(owner, &record);
                continue;
            }
            let key = record.key.to_vec();
            let kind = match record.content {
                RecordContent::Remove => ChangeKind::Removed { key },
                RecordContent::RemoveRange(end) => {
                    ChangeKind::RangeRemoved { start: key, end: end.map(<[u8]>::to_vec) }
                }
                RecordContent::Put(stored) => {
                    self.put(key, stored, EncodedForm { form, engine: self.engine_of(keyspace) })?
                }
                RecordContent::Blob(blob) => {
                    self.put_blob(key, (blob, seq), EncodedForm { form, engine: self.engine_of(keyspace) })?
                }
            };
            changes.push(Change { keyspace: Arc::clone(keyspace), kind });
        }
        expired.mark(&mut changes);
        Ok(CommittedChanges { position: ChangePosition::new(self.position.feed(), seq), changes })
    }

    /// Returns the engine of the present keyspace of this name, for errors.
    fn engine_of(&self, name: &str) -> &'static str {
        self.store.catalog.map().get(name).map_or("unknown", |keyspace| keyspace.engine_name())
    }

    /// Returns the change that sets `key` to the value with the stored bytes `stored`.
    fn put(&self, key: Vec<u8>, stored: &[u8], form: EncodedForm) -> Result<ChangeKind> {
        let skip = form.form.header_len as usize;
        let expires_at = match skip {
            0 => None,
            _ => header::decode_bytes(stored, self.store.path())?,
        };
        let value = match form.decode(self.store.path(), stored.to_vec()) {
            Ok(whole) => {
                ChangeValue { skip, len: whole.len() - skip, source: ChangeValueSource::Inline(whole) }
            }
            // The consumer can go on; only a read of the value fails.
            Err(Error::Unsupported { .. }) => {
                let len =
                    encoded_len(&stored[skip..]).map_err(|error| form.error(self.store.path(), error))?;
                let source = ChangeValueSource::Encoded(stored.to_vec(), form);
                ChangeValue { source, skip, len: len as usize }
            }
            Err(error) => return Err(error),
        };
        Ok(ChangeKind::Put { key, value, expires_at: system_time(expires_at) })
    }

    /// Returns the change that sets `key` to the value in `blob`, which is not read.
    fn put_blob(&self, key: Vec<u8>, (blob, seq): (BlobRef, Seq), form: EncodedForm) -> Result<ChangeKind> {
        let ValueForm { header_len, is_compressed } = form.form;
        let (skip, mut len, mut expires_at) = (header_len as usize, u64::from(blob.len), None);
        if header_len > 0 || is_compressed {
            let blobs = &self.store.context.blobs;
            let file = blobs.open(&blob)?.ok_or_else(|| blobs.missing_error(&blob))?;
            if header_len > 0 {
                expires_at = header::decode_blob(&file)?;
            }
            if is_compressed {
                len = file.with_decoding(form.engine, header_len)?.len();
            }
            // The blob may be freed, and its place reused, when the change is not retained.
            self.store.check_available(Seq(seq.0.saturating_sub(1)))?;
        }
        let len = usize::try_from(len.saturating_sub(u64::from(header_len))).unwrap_or(usize::MAX);
        let source = ChangeValueSource::Blob { store: Arc::clone(&self.store), blob, seq, form };
        let value = ChangeValue { source, skip, len };
        Ok(ChangeKind::Put { key, value, expires_at: system_time(expires_at) })
    }

    /// Returns whether a commit after the known ones has reached the bound, or the store has ended.
    fn has_news(&self) -> bool {
        self.position.seq() < self.known
            || self.newest() > self.known
            || self.store.check_open().is_err()
            || self.store.health.is_poisoned()
    }

    fn newest(&self) -> Seq {
        match self.bound {
            ChangeBound::Durable => self.store.durable(),
            ChangeBound::Visible => self.store.visible(),
        }
    }

    /// Returns the next commit that has changes after `wanted` has filtered it. Waits for it, at
    /// most for `limit`; `None` waits forever. Returns `Ok(None)` after that time, even if there
    /// were other commits all the time, but reads all commits that exist at the call.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ChangeReader::try_next`]. Returns [`Error::Poisoned`] if the
    /// database refuses writes: then there will be no further commits.
    pub fn wait_next(
        &mut self,
        limit: Option<Duration>,
        wanted: impl Fn(CommittedChanges) -> Option<CommittedChanges>,
    ) -> Result<Option<CommittedChanges>> {
        let until = limit.map(|limit| self.store.clock.now().saturating_add(limit));
        let present = self.newest();
        loop {
            let commit = self.try_next()?;
            let is_last = commit.is_none();
            if let Some(commit) = commit.and_then(&wanted) {
                return Ok(Some(commit));
            }
            let left = until.map(|until| until.saturating_sub(self.store.clock.now()));
            let is_read = is_last || self.position.seq() >= present;
            if is_read && left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            if is_last {
                self.store.health.check_not_poisoned()?;
                self.store.changes.signal.sleep(self.bound, left, || self.has_news());
            }
        }
    }

    /// Polls until [`ChangeReader::try_next`] may return a commit or an error. If there is none
    /// yet, the waker of `context` is called when there may be one. `key` must be `None` at the
    /// first call, and the caller must pass it to [`ChangeReader::cancel_wait`] if it gives up.
    /// Reads no file.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] or [`Error::Poisoned`]: then there will be no further commits.
    pub fn poll_ready(&self, key: &mut Option<ChangeWakerKey>, context: &Context<'_>) -> Poll<Result<()>> {
        self.store.check_open()?;
        self.store.changes.signal.insert(self.bound, key, context.waker());
        if !self.has_news() {
            return Poll::Pending;
        }
        self.cancel_wait(key);
        if self.position.seq() < self.known || self.newest() > self.known {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(self.store.check_open().and_then(|()| self.store.health.check_not_poisoned()))
    }

    /// Removes the waker of a task that no longer waits.
    pub fn cancel_wait(&self, key: &mut Option<ChangeWakerKey>) {
        if key.is_some() && !self.store.health.is_forked_child() {
            self.store.changes.signal.remove(key);
        }
    }
}

/// Keys whose hints a commit removes. Only the removal of expired pairs removes hints; it removes
/// the pair in the same commit, unless the hint was outdated.
#[derive(Default)]
struct ExpiredKeys(HashMap<Box<str>, HashSet<Vec<u8>>>);

impl ExpiredKeys {
    /// Adds the key of a hint in the index of keyspace `owner`, if `record` removes the hint.
    fn add_hint(&mut self, owner: &str, record: &Record<'_>) {
        if let (RecordContent::Remove, Some((_, key))) = (record.content, hint_parts(record.key)) {
            self.0.entry(owner.into()).or_default().insert(key.to_vec());
        }
    }

    /// Makes expirations of the removals of these keys.
    fn mark(&self, changes: &mut [Change]) {
        if self.0.is_empty() {
            return;
        }
        for change in changes {
            let ChangeKind::Removed { key } = &mut change.kind else { continue };
            if self.0.get(&*change.keyspace).is_some_and(|keys| keys.contains(key)) {
                change.kind = ChangeKind::Expired { key: std::mem::take(key) };
            }
        }
    }
}

/// Adds the change of a catalog record. A rename has a record of the removal of the old name before
/// that of the new one.
fn push_catalog_change(changes: &mut Vec<Change>, change: Change) {
    if let ChangeKind::Renamed { .. } = change.kind {
        let is_removal =
            |other: &Change| matches!(other.kind, ChangeKind::Dropped) && other.keyspace == change.keyspace;
        changes.retain(|other| !is_removal(other));
    }
    changes.push(change);
}

impl ChangeReader {
    /// Returns the change of a catalog record of commit `seq`, or `None` if its keyspace is hidden.
    fn catalog_change(&self, seq: Seq, record: &Record<'_>) -> std::result::Result<Option<Change>, Damage> {
        let (name, entry, cause) = decode_entry(record)?;
        if is_hidden_name(&name) {
            return Ok(None);
        }
        let kind = match entry {
            None => ChangeKind::Dropped,
            Some(entry) => {
                if let Some(from) = self.lifetimes.renamed_from(entry.id, seq) {
                    let kind = ChangeKind::Renamed { to: name.into() };
                    return Ok(Some(Change { keyspace: Arc::clone(from), kind }));
                }
                let engine = entry.engine;
                let options = entry.options.iter().map(|(name, value)| (name.to_owned(), value)).collect();
                match cause {
                    None | Some(CatalogCause::Created) => ChangeKind::Created { engine, options },
                    Some(CatalogCause::Cleared) => ChangeKind::Cleared,
                    Some(CatalogCause::Loaded) => ChangeKind::Loaded { engine, options },
                    Some(CatalogCause::Converted) => ChangeKind::Converted { engine, options },
                }
            }
        };
        Ok(Some(Change { keyspace: name.into(), kind }))
    }
}
