//! # Steps of range removal

use sheaf::Error;

use super::execute::{ModelRunner, StepResult, expect_ok, pairs_in_range, same};
use super::steps::{RangeCommit, RangeSpec};

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
        let mut draft = self.draft();
        if *is_transaction {
            let tx = expect_ok("transaction", self.db().transaction())?;
            for (key, edit) in before {
                self.edit_in_transaction(&tx, &mut draft, *space, *key, *edit)?;
            }
            expect_ok("remove_range of a transaction", tx.remove_range(&ks, ends.bounds()))?;
            draft.remove_range(*space, *ends);
            let left = expect_ok("range of a transaction", tx.range(&ks, ends.bounds()))?.count();
            same("pairs in a removed range", &left, &0)?;
            for (key, edit) in after {
                self.edit_in_transaction(&tx, &mut draft, *space, *key, *edit)?;
            }
            expect_ok("a commit", tx.commit())?;
            self.adopt(draft);
        } else {
            let mut batch = self.db().batch();
            for (key, edit) in before {
                self.edit_in_batch(&mut batch, &mut draft, *space, *key, *edit);
            }
            batch.remove_range(&ks, ends.bounds());
            draft.remove_range(*space, *ends);
            for (key, edit) in after {
                self.edit_in_batch(&mut batch, &mut draft, *space, *key, *edit);
            }
            self.finish_batch(batch, draft)?;
        }
        before.iter().chain(after).try_for_each(|(key, _)| self.check_get(*space, *key))
    }
}
