//! # Streams: values that memory need not hold
//!
//! A [`ValueReader`] reads a value by ranges or from its beginning to its end, a [`ValueWriter`] makes one of what is
//! written to it. Large values stand beside the log, and neither holds more than some pieces of them.

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

/// A value, open for reading: it stays what it was whatever becomes of its key, until the database is closed. `Read` and `Seek`; cheap to
/// make for values within the log. One beside it (above 64 KiB, in `delsm` above 8 KiB) is gone through once when it is opened, to check
/// it, unless it was read a short while ago; afterwards it costs what it reads.
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
    /// The value of `key` at `at`.
    pub(crate) fn open(store: &Store, kept: &Kept, at: Seq, key: &[u8]) -> Result<Option<ValueReader>> {
        store.check_open()?;
        let (mut bytes, mut file) = (None, None);
        kept.engine()?.look(at, key, &mut |stored| match stored {
            Stored::Bytes(found) => bytes = Some(Value::new(found)),
            Stored::File(found) => file = Some(found),
        })?;
        let source = match (bytes, file) {
            (_, Some(file)) => Source::File(Box::new(store.pieces(file)?)),
            (Some(bytes), None) => Source::Bytes(bytes),
            (None, None) => return Ok(None),
        };
        Ok(Some(ValueReader { source, at: 0 }))
    }

    /// Bytes of the value.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.source {
            Source::Bytes(value) => value.len() as u64,
            Source::File(pieces) => pieces.len(),
        }
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `bytes` from `offset` on, as far as the value goes; answers how many there were.
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

    /// The bytes within `range`, as far as the value goes.
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
        // Values are far below what memory can address, and this is at most one.
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

/// Makes a value of what is written to it, up to 4 GiB − 1. Nothing is there before [`ValueWriter::commit`], and nothing stays if
/// it is dropped before. After an error it can only be dropped.
pub struct ValueWriter {
    keyspace: Keyspace,
    key: Value,
    incoming: Incoming,
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

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.incoming.len()
    }

    /// Whether there are none so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.incoming.is_empty()
    }

    /// Sets the key to what was written, with the database's default durability.
    pub fn commit(self) -> Result<()> {
        let durability = self.keyspace.handle().durability();
        self.submit(durability)?.wait()
    }

    /// The same, and returns a ticket without waiting for the device.
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
                Err(Error::NoKeyspace { .. }) => {} // cleared or converted meanwhile, or dropped: `kept` knows
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
        Ok(()) // what is written counts when it is committed
    }
}
