//! # Resolved batch: the operations that count
//!
//! The last operation of each key counts (docs/commit.md R2), unless a later one removes a range
//! with the key. Takes O((keys + ranges) × log(ranges)) time.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::mem;
use std::sync::Arc;

use sheaf_log::types::KeyspaceId;
use sheaf_store::KeyspaceState;

use super::last_removals::LastRemovals;
use super::{Batch, BatchChange};
use crate::{Keyspace, Result};

/// Hash table of keys that are stored elsewhere: eight bytes for each slot.
struct SeenKeys {
    /// Upper half of the hash, and the number of the key plus one; 0 if the slot is free. Less than
    /// half of the slots are in use.
    slots: Vec<u64>,
    hasher: RandomState,
}

impl SeenKeys {
    /// Returns a table with room for `keys` keys.
    fn new(keys: usize) -> SeenKeys {
        SeenKeys { slots: vec![0; (2 * keys + 1).next_power_of_two()], hasher: RandomState::new() }
    }

    /// Returns the number of `key`. If it is not present, adds it with the number `new` and returns
    /// `None`. `key_of` returns the key of a number.
    fn find_or_add<K: Hash + Eq>(
        &mut self,
        key: &K,
        new: usize,
        key_of: impl Fn(usize) -> K,
    ) -> Option<usize> {
        const NUMBER: u64 = u32::MAX as u64;
        let hash = self.hasher.hash_one(key);
        let mask = self.slots.len() - 1;
        let mut slot = usize::try_from(hash & NUMBER).unwrap_or(0) & mask;
        loop {
            let seen = self.slots[slot];
            let Some(number) = usize::try_from(seen & NUMBER).unwrap_or(0).checked_sub(1) else {
                self.slots[slot] = hash & !NUMBER | (new as u64 + 1);
                return None;
            };
            if (seen ^ hash) & !NUMBER == 0 && key_of(number) == *key {
                return Some(number);
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// Operations of a batch that count, and the keyspaces that they change.
pub(super) struct ResolvedBatch<'b> {
    pub(super) states: Vec<Arc<KeyspaceState>>,
    /// Last entry of each key, with the number of its keyspace.
    pub(super) order: Vec<(usize, usize)>,
    /// Entries of ranges, with the number of their keyspace.
    pub(super) ranges: Vec<(usize, usize)>,
    /// For each last entry of a key that is a merge: the entries of the key since the last one that
    /// sets or removes it, which comes first.
    pub(super) merges: HashMap<usize, Vec<usize>>,
    /// Ranges of each keyspace. Empty if there are none.
    removals: Vec<LastRemovals<&'b [u8]>>,
}

impl ResolvedBatch<'_> {
    /// Returns the last entry that removes a range with `key` from keyspace number `state`.
    pub(super) fn last_removal(&self, state: usize, key: &[u8]) -> Option<usize> {
        self.removals.get(state)?.of(&key)
    }
}

impl Batch {
    /// Returns the operations that count.
    pub(super) fn last_operations(&self) -> Result<ResolvedBatch<'_>> {
        let mut resolved = ResolvedBatch {
            states: Vec::new(),
            order: Vec::with_capacity(self.entries.len()),
            ranges: Vec::new(),
            merges: HashMap::new(),
            removals: Vec::new(),
        };
        let positions = self.positions(&mut resolved.states)?;
        let ids: Vec<KeyspaceId> = resolved.states.iter().map(|state| state.id()).collect();
        let mut seen = SeenKeys::new(self.entries.len());
        for (index, entry) in self.entries.iter().enumerate() {
            let position = positions[entry.keyspace];
            if let BatchChange::RemoveRange(_) = &entry.change {
                resolved.ranges.push((index, position));
                continue;
            }
            let key_of = |entry: usize, state: usize| (ids[state], self.key(&self.entries[entry]));
            let known = |at: usize| key_of(resolved.order[at].0, resolved.order[at].1);
            let before = match seen.find_or_add(&key_of(index, position), resolved.order.len(), known) {
                Some(at) => Some(mem::replace(&mut resolved.order[at].0, index)),
                None => {
                    resolved.order.push((index, position));
                    None
                }
            };
            let earlier = before.and_then(|before| resolved.merges.remove(&before));
            if let BatchChange::Merge(_) = &entry.change {
                let mut chain = earlier.unwrap_or_else(|| before.into_iter().collect());
                chain.push(index);
                resolved.merges.insert(index, chain);
            }
        }
        self.apply_ranges(&mut resolved);
        Ok(resolved)
    }

    /// Adds the state of each keyspace to `states`, once. Returns the position of each there.
    fn positions(&self, states: &mut Vec<Arc<KeyspaceState>>) -> Result<Vec<usize>> {
        let position = |keyspace: &Keyspace| {
            let state = keyspace.state()?;
            Ok(states.iter().position(|known| Arc::ptr_eq(known, &state)).unwrap_or_else(|| {
                states.push(Arc::clone(&state));
                states.len() - 1
            }))
        };
        self.keyspaces.iter().map(position).collect()
    }

    /// Drops the operations of keys that a later operation removes with a range.
    fn apply_ranges<'b>(&'b self, resolved: &mut ResolvedBatch<'b>) {
        if resolved.ranges.is_empty() {
            return;
        }
        let mut of_state = vec![Vec::new(); resolved.states.len()];
        for &(entry, state) in &resolved.ranges {
            if let BatchChange::RemoveRange(range) = &self.entries[entry].change {
                of_state[state].push((&*range.first, range.end.as_deref(), entry));
            }
        }
        resolved.removals = of_state.into_iter().map(LastRemovals::new).collect();
        let mut order = mem::take(&mut resolved.order);
        order.retain(|&(entry, state)| {
            let removal = resolved.last_removal(state, self.key(&self.entries[entry]));
            removal.is_none_or(|removal| removal < entry)
        });
        resolved.order = order;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_added_is_found_with_its_number() {
        let keys: Vec<(u32, String)> = (0..5000).map(|i| (i % 3, format!("{}", i % 1700))).collect();
        let mut seen = SeenKeys::new(keys.len());
        let (mut numbers, mut added) = (HashMap::new(), Vec::new());
        for key in &keys {
            let found = seen.find_or_add(&key, added.len(), |number: usize| added[number]);
            assert_eq!(found, numbers.get(key).copied());
            if found.is_none() {
                numbers.insert(key.clone(), added.len());
                added.push(key);
            }
        }
        assert_eq!(added.len(), numbers.len());
    }
}
