//! # Bulk load: creation of a keyspace from sorted pairs
//!
//! The pairs are written to an unpublished keyspace, bypassing the log if the engine has files of
//! its own (`ingest`). At the end one commit publishes the keyspace. A load that keeps the present
//! pairs copies them into the unpublished keyspace before, like a conversion (`convert`).
//!
//! ## Crash
//!
//! The keyspace is unchanged, or contains everything that was loaded.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::expiry::header::{self, HEADER_BYTES};
use crate::expiry::{Expires, check_same_expiry, commit::no_expiry_error};
use crate::keyspace::catalog::{CatalogCause, check_keyspace_name, check_operator};
use crate::keyspace::copy::LoadedPairs;
use crate::keyspace::ingest::IngestWriter;
use crate::keyspace::unpublished::CommitBlock;
use crate::{ConversionProgress, EngineChoice, KeyspaceState, Store};
use sheaf_platform::error::{Error, Result};

/// Running bulk load. If it is dropped before [`BulkLoad::finish`], nothing changes.
pub struct BulkLoad {
    writer: IngestWriter,
    /// Header and value of the last pair.
    buffer: Vec<u8>,
    present: PresentPairs,
    first_key: Option<Box<[u8]>>,
    last_key: Option<Vec<u8>>,
    report: BulkLoadReport,
    has_failed: bool,
}

/// Fate of the pairs that a keyspace has when it is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PresentPairs {
    /// There must be none.
    #[default]
    Refuse,
    /// They are removed.
    Replace,
    /// They stay; a loaded pair replaces the one with its key.
    Keep,
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
    /// keyspace, or `default`. `present` tells the fate of its pairs. Only
    /// [`PresentPairs::Replace`] permits another engine.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if the keyspace has pairs and must have none, or if its
    /// name, the engine or an option is not valid. Returns [`Error::EngineMismatch`] if a keyspace
    /// that is not replaced has another engine or option than `choice`. Returns [`Error::Closed`],
    /// [`Error::ReadOnly`] or [`Error::Poisoned`] if writes are not possible, and errors of a read
    /// or write.
    pub fn begin_bulk_load(
        self: &Arc<Store>,
        name: &str,
        choice: EngineChoice<'_>,
        default: &str,
        present: PresentPairs,
    ) -> Result<BulkLoad> {
        self.check_writable()?;
        check_keyspace_name(name)?;
        let before = self.find_keyspace(name)?;
        self.check_present(before.as_deref(), choice, present)?;
        let (engine, options) = choice.resolve(before.as_deref(), default);
        before.as_deref().map_or(Ok(()), |before| check_same_expiry(before, &options))?;
        let mut writer = IngestWriter::new(self.begin_unpublished(name, engine, &options)?, true)?;
        let has_expiry = writer.keyspace().has_expiry();
        writer.set_index(if has_expiry { Some(self.begin_index(name, engine)?) } else { None });
        Ok(BulkLoad {
            writer,
            buffer: Vec::new(),
            present,
            first_key: None,
            last_key: None,
            report: BulkLoadReport::default(),
            has_failed: false,
        })
    }

    /// Returns an error unless a load may begin or end with the keyspace `before`.
    fn check_present(
        &self,
        before: Option<&KeyspaceState>,
        choice: EngineChoice<'_>,
        present: PresentPairs,
    ) -> Result<()> {
        let Some(before) = before.filter(|_| present != PresentPairs::Replace) else { return Ok(()) };
        self.check_choice(before, choice)?;
        if present == PresentPairs::Refuse && !self.has_no_pairs(before)? {
            let why = format!(
                "{:?} is not empty; clear it, or let the load replace or keep its pairs",
                before.name()
            );
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

    /// Adds the hint of the next pair to the index, and returns the header of its value. Returns
    /// `None` if the keyspace has no expiry.
    fn add_hint(&mut self, key: &[u8], expires: Expires) -> Result<Option<[u8; HEADER_BYTES]>> {
        let Some(expiry) = self.writer.keyspace().expiry() else {
            return match expires {
                Expires::Default | Expires::Never => Ok(None),
                _ => Err(no_expiry_error(self.writer.keyspace())),
            };
        };
        let time = expiry.expiry_time(expires)?;
        self.writer.add_hint(key, time)?;
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
        self.first_key.get_or_insert_with(|| key.into());
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

    /// Publishes the loaded pairs as the keyspace, durably. If the present pairs stay, copies them
    /// first, in bounded steps; commits to the keyspace continue during the copy.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if an earlier pair failed, or if the keyspace is not
    /// empty any more and must be. Returns [`Error::EngineMismatch`] if it was created with another
    /// engine or option since. If the present pairs stay, returns [`Error::KeyspaceNotFound`] if
    /// the keyspace is dropped, replaced or renamed during the copy, [`Error::InvalidArgument`] if
    /// it is being converted, [`Error::NoSpace`] if the copy may fill the disk, and
    /// [`Error::Cancelled`] if `progress`, which is called before each step, breaks. Returns errors
    /// of a read, a write, a sync or the commit.
    pub fn finish(
        mut self,
        progress: &mut dyn FnMut(&ConversionProgress) -> ControlFlow<()>,
    ) -> Result<BulkLoadReport> {
        self.check_not_failed()?;
        self.writer.end_key_order()?;
        self.report.is_direct = self.writer.is_direct();
        if self.present == PresentPairs::Keep {
            return self.finish_keeping(progress);
        }
        let store = Arc::clone(self.writer.store());
        let _changing = store.catalog.lock_changes();
        self.publish()
    }

    /// Publishes the keyspace. The caller holds `change_lock`.
    fn publish(mut self) -> Result<BulkLoadReport> {
        let store = Arc::clone(self.writer.store());
        let plan = self.writer.finish_index()?;
        let before = store.find_keyspace(&self.writer.keyspace().name())?;
        let _held: Option<CommitBlock<'_>> = before.as_deref().map(|before| store.block_commits(before));
        self.check_before(before.as_deref())?;
        self.writer.publish(before.as_deref(), &plan, CatalogCause::Loaded)?;
        Ok(self.report)
    }

    /// Returns an error if the loaded keyspace cannot follow `before`.
    fn check_before(&self, before: Option<&KeyspaceState>) -> Result<()> {
        if self.present == PresentPairs::Replace {
            return Ok(());
        }
        // With all options: if the keyspace was created with options since, they must not be lost.
        let (store, keyspace) = (self.writer.store(), self.writer.keyspace());
        let options = keyspace.options().with_defaults(&store.option_specs(keyspace.engine_name()));
        let choice = EngineChoice { engine: Some(keyspace.engine_name()), options: &options };
        store.check_present(before, choice, self.present)?;
        let operator = keyspace.options().merge_operator();
        before.map_or(Ok(()), |before| check_operator(before, operator))
    }

    /// Copies the pairs of the present keyspace, and publishes all pairs.
    fn finish_keeping(
        mut self,
        progress: &mut dyn FnMut(&ConversionProgress) -> ControlFlow<()>,
    ) -> Result<BulkLoadReport> {
        let store = Arc::clone(self.writer.store());
        let source = {
            let _changing = store.catalog.lock_changes();
            match store.find_keyspace(&self.writer.keyspace().name())? {
                None => return self.publish(),
                Some(source) => source,
            }
        };
        self.check_before(Some(&source))?;
        let (Some(first), Some(last)) = (self.first_key.take(), self.last_key.take()) else {
            return Ok(self.report); // nothing to load
        };
        let loaded = LoadedPairs {
            keyspace: Arc::clone(self.writer.keyspace()),
            view: store.view()?,
            ends: (first, last.into()),
        };
        let mut copy = store.begin_load_copy(&source, self.writer, loaded)?;
        loop {
            if progress(&copy.progress()).is_break() {
                return Err(Error::Cancelled);
            }
            if !copy.step()? {
                return Ok(self.report);
            }
        }
    }
}
