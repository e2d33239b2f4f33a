//! # Bulk load: creation of a keyspace from sorted pairs
//!
//! The pairs are written to an unpublished keyspace, bypassing the log if the engine has files of
//! its own (`ingest`). At the end one commit publishes the keyspace.
//!
//! ## Crash
//!
//! The keyspace is unchanged, or contains everything that was loaded.

use std::io;
use std::sync::Arc;

use crate::expiry::header::{self, HEADER_BYTES};
use crate::expiry::index::{IndexPlan, encode_hint};
use crate::expiry::{Expires, check_same_expiry, commit::no_expiry_error};
use crate::keyspace::catalog::{CatalogCause, check_name, check_operator};
use crate::keyspace::ingest::IngestWriter;
use crate::keyspace::unpublished::CommitBlock;
use crate::{EngineChoice, KeyspaceState, Store};
use sheaf_platform::error::{Error, Result};

/// Running bulk load. If it is dropped before [`BulkLoad::finish`], nothing changes.
pub struct BulkLoad {
    writer: IngestWriter,
    /// Writer of the index, if the keyspace has expiry.
    index: Option<IngestWriter>,
    /// Header and value, or hint, of the last pair.
    buffer: Vec<u8>,
    is_replacing: bool,
    last_key: Option<Vec<u8>>,
    report: BulkLoadReport,
    has_failed: bool,
}

/// Result of a bulk load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkLoadReport {
    /// Number of pairs.
    pub pairs: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// True if the pairs were written directly to the files of the engine, without the log.
    pub is_direct: bool,
}

impl Store {
    /// Starts a bulk load into `name`. Parts that `choice` leaves open are those of the present
    /// keyspace, or `default`. If `replaces`, the load replaces the present keyspace, of any
    /// engine; otherwise that keyspace must be empty.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the keyspace is not empty, or if its name, the engine
    /// or an option is not valid. Returns [`Error::EngineMismatch`] if an empty keyspace has
    /// another engine or option than `choice`. Returns [`Error::Closed`], [`Error::ReadOnly`] or
    /// [`Error::Poisoned`] if writes are not possible, and errors of a read or write.
    pub fn begin_bulk_load(
        self: &Arc<Store>,
        name: &str,
        choice: EngineChoice<'_>,
        default: &str,
        replaces: bool,
    ) -> Result<BulkLoad> {
        self.check_writable()?;
        check_name(name)?;
        let before = self.find_keyspace(name)?;
        if !replaces {
            self.check_empty(before.as_deref(), choice)?;
        }
        let (engine, options) = choice.resolve(before.as_deref(), default);
        before.as_deref().map_or(Ok(()), |before| check_same_expiry(before, &options))?;
        let writer = IngestWriter::new(self.begin_unpublished(name, engine, &options)?, true)?;
        let has_expiry = writer.keyspace().has_expiry();
        let index = if has_expiry { Some(self.begin_index(name, engine)?) } else { None };
        Ok(BulkLoad {
            writer,
            index,
            buffer: Vec::new(),
            is_replacing: replaces,
            last_key: None,
            report: BulkLoadReport::default(),
            has_failed: false,
        })
    }

    /// Returns an error unless the present keyspace has the chosen engine and is empty.
    fn check_empty(&self, before: Option<&KeyspaceState>, choice: EngineChoice<'_>) -> Result<()> {
        let Some(before) = before else { return Ok(()) };
        self.check_choice(before, choice)?;
        if !self.has_no_pairs(before)? {
            let why = format!("{:?} is not empty; clear it, or let the load replace it", before.name());
            return Err(Error::InvalidArgument { argument: "keyspace", reason: why });
        }
        Ok(())
    }
}

impl BulkLoad {
    /// Adds the next pair, which expires as `expires` says. After [`Error::TooLarge`], an invalid
    /// expiry time or an unsorted key the load may continue with
    /// another pair; after any other error it must be dropped.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the key is not above the previous one, or an earlier
    /// pair failed. Returns [`Error::TooLarge`] if key or value exceeds its limit, and errors of a
    /// write.
    pub fn push(&mut self, key: &[u8], value: &[u8], expires: Expires) -> Result<()> {
        self.check_next(key)?;
        let header = self.add_hint(key, expires)?;
        let put = match header {
            None => self.writer.put(key, value),
            Some(header) => {
                self.buffer.clear();
                self.buffer.extend_from_slice(&header);
                self.buffer.extend_from_slice(value);
                self.writer.put(key, &self.buffer)
            }
        };
        self.has_failed = put.as_ref().is_err_and(|error| !matches!(error, Error::TooLarge { .. }));
        put?;
        self.count(key, value.len() as u64);
        Ok(())
    }

    /// Adds the next pair; its value consists of all bytes that `value` returns. Returns the bytes
    /// of the value. After an unsorted key the load may continue; after any other error it must be
    /// dropped.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`BulkLoad::push`], and [`Error::Io`] if `value` cannot be read.
    pub fn push_reader(&mut self, key: &[u8], value: &mut dyn io::Read, expires: Expires) -> Result<u64> {
        self.check_next(key)?;
        let header = self.add_hint(key, expires)?;
        self.has_failed = true;
        let header = header.as_ref().map_or(&[][..], |header| &header[..]);
        let bytes = self.writer.put_reader(key, header, value)?;
        self.has_failed = false;
        self.count(key, bytes);
        Ok(bytes)
    }

    /// Adds the hint of the next pair to the index, and returns the header of its value. A hint
    /// without a pair is harmless. Returns `None` if the keyspace has no expiry.
    fn add_hint(&mut self, key: &[u8], expires: Expires) -> Result<Option<[u8; HEADER_BYTES]>> {
        let (Some(expiry), Some(index)) = (self.writer.keyspace().expiry(), &mut self.index) else {
            return match expires {
                Expires::Default | Expires::Never => Ok(None),
                _ => Err(no_expiry_error(self.writer.keyspace())),
            };
        };
        let time = expiry.expiry_time(expires)?;
        if let Some(time) = time {
            self.buffer.clear();
            encode_hint(time, key, &mut self.buffer);
            index.put(&self.buffer, &[])?;
        }
        Ok(Some(header::encode(time)))
    }

    fn check_next(&self, key: &[u8]) -> Result<()> {
        self.check_not_failed()?;
        if self.last_key.as_deref().is_some_and(|last| key <= last) {
            let is_same = self.last_key.as_deref() == Some(key);
            let how = if is_same { "the same as" } else { "below" };
            let why =
                format!("the key of pair {} is {how} the key of the pair before", self.report.pairs + 1);
            return Err(Error::InvalidArgument { argument: "key", reason: why });
        }
        Ok(())
    }

    fn count(&mut self, key: &[u8], value: u64) {
        let last = self.last_key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        self.report.pairs += 1;
        self.report.bytes += key.len() as u64 + value;
    }

    fn check_not_failed(&self) -> Result<()> {
        match self.has_failed {
            true => Err(Error::InvalidArgument {
                argument: "load",
                reason: "an earlier pair could not be written; start the load again".to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// Returns the result so far.
    #[must_use]
    pub fn progress(&self) -> BulkLoadReport {
        self.report
    }

    /// Publishes the loaded pairs as the keyspace, durably.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if an earlier pair failed, or if the keyspace is not
    /// empty any more and must be. Returns [`Error::EngineMismatch`] if it was created with another
    /// engine or option since. Returns errors of a write, of a sync or of the commit.
    pub fn finish(mut self) -> Result<BulkLoadReport> {
        self.check_not_failed()?;
        self.writer.end_key_order()?;
        let plan = match &mut self.index {
            Some(index) => {
                index.end_key_order()?;
                IndexPlan::New(Arc::clone(index.keyspace()))
            }
            None => IndexPlan::Keep,
        };
        self.report.is_direct = self.writer.is_direct();
        let store = Arc::clone(self.writer.store());
        let _changing = store.catalog.lock_changes();
        let before = store.find_keyspace(&self.writer.keyspace().name())?;
        let _held: Option<CommitBlock<'_>> = before.as_deref().map(|before| store.block_commits(before));
        if !self.is_replacing {
            // With all options: if the keyspace was created with options since, they must not be
            // lost.
            let keyspace = self.writer.keyspace();
            let options = keyspace.options().with_defaults(&store.option_specs(keyspace.engine_name()));
            let choice = EngineChoice { engine: Some(keyspace.engine_name()), options: &options };
            store.check_empty(before.as_deref(), choice)?;
            let operator = keyspace.options().merge_operator();
            before.as_deref().map_or(Ok(()), |before| check_operator(before, operator))?;
        }
        self.writer.publish(before.as_deref(), &plan, CatalogCause::Loaded)?;
        Ok(self.report)
    }
}
