//! # Merges in a batch: their values are computed for each attempt of the commit

use std::collections::HashMap;

use sheaf_engine::contract::EngineOp;
use sheaf_store::{Expires, KeyspaceState};

use super::resolve::ResolvedBatch;
use super::{Batch, BatchChange};
use crate::Result;
use crate::merge::read_base;

/// Computed value of a key that the batch merges.
pub(super) struct MergedEntry<'b> {
    /// Condition on the present value, if it was read.
    pub(super) expect: Option<EngineOp<'b>>,
    pub(super) value: Vec<u8>,
    pub(super) expires: Expires,
}

impl Batch {
    /// Computes the value of each key that a merge changes last, by its entry.
    pub(super) fn merge_entries(
        &self,
        resolved: &ResolvedBatch<'_>,
    ) -> Result<HashMap<usize, MergedEntry<'_>>> {
        if !resolved.merges.is_empty() {
            self.store.check_writable()?; // before a read that may fail for the same cause
        }
        let mut merged = HashMap::with_capacity(resolved.merges.len());
        for &(last, state) in &resolved.order {
            let Some(chain) = resolved.merges.get(&last) else { continue };
            let key = self.key(&self.entries[last]);
            let removed = resolved.last_removal(state, key);
            let chain =
                &chain[removed.map_or(0, |removed| chain.partition_point(|entry| *entry < removed))..];
            merged.insert(last, self.merge_chain(key, chain, removed.is_some(), &resolved.states[state])?);
        }
        Ok(merged)
    }

    /// Computes the value of `key` after the operations in `chain`. The present value counts only
    /// if the first of them is a merge, and the batch has not removed the key before.
    fn merge_chain<'b>(
        &self,
        key: &'b [u8],
        chain: &[usize],
        is_removed: bool,
        state: &KeyspaceState,
    ) -> Result<MergedEntry<'b>> {
        let operator = self.store.merge_registry().of(state)?;
        let first = chain.first().map(|entry| &self.entries[*entry].change);
        let (expect, mut value, expires) = match first {
            Some(BatchChange::Put(value, expires)) => (None, Some(self.bytes.get(*value).to_vec()), *expires),
            Some(BatchChange::Merge(_)) if !is_removed => {
                self.store.check_open()?;
                let base = read_base(&self.store, state, key)?;
                (Some(base.expect), base.value.map(|value| value.to_vec()), base.expires)
            }
            _ => (None, None, Expires::Default),
        };
        for entry in chain {
            if let BatchChange::Merge(operand) = &self.entries[*entry].change {
                let merged = operator.merge(key, value.as_deref(), self.bytes.get(*operand));
                value = Some(merged.map_err(|refusal| operator.refused(&refusal))?);
            }
        }
        Ok(MergedEntry { expect, value: value.unwrap_or_default(), expires })
    }
}
