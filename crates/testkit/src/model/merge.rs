//! # Steps of merges, and of commits with several kinds of changes
//!
//! Every keyspace has an operator; that of keyspace 1 refuses operands and values that are no
//! numbers. The functions here compute the results a second time, without those of the library.

use std::collections::BTreeSet;
use std::ops::RangeBounds;
use std::sync::Arc;

use sheaf::{Batch, Durability, Error, Transaction};

use super::execute::{ModelMap, ModelRunner, StepResult, expect_ok};
use super::steps::{EXPIRING, RangeSpec, SPACES, ValueSpec, key_of};

/// Merge operators of the keyspaces.
pub(super) const OPERATORS: [&str; SPACES as usize] = ["append", "add", "max"];

/// Change of a key in a commit.
#[derive(Clone, Copy, Debug)]
pub enum KeyEdit {
    /// Sets the value.
    Put(ValueSpec),
    /// Removes the key.
    Remove,
    /// Merges an operand.
    Merge(ValueSpec),
}

/// Commit of several changes, each with its keyspace and key.
#[derive(Clone, Debug)]
pub struct EditCommit {
    /// The changes, in order.
    pub edits: Vec<(u8, u16, KeyEdit)>,
    /// Whether it is a transaction.
    pub is_transaction: bool,
}

/// Returns the bytes of an operand: mostly a number for `add`.
fn operand_bytes(space: u8, operand: ValueSpec) -> Vec<u8> {
    match OPERATORS[usize::from(space)] {
        "add" if operand.1.is_multiple_of(8) => vec![0; 7],
        "add" => u64::from(operand.1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().to_vec(),
        _ => operand.bytes(),
    }
}

/// Returns the merged value, or `None` if the operator refuses the operand.
fn merged(space: u8, present: Option<&[u8]>, operand: &[u8]) -> Option<Vec<u8>> {
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
    let present_or_operand = present.unwrap_or(operand);
    Some(match OPERATORS[usize::from(space)] {
        "append" => present.into_iter().flatten().chain(operand).copied().collect(),
        "add" => {
            let present = present.map_or(Some(0), number)?;
            present.wrapping_add(number(operand)?).to_le_bytes().to_vec()
        }
        _ if present_or_operand < operand => operand.to_vec(),
        _ => present_or_operand.to_vec(),
    })
}

/// Content of all keyspaces while the changes of a commit are applied to it.
pub(super) struct CommitDraft {
    maps: [ModelMap; SPACES as usize],
    expiring: Vec<(u64, Vec<u8>, Arc<[u8]>)>,
    /// Keys of which the last change in a batch is a merge that is refused.
    refused: BTreeSet<(u8, Vec<u8>)>,
}

impl CommitDraft {
    /// Applies a change. Returns false if its operand is refused.
    pub(super) fn apply(&mut self, space: u8, key: u16, edit: KeyEdit) -> bool {
        let (name, map) = (key_of(key), &mut self.maps[usize::from(space)]);
        let place = (space, name.clone());
        let operand = match edit {
            KeyEdit::Put(value) => {
                map.insert(name, value.bytes().into());
                self.refused.remove(&place);
                return true;
            }
            KeyEdit::Remove => {
                map.remove(&name);
                self.refused.remove(&place);
                return true;
            }
            KeyEdit::Merge(operand) => operand,
        };
        let present = map.get(&name).cloned();
        let Some(value) = merged(space, present.as_deref(), &operand_bytes(space, operand)) else {
            self.refused.insert(place);
            return false;
        };
        let value: Arc<[u8]> = value.into();
        if space == EXPIRING
            && let Some(present) = present
        {
            let time = self.expiring.iter().find(|(_, _, put)| Arc::ptr_eq(put, &present)).map(|put| put.0);
            self.expiring.extend(time.map(|time| (time, name.clone(), Arc::clone(&value))));
        }
        map.insert(name, value);
        true
    }

    /// Removes the keys of a range.
    pub(super) fn remove_range(&mut self, space: u8, ends: RangeSpec) {
        let bounds = ends.bounds();
        self.maps[usize::from(space)].retain(|key, _| !bounds.contains(key));
        self.refused.retain(|(of, key)| *of != space || !bounds.contains(key));
    }

    /// Whether a batch of the changes is refused.
    pub(super) fn is_refused(&self) -> bool {
        !self.refused.is_empty()
    }
}

fn is_refusal(answer: &sheaf::Result<()>) -> bool {
    matches!(answer, Err(Error::InvalidArgument { argument: "operand", .. }))
}

impl ModelRunner<'_> {
    pub(super) fn draft(&self) -> CommitDraft {
        CommitDraft { maps: self.maps.clone(), expiring: self.expiring.clone(), refused: BTreeSet::new() }
    }

    /// Makes the draft the content of the model.
    pub(super) fn adopt(&mut self, draft: CommitDraft) {
        (self.maps, self.expiring) = (draft.maps, draft.expiring);
    }

    pub(super) fn merge(&mut self, space: u8, key: u16, operand: ValueSpec, is_sync: bool) -> StepResult {
        let (name, bytes) = (key_of(key), operand_bytes(space, operand));
        let mut draft = self.draft();
        let is_accepted = draft.apply(space, key, KeyEdit::Merge(operand));
        let answer = match is_sync {
            true => {
                let ticket = self.space(space).submit_merge(name, bytes, Durability::Sync);
                ticket.and_then(|ticket| ticket.wait())
            }
            false => self.space(space).merge(name, bytes),
        };
        match (is_accepted, answer) {
            (true, answer) => {
                expect_ok("merge", answer)?;
                self.adopt(draft);
            }
            (false, refused) if is_refusal(&refused) => {}
            (false, other) => return Err(format!("a merge of a bad operand answers {other:?}")),
        }
        self.check_get(space, key)
    }

    pub(super) fn edit_commit(&mut self, commit: &EditCommit) -> StepResult {
        let mut draft = self.draft();
        if commit.is_transaction {
            let tx = expect_ok("transaction", self.db().transaction())?;
            for (space, key, edit) in &commit.edits {
                self.edit_in_transaction(&tx, &mut draft, *space, *key, *edit)?;
            }
            expect_ok("a commit", tx.commit())?;
            self.adopt(draft);
        } else {
            let mut batch = self.db().batch();
            for (space, key, edit) in &commit.edits {
                self.edit_in_batch(&mut batch, &mut draft, *space, *key, *edit);
            }
            self.finish_batch(batch, draft)?;
        }
        let keys = commit.edits.iter().map(|(space, key, _)| (*space, *key));
        keys.into_iter().try_for_each(|(space, key)| self.check_get(space, key))
    }

    pub(super) fn edit_in_transaction(
        &self,
        tx: &Transaction,
        draft: &mut CommitDraft,
        space: u8,
        key: u16,
        edit: KeyEdit,
    ) -> StepResult {
        let (keyspace, name) = (self.space(space), key_of(key));
        let answer = match edit {
            KeyEdit::Put(value) => tx.insert(keyspace, name, value.bytes()),
            KeyEdit::Remove => tx.remove(keyspace, name),
            KeyEdit::Merge(operand) => tx.merge(keyspace, name, operand_bytes(space, operand)),
        };
        match draft.apply(space, key, edit) {
            true => expect_ok("a change of a transaction", answer),
            false if is_refusal(&answer) => Ok(()),
            false => Err(format!("a merge of a bad operand answers {answer:?}")),
        }
    }

    pub(super) fn edit_in_batch(
        &self,
        batch: &mut Batch,
        draft: &mut CommitDraft,
        space: u8,
        key: u16,
        edit: KeyEdit,
    ) {
        let (keyspace, name) = (self.space(space), key_of(key));
        match edit {
            KeyEdit::Put(value) => batch.insert(keyspace, name, value.bytes()),
            KeyEdit::Remove => batch.remove(keyspace, name),
            KeyEdit::Merge(operand) => batch.merge(keyspace, name, operand_bytes(space, operand)),
        };
        draft.apply(space, key, edit);
    }

    /// Commits a batch, which must fail if the operand of a merge that counts is refused.
    pub(super) fn finish_batch(&mut self, batch: Batch, draft: CommitDraft) -> StepResult {
        match (draft.is_refused(), batch.commit()) {
            (false, answer) => {
                expect_ok("a batch", answer)?;
                self.adopt(draft);
                Ok(())
            }
            (true, refused) if is_refusal(&refused) => Ok(()),
            (true, other) => Err(format!("a batch with a bad operand answers {other:?}")),
        }
    }
}
