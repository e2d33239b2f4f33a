//! # Estimates over the memtables of a keyspace

use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::Guard;

use super::arena::ArenaOffset;
use super::{Memtable, Memtables};
use crate::context::EngineContext;
use crate::range_estimate::{KeySample, RangeSum, content_bytes};

impl Memtables {
    /// Returns true if a memtable has a version of `key`, or a range tombstone that covers it.
    #[must_use]
    pub fn supersede(&self, key: &[u8], context: &EngineContext, guard: &Guard) -> bool {
        self.find(context.hash(key), key, Seq::LATEST, guard).is_some()
    }

    /// Estimates the pairs from `first` on and below `end` that are in memtables.
    ///
    /// # Errors
    ///
    /// Returns the error of reading a sampled record.
    pub fn estimate(
        &self,
        (first, end): (&[u8], Option<&[u8]>),
        context: &EngineContext,
        guard: &Guard,
    ) -> Result<RangeSum> {
        let mut sum = RangeSum::default();
        for memtable in self.filled() {
            let sample = |place| self.sample(memtable, place, context, guard);
            sum += memtable.table.estimate((first, end), guard, &sample)?;
        }
        Ok(sum)
    }

    fn sample(
        &self,
        memtable: &Memtable,
        place: ArenaOffset,
        context: &EngineContext,
        guard: &Guard,
    ) -> Result<KeySample> {
        let entry = memtable.entry(place);
        let (key, version) = (entry.key(), entry.newest());
        let newest = self.find(context.hash(key), key, Seq::LATEST, guard);
        let is_newest = newest.is_some_and(|(other, found)| {
            other.number == memtable.number && found.seq == version.seq && !found.word.is_tombstone()
        });
        if !is_newest {
            return Ok(KeySample::dead());
        }
        memtable.content(version.word, context, guard, |content| {
            Ok(KeySample::live(key.len() as u64 + content_bytes(&content)))
        })
    }
}
