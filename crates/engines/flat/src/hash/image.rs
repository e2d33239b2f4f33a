//! # Image of a hash index
//!
//! ```text
//!  buckets a table 4 | table ... | end: 255 1
//!  table:  depth 1 | more in its chain 1 | bucket ...
//!  bucket: occupied slots 1 (a bit each) | overflow 1 | word 8 for each occupied slot
//! ```
//!
//! The words are those of the memory; their addresses contain the slots of the time of the
//! checkpoint. The image is fuzzy: a key that changed during the save may be missing or present
//! twice. Replay of its record corrects that. An index that still has its small first table is
//! written with a table of the usual size.

use sheaf_engine::contract::ImageSink;
use sheaf_log::segment::Address;
use sheaf_platform::error::Result;

use super::{BucketWord, HUGE_PAGE_DEPTH, HashIndex, HashTable, HashTables, SLOTS, TAG_BITS};
use crate::index::IndexImage;

const END: u8 = 255;

/// Writes the image.
pub(super) fn save(index: &HashIndex, out: &mut dyn ImageSink) -> Result<()> {
    out.put(&u32::try_from(index.buckets).unwrap_or(0).to_le_bytes())?;
    index.for_each_table(|table, guard| {
        let grown = table.grown_copy();
        let mut here = Some(grown.as_deref().unwrap_or(table));
        while let Some(table) = here {
            here = table.next(guard);
            save_table(table, here.is_some(), out)?;
        }
        Ok(())
    })?;
    out.put(&[END])
}

fn save_table(table: &HashTable, more: bool, out: &mut dyn ImageSink) -> Result<()> {
    let mut bytes = vec![u8::try_from(table.depth()).unwrap_or(END), u8::from(more)];
    table.for_each_bucket(|words, overflowed| {
        let occupied = |slot: usize| words[slot].address() != Address::NONE;
        bytes.push((0..SLOTS).filter(|slot| occupied(*slot)).map(|slot| 1 << slot).sum());
        bytes.push(u8::from(overflowed));
        for slot in (0..SLOTS).filter(|slot| occupied(*slot)) {
            bytes.extend_from_slice(&words[slot].0.to_le_bytes());
        }
        Ok(())
    })?;
    out.put(&bytes)
}

/// Reads the image back.
pub(super) fn load(index: &HashIndex, image: &mut IndexImage<'_>) -> Result<()> {
    let buckets = image.u32()?;
    if buckets as usize != index.buckets {
        return Err(image.invalid_field("buckets", (index.buckets as u64).into(), u64::from(buckets)));
    }
    let tables = load_tables(index, image)?;
    index.install(tables);
    Ok(())
}

/// Reads all tables, which must cover all hashes.
fn load_tables(index: &HashIndex, image: &mut IndexImage<'_>) -> Result<HashTables> {
    let mut tables = Vec::new();
    let mut covered = 0u64; // in units of the smallest possible table
    loop {
        let depth = image.u8()?;
        if depth == END {
            break;
        }
        if u32::from(depth) > TAG_BITS {
            return Err(image.invalid_field("depth", (..=u64::from(TAG_BITS)).into(), u64::from(depth)));
        }
        let width = 1 << (TAG_BITS - u32::from(depth));
        if !covered.is_multiple_of(width) {
            // A table begins at a multiple of its width: the split of another one would lose it.
            let expected = "a multiple of the table's width".into();
            return Err(image.invalid_field("begin of a table", expected, covered));
        }
        covered += width;
        tables.push(load_table(index, image, u32::from(depth))?);
        if covered > 1 << TAG_BITS {
            break;
        }
    }
    if covered != 1 << TAG_BITS {
        return Err(image.invalid_field("tables", (1_u64 << TAG_BITS).into(), covered));
    }
    Ok(tables)
}

/// Reads a table and its chain.
fn load_table(index: &HashIndex, image: &mut IndexImage<'_>, depth: u32) -> Result<Box<HashTable>> {
    let mut chain = Vec::new();
    loop {
        let more = image.u8()? != 0;
        let table = HashTable::new(depth, index.buckets, depth >= HUGE_PAGE_DEPTH);
        for number in 0..index.buckets {
            load_bucket(image, &table, number)?;
        }
        chain.push(table);
        if !more {
            break;
        }
        let again = image.u8()?;
        if u32::from(again) != depth {
            return Err(image.invalid_field("depth", u64::from(depth).into(), u64::from(again)));
        }
    }
    let mut last = None;
    while let Some(table) = chain.pop() {
        if let Some(next) = last.take() {
            table.append_to_chain(next);
        }
        last = Some(table);
    }
    last.ok_or_else(|| image.invalid_field("chain", (1..).into(), 0))
}

fn load_bucket(image: &mut IndexImage<'_>, table: &HashTable, number: usize) -> Result<()> {
    let occupied = image.u8()?;
    let overflowed = image.u8()? != 0;
    let mut words = [BucketWord(0); SLOTS];
    let mut stored = [[0; size_of::<u64>()]; SLOTS];
    let stored = &mut stored[..occupied.count_ones() as usize];
    image.fill(stored.as_flattened_mut())?;
    for (slot, stored) in (0..SLOTS).filter(|slot| occupied & 1 << slot != 0).zip(&*stored) {
        let word = BucketWord(u64::from_le_bytes(*stored));
        if let Some(now) = image.translate_address(word.address())? {
            words[slot] = word.with_address(now);
        }
    }
    table.set_bucket(number, words, overflowed);
    Ok(())
}
