//! # Image: the checkpoint of a keyspace
//!
//! ```text
//!  layout 1 | bytes of a page 4 | pages 4
//!  levels 1               | exists 1, height 1, page 4, crc32c 4, pages 2, fill 2, entries 4 ...
//!  words 4                | bits of 64 pages: those that the levels use 8 ...
//!  slots with entries 4   | slot 4, bytes of records for which the levels' entries account 8 ...
//!  blobs 8                | id 8 ...
//!  incarnation 8 | reused slots 4 | slot 4, incarnation 8 ...
//!  image keys 4           | word 8, seq 8, bytes of the key 4, key ...
//! ```
//!
//! Each field is given with its length in bytes; all numbers are little-endian. `image_keys.rs`
//! describes the image keys. The levels may be newer than the position of the checkpoint: replay
//! then finds records that the levels already contain.

pub(crate) mod image_keys;
mod levels;

use sheaf_engine::contract::{ImageSink, ImageSource};
use sheaf_log::segment::{Address, SLOT_COUNT};
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch;

use crate::engine::KreonEngine;
use crate::tree::node::NodeRef;
use crate::tree::{Level, MAX_HEIGHT, SlotIncarnations};

const LAYOUT: u8 = 3;
const MAX_LEVELS: u8 = 16;
/// Limit of the incarnations in a stamp.
const MAX_INCARNATIONS: u64 = 1 << 24;

pub(crate) fn encode_count<T>(items: &[T]) -> [u8; 4] {
    u32::try_from(items.len()).unwrap_or(u32::MAX).to_le_bytes()
}

pub(crate) fn save(engine: &KreonEngine, out: &mut dyn ImageSink) -> Result<()> {
    engine.write_image(out, |out, levels, end, used, counts| {
        out.put(&[LAYOUT])?;
        out.put(&u32::try_from(engine.level_store.space.page_file.page).unwrap_or(0).to_le_bytes())?;
        out.put(&end.to_le_bytes())?;
        out.put(&[u8::try_from(levels.len()).unwrap_or(u8::MAX)])?;
        for level in levels {
            let (root, height) =
                level.root.unwrap_or((NodeRef { page: 0, crc: 0, pages: 0, fill: 0, count: 0 }, 0));
            out.put(&[u8::from(level.root.is_some()), height])?;
            out.put(&root.to_bytes())?;
        }
        out.put(&encode_count(used))?;
        used.iter().try_for_each(|word| out.put(&word.to_le_bytes()))?;
        out.put(&encode_count(counts))?;
        for (slot, bytes) in counts {
            out.put(&slot.to_le_bytes())?;
            out.put(&bytes.to_le_bytes())?;
        }
        let pinned = engine.versions.blobs();
        let frozen = engine.accounts.image_blobs().into_iter().map(|(blob, _)| blob);
        let blobs: Vec<u64> = frozen.filter(|blob| !pinned.contains(blob)).collect();
        out.put(&(blobs.len() as u64).to_le_bytes())?;
        blobs.iter().try_for_each(|id| out.put(&id.to_le_bytes()))?;
        let incarnations = engine.level_store.incarnations();
        out.put(&incarnations.current.to_le_bytes())?;
        out.put(&u32::try_from(incarnations.reused_slots.len()).unwrap_or(u32::MAX).to_le_bytes())?;
        incarnations.reused_slots.iter().try_for_each(|(slot, incarnation)| {
            out.put(&slot.to_le_bytes())?;
            out.put(&incarnation.to_le_bytes())
        })?;
        image_keys::save(&engine.image_keys.lock(), levels, out)
    })
}

pub(crate) fn read_array<const N: usize>(image: &mut dyn ImageSource) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    image.fill(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn read_u32(image: &mut dyn ImageSource) -> Result<u32> {
    Ok(u32::from_le_bytes(read_array(image)?))
}

pub(crate) fn read_u64(image: &mut dyn ImageSource) -> Result<u64> {
    Ok(u64::from_le_bytes(read_array(image)?))
}

/// Restores an image without reading pages; these are read when they are needed.
pub(crate) fn restore(engine: &KreonEngine, image: &mut dyn ImageSource) -> Result<()> {
    let [layout] = read_array(image)?;
    if layout != LAYOUT {
        return Err(image.invalid_field("layout", u64::from(LAYOUT).into(), u64::from(layout)));
    }
    let page = read_u32(image)?;
    let page_bytes = engine.level_store.space.page_file.page;
    if page as usize != page_bytes {
        let expected = page_bytes as u64;
        return Err(image.invalid_field("bytes of a page", expected.into(), u64::from(page)));
    }
    let end = read_u32(image)?;
    let [levels] = read_array(image)?;
    if levels > MAX_LEVELS {
        return Err(image.invalid_field("levels", (..=u64::from(MAX_LEVELS)).into(), u64::from(levels)));
    }
    if end == 0 {
        return Err(image.invalid_field("end of the pages", (1..).into(), 0));
    }
    let levels = (0..levels).map(|_| read_level(image, end)).collect::<Result<Vec<Level>>>()?;
    let words = read_u32(image)?;
    let max_words = u64::from(end).div_ceil(64);
    if u64::from(words) > max_words {
        return Err(image.invalid_field("words", (..=max_words).into(), u64::from(words)));
    }
    let mut used = Vec::new();
    for _ in 0..words {
        used.push(read_u64(image)?);
    }
    let mut counts: Vec<(u32, u64)> = Vec::new();
    for _ in 0..read_u32(image)? {
        let (slot, bytes) = (read_u32(image)?, read_u64(image)?);
        let least = counts.last().map_or(0, |(last, _)| u64::from(*last) + 1);
        if slot as usize >= SLOT_COUNT || u64::from(slot) < least {
            let expected = least..SLOT_COUNT as u64;
            return Err(image.invalid_field("slot", expected.into(), u64::from(slot)));
        }
        let Some(now) = image.slot_of(slot) else {
            counts.push((slot, 0)); // the segment is deleted, and replay restores its records
            continue;
        };
        if now != slot {
            return Err(image.invalid_field("segment slot", u64::from(now).into(), u64::from(slot)));
        }
        counts.push((slot, bytes));
    }
    for _ in 0..read_u64(image)? {
        let id = read_u64(image)?;
        engine.accounts.add_blob(id, Address::NONE); // the leaf contains the address
    }
    let incarnations = read_incarnations(engine, image)?;
    let _ = engine.level_store.incarnations.set(incarnations); // an engine is restored only once
    engine.level_store.space.restore(end, used)?;
    engine.restore_levels(levels, &counts);
    image_keys::restore(engine, image)
}

/// Returns the incarnation that begins, and the slots for which the leaves of earlier incarnations
/// are invalid.
fn read_incarnations(engine: &KreonEngine, image: &mut dyn ImageSource) -> Result<SlotIncarnations> {
    let before = read_u64(image)?;
    if before == 0 || before >= MAX_INCARNATIONS {
        return Err(image.invalid_field("incarnation", (1..MAX_INCARNATIONS).into(), before));
    }
    let mut incarnations = SlotIncarnations { current: before + 1, ..SlotIncarnations::default() };
    for _ in 0..read_u32(image)? {
        let (slot, incarnation) = (read_u32(image)?, read_u64(image)?);
        if slot as usize >= SLOT_COUNT {
            let expected = 0..SLOT_COUNT as u64;
            return Err(image.invalid_field("reused slot", expected.into(), u64::from(slot)));
        }
        if incarnation > before {
            return Err(image.invalid_field("incarnation of a slot", (..=before).into(), incarnation));
        }
        if image.slot_of(slot) == Some(slot) {
            incarnations.reused_slots.insert(slot, incarnation);
        }
    }
    let (segments, guard) = (&engine.context.segments, &epoch::pin());
    for slot in 0..segments.used_slots() {
        if segments.at(slot, guard).is_some() && image.slot_of(slot) != Some(slot) {
            incarnations.reused_slots.insert(slot, incarnations.current);
        }
    }
    Ok(incarnations)
}

fn read_level(image: &mut dyn ImageSource, end: u32) -> Result<Level> {
    let [is_there, height] = read_array(image)?;
    let root = NodeRef::from_bytes(&read_array::<16>(image)?);
    if is_there == 0 {
        return Ok(Level::default());
    }
    let is_within = root.page > 0 && root.page.checked_add(u32::from(root.pages)).is_some_and(|to| to <= end);
    if height > MAX_HEIGHT {
        return Err(image.invalid_field("height", (..=u64::from(MAX_HEIGHT)).into(), u64::from(height)));
    }
    if root.pages == 0 {
        return Err(image.invalid_field("pages of the root", (1..).into(), 0));
    }
    if !is_within {
        let expected = 1..=u64::from(end).saturating_sub(u64::from(root.pages));
        return Err(image.invalid_field("page of the root", expected.into(), u64::from(root.page)));
    }
    Ok(Level { root: Some((root, height)) })
}
