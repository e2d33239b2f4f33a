//! # State of a transaction: its snapshot, its reads and its changes

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::contract::{Action, Bounds, EngineOp};
use sheaf_engine::keys::borrow_bound;
use sheaf_log::types::Seq;
use sheaf_platform::fork::ForkGuard;
use sheaf_platform::sync::{Mutex, MutexGuard};
use sheaf_store::{
    CommitConflict, CommitOutcome, CommitWrite, Expires, KeyspaceState, RangeRead, RangeReads, RangeView,
    ReadPoint, VersionCheck, View, check_sizes,
};

use crate::keyspace::get_at;
use crate::open_database::OpenDatabase;
use crate::removed_range::RemovedRange;
use crate::{ConflictKeys, Durability, Error, Keyspace, Result, Value};

/// Lock of the state, which a transaction shares with its iterators.
pub(super) struct SharedState {
    state: Mutex<TransactionState>,
    fork: ForkGuard,
}

impl SharedState {
    pub(super) fn new(state: TransactionState) -> Arc<SharedState> {
        Arc::new(SharedState { state: Mutex::new(state), fork: ForkGuard::new() })
    }

    /// Locks the state. Returns [`Error::Closed`] in a forked child: a thread that exists only in
    /// the parent may hold the lock.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, TransactionState>> {
        if self.fork.is_child() { Err(Error::Closed) } else { Ok(self.state.lock()) }
    }
}

/// State of a transaction, under its lock.
pub(super) struct TransactionState {
    handle: Arc<OpenDatabase>,
    /// Snapshot that all reads use.
    view: Arc<View>,
    /// Time of the start, at the snapshot. It stays if the transaction moves to a new snapshot.
    at: ReadPoint,
    /// Registration of the snapshot from the first read of a range on.
    range_view: Option<RangeView>,
    keyspaces: Vec<TouchedKeyspace>,
    /// Changes that were replaced since the first savepoint.
    undo: Vec<UndoEntry>,
    has_savepoints: bool,
    /// Whether the reads are checked although the transaction changes nothing.
    checks_reads: bool,
    /// Conflict that makes the transaction fail.
    conflict: Option<(String, ConflictKeys)>,
    is_ended: bool,
    pub(super) durability: Option<Durability>,
}

/// A keyspace that the transaction uses.
struct TouchedKeyspace {
    keyspace: Keyspace,
    /// State of the keyspace in the snapshot, from the first read on.
    state: Option<Arc<KeyspaceState>>,
    reads: BTreeMap<Box<[u8]>, KeyRead>,
    ranges: Vec<Bounds>,
    /// New value of each changed key; `None` removes it.
    changes: BTreeMap<Box<[u8]>, Option<NewValue>>,
    /// Ranges that the transaction removed, before all changes that are left.
    removed: Vec<RemovedRange>,
}

/// A key that was read.
#[derive(Clone, Copy)]
struct KeyRead {
    existed: bool,
    /// Whether the commit checks the key.
    is_tracked: bool,
}

/// Value that a transaction sets, and its expiry.
#[derive(Clone, Debug)]
pub(super) struct NewValue {
    pub(super) value: Value,
    pub(super) expires: Expires,
}

/// Step that a rollback undoes.
enum UndoEntry {
    /// Change of a key before it was replaced.
    Change { keyspace: usize, key: Box<[u8]>, before: Option<Option<NewValue>> },
    /// The last range of a keyspace was removed.
    Range { keyspace: usize },
}

impl TransactionState {
    pub(super) fn new(handle: &Arc<OpenDatabase>) -> Result<TransactionState> {
        let view = Arc::new(handle.store().view()?);
        Ok(TransactionState {
            at: handle.read_point(view.seq()),
            view,
            handle: Arc::clone(handle),
            range_view: None,
            keyspaces: Vec::new(),
            undo: Vec::new(),
            has_savepoints: false,
            checks_reads: false,
            conflict: None,
            is_ended: false,
            durability: None,
        })
    }

    pub(super) fn handle(&self) -> &Arc<OpenDatabase> {
        &self.handle
    }

    pub(super) fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Returns the point of all reads.
    pub(super) fn read_point(&self) -> ReadPoint {
        self.at
    }

    pub(super) fn has_conflict(&self) -> bool {
        self.conflict.is_some()
    }

    /// Checks that the transaction can be used.
    pub(super) fn check_usable(&self) -> Result<()> {
        if self.is_ended {
            let reason = "it has been committed or rolled back".to_owned();
            return Err(Error::InvalidArgument { argument: "transaction", reason });
        }
        if let Some((keyspace, keys)) = &self.conflict {
            return Err(Error::conflict(keyspace, keys.clone()));
        }
        self.handle.check_open()
    }

    /// Records a conflict, and returns its error.
    fn fail(&mut self, keyspace: usize, keys: ConflictKeys) -> Error {
        let name = self.keyspaces[keyspace].keyspace.name();
        let error = Error::conflict(&name, keys.clone());
        self.conflict = Some((name, keys));
        error
    }

    /// Returns the index of a keyspace, and adds it at its first use.
    pub(super) fn touch(&mut self, keyspace: &Keyspace) -> Result<usize> {
        let is_same = |touched: &TouchedKeyspace| Arc::ptr_eq(&touched.keyspace.inner, &keyspace.inner);
        if let Some(index) = self.keyspaces.iter().position(is_same) {
            return Ok(index);
        }
        if !Arc::ptr_eq(keyspace.handle(), &self.handle) {
            let reason = format!("{:?} belongs to another open database", keyspace.name());
            return Err(Error::InvalidArgument { argument: "keyspace", reason });
        }
        // Another handle of the same keyspace must share the changes.
        let name = keyspace.name();
        if let Some(index) = self.keyspaces.iter().position(|touched| touched.keyspace.name() == name) {
            return Ok(index);
        }
        self.keyspaces.push(TouchedKeyspace {
            keyspace: keyspace.clone(),
            state: None,
            reads: BTreeMap::new(),
            ranges: Vec::new(),
            changes: BTreeMap::new(),
            removed: Vec::new(),
        });
        Ok(self.keyspaces.len() - 1)
    }

    /// Returns the state of a keyspace in the snapshot.
    pub(super) fn state(&mut self, index: usize) -> Result<Arc<KeyspaceState>> {
        if let Some(state) = &self.keyspaces[index].state {
            return Ok(Arc::clone(state));
        }
        let state = Arc::clone(&*self.keyspaces[index].keyspace.state()?);
        if !state.is_visible_at(self.view.seq()) {
            return Err(self.fail(index, ConflictKeys::Keyspace));
        }
        self.keyspaces[index].state = Some(Arc::clone(&state));
        Ok(state)
    }

    /// Returns the value of `key`: the change of this transaction, or what the snapshot shows.
    pub(super) fn get(&mut self, index: usize, key: &[u8], is_tracked: bool) -> Result<Option<Value>> {
        if let Some(change) = self.keyspaces[index].changes.get(key) {
            return Ok(change.as_ref().map(|new| new.value.clone()));
        }
        if self.is_removed(index, key) {
            return Ok(None);
        }
        let state = self.state(index)?;
        let value = get_at(&self.handle, &state, self.at, key, Value::new)?;
        let read = KeyRead { existed: value.is_some(), is_tracked };
        match self.keyspaces[index].reads.get_mut(key) {
            Some(before) => before.is_tracked |= is_tracked,
            None => drop(self.keyspaces[index].reads.insert(key.into(), read)),
        }
        Ok(value)
    }

    /// Sets `key` to the value that the merge operator computes from its value and `operand`.
    pub(super) fn merge(&mut self, index: usize, key: &[u8], operand: &[u8]) -> Result<()> {
        let state = self.state(index)?;
        let handle = Arc::clone(&self.handle);
        let operator = handle.merge_registry().of(&state)?;
        let present = self.get(index, key, true)?;
        let expires = match self.keyspaces[index].changes.get(key) {
            Some(change) => change.as_ref().map_or(Expires::Default, |new| new.expires),
            None if present.is_some() && state.has_expiry() => match state.expires_at(self.at, key)? {
                Some(Some(time)) => Expires::At(time),
                _ => Expires::Never,
            },
            None => Expires::Default,
        };
        let merged = operator.merge(key, present.as_deref(), operand);
        let value = Value::from(merged.map_err(|refusal| operator.refused(&refusal))?);
        self.change(index, key, Some(NewValue { value, expires }))
    }

    /// Makes the commit check the reads even if the transaction changes nothing.
    pub(super) fn check_reads(&mut self) {
        self.checks_reads = true;
    }

    /// Sets or removes `key`.
    pub(super) fn change(&mut self, index: usize, key: &[u8], value: Option<NewValue>) -> Result<()> {
        check_sizes(key, value.as_ref().map_or(0, |new| new.value.len()))?;
        let changes = &mut self.keyspaces[index].changes;
        let before = match changes.get_mut(key) {
            Some(change) => Some(std::mem::replace(change, value)),
            None => {
                changes.insert(key.into(), value);
                None
            }
        };
        if self.has_savepoints {
            self.undo.push(UndoEntry::Change { keyspace: index, key: key.into(), before });
        }
        Ok(())
    }

    /// Returns the position of a new savepoint.
    pub(super) fn savepoint(&mut self) -> usize {
        self.has_savepoints = true;
        self.undo.len()
    }

    /// Undoes all changes after a savepoint.
    pub(super) fn roll_back_to(&mut self, savepoint: usize) -> Result<()> {
        if savepoint > self.undo.len() {
            let reason = "the transaction was rolled back to an earlier one".to_owned();
            return Err(Error::InvalidArgument { argument: "savepoint", reason });
        }
        while self.undo.len() > savepoint {
            match self.undo.pop() {
                Some(UndoEntry::Change { keyspace, key, before: Some(change) }) => {
                    drop(self.keyspaces[keyspace].changes.insert(key, change));
                }
                Some(UndoEntry::Change { keyspace, key, before: None }) => {
                    drop(self.keyspaces[keyspace].changes.remove(&key));
                }
                Some(UndoEntry::Range { keyspace }) => drop(self.keyspaces[keyspace].removed.pop()),
                None => break,
            }
        }
        Ok(())
    }

    /// Returns the first changed key in `bounds`, or the last one, with its new value.
    pub(super) fn first_change(
        &self,
        index: usize,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        forward: bool,
    ) -> Option<(&[u8], Option<&Value>)> {
        let mut changes = self.keyspaces[index].changes.range::<[u8], _>(bounds);
        let (key, value) = if forward { changes.next() } else { changes.next_back() }?;
        Some((key, value.as_ref().map(|new| &new.value)))
    }

    /// Returns whether the transaction has changed `key`.
    pub(super) fn is_changed(&self, index: usize, key: &[u8]) -> bool {
        self.keyspaces[index].changes.contains_key(key) || self.is_removed(index, key)
    }

    /// Returns whether the transaction has removed a range with `key`. It may have set the key
    /// afterwards.
    pub(super) fn is_removed(&self, index: usize, key: &[u8]) -> bool {
        self.keyspaces[index].removed.iter().any(|range| range.contains(key))
    }

    /// Removes a range as a whole, with all changes in it. Returns false if the engine cannot do
    /// that; then nothing has happened.
    pub(super) fn remove_range(&mut self, index: usize, range: &RemovedRange) -> Result<bool> {
        let state = self.state(index)?;
        if !range.is_one_record(&state)? {
            return Ok(false);
        }
        let touched = &mut self.keyspaces[index];
        let bounds = range.bounds();
        let in_range = (borrow_bound(&bounds.low), borrow_bound(&bounds.high));
        let keys: Vec<Box<[u8]>> =
            touched.changes.range::<[u8], _>(in_range).map(|(key, _)| key.clone()).collect();
        for key in keys {
            let before = touched.changes.remove(&key);
            if self.has_savepoints {
                self.undo.push(UndoEntry::Change { keyspace: index, key, before });
            }
        }
        touched.removed.push(range.clone());
        if self.has_savepoints {
            self.undo.push(UndoEntry::Range { keyspace: index });
        }
        Ok(true)
    }

    /// Adds a range of keys that was read. Returns its number.
    pub(super) fn add_range(&mut self, index: usize, bounds: Bounds) -> usize {
        self.keyspaces[index].ranges.push(bounds);
        self.keyspaces[index].ranges.len() - 1
    }

    /// Returns a range that was read, to extend it.
    pub(super) fn range_mut(&mut self, index: usize, range: usize) -> &mut Bounds {
        &mut self.keyspaces[index].ranges[range]
    }

    /// Registers as a reader of ranges, before the first read of a range. Commits record their keys
    /// only from then on, so the transaction moves to a new snapshot. Every key that it has read
    /// must be unchanged there.
    pub(super) fn register_ranges(&mut self) -> Result<()> {
        if self.range_view.is_some() {
            return Ok(());
        }
        let registered = RangeView::new(Arc::clone(self.handle.store()))?;
        let (old, new) = (self.view.seq(), registered.view().seq());
        for index in 0..self.keyspaces.len() {
            let touched = &self.keyspaces[index];
            let Some(state) = &touched.state else { continue };
            if !state.is_visible_at(new) {
                return Err(self.fail(index, ConflictKeys::Keyspace));
            }
            for key in touched.reads.keys() {
                if !self.is_same_at(state, key, old, new)? {
                    let key = key.to_vec();
                    return Err(self.fail(index, ConflictKeys::Key(key)));
                }
            }
        }
        self.view = Arc::clone(registered.view());
        self.at = self.at.at_seq(new);
        self.range_view = Some(registered);
        Ok(())
    }

    /// Returns whether `key` has the same value in two states. No commit between them is running.
    fn is_same_at(&self, state: &KeyspaceState, key: &[u8], old: Seq, new: Seq) -> Result<bool> {
        if !self.handle.may_have_changed(state, key, old) {
            return Ok(true);
        }
        let before = get_at(&self.handle, state, self.at.at_seq(old), key, Value::new)?;
        Ok(get_at(&self.handle, state, self.at.at_seq(new), key, |value| before.as_deref() == Some(value))?
            .unwrap_or(before.is_none()))
    }

    /// Ends the transaction without a commit.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
        self.range_view = None;
        self.keyspaces.clear();
        self.undo.clear();
    }

    /// Commits. Returns the seq of the commit, or of the snapshot if there is nothing to commit.
    pub(super) fn commit(&mut self) -> Result<(Seq, Durability)> {
        self.check_usable()?;
        let durability = self.durability.unwrap_or(self.handle.durability());
        let has_changes =
            self.keyspaces.iter().any(|touched| !touched.changes.is_empty() || !touched.removed.is_empty());
        let committed = match has_changes || self.checks_reads {
            true => self.commit_changes(),
            false => Ok(self.view.seq()),
        };
        self.end();
        Ok((committed?, durability))
    }

    /// Returns the states that the changes go to, each with its index in `keyspaces`. A keyspace
    /// that was read must still have the state of the snapshot.
    fn current_states(&mut self) -> Result<Vec<Arc<KeyspaceState>>> {
        let mut states = Vec::with_capacity(self.keyspaces.len());
        for index in 0..self.keyspaces.len() {
            let touched = &self.keyspaces[index];
            let current = match (touched.keyspace.state(), &touched.state) {
                (Ok(current), None) => Arc::clone(&*current),
                (Ok(current), Some(read)) if Arc::ptr_eq(&current, read) => Arc::clone(read),
                (Err(error), None) => return Err(error),
                _ => return Err(self.fail(index, ConflictKeys::Keyspace)),
            };
            states.push(current);
        }
        Ok(states)
    }

    fn commit_changes(&mut self) -> Result<Seq> {
        let states = self.current_states()?;
        let since = self.view.seq();
        let mut writes: Vec<CommitWrite<'_>> = Vec::new();
        let mut origins: Vec<usize> = Vec::new();
        let mut ranges: Vec<RangeRead> = Vec::new();
        let mut range_origins: Vec<usize> = Vec::new();
        for (index, (touched, state)) in self.keyspaces.iter().zip(&states).enumerate() {
            writes.extend(touched.removed.iter().map(|range| range.write(state))); // first
            origins.resize(writes.len(), index);
        }
        for (index, (touched, state)) in self.keyspaces.iter().zip(&states).enumerate() {
            for (key, read) in touched.reads.iter().filter(|(_, read)| read.is_tracked) {
                writes.push(CommitWrite::unchanged(state, key, VersionCheck::new(since, read.existed)));
            }
            for (key, value) in &touched.changes {
                let action = value.as_ref().map_or(Action::Remove, |new| Action::Put(&new.value));
                let expires = value.as_ref().map_or(Expires::Default, |new| new.expires);
                writes.push(CommitWrite { expires, ..CommitWrite::new(state, EngineOp::new(key, action)) });
            }
            origins.resize(writes.len(), index);
            let add = |bounds: &Bounds| RangeRead { keyspace: Arc::clone(state), bounds: bounds.clone() };
            ranges.extend(touched.ranges.iter().map(add));
            range_origins.resize(ranges.len(), index);
        }
        let reads = RangeReads { since, ranges: &ranges };
        let (index, keys) = match self.handle.commit_transaction(&mut writes, reads) {
            Ok(CommitOutcome::Committed(seq)) => return Ok(seq),
            Ok(CommitOutcome::Conflict(CommitConflict::Key(write))) => {
                (origins[write], ConflictKeys::Key(writes[write].op.key.to_vec()))
            }
            Ok(CommitOutcome::Conflict(CommitConflict::Range(range))) => {
                let Bounds { low, high } = ranges[range].bounds.clone();
                let is_replaced = ranges[range].keyspace.is_dropped();
                let keys =
                    if is_replaced { ConflictKeys::Keyspace } else { ConflictKeys::Range { low, high } };
                (range_origins[range], keys)
            }
            Ok(CommitOutcome::Conflict(CommitConflict::TooManyChanges)) => {
                (range_origins[0], ConflictKeys::TooManyChanges)
            }
            Err(Error::KeyspaceNotFound { name }) => {
                let index = states.iter().position(|state| *state.name() == *name);
                (index.unwrap_or(0), ConflictKeys::Keyspace)
            }
            Err(other) => return Err(other),
        };
        Err(self.fail(index, keys))
    }
}
