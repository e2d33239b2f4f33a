//! # Lookup: the version of a key in the sources
//!
//! A lookup asks the sources from the newest to the oldest: active memtable, frozen memtable, and
//! the levels from the first on. For an older view it asks the old versions directly after the
//! active memtable. A range tombstone of a memtable hides the versions of older commits in all
//! sources. Old versions end at the tombstone, so a view that sees the tombstone does not see them.

use sheaf_log::record::Record;
use sheaf_log::segment::{Address, Frame};
use sheaf_log::types::Seq;
use sheaf_platform::error::{Damage, Error, Result};
use sheaf_platform::sync::epoch::Guard;

use crate::engine::KreonEngine;
use crate::memtable::KreonVersion;
use crate::tree::{KreonState, Level, LevelEntry, record_seq};

/// Lower bound of the bytes of a blob, used as an estimate.
const BLOB_BYTES_ESTIMATE: u64 = 64 << 10;

/// The version of a key that a view shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisibleRecord<'g> {
    pub(crate) address: Address,
    /// Bytes of the record's frame, as far as known.
    pub(crate) span: u64,
    /// The value, if it was found together with the key.
    pub(crate) value: Option<&'g [u8]>,
}

impl<'g> VisibleRecord<'g> {
    /// Returns a memtable's version, or `None` for a tombstone.
    #[inline]
    pub(crate) fn from_memtable(version: KreonVersion) -> Option<VisibleRecord<'g>> {
        let word = version.word;
        (!word.is_tombstone()).then(|| VisibleRecord {
            address: word.address(),
            span: word.span(),
            value: None,
        })
    }

    /// Returns a level's entry, or `None` for a tombstone.
    #[inline]
    pub(crate) fn from_level(seen: &LevelEntry<'g>) -> Option<VisibleRecord<'g>> {
        let entry = &seen.entry;
        let value = entry.is_inline().then_some(seen.value);
        (!entry.is_tombstone()).then(|| VisibleRecord { address: entry.address(), span: entry.span(), value })
    }

    /// Returns an old version that is kept for views, or `None` for a tombstone.
    pub(crate) fn from_old_version(address: Address) -> Option<VisibleRecord<'g>> {
        (address != Address::NONE).then_some(VisibleRecord { address, span: 0, value: None })
    }
}

/// A version of a key in one of the sources.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FoundVersion<'g> {
    /// A version with the number of its memtable.
    Memtable(KreonVersion, u32),
    Level(LevelEntry<'g>),
    /// No version: the range tombstone of this commit hides all versions of the key.
    RemovedRange(Seq),
}

impl<'g> FoundVersion<'g> {
    fn visible_record(&self) -> Option<VisibleRecord<'g>> {
        match self {
            FoundVersion::Memtable(version, _) => VisibleRecord::from_memtable(*version),
            FoundVersion::Level(seen) => VisibleRecord::from_level(seen),
            FoundVersion::RemovedRange(_) => None,
        }
    }

    /// Returns the address of the record, or `None` for a tombstone.
    pub(crate) fn address(&self) -> Option<Address> {
        self.visible_record().map(|shown| shown.address)
    }
}

impl KreonEngine {
    /// Returns the frame of the record at an address from a source.
    #[inline]
    pub(crate) fn read_frame<'g>(&'g self, address: Address, guard: &'g Guard) -> Result<Frame<'g>> {
        match self.context.segments.at(address.slot(), guard) {
            Some(segment) => segment.frame(address.offset(), segment.limit_at(address.offset())),
            None => Err(self.dangling_address_error(address)),
        }
    }

    /// Returns the error for an address without a record.
    pub(crate) fn dangling_address_error(&self, address: Address) -> Error {
        let what = Damage::bad_field("address", "an address of a record of the key", address.bits());
        Error::corrupt(&self.level_store.space.page_file.path, 0, "reference to a record", what)
    }

    /// Decodes the record in `frame`, which must belong to `key`.
    #[inline]
    pub(crate) fn decode_record<'f>(
        &self,
        address: Address,
        frame: &'f Frame<'_>,
        key: &[u8],
        guard: &Guard,
    ) -> Result<Record<'f>> {
        let damaged = |what| match self.context.segments.at(address.slot(), guard) {
            Some(segment) => Error::corrupt(segment.path(), address.offset(), "record", what),
            None => self.dangling_address_error(address),
        };
        let record = Record::decode(frame.payload()).map_err(damaged)?;
        if record.key == key { Ok(record) } else { Err(self.dangling_address_error(address)) }
    }

    /// Returns the seq of a level's entry, or `None` if its segment is deleted, which makes the
    /// entry void.
    pub(crate) fn seq_of(&self, seen: &LevelEntry<'_>, guard: &Guard) -> Result<Option<Seq>> {
        if seen.entry.is_tombstone() {
            return Ok(Some(seen.entry.tombstone_seq()));
        }
        let address = seen.entry.address();
        self.level_store
            .segment_of(address, seen.stamp, guard)
            .map(|segment| record_seq(segment, address))
            .transpose()
    }

    /// Returns the version in the first source that contains the key.
    #[inline]
    fn find_newest<'g>(
        &'g self,
        state: &KreonState,
        hash: u64,
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<FoundVersion<'g>>> {
        self.find_newest_in(state, &state.levels, hash, key, guard)
    }

    /// Returns the version in the first of the memtables and `levels` that contains the key, or the
    /// range tombstone that hides it and all versions in other levels.
    #[inline]
    pub(crate) fn find_newest_in<'g>(
        &'g self,
        state: &KreonState,
        levels: &[Level],
        hash: u64,
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<FoundVersion<'g>>> {
        let found = self.find_source(state, levels, hash, key, guard)?;
        let removed = state.range_seq(key, Seq::LATEST, guard);
        if removed == Seq::ZERO {
            return Ok(found);
        }
        let is_hidden = match &found {
            Some(FoundVersion::Memtable(version, _)) => version.seq < removed,
            Some(FoundVersion::Level(seen)) => self.is_hidden(seen, removed, guard)?,
            Some(FoundVersion::RemovedRange(_)) | None => true,
        };
        Ok(if is_hidden { Some(FoundVersion::RemovedRange(removed)) } else { found })
    }

    /// Like [`KreonEngine::find_newest_in`], without the range tombstones.
    #[inline]
    pub(crate) fn find_source<'g>(
        &'g self,
        state: &KreonState,
        levels: &[Level],
        hash: u64,
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<FoundVersion<'g>>> {
        for memtable in state.memtables.iter() {
            if let Some(place) = memtable.find(hash, key, guard) {
                return Ok(Some(FoundVersion::Memtable(memtable.version(place), memtable.number)));
            }
        }
        for level in levels {
            if let Some(seen) = self.level_store.find(level, hash, key, guard)? {
                return Ok(Some(FoundVersion::Level(seen)));
            }
        }
        Ok(None)
    }

    /// Whether the range tombstone of commit `removed` hides a level's entry. An entry is newer
    /// only if a checkpoint contains the tombstone and recovery has replayed it again. All entries
    /// of its range are newer then, also a void one.
    pub(crate) fn is_hidden(&self, seen: &LevelEntry<'_>, removed: Seq, guard: &Guard) -> Result<bool> {
        if seen.max_seq < removed {
            return Ok(true);
        }
        Ok(removed != Seq::ZERO && self.seq_of(seen, guard)?.is_some_and(|seq| seq < removed))
    }

    /// Whether the levels have a version of `key` that is not older than `seq`.
    pub(crate) fn is_superseded(&self, hash: u64, key: &[u8], seq: Seq, guard: &Guard) -> Result<bool> {
        for level in &*self.state(guard).levels {
            let Some(seen) = self.level_store.find(level, hash, key, guard)? else { continue };
            return Ok(self.seq_of(&seen, guard)?.is_some_and(|there| there >= seq));
        }
        Ok(false)
    }

    /// Returns the seq of the key's newest version; zero if it has no value.
    pub(crate) fn newest_seq(&self, hash: u64, key: &[u8], guard: &Guard) -> Result<Seq> {
        self.newest_seq_and_bytes(hash, key, guard).map(|(seq, _)| seq)
    }

    /// Like [`KreonEngine::newest_seq`], with the approximate bytes of the version.
    pub(crate) fn newest_seq_and_bytes(&self, hash: u64, key: &[u8], guard: &Guard) -> Result<(Seq, u64)> {
        let source = self.find_newest(self.state(guard), hash, key, guard)?;
        let bytes = |span: u64, is_blob: bool| if is_blob { BLOB_BYTES_ESTIMATE } else { span };
        match source {
            Some(FoundVersion::Memtable(version, _)) if !version.word.is_tombstone() => {
                Ok((version.seq, bytes(version.word.span(), version.word.is_blob())))
            }
            Some(FoundVersion::Level(seen)) if !seen.entry.is_tombstone() => {
                let seq = self
                    .seq_of(&seen, guard)?
                    .ok_or_else(|| self.dangling_address_error(seen.entry.address()))?;
                Ok((seq, bytes(seen.entry.span(), seen.entry.is_blob())))
            }
            _ => Ok((Seq::ZERO, 0)),
        }
    }

    /// Like [`KreonEngine::find_at`], for a caller that returns the value to the user: in the
    /// newest state it first waits until the commit is visible.
    #[inline]
    pub(crate) fn find_revealed<'g>(
        &'g self,
        at: Seq,
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<VisibleRecord<'g>>> {
        if at != Seq::LATEST {
            return self.find_at(at, key, guard);
        }
        let (hash, mut waited) = (self.hash(key), Seq::ZERO);
        let source = loop {
            let source = self.find_newest(self.state(guard), hash, key, guard)?;
            match &source {
                Some(FoundVersion::Memtable(version, _)) => self.context.wait_visible(version.seq)?,
                Some(FoundVersion::RemovedRange(seq)) if *seq != waited => {
                    self.context.wait_visible(*seq)?;
                    waited = *seq;
                    continue; // the same commit may have put the key after this lookup
                }
                Some(FoundVersion::Level(_) | FoundVersion::RemovedRange(_)) | None => {}
            }
            break source;
        };
        Ok(source.and_then(|source| source.visible_record()))
    }

    /// Returns the version of `key` that a view at `at` shows.
    #[inline]
    pub(crate) fn find_at<'g>(
        &'g self,
        at: Seq,
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<VisibleRecord<'g>>> {
        let hash = self.hash(key);
        let state = self.state(guard);
        if at == Seq::LATEST {
            return Ok(self.find_newest(state, hash, key, guard)?.and_then(|source| source.visible_record()));
        }
        let active =
            state.memtables.active.find(hash, key, guard).map(|place| state.memtables.active.version(place));
        let removed = state.range_seq(key, at, guard);
        let from_memtable = |version: KreonVersion| match version.seq < removed {
            true => None,
            false => VisibleRecord::from_memtable(version),
        };
        if let Some(version) = active.filter(|version| version.seq <= at) {
            return Ok(from_memtable(version));
        }
        // Read the old versions after the state was loaded, and before its lower sources: a version
        // that these drop is among the old ones before.
        if !self.versions.is_empty()
            && let Some(address) = self.versions.at(&key.to_vec(), at).first()
        {
            return Ok(VisibleRecord::from_old_version(*address));
        }
        let frozen =
            state.memtables.frozen().and_then(|f| f.find(hash, key, guard).map(|place| f.version(place)));
        if let Some(version) = frozen.filter(|version| version.seq <= at) {
            return Ok(from_memtable(version));
        }
        for level in &*state.levels {
            let Some(seen) = self.level_store.find(level, hash, key, guard)? else { continue };
            if self.is_visible_at(&seen, at, guard)? {
                let is_hidden = self.is_hidden(&seen, removed, guard)?;
                return Ok(if is_hidden { None } else { VisibleRecord::from_level(&seen) });
            }
        }
        Ok(None)
    }

    /// Whether a level's entry is old enough for a view at `at`.
    pub(crate) fn is_visible_at(&self, seen: &LevelEntry<'_>, at: Seq, guard: &Guard) -> Result<bool> {
        if seen.max_seq <= at {
            return Ok(true);
        }
        Ok(self.seq_of(seen, guard)?.is_some_and(|seq| seq <= at))
    }
}
