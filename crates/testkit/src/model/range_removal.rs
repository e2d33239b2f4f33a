//! # Steps of range removal

use sheaf::Error;

use super::execute::{ModelRunner, StepResult, expect_ok, pairs_in_range, same};
use super::steps::{RangeCommit, RangeSpec, ValueSpec, key_of};

impl ModelRunner<'_> {
    pub(super) fn remove_range(&mut self, space: u8, ends: RangeSpec) -> StepResult {
        let answer = self.space(space).remove_range(ends.bounds());
        if !self.is_ordered(space) && !Self::is_all(ends) {
            return match answer {
                Err(Error::Unsupported { .. }) => Ok(()),
                other => Err(format!("remove_range of an unordered engine answers {other:?}")),
            };
        }
        let gone = pairs_in_range(self.map(space), ends);
        for (key, _) in &gone {
            self.map(space).remove(key);
        }
        expect_ok("remove_range", answer)
    }

    /// Commits a batch or a transaction that removes a range between other changes.
    pub(super) fn range_commit(&mut self, commit: &RangeCommit) -> StepResult {
        let RangeCommit { space, ends, before, after, is_transaction } = commit;
        if !self.is_ordered(*space) && !Self::is_all(*ends) {
            return Ok(());
        }
        let ks = self.space(*space).clone();
        if *is_transaction {
            let tx = expect_ok("transaction", self.db().transaction())?;
            let change = |(key, value): &(u16, Option<ValueSpec>)| match value {
                Some(value) => tx.insert(&ks, key_of(*key), value.bytes()),
                None => tx.remove(&ks, key_of(*key)),
            };
            expect_ok("a change", before.iter().try_for_each(change))?;
            expect_ok("remove_range of a transaction", tx.remove_range(&ks, ends.bounds()))?;
            let left = expect_ok("range of a transaction", tx.range(&ks, ends.bounds()))?.count();
            same("pairs in a removed range", &left, &0)?;
            expect_ok("a change", after.iter().try_for_each(change))?;
            expect_ok("a commit", tx.commit())?;
        } else {
            let mut batch = self.db().batch();
            for (key, value) in before {
                match value {
                    Some(value) => batch.insert(&ks, key_of(*key), value.bytes()),
                    None => batch.remove(&ks, key_of(*key)),
                };
            }
            batch.remove_range(&ks, ends.bounds());
            for (key, value) in after {
                match value {
                    Some(value) => batch.insert(&ks, key_of(*key), value.bytes()),
                    None => batch.remove(&ks, key_of(*key)),
                };
            }
            expect_ok("a batch that removes a range", batch.commit())?;
        }
        before.iter().for_each(|(key, value)| self.set(*space, *key, *value));
        for (key, _) in pairs_in_range(self.map(*space), *ends) {
            self.map(*space).remove(&key);
        }
        after.iter().for_each(|(key, value)| self.set(*space, *key, *value));
        let keys: Vec<u16> = before.iter().chain(after).map(|(key, _)| *key).collect();
        keys.into_iter().try_for_each(|key| self.check_get(*space, key))
    }
}
