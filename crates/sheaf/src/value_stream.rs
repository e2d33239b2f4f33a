//! # Streams: values that need not fit in memory
//!
//! A [`ValueReader`] reads a value by ranges or from start to end, a [`ValueWriter`] creates one.
//! Large values are in blob files, and the streams keep only parts of them in memory.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use sheaf_engine::contract::EngineOp;
use sheaf_engine::workload::{CallKind, SampledCall};
use sheaf_log::blob_reader::{BlobReader, StoredValue};
use sheaf_store::{CommitOutcome, CommitWrite, Expires, KeyspaceState, PartialValue, ReadPoint, Store};

use crate::open_database::OpenDatabase;
use crate::{CommitTicket, ConflictKeys, Durability, Error, Keyspace, Result, Value};

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
    source: ValueSource,
    position: u64,
}

#[derive(Debug)]
enum ValueSource {
    Bytes(Value),
    Blob(Box<BlobReader>),
}

impl ValueReader {
    /// Opens the value of `key` as of commit `at`.
    pub(crate) fn open(
        store: &Store,
        state: &KeyspaceState,
        at: ReadPoint,
        key: &[u8],
    ) -> Result<Option<ValueReader>> {
        store.check_open()?;
        let (mut bytes, mut file) = (None, None);
        let found = state.get_stored(at, key, &mut |stored| match stored {
            StoredValue::Bytes(found) => bytes = Some(Value::new(found)),
            StoredValue::Blob(found) => file = Some(found),
        })?;
        if !found && at.is_latest() {
            store.wait_missing_visible(state, key)?;
        }
        let source = match (bytes, file) {
            (_, Some(file)) => ValueSource::Blob(Box::new(store.blob_reader(file)?)),
            (Some(bytes), None) => ValueSource::Bytes(bytes),
            (None, None) => return Ok(None),
        };
        Ok(Some(ValueReader { source, position: 0 }))
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
            ValueSource::Bytes(value) => value.len() as u64,
            ValueSource::Blob(pieces) => pieces.len(),
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
            let got = self.read_some_at(offset.saturating_add(count as u64), &mut bytes[count..])?;
            if got == 0 {
                break;
            }
            count += got;
        }
        Ok(count)
    }

    fn read_some_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        match &mut self.source {
            ValueSource::Blob(pieces) => pieces.read_at(offset, bytes),
            ValueSource::Bytes(value) => {
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
        let got = self.read_some_at(self.position, bytes).map_err(io::Error::other)?;
        self.position += got as u64;
        Ok(got)
    }
}

impl Seek for ValueReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
        };
        self.position =
            to.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a place before the value"))?;
        Ok(self.position)
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
    incoming: PartialValue,
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
    pub(crate) fn new(keyspace: &Keyspace, key: &[u8], expires: Expires) -> Result<ValueWriter> {
        let max = sheaf_log::types::MAX_KEY;
        if key.len() > max {
            return Err(Error::TooLarge { object: "key", got: key.len() as u64, max: max as u64 });
        }
        let incoming = keyspace.handle().begin_value(&*keyspace.state()?, expires)?;
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
    pub fn submit(self, durability: Durability) -> Result<CommitTicket> {
        let ValueWriter { keyspace, key, incoming } = self;
        let store: &Arc<OpenDatabase> = keyspace.handle();
        let (sample, len) = (store.sample(), incoming.len());
        let mut whole = store.finish_value(incoming)?;
        loop {
            let state = keyspace.state()?;
            store.adapt_value(&mut whole, &state)?;
            let mut blobs = std::mem::take(&mut whole.blobs);
            let write = CommitWrite::new(&state, EngineOp::new(&key, whole.action()));
            let mut writes = [CommitWrite { expires: whole.expires, ..write }];
            match store.commit_with_blobs(&mut writes, &mut blobs) {
                Ok(CommitOutcome::Committed(seq)) => {
                    if let Some(sample) = sample {
                        let call =
                            SampledCall { value: Some(len), ..SampledCall::new(CallKind::StreamWrite, &key) };
                        keyspace.record_call(sample, None, &call);
                    }
                    return Ok(CommitTicket::new(Arc::clone(store), seq, durability));
                }
                Ok(CommitOutcome::Conflict(_)) => {
                    return Err(Error::conflict(&state.name(), ConflictKeys::Key(key.to_vec())));
                }
                Err(Error::KeyspaceNotFound { .. }) => {} // replaced or dropped: `kept` decides
                Err(other) => return Err(other),
            }
            whole.restore_blobs(blobs);
        }
    }
}

impl Write for ValueWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let store = self.keyspace.handle();
        store.append_value(&mut self.incoming, bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // the commit makes the bytes visible
    }
}
