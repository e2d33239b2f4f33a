//! # Image: what a checkpoint says of a keyspace
//!
//! ```text
//!  layout 1 | bytes of a page 4 | pages 4
//!  levels 1                | is there 1, height 1, page 4, crc32c 4, pages 2, fill 2, entries 4 ...
//!  words 4                 | bits of 64 pages: those that the levels have 8 ...
//!  slots with entries 4    | slot 4, bytes of records that the levels' entries account for 8 ...
//!  staged values 8         | number 8 ...
//!  life 8 | slots that were renewed 4 | slot 4, life 8 ...
//!  keys that rest 4        | word 8, number 8, bytes of the key 4, key ...
//! ```
//!
//! Little-endian. Of what rests: `resting.rs`. The levels are those of one moment at or after the checkpoint's position.

use sheaf_base::engine::{ImageSink, ImageSource};
use sheaf_base::error::Result;
use sheaf_base::segment::{Address, SLOT_COUNT};
use sheaf_base::sync::epoch;

use crate::engine::KreonEngine;
use crate::node::Ref;
use crate::tree::{Level, Lives, MOST_HEIGHT};

const LAYOUT: u8 = 3;
const MOST_LEVELS: u8 = 16;
/// What fits into a stamp.
const MOST_LIVES: u64 = 1 << 24;

pub(crate) fn count_of<T>(items: &[T]) -> [u8; 4] {
    u32::try_from(items.len()).unwrap_or(u32::MAX).to_le_bytes()
}

pub(crate) fn save(engine: &KreonEngine, out: &mut dyn ImageSink) -> Result<()> {
    engine.seal(out, |out, levels, end, used, counts| {
        out.put(&[LAYOUT])?;
        out.put(&u32::try_from(engine.shelf.space.paged.page).unwrap_or(0).to_le_bytes())?;
        out.put(&end.to_le_bytes())?;
        out.put(&[u8::try_from(levels.len()).unwrap_or(u8::MAX)])?;
        for level in levels {
            let (root, height) =
                level.root.unwrap_or((Ref { page: 0, crc: 0, pages: 0, fill: 0, count: 0 }, 0));
            out.put(&[u8::from(level.root.is_some()), height])?;
            out.put(&root.to_bytes())?;
        }
        out.put(&count_of(used))?;
        used.iter().try_for_each(|word| out.put(&word.to_le_bytes()))?;
        out.put(&count_of(counts))?;
        for (slot, bytes) in counts {
            out.put(&slot.to_le_bytes())?;
            out.put(&bytes.to_le_bytes())?;
        }
        let pinned = engine.versions.blobs();
        let frozen = engine.accounts.frozen().into_iter().map(|(blob, _)| blob);
        let blobs: Vec<u64> = frozen.filter(|blob| !pinned.contains(blob)).collect();
        out.put(&(blobs.len() as u64).to_le_bytes())?;
        blobs.iter().try_for_each(|id| out.put(&id.to_le_bytes()))?;
        let lives = engine.shelf.lives();
        out.put(&lives.now.to_le_bytes())?;
        out.put(&u32::try_from(lives.renewed.len()).unwrap_or(u32::MAX).to_le_bytes())?;
        lives.renewed.iter().try_for_each(|(slot, life)| {
            out.put(&slot.to_le_bytes())?;
            out.put(&life.to_le_bytes())
        })?;
        crate::resting::save(&engine.resting.lock(), out)
    })
}

pub(crate) fn take<const N: usize>(image: &mut dyn ImageSource) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    image.fill(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn u32_of(image: &mut dyn ImageSource) -> Result<u32> {
    Ok(u32::from_le_bytes(take(image)?))
}

pub(crate) fn u64_of(image: &mut dyn ImageSource) -> Result<u64> {
    Ok(u64::from_le_bytes(take(image)?))
}

/// Takes up an image, without its pages: these are read when they are needed.
pub(crate) fn restore(engine: &KreonEngine, image: &mut dyn ImageSource) -> Result<()> {
    let [layout] = take(image)?;
    if layout != LAYOUT {
        return Err(image.nonsense("layout", u64::from(layout)));
    }
    let page = u32_of(image)?;
    if page as usize != engine.shelf.space.paged.page {
        return Err(image.nonsense("bytes of a page", u64::from(page)));
    }
    let end = u32_of(image)?;
    let [levels] = take(image)?;
    if levels > MOST_LEVELS || end == 0 {
        return Err(image.nonsense("levels", u64::from(levels)));
    }
    let levels = (0..levels).map(|_| level_of(image, end)).collect::<Result<Vec<Level>>>()?;
    let words = u32_of(image)?;
    if u64::from(words) > u64::from(end).div_ceil(64) {
        return Err(image.nonsense("words", u64::from(words)));
    }
    let mut used = Vec::new();
    for _ in 0..words {
        used.push(u64_of(image)?);
    }
    let mut counts: Vec<(u32, u64)> = Vec::new();
    for _ in 0..u32_of(image)? {
        let (slot, bytes) = (u32_of(image)?, u64_of(image)?);
        if slot as usize >= SLOT_COUNT || counts.last().is_some_and(|(last, _)| *last >= slot) {
            return Err(image.nonsense("slot", u64::from(slot)));
        }
        let Some(now) = image.slot_of(slot) else {
            counts.push((slot, 0)); // its segment is gone, and replay brings what was there
            continue;
        };
        if now != slot {
            return Err(image.nonsense("segment slot", u64::from(now)));
        }
        counts.push((slot, bytes));
    }
    for _ in 0..u64_of(image)? {
        let id = u64_of(image)?;
        engine.accounts.name(id, Address::NONE); // its leaf says where
    }
    let lives = lives_of(engine, image)?;
    let _ = engine.shelf.lives.set(lives); // an engine is restored once
    engine.shelf.space.restore(end, used)?;
    engine.take_up(levels, &counts);
    crate::resting::restore(engine, image)
}

/// The life that begins, and the slots that leaves of earlier ones are not to be believed about.
fn lives_of(engine: &KreonEngine, image: &mut dyn ImageSource) -> Result<Lives> {
    let before = u64_of(image)?;
    if before == 0 || before >= MOST_LIVES {
        return Err(image.nonsense("life", before));
    }
    let mut lives = Lives { now: before + 1, ..Lives::default() };
    for _ in 0..u32_of(image)? {
        let (slot, life) = (u32_of(image)?, u64_of(image)?);
        if slot as usize >= SLOT_COUNT || life > before {
            return Err(image.nonsense("renewed slot", u64::from(slot)));
        }
        if image.slot_of(slot) == Some(slot) {
            lives.renewed.insert(slot, life);
        }
    }
    let (segments, guard) = (&engine.ground.segments, &epoch::pin());
    for slot in 0..segments.used_slots() {
        if segments.at(slot, guard).is_some() && image.slot_of(slot) != Some(slot) {
            lives.renewed.insert(slot, lives.now);
        }
    }
    Ok(lives)
}

fn level_of(image: &mut dyn ImageSource, end: u32) -> Result<Level> {
    let [is_there, height] = take(image)?;
    let root = Ref::from_bytes(&take::<16>(image)?);
    if is_there == 0 {
        return Ok(Level::default());
    }
    let is_within = root.page > 0 && root.page.checked_add(u32::from(root.pages)).is_some_and(|to| to <= end);
    if height > MOST_HEIGHT || !is_within || root.pages == 0 {
        return Err(image.nonsense("root", u64::from(root.page)));
    }
    Ok(Level { root: Some((root, height)) })
}
