//! # Role: checkpoints, and the figures that decide when they are due

use std::sync::Arc;

use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Expected, Result};

use super::EngineInfo;
use crate::backup_files::PinnedFiles;
use crate::views::Views;

/// Writer of an engine's image. Computes the checksums.
pub trait ImageSink {
    /// Appends bytes to the image.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the write fails.
    fn put(&mut self, bytes: &[u8]) -> Result<()>;
}

/// Reader of an engine's image. The checksums are already verified.
pub trait ImageSource {
    /// Fills `bytes` with the next bytes of the image.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the image ends before, and [`Error::Io`] if a read fails.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()>;
    /// Returns an error for a field with the invalid value `got` below a valid checksum.
    fn invalid_field(&self, field: &'static str, expected: Expected, got: u64) -> Error;
    /// Returns the slot of the segment that had `slot` when the image was made, or `None` if that
    /// segment was freed. A segment keeps its slot across openings, so addresses in an engine's own
    /// files remain valid. The slot of a freed segment stays empty until replay is complete.
    fn slot_of(&self, slot: u32) -> Option<u32>;
    /// Returns the seq `stored` in the image.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if `stored` is above the last commit that recovery accepts.
    fn seq(&self, stored: u64) -> Result<Seq>;
}

/// Checkpoints and maintenance of a keyspace.
///
/// A checkpoint is this sequence of calls and steps of the store:
///
/// ```text
///   [alone: position, freeze] -> a sync round, ROOT -> maintain, step by step -> save -> ROOT
/// ```
pub trait EngineCheckpoint: EngineInfo {
    /// Starts a checkpoint, *alone*. The image that ends the checkpoint must contain everything
    /// committed so far. Must be short: an engine with files of its own only sets aside the data
    /// that [`EngineCheckpoint::maintain`] then moves.
    fn freeze(&self) {}
    /// Returns true if the engine has set aside the data of a pending checkpoint and should set
    /// aside more ([`EngineCheckpoint::freeze_more`]). For example, its memtable is full again
    /// before the flush is over. Must be cheap: the store asks often.
    fn wants_freeze(&self) -> bool {
        false
    }
    /// Sets aside the commits since the last freeze, *alone*, if the engine still wants that. The
    /// image of the pending checkpoint need not contain them, because the log from the position of
    /// that checkpoint stays. The image of the next checkpoint must. Must be short.
    fn freeze_more(&self) {}
    /// Performs one bounded step of flushing frozen data, or of other work that is due. Returns
    /// true if there is more to do. Several threads may call this at once.
    ///
    /// Commits up to `durable_seq` are durable and below ROOT's floor. The engine must not write
    /// newer commits to any file but the log. Otherwise a recovery could end before the content of
    /// the engine's files (commit.md R12, scenario 8). `views` is a copy of the registry. A view
    /// that is registered during the step may need a version that is superseded during the step
    /// ([`Views::may_need`]).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::Corrupt`] if a file cannot be read or written.
    fn maintain(&self, views: &Views, durable_seq: Seq) -> Result<bool> {
        let _ = (views, durable_seq);
        Ok(false)
    }
    /// Performs one bounded step of optional maintenance that frees disk space or speeds up
    /// readers. The store calls this while the database is idle, and for a caller that asked for it
    /// (`Store::quiesce`, a compaction). Arguments and threads are
    /// as for [`EngineCheckpoint::maintain`]. Returns true if another step would gain more.
    ///
    /// Must return false once little is left to gain, and continue to do so until new commits or
    /// released views change that. Otherwise an idle database would never come to rest. The bytes
    /// written must be bounded by the bytes gained, times a constant. Versions pinned by views must
    /// be left alone.
    ///
    /// # Errors
    ///
    /// Same as [`EngineCheckpoint::maintain`].
    fn reclaim(&self, views: &Views, durable_seq: Seq) -> Result<bool> {
        let _ = (views, durable_seq);
        Ok(false)
    }
    /// Returns true if all data of [`EngineCheckpoint::freeze`] is flushed, and no thread flushes
    /// it, so that the image can be saved. Excludes data of [`EngineCheckpoint::freeze_more`].
    fn is_flushed(&self) -> bool {
        true
    }
    /// Writes an image of at least everything up to the last commit before
    /// [`EngineCheckpoint::freeze`]. The image is fuzzy: it may contain later commits. All data
    /// that the image refers to must be durable on return.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a write or a sync fails.
    fn save(&self, out: &mut dyn ImageSink) -> Result<()>;
    /// Tells the engine, *alone*, that the image is durable and that the records before the freeze
    /// are about to be freed.
    fn image_published(&self) {}
    /// Tells the engine that neither slot of ROOT refers to the image before the last one any more.
    /// The engine may then reuse space that only older images refer to. The store calls this once
    /// after each [`EngineCheckpoint::image_published`], in the same order.
    fn image_superseded(&self) {}
    /// Pins the engine's own files in their current state, for a backup or an attached reader. They
    /// must be readable, unchanged, until the result is dropped. Returns `None` if the engine has
    /// no files that matter. No checkpoint begins or ends during the call; maintenance may run.
    ///
    /// The store does not call [`EngineCheckpoint::image_superseded`] while a state is pinned. An
    /// engine that overwrites nothing that an image refers to before that call needs no pin of its
    /// own.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a file cannot be opened.
    fn pin_files(self: Arc<Self>) -> Result<Option<Box<dyn PinnedFiles>>> {
        Ok(None)
    }
}

/// Figures of a keyspace by which the store starts checkpoints, throttles writers, and reserves
/// disk space.
pub trait EnginePressure: EngineCheckpoint {
    /// Returns true if the engine needs a checkpoint. For example, the data to freeze uses too much
    /// memory, was not written for a long time, or would take long to replay.
    fn wants_checkpoint(&self) -> bool {
        false
    }
    /// Returns the number of log bytes below which a checkpoint is not worth its cost, if the
    /// engine has a better estimate than the store.
    fn checkpoint_after(&self) -> u64 {
        0
    }
    /// Returns the bytes of the log that only this keyspace needs. For an engine of the journal:
    /// its records since the position of the newest complete checkpoint. For an engine of a store
    /// log: the newest versions of its keys. Must be cheap: the store calls it when a keyspace is
    /// dropped, and for statistics.
    fn log_bytes_needed(&self) -> u64 {
        0
    }
    /// Returns the percentage of the frozen data that is not flushed yet. An engine that cannot
    /// tell returns 100 until all of it is flushed.
    fn flush_remaining_percent(&self) -> u64 {
        if self.is_flushed() { 0 } else { 100 }
    }
    /// Returns the memory of commits since the freeze, as a percentage of its share. Above 100 the
    /// store throttles writers.
    fn pressure_percent(&self) -> u64 {
        0
    }
    /// Returns true if a checkpoint would free a large part of the memory budget.
    fn is_memory_high(&self) -> bool {
        false
    }
    /// Returns the disk space in bytes that the engine needs to move the content of its log to its
    /// own files. The store reserves this space. Returns `None` if a checkpoint of the engine
    /// writes only an image.
    fn disk_reserve(&self) -> Option<u64> {
        None
    }
}
