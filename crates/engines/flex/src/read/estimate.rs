//! # Estimates of ranges
//!
//! The tree of intervals has the place of each interval in the space. The bytes between the places
//! of both ends are exact. Intervals at places that are spread over these bytes give the pairs per
//! byte: each is read if it is not in memory, and one of its pairs is sampled.

use sheaf_engine::range_estimate::{KeySample, RangeSum, content_bytes, item_at, to_f64};
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::FlexEngine;
use crate::index::EngineState;
use crate::interval::block::Block;

/// Places in the space at which an interval is read.
const SAMPLES: u64 = 32;

impl FlexEngine {
    /// Estimates number and size of the pairs in a range. Reads at most 34 intervals.
    pub(crate) fn estimate(&self, first: &[u8], end: Option<&[u8]>) -> Result<RangeSum> {
        let guard = &epoch::pin();
        let state = self.state(guard);
        let context = &self.interval_cache.context;
        let mut sum = state.memtables.estimate((first, end), context, guard)?;
        let low = self.place_of(state, first, guard)?;
        let high = match end {
            Some(end) => self.place_of(state, end, guard)?,
            None => state.index.tree.len(),
        };
        sum += self.estimate_space(state, (low, high), guard)?;
        Ok(sum)
    }

    /// Returns the place in the space where the pairs from `key` on begin. Within an interval all
    /// versions count as equally long.
    fn place_of(&self, state: &EngineState, key: &[u8], guard: &Guard) -> Result<u64> {
        let Some(entry) = state.index.find(key) else { return Ok(0) };
        let block = state.index.block(&entry, &self.interval_cache, guard)?;
        let before = u128::from(entry.len) * block.seek(key, false) as u128;
        let within = before / (block.len() as u128).max(1);
        Ok(entry.start + u64::try_from(within).unwrap_or(entry.len))
    }

    /// Estimates the pairs in these bytes of the space.
    fn estimate_space(
        &self,
        state: &EngineState,
        (low, high): (u64, u64),
        guard: &Guard,
    ) -> Result<RangeSum> {
        let mut sum = RangeSum::default();
        let Some(bytes) = high.checked_sub(low).filter(|bytes| *bytes > 0) else { return Ok(sum) };
        let samples = SAMPLES.min(bytes);
        let mut last = None;
        for index in 0..samples {
            let within = u128::from(bytes) * u128::from(2 * index + 1) / u128::from(2 * samples);
            let at = low + u64::try_from(within).unwrap_or(0);
            let Some(entry) = state.index.tree.get(at) else { break };
            let (start, block) = match last.take() {
                Some((start, block)) if start == entry.start => (start, block),
                _ => (entry.start, state.index.block(&entry, &self.interval_cache, guard)?),
            };
            if block.len() > 0 {
                let slot = item_at(to_f64(at - start) / to_f64(entry.len), block.len());
                let versions_per_byte = to_f64(block.len() as u64) / to_f64(entry.len);
                let weight = to_f64(bytes) / to_f64(samples) * versions_per_byte;
                sum.add_sample(self.sample(state, &block, slot, guard), weight);
            }
            last = Some((start, block));
        }
        Ok(sum)
    }

    fn sample(&self, state: &EngineState, block: &Block, slot: usize, guard: &Guard) -> KeySample {
        let pair = block.pair(slot);
        let is_stored = !block.is_hidden(slot) && !pair.is_tombstone();
        if !is_stored || state.memtables.supersede(pair.key, &self.interval_cache.context, guard) {
            return KeySample::dead();
        }
        KeySample::live(pair.key.len() as u64 + content_bytes(&pair.content))
    }
}
