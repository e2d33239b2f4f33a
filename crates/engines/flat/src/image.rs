//! # The image of an index at a checkpoint
//!
//! ```text
//!  buckets a table 4 | table ... | end: 255 1 | blobs: count 8, number 8 ...
//!  table:  depth 1 | more in its chain 1 | bucket ...
//!  bucket: occupied slots 1 (a bit each) | overflow 1 | word 8 for each occupied slot
//! ```
//!
//! Words are those of memory, their addresses by slots of the time; the store's slot table translates.
//! The image is fuzzy: a key may be in it twice or not at all if it changed meanwhile, and then its record
//! is replayed, which settles it.

use sheaf_base::engine::{ImageSink, ImageSource};
use sheaf_base::error::Result;
use sheaf_base::segment::{Address, DATA_START};
use sheaf_base::sync::epoch;

use crate::engine::FlatEngine;
use crate::index::{KEPT, SLOTS, Table, Tables, Word};

const END: u8 = 255;
/// Tables of an index that has at least two to this power of them stand on huge pages.
const LARGE_DEPTH: u32 = 8;

/// Writes the image.
pub(crate) fn save(engine: &FlatEngine, out: &mut dyn ImageSink) -> Result<()> {
    out.put(&u32::try_from(engine.index.buckets()).unwrap_or(0).to_le_bytes())?;
    engine.index.each_table(|table, guard| {
        let mut here = Some(table);
        while let Some(table) = here {
            here = table.next(guard);
            save_table(table, here.is_some(), out)?;
        }
        Ok(())
    })?;
    out.put(&[END])?;
    let mut blobs: Vec<u64> = engine.blob_set().lock().iter().copied().collect();
    blobs.sort_unstable();
    out.put(&(blobs.len() as u64).to_le_bytes())?;
    blobs.iter().try_for_each(|id| out.put(&id.to_le_bytes()))
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

/// Live entries are estimated by the mean frame of their segment until they are superseded.
struct Loader<'a> {
    engine: &'a FlatEngine,
    image: &'a mut dyn ImageSource,
    keys: u64,
    /// Entries in each slot's segment.
    live: Vec<u64>,
}

/// Reads the image back.
pub(crate) fn restore(engine: &FlatEngine, image: &mut dyn ImageSource) -> Result<()> {
    let mut loader = Loader { engine, image, keys: 0, live: Vec::new() };
    let buckets = loader.u32()?;
    if buckets as usize != engine.index.buckets() {
        return Err(loader.image.nonsense("buckets", u64::from(buckets)));
    }
    let tables = loader.tables()?;
    engine.index.install(tables);
    engine.set_keys(loader.keys);
    loader.account();
    let count = loader.u64()?;
    for _ in 0..count {
        let id = loader.u64()?;
        engine.blob_set().lock().insert(id);
    }
    Ok(())
}

impl Loader<'_> {
    fn u8(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.image.fill(&mut byte)?;
        Ok(byte[0])
    }

    fn u32(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        self.image.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.image.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// All tables; they must tile the hashes.
    fn tables(&mut self) -> Result<Tables> {
        let mut tables = Vec::new();
        let mut covered = 0u64; // in units of the smallest possible table
        loop {
            let depth = self.u8()?;
            if depth == END {
                break;
            }
            if u32::from(depth) > KEPT {
                return Err(self.image.nonsense("depth", u64::from(depth)));
            }
            covered += 1 << (KEPT - u32::from(depth));
            tables.push(self.table(u32::from(depth))?);
            if covered > 1 << KEPT {
                break;
            }
        }
        if covered != 1 << KEPT {
            return Err(self.image.nonsense("tables", covered));
        }
        Ok(tables)
    }

    /// A table and its chain.
    fn table(&mut self, depth: u32) -> Result<Box<Table>> {
        let mut chain = Vec::new();
        loop {
            let more = self.u8()? != 0;
            let table = Table::new(depth, self.engine.index.buckets(), depth >= LARGE_DEPTH);
            for number in 0..self.engine.index.buckets() {
                self.bucket(&table, number)?;
            }
            chain.push(table);
            if !more {
                break;
            }
            let again = self.u8()?;
            if u32::from(again) != depth {
                return Err(self.image.nonsense("depth", u64::from(again)));
            }
        }
        let mut last = None;
        while let Some(table) = chain.pop() {
            if let Some(next) = last.take() {
                table.chain(next);
            }
            last = Some(table);
        }
        last.ok_or_else(|| self.image.nonsense("chain", 0))
    }

    fn bucket(&mut self, table: &Table, number: usize) -> Result<()> {
        let occupied = self.u8()?;
        let overflowed = self.u8()? != 0;
        let mut words = [Word(0); SLOTS];
        let mut stored = [[0; size_of::<u64>()]; SLOTS];
        let stored = &mut stored[..occupied.count_ones() as usize];
        self.image.fill(stored.as_flattened_mut())?;
        for (slot, stored) in (0..SLOTS).filter(|slot| occupied & 1 << slot != 0).zip(&*stored) {
            let word = Word(u64::from_le_bytes(*stored));
            let address = word.address();
            if address.offset() < DATA_START {
                return Err(self.image.nonsense("address", address.bits()));
            }
            // Entries of segments that are gone were superseded or moved since: replay brings them.
            let Some(now) = self.image.slot_of(address.slot()) else { continue };
            words[slot] = word.at(Address::new(now, address.offset()));
            self.keys += 1;
            self.count(now);
        }
        table.fill(number, words, overflowed);
        Ok(())
    }

    fn count(&mut self, slot: u32) {
        let slot = slot as usize; // of 16 bits
        if slot >= self.live.len() {
            self.live.resize(slot + 1, 0);
        }
        self.live[slot] += 1;
    }

    fn account(&self) {
        let guard = &epoch::pin();
        for (slot, count) in (0..).zip(&self.live).filter(|(_, count)| **count > 0) {
            if let Some(segment) = self.engine.ground.segments.at(slot, guard) {
                let mean = (segment.end() - DATA_START) / u64::from(segment.frames().max(1));
                let bytes = i64::try_from(count * mean).unwrap_or(0);
                segment.account(bytes);
            }
        }
    }
}
