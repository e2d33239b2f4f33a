//! # Level store: lookups in the levels of a keyspace
//!
//! Finds the entry of a key, or the position of a leaf, through the cache. If a leaf is not in
//! memory, its fingerprints or its filter may have the answer.
//!
//! The *stamp* of a leaf reveals entries that point into deleted segments. It consists of the
//! incarnation (opening) in which the leaf was written, and of the next segment id at that time. An
//! entry is void if its slot has no segment, or a segment with an id that is not lower than the id
//! in the stamp (`id >= stamp`), or a segment that got the slot at a later opening.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use sheaf_engine::context::EngineContext;
use sheaf_log::record::Record;
use sheaf_log::segment::{Address, Segment};
use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::error::{Damage, Result};
use sheaf_platform::memory::block_alloc::BlockBox;
use sheaf_platform::sync::epoch::Guard;

use super::cache::{CachedNode, NodeCache};
use super::filter::{LeafFilter, LeafFilters};
use super::level_file::{LevelFile, MAX_IO_BYTES, PAGE};
use super::node::{LeafEntry, Node, NodeRef, fingerprint_of};
use super::{LeafPosition, Level, LevelEntry, SeekTarget, SlotIncarnations, Unreadable};

/// Maximum number of pages that are read at once while the cache has room for them or for their
/// fingerprints.
const READ_AROUND_PAGES: u32 = 32;

/// Maximum number of unwanted pages between two wanted ones that are read rather than skipped.
const MAX_READ_GAP_PAGES: u32 = 4;

/// Bits of a stamp for the id of a segment; the incarnation is in the bits above.
const SEGMENT_ID_BITS: u32 = 40;

/// The answer for a key if its leaf is not in memory.
enum LeafAnswer<'g> {
    Unknown,
    Absent,
    Present(LevelEntry<'g>),
}

/// The parts that all levels of a keyspace share.
#[derive(Debug)]
pub(crate) struct LevelStore {
    pub(crate) context: Arc<EngineContext>,
    pub(crate) cache: NodeCache,
    pub(crate) filters: LeafFilters,
    pub(crate) space: LevelFile,
    pub(crate) incarnations: OnceLock<SlotIncarnations>,
}

impl LevelStore {
    pub(crate) fn new(context: Arc<EngineContext>, id: KeyspaceId) -> LevelStore {
        LevelStore {
            cache: NodeCache::new(Arc::clone(&context)),
            filters: LeafFilters::new(Arc::clone(&context)),
            space: LevelFile::new(Arc::clone(&context), id),
            incarnations: OnceLock::new(),
            context,
        }
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.context.hash(key)
    }

    /// Returns the node at `at`, from memory or from the file.
    #[inline]
    pub(crate) fn node<'g>(&'g self, at: NodeRef, level: u8, guard: &'g Guard) -> Result<&'g CachedNode> {
        match self.cache.get(at.page, guard) {
            Some(frame) => self.check_level(frame, at, level),
            None => Ok(self.cache.insert_read(at.page, self.space.read(at, level)?, guard)),
        }
    }

    /// Returns the entry of `key` in `level`.
    #[inline]
    pub(crate) fn find<'g>(
        &'g self,
        level: &Level,
        hash: u64,
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<LevelEntry<'g>>> {
        let Some((mut at, height)) = level.root else { return Ok(None) };
        let mut above = None;
        for height in (1..=height).rev() {
            let node = self.node(at, height, guard)?.node();
            let slot = node.child_containing(key);
            at = node.child(slot);
            above = Some((node, slot));
        }
        let leaf = match self.cache.get_for_lookup(at.page, guard) {
            Some(frame) => self.check_level(frame, at, 0)?,
            None => match self.answer_without_leaf(at.page, hash, key, guard) {
                LeafAnswer::Present(seen) => return Ok(Some(seen)),
                LeafAnswer::Absent => return Ok(None),
                LeafAnswer::Unknown => self.read_leaf(at, above, guard)?,
            },
        };
        let node = leaf.node();
        Ok(node.find(fingerprint_of(hash), key).map(|slot| LevelEntry::from_slot(&node, slot)))
    }

    /// Looks up a key in a leaf that is not in memory. Fingerprints lead to a record that may
    /// belong to the key, and the record itself decides. Filters only exclude keys.
    #[cold]
    fn answer_without_leaf<'g>(
        &'g self,
        page: u32,
        hash: u64,
        key: &[u8],
        guard: &'g Guard,
    ) -> LeafAnswer<'g> {
        if let Some(fingerprints) = self.cache.fingerprints(page, guard) {
            for entry in fingerprints.matches(hash, fingerprint_of(hash)) {
                let Some(entry) = entry else { return LeafAnswer::Unknown };
                assert!(!entry.is_leaf_only(), "fingerprints (I2): an entry without its leaf is complete");
                let (stamp, newest) = (fingerprints.stamp(), fingerprints.max_seq());
                match self.has_key(&entry, stamp, key, guard) {
                    Some(false) => {}
                    None => return LeafAnswer::Unknown,
                    Some(true) => {
                        self.cache.count_saved_read();
                        return LeafAnswer::Present(LevelEntry { entry, stamp, max_seq: newest, value: &[] });
                    }
                }
            }
            self.cache.count_saved_read();
            return LeafAnswer::Absent;
        }
        if self.filters.excludes(page, hash, guard) { LeafAnswer::Absent } else { LeafAnswer::Unknown }
    }

    /// Reads the leaves at `refs` that are not in memory into `loaded`, consecutive ones in one
    /// call.
    pub(crate) fn read_leaves(
        &self,
        refs: &[NodeRef],
        loaded: &mut HashMap<u32, BlockBox<CachedNode>>,
    ) -> Result<()> {
        let mut wanted: Vec<NodeRef> =
            refs.iter().filter(|at| !self.cache.contains(at.page)).copied().collect();
        wanted.sort_unstable_by_key(|at| at.page);
        let page = self.space.page_file.page;
        let most = u32::try_from(MAX_IO_BYTES / page).unwrap_or(1);
        let mut rest = &wanted[..];
        while let Some(first) = rest.first() {
            let mut end = first.page + u32::from(first.pages);
            let mut count = 1;
            for at in &rest[1..] {
                if at.page > end.saturating_add(MAX_READ_GAP_PAGES)
                    || at.page + u32::from(at.pages) > first.page + most
                {
                    break;
                }
                end = end.max(at.page + u32::from(at.pages));
                count += 1;
            }
            let mut bytes = vec![0; (end - first.page) as usize * page];
            self.space.read_bytes(first.page, &mut bytes)?;
            for at in &rest[..count] {
                let from = (at.page - first.page) as usize * page;
                let node = &bytes[from..from + usize::from(at.pages) * page];
                loaded.insert(at.page, self.space.frame(*at, 0, node)?);
            }
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Like [`prefetch_record`], if memory is too short for all leaves and thus for the records
    /// too.
    #[inline]
    pub(crate) fn prefetch_record_if_short(&self, address: Address, span: u64, guard: &Guard) {
        if self.cache.is_memory_short()
            && let Some(segment) = self.context.segments.at(address.slot(), guard)
        {
            prefetch_record(segment, address, span);
        }
    }

    /// Whether the record of an entry belongs to `key`; `None` if it cannot be read. The caller
    /// then reads the leaf and finds the damage, if there is any.
    fn has_key(&self, entry: &LeafEntry, stamp: u64, key: &[u8], guard: &Guard) -> Option<bool> {
        let address = entry.address();
        let segment = self.segment_of(address, stamp, guard)?;
        prefetch_record(segment, address, entry.span());
        let frame = segment.frame(address.offset(), segment.limit_at(address.offset())).ok()?;
        Some(Record::decode(frame.payload()).ok()?.key == key)
    }

    /// Reads a leaf and builds its filter. While this evicts nothing, also reads the adjacent
    /// leaves in the file, and later on only their fingerprints. Long reads fill a cold cache and
    /// take hardly longer than short ones. Building the filters of the neighbours would take
    /// longer.
    #[cold]
    fn read_leaf<'g>(
        &'g self,
        at: NodeRef,
        above: Option<(Node<'_>, usize)>,
        guard: &'g Guard,
    ) -> Result<&'g CachedNode> {
        let len = |leaf: &NodeRef| usize::from(leaf.pages) * self.space.page_file.page;
        let mut leaves = match above {
            Some((node, slot)) if self.cache.has_room_for_read_around(READ_AROUND_PAGES) => {
                LevelStore::adjacent_leaves(&node, slot, |page| !self.cache.contains(page))
            }
            Some((node, slot)) if self.cache.has_room_for_fingerprints(READ_AROUND_PAGES) => {
                LevelStore::adjacent_leaves(&node, slot, |page| {
                    !self.cache.contains(page) && !self.cache.has_fingerprints(page)
                })
            }
            _ => vec![at],
        };
        let mut bytes = vec![0; leaves.iter().map(len).sum()];
        if let Err(error) = self.space.read_bytes(leaves[0].page, &mut bytes) {
            if leaves.len() == 1 {
                return Err(error);
            }
            // The unreadable page may be one of the neighbours.
            (leaves, bytes) = (vec![at], vec![0; len(&at)]);
            self.space.read_bytes(at.page, &mut bytes)?;
        }
        let (mut from, mut own) = (0, 0);
        for leaf in leaves {
            let its = &bytes[from..from + len(&leaf)];
            if leaf.page == at.page {
                own = from;
            } else if let Ok(frame) = self.space.frame(leaf, 0, its) {
                // readers of that leaf receive the error themselves
                self.cache.insert_neighbor(leaf.page, frame, guard);
            }
            from += its.len();
        }
        let frame = self.space.frame(at, 0, &bytes[own..own + len(&at)])?;
        let frame = self.cache.insert_read(at.page, frame, guard);
        frame.mark_looked_up();
        if self.filters.get(at.page, guard).is_none() && self.filters.may_grow(true) {
            self.filters.add(at.page, self.filter_of(&frame.node()), guard);
        }
        Ok(frame)
    }

    /// Returns the wanted leaves of `node` that are contiguous in the file with the one at `slot`:
    /// at most [`READ_AROUND_PAGES`] pages.
    fn adjacent_leaves(node: &Node<'_>, slot: usize, is_wanted: impl Fn(u32) -> bool) -> Vec<NodeRef> {
        let mut leaves = VecDeque::from([node.child(slot)]);
        let mut pages = u32::from(leaves[0].pages);
        let end = |leaf: &NodeRef| leaf.page.wrapping_add(u32::from(leaf.pages));
        let (mut low, mut high) = (slot, slot + 1);
        loop {
            let fits =
                |leaf: &NodeRef| pages + u32::from(leaf.pages) <= READ_AROUND_PAGES && is_wanted(leaf.page);
            if let Some(next) = (high < node.len()).then(|| node.child(high))
                && next.page == end(&leaves[leaves.len() - 1])
                && fits(&next)
            {
                pages += u32::from(next.pages);
                leaves.push_back(next);
                high += 1;
            } else if let Some(before) = (low > 0).then(|| node.child(low - 1))
                && end(&before) == leaves[0].page
                && fits(&before)
            {
                pages += u32::from(before.pages);
                leaves.push_front(before);
                low -= 1;
            } else {
                return leaves.into();
            }
        }
    }

    /// Returns the frame if it is a node of this level.
    #[inline]
    fn check_level<'g>(&'g self, frame: &'g CachedNode, at: NodeRef, level: u8) -> Result<&'g CachedNode> {
        let found = frame.bytes().get(1).copied();
        if found == Some(level) {
            return Ok(frame);
        }
        let what =
            Damage::bad_field("level of a node", u64::from(level), u64::from(found.unwrap_or(u8::MAX)));
        Err(self.space.page_file.damage_error(at.page, what))
    }

    #[cold]
    fn filter_of(&self, node: &Node<'_>) -> LeafFilter {
        let mut key = Vec::new();
        let hashes = (0..node.len()).map(|slot| {
            key.clear();
            node.key(slot, &mut key);
            self.hash(&key)
        });
        LeafFilter::build(node.len(), hashes)
    }

    /// Returns the position of a leaf without reading it.
    pub(crate) fn locate(
        &self,
        level: &Level,
        aim: SeekTarget<'_>,
        guard: &Guard,
    ) -> Result<Option<LeafPosition>> {
        Ok(self.try_locate(level, aim, guard)?)
    }

    /// Like [`LevelStore::locate`]. If a node on the way cannot be read, returns the range of keys
    /// below it.
    pub(crate) fn try_locate(
        &self,
        level: &Level,
        aim: SeekTarget<'_>,
        guard: &Guard,
    ) -> Result<Option<LeafPosition>, Box<Unreadable>> {
        let Some((root, height)) = level.root else { return Ok(None) };
        let mut found = LeafPosition { at: root, low: Vec::new(), high: None };
        for height in (1..=height).rev() {
            let node = match self.node(found.at, height, guard) {
                Ok(node) => node.node(),
                Err(error) => return Err(Unreadable::from_position(found, error)),
            };
            let slot = match aim {
                SeekTarget::Containing(key) => node.child_containing(key),
                SeekTarget::LastBefore(key) => node.child_containing_before(key),
                SeekTarget::First => 0,
                SeekTarget::Last => node.len() - 1,
            };
            if slot > 0 {
                found.low.clear();
                node.key(slot, &mut found.low);
            }
            if slot + 1 < node.len() {
                let mut high = Vec::new();
                node.key(slot + 1, &mut high);
                found.high = Some(high);
            }
            found.at = node.child(slot);
        }
        Ok(Some(found))
    }

    /// Returns the incarnations of the levels.
    pub(crate) fn incarnations(&self) -> &SlotIncarnations {
        self.incarnations.get_or_init(SlotIncarnations::default)
    }

    /// Returns the stamp of a leaf that is written now.
    pub(crate) fn stamp(&self, guard: &Guard) -> u64 {
        self.incarnations().current << SEGMENT_ID_BITS | self.context.segments.next_id(guard)
    }

    /// Returns the segment that an entry of a leaf with `stamp` points into. Returns `None` if that
    /// segment was deleted: then another source has a newer entry of the key. The segment that has
    /// the slot now was then created after the leaf, or got the slot at a later opening.
    ///
    /// A retired segment may leave its slot at any time, even under a guard that was pinned after
    /// the retirement. A caller must therefore read the record in the returned segment, and must
    /// not look up the slot again.
    pub(crate) fn segment_of<'g>(
        &'g self,
        address: Address,
        stamp: u64,
        guard: &'g Guard,
    ) -> Option<&'g Segment> {
        if address == Address::NONE {
            return None;
        }
        let (incarnation, id) = (stamp >> SEGMENT_ID_BITS, stamp & ((1 << SEGMENT_ID_BITS) - 1));
        let slot = address.slot();
        let segment = self.context.segments.at(slot, guard)?;
        let is_another = segment.id().0 >= id
            || self.incarnations().reused_slots.get(&slot).is_some_and(|since| incarnation < *since);
        (!is_another).then_some(segment)
    }

    /// Whether the segment that an entry of a leaf with `stamp` pointed into was deleted.
    pub(crate) fn is_dangling(&self, address: Address, stamp: u64, guard: &Guard) -> bool {
        self.segment_of(address, stamp, guard).is_none()
    }
}

/// Requests the record at `address` in `segment` from the device if it is on several pages. They
/// are then read in parallel rather than one after the other.
fn prefetch_record(segment: &Segment, address: Address, span: u64) {
    if address.offset() % PAGE as u64 + span > PAGE as u64 {
        segment.file().will_need(address.offset(), span);
    }
}

/// Returns the seq of the record at `address` in `segment`.
pub(crate) fn record_seq(segment: &Segment, address: Address) -> Result<Seq> {
    Ok(segment.frame_unchecked(address.offset(), segment.limit_at(address.offset()))?.header.seq)
}
