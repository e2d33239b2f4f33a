//! # Image: the checkpoint of a keyspace
//!
//! ```text
//!  layout 1 | mark 8 | prefix | list of intervals | blobs 8 | id 8 .. | pairs 8 | pair ..
//!  prefix    length 2 | bytes                            list: interval_list.rs
//!  pair      key length 2 | key | seq 8 | kind 1 | value length 4 | value         kinds as in runs
//! ```
//!
//! All numbers are little-endian. The mark counts the edits of the space (table I3). If the space
//! has a higher mark at an opening, it was edited after the image was made. Then the index is read
//! from the space. Pairs exist only in a keyspace that is too small to have a space.

pub(crate) mod ingest;
mod interval_list;
mod rebuild_index;

use std::sync::Arc;

use sheaf_engine::contract::{ImageSink, ImageSource};
use sheaf_engine::views::Views;
use sheaf_log::record::RecordContent;
use sheaf_log::types::{MAX_KEY, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::{FlexEngine, NAME};
use crate::image::interval_list::{IntervalListReader, IntervalListWriter};
use crate::index::EngineState;
use crate::index::table::IntervalTable;
use sheaf_engine::memtable::prefix::KeyPrefix;
use sheaf_engine::memtable::{Memtable, MemtableLayer, MemtableVersion, decode_blob_ref, encode_blob_ref};

const LAYOUT: u8 = 2;
/// Maximum number of bytes that are allocated before the image has provided them.
const MAX_UNVERIFIED_BYTES: usize = 1 << 16;

/// Records of a frozen memtable that stay in memory.
#[derive(Debug, Default)]
pub(crate) struct RetainedRecords {
    keys: Vec<RetainedRecord>,
    /// Blobs of dropped versions, and the commits that superseded them.
    dead_blobs: Vec<(Seq, u64)>,
}

/// A key with the versions that a view may need, the newest first.
#[derive(Debug)]
struct RetainedRecord {
    key: Vec<u8>,
    versions: Vec<(Seq, RetainedValue)>,
}

#[derive(Clone, Debug)]
enum RetainedValue {
    Put(Vec<u8>),
    Blob([u8; 16]),
    Removed,
}

impl RetainedValue {
    fn of(content: &RecordContent<'_>) -> RetainedValue {
        match content {
            RecordContent::Put(value) => RetainedValue::Put(value.to_vec()),
            RecordContent::Blob(blob) => RetainedValue::Blob(encode_blob_ref(blob)),
            RecordContent::Remove | RecordContent::RemoveRange(_) => RetainedValue::Removed,
        }
    }

    fn content(&self) -> RecordContent<'_> {
        match self {
            RetainedValue::Put(value) => RecordContent::Put(value),
            RetainedValue::Blob(bytes) => RecordContent::Blob(decode_blob_ref(bytes)),
            RetainedValue::Removed => RecordContent::Remove,
        }
    }
}

impl FlexEngine {
    /// Writes the image. Everything frozen has been flushed or is retained.
    pub(crate) fn save_image(&self, out: &mut dyn ImageSink) -> Result<()> {
        let mut table = self.table.lock();
        self.swept_bytes.store(0, Ordering::Relaxed);
        if let Some(space) = &table.space {
            space.sync()?; // without a guard, which would delay the freeing of retired memory
        }
        let guard = epoch::pin();
        let retained = self.copy_frozen(self.state(&guard), &table.views, &guard)?;
        drop(guard);
        out.put(&[LAYOUT])?;
        out.put(&table.mark.to_le_bytes())?;
        put_short(out, table.prefix.bytes())?;
        let (mut list, mut separator) = (IntervalListWriter::default(), Vec::new());
        table.tree.read(|tree| {
            tree.range(0).try_for_each(|entry| {
                separator.clear();
                entry.item.separator.write(&table.prefix, &mut separator);
                let interval_counts = self.interval_cache.slots.get(entry.item.slot).interval_counts();
                list.put(out, &separator, entry.len, interval_counts)
            })
        })?;
        list.finish(out)?;
        self.image_bytes.store(list.written, Ordering::Relaxed);
        self.image_bytes_written.fetch_add(list.written, Ordering::Relaxed);
        out.put(&(table.blobs.len() as u64).to_le_bytes())?;
        for id in &table.blobs {
            out.put(&id.to_le_bytes())?;
        }
        // The active memtable may have a newer version of the key; replay restores it from the
        // journal.
        let newest = retained.keys.iter().filter_map(|kept| Some((&kept.key, kept.versions.first()?)));
        let live: Vec<_> =
            newest.filter(|(_, (_, value))| !matches!(value, RetainedValue::Removed)).collect();
        out.put(&(live.len() as u64).to_le_bytes())?;
        for (key, (seq, value)) in live {
            put_short(out, key)?;
            out.put(&seq.0.to_le_bytes())?;
            let (kind, bytes) = match value {
                RetainedValue::Put(value) => (0, &value[..]),
                RetainedValue::Blob(bytes) => (1, &bytes[..]),
                RetainedValue::Removed => (2, &[][..]),
            };
            out.put(&[kind])?;
            out.put(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes())?;
            out.put(bytes)?;
        }
        table.retained = retained;
        Ok(())
    }

    /// Copies the pairs of the frozen memtable, if there is one, while the journal still contains
    /// them. Like a flush, it drops superseded versions that no view needs.
    fn copy_frozen(&self, state: &EngineState, views: &Views, guard: &Guard) -> Result<RetainedRecords> {
        let mut retained = RetainedRecords::default();
        let Some(memtable) = state.memtables.frozen() else { return Ok(retained) };
        let mut places = Vec::new();
        memtable.ascend(std::ops::Bound::Unbounded, usize::MAX, guard, &mut places);
        for place in places {
            let entry = memtable.entry(place);
            // The newest version in the active memtable. Versions between it and the frozen one, if
            // any, were superseded earlier.
            let newer =
                state.memtables.active.find(self.interval_cache.hash(entry.key()), entry.key(), guard);
            let mut end_seq = newer.map(|newer| newer.newest().seq);
            let mut versions: Vec<(Seq, RetainedValue)> = Vec::new();
            for MemtableVersion { word, seq } in memtable.all_versions(place, guard) {
                if end_seq.is_some_and(|end_seq| end_seq <= seq) {
                    continue; // already taken
                }
                let needless = end_seq.filter(|end_seq| !views.may_need(seq, *end_seq));
                if needless.is_none() || word.is_blob() {
                    memtable.content(word, &self.interval_cache.context, guard, |content| {
                        match (needless, content) {
                            (Some(end_seq), RecordContent::Blob(blob)) => {
                                retained.dead_blobs.push((end_seq, blob.id))
                            }
                            (Some(_), _) => {}
                            (None, content) => versions.push((seq, RetainedValue::of(&content))),
                        }
                        Ok(())
                    })?;
                }
                end_seq = Some(seq);
            }
            while versions.last().is_some_and(|(_, value)| matches!(value, RetainedValue::Removed)) {
                versions.pop(); // a tombstone with nothing below it hides nothing
            }
            if !versions.is_empty() {
                retained.keys.push(RetainedRecord { key: entry.key().to_vec(), versions });
            }
        }
        Ok(retained)
    }

    /// Moves the retained records to the active memtable, with copies of their bytes. Called when
    /// the image is durable; no commit runs during the call.
    pub(crate) fn unfreeze_retained(&self) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        let Some(frozen) = state.memtables.frozen() else { return };
        let retained = std::mem::take(&mut self.table.lock().retained);
        for RetainedRecord { key, versions } in retained.keys {
            self.insert_copied(&state.memtables.active, &key, &versions, guard);
        }
        frozen.uncount_memory(&self.interval_cache.context.memory);
        self.state.replace(guard, |now| EngineState {
            memtables: now.memtables.without_flushed(true),
            // after the records are there: cursors must look up their inputs again
            unfreeze_count: now.unfreeze_count + 1,
            ..now.clone()
        });
        self.retire_blobs(&retained.dead_blobs);
    }

    fn insert_copied(
        &self,
        memtable: &Memtable,
        key: &[u8],
        versions: &[(Seq, RetainedValue)],
        guard: &Guard,
    ) {
        let hash = self.interval_cache.hash(key);
        let own = |(seq, value): &(Seq, RetainedValue)| MemtableVersion {
            word: memtable.copy_content(&value.content()),
            seq: *seq,
        };
        memtable.with_accounting(&self.interval_cache.context, || {
            if let Some(entry) = memtable.find(hash, key, guard) {
                let older: Vec<MemtableVersion> = versions.iter().map(own).collect();
                memtable.append_older(entry.place, &older);
            } else if let Some(newest) = versions.first() {
                memtable.add(hash, key, own(newest), guard);
                if let Some(entry) = memtable.find(hash, key, guard) {
                    let older: Vec<MemtableVersion> = versions[1..].iter().map(own).collect();
                    memtable.append_older(entry.place, &older);
                }
            }
        });
    }

    /// Restores an image if it describes the space as it is; else restores the index from the
    /// space.
    pub(crate) fn restore_image(&self, image: &mut dyn ImageSource) -> Result<()> {
        let mut table = self.table.lock();
        let guard = &epoch::pin();
        table.open(&self.interval_cache.context, self.id, false)?;
        let layout = take::<1>(image)?[0];
        if layout != LAYOUT {
            return Err(image.invalid_field("layout", u64::from(LAYOUT).into(), u64::from(layout)));
        }
        let mark = u64::from_le_bytes(take(image)?);
        let is_current = table.mark == mark;
        table.min_mark = mark;
        if table.mark < mark {
            return Err(image.invalid_field("mark", (..=table.mark).into(), mark));
        }
        table.prefix = Arc::new(KeyPrefix::new(&take_short(image)?));
        let len = table.space.as_ref().map_or(0, |space| space.len());
        let mut list = IntervalListReader::default();
        while list.next_block(image)? {
            while is_current && let Some((piece, interval_counts)) = list.next(image)? {
                let room = len - table.tree.len();
                if piece == 0 || piece > room {
                    return Err(image.invalid_field("bytes of an interval", (1..=room).into(), piece));
                }
                let item = table.new_interval(&list.separator, interval_counts, &self.interval_cache);
                let at = table.tree.len();
                table.tree.insert(at, piece, item);
            }
        }
        if is_current && table.tree.len() != len {
            return Err(image.invalid_field("bytes of all intervals", len.into(), table.tree.len()));
        }
        let blobs = u64::from_le_bytes(take(image)?);
        for _ in 0..blobs {
            let id = u64::from_le_bytes(take(image)?);
            table.blobs.insert(id);
        }
        let pairs = u64::from_le_bytes(take(image)?);
        for _ in 0..pairs {
            let key = take_short(image)?;
            let seq = u64::from_le_bytes(take(image)?);
            let seq = image.seq(seq)?;
            let kind = take::<1>(image)?[0];
            let len = u32::from_le_bytes(take(image)?);
            let value = take_bytes(image, len as usize)?;
            let value = match (kind, <[u8; 16]>::try_from(&value[..])) {
                (0, _) => RetainedValue::Put(value),
                (1, Ok(bytes)) => RetainedValue::Blob(bytes),
                (1, Err(_)) => {
                    return Err(image.invalid_field("bytes of a blob", 16.into(), value.len() as u64));
                }
                _ => return Err(image.invalid_field("kind", (..=1).into(), u64::from(kind))),
            };
            if let RecordContent::Blob(blob) = value.content() {
                self.blobs.lock().insert(blob.id);
            }
            self.insert_copied(&self.state(guard).memtables.active, &key, &[(seq, value)], guard);
        }
        if !is_current {
            self.rebuild_index(&mut table)?;
        }
        self.publish_restored(&mut table, guard);
        Ok(())
    }

    /// Restores the index from the space, without an image. Returns `damage` if the image may have
    /// contained data that the space lacks.
    pub(crate) fn restore_from_space(&self, damage: Option<Error>) -> Result<()> {
        let mut table = self.table.lock();
        let guard = &epoch::pin();
        table.reset(); // removes the parts of a damaged image that were restored
        table.open(&self.interval_cache.context, self.id, false)?;
        if let Some(damage) = damage.filter(|_| !table.has_flushed_memtable() || table.mark < table.min_mark)
        {
            return Err(damage);
        }
        self.rebuild_index(&mut table)?;
        self.publish_restored(&mut table, guard);
        Ok(())
    }

    /// Restores the readable part of a damaged space.
    pub(crate) fn restore_partial_space(&self, skipped: &mut dyn FnMut(Error)) -> Result<()> {
        let mut table = self.table.lock();
        let guard = &epoch::pin();
        if !table.open_partial(&self.interval_cache.context, self.id, skipped)? {
            return Err(Error::Unsupported { engine: NAME, feature: "a repair without a space" });
        }
        self.rebuild_partial_index(&mut table, skipped)?;
        self.publish_restored(&mut table, guard);
        Ok(())
    }

    /// Publishes the content of the table as the state of the keyspace.
    pub(crate) fn publish_restored(&self, table: &mut IntervalTable, guard: &Guard) {
        self.interval_cache.warm_up.restart();
        self.update_live_stats(table);
        self.blobs.lock().extend(table.blobs.iter().copied());
        let index = table.publish(&self.interval_cache, guard);
        self.record_disk_reserve(table);
        self.state.replace(guard, |now| EngineState {
            memtables: now.memtables.without_flushed(true),
            index,
            ..now.clone()
        });
    }
}

#[allow(clippy::cast_possible_truncation)] // these have at most 65,535 bytes
fn put_short(out: &mut dyn ImageSink, bytes: &[u8]) -> Result<()> {
    out.put(&(bytes.len() as u16).to_le_bytes())?;
    out.put(bytes)
}

fn take<const N: usize>(image: &mut dyn ImageSource) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    image.fill(&mut bytes)?;
    Ok(bytes)
}

fn take_short(image: &mut dyn ImageSource) -> Result<Vec<u8>> {
    let len = usize::from(u16::from_le_bytes(take(image)?));
    debug_assert!(len <= MAX_KEY);
    take_bytes(image, len)
}

/// Reads `len` bytes. Allocates memory only as fast as the image provides bytes.
fn take_bytes(image: &mut dyn ImageSource, len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let from = bytes.len();
        bytes.resize(len.min(from + MAX_UNVERIFIED_BYTES), 0);
        image.fill(&mut bytes[from..])?;
    }
    Ok(bytes)
}
