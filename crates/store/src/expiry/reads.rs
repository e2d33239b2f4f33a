//! # Reads of a keyspace with or without expiry
//!
//! The facade reads through these functions. The store itself (copies, GC, verification) reads the
//! stored bytes from the engine.

use sheaf_engine::contract::{Bounds, Cursor, Engine, Projection};
use sheaf_log::blob_reader::StoredValue;
use sheaf_log::types::Seq;
use sheaf_platform::clock::UnixMillis;
use sheaf_platform::error::Result;

use super::header::{HEADER_BYTES, HEADER_LEN, decode_bytes, decode_stored};
use super::index::hint_parts;
use super::{KeyspaceExpiry, ReadPoint};
use crate::{KeyspaceState, Store, View};

/// Returns whether a pair with this expiry time has expired.
pub(crate) fn is_expired(expiry: Option<UnixMillis>, now: UnixMillis) -> bool {
    expiry.is_some_and(|expiry| expiry <= now)
}

/// Returns the engine that reads values in their stored form. The header is the same there, and is
/// read without the codec.
pub(crate) fn stored_form(engine: &dyn Engine) -> &dyn Engine {
    engine.stored_form().unwrap_or(engine)
}

impl KeyspaceState {
    /// Calls `found` with the value of `key` at `at`: its bytes, or the opened but unread blob.
    /// Returns false if there is no value. The rules of
    /// [`EngineReads::get_stored`](sheaf_engine::contract::EngineReads::get_stored) apply.
    ///
    /// # Errors
    ///
    /// Returns the errors of that function, and those of [`KeyspaceState::engine`].
    #[inline]
    pub fn get_stored(
        &self,
        at: ReadPoint,
        key: &[u8],
        found: &mut dyn FnMut(StoredValue<'_>),
    ) -> Result<bool> {
        let engine = self.engine()?;
        match self.expiry() {
            None => engine.get_stored(at.seq, key, found),
            Some(expiry) => expiry.get_stored(&**engine, at, key, found).map(|time| time.is_some()),
        }
    }

    /// Calls `found` with the bytes of the value of `key` at `at`. Returns false if there is none.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`KeyspaceState::get_stored`]; also if a blob cannot be read.
    #[inline]
    pub fn get(&self, at: ReadPoint, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let engine = self.engine()?;
        match self.expiry() {
            None => engine.get(at.seq, key, found),
            Some(expiry) => expiry.get(&**engine, at, key, found),
        }
    }

    /// Returns true if `key` has a value at `at`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`KeyspaceState::get_stored`].
    #[inline]
    pub fn contains(&self, at: ReadPoint, key: &[u8]) -> Result<bool> {
        let engine = self.engine()?;
        match self.expiry() {
            None => engine.contains(at.seq, key),
            Some(expiry) => Ok(expiry.get_stored(stored_form(&**engine), at, key, &mut |_| {})?.is_some()),
        }
    }

    /// Returns the expiry time of `key` at `at`, or `Some(None)` if the pair never expires, or
    /// `None` if there is no pair.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`KeyspaceState::get_stored`].
    pub fn expires_at(&self, at: ReadPoint, key: &[u8]) -> Result<Option<Option<UnixMillis>>> {
        let engine = self.engine()?;
        match self.expiry() {
            None => Ok(engine.contains(at.seq, key)?.then_some(None)),
            Some(expiry) => expiry.get_stored(stored_form(&**engine), at, key, &mut |_| {}),
        }
    }

    /// Returns whether pairs of the keyspace can have an expiry time.
    #[must_use]
    pub fn has_expiry(&self) -> bool {
        self.expiry().is_some()
    }

    /// Returns a cursor over `bounds` at `at`. Cursors of a keyspace with expiry read the values
    /// for [`Projection::Keys`] too.
    pub(crate) fn cursor<'k>(
        &'k self,
        at: ReadPoint,
        bounds: Bounds,
        projection: Projection,
    ) -> Result<Box<dyn Cursor + 'k>> {
        let engine = self.engine()?;
        match self.expiry() {
            None => engine.cursor(at.seq, bounds, projection),
            Some(expiry) => {
                let engine = match projection {
                    Projection::Keys => stored_form(&**engine),
                    Projection::Pairs => &**engine,
                };
                let inner = engine.cursor(at.seq, bounds, Projection::Pairs)?;
                Ok(Box::new(ExpiringCursor { inner, expiry, now: expiry.now(at) }))
            }
        }
    }
}

impl KeyspaceExpiry {
    /// Returns the expiry time of the pair, after it called `found` with the value without its
    /// header. Returns `None` if there is no pair or if it has expired.
    fn get_stored(
        &self,
        engine: &dyn Engine,
        at: ReadPoint,
        key: &[u8],
        found: &mut dyn FnMut(StoredValue<'_>),
    ) -> Result<Option<Option<UnixMillis>>> {
        let now = self.now(at);
        let (mut outcome, mut blob) = (Ok(None), None);
        let read = engine.get_stored(at.seq, key, &mut |stored| match stored {
            StoredValue::Bytes(bytes) => {
                outcome = decode_bytes(bytes, &self.path)
                    .map(|expiry| (!is_expired(expiry, now)).then_some(expiry));
                if let Ok(Some(_)) = outcome {
                    found(StoredValue::Bytes(&bytes[HEADER_BYTES..]));
                }
            }
            StoredValue::Blob(file) => blob = Some(file),
        });
        if let Err(error) = read {
            let is_decoded = engine.stored_form().is_some();
            return if is_decoded && self.is_expired_at(engine, at, now, key) {
                Ok(None)
            } else {
                Err(error)
            };
        }
        let Some(file) = blob else { return outcome };
        let stored = StoredValue::Blob(file);
        let expiry = decode_stored(&stored, &self.path)?;
        if is_expired(expiry, now) {
            return Ok(None);
        }
        if let StoredValue::Blob(file) = stored {
            found(StoredValue::Blob(file.without_header(HEADER_LEN)));
        }
        Ok(Some(expiry))
    }

    /// Returns whether the pair of a value that cannot be decoded has expired.
    #[cold]
    fn is_expired_at(&self, engine: &dyn Engine, at: ReadPoint, now: UnixMillis, key: &[u8]) -> bool {
        let mut expiry = Ok(None);
        let read = stored_form(engine).get_stored(at.seq, key, &mut |stored| {
            expiry = decode_stored(&stored, &self.path);
        });
        read.is_ok() && expiry.is_ok_and(|expiry| is_expired(expiry, now))
    }

    fn get(
        &self,
        engine: &dyn Engine,
        at: ReadPoint,
        key: &[u8],
        found: &mut dyn FnMut(&[u8]),
    ) -> Result<bool> {
        let mut file = None;
        let expiry = self.get_stored(engine, at, key, &mut |stored| match stored {
            StoredValue::Bytes(bytes) => found(bytes),
            StoredValue::Blob(value) => file = Some(value),
        })?;
        if let Some(file) = file {
            file.read(found)?;
        }
        Ok(expiry.is_some())
    }

    /// Returns the stored expiry time of the newest version of `key`, expired or not. Returns
    /// `None` if there is no pair.
    pub(crate) fn stored_expiry(
        &self,
        engine: &dyn Engine,
        key: &[u8],
    ) -> Result<Option<Option<UnixMillis>>> {
        let mut outcome = Ok(None);
        stored_form(engine).get_stored(Seq::LATEST, key, &mut |stored| {
            outcome = decode_stored(&stored, &self.path).map(Some);
        })?;
        outcome
    }

    /// Returns the expiry time of a value with its header.
    pub(crate) fn time_of(&self, stored: &StoredValue<'_>) -> Result<Option<UnixMillis>> {
        decode_stored(stored, &self.path)
    }

    /// Checks the header of a value, for verifications.
    pub(crate) fn check_value(&self, value: &[u8]) -> Result<()> {
        decode_bytes(value, &self.path).map(drop)
    }
}

/// Cursor that skips expired pairs and the headers of values.
struct ExpiringCursor<'k> {
    inner: Box<dyn Cursor + 'k>,
    expiry: &'k KeyspaceExpiry,
    now: UnixMillis,
}

impl ExpiringCursor<'_> {
    fn advance(&mut self, forward: bool) -> Result<bool> {
        loop {
            let Some((_, value)) = self.inner.step(forward)? else { return Ok(false) };
            if !is_expired(decode_bytes(value, &self.expiry.path)?, self.now) {
                return Ok(true);
            }
        }
    }
}

impl Cursor for ExpiringCursor<'_> {
    fn next(&mut self) -> Result<bool> {
        self.advance(true)
    }

    fn prev(&mut self) -> Result<bool> {
        self.advance(false)
    }

    fn expect_pairs(&mut self, pairs: usize) {
        self.inner.expect_pairs(pairs);
    }

    fn key(&self) -> &[u8] {
        self.inner.key()
    }

    fn value(&self) -> &[u8] {
        self.pair().1
    }

    fn pair(&self) -> (&[u8], &[u8]) {
        let (key, value) = self.inner.pair();
        (key, value.get(HEADER_BYTES..).unwrap_or_default())
    }
}

impl Store {
    /// Returns the number of pairs in the newest state. In a keyspace with expiry, looks up each
    /// pair that has expired and is not removed yet.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`EngineReads::len`](sheaf_engine::contract::EngineReads::len) and of
    /// [`KeyspaceState::get_stored`].
    pub fn count_pairs(&self, keyspace: &KeyspaceState) -> Result<u64> {
        let engine = keyspace.engine()?;
        let Some(expiry) = keyspace.expiry() else { return engine.len() };
        let _no_removal = expiry.removal_lock.lock();
        let view = View::new(self)?;
        let at = self.read_point(view.seq());
        let Some(index) = expiry.index() else {
            let (mut cursor, mut count) = (keyspace.cursor(at, Bounds::all(), Projection::Keys)?, 0);
            while cursor.next()? {
                count += 1;
            }
            return Ok(count);
        };
        let now = expiry.now(at);
        let mut expired = 0;
        let mut hints = index.engine()?.cursor(at.seq, Bounds::all(), Projection::Keys)?;
        while hints.next()? {
            let Some((time, key)) = hint_parts(hints.key()).filter(|(time, _)| *time <= now) else { break };
            expired += u64::from(expiry.stored_expiry(&**engine, key)? == Some(Some(time)));
        }
        Ok(engine.len()?.saturating_sub(expired))
    }

    /// Returns true if there is no pair in the newest state.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::count_pairs`].
    pub fn has_no_pairs(&self, keyspace: &KeyspaceState) -> Result<bool> {
        let engine = keyspace.engine()?;
        if keyspace.expiry().is_none() {
            return engine.is_empty();
        }
        let view = View::new(self)?;
        let mut cursor = keyspace.cursor(self.read_point(view.seq()), Bounds::all(), Projection::Keys)?;
        cursor.expect_pairs(1);
        Ok(!cursor.next()?)
    }
}
