//! # The image of a hash index
//!
//! ```text
//!  buckets a table 4 | table ... | end: 255 1
//!  table:  depth 1 | more in its chain 1 | bucket ...
//!  bucket: occupied slots 1 (a bit each) | overflow 1 | word 8 for each occupied slot
//! ```
//!
//! Words are those of memory, their addresses by slots of the time. The image is fuzzy: a key may be in it twice
//! or not at all if it changed meanwhile, and then its record is replayed, which settles it. A small table is written as the one that
//! would take its place.

use sheaf_base::engine::ImageSink;
use sheaf_base::error::Result;
use sheaf_base::segment::Address;

use super::{Hash, KEPT, LARGE_DEPTH, SLOTS, Table, Tables, Word};
use crate::index::Image;

const END: u8 = 255;

/// Writes the image.
pub(super) fn save(index: &Hash, out: &mut dyn ImageSink) -> Result<()> {
    out.put(&u32::try_from(index.buckets).unwrap_or(0).to_le_bytes())?;
    index.each_table(|table, guard| {
        let grown = table.grown();
        let mut here = Some(grown.as_deref().unwrap_or(table));
        while let Some(table) = here {
            here = table.next(guard);
            save_table(table, here.is_some(), out)?;
        }
        Ok(())
    })?;
    out.put(&[END])
}

fn save_table(table: &Table, more: bool, out: &mut dyn ImageSink) -> Result<()> {
    let mut bytes = vec![u8::try_from(table.depth()).unwrap_or(END), u8::from(more)];
    table.each_bucket(|words, overflowed| {
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
pub(super) fn load(index: &Hash, image: &mut Image<'_>) -> Result<()> {
    let buckets = image.u32()?;
    if buckets as usize != index.buckets {
        return Err(image.nonsense("buckets", u64::from(buckets)));
    }
    let tables = load_tables(index, image)?;
    index.install(tables);
    Ok(())
}

/// All tables; they must tile the hashes.
fn load_tables(index: &Hash, image: &mut Image<'_>) -> Result<Tables> {
    let mut tables = Vec::new();
    let mut covered = 0u64; // in units of the smallest possible table
    loop {
        let depth = image.u8()?;
        if depth == END {
            break;
        }
        if u32::from(depth) > KEPT {
            return Err(image.nonsense("depth", u64::from(depth)));
        }
        covered += 1 << (KEPT - u32::from(depth));
        tables.push(load_table(index, image, u32::from(depth))?);
        if covered > 1 << KEPT {
            break;
        }
    }
    if covered != 1 << KEPT {
        return Err(image.nonsense("tables", covered));
    }
    Ok(tables)
}

/// A table and its chain.
fn load_table(index: &Hash, image: &mut Image<'_>, depth: u32) -> Result<Box<Table>> {
    let mut chain = Vec::new();
    loop {
        let more = image.u8()? != 0;
        let table = Table::new(depth, index.buckets, depth >= LARGE_DEPTH);
        for number in 0..index.buckets {
            load_bucket(image, &table, number)?;
        }
        chain.push(table);
        if !more {
            break;
        }
        let again = image.u8()?;
        if u32::from(again) != depth {
            return Err(image.nonsense("depth", u64::from(again)));
        }
    }
    let mut last = None;
    while let Some(table) = chain.pop() {
        if let Some(next) = last.take() {
            table.chain(next);
        }
        last = Some(table);
    }
    last.ok_or_else(|| image.nonsense("chain", 0))
}

fn load_bucket(image: &mut Image<'_>, table: &Table, number: usize) -> Result<()> {
    let occupied = image.u8()?;
    let overflowed = image.u8()? != 0;
    let mut words = [Word(0); SLOTS];
    let mut stored = [[0; size_of::<u64>()]; SLOTS];
    let stored = &mut stored[..occupied.count_ones() as usize];
    image.fill(stored.as_flattened_mut())?;
    for (slot, stored) in (0..SLOTS).filter(|slot| occupied & 1 << slot != 0).zip(&*stored) {
        let word = Word(u64::from_le_bytes(*stored));
        if let Some(now) = image.entry(word.address())? {
            words[slot] = word.at(now);
        }
    }
    table.fill(number, words, overflowed);
    Ok(())
}
