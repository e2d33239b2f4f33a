//! # Prints: what stays in memory of an interval whose block does not
//!
//! A get wants one pair of an interval of a dozen or two, which stand in some runs on some pages,
//! with a checksum for each run. Of each pair two bytes of its key's hash, two that say where it
//! stands, and its own sum, a twentieth of what the block takes, leave one page to read: the pair
//! itself has the key, and is what was checked before if it has the sum.
//!
//! ## Picture
//!
//! ```text
//!  versions 63, ordered 1 | print 2, place 2, sum 4 | print 2, place 2, sum 4 | ...
//!                           in the order of the block; what was appended unread comes first
//! ```
//!
//! ## Invariants
//!
//! 1. A key that no print equals has no version in the interval. What one equals may be another's:
//!    the pair decides.
//! 2. In *ordered* prints the versions of a key stand in falling numbers: the first that a view
//!    sees is the one it shows. In others all that are equal have to be looked at.
//! 3. Sums are of bytes that were checked, or are being written. What has another sum is not
//!    believed, and the whole interval is read.
//! 4. Nothing changes.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;

use sheaf_base::memory::block_alloc;

use crate::run::StoredPair;

/// The bit of the first word that says that they are ordered.
const ORDERED_BIT: u64 = 1;
/// A version's word.
const FINGERPRINT_SHIFT: u32 = 48;
const OFFSET_SHIFT: u32 = 32;
/// The least place that is not in two bytes.
const MAX_INTERVAL_BYTES: u64 = 1 << 16;

/// Prints that somebody owns.
pub(crate) struct Fingerprints(NonNull<u64>);

// SAFETY:
// * It owns its words, and nobody writes them (I4).
unsafe impl Send for Fingerprints {}
// SAFETY:
// * As above.
unsafe impl Sync for Fingerprints {}

/// Prints to look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FingerprintsRef<'a>(&'a [u64]);

/// Where a version may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PairCandidate {
    /// From its first byte on, and not beyond the next version's.
    pub(crate) bytes: Range<u64>,
    sum: u32,
}

impl PairCandidate {
    /// The pair that `bytes` begin with, if they are what was checked.
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

/// What prints say of a version that stands at `at` of `data`, `base` bytes behind the interval's
/// first.
fn encode_word(data: &[u8], base: u64, (fingerprint, at): (u16, u32)) -> u64 {
    // Decoded before, by whoever says where it stands.
    let end = StoredPair::decode(data, at as usize).map_or(at as usize, |(_, end)| end);
    let sum = crc32c::crc32c(&data[at as usize..end]);
    u64::from(fingerprint) << FINGERPRINT_SHIFT | (base + u64::from(at)) << OFFSET_SHIFT | u64::from(sum)
}

impl Fingerprints {
    /// Of versions in the order of keys and falling numbers, which stand in `data`, an interval;
    /// `None` if that is too large.
    pub(crate) fn of(
        data: &[u8],
        versions: impl ExactSizeIterator<Item = (u16, u32)>,
    ) -> Option<Fingerprints> {
        let (len, count) = (data.len() as u64, versions.len());
        (len < MAX_INTERVAL_BYTES).then(|| {
            Fingerprints::from_words(true, count, versions.map(|version| encode_word(data, 0, version)))
        })
    }

    /// What `words` lacks of `count` is zero.
    fn from_words(is_ordered: bool, count: usize, words: impl Iterator<Item = u64>) -> Fingerprints {
        const { assert!(align_of::<u64>() <= block_alloc::block_align(0)) };
        let start = block_alloc::allocate(bytes_of(1 + count)).cast::<u64>();
        let mut words = words.fuse();
        // SAFETY:
        // * There is room for the head and `count` words, aligned as they must be, and it is ours
        //   alone; all of them are written.
        unsafe {
            start.write((count as u64) << 1 | u64::from(is_ordered));
            for at in 1..=count {
                start.add(at).write(words.next().unwrap_or(0));
            }
        }
        Fingerprints(start)
    }

    /// To look at.
    pub(crate) fn view(&self) -> FingerprintsRef<'_> {
        // SAFETY:
        // * Owned, and so borrowed as long as that.
        unsafe { Fingerprints::view_raw(self.0) }
    }

    /// What was given away by [`Fingerprints::into_raw`], to look at.
    ///
    /// # Safety
    ///
    /// * It is not taken back as long as somebody looks.
    pub(crate) unsafe fn view_raw<'a>(raw: NonNull<u64>) -> FingerprintsRef<'a> {
        // SAFETY:
        // * A head, which says how many words follow; nobody writes them (I4). That they stay is
        //   the caller's promise.
        let count = usize::try_from(unsafe { raw.read() } >> 1).unwrap_or(0);
        // SAFETY:
        // * As above.
        FingerprintsRef(unsafe { std::slice::from_raw_parts(raw.as_ptr(), 1 + count) })
    }

    /// Gives them away.
    pub(crate) fn into_raw(self) -> NonNull<u64> {
        ManuallyDrop::new(self).0
    }

    /// Takes them back.
    ///
    /// # Safety
    ///
    /// * `raw` comes from [`Fingerprints::into_raw`], once for each call.
    pub(crate) unsafe fn from_raw(raw: NonNull<u64>) -> Fingerprints {
        Fingerprints(raw)
    }
}

impl Drop for Fingerprints {
    fn drop(&mut self) {
        let bytes = bytes_of(self.view().0.len());
        // SAFETY:
        // * Taken in `from_words`, as large, and owned.
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
        write!(f, "Prints of {}", self.view().versions().len())
    }
}

impl FingerprintsRef<'_> {
    fn versions(&self) -> &[u64] {
        &self.0[1..]
    }

    /// See the module's invariants.
    pub(crate) fn is_ordered(self) -> bool {
        self.0[0] & ORDERED_BIT != 0
    }

    /// Where they are.
    pub(crate) fn start(self) -> *mut u64 {
        self.0.as_ptr().cast_mut()
    }

    /// Bytes of memory.
    pub(crate) fn size(self) -> u64 {
        block_alloc::memory_bytes(bytes_of(self.0.len()))
    }

    /// Where versions of a key with this fingerprint may stand in the interval, of `len` bytes.
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

    /// These, of an interval of `before` bytes to which `run` is appended; what is in that, and
    /// where in it.
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

    /// A copy to own.
    pub(crate) fn copy(self) -> Fingerprints {
        let versions = self.versions();
        Fingerprints::from_words(self.is_ordered(), versions.len(), versions.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use sheaf_base::record::RecordContent;
    use sheaf_base::types::Seq;

    use super::*;
    use crate::run;

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

    /// Keys of the pairs that prints say may be alike.
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
        // What is damaged is not believed.
        let at = data.len() - 1;
        data[at] ^= 1;
        assert_eq!(keys(&more, 9, &data), [None, Some("b".to_owned())]);
    }
}
