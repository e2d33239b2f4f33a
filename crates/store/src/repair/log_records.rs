//! # Log records: pairs from the records of the logs
//!
//! ```text
//!  valid frame ── newest according to the index? ── yes ──> pair, certain unless in doubt
//!                                                ── no ───> superseded: skipped
//!                 damaged index, or no engine ────────────> collected: newest of a key, doubtful,
//!                                                          or certain with a proof (entry_proof)
//! ```
//!
//! The index of an engine over the store log refers to places in the log. So the log is read
//! sequentially and the index is asked about each record. A damaged frame costs only its key, and a
//! damaged page of an index only its entries.
//!
//! ## Costs
//!
//! One pass over the log, and one more for each part of the collected keys that fits into memory.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use super::entry_proof::{EntryProof, prove_entries};
use super::open::{SourceDatabase, SourceKeyspace, into_damage};
use super::output::{RepairOutput, SourceValue};
use super::pair_walk::{WalkEvent, verify_keys};
use super::report::{LostRecords, RepairOutcome};
use crate::Store;
use crate::expiry::value_form;
use crate::recovery::damaged_ranges::{ScanPart, scan_past_damage};
use sheaf_engine::contract::{Bounds, Engine, StoreLogIndex};
use sheaf_log::blob::BlobRef;
use sheaf_log::frame::FrameKind;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::root::Root;
use sheaf_log::segment::{Address, DATA_START, Segment};
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch;

/// Estimated bytes of a collected key in addition to the key.
const ENTRY_OVERHEAD: u64 = 96;
/// Collected keys take at most the memory budget divided by this.
const BUDGET_DIVISOR: u64 = 4;

/// Record that was found.
struct FoundRecord<'a> {
    /// Index of its keyspace.
    at: usize,
    seq: Seq,
    address: Address,
    record: Record<'a>,
}

impl FoundRecord<'_> {
    fn is_put(&self) -> bool {
        matches!(self.record.content, RecordContent::Put(_) | RecordContent::Blob(_))
    }
}

/// Answer of an index about a record.
enum IndexAnswer {
    Newest,
    Superseded,
    /// The index cannot tell.
    Unknown,
}

/// Reader of the logs, for keyspaces with an index over the log or without an engine.
pub(super) struct LogRecords<'a> {
    store: &'a Store,
    root: &'a Root,
    opened: &'a SourceDatabase,
    index_of_id: HashMap<KeyspaceId, usize>,
    /// Number of newest records found by keyspace, readable or lost.
    newest: Vec<u64>,
    /// Estimated memory of the keys with unknown state, by keyspace.
    unknown_bytes: Vec<u64>,
    /// Estimated memory of all keys, by keyspace.
    key_bytes: Vec<u64>,
    /// Removed ranges, each with the index of its keyspace.
    removed_ranges: Vec<(usize, Bounds, Seq)>,
}

/// Newest record of a key so far.
struct GatheredRecord {
    seq: Seq,
    /// Address of a copy; `None` for a tombstone.
    address: Option<Address>,
    /// True if the index certainly had one of its copies.
    is_proven: bool,
}

/// Newest record of each key so far.
type NewestRecords = HashMap<(usize, Box<[u8]>), GatheredRecord>;

impl<'a> LogRecords<'a> {
    pub(super) fn new(store: &'a Store, root: &'a Root, opened: &'a SourceDatabase) -> LogRecords<'a> {
        let sources = opened.sources.iter().enumerate();
        // Keyspaces of the journal with an engine are walked.
        let is_read =
            |source: &SourceKeyspace| source.engine.is_none() || source.log == Some(LogId::ValueLog);
        let by_id =
            sources.filter(|(_, source)| is_read(source)).map(|(at, source)| (source.id, at)).collect();
        let count = opened.sources.len();
        LogRecords {
            store,
            root,
            opened,
            index_of_id: by_id,
            newest: vec![0; count],
            unknown_bytes: vec![0; count],
            key_bytes: vec![0; count],
            removed_ranges: Vec::new(),
        }
    }

    /// Copies the pairs of these keyspaces.
    pub(super) fn copy_records(&mut self, out: &mut RepairOutput<'_, '_>) -> Result<()> {
        let bytes: u64 = self.segments().map(|segment| segment.end()).sum();
        out.add_total(bytes);
        self.for_each_record(out, &mut |entries, out, entry| entries.process_record(out, entry))?;
        self.count_lost(out)?;
        let all: u64 = self.unknown_bytes.iter().sum();
        if all == 0 {
            return Ok(());
        }
        let proofs = self.prove_entries(out)?;
        let passes = self.parts_of(all);
        out.add_total(bytes * passes);
        for number in 0..passes {
            let mut gathered = NewestRecords::new();
            self.for_each_record(out, &mut |entries, _, entry| {
                if !matches!(entry.record.content, RecordContent::RemoveRange(_))
                    && u64::from(crc32c::crc32c(entry.record.key)) % passes == number
                    && matches!(entries.ask_index(entry), IndexAnswer::Unknown)
                {
                    let proof = proofs[entry.at].as_ref();
                    gather(&mut gathered, entry, proof.is_some_and(|proof| proof.covers(entry.address)));
                }
                Ok(())
            })?;
            self.write_gathered(gathered, out)?;
        }
        for (at, _) in proofs.iter().enumerate().filter(|(_, proof)| matches!(proof, Some(p) if p.is_whole)) {
            if !self.opened.has_doubts(&self.opened.sources[at]) && out.repairs[at].doubtful == 0 {
                (out.repairs[at].has_more_lost, out.repairs[at].index_error) = (false, None);
            }
        }
        Ok(())
    }

    /// Returns the number of parts in which keys of `bytes` bytes are collected.
    fn parts_of(&self, bytes: u64) -> u64 {
        1 + bytes / (self.store.options.memory_budget / BUDGET_DIVISOR).max(1)
    }

    /// Returns the proof of each keyspace with keys of unknown state, as far as there is one.
    fn prove_entries(&self, out: &mut RepairOutput<'_, '_>) -> Result<Vec<Option<EntryProof>>> {
        let sources = self.opened.sources.iter().enumerate();
        let prove = |(at, source): (usize, &SourceKeyspace)| {
            if self.unknown_bytes[at] == 0 || self.opened.is_root_unreadable {
                return Ok(None);
            }
            let parts = self.parts_of(self.key_bytes[at]);
            let segments = &self.opened.segments[LogId::ValueLog.index()];
            out.add_total(parts * segments.iter().map(|segment| segment.end()).sum::<u64>());
            let mut done = |bytes| out.add_done(bytes);
            prove_entries((self.store, self.root), self.opened, source, parts, &mut done)
        };
        sources.map(prove).collect()
    }

    fn segments(&self) -> impl Iterator<Item = &'a Arc<Segment>> + use<'a> {
        let opened = self.opened;
        opened.segments.iter().flatten()
    }

    /// Calls `each` with all of their records that count.
    fn for_each_record(
        &mut self,
        out: &mut RepairOutput<'_, '_>,
        each: &mut dyn FnMut(&mut Self, &mut RepairOutput<'_, '_>, &FoundRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        for segment in self.segments() {
            let mut done = Ok(());
            scan_past_damage(segment, DATA_START, segment.end(), false, &mut |part| {
                let scanned = match part {
                    ScanPart::Frame(scanned) => scanned,
                    ScanPart::Damaged(hole) => {
                        // Also in a part of the journal that no opening reads, where no pair is
                        // lost by it.
                        out.damages.add(
                            segment.path(),
                            hole.from,
                            Some(hole.to),
                            &hole.error.text_without_place(),
                        );
                        return;
                    }
                };
                let header = scanned.frame.header;
                let counts = matches!(header.kind, FrameKind::Commit | FrameKind::Relocated)
                    && header.seq <= self.opened.cut;
                if done.is_err() || !counts {
                    return;
                }
                let Ok(record) = Record::decode(scanned.frame.payload()) else { return };
                let Some(at) = self.index_of_id.get(&record.keyspace).copied() else { return };
                let address = Address::new(segment.slot(), scanned.offset);
                done = each(self, out, &FoundRecord { at, seq: header.seq, address, record });
                if done.is_ok() {
                    done = out.add_done(header.span());
                }
            });
            done?;
        }
        Ok(())
    }

    /// Handles a record in the first pass.
    fn process_record(&mut self, out: &mut RepairOutput<'_, '_>, entry: &FoundRecord<'_>) -> Result<()> {
        let (key, seq) = (entry.record.key, entry.seq);
        if let RecordContent::RemoveRange(end) = entry.record.content {
            self.removed_ranges.push((entry.at, Bounds::between(key, end), seq));
            return Ok(());
        }
        self.key_bytes[entry.at] += key.len() as u64 + ENTRY_OVERHEAD;
        match self.ask_index(entry) {
            IndexAnswer::Superseded => Ok(()),
            IndexAnswer::Unknown => {
                self.unknown_bytes[entry.at] += key.len() as u64 + ENTRY_OVERHEAD;
                Ok(())
            }
            IndexAnswer::Newest => {
                self.newest[entry.at] += 1;
                let source = &self.opened.sources[entry.at];
                let is_doubtful = self.opened.is_doubtful(source, key, Some(seq));
                self.put_pair(out, entry.at, (key, seq), &entry.record.content, is_doubtful)
            }
        }
    }

    fn ask_index(&self, entry: &FoundRecord<'_>) -> IndexAnswer {
        let source = &self.opened.sources[entry.at];
        let strays = self.opened.failed_keys.get(&source.id);
        let is_stray = || strays.is_some_and(|strays| strays.contains(entry.record.key));
        let Some(engine) = source.engine.as_ref().filter(|_| !is_stray()) else {
            return IndexAnswer::Unknown;
        };
        let hashed_key = engine.hashed_key(entry.record.key);
        let index = engine.store_log_index();
        match index.map_or(Ok(false), |index| index.is_newest(hashed_key, entry.address)) {
            Ok(is_newest) if is_newest && entry.is_put() => IndexAnswer::Newest,
            Ok(_) => IndexAnswer::Superseded,
            Err(_) => IndexAnswer::Unknown,
        }
    }

    fn put_pair(
        &self,
        out: &mut RepairOutput<'_, '_>,
        at: usize,
        (key, seq): (&[u8], Seq),
        content: &RecordContent<'_>,
        is_doubtful: bool,
    ) -> Result<()> {
        match content {
            RecordContent::Put(stored) => match self.decode_value(at, stored) {
                Ok(value) => out.put_pair(at, (key, Some(seq)), SourceValue::Bytes(&value), is_doubtful),
                Err(error) => out.add_lost(at, (key, Some(seq)), &into_damage(error)?),
            },
            RecordContent::Remove | RecordContent::RemoveRange(_) => Ok(()),
            RecordContent::Blob(blob) => match self.open_blob(at, blob) {
                Ok(value) => out.put_pair(at, (key, Some(seq)), value, is_doubtful),
                Err(error) => out.add_lost(at, (key, Some(seq)), &into_damage(error)?),
            },
        }
    }

    /// Returns the value of a record of the keyspace at `at`, with its header.
    fn decode_value<'v>(&self, at: usize, stored: &'v [u8]) -> Result<Cow<'v, [u8]>> {
        let source = &self.opened.sources[at];
        let form = value_form(&source.options);
        if !form.is_compressed {
            return Ok(Cow::Borrowed(stored));
        }
        let mut buffer = Vec::new();
        match form.decode(stored, &mut buffer) {
            Ok(value) => Ok(Cow::Owned(value.to_vec())),
            Err(error) => Err(error.into_error(source.static_engine_name(), &self.store.dir, 0)),
        }
    }

    fn open_blob(&self, at: usize, blob: &BlobRef) -> Result<SourceValue<'static>> {
        let (blobs, source) = (&self.store.context.blobs, &self.opened.sources[at]);
        let file = blobs.open(blob)?.ok_or_else(|| blobs.missing_error(blob))?;
        let form = value_form(&source.options);
        let file = match form.is_compressed {
            true => file.with_decoding(source.static_engine_name(), form.header_len)?,
            false => file,
        };
        Ok(SourceValue::Blob(file))
    }

    /// Counts as lost the entries of indexes for which no frame was found.
    fn count_lost(&self, out: &mut RepairOutput<'_, '_>) -> Result<()> {
        for (at, source) in self.opened.sources.iter().enumerate() {
            let Some(engine) = source.engine.as_ref().filter(|_| source.log == Some(LogId::ValueLog)) else {
                continue;
            };
            let repair = &mut out.repairs[at];
            let known =
                engine.len().map_or_else(|error| into_damage(error).map(|_| None), |len| Ok(Some(len)))?;
            repair.has_more_lost |= known.is_none()
                || self.unknown_bytes[at] > 0
                || self.opened.failed_keys.contains_key(&source.id);
            let unseen = known.unwrap_or(0).saturating_sub(self.newest[at]);
            repair.lost += unseen;
            repair.lost_without_key += unseen;
            if unseen > 0 {
                self.locate_lost(at, engine, out)?;
            }
        }
        Ok(())
    }

    /// Returns true if the index has the newest value of `key` and its record cannot be read:
    /// indexes keep copies of small values.
    fn is_only_in_index(&self, at: usize, engine: &Arc<dyn Engine>, key: &[u8]) -> bool {
        let strays = self.opened.failed_keys.get(&self.opened.sources[at].id);
        let is_stray = strays.is_some_and(|strays| strays.contains(key));
        let is_gone = |address| self.store.context.segments.frame(address, &epoch::pin()).is_err();
        let locate =
            |index: &dyn StoreLogIndex| index.locate(key).is_ok_and(|found| found.is_some_and(is_gone));
        !is_stray && engine.store_log_index().is_some_and(locate)
    }

    /// Examines the lost entries. Copies pairs that the index itself has, and reports the keys of
    /// the others, or the keys around them and their files.
    fn locate_lost(&self, at: usize, engine: &Arc<dyn Engine>, out: &mut RepairOutput<'_, '_>) -> Result<()> {
        let dir = &self.store.log(LogId::ValueLog).dir;
        let is_record = |error: &Error| matches!(error, Error::Corrupt { path, .. } if path.starts_with(dir));
        let mut files: BTreeMap<PathBuf, LostRecords> = BTreeMap::new();
        verify_keys(engine, &mut |met| {
            match &met {
                WalkEvent::Pair(key, value) if self.is_only_in_index(at, engine, key) => {
                    let repair = &mut out.repairs[at];
                    (repair.lost, repair.lost_without_key) =
                        (repair.lost.saturating_sub(1), repair.lost_without_key.saturating_sub(1));
                    let is_doubtful = self.opened.is_doubtful(&self.opened.sources[at], key, None);
                    out.put_pair(at, (key, None), SourceValue::Bytes(value), is_doubtful)?;
                }
                WalkEvent::Lost(key, why) if is_record(why) => {
                    out.repairs[at].lost_without_key = out.repairs[at].lost_without_key.saturating_sub(1);
                    out.report_finding(at, key, None, RepairOutcome::Lost { error: why });
                }
                WalkEvent::Damaged(error @ Error::Corrupt { path, .. }) if is_record(error) => {
                    let (path, why) = (path.clone(), error.text_without_place());
                    files.entry(path.clone()).or_insert(LostRecords { path, pairs: 0, reason: why }).pairs +=
                        1;
                }
                WalkEvent::Unreadable(after, before, why) if engine.capabilities().ordered => {
                    let is_more = out.repairs[at].has_more_lost;
                    out.add_unreadable_range(at, (*after, *before), why);
                    out.repairs[at].has_more_lost = is_more; // the index has counted all of them
                }
                _ => {}
            }
            out.add_done(0)
        })?;
        if out.repairs[at].lost_without_key > 0 {
            out.repairs[at].lost_records = files.into_values().collect();
        }
        Ok(())
    }

    /// Returns true if a later commit than `seq` removed a range with `key`.
    fn is_in_removed_range(&self, at: usize, key: &[u8], seq: Seq) -> bool {
        let hides =
            |(of, range, removed): &(usize, Bounds, Seq)| *of == at && *removed > seq && range.contains(key);
        self.removed_ranges.iter().any(hides)
    }

    /// Writes the collected pairs, unless a pair of the key was written already.
    fn write_gathered(&mut self, gathered: NewestRecords, out: &mut RepairOutput<'_, '_>) -> Result<()> {
        for ((at, key), GatheredRecord { seq, address, is_proven }) in gathered {
            let Some(address) = address.filter(|_| !self.is_in_removed_range(at, &key, seq)) else {
                continue;
            };
            if out.contains(at, &key)? {
                continue;
            }
            let guard = &epoch::pin();
            let read = self.store.context.segments.frame(address, guard);
            // it was read before: the device may have lost it since
            let Ok(frame) = read else { continue };
            let Ok(record) = Record::decode(frame.payload()) else { continue };
            let is_doubtful =
                !is_proven || self.opened.is_doubtful_in_log(&self.opened.sources[at], &key, Some(seq));
            self.put_pair(out, at, (&key, seq), &record.content, is_doubtful)?;
            if is_proven {
                out.found_lost_entry(at);
            }
        }
        Ok(())
    }
}

fn gather(gathered: &mut NewestRecords, entry: &FoundRecord<'_>, is_proven: bool) {
    let found =
        GatheredRecord { seq: entry.seq, address: entry.is_put().then_some(entry.address), is_proven };
    match gathered.entry((entry.at, entry.record.key.into())) {
        Entry::Vacant(place) => drop(place.insert(found)),
        Entry::Occupied(mut newest) if newest.get().seq < found.seq => *newest.get_mut() = found,
        Entry::Occupied(mut newest) if newest.get().seq == found.seq => {
            newest.get_mut().is_proven |= is_proven
        }
        Entry::Occupied(_) => {}
    }
}
