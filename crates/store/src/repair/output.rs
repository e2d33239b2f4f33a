//! # Output: the new database while it is filled
//!
//! Each keyspace is unpublished until it is complete (`unpublished`). If the engine has files of
//! its own, pairs bypass the log as long as they come in key order. Otherwise they are committed.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::open::{SourceKeyspace, into_damage};
use super::report::{
    DamageList, KeyspaceRepair, MAX_UNREADABLE_RANGES, RepairFinding, RepairOptions, RepairOutcome,
    RepairProgress, UnreadableRange,
};
use crate::backup::output_dir::not_empty_error;
use crate::expiry::index::{IndexPlan, is_hidden_name};
use crate::keyspace::catalog::CatalogCause;
use crate::keyspace::ingest::IngestWriter;
use crate::{Store, StoreOptions};
use sheaf_engine::contract::EngineFactory;
use sheaf_log::blob_reader::OpenBlob;
use sheaf_log::types::Seq;
use sheaf_platform::clock::Clock;
use sheaf_platform::disk::Disk;
use sheaf_platform::error::{Error, Result};

/// Progress is reported after this many pairs or bytes.
const PAIRS_PER_CALL: u64 = 1 << 12;
const BYTES_PER_CALL: u64 = 4 << 20;

/// Value as it was found.
pub(super) enum SourceValue<'a> {
    Bytes(&'a [u8]),
    Blob(OpenBlob),
}

/// Returns true if a keyspace must be in the new database: it has a name, or pairs, or files that
/// could not be read. An index of expiry times is not copied: the next opening writes a new one.
fn is_reported(source: &SourceKeyspace, repair: &KeyspaceRepair) -> bool {
    if is_hidden_name(&source.name) {
        return false;
    }
    !source.is_unnamed
        || source.has_files
        || source.has_skipped_files
        || repair.doubtful > 0
        || repair.lost > 0
}

/// The new database and the results for the report.
pub(super) struct RepairOutput<'a, 'o> {
    pub(super) store: Arc<Store>,
    pub(super) sources: &'a [SourceKeyspace],
    pub(super) repairs: Vec<KeyspaceRepair>,
    pub(super) damages: DamageList,
    writers: Vec<Option<IngestWriter>>,
    options: &'a mut RepairOptions<'o>,
    /// Directory that is read, and the one that errors name instead.
    reported_dirs: Option<(PathBuf, PathBuf)>,
    progress: RepairProgress,
    reported: RepairProgress,
}

impl<'a, 'o> RepairOutput<'a, 'o> {
    /// Creates the new database at `dir` for the keyspaces `sources`.
    pub(super) fn new(
        dir: &Path,
        options: StoreOptions,
        (disk, clock): (&Arc<dyn Disk>, &Arc<dyn Clock>),
        factories: &[Arc<dyn EngineFactory>],
        sources: &'a [SourceKeyspace],
        repair: &'a mut RepairOptions<'o>,
        damages: DamageList,
    ) -> Result<RepairOutput<'a, 'o>> {
        let store = Store::open(dir, options, Arc::clone(disk), Arc::clone(clock), factories.to_vec())?;
        if !store.keyspaces().is_empty() {
            return Err(not_empty_error(dir));
        }
        let of_space = |source: &SourceKeyspace| KeyspaceRepair {
            name: source.name.clone(),
            is_name_lost: source.is_unnamed,
            id: source.id,
            engine: source.engine_name.clone(),
            index_error: source.index_error.clone(),
            has_more_lost: source.has_skipped_files,
            ..KeyspaceRepair::default()
        };
        Ok(RepairOutput {
            store,
            sources,
            repairs: sources.iter().map(of_space).collect(),
            damages,
            writers: sources.iter().map(|_| None).collect(),
            options: repair,
            reported_dirs: None,
            progress: RepairProgress::default(),
            reported: RepairProgress::default(),
        })
    }

    /// Adds bytes that will be read.
    pub(super) fn add_total(&mut self, bytes: u64) {
        self.progress.total += bytes;
    }

    /// Adds bytes that were read. Calls the progress callback if that is due.
    pub(super) fn add_done(&mut self, bytes: u64) -> Result<()> {
        self.progress.done += bytes;
        let Some(watcher) = &mut self.options.progress else { return Ok(()) };
        let is_due = self.progress.done - self.reported.done >= BYTES_PER_CALL
            || self.progress.pairs - self.reported.pairs >= PAIRS_PER_CALL;
        if is_due && watcher(self.progress) == ControlFlow::Break(()) {
            return Err(Error::Cancelled);
        }
        if is_due {
            self.reported = self.progress;
        }
        Ok(())
    }

    /// Returns whether the pairs of a keyspace are not copied.
    pub(super) fn is_left_out(&self, at: usize) -> bool {
        is_hidden_name(&self.sources[at].name)
    }

    /// Starts the keyspace with index `at`, if it is not started yet; in the order of keys if
    /// `is_sorted`.
    pub(super) fn begin_keyspace(&mut self, at: usize, is_sorted: bool) -> Result<&mut IngestWriter> {
        let (source, store) = (&self.sources[at], &self.store);
        let writer = match self.writers[at].take() {
            Some(writer) => writer,
            None => IngestWriter::new(
                store.begin_unpublished(&source.name, &source.engine_name, &source.options)?,
                is_sorted,
            )?,
        };
        Ok(self.writers[at].insert(writer))
    }

    /// Ends the sorted part of the keyspace.
    pub(super) fn end_key_order(&mut self, at: usize) -> Result<()> {
        self.begin_keyspace(at, false)?.end_key_order()
    }

    /// Returns true if the key was written already.
    pub(super) fn contains(&mut self, at: usize, key: &[u8]) -> Result<bool> {
        if self.is_left_out(at) {
            return Ok(true);
        }
        let writer = self.begin_keyspace(at, false)?;
        writer.end_key_order()?;
        writer.keyspace().engine()?.contains(Seq::LATEST, key)
    }

    /// Lets the findings name the directory `to` instead of `from`.
    pub(super) fn with_paths_in(mut self, from: &Path, to: &Path) -> RepairOutput<'a, 'o> {
        self.reported_dirs = Some((from.to_path_buf(), to.to_path_buf()));
        self
    }

    /// Handles a pair: writes it if it is certain, or if doubtful pairs are wanted.
    pub(super) fn put_pair(
        &mut self,
        at: usize,
        (key, seq): (&[u8], Option<Seq>),
        value: SourceValue<'_>,
        is_doubtful: bool,
    ) -> Result<()> {
        if self.is_left_out(at) {
            return Ok(());
        }
        if let SourceValue::Blob(file) = &value
            && let Err(error) = file.check()
        {
            return self.add_lost(at, (key, seq), &into_damage(error)?);
        }
        self.progress.pairs += 1;
        let repair = &mut self.repairs[at];
        match is_doubtful {
            true => repair.doubtful += 1,
            false => repair.certain += 1,
        }
        if is_doubtful {
            self.report_finding(
                at,
                key,
                seq,
                RepairOutcome::Doubtful { is_copied: self.options.keep_doubtful },
            );
        }
        if is_doubtful && !self.options.keep_doubtful {
            return Ok(());
        }
        let writer = self.begin_keyspace(at, false)?;
        match value {
            SourceValue::Bytes(value) => writer.put(key, value),
            SourceValue::Blob(file) => writer.copy_foreign_blob(key, &file),
        }
    }

    /// Records a key with an unreadable value.
    pub(super) fn add_lost(
        &mut self,
        at: usize,
        (key, seq): (&[u8], Option<Seq>),
        why: &Error,
    ) -> Result<()> {
        if self.is_left_out(at) {
            return Ok(());
        }
        self.repairs[at].lost += 1;
        self.damages.note_error(why);
        let moved = self.reported_dirs.as_ref().and_then(|(from, to)| with_path_in(why, from, to));
        self.report_finding(at, key, seq, RepairOutcome::Lost { error: moved.as_ref().unwrap_or(why) });
        Ok(())
    }

    /// Records that the pair of an index entry was found. It was counted as lost, because the
    /// part of the index with its key cannot be read.
    pub(super) fn found_lost_entry(&mut self, at: usize) {
        let repair = &mut self.repairs[at];
        if repair.lost_without_key > 0 {
            repair.lost_without_key -= 1;
            repair.lost -= 1;
        }
        if repair.lost_without_key == 0 {
            repair.lost_records.clear();
        }
    }

    /// Records that keys between these two cannot be read.
    pub(super) fn add_unreadable_range(
        &mut self,
        at: usize,
        (after, before): (Option<&[u8]>, Option<&[u8]>),
        why: &str,
    ) {
        let repair = &mut self.repairs[at];
        repair.has_more_lost = true;
        if repair.unreadable_ranges.len() < MAX_UNREADABLE_RANGES {
            let (after, before) = (after.map(<[u8]>::to_vec), before.map(<[u8]>::to_vec));
            repair.unreadable_ranges.push(UnreadableRange { after, before, reason: why.to_owned() });
        }
    }

    /// Calls the callback for findings.
    pub(super) fn report_finding(
        &mut self,
        at: usize,
        key: &[u8],
        seq: Option<Seq>,
        fate: RepairOutcome<'_>,
    ) {
        let keyspace = &self.sources[at].name;
        if let Some(listener) = &mut self.options.on_finding {
            listener(&RepairFinding { keyspace, key, seq, outcome: fate });
        }
    }

    /// Publishes all keyspaces and closes the new database.
    pub(super) fn finish(mut self) -> Result<(Vec<KeyspaceRepair>, DamageList)> {
        for at in 0..self.sources.len() {
            let is_named = is_reported(&self.sources[at], &self.repairs[at]);
            if !is_named {
                continue; // nothing of value
            }
            self.begin_keyspace(at, false)?;
            let Some(writer) = self.writers[at].take() else { continue };
            let store = Arc::clone(&self.store);
            let _changing = store.catalog.lock_changes();
            writer.publish(None, &IndexPlan::Rebuild, CatalogCause::Loaded)?;
        }
        self.store.close()?;
        if let Some(watcher) = &mut self.options.progress {
            let _ = watcher(self.progress);
        }
        let all = self.repairs.into_iter().zip(self.sources);
        let missed = all.filter(|(repair, source)| is_reported(source, repair));
        let mut repairs: Vec<KeyspaceRepair> = missed.map(|(repair, _)| repair).collect();
        repairs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((repairs, self.damages))
    }
}

/// Returns a copy of `error` with the directory `from` replaced by `to`. Returns `None` if its file
/// is elsewhere.
fn with_path_in(error: &Error, from: &Path, to: &Path) -> Option<Error> {
    let Error::Corrupt { path, offset, structure, damage } = error else { return None };
    let path = to.join(path.strip_prefix(from).ok()?);
    Some(Error::Corrupt { path, offset: *offset, structure, damage: damage.clone() })
}
