//! # Role: recovery and repair

use sheaf_log::record::RecordContent;
use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};

use super::{EngineReads, HashedKey, ImageSource};

/// One record read back from a log by recovery.
#[derive(Clone, Copy, Debug)]
pub struct ReplayRecord<'a> {
    /// Seq of the record's commit.
    pub seq: Seq,
    /// The key.
    pub key: &'a [u8],
    /// Content of the record: a value, a reference to a blob, or a tombstone.
    pub content: RecordContent<'a>,
    /// Log address of the record.
    pub address: Address,
    /// Bytes of the record's frame.
    pub span: u32,
}

/// Recovery of a keyspace.
///
/// An opening calls [`EngineRecovery::restore`] with the last published image, or else
/// [`EngineRecovery::restore_without_image`]. Then follow [`EngineRecovery::replay`] of records,
/// [`EngineRecovery::finish_replay`] and [`EngineRecovery::replay_finished`].
pub trait EngineRecovery: EngineReads {
    /// Loads an image. Drops entries in segments that were freed: replay supplies them.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the image is invalid, and [`Error::Io`] if a read fails.
    fn restore(&self, image: &mut dyn ImageSource) -> Result<()>;
    /// Loads the keyspace without an image: none exists, or it is damaged, as `damage` says. An
    /// engine that has its data in files of its own loads it from there.
    ///
    /// # Errors
    ///
    /// Returns `damage`, if the engine cannot load its data without the image.
    fn restore_without_image(&self, damage: Option<Error>) -> Result<()> {
        damage.map_or(Ok(()), Err)
    }
    /// Returns the newest commit that the restore has found in the engine's own files. Returns
    /// [`Seq::ZERO`] if the engine has none, or if the image describes them as they are.
    fn newest_in_files(&self) -> Seq {
        Seq::ZERO
    }
    /// Loads the readable part of the engine's own files for a repair, with any image or none, and
    /// with files missing. Must not write. Versions that it finds may have been superseded or
    /// removed. Must call `skipped` with the error of each file that is left out and may contain
    /// pairs: these pairs are lost.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine has no files of its own, and [`Error::Corrupt`]
    /// if the list of its files is damaged.
    fn restore_partial(&self, skipped: &mut dyn FnMut(Error)) -> Result<()> {
        let _ = skipped;
        Err(Error::Unsupported { engine: self.name(), feature: "partial recovery" })
    }
    /// Returns how many entries an image has in the segment of each slot, without the engine's own
    /// files. Segments that were freed are left out. With these counts a repair proves which
    /// records of the log belong to an index that it cannot read.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine's images have no counts, [`Error::Corrupt`] if
    /// the image is invalid, and [`Error::Io`] if a read fails.
    fn image_entries(&self, image: &mut dyn ImageSource) -> Result<Vec<(u32, u64)>> {
        let _ = image;
        Err(Error::Unsupported { engine: self.name(), feature: "counts of entries" })
    }
    /// Replays one record at opening. Several threads call this. The journal's records of one key
    /// come in the order of the log, one after the other. Records of a store log come in any order.
    /// The seqs of one key are not necessarily ascending, so the engine must compare them.
    /// Replaying a record twice must change nothing that a reader sees.
    ///
    /// # Errors
    ///
    /// Returns [`Error::MemoryBudgetExceeded`] if the index does not fit into the budget, and the
    /// error of a read that the engine needs.
    fn replay(&self, record: &ReplayRecord<'_>) -> Result<()>;
    /// Like [`EngineRecovery::replay`] for several records of one segment. The lookups may overlap.
    ///
    /// # Errors
    ///
    /// Same as [`EngineRecovery::replay`].
    fn replay_run(&self, records: &[ReplayRecord<'_>]) -> Result<()> {
        let keys: Vec<HashedKey<'_>> = records.iter().map(|record| self.hashed_key(record.key)).collect();
        self.prefetch(&keys, true);
        records.iter().try_for_each(|record| self.replay(record))
    }
    /// Tells the engine that all records were replayed, so that it can insert the ones that it has
    /// only collected. Several threads call this in parallel, each with its own `part` below
    /// `parts`. The engine may leave work for later ([`EngineRecovery::is_replay_finished`]).
    ///
    /// # Errors
    ///
    /// Same as [`EngineRecovery::replay`].
    fn finish_replay(&self, part: usize, parts: usize) -> Result<()> {
        let _ = (part, parts);
        Ok(())
    }
    /// Tells the engine that every call of [`EngineRecovery::finish_replay`] has returned.
    fn replay_finished(&self) {}
    /// Returns true if all replayed records are in the index, so that a checkpoint can begin. While
    /// it returns false, `EngineCheckpoint::maintain` inserts the rest, as far as damage permits.
    fn is_replay_finished(&self) -> bool {
        true
    }
}
