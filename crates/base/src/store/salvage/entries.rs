//! # Entries: the records of the logs, and what the engines say of them
//!
//! ```text
//!   a frame whose checksum holds ── is it its key's newest? ── yes ──> the pair, certain but for doubts
//!                                                          ── no ───> nothing: superseded
//!                                   [damage] / no engine ─────────> gathered: of each key the newest counts, doubtful
//! ```
//!
//! Of an engine of the flat log an entry of the index is a place in the log. So the log is read from front to back, and the index asked:
//! a frame that is damaged costs its key and nothing else, and so does a damaged page of an index for what it has.
//!
//! ## Costs
//!
//! One pass over the log, and one more for each share of memory that the keys take which have to be gathered.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use super::gaps::{Part, pass};
use super::open::{Opened, Space, damage};
use super::output::{Output, Value};
use super::report::{Fate, LostRecords};
use super::walk::{Met, survey};
use crate::blob::BlobRef;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::frame::Kind;
use crate::record::{Content, Record};
use crate::segment::{Address, DATA_START, Segment};
use crate::store::Store;
use crate::sync::epoch;
use crate::types::{KeyspaceId, LogId, Seq};

/// What a gathered key takes beside its bytes, about.
const ENTRY: u64 = 96;
/// Gathered keys take at most this part of the memory budget.
const SHARE: u64 = 4;

/// A record that was met.
struct Entry<'a> {
    /// The place of its keyspace.
    at: usize,
    seq: Seq,
    address: Address,
    record: Record<'a>,
}

impl Entry<'_> {
    fn is_put(&self) -> bool {
        !matches!(self.record.content, Content::Remove)
    }
}

/// What an index says of a record.
enum Answer {
    Newest,
    Superseded,
    /// It cannot say.
    Unknown,
}

/// Reads the logs for keyspaces whose records say what there is.
pub(super) struct Entries<'a> {
    store: &'a Store,
    opened: &'a Opened,
    by_id: HashMap<KeyspaceId, usize>,
    /// For each keyspace: newest entries met, whether they are pairs or lost.
    newest: Vec<u64>,
    /// Bytes that the keys of records take of which the index cannot say what they are.
    unknown: Vec<u64>,
}

/// The newest record of a key, so far.
type Gathered = HashMap<(usize, Box<[u8]>), (Seq, Option<Address>)>;

impl<'a> Entries<'a> {
    pub(super) fn new(store: &'a Store, opened: &'a Opened) -> Entries<'a> {
        let spaces = opened.spaces.iter().enumerate();
        // Those of the journal with an engine are walked.
        let is_read = |space: &Space| space.engine.is_none() || space.log == Some(LogId::Flat);
        let by_id = spaces.filter(|(_, space)| is_read(space)).map(|(at, space)| (space.id, at)).collect();
        let count = opened.spaces.len();
        Entries { store, opened, by_id, newest: vec![0; count], unknown: vec![0; count] }
    }

    /// Salvages what they have.
    pub(super) fn salvage(&mut self, out: &mut Output<'_, '_>) -> Result<()> {
        let bytes: u64 = self.segments().map(|segment| segment.end()).sum();
        out.expect(bytes);
        self.each(out, &mut |entries, out, entry| entries.meet(out, entry))?;
        self.count(out)?;
        let all: u64 = self.unknown.iter().sum();
        if all == 0 {
            return Ok(());
        }
        let passes = 1 + all / (self.store.options.memory / SHARE).max(1);
        out.expect(bytes * passes);
        for number in 0..passes {
            let mut gathered = Gathered::new();
            self.each(out, &mut |entries, _, entry| {
                if u64::from(crc32c::crc32c(entry.record.key)) % passes == number
                    && matches!(entries.ask(entry), Answer::Unknown)
                {
                    gather(&mut gathered, entry);
                }
                Ok(())
            })?;
            self.settle(gathered, out)?;
        }
        Ok(())
    }

    fn segments(&self) -> impl Iterator<Item = &'a Arc<Segment>> + use<'a> {
        let opened = self.opened;
        opened.segments.iter().flatten()
    }

    /// Calls `each` with every record of theirs that counts.
    fn each(
        &mut self,
        out: &mut Output<'_, '_>,
        each: &mut dyn FnMut(&mut Self, &mut Output<'_, '_>, &Entry<'_>) -> Result<()>,
    ) -> Result<()> {
        for segment in self.segments() {
            let mut done = Ok(());
            pass(segment, DATA_START, segment.end(), false, &mut |part| {
                let scanned = match part {
                    Part::Frame(scanned) => scanned,
                    Part::Hole(hole) => {
                        // Also one of the journal that no opening reads, and which costs nothing.
                        out.harms.note(segment.path(), hole.from, Some(hole.to), &reason(&hole.error));
                        return;
                    }
                };
                let header = scanned.frame.header;
                let counts =
                    matches!(header.kind, Kind::Commit | Kind::Moved) && header.seq <= self.opened.cut;
                if done.is_err() || !counts {
                    return;
                }
                let Ok(record) = Record::decode(scanned.frame.payload()) else { return };
                let Some(at) = self.by_id.get(&record.keyspace).copied() else { return };
                let address = Address::new(segment.slot(), scanned.offset);
                done = each(self, out, &Entry { at, seq: header.seq, address, record });
                if done.is_ok() {
                    done = out.read(header.span());
                }
            });
            done?;
        }
        Ok(())
    }

    /// A record, met for the first time.
    fn meet(&mut self, out: &mut Output<'_, '_>, entry: &Entry<'_>) -> Result<()> {
        let (key, seq) = (entry.record.key, entry.seq);
        match self.ask(entry) {
            Answer::Superseded => Ok(()),
            Answer::Unknown => {
                self.unknown[entry.at] += key.len() as u64 + ENTRY;
                Ok(())
            }
            Answer::Newest => {
                self.newest[entry.at] += 1;
                let space = &self.opened.spaces[entry.at];
                let is_doubtful = self.opened.is_doubtful(space, key, Some(seq));
                self.put(out, entry.at, (key, seq), &entry.record.content, is_doubtful)
            }
        }
    }

    fn ask(&self, entry: &Entry<'_>) -> Answer {
        let space = &self.opened.spaces[entry.at];
        let strays = self.opened.strays.get(&space.id);
        let is_stray = || strays.is_some_and(|strays| strays.contains(entry.record.key));
        let Some(engine) = space.engine.as_ref().filter(|_| !is_stray()) else { return Answer::Unknown };
        match engine.is_newest(engine.wanted(entry.record.key), entry.address) {
            Ok(is_newest) if is_newest && entry.is_put() => Answer::Newest,
            Ok(_) => Answer::Superseded,
            Err(_) => Answer::Unknown,
        }
    }

    fn put(
        &self,
        out: &mut Output<'_, '_>,
        at: usize,
        (key, seq): (&[u8], Seq),
        content: &Content<'_>,
        is_doubtful: bool,
    ) -> Result<()> {
        match content {
            Content::Put(value) => out.pair(at, (key, Some(seq)), Value::Bytes(value), is_doubtful),
            Content::Remove => Ok(()),
            Content::Staged(blob) => match self.file(blob) {
                Ok(value) => out.pair(at, (key, Some(seq)), value, is_doubtful),
                Err(error) => out.lost(at, (key, Some(seq)), &damage(error)?),
            },
        }
    }

    fn file(&self, blob: &BlobRef) -> Result<Value<'static>> {
        let blobs = &self.store.ground.blobs;
        blobs.find(blob)?.map(Value::File).ok_or_else(|| blobs.missing(blob))
    }

    /// What the indexes have that no frame was met for is lost.
    fn count(&self, out: &mut Output<'_, '_>) -> Result<()> {
        for (at, space) in self.opened.spaces.iter().enumerate() {
            let Some(engine) = space.engine.as_ref().filter(|_| space.log == Some(LogId::Flat)) else {
                continue;
            };
            let repair = &mut out.repairs[at];
            let known = engine.len().map_or_else(|error| damage(error).map(|_| None), |len| Ok(Some(len)))?;
            repair.and_more |=
                known.is_none() || self.unknown[at] > 0 || self.opened.strays.contains_key(&space.id);
            let unseen = known.unwrap_or(0).saturating_sub(self.newest[at]);
            repair.lost += unseen;
            repair.unnamed += unseen;
            if unseen > 0 {
                self.place_the_lost(at, engine, out)?;
            }
        }
        Ok(())
    }

    /// Returns whether the index has the newest value of `key`, and its record cannot be read:
    /// indexes keep small values.
    fn is_only_in_index(&self, at: usize, engine: &Arc<dyn Engine>, key: &[u8]) -> bool {
        let strays = self.opened.strays.get(&self.opened.spaces[at].id);
        let is_stray = strays.is_some_and(|strays| strays.contains(key));
        let is_gone = |address| self.store.ground.segments.frame(address, &epoch::pin()).is_err();
        !is_stray && engine.locate(key).is_ok_and(|address| address.is_some_and(is_gone))
    }

    /// Takes, of what is counted as lost, the pairs that the index has itself, and tells the keys
    /// of the others, or the keys around them and their files.
    fn place_the_lost(&self, at: usize, engine: &Arc<dyn Engine>, out: &mut Output<'_, '_>) -> Result<()> {
        let dir = &self.store.log(LogId::Flat).dir;
        let is_record = |error: &Error| matches!(error, Error::Corrupt { path, .. } if path.starts_with(dir));
        let mut files: BTreeMap<PathBuf, LostRecords> = BTreeMap::new();
        survey(engine, &mut |met| {
            match &met {
                Met::Pair(key, value) if self.is_only_in_index(at, engine, key) => {
                    let repair = &mut out.repairs[at];
                    (repair.lost, repair.unnamed) =
                        (repair.lost.saturating_sub(1), repair.unnamed.saturating_sub(1));
                    let is_doubtful = self.opened.is_doubtful(&self.opened.spaces[at], key, None);
                    out.pair(at, (key, None), Value::Bytes(value), is_doubtful)?;
                }
                Met::Lost(key, why) if is_record(why) => {
                    out.repairs[at].unnamed = out.repairs[at].unnamed.saturating_sub(1);
                    out.tell(at, key, None, Fate::Lost { why });
                }
                Met::Damaged(error @ Error::Corrupt { path, what, .. }) if is_record(error) => {
                    let (path, why) = (path.clone(), what.to_string());
                    files.entry(path.clone()).or_insert(LostRecords { path, pairs: 0, why }).pairs += 1;
                }
                Met::Gap(after, before, why) if engine.capabilities().ordered => {
                    let is_more = out.repairs[at].and_more;
                    out.gap(at, (*after, *before), why);
                    out.repairs[at].and_more = is_more; // the index has counted all of them
                }
                _ => {}
            }
            out.read(0)
        })?;
        if out.repairs[at].unnamed > 0 {
            out.repairs[at].lost_records = files.into_values().collect();
        }
        Ok(())
    }

    /// Hands over what was gathered, unless a pair of the key is there.
    fn settle(&mut self, gathered: Gathered, out: &mut Output<'_, '_>) -> Result<()> {
        for ((at, key), (seq, address)) in gathered {
            let Some(address) = address else { continue };
            if out.has(at, &key)? {
                continue;
            }
            let guard = &epoch::pin();
            let read = self.store.ground.segments.frame(address, guard);
            let Ok(frame) = read else { continue }; // it was read before: the device may have lost it since
            let Ok(record) = Record::decode(frame.payload()) else { continue };
            self.put(out, at, (&key, seq), &record.content, true)?;
        }
        Ok(())
    }
}

/// What is wrong with a hole's first bytes.
fn reason(error: &Error) -> String {
    match error {
        Error::Corrupt { what, .. } => what.to_string(),
        other => other.to_string(),
    }
}

fn gather(gathered: &mut Gathered, entry: &Entry<'_>) {
    let address = entry.is_put().then_some(entry.address);
    let newest = gathered.entry((entry.at, entry.record.key.into())).or_insert((entry.seq, address));
    if newest.0 < entry.seq {
        *newest = (entry.seq, address);
    }
}
