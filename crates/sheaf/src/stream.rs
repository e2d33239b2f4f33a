//! # Streams: values that need not fit in memory
//!
//! A [`ValueReader`] reads a value by ranges or from start to end, a [`ValueWriter`] creates one.
//! Large values are in blob files, and the streams keep only parts of them in memory.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use sheaf_base::engine::Op;
use sheaf_base::load::{Call, Kind};
use sheaf_base::store::{Incoming, Kept, Outcome, Store, Write as Change};
use sheaf_base::types::Seq;
use sheaf_base::value::{Pieces, Stored};

use crate::handle::Handle;
use crate::{Commit, Durability, Error, Keyspace, Result, Value};

/// Stream over a value; implements `Read` and `Seek`. The value does not change if its key is
/// overwritten or removed; reads fail after the database was closed.
///
/// A reader of a value inside the log contains a copy and is cheap. A value in a blob file (above
/// 64 KiB; in `delsm` above 8 KiB) is read and verified completely when it is opened, unless it was
/// read a short time ago. Later reads cost as much as they read.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// use std::io::{Read, Seek, SeekFrom};
///
/// users.insert("ada", "lovelace")?;
/// if let Some(mut reader) = users.reader("ada")? {
///     reader.seek(SeekFrom::Start(4))?;
///     let mut text = String::new();
///     reader.read_to_string(&mut text)?;
///     assert_eq!(text, "lace");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ValueReader {
    source: Source,
    at: u64,
}

#[derive(Debug)]
enum Source {
    Bytes(Value),
    File(Box<Pieces>),
}

impl ValueReader {
    /// Opens the value of `key` as of commit `at`.
    pub(crate) fn open(store: &Store, kept: &Kept, at: Seq, key: &[u8]) -> Result<Option<ValueReader>> {
        store.check_open()?;
        let (mut bytes, mut file) = (None, None);
        let found = kept.engine()?.look(at, key, &mut |stored| match stored {
            Stored::Bytes(found) => bytes = Some(Value::new(found)),
            Stored::File(found) => file = Some(found),
        })?;
        if !found && at == Seq::LATEST {
            store.reveal_missing(kept, key)?;
        }
        let source = match (bytes, file) {
            (_, Some(file)) => Source::File(Box::new(store.pieces(file)?)),
            (Some(bytes), None) => Source::Bytes(bytes),
            (None, None) => return Ok(None),
        };
        Ok(Some(ValueReader { source, at: 0 }))
    }

    /// Returns the length of the value in bytes.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// assert_eq!(users.reader("ada")?.map(|reader| reader.len()), Some(8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.source {
            Source::Bytes(value) => value.len() as u64,
            Source::File(pieces) => pieces.len(),
        }
    }

    /// Returns true if the value has no bytes.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "")?;
    /// assert_eq!(users.reader("ada")?.map(|reader| reader.is_empty()), Some(true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads from `offset` into `bytes` and returns the number of bytes read. It is smaller than
    /// the buffer only at the end of the value. Does not move the position of `Read`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let mut bytes = [0; 4];
    /// if let Some(mut reader) = users.reader("ada")? {
    ///     assert_eq!(reader.read_at(4, &mut bytes)?, 4);
    /// }
    /// assert_eq!(&bytes, b"lace");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors).
    pub fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        let mut count = 0;
        while count < bytes.len() {
            let got = self.some_at(offset.saturating_add(count as u64), &mut bytes[count..])?;
            if got == 0 {
                break;
            }
            count += got;
        }
        Ok(count)
    }

    fn some_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        match &mut self.source {
            Source::File(pieces) => pieces.read_at(offset, bytes),
            Source::Bytes(value) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(value.len());
                let count = bytes.len().min(value.len() - from);
                bytes[..count].copy_from_slice(&value[from..from + count]);
                Ok(count)
            }
        }
    }

    /// Returns the bytes of the value within `range`.
    pub(crate) fn range(&mut self, range: &impl RangeBounds<u64>) -> Result<Value> {
        let low = match range.start_bound() {
            Bound::Included(low) => *low,
            Bound::Excluded(low) => low.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let high = match range.end_bound() {
            Bound::Included(high) => high.saturating_add(1),
            Bound::Excluded(high) => *high,
            Bound::Unbounded => u64::MAX,
        };
        let len = high.min(self.len()).saturating_sub(low);
        // `len` is at most the length of a value, below 4 GiB.
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let got = self.read_at(low, &mut bytes)?;
        bytes.truncate(got);
        Ok(bytes.into())
    }
}

impl Read for ValueReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let got = self.some_at(self.at, bytes).map_err(io::Error::other)?;
        self.at += got as u64;
        Ok(got)
    }
}

impl Seek for ValueReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
        };
        self.at =
            to.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a place before the value"))?;
        Ok(self.at)
    }
}

/// Stream that creates a value of up to 4 GiB − 1; implements `Write`. Nothing is visible before
/// [`ValueWriter::commit`], and dropping the writer discards the bytes. After an error of a write
/// it must be dropped.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// use std::io::Write;
///
/// let mut writer = users.writer("ada")?;
/// for part in ["love", "lace"] {
///     writer.write_all(part.as_bytes())?;
/// }
/// writer.commit()?;
/// assert_eq!(users.get("ada")?, Some("lovelace".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a writer discards its bytes; `commit` or `submit` publishes them"]
pub struct ValueWriter {
    keyspace: Keyspace,
    key: Value,
    incoming: Incoming,
}

impl fmt::Debug for ValueWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueWriter")
            .field("keyspace", &self.keyspace)
            .field("key", &self.key)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl ValueWriter {
    pub(crate) fn new(keyspace: &Keyspace, key: &[u8]) -> Result<ValueWriter> {
        let max = sheaf_base::types::MAX_KEY;
        if key.len() > max {
            return Err(Error::TooLarge { what: "key", got: key.len() as u64, max: max as u64 });
        }
        let incoming = keyspace.handle().begin_value(&*keyspace.kept()?)?;
        Ok(ValueWriter { keyspace: keyspace.clone(), key: Value::new(key), incoming })
    }

    /// Returns the number of bytes written so far.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use std::io::Write;
    ///
    /// let mut writer = users.writer("ada")?;
    /// writer.write_all(b"lovelace")?;
    /// assert_eq!(writer.len(), 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> u64 {
        self.incoming.len()
    }

    /// Returns true if no bytes were written so far.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert!(users.writer("ada")?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.incoming.is_empty()
    }

    /// Sets the key to the bytes written, with the default durability of the database.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use std::io::Write;
    ///
    /// let mut writer = users.writer("ada")?;
    /// writer.write_all(b"lovelace")?;
    /// writer.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn commit(self) -> Result<()> {
        let durability = self.keyspace.handle().durability();
        self.submit(durability)?.wait()
    }

    /// Sets the key to the bytes written, without waiting for the device. The returned ticket waits
    /// for `durability`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use std::io::Write;
    ///
    /// let mut writer = users.writer("ada")?;
    /// writer.write_all(b"lovelace")?;
    /// writer.submit(sheaf::Durability::Sync)?.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn submit(self, durability: Durability) -> Result<Commit> {
        let ValueWriter { keyspace, key, incoming } = self;
        let store: &Arc<Handle> = keyspace.handle();
        let (sample, len) = (store.sample(), incoming.len());
        let mut whole = store.end_value(incoming)?;
        loop {
            let kept = keyspace.kept()?;
            store.refit_value(&mut whole, &kept)?;
            let mut staged = std::mem::take(&mut whole.staged);
            let mut writes = [Change { kept: &kept, op: Op::new(&key, whole.action()) }];
            match store.commit_staged(&mut writes, &mut staged) {
                Ok(Outcome::Done(seq)) => {
                    if let Some(sample) = sample {
                        let call = Call { value: Some(len), ..Call::new(Kind::StreamWrite, &key) };
                        keyspace.observe(sample, None, &call);
                    }
                    return Ok(Commit::new(Arc::clone(store), seq, durability));
                }
                Ok(Outcome::Stale) => return Err(Error::Conflict),
                Err(Error::NoKeyspace { .. }) => {} // replaced or dropped: `kept` decides
                Err(other) => return Err(other),
            }
            whole.take_back(staged);
        }
    }
}

impl Write for ValueWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let store = self.keyspace.handle();
        store.extend_value(&mut self.incoming, bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // the commit makes the bytes visible
    }
}
