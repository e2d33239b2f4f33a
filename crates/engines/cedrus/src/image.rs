//! # Image: the checkpoint of a keyspace
//!
//! ```text
//!  layout 1 | root_bits 1 | node_bits 1 | max_list_entries 1 | page_lines 1 | hash_bits 1 | keys 8
//!  runs of the root 4      | reference 4, times 4 ...
//!  pages 4                 | place 4, crc32c 4 ...
//!  slots with entries 4    | slot 4, entries 8 ...
//!  blobs 8                 | number 8, address of the record 5 ...
//! ```
//!
//! Little-endian. All fields have the state of the freeze, except for the blobs, which replay
//! corrects. Addresses in pages refer to segments by their slots: the store gives segments the same
//! slots again (`ImageSource::slot_of`).

use sheaf_engine::contract::{ImageSink, ImageSource};
use sheaf_log::segment::SLOT_COUNT;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch;

use crate::engine::CedrusEngine;
use crate::heap::FrozenTrie;
use crate::resident_pages::MAX_PAGES;
use crate::shape::TrieShape;
use crate::trie::EMPTY_REF;
use crate::trie_file::{FrozenTable, PageLocation};

const LAYOUT_VERSION: u8 = 2;

fn shape_bytes(shape: &TrieShape) -> [u8; 6] {
    let small = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    [
        LAYOUT_VERSION,
        small(shape.root_bits as usize),
        small(shape.node_bits as usize),
        small(shape.max_list_entries),
        small(shape.page_lines),
        small(shape.hash_bits as usize),
    ]
}

fn encode_count<T>(items: &[T]) -> [u8; 4] {
    u32::try_from(items.len()).unwrap_or(u32::MAX).to_le_bytes()
}

/// Writes the image of the frozen state. All of its pages must be written.
///
/// # Errors
///
/// Returns [`Error::Io`](sheaf_platform::error::Error::Io) if the pages cannot be synced or the
/// image cannot be written.
pub(crate) fn save(engine: &CedrusEngine, out: &mut dyn ImageSink) -> Result<()> {
    let (table, root, entries, counts) = {
        let heap = engine.trie.heap();
        let none = FrozenTrie::empty(vec![(EMPTY_REF, 1 << engine.trie.shape().root_bits)]);
        let frozen = heap.frozen.as_ref().unwrap_or(&none);
        debug_assert!(frozen.pages.is_empty(), "the store saves only after all frozen pages are written");
        (FrozenTable::of(frozen), frozen.root.clone(), frozen.entries, frozen.counts.clone())
    };
    let table = engine.trie_file.finish_checkpoint(&table)?;
    out.put(&shape_bytes(engine.trie.shape()))?;
    out.put(&entries.to_le_bytes())?;
    out.put(&encode_count(&root))?;
    for (reference, times) in root {
        out.put(&reference.to_le_bytes())?;
        out.put(&times.to_le_bytes())?;
    }
    out.put(&encode_count(&table))?;
    for place in table {
        out.put(&place.at.to_le_bytes())?;
        out.put(&place.crc.to_le_bytes())?;
    }
    let held: Vec<(u32, u64)> = (0..).zip(counts).filter(|(_, count)| *count > 0).collect();
    out.put(&encode_count(&held))?;
    for (slot, count) in held {
        out.put(&slot.to_le_bytes())?;
        out.put(&count.to_le_bytes())?;
    }
    engine.accounting.save(out)
}

fn read_u32(image: &mut dyn ImageSource) -> Result<u32> {
    let mut bytes = [0; 4];
    image.fill(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_u64(image: &mut dyn ImageSource) -> Result<u64> {
    let mut bytes = [0; 8];
    image.fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Fields of an image up to the blobs.
struct ImageFields {
    entries: u64,
    root: Vec<(u32, u32)>,
    table: Vec<PageLocation>,
    /// Slots in ascending order, and the entries with records in their segments.
    counts: Vec<(u32, u64)>,
}

/// Restores an image. Its pages are loaded on demand.
///
/// # Errors
///
/// Returns [`Error::Corrupt`](sheaf_platform::error::Error::Corrupt) if a field is invalid, and an
/// error if the image or the file of pages cannot be read.
pub(crate) fn restore(engine: &CedrusEngine, image: &mut dyn ImageSource) -> Result<()> {
    let ImageFields { entries, root, table, counts } = read_fields(engine.trie.shape(), image)?;
    let counts = adopt_counts(engine, image, &counts)?;
    engine.accounting.restore(image)?;
    let is_used = table.iter().map(|place| place.at > 0);
    engine.trie.restore(is_used, &root, entries, &counts);
    engine.trie_file.restore(table)
}

/// Returns the entries of the image by the slot of their segments, without freed segments.
///
/// # Errors
///
/// Returns [`Error::Corrupt`](sheaf_platform::error::Error::Corrupt) if a field is invalid, and an
/// error if the image cannot be read.
pub(crate) fn read_entry_counts(shape: &TrieShape, image: &mut dyn ImageSource) -> Result<Vec<(u32, u64)>> {
    let fields = read_fields(shape, image)?;
    let now = |(slot, count): (u32, u64)| Some((image.slot_of(slot)?, count));
    Ok(fields.counts.into_iter().filter_map(now).collect())
}

fn read_fields(shape: &TrieShape, image: &mut dyn ImageSource) -> Result<ImageFields> {
    let mut head = [0; 6];
    image.fill(&mut head)?;
    let mut bytes = head.iter().zip(shape_bytes(shape));
    if let Some((got, expected)) = bytes.find(|(got, expected)| *got != expected) {
        return Err(image.invalid_field("layout", u64::from(expected).into(), u64::from(*got)));
    }
    let entries = read_u64(image)?;
    let root = read_root(image, 1u32 << shape.root_bits)?;
    let pages = read_u32(image)?;
    if pages > MAX_PAGES {
        return Err(image.invalid_field("pages", (..=u64::from(MAX_PAGES)).into(), u64::from(pages)));
    }
    let mut table = Vec::new();
    for _ in 0..pages {
        table.push(PageLocation { at: read_u32(image)?, crc: read_u32(image)? });
    }
    let mut places: Vec<u32> = table.iter().map(|place| place.at).filter(|at| *at > 0).collect();
    places.sort_unstable();
    if let Some(twice) = places.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(image.invalid_field("place", "a place of one page only".into(), u64::from(twice[0])));
    }
    let counts = read_counts(image, entries)?;
    Ok(ImageFields { entries, root, table, counts })
}

fn read_root(image: &mut dyn ImageSource, len: u32) -> Result<Vec<(u32, u32)>> {
    let (mut root, mut digits) = (Vec::new(), 0);
    for _ in 0..read_u32(image)? {
        let (reference, times) = (read_u32(image)?, read_u32(image)?);
        if times == 0 || times > len - digits {
            let expected = 1..=u64::from(len - digits);
            return Err(image.invalid_field("root run length", expected.into(), u64::from(times)));
        }
        digits += times;
        root.push((reference, times));
    }
    if digits < len {
        return Err(image.invalid_field("root", u64::from(len).into(), u64::from(digits)));
    }
    Ok(root)
}

/// Reads the entries of the segment of each slot.
fn read_counts(image: &mut dyn ImageSource, entries: u64) -> Result<Vec<(u32, u64)>> {
    let mut counts: Vec<(u32, u64)> = Vec::new();
    let mut all = 0u64;
    for _ in 0..read_u32(image)? {
        let (slot, count) = (read_u32(image)?, read_u64(image)?);
        let least = counts.last().map_or(0, |(last, _)| u64::from(*last) + 1);
        all = all.saturating_add(count);
        if slot as usize >= SLOT_COUNT || u64::from(slot) < least {
            return Err(image.invalid_field("slot", (least..SLOT_COUNT as u64).into(), u64::from(slot)));
        }
        if all > entries {
            return Err(image.invalid_field("entries", entries.into(), all));
        }
        counts.push((slot, count));
    }
    if all != entries {
        return Err(image.invalid_field("entries", entries.into(), all));
    }
    Ok(counts)
}

/// Returns the entries by slot. Counts their live bytes with the mean frame size of the segment.
fn adopt_counts(engine: &CedrusEngine, image: &dyn ImageSource, counts: &[(u32, u64)]) -> Result<Vec<u64>> {
    let guard = &epoch::pin();
    let mut by_slot = vec![0; counts.last().map_or(0, |(last, _)| *last as usize + 1)];
    for (slot, count) in counts.iter().copied() {
        by_slot[slot as usize] = count;
        let Some(now) = image.slot_of(slot) else {
            engine.deferred_replay.mark_slot_gone(slot); // its entries are replayed
            continue;
        };
        if now != slot {
            return Err(image.invalid_field("segment slot", u64::from(now).into(), u64::from(slot)));
        }
        if let Some(segment) = engine.context.segments.at(slot, guard) {
            let bytes = count.saturating_mul(segment.mean_frame());
            segment.add_live(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }
    Ok(by_slot)
}
