//! # Fingerprints: the part of an interval that stays in memory without its block
//!
//! A get needs one pair of a dozen or two, which are stored in several runs on several pages, with
//! one checksum per run. For each pair, fingerprints contain two bytes of the key's hash, two bytes
//! of the pair's offset, and a checksum of the pair. They take about a twentieth of the block. With
//! them a get reads one page: the page of a pair with the same fingerprint. The key in that pair
//! confirms the match. The checksum of the pair proves that the pair is still the same.
//!
//! ## Picture
//!
//! ```text
//!  versions 63, ordered 1 | fingerprint 2, offset 2, sum 4 | fingerprint 2, offset 2, sum 4 | ...
//!                            in the order of the block; an appended run comes first: not ordered
//! ```
//!
//! ## Invariants
//!
//! 1. A key without an equal fingerprint has no version in the interval. An equal fingerprint may
//!    belong to another key: the pair itself decides.
//! 2. In *ordered* fingerprints the versions of a key are in descending order of seqs. A get stops
//!    at the first version of the key that is not newer than its view. In unordered ones a get
//!    checks all equal fingerprints.
//! 3. The sums are of bytes that were checked or are being written. If the bytes have another sum,
//!    the whole interval is read.
//! 4. The words never change.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;

use sheaf_platform::memory::block_alloc;

use crate::interval::run::StoredPair;

/// Bit of the first word: the fingerprints are ordered.
const ORDERED_BIT: u64 = 1;
/// Positions of the parts in the word of a version.
const FINGERPRINT_SHIFT: u32 = 48;
const OFFSET_SHIFT: u32 = 32;
/// Smallest offset that does not fit into two bytes.
const MAX_INTERVAL_BYTES: u64 = 1 << 16;

/// Owned fingerprints of an interval.
pub(crate) struct Fingerprints(NonNull<u64>);

// SAFETY:
// * The value owns its words, and they are never written again (I4).
unsafe impl Send for Fingerprints {}
// SAFETY:
// * As above.
unsafe impl Sync for Fingerprints {}

/// Borrowed fingerprints of an interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FingerprintsRef<'a>(&'a [u64]);

/// Range of an interval that may contain a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PairCandidate {
    /// Bytes from the start of the pair up to the next pair, or to the end of the interval.
    pub(crate) bytes: Range<u64>,
    sum: u32,
}

impl PairCandidate {
    /// Returns the pair at the start of `bytes`, if they equal the bytes that were checked.
    pub(crate) fn pair<'b>(&self, bytes: &'b [u8]) -> Option<StoredPair<'b>> {
        let (pair, end) = StoredPair::decode(bytes, 0).ok()?;
        (crc32c::crc32c(&bytes[..end]) == self.sum).then_some(pair)
    }
}

const fn bytes_of(words: usize) -> usize {
    words * size_of::<u64>()
}

fn offset_of(word: u64) -> u64 {
    word >> OFFSET_SHIFT & (MAX_INTERVAL_BYTES - 1)
}

/// Returns the word of a version at offset `at` of `data`, which begins `base` bytes behind the
/// start of the interval.
fn encode_word(data: &[u8], base: u64, (fingerprint, at): (u16, u32)) -> u64 {
    // The caller knows the offset because it has decoded the pair.
    let end = StoredPair::decode(data, at as usize).map_or(at as usize, |(_, end)| end);
    assert!(end > at as usize, "fingerprints (I3): the bytes of a pair were checked before their sum");
    let sum = crc32c::crc32c(&data[at as usize..end]);
    u64::from(fingerprint) << FINGERPRINT_SHIFT | (base + u64::from(at)) << OFFSET_SHIFT | u64::from(sum)
}

impl Fingerprints {
    /// Makes fingerprints of the versions in `data`, an interval. The versions are in the order of
    /// keys and descending numbers. Returns `None` if the interval is too large.
    pub(crate) fn of(
        data: &[u8],
        versions: impl ExactSizeIterator<Item = (u16, u32)>,
    ) -> Option<Fingerprints> {
        let (len, count) = (data.len() as u64, versions.len());
        (len < MAX_INTERVAL_BYTES).then(|| {
            Fingerprints::from_words(true, count, versions.map(|version| encode_word(data, 0, version)))
        })
    }

    /// Stores `count` words. If `words` has fewer, the rest is zero.
    fn from_words(is_ordered: bool, count: usize, words: impl Iterator<Item = u64>) -> Fingerprints {
        const { assert!(align_of::<u64>() <= block_alloc::block_align(0)) };
        let start = block_alloc::allocate(bytes_of(1 + count)).cast::<u64>();
        let mut words = words.fuse();
        // SAFETY:
        // * The allocation has room for the header and `count` words and is aligned for them.
        // * It is not shared yet, and all words are written.
        unsafe {
            start.write((count as u64) << 1 | u64::from(is_ordered));
            for at in 1..=count {
                start.add(at).write(words.next().unwrap_or(0));
            }
        }
        Fingerprints(start)
    }

    /// Borrows the fingerprints.
    pub(crate) fn view(&self) -> FingerprintsRef<'_> {
        // SAFETY:
        // * `self` owns the words, and the result borrows `self`.
        unsafe { Fingerprints::view_raw(self.0) }
    }

    /// Borrows fingerprints that [`Fingerprints::into_raw`] has converted.
    ///
    /// # Safety
    ///
    /// * They must not be freed while the result is in use.
    pub(crate) unsafe fn view_raw<'a>(raw: NonNull<u64>) -> FingerprintsRef<'a> {
        // SAFETY:
        // * `raw` points to the first word, and no thread writes it (I4). The caller guarantees
        //   that it stays allocated.
        let count = usize::try_from(unsafe { raw.read() } >> 1).unwrap_or(0);
        // SAFETY:
        // * The first word contains the number of words that follow; otherwise as above.
        FingerprintsRef(unsafe { std::slice::from_raw_parts(raw.as_ptr(), 1 + count) })
    }

    /// Converts the fingerprints into a pointer, without dropping them.
    pub(crate) fn into_raw(self) -> NonNull<u64> {
        ManuallyDrop::new(self).0
    }

    /// Takes back fingerprints that [`Fingerprints::into_raw`] has converted.
    ///
    /// # Safety
    ///
    /// * `raw` must come from [`Fingerprints::into_raw`], and is used by only one call.
    pub(crate) unsafe fn from_raw(raw: NonNull<u64>) -> Fingerprints {
        Fingerprints(raw)
    }
}

impl Drop for Fingerprints {
    fn drop(&mut self) {
        let bytes = bytes_of(self.view().0.len());
        // SAFETY:
        // * `from_words` allocated the words with this size, and `self` owns them.
        unsafe { block_alloc::free(self.0.cast(), bytes) }
    }
}

impl Clone for Fingerprints {
    fn clone(&self) -> Fingerprints {
        self.view().copy()
    }
}

impl fmt::Debug for Fingerprints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprints of {}", self.view().versions().len())
    }
}

impl FingerprintsRef<'_> {
    fn versions(&self) -> &[u64] {
        &self.0[1..]
    }

    /// Whether the fingerprints are ordered (see the invariants of the module).
    pub(crate) fn is_ordered(self) -> bool {
        self.0[0] & ORDERED_BIT != 0
    }

    /// Returns the address of the words.
    pub(crate) fn start(self) -> *mut u64 {
        self.0.as_ptr().cast_mut()
    }

    /// Returns the bytes of memory.
    pub(crate) fn size(self) -> u64 {
        block_alloc::memory_bytes(bytes_of(self.0.len()))
    }

    /// Returns the ranges of an interval of `len` bytes that may contain versions of a key with
    /// this fingerprint.
    pub(crate) fn candidates(&self, fingerprint: u16, len: u64) -> impl Iterator<Item = PairCandidate> {
        let places = || self.versions().iter().map(|word| offset_of(*word));
        let alike =
            self.versions().iter().filter(move |word| *word >> FINGERPRINT_SHIFT == u64::from(fingerprint));
        alike.map(move |word| {
            let place = offset_of(*word);
            let end = places().filter(|other| *other > place).min().unwrap_or(len).max(place);
            PairCandidate { bytes: place..end, sum: u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0) }
        })
    }

    /// Returns these fingerprints after `run` was appended to the interval of `before` bytes.
    /// `added` lists the versions in `run` with their offsets in it.
    pub(crate) fn with_run(
        self,
        before: u64,
        run: &[u8],
        added: impl ExactSizeIterator<Item = (u16, u32)>,
    ) -> Option<Fingerprints> {
        let count = added.len() + self.versions().len();
        let added = added.map(|version| encode_word(run, before, version));
        let is_small = before.saturating_add(run.len() as u64) < MAX_INTERVAL_BYTES;
        is_small.then(|| Fingerprints::from_words(false, count, added.chain(self.versions().iter().copied())))
    }

    /// Returns an owned copy.
    pub(crate) fn copy(self) -> Fingerprints {
        let versions = self.versions();
        Fingerprints::from_words(self.is_ordered(), versions.len(), versions.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use sheaf_log::record::RecordContent;
    use sheaf_log::types::Seq;

    use super::*;
    use crate::interval::run;

    fn run_of(begins: bool, keys: &[&'static str]) -> (Vec<u8>, Vec<u32>) {
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        let pair = |key: &'static str| StoredPair {
            key: key.as_bytes(),
            seq: Seq(1),
            content: RecordContent::Put(b"value"),
        };
        let stands = |at: usize| places.push(u32::try_from(at).expect("small"));
        run::encode(begins, keys.iter().map(|key| pair(key)), &mut bytes, stands);
        (bytes, places)
    }

    /// Returns the keys of the candidate pairs; `None` for a damaged one.
    fn keys(fingerprints: &Fingerprints, fingerprint: u16, data: &[u8]) -> Vec<Option<String>> {
        let found = |candidate: PairCandidate| {
            let bytes = &data[usize::try_from(candidate.bytes.start).unwrap()
                ..usize::try_from(candidate.bytes.end).unwrap()];
            candidate.pair(bytes).map(|pair| String::from_utf8(pair.key.to_vec()).unwrap())
        };
        fingerprints.view().candidates(fingerprint, data.len() as u64).map(found).collect()
    }

    fn some(keys: &[&str]) -> Vec<Option<String>> {
        keys.iter().map(|key| Some((*key).to_owned())).collect()
    }

    #[test]
    fn fingerprints_list_candidates_and_appended_versions_come_first() {
        let (mut data, places) = run_of(true, &["a", "b", "c"]);
        let fingerprints = Fingerprints::of(&data, [7, 9, 7].into_iter().zip(places)).expect("small");
        assert!(fingerprints.view().is_ordered());
        assert_eq!(keys(&fingerprints, 7, &data), some(&["a", "c"]));
        assert_eq!(keys(&fingerprints, 9, &data), some(&["b"]));
        assert!(keys(&fingerprints, 8, &data).is_empty());
        let (run, places) = run_of(false, &["bb"]);
        let more = fingerprints
            .view()
            .with_run(data.len() as u64, &run, [9].into_iter().zip(places))
            .expect("small");
        data.extend(run);
        assert!(!more.view().is_ordered());
        assert_eq!(keys(&more, 9, &data), some(&["bb", "b"]));
        assert_eq!(keys(&more.clone(), 7, &data), some(&["a", "c"]));
        assert!(more.view().with_run(MAX_INTERVAL_BYTES - 10, &[0; 10], [].into_iter()).is_none());
        assert!(Fingerprints::of(&[0; 1 << 16], [].into_iter()).is_none());
        // A damaged pair is not accepted.
        let at = data.len() - 1;
        data[at] ^= 1;
        assert_eq!(keys(&more, 9, &data), [None, Some("b".to_owned())]);
    }
}
