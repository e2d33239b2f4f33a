//! # Prints: what stays in memory of an interval whose block does not
//!
//! A get wants one pair of an interval of a dozen or two, which stand in some runs on some pages, with a checksum for each run. Of each pair
//! two bytes of its key's hash, two that say where it stands, and its own sum, a twentieth of what the block takes, leave one page to read: the
//! pair itself has the key, and is what was checked before if it has the sum.
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
//! 1. A key that no print equals has no version in the interval. What one equals may be another's: the pair decides.
//! 2. In *ordered* prints the versions of a key stand in falling numbers: the first that a view sees is the one it shows. In others all that
//!    are equal have to be looked at.
//! 3. Sums are of bytes that were checked, or are being written. What has another sum is not believed, and the whole interval is read.
//! 4. Nothing changes.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;

use sheaf_base::memory::pieces;

use crate::run::Pair;

/// The bit of the first word that says that they are ordered.
const ORDERED: u64 = 1;
/// A version's word.
const PRINT_SHIFT: u32 = 48;
const PLACE_SHIFT: u32 = 32;
/// The least place that is not in two bytes.
const MOST: u64 = 1 << 16;

/// Prints that somebody owns.
pub(crate) struct Prints(NonNull<u64>);

// SAFETY:
// * It owns its words, and nobody writes them (I4).
unsafe impl Send for Prints {}
// SAFETY:
// * As above.
unsafe impl Sync for Prints {}

/// Prints to look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a>(&'a [u64]);

/// Where a version may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    /// From its first byte on, and not beyond the next version's.
    pub(crate) bytes: Range<u64>,
    sum: u32,
}

impl Stand {
    /// The pair that `bytes` begin with, if they are what was checked.
    pub(crate) fn pair<'b>(&self, bytes: &'b [u8]) -> Option<Pair<'b>> {
        let (pair, end) = Pair::decode(bytes, 0).ok()?;
        (crc32c::crc32c(&bytes[..end]) == self.sum).then_some(pair)
    }
}

const fn bytes_of(words: usize) -> usize {
    words * size_of::<u64>()
}

fn place_of(word: u64) -> u64 {
    word >> PLACE_SHIFT & (MOST - 1)
}

/// What prints say of a version that stands at `at` of `data`, `base` bytes behind the interval's first.
fn word_of(data: &[u8], base: u64, (print, at): (u16, u32)) -> u64 {
    // Decoded before, by whoever says where it stands.
    let end = Pair::decode(data, at as usize).map_or(at as usize, |(_, end)| end);
    let sum = crc32c::crc32c(&data[at as usize..end]);
    u64::from(print) << PRINT_SHIFT | (base + u64::from(at)) << PLACE_SHIFT | u64::from(sum)
}

impl Prints {
    /// Of versions in the order of keys and falling numbers, which stand in `data`, an interval; `None` if that is too large.
    pub(crate) fn of(data: &[u8], versions: impl ExactSizeIterator<Item = (u16, u32)>) -> Option<Prints> {
        let (len, count) = (data.len() as u64, versions.len());
        (len < MOST)
            .then(|| Prints::from_words(true, count, versions.map(|version| word_of(data, 0, version))))
    }

    /// What `words` lacks of `count` is zero.
    fn from_words(is_ordered: bool, count: usize, words: impl Iterator<Item = u64>) -> Prints {
        const { assert!(align_of::<u64>() <= pieces::align_of_piece(0)) };
        let start = pieces::take(bytes_of(1 + count)).cast::<u64>();
        let mut words = words.fuse();
        // SAFETY:
        // * There is room for the head and `count` words, aligned as they must be, and it is ours alone; all of them are written.
        unsafe {
            start.write((count as u64) << 1 | u64::from(is_ordered));
            for at in 1..=count {
                start.add(at).write(words.next().unwrap_or(0));
            }
        }
        Prints(start)
    }

    /// To look at.
    pub(crate) fn show(&self) -> Shown<'_> {
        // SAFETY:
        // * Owned, and so borrowed as long as that.
        unsafe { Prints::show_raw(self.0) }
    }

    /// What was given away by [`Prints::into_raw`], to look at.
    ///
    /// # Safety
    ///
    /// * It is not taken back as long as somebody looks.
    pub(crate) unsafe fn show_raw<'a>(raw: NonNull<u64>) -> Shown<'a> {
        // SAFETY:
        // * A head, which says how many words follow; nobody writes them (I4). That they stay is the caller's promise.
        let count = usize::try_from(unsafe { raw.read() } >> 1).unwrap_or(0);
        // SAFETY:
        // * As above.
        Shown(unsafe { std::slice::from_raw_parts(raw.as_ptr(), 1 + count) })
    }

    /// Gives them away.
    pub(crate) fn into_raw(self) -> NonNull<u64> {
        ManuallyDrop::new(self).0
    }

    /// Takes them back.
    ///
    /// # Safety
    ///
    /// * `raw` comes from [`Prints::into_raw`], once for each call.
    pub(crate) unsafe fn from_raw(raw: NonNull<u64>) -> Prints {
        Prints(raw)
    }
}

impl Drop for Prints {
    fn drop(&mut self) {
        let bytes = bytes_of(self.show().0.len());
        // SAFETY:
        // * Taken in `from_words`, as large, and owned.
        unsafe { pieces::give(self.0.cast(), bytes) }
    }
}

impl Clone for Prints {
    fn clone(&self) -> Prints {
        self.show().copy()
    }
}

impl fmt::Debug for Prints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prints of {}", self.show().versions().len())
    }
}

impl Shown<'_> {
    fn versions(&self) -> &[u64] {
        &self.0[1..]
    }

    /// See the module's invariants.
    pub(crate) fn is_ordered(self) -> bool {
        self.0[0] & ORDERED != 0
    }

    /// Where they are.
    pub(crate) fn start(self) -> *mut u64 {
        self.0.as_ptr().cast_mut()
    }

    /// Bytes of memory.
    pub(crate) fn size(self) -> u64 {
        pieces::taken(bytes_of(self.0.len()))
    }

    /// Where versions of a key with this fingerprint may stand in the interval, of `len` bytes.
    pub(crate) fn like(&self, print: u16, len: u64) -> impl Iterator<Item = Stand> {
        let places = || self.versions().iter().map(|word| place_of(*word));
        let alike = self.versions().iter().filter(move |word| *word >> PRINT_SHIFT == u64::from(print));
        alike.map(move |word| {
            let place = place_of(*word);
            let end = places().filter(|other| *other > place).min().unwrap_or(len).max(place);
            Stand { bytes: place..end, sum: u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0) }
        })
    }

    /// These, of an interval of `before` bytes to which `run` is appended; what is in that, and where in it.
    pub(crate) fn with(
        self,
        before: u64,
        run: &[u8],
        added: impl ExactSizeIterator<Item = (u16, u32)>,
    ) -> Option<Prints> {
        let count = added.len() + self.versions().len();
        let added = added.map(|version| word_of(run, before, version));
        let is_small = before.saturating_add(run.len() as u64) < MOST;
        is_small.then(|| Prints::from_words(false, count, added.chain(self.versions().iter().copied())))
    }

    /// A copy to own.
    pub(crate) fn copy(self) -> Prints {
        let versions = self.versions();
        Prints::from_words(self.is_ordered(), versions.len(), versions.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use sheaf_base::record::Content;
    use sheaf_base::types::Seq;

    use super::*;
    use crate::run;

    fn run_of(begins: bool, keys: &[&'static str]) -> (Vec<u8>, Vec<u32>) {
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        let pair =
            |key: &'static str| Pair { key: key.as_bytes(), seq: Seq(1), content: Content::Put(b"value") };
        let stands = |at: usize| places.push(u32::try_from(at).expect("small"));
        run::encode(begins, keys.iter().map(|key| pair(key)), &mut bytes, stands);
        (bytes, places)
    }

    /// Keys of the pairs that prints say may be alike.
    fn keys(prints: &Prints, print: u16, data: &[u8]) -> Vec<Option<String>> {
        let found = |stand: Stand| {
            let bytes =
                &data[usize::try_from(stand.bytes.start).unwrap()..usize::try_from(stand.bytes.end).unwrap()];
            stand.pair(bytes).map(|pair| String::from_utf8(pair.key.to_vec()).unwrap())
        };
        prints.show().like(print, data.len() as u64).map(found).collect()
    }

    fn some(keys: &[&str]) -> Vec<Option<String>> {
        keys.iter().map(|key| Some((*key).to_owned())).collect()
    }

    #[test]
    fn prints_say_where_versions_may_stand_and_what_is_appended_comes_first() {
        let (mut data, places) = run_of(true, &["a", "b", "c"]);
        let prints = Prints::of(&data, [7, 9, 7].into_iter().zip(places)).expect("small");
        assert!(prints.show().is_ordered());
        assert_eq!(keys(&prints, 7, &data), some(&["a", "c"]));
        assert_eq!(keys(&prints, 9, &data), some(&["b"]));
        assert!(keys(&prints, 8, &data).is_empty());
        let (run, places) = run_of(false, &["bb"]);
        let more = prints.show().with(data.len() as u64, &run, [9].into_iter().zip(places)).expect("small");
        data.extend(run);
        assert!(!more.show().is_ordered());
        assert_eq!(keys(&more, 9, &data), some(&["bb", "b"]));
        assert_eq!(keys(&more.clone(), 7, &data), some(&["a", "c"]));
        assert!(more.show().with(MOST - 10, &[0; 10], [].into_iter()).is_none());
        assert!(Prints::of(&[0; 1 << 16], [].into_iter()).is_none());
        // What is damaged is not believed.
        let at = data.len() - 1;
        data[at] ^= 1;
        assert_eq!(keys(&more, 9, &data), [None, Some("b".to_owned())]);
    }
}
