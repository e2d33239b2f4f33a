//! # Block: an interval in memory
//!
//! Contains the bytes of an interval as stored in the space. A directory of fingerprints and
//! offsets precedes them, ordered by key, and by descending seq within a key. A block is one
//! allocation: a lookup touches the header with the fingerprints, then one pair.
//!
//! ## Picture
//!
//! ```text
//!  references | size | versions, live keys, newest | fingerprint 2 ... | offset 4 ... | runs
//!                                                     hidden: 1 bit | offset in runs: 31
//! ```
//!
//! A version is *hidden* if it is a tombstone or if the block contains a newer version of its key.
//! A view that is not older than any version of the block shows exactly the versions that are not
//! hidden.
//!
//! ## Invariants
//!
//! 1. Only the reference count changes. Dropping the last reference frees the block.
//! 2. Every pair was decoded when the block was built, so decoding it again cannot fail.

use std::ops::{Deref, Range};
use std::ptr::{NonNull, with_exposed_provenance, with_exposed_provenance_mut};

use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::Damage;
use sheaf_platform::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::interval::fingerprints::Fingerprints;
use crate::interval::run::{self, StoredPair};
use sheaf_platform::memory::block_alloc;
use smallvec::SmallVec;

/// Returns the fingerprint of a hash.
#[inline]
pub(crate) fn fingerprint_of(hash: u64) -> u16 {
    u16::try_from(hash >> 32 & u64::from(u16::MAX)).unwrap_or(0)
}

/// Bit of an offset that marks a hidden version.
const HIDDEN: u32 = 1 << 31;

/// Header of a block; the rest follows directly behind it.
#[repr(C)]
pub(crate) struct Block {
    references: AtomicUsize,
    size: u32,
    count: u32,
    live: u32,
    /// Highest number of a version in the block.
    newest: u64,
}

const HEADER_BYTES: usize = size_of::<Block>();

/// Returns the bytes before the runs of a block with `versions` versions.
fn data_offset(versions: usize) -> usize {
    HEADER_BYTES + (versions * 2).next_multiple_of(4) + versions * 4
}

fn size_with_fragmentation(bytes: usize) -> u64 {
    let taken = block_alloc::memory_bytes(bytes);
    taken + taken / 8
}

/// A version and the fingerprint of its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FingerprintedPair<'a> {
    pub(crate) fingerprint: u16,
    pub(crate) pair: StoredPair<'a>,
}

/// Fingerprints and offsets in the order of keys and descending numbers.
type Directory = SmallVec<[(u16, u32); 32]>;

/// Returns the number of a pair. Returns the highest number for a blob reference, because showing
/// the value needs another read.
fn newest_of(pair: &StoredPair<'_>) -> u64 {
    if matches!(pair.content, RecordContent::Blob(_)) { u64::MAX } else { pair.seq.0 }
}

/// Versions of an interval in the order of keys and descending numbers.
pub(crate) struct SortedVersions<'a> {
    /// Offset and content of each version.
    pub(crate) found: Vec<(u32, StoredPair<'a>)>,
    pub(crate) runs: u32,
    /// Number of keys with a newest version that is not a tombstone.
    pub(crate) live: usize,
}

impl SortedVersions<'_> {
    /// Decodes the bytes of an interval. Versions that occur twice are returned once.
    pub(crate) fn of(data: &[u8]) -> Result<SortedVersions<'_>, Damage> {
        let mut found: Vec<(u32, StoredPair<'_>)> = Vec::with_capacity(16);
        let runs =
            run::for_each_pair(data, |at, pair| found.push((u32::try_from(at).unwrap_or(u32::MAX), pair)))?;
        if runs > 1 {
            found.sort_by(|(_, a), (_, b)| a.key.cmp(b.key).then(b.seq.cmp(&a.seq)));
            found.dedup_by(|(_, a), (_, b)| a.key == b.key && a.seq == b.seq);
        } else if !found.is_sorted_by(|(_, a), (_, b)| (a.key, b.seq) < (b.key, a.seq)) {
            let is_sorted = |a: &StoredPair<'_>, b: &StoredPair<'_>| (a.key, b.seq) < (b.key, a.seq);
            let before = found.windows(2).take_while(|pair| is_sorted(&pair[0].1, &pair[1].1)).count();
            return Err(Damage::BadOrder { item: "pair", index: before as u64 + 1 });
        }
        let is_newest = |at: usize| at == 0 || found[at - 1].1.key != found[at].1.key;
        let live = (0..found.len()).filter(|at| is_newest(*at) && !found[*at].1.is_tombstone()).count();
        Ok(SortedVersions { found, runs, live })
    }
}

/// A counted reference to a block.
#[derive(Debug)]
pub(crate) struct BlockRef(NonNull<Block>);

// SAFETY:
// * Only the reference count of a block is ever written, and that is an atomic.
unsafe impl Send for BlockRef {}
// SAFETY:
// * As above.
unsafe impl Sync for BlockRef {}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block of {}", self.count)
    }
}

impl Block {
    /// Builds the block of an interval from its bytes. Versions that occur twice are stored once.
    pub(crate) fn build(data: &[u8], hash: impl Fn(&[u8]) -> u64) -> Result<BlockRef, Damage> {
        let found = SortedVersions::of(data)?.found;
        let known = |pair: StoredPair<'_>| fingerprint_of(hash(pair.key));
        Block::of(
            data,
            found
                .iter()
                .map(|(at, pair)| (FingerprintedPair { fingerprint: known(*pair), pair: *pair }, *at)),
        )
    }

    /// Builds a block from bytes and the versions in them, in the order of keys and descending
    /// numbers, with the offset of each.
    pub(crate) fn of<'a>(
        data: &[u8],
        versions: impl Iterator<Item = (FingerprintedPair<'a>, u32)>,
    ) -> Result<BlockRef, Damage> {
        let mut directory = Directory::new();
        let (mut newest, mut last) = (0, None);
        for (FingerprintedPair { fingerprint, pair }, at) in versions {
            assert!((at as usize) < data.len(), "block (I2): every pair of a block is in its runs");
            let is_shown = last != Some(pair.key) && !pair.is_tombstone();
            newest = newest.max(newest_of(&pair));
            last = Some(pair.key);
            directory.push((fingerprint, if is_shown { at } else { at | HIDDEN }));
        }
        Block::assemble([data, &[]], &directory, newest)
    }

    /// Returns this block with one more run behind the others. `added` lists the versions of `run`
    /// in the order of keys and descending numbers, with their offsets in the run. Only stored
    /// versions of the same keys are decoded again.
    pub(crate) fn with_run(
        &self,
        run: &[u8],
        added: &[(FingerprintedPair<'_>, u32)],
    ) -> Result<BlockRef, Damage> {
        let base = self.data().len();
        let too_large = |_| Damage::BadLength { got: base as u64, max: u64::from(u32::MAX) };
        let base = u32::try_from(base).map_err(too_large)?;
        let mut directory = Directory::with_capacity(self.len() + added.len());
        let (mut newest, mut from) = (self.newest, 0);
        for versions in added.chunk_by(|(a, _), (b, _)| a.pair.key == b.pair.key) {
            let FingerprintedPair { fingerprint, pair: first } = versions[0].0;
            let found = self.slot_of(fingerprint, first.key);
            let to = found.unwrap_or_else(|| self.seek(first.key, false));
            let end = found.map_or(to, |slot| self.end_of_key(slot));
            directory.extend((from..to).map(|slot| self.directory_entry(slot)));
            let before = found.map(|slot| self.pair(slot));
            from = to;
            let head = directory.len();
            for (FingerprintedPair { pair, .. }, at) in versions {
                newest = newest.max(newest_of(pair));
                while from < end && self.pair(from).seq > pair.seq {
                    directory.push(self.directory_entry(from));
                    from += 1;
                }
                // A version that was stored before is one with it.
                if from == end || self.pair(from).seq != pair.seq {
                    directory.push((fingerprint, base.saturating_add(*at)));
                }
            }
            directory.extend((from..end).map(|slot| self.directory_entry(slot)));
            from = end;
            directory[head..].iter_mut().for_each(|(_, place)| *place |= HIDDEN);
            let shown = before.filter(|before| before.seq >= first.seq).unwrap_or(first);
            if !shown.is_tombstone() {
                directory[head].1 &= !HIDDEN;
            }
        }
        directory.extend((from..self.len()).map(|slot| self.directory_entry(slot)));
        Block::assemble([self.data(), run], &directory, newest)
    }

    fn assemble(data: [&[u8]; 2], directory: &[(u16, u32)], newest: u64) -> Result<BlockRef, Damage> {
        let count = directory.len();
        let before = data_offset(count);
        let size = before + data[0].len() + data[1].len();
        let too_large = Damage::BadLength { got: size as u64, max: u64::from(HIDDEN - 1) };
        let size = u32::try_from(size).ok().filter(|size| *size < HIDDEN).ok_or(too_large)?;
        let live = directory.iter().filter(|(_, place)| place & HIDDEN == 0).count();
        // both are below the size
        let fits = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let head =
            Block { references: AtomicUsize::new(1), size, count: fits(count), live: fits(live), newest };
        const { assert!(align_of::<Block>() <= block_alloc::block_align(0)) };
        let piece = block_alloc::allocate(size as usize);
        let (block, start) = (piece.cast::<Block>(), piece.as_ptr());
        // SAFETY: the allocation has room for header, directory and data in this order, each
        // aligned for its type: `block_align` and `next_multiple_of` guarantee it. No other thread
        // knows its address yet.
        unsafe {
            block.as_ptr().write(head);
            let fingerprints = start.add(HEADER_BYTES).cast::<u16>();
            let places = start.add(HEADER_BYTES + (count * 2).next_multiple_of(4)).cast::<u32>();
            for (slot, (fingerprint, at)) in directory.iter().enumerate() {
                fingerprints.add(slot).write(*fingerprint);
                places.add(slot).write(*at);
            }
            let mut to = start.add(before);
            for part in data {
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        start.expose_provenance(); // for `Block::start` and `BlockRef::of`
        Ok(BlockRef(block))
    }

    /// Returns the address of the allocation, with the provenance that `assemble` exposed: that of
    /// `self` covers only the header.
    #[inline]
    fn start(&self) -> *const u8 {
        with_exposed_provenance(std::ptr::from_ref(self).addr())
    }

    /// Returns the memory of the block in bytes. Includes an eighth for the free space between
    /// blocks of many sizes, a typical share after many blocks have grown.
    pub(crate) fn size(&self) -> u64 {
        size_with_fragmentation(self.size as usize)
    }

    /// Returns the size of a block of `data` bytes of runs with `versions` versions.
    pub(crate) fn size_of(data: u64, versions: u32) -> u64 {
        let data = usize::try_from(data).unwrap_or(usize::MAX);
        size_with_fragmentation(data_offset(versions as usize).saturating_add(data))
    }

    /// Returns the number of versions.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns the number of keys with a newest version that is not a tombstone: the versions that
    /// are not hidden.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Whether a view at `at` shows exactly the versions that are not hidden, as stored. Then none
    /// is newer than the view, and none is a blob reference.
    #[inline]
    pub(crate) fn is_visible_as_stored(&self, at: Seq) -> bool {
        self.newest <= at.0 && self.newest < u64::MAX
    }

    /// Whether the version in `slot` is hidden.
    #[inline]
    pub(crate) fn is_hidden(&self, slot: usize) -> bool {
        self.offsets()[slot] & HIDDEN != 0
    }

    #[inline]
    fn fingerprints(&self) -> &[u16] {
        // SAFETY:
        // * `assemble` has written `len` fingerprints directly behind the header.
        unsafe { std::slice::from_raw_parts(self.start().add(HEADER_BYTES).cast(), self.len()) }
    }

    #[inline]
    fn offsets(&self) -> &[u32] {
        let at = HEADER_BYTES + (self.len() * 2).next_multiple_of(4);
        // SAFETY:
        // * `assemble` has written `len` offsets behind the fingerprints, aligned to four bytes.
        unsafe { std::slice::from_raw_parts(self.start().add(at).cast(), self.len()) }
    }

    /// Returns the runs.
    #[inline]
    pub(crate) fn data(&self) -> &[u8] {
        let at = data_offset(self.len());
        // SAFETY:
        // * `assemble` has written the rest of the allocation.
        unsafe { std::slice::from_raw_parts(self.start().add(at), self.size as usize - at) }
    }

    /// Returns the version in `slot`.
    #[inline]
    pub(crate) fn pair(&self, slot: usize) -> StoredPair<'_> {
        match StoredPair::decode(self.data(), (self.offsets()[slot] & !HIDDEN) as usize) {
            Ok((pair, _)) => pair,
            Err(_) => unreachable!("block (I2): every pair was decoded when the block was built"),
        }
    }

    /// Returns key and value of the put in `slot`.
    #[inline]
    pub(crate) fn put(&self, slot: usize) -> (&[u8], &[u8]) {
        match StoredPair::put(self.data(), (self.offsets()[slot] & !HIDDEN) as usize) {
            Some(put) => put,
            None => unreachable!("block (I2): the pair was a put when the block was built"),
        }
    }

    /// Returns the version in `slot` with its fingerprint.
    pub(crate) fn fingerprinted_pair(&self, slot: usize) -> FingerprintedPair<'_> {
        FingerprintedPair { fingerprint: self.fingerprints()[slot], pair: self.pair(slot) }
    }

    /// Returns the fingerprints that stay in memory when the block is evicted. Returns `None` if
    /// the interval is too large for them.
    pub(crate) fn to_fingerprints(&self) -> Option<Fingerprints> {
        let places = self.offsets().iter().map(|place| place & !HIDDEN);
        Fingerprints::of(self.data(), self.fingerprints().iter().copied().zip(places))
    }

    fn directory_entry(&self, slot: usize) -> (u16, u32) {
        (self.fingerprints()[slot], self.offsets()[slot])
    }

    /// Returns the first slot of `key`.
    fn slot_of(&self, fingerprint: u16, key: &[u8]) -> Option<usize> {
        let mut fingerprints = (0..).zip(self.fingerprints());
        fingerprints
            .find(|(slot, mine)| **mine == fingerprint && self.pair(*slot).key == key)
            .map(|(slot, _)| slot)
    }

    /// Returns the slot behind the versions of the key in `slot`.
    pub(crate) fn end_of_key(&self, slot: usize) -> usize {
        let key = self.pair(slot).key;
        (slot + 1..self.len()).find(|slot| self.pair(*slot).key != key).unwrap_or(self.len())
    }

    /// Returns the version of `key` that a view at `at` shows.
    #[inline]
    pub(crate) fn find(&self, fingerprint: u16, key: &[u8], at: Seq) -> Option<StoredPair<'_>> {
        for (slot, mine) in self.fingerprints().iter().enumerate() {
            if *mine == fingerprint {
                let pair = self.pair(slot);
                if pair.key == key && pair.seq <= at {
                    return Some(pair);
                }
            }
        }
        None
    }

    /// Returns the first slot with a key at or after `key`; with `behind`, the first slot with a
    /// later key.
    pub(crate) fn seek(&self, key: &[u8], behind: bool) -> usize {
        self.seek_within(key, behind, 0..self.len())
    }

    fn seek_within(
        &self,
        key: &[u8],
        behind: bool,
        Range { start: mut low, end: mut high }: Range<usize>,
    ) -> usize {
        while low < high {
            let middle = (low + high) / 2;
            let found = self.pair(middle).key;
            if found < key || (behind && found == key) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Returns the slots of the versions of `key`, which are all within `slots`. If there are none,
    /// the empty range is at their place in the order.
    pub(crate) fn versions(&self, key: &[u8], slots: Range<usize>) -> Range<usize> {
        let end = slots.end;
        let first = self.seek_within(key, false, slots);
        first..(first..end).find(|slot| self.pair(*slot).key != key).unwrap_or(end)
    }
}

impl BlockRef {
    /// Converts the reference into a pointer, without dropping it.
    pub(crate) fn into_raw(self) -> *mut Block {
        let pointer = self.0.as_ptr();
        std::mem::forget(self);
        pointer
    }

    /// Takes back a reference that [`BlockRef::into_raw`] has converted.
    ///
    /// # Safety
    ///
    /// * The pointer must come from [`BlockRef::into_raw`], and is used by only one call.
    pub(crate) unsafe fn from_raw(pointer: *mut Block) -> Option<BlockRef> {
        NonNull::new(pointer).map(BlockRef)
    }

    /// Returns another reference to a block that is still allocated.
    pub(crate) fn of(block: &Block) -> BlockRef {
        block.references.fetch_add(1, Ordering::Relaxed);
        // The last reference frees the block, which a pointer from `&Block` must not do.
        let address = std::ptr::from_ref(block).addr();
        BlockRef(NonNull::new(with_exposed_provenance_mut(address)).expect("a reference is not null"))
    }
}

impl Deref for BlockRef {
    type Target = Block;

    #[inline]
    fn deref(&self) -> &Block {
        // SAFETY:
        // * This reference keeps the block allocated (I1).
        unsafe { self.0.as_ref() }
    }
}

impl Clone for BlockRef {
    fn clone(&self) -> BlockRef {
        BlockRef::of(self)
    }
}

impl Drop for BlockRef {
    fn drop(&mut self) {
        let references = self.references.fetch_sub(1, Ordering::Release);
        assert!(references > 0, "block (I1): a block has references until the last one frees it");
        if references == 1 {
            fence(Ordering::Acquire);
            let size = self.size as usize;
            // SAFETY:
            // * `assemble` allocated the block with this size, and this was the last reference.
            unsafe { block_alloc::free(self.0.cast(), size) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: &[u8]) -> u64 {
        u64::from(crc32c::crc32c(key)) << 32
    }

    #[test]
    fn versions_are_found_as_views_show_them() {
        let put = |key, seq, value| StoredPair { key, seq: Seq(seq), content: RecordContent::Put(value) };
        let mut data = Vec::new();
        let first = [put(&b"a"[..], 1, &b"one"[..]), put(b"c", 2, b"two")];
        run::encode(true, first.into_iter(), &mut data, |_| {});
        let gone = StoredPair { key: b"c", seq: Seq(9), content: RecordContent::Remove };
        let second = [put(b"b", 7, b"seven"), gone, put(b"c", 2, b"two")];
        run::encode(false, second.into_iter(), &mut data, |_| {});
        let block = Block::build(&data, hash).expect("it is well formed");
        assert_eq!((block.len(), block.live()), (4, 2));
        assert_eq!(SortedVersions::of(&data).map(|sorted| sorted.runs), Ok(2));
        let find = |key: &[u8], at| block.find(fingerprint_of(hash(key)), key, at).map(|pair| pair.content);
        assert_eq!(find(b"c", Seq::LATEST), Some(RecordContent::Remove));
        assert_eq!(find(b"c", Seq(8)), Some(RecordContent::Put(b"two")));
        assert_eq!(find(b"c", Seq(1)), None);
        assert_eq!(find(b"b", Seq::LATEST), Some(RecordContent::Put(b"seven")));
        assert_eq!(find(b"d", Seq::LATEST), None);
        assert_eq!((block.seek(b"b", false), block.seek(b"b", true), block.seek(b"c", true)), (1, 2, 4));
        assert_eq!(
            [&b"a"[..], b"aa", b"c", b"d"].map(|key| block.versions(key, 0..4)),
            [0..1, 1..1, 2..4, 4..4]
        );
        assert_eq!((block.versions(b"b", 1..4), block.versions(b"c", 2..4)), (1..2, 2..4));
        assert_eq!(block.data(), data);
        let other = block.clone();
        drop(block);
        assert_eq!(other.pair(0).key, b"a");
        assert!(Block::build(&data[..data.len() - 1], hash).is_err());
    }

    #[test]
    fn adding_a_run_equals_building_from_all_bytes() {
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..300 {
            let mut data = Vec::new();
            let mut block: Option<BlockRef> = None;
            for number in 0..1 + next(4) {
                // Few keys and numbers: some versions occur twice, some are older than stored ones.
                let mut versions: Vec<(u64, u64)> = (0..next(8)).map(|_| (next(6), 1 + next(9))).collect();
                versions.sort_unstable_by_key(|(key, seq)| (*key, std::cmp::Reverse(*seq)));
                versions.dedup();
                let keys: Vec<[u8; 8]> = versions.iter().map(|(key, _)| key.to_be_bytes()).collect();
                let pairs = keys.iter().zip(&versions).map(|(key, (_, seq))| {
                    let content =
                        if seq % 3 == 0 { RecordContent::Remove } else { RecordContent::Put(&key[..]) };
                    StoredPair { key, seq: Seq(*seq), content }
                });
                let (mut run, mut places) = (Vec::new(), Vec::new());
                run::encode(number == 0, pairs.clone(), &mut run, |at| places.push(at));
                let place = |at: usize| u32::try_from(at).expect("small");
                let known = |pair: StoredPair<'_>| fingerprint_of(hash(pair.key));
                let added: Vec<(FingerprintedPair<'_>, u32)> = pairs
                    .map(|pair| FingerprintedPair { fingerprint: known(pair), pair })
                    .zip(places.into_iter().map(place))
                    .collect();
                data.extend_from_slice(&run);
                let grown = match block.take() {
                    None => Block::of(&run, added.into_iter()),
                    Some(block) => block.with_run(&run, &added),
                };
                let (grown, built) = (grown.expect("small"), Block::build(&data, hash).expect("well formed"));
                assert_eq!((grown.fingerprints(), grown.offsets()), (built.fingerprints(), built.offsets()));
                assert_eq!((grown.live, grown.newest, grown.data()), (built.live, built.newest, &data[..]));
                for (key, at) in (0..7u64).flat_map(|key| (0..11).map(move |at| (key.to_be_bytes(), Seq(at))))
                {
                    let found = grown.find(fingerprint_of(hash(&key)), &key, at);
                    let mut shown: Option<StoredPair<'_>> = None;
                    let walked = run::for_each_pair(&data, |_, pair| {
                        if pair.key == key && pair.seq <= at && shown.is_none_or(|shown| shown.seq < pair.seq)
                        {
                            shown = Some(pair);
                        }
                    });
                    assert_eq!((walked.is_ok(), shown), (true, found));
                }
                block = Some(grown);
            }
        }
    }
}
