//! # Estimates of ranges
//!
//! The foot of a key list has the number of its entries and the first key of each block, and is in
//! memory. A table that is partly in the range needs one block for each end. Some entries of all
//! tables are sampled.

use std::ops::Range;
use std::sync::Arc;

use sheaf_engine::range_estimate::{KeySample, RangeSum, item_at, to_f64};
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::DelsmEngine;
use crate::files::list::ValueRef;
use crate::tree::{DelsmState, Table};

/// Entries of tables that are sampled.
const SAMPLES: u32 = 32;

/// The part of a table that is in the range.
struct TablePart<'s> {
    table: &'s Arc<Table>,
    /// Blocks in the range; the ends are fractions of blocks.
    blocks: Range<f64>,
    /// Estimated number of entries.
    entries: f64,
}

impl DelsmEngine {
    /// Estimates number and size of the pairs in a range. Reads at most two blocks of each table of
    /// level 0, two of each level below, and one for each sample. Looks at the ends of all tables.
    pub(crate) fn estimate(&self, first: &[u8], end: Option<&[u8]>) -> Result<RangeSum> {
        let guard = &epoch::pin();
        let state = self.state(guard);
        let mut sum = state.memtables.estimate((first, end), &self.keyspace.context, guard)?;
        let mut parts = Vec::new();
        for table in state.version.tables() {
            parts.extend(table_part(table, first, end)?);
        }
        let entries: f64 = parts.iter().map(|part| part.entries).sum();
        let weight = entries / f64::from(SAMPLES);
        let (mut parts, mut before) = (parts.iter().peekable(), 0.0);
        for index in 0..SAMPLES {
            let at = weight * (f64::from(index) + 0.5);
            while let Some(part) = parts.next_if(|part| at >= before + part.entries) {
                before += part.entries;
            }
            let Some(part) = parts.peek() else { break };
            let place = (at - before) / part.entries;
            sum.add_sample(self.sample(state, part, place, guard)?, weight);
        }
        Ok(sum)
    }

    /// Reads the entry at the fraction `place` of a part.
    fn sample(
        &self,
        state: &DelsmState,
        part: &TablePart<'_>,
        place: f64,
        guard: &Guard,
    ) -> Result<KeySample> {
        let at = part.blocks.start + (part.blocks.end - part.blocks.start) * place;
        let list = &part.table.list;
        let block = item_at(at / to_f64(list.block_count() as u64), list.block_count());
        let entries = part.table.entries_to_begin(block)?;
        let index = item_at((at - to_f64(block as u64)).clamp(0.0, 1.0), entries.len());
        let (key, (seq, value)) = (entries.key(index), entries.version(index));
        if value == ValueRef::Removed || state.memtables.supersede(key, &self.keyspace.context, guard) {
            return Ok(KeySample::dead());
        }
        let newest = state.version.find(self.keyspace.hash(key), key, Seq::LATEST)?;
        Ok(match newest {
            Some((_, found, _)) if found == seq => KeySample::live(key.len() as u64 + value.bytes()),
            _ => KeySample::dead(),
        })
    }
}

/// Returns the part of a table from `first` on and below `end`, if there is one.
fn table_part<'s>(table: &'s Arc<Table>, first: &[u8], end: Option<&[u8]>) -> Result<Option<TablePart<'s>>> {
    let list = &table.list;
    if list.last_key() < first || end.is_some_and(|end| end <= list.first_key()) {
        return Ok(None);
    }
    let all = to_f64(list.block_count() as u64);
    let low = block_place(table, first)?;
    let high = match end.filter(|end| *end <= list.last_key()) {
        Some(end) => block_place(table, end)?,
        None => all,
    };
    let entries = to_f64(list.totals().entries) * (high - low) / all;
    Ok((entries > 0.0).then_some(TablePart { table, blocks: low..high, entries }))
}

/// Returns the place of `key` in the blocks of a table.
fn block_place(table: &Table, key: &[u8]) -> Result<f64> {
    let Some(block) = table.list.block_containing(key) else { return Ok(0.0) };
    let entries = table.entries_to_begin(block)?;
    let before = entries.lower_bound(key, false) as u64;
    Ok(to_f64(block as u64) + to_f64(before) / to_f64(entries.len().max(1) as u64))
}
