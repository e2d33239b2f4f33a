//! # Image keys: a keyspace of a few keys needs no file
//!
//! Moving a memtable into the levels costs a file, its disk blocks and two syncs. So a keyspace
//! with a few keys and empty levels leaves them in its memtable at a checkpoint, and its image
//! contains their addresses.
//!
//! ## Invariants
//!
//! 1. The image keys are everything that the keyspace has at the freeze: all levels and the frozen
//!    memtable are empty. So tombstones need not be stored. A memtable with range tombstones is
//!    spilled, which drops them.
//! 2. No value is a blob, because an image lists blobs only by their ids.
//!
//! ## Crash
//!
//! As for entries of levels: if the segment of a record was deleted after the image, the record was
//! moved, superseded or removed. Replay restores that change.

use std::ops::Bound;

use sheaf_engine::contract::{ImageSink, ImageSource};
use sheaf_log::segment::Address;
use sheaf_log::types::{MAX_KEY, Seq};
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::KreonEngine;
use crate::image::{encode_count, read_u32, read_u64};
use crate::memtable::{KreonVersion, RecordWord};
use crate::tree::{KreonState, Level, last_nonempty_level};

/// Maximum number of image keys, removed ones included.
const MAX_IMAGE_KEYS: u64 = 64;
/// Like [`MAX_IMAGE_KEYS`], in tiny geometry.
const TINY_MAX_IMAGE_KEYS: u64 = 3;
/// Maximum number of bytes of the keys.
const MAX_IMAGE_KEY_BYTES: usize = 8 << 10;

/// A key with its version that stays in the memtable.
#[derive(Clone, Debug)]
pub(crate) struct ImageKey {
    key: Vec<u8>,
    version: KreonVersion,
}

/// Returns the maximum number of image keys in this geometry.
pub(crate) fn max_keys(is_tiny: bool) -> u64 {
    if is_tiny { TINY_MAX_IMAGE_KEYS } else { MAX_IMAGE_KEYS }
}

impl KreonEngine {
    /// Returns the image keys if the keyspace is small enough. No commit may be in progress.
    pub(crate) fn image_keys_of(&self, state: &KreonState, guard: &Guard) -> Option<Vec<ImageKey>> {
        let active = &state.memtables.active;
        // (I1)
        let is_all = state.memtables.frozen().is_none() && state.last_nonempty_level().is_none();
        if !is_all || !active.ranges().is_empty() || active.count() > self.max_image_keys {
            return None;
        }
        let mut places = Vec::new();
        active.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
        let all = places.iter().map(|place| (active.key(*place), active.version(*place)));
        let values = all.filter(|(_, version)| !version.word.is_tombstone());
        let image_keys: Vec<ImageKey> =
            values.map(|(key, version)| ImageKey { key: key.to_vec(), version }).collect();
        let bytes: usize = image_keys.iter().map(|image_key| image_key.key.len()).sum();
        let is_plain = |image_key: &ImageKey| {
            !image_key.version.word.is_blob() && !image_key.version.word.is_lower_unaccounted()
        };
        // (I2)
        (bytes <= MAX_IMAGE_KEY_BYTES && image_keys.iter().all(is_plain)).then_some(image_keys)
    }
}

pub(crate) fn save(image_keys: &[ImageKey], levels: &[Level], out: &mut dyn ImageSink) -> Result<()> {
    assert!(
        image_keys.is_empty() || last_nonempty_level(levels).is_none(),
        "image_keys (I1): an image with keys has no entry in a level"
    );
    out.put(&encode_count(image_keys))?;
    image_keys.iter().try_for_each(|ImageKey { key, version }| {
        assert!(!version.word.is_blob(), "image_keys (I2): no value is a blob");
        out.put(&version.word.bits().to_le_bytes())?;
        out.put(&version.seq.0.to_le_bytes())?;
        out.put(&u32::try_from(key.len()).unwrap_or(u32::MAX).to_le_bytes())?;
        out.put(key)
    })
}

/// Restores the image keys. Replay follows, and its records are newer.
pub(crate) fn restore(engine: &KreonEngine, image: &mut dyn ImageSource) -> Result<()> {
    let count = read_u32(image)?;
    if u64::from(count) > MAX_IMAGE_KEYS {
        return Err(image.invalid_field("image keys", (..=MAX_IMAGE_KEYS).into(), u64::from(count)));
    }
    let mut before: Option<Vec<u8>> = None;
    for index in 0..count {
        let (bits, seq, len) = (read_u64(image)?, read_u64(image)?, read_u32(image)?);
        let Some(word) = RecordWord::from_image(bits) else {
            return Err(image.invalid_field(
                "word",
                "the address and span of a value in the log".into(),
                bits,
            ));
        };
        let seq = image.seq(seq)?;
        if len as usize > MAX_KEY {
            return Err(image.invalid_field("bytes of a key", (..=MAX_KEY as u64).into(), u64::from(len)));
        }
        let mut key = vec![0; len as usize];
        image.fill(&mut key)?;
        if before.as_ref().is_some_and(|before| *before >= key) {
            let expected = "keys in ascending order".into();
            return Err(image.invalid_field("index of a key", expected, u64::from(index)));
        }
        restore_key(engine, image, (word, seq), &key);
        before = Some(key);
    }
    Ok(())
}

fn restore_key(
    engine: &KreonEngine,
    image: &mut dyn ImageSource,
    (word, seq): (RecordWord, Seq),
    key: &[u8],
) {
    let Some(slot) = image.slot_of(word.address().slot()) else { return }; // replay restores it
    let address = Address::new(slot, word.address().offset());
    let guard = &epoch::pin();
    let span = i64::try_from(word.span()).unwrap_or(0);
    engine.accounts.count_live(address, span, guard);
    let active = &engine.state(guard).memtables.active;
    let version = KreonVersion { word: word.with_address(address), seq };
    active.put_unsorted(0, engine.hash(key), key, version, &engine.context.memory, guard);
}
