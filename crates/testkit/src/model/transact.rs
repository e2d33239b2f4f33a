//! # Steps of transactions
//!
//! A transaction reads keys and a whole keyspace, changes keys, and commits, while at most one
//! other write happens. Whether it conflicts follows from its reads and from that write.

use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf::{Error, Transaction};

use super::execute::{ModelRunner, StepResult, expect_ok, same, to_owned_value};
use super::steps::{KeyChange, key_of};

/// A transaction, and a write of another thread.
#[derive(Clone, Debug)]
pub struct TransactionStep {
    /// Keys that are read first, each with its keyspace.
    pub reads: Vec<(u8, u16)>,
    /// Changes of the transaction.
    pub changes: Vec<KeyChange>,
    /// Keyspace that is read whole after the changes.
    pub scan: Option<u8>,
    /// Write of another thread, and whether it comes before the scan.
    pub outside: Option<(KeyChange, bool)>,
}

type Bytes = Arc<[u8]>;
/// Changes of a transaction by keyspace and key.
type Changes = BTreeMap<(u8, Vec<u8>), Option<Bytes>>;

impl ModelRunner<'_> {
    pub(super) fn transact(&mut self, step: &TransactionStep) -> StepResult {
        self.remove_expired()?; // a pair that is still stored makes a removal a change
        let tx = expect_ok("transaction", self.db().transaction())?;
        for (space, key) in &step.reads {
            let got = to_owned_value(expect_ok("get", tx.get(self.space(*space), key_of(*key)))?);
            same("a read of a transaction", &got, &self.map(*space).get(&key_of(*key)).cloned())?;
        }
        let mut changes = Changes::new();
        for (space, key, value) in &step.changes {
            let done = match value {
                Some(value) => tx.insert(self.space(*space), key_of(*key), value.bytes()),
                None => tx.remove(self.space(*space), key_of(*key)),
            };
            expect_ok("a change of a transaction", done)?;
            changes.insert((*space, key_of(*key)), value.map(|value| value.bytes().into()));
        }
        let early = step.outside.filter(|(_, is_early)| *is_early).map(|(change, _)| change);
        let late = step.outside.filter(|(_, is_early)| !is_early).map(|(change, _)| change);
        let has_read = |change: KeyChange| step.reads.contains(&(change.0, change.1));
        // The scan moves the snapshot, unless a key that was read has another value there.
        let (is_version, is_value) = early.map_or(Ok((false, false)), |change| self.write_outside(change))?;
        let early_conflict = match step.scan {
            Some(_) => is_value && early.is_some_and(has_read),
            None => is_version && early.is_some_and(has_read),
        };
        if let Some(space) = step.scan {
            match self.scan_in_transaction(&tx, space, &changes)? {
                true if early_conflict => return Err("a scan missed a conflict".to_owned()),
                false if !early_conflict => return Err("a scan reports a conflict".to_owned()),
                _ => {}
            }
        }
        let (is_version, _) = late.map_or(Ok((false, false)), |change| self.write_outside(change))?;
        let is_late_read = late.is_some_and(|change| has_read(change) || step.scan == Some(change.0));
        let conflicts = early_conflict || (is_version && is_late_read);
        // Without changes only a conflict that a call has reported makes the commit fail.
        let fails = match changes.is_empty() {
            true => early_conflict && step.scan.is_some(),
            false => conflicts,
        };
        match tx.commit() {
            Ok(()) if !fails => {
                for ((space, key), value) in changes {
                    match value {
                        Some(value) => drop(self.map(space).insert(key, value)),
                        None => drop(self.map(space).remove(&key)),
                    }
                }
            }
            Err(Error::Conflict { .. }) if fails => {}
            other => return Err(format!("the commit of a transaction answers {other:?}, not {fails}")),
        }
        let changed = step.changes.iter().chain(step.outside.iter().map(|(change, _)| change));
        changed.map(|(space, key, _)| (*space, *key)).try_for_each(|(space, key)| self.check_get(space, key))
    }

    /// Makes a write outside of the transaction. Returns whether it made a new version, and whether
    /// the key has another value.
    fn write_outside(&mut self, (space, key, value): KeyChange) -> std::result::Result<(bool, bool), String> {
        let before = self.map(space).get(&key_of(key)).cloned();
        let written = match value {
            Some(value) => self.space(space).insert(key_of(key), value.bytes()),
            None => self.space(space).remove(key_of(key)),
        };
        expect_ok("a write next to a transaction", written)?;
        self.set(space, key, value);
        let after = self.map(space).get(&key_of(key)).cloned();
        Ok((value.is_some() || before.is_some(), before != after))
    }

    /// Reads a keyspace in the transaction. Returns false if a key that was read before has
    /// changed.
    fn scan_in_transaction(
        &mut self,
        tx: &Transaction,
        space: u8,
        changes: &Changes,
    ) -> std::result::Result<bool, String> {
        let pairs = match tx.iter(self.space(space)) {
            Err(Error::Conflict { .. }) => return Ok(false),
            other => expect_ok("iter of a transaction", other)?,
        };
        let pairs = pairs.map(|pair| pair.map(|(key, value)| (key.to_vec(), Bytes::from(&*value))));
        let mut pairs = expect_ok("a pair of a transaction", pairs.collect::<sheaf::Result<Vec<_>>>())?;
        if !self.is_ordered(space) {
            pairs.sort();
        }
        let mut expected = self.map(space).clone();
        for ((_, key), value) in changes.iter().filter(|((changed, _), _)| *changed == space) {
            match value {
                Some(value) => drop(expected.insert(key.clone(), Arc::clone(value))),
                None => drop(expected.remove(key)),
            }
        }
        same("the pairs of a transaction", &pairs, &expected.into_iter().collect())?;
        Ok(true)
    }
}
