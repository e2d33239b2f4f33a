//! # Keyspace: the handle to one map from bytes to bytes

mod swap;

use std::fmt;
use std::ops::RangeBounds;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use sheaf_base::engine::{Action, Bounds, Engine, Op, Want, Wanted};
use sheaf_base::load::{Call, Kind, Sample, Served, is_due};
use sheaf_base::options::EngineOptions;
use sheaf_base::store::{Choice, Compacted, Kept, Outcome, Store, Write};
use sheaf_base::types::Seq;
use sheaf_base::value::Stored;

pub(crate) use self::swap::expect_now;
use crate::handle::Handle;
use crate::iter::{Iter, KeyRange, Keys, prefix_bounds};
use crate::observe::{self, Acknowledged};
use crate::{Capabilities, Commit, Durability, EngineStats, Error, Result, Value, ValueReader, ValueWriter};

/// How many keys [`Keyspace::remove_range`] removes in one commit, and the bytes of keys after which it ends earlier.
const REMOVE_CHUNK: usize = 1024;
const REMOVE_BYTES: usize = 256 << 10;

/// Options of a keyspace at its creation.
///
/// ```
/// # fn main() -> sheaf::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("sheaf-options-doc-{}", std::process::id()));
/// # let db = sheaf::Database::open(&dir)?;
/// use sheaf::KeyspaceOptions;
///
/// let wide = KeyspaceOptions::default().engine("cedrus").option("branching", 64);
/// db.keyspace("users", wide)?;
/// let as_it_is = db.keyspace("users", KeyspaceOptions::default())?;
/// assert_eq!(as_it_is.options().get("branching"), Some(64));
/// // It is what it is, until `Database::convert` makes it another.
/// assert!(db.keyspace("users", KeyspaceOptions::default().option("branching", 16)).is_err());
/// # drop((db, as_it_is));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyspaceOptions {
    pub(crate) engine: Option<String>,
    pub(crate) options: EngineOptions,
}

/// The engine of this name, with its defaults.
impl From<&str> for KeyspaceOptions {
    fn from(engine: &str) -> KeyspaceOptions {
        KeyspaceOptions::default().engine(engine)
    }
}

impl KeyspaceOptions {
    /// The engine that keeps it, by name (`"flex"`). Remembered; opening it as another is refused.
    /// Without it, an existing keyspace opens as what it is and a new one gets the default engine.
    #[must_use]
    pub fn engine(mut self, name: &str) -> KeyspaceOptions {
        self.engine = Some(name.to_owned());
        self
    }

    /// Chooses an option of the engine, which [`crate::engine_options`] lists. Remembered with the keyspace, through backups, clearings and
    /// replacements; opening it with another value is refused, and so is, with [`Error::Invalid`], an option that the engine does
    /// not have, or a value beyond its range. What is not chosen is the engine's default.
    #[must_use]
    pub fn option(mut self, name: &str, value: u64) -> KeyspaceOptions {
        self.options.set(name, value);
        self
    }

    pub(crate) fn choice(&self) -> Choice<'_> {
        Choice { engine: self.engine.as_deref(), options: &self.options }
    }
}

/// Whether a commit waits for what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Any,
    None,
}

impl Patience {
    pub(crate) fn commit(self, store: &Store, writes: &mut [Write<'_>]) -> Result<Outcome> {
        match self {
            Patience::Any => store.commit(writes),
            Patience::None => store.try_commit(writes),
        }
    }
}

/// A map from bytes to bytes. A cheap clone; `Send + Sync`; usable from any thread.
///
/// Keys have 0 to 65,535 bytes, values 0 to 4 GiB − 1; any content. After the keyspace is dropped
/// every call answers [`Error::NoKeyspace`].
#[derive(Clone)]
pub struct Keyspace {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) store: Arc<Handle>,
    pub(crate) kept: ArcSwap<Kept>,
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.shared.kept.load();
        f.debug_struct("Keyspace")
            .field("name", &kept.name())
            .field("engine", &kept.engine_name())
            .finish_non_exhaustive()
    }
}

impl Keyspace {
    pub(crate) fn new(store: Arc<Handle>, kept: Arc<Kept>) -> Keyspace {
        Keyspace { shared: Arc::new(Shared { store, kept: ArcSwap::new(kept) }) }
    }

    #[inline]
    fn store(&self) -> &Arc<Handle> {
        &self.shared.store
    }

    #[inline]
    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.shared.store
    }

    /// What keeps the keyspace now; after a `clear`, a replacement or a conversion that is a successor.
    pub(crate) fn kept(&self) -> Result<arc_swap::Guard<Arc<Kept>>> {
        let kept = self.shared.kept.load();
        if kept.is_gone() {
            let successor = self.store().successor(&kept)?;
            self.shared.kept.store(successor);
            return Ok(self.shared.kept.load());
        }
        Ok(kept)
    }

    /// What `read` finds. What did not find anything, or failed, in a keyspace that was given up meanwhile looks at the
    /// successor: the old one may be half gone.
    fn look<R>(&self, mut read: impl FnMut(&Arc<Kept>) -> Result<Option<R>>) -> Result<Option<R>> {
        loop {
            let kept = self.kept()?;
            match read(&kept) {
                Ok(Some(found)) => return Ok(Some(found)),
                _ if kept.is_gone() => {}
                other => return other,
            }
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.shared.kept.load().name().to_owned()
    }

    /// The name of its engine; of a dropped one, what it was.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        self.kept().map_or_else(|_| self.shared.kept.load().engine_name(), |kept| kept.engine_name())
    }

    /// What was chosen of its engine's options; of a dropped one, what it was.
    #[must_use]
    pub fn options(&self) -> EngineOptions {
        self.kept().map_or_else(|_| self.shared.kept.load().options().clone(), |kept| kept.options().clone())
    }

    /// What its engine can do.
    pub fn capabilities(&self) -> Result<Capabilities> {
        Ok(self.kept()?.engine()?.capabilities())
    }

    /// Figures of the engine.
    pub fn stats(&self) -> Result<EngineStats> {
        Ok(self.kept()?.engine()?.stats())
    }

    /// Bytes of the disk that the keyspace takes alone: blocks of its engine's own files, with what is superseded in them, and for
    /// `flex` and `delsm` its records in the journal since the last checkpoint. `flat`, `flat-ordered`, `cedrus` and `kreon` keep their
    /// records in a log that they share: it is in [`Stats::logs`](crate::Stats), and not counted here. Neither are values above 64 KiB
    /// of engines other than `delsm`, which are in [`Stats::staged`](crate::Stats). Walks a directory: microseconds a file.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-doc-disk-bytes-{}", std::process::id()));
    /// use sheaf::{Database, KeyspaceOptions};
    ///
    /// let db = Database::open(&dir)?;
    /// let words = db.keyspace("words", KeyspaceOptions::default().engine("delsm"))?;
    /// words.insert("key", vec![1; 10_000])?;
    /// assert!(words.disk_bytes()? >= 10_000);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoKeyspace`], [`Error::Closed`], the damage that keeps the keyspace from being used, and errors of the look at its
    /// files.
    pub fn disk_bytes(&self) -> Result<u64> {
        self.store().disk_bytes(&*self.kept()?)
    }

    /// What the engine did since the database was opened, each thing by its name. `flex`: how often it inserted an
    /// interval, appended to one, rewrote one, reads that prints spared; `kreon`: ranges spilled and merged, pages read, reads that filters and prints spared; the
    /// others have none yet.
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>> {
        Ok(self.kept()?.engine()?.counters())
    }

    /// Sets `key` to `value` with the database's default durability. Costs one record in the log and
    /// the look-up of what it replaces.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Put(value.as_ref()), Patience::Any)
    }

    /// Removes `key`; a key that is not there is fine.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Remove, Patience::Any)
    }

    /// As [`Keyspace::insert`], but where the write would be slowed down, or wait for background work, memory, or another engine,
    /// it answers [`Error::Busy`] at once, and nothing is left of it. It waits for the commit lock, which is short, and with
    /// [`Durability::Sync`] for the device.
    pub fn try_insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Put(value.as_ref()), Patience::None)
    }

    /// As [`Keyspace::remove`], or [`Error::Busy`]: see [`Keyspace::try_insert`].
    pub fn try_remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Remove, Patience::None)
    }

    /// Sets `key` to `value` and returns a ticket, as [`crate::Batch::submit`] does for many operations, without
    /// waiting for the device.
    pub fn submit_insert(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<Commit> {
        self.submit(key.as_ref(), Action::Put(value.as_ref()), durability)
    }

    /// Removes `key` and returns a ticket.
    pub fn submit_remove(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<Commit> {
        self.submit(key.as_ref(), Action::Remove, durability)
    }

    fn write(&self, key: &[u8], action: Action<'_>, patience: Patience) -> Result<()> {
        if is_due() {
            return self.write_sampled(key, action, patience);
        }
        let (seq, _) = self.apply(key, action, patience)?;
        self.store().acknowledge(seq, self.store().durability())
    }

    /// The same, looked at. Apart from the usual way, which is to stay as short as it is.
    #[cold]
    #[inline(never)]
    fn write_sampled(&self, key: &[u8], action: Action<'_>, patience: Patience) -> Result<()> {
        let (sample, durability) = (self.store().begin_sample(), self.store().durability());
        let (seq, is_new) = self.apply(key, action, patience)?;
        self.store().acknowledge(seq, durability)?;
        self.observe_write(sample, (key, &action, is_new), (durability, Acknowledged::Now));
        Ok(())
    }

    fn submit(&self, key: &[u8], action: Action<'_>, durability: Durability) -> Result<Commit> {
        let sample = self.store().sample();
        let (seq, is_new) = self.apply(key, action, Patience::Any)?;
        if let Some(sample) = sample {
            self.observe_write(sample, (key, &action, is_new), (durability, Acknowledged::Later));
        }
        Ok(Commit::new(Arc::clone(self.store()), seq, durability))
    }

    #[cold]
    #[inline(never)]
    fn observe_write(
        &self,
        sample: Sample,
        what: (&[u8], &Action<'_>, bool),
        how: (Durability, Acknowledged),
    ) {
        observe::write(self.store(), &self.shared.kept.load(), sample, what, how);
    }

    /// Commits one operation. Also says whether the key was not there, as far as the engine looks.
    fn apply(&self, key: &[u8], action: Action<'_>, patience: Patience) -> Result<(Seq, bool)> {
        loop {
            let kept = self.kept()?;
            let mut writes = [Write { kept: &kept, op: Op::new(key, action) }];
            match patience.commit(self.store(), &mut writes) {
                Ok(Outcome::Done(seq)) => return Ok((seq, writes[0].op.prior == Seq::ZERO)),
                Ok(Outcome::Stale) => return Err(Error::Conflict),
                Err(Error::NoKeyspace { .. }) => {} // cleared meanwhile, or dropped: `kept` knows
                Err(other) => return Err(other),
            }
        }
    }

    /// The value of `key`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.get_with(key, Value::new)
    }

    /// Calls `read` with the value of `key`, without a copy where the engine has it in memory. Long
    /// work in `read` delays the return of space; do not write to the database from it.
    pub fn get_with<R>(&self, key: impl AsRef<[u8]>, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let key = key.as_ref();
        if is_due() { self.get_sampled(key, read) } else { self.get_plain(key, read) }
    }

    #[inline]
    fn get_plain<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let mut read = Some(read);
        self.look(|kept| {
            // It is taken by what is found, and what is found is the answer.
            let read = |value: &[u8]| read.take().map(|read| read(value));
            Ok(get_at(self.store(), kept, Seq::LATEST, key, read)?.flatten())
        })
    }

    /// The same, looked at. Apart from the usual way, which is to stay as short as it is.
    #[cold]
    #[inline(never)]
    fn get_sampled<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let (sample, mut len) = (self.store().begin_sample(), None);
        let found = self.get_plain(key, |value| {
            len = Some(value.len());
            read(value)
        })?;
        observe::read(self.store(), &self.shared.kept.load(), sample, key, len);
        Ok(found)
    }

    /// The bytes of the value of `key` within `range`, as far as it goes, without the rest in memory. Each byte is checked: the
    /// first range of a value beside the log goes through all of it, later ones read what they touch.
    pub fn get_range(&self, key: impl AsRef<[u8]>, range: impl RangeBounds<u64>) -> Result<Option<Value>> {
        self.reader(key)?.map(|mut reader| reader.range(&range)).transpose()
    }

    /// The value of `key`, to be read as a stream.
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        let (sample, key) = (self.store().sample(), key.as_ref());
        let reader = self.look(|kept| ValueReader::open(self.store(), kept, Seq::LATEST, key))?;
        if let Some(sample) = sample {
            let len = reader.as_ref().map(ValueReader::len);
            observe::stream_read(self.store(), &self.shared.kept.load(), sample, key, len);
        }
        Ok(reader)
    }

    /// A stream whose bytes become the value of `key`.
    pub fn writer(&self, key: impl AsRef<[u8]>) -> Result<ValueWriter> {
        ValueWriter::new(self, key.as_ref())
    }

    /// The file that is the value of `key`, byte for byte, if it has one of its own. For a look with other tools, and not to be
    /// changed: the next background work may give it another name, and it goes when the key gets another value.
    pub fn path(&self, key: impl AsRef<[u8]>) -> Result<Option<PathBuf>> {
        self.store().check_open()?;
        self.look(|kept| {
            let mut path = None;
            kept.engine()?.look(Seq::LATEST, key.as_ref(), &mut |stored| {
                if let Stored::File(file) = stored {
                    path = file.own_path().map(|path| self.store().locate(path));
                }
            })?;
            Ok(path)
        })
    }

    /// Whether `key` has a value.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let (sample, key) = (self.store().sample(), key.as_ref());
        self.store().check_open()?;
        let found = self.look(|kept| Ok(kept.engine()?.contains(Seq::LATEST, key)?.then_some(())))?;
        if let Some(sample) = sample {
            self.observe(sample, Some(Served::Read), &Call::new(Kind::Contains, key));
        }
        Ok(found.is_some())
    }

    /// The values of many keys, in their order, each as of its own moment (take a snapshot for one
    /// moment for all). Cheaper than as many `get`s: the memory accesses overlap.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        let kept = self.kept()?;
        in_groups(&**kept.engine()?, keys, |key| {
            let sample = self.store().sample();
            let value = match get_at(self.store(), &kept, Seq::LATEST, key, Value::new) {
                Ok(Some(value)) => Some(value),
                _ if kept.is_gone() => self.get(key)?,
                other => other?,
            };
            if let Some(sample) = sample {
                observe::read(self.store(), &kept, sample, key, value.as_ref().map(|value| value.len()));
            }
            Ok(value)
        })
    }

    /// The pairs within `range`, in key order, from either end, as of now: an iterator is a snapshot.
    /// Needs an ordered engine unless the range is everything.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-range-doc-{}", std::process::id()));
    /// # let db = sheaf::Database::open(&dir)?;
    /// use std::ops::Bound;
    ///
    /// let words = db.keyspace("words", sheaf::KeyspaceOptions::default())?;
    /// for word in ["a", "b", "c"] {
    ///     words.insert(word, "")?;
    /// }
    /// assert_eq!(words.range("a"..="b")?.count(), 2);
    /// let last: &[u8] = b"a";
    /// assert_eq!(words.range((Bound::Excluded(last), Bound::Unbounded))?.count(), 2);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, range: impl KeyRange<K>) -> Result<Iter> {
        self.iterate(range.bounds(), Want::Pairs)
    }

    /// The pairs whose keys start with `prefix`. Needs an ordered engine unless the prefix is empty.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Iter> {
        self.iterate(prefix_bounds(prefix.as_ref()), Want::Pairs)
    }

    /// All pairs: in key order where the engine is ordered, else each once in no particular order.
    pub fn iter(&self) -> Result<Iter> {
        self.iterate(Bounds::all(), Want::Pairs)
    }

    /// All keys, ordered as in [`Keyspace::iter`].
    pub fn keys(&self) -> Result<Keys> {
        Ok(Keys(self.iterate(Bounds::all(), Want::Keys)?))
    }

    fn iterate(&self, bounds: Bounds, want: Want) -> Result<Iter> {
        loop {
            let view = self.store().store().view()?;
            let kept = self.kept()?;
            // A clear between the two lines would leave a keyspace that is younger than the view.
            if kept.is_seen_by(view.seq()) {
                return Iter::new(Arc::clone(self.store()), Arc::new(view), Arc::clone(&kept), bounds, want);
            }
        }
    }

    /// The pair with the lowest key. Needs an ordered engine.
    pub fn first(&self) -> Result<Option<(Value, Value)>> {
        need_order(&*self.kept()?, "first")?;
        self.iter()?.next().transpose()
    }

    /// The pair with the highest key. Needs an ordered engine.
    pub fn last(&self) -> Result<Option<(Value, Value)>> {
        need_order(&*self.kept()?, "last")?;
        self.iter()?.next_back().transpose()
    }

    /// How many keys there are now.
    pub fn len(&self) -> Result<u64> {
        loop {
            let kept = self.kept()?;
            self.store().check_open()?;
            let len = kept.engine().and_then(|engine| engine.len());
            if !kept.is_gone() {
                return len;
            }
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Removes everything, atomically and durably, whatever the number of keys.
    pub fn clear(&self) -> Result<()> {
        loop {
            let kept = self.kept()?;
            match self.store().clear_keyspace(&kept) {
                Ok(successor) => {
                    self.shared.kept.store(successor);
                    return Ok(());
                }
                Err(Error::NoKeyspace { .. }) => {} // cleared by somebody else, or dropped: `kept` knows
                Err(other) => return Err(other),
            }
        }
    }

    /// Removes the pairs within `range`, in commits of up to a thousand keys (atomic each, not together), and
    /// returns how many there were. Needs an ordered engine unless the range is everything.
    pub fn remove_range<K: AsRef<[u8]>>(&self, range: impl KeyRange<K>) -> Result<u64> {
        let mut keys = Keys(self.iterate(range.bounds(), Want::Keys)?);
        let mut count = 0;
        loop {
            let (mut chunk, mut bytes) = (Vec::new(), 0);
            while chunk.len() < REMOVE_CHUNK
                && bytes < REMOVE_BYTES
                && let Some(key) = keys.next().transpose()?
            {
                bytes += key.len();
                chunk.push(key);
            }
            if chunk.is_empty() {
                return Ok(count);
            }
            count += chunk.len() as u64;
            let mut batch = crate::Batch::new(Arc::clone(self.store()));
            for key in &chunk {
                batch.remove(self, key);
            }
            batch.commit()?;
        }
    }

    /// Does all maintenance of the keyspace that gains disk space, or speed of readers, now and in the caller's thread: moves what its
    /// log holds to where it stays (a checkpoint), has its engine tidy up until nothing is left to gain, and cleans the store log.
    /// Readers and writers go on, and snapshots stay as they are.
    ///
    /// Before that, `flat-ordered` and `kreon` put their records, which stand in the log as they arrived, into the order of their
    /// keys, so that scans read the log from front to back. What is written later is in its own order again. This writes each record
    /// that is out of place once, at the pace of a writer, and has what it leaves cleaned; beside the data itself it needs what the
    /// space limit allows. What is returned says how many records were written for that: none with other engines.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-doc-compact-{}", std::process::id()));
    /// use sheaf::{Database, KeyspaceOptions};
    ///
    /// let db = Database::open(&dir)?;
    /// let words = db.keyspace("words", KeyspaceOptions::default().engine("flat-ordered"))?;
    /// for index in (0..1000_u32).rev() {
    ///     words.insert(index.to_be_bytes(), "a word")?;
    /// }
    /// assert_eq!(words.compact()?.moved, 1000, "they stood in the log from the last key to the first");
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`], [`Error::ReadOnly`], [`Error::Closed`], [`Error::Poisoned`], and errors of reads and writes. After any
    /// of them the data is as it was, sorted in part.
    pub fn compact(&self) -> Result<Compacted> {
        loop {
            let kept = self.kept()?;
            match self.store().store().compact(&kept) {
                Err(Error::NoKeyspace { .. }) => {} // cleared or converted meanwhile, or dropped: `kept` knows
                other => return other,
            }
        }
    }
}

/// Gets many keys, whose memory accesses overlap.
pub(crate) fn in_groups<K: AsRef<[u8]>>(
    engine: &dyn Engine,
    keys: impl IntoIterator<Item = K>,
    mut get: impl FnMut(&[u8]) -> Result<Option<Value>>,
) -> Result<Vec<Option<Value>>> {
    let keys: Vec<K> = keys.into_iter().collect();
    let mut values = Vec::with_capacity(keys.len());
    for group in keys.chunks(32) {
        let wanted: Vec<Wanted<'_>> = group.iter().map(|key| engine.wanted(key.as_ref())).collect();
        engine.prefetch(&wanted, true);
        for key in group {
            values.push(get(key.as_ref())?);
        }
    }
    Ok(values)
}

/// An error unless the engine of `kept` keeps keys in order.
pub(crate) fn need_order(kept: &Kept, feature: &'static str) -> Result<()> {
    match kept.engine()?.capabilities().ordered {
        true => Ok(()),
        false => Err(Error::Unsupported { engine: kept.engine_name(), feature }),
    }
}

/// A point read at `at`.
pub(crate) fn get_at<R>(
    store: &Store,
    kept: &Kept,
    at: Seq,
    key: &[u8],
    read: impl FnOnce(&[u8]) -> R,
) -> Result<Option<R>> {
    store.check_open()?;
    let mut read = Some(read);
    let mut result = None;
    kept.engine()?.get(at, key, &mut |value| {
        if let Some(read) = read.take() {
            result = Some(read(value));
        }
    })?;
    Ok(result)
}
