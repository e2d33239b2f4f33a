//! # Iterator of a transaction: its snapshot, merged with its own changes

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::contract::{Bounds, Projection};
use sheaf_engine::keys::borrow_bound;

use super::state::{SharedState, TransactionState};
use crate::iter::Iter;
use crate::scan_scope::ScanScope;
use crate::{Error, Keyspace, Result, Value};

/// Iterator over the pairs of a keyspace that a transaction sees. Its items are `Result`s. It is
/// double-ended if the engine is ordered, as [`Iter`](crate::Iter) is.
///
/// Changes that the transaction makes during the iteration are seen if they are ahead of it. The
/// part of the range that was iterated over counts as read by the transaction. The iterator
/// may outlive the transaction, and then returns [`Error::InvalidArgument`].
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let jobs = db.keyspace("jobs", sheaf::KeyspaceOptions::default())?;
/// jobs.insert("1", "scan")?;
/// jobs.insert("2", "print")?;
/// db.transact(|tx| {
///     for job in tx.iter(&jobs)? {
///         tx.remove(&jobs, job?.0)?;
///     }
///     Ok::<(), sheaf::Error>(())
/// })?;
/// assert!(jobs.is_empty()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an iterator reads nothing until it is advanced"]
pub struct TransactionIter {
    transaction: Arc<SharedState>,
    /// Index of the keyspace in the transaction.
    keyspace: usize,
    is_ordered: bool,
    snapshot: Iter,
    /// Pairs of the snapshot that were read and not returned yet, of both ends.
    front: Option<(Value, Value)>,
    back: Option<(Value, Value)>,
    /// The range that neither end has passed.
    rest: Bounds,
    /// Numbers of the ranges that the two ends have read.
    front_range: Option<usize>,
    back_range: Option<usize>,
    whole: Bounds,
    /// Whether the changes of the transaction were returned. Only for an unordered engine: there
    /// the changes come first.
    has_returned_changes: bool,
    is_done: bool,
}

impl fmt::Debug for TransactionIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionIter")
            .field("snapshot", &self.snapshot)
            .field("is_done", &self.is_done)
            .finish_non_exhaustive()
    }
}

/// Sets `bound` to `key`, and reuses its memory.
fn set_bound(bound: &mut Bound<Vec<u8>>, key: &[u8], make: fn(Vec<u8>) -> Bound<Vec<u8>>) {
    let mut bytes = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(bytes) | Bound::Excluded(bytes) => bytes,
        Bound::Unbounded => Vec::new(),
    };
    bytes.clear();
    bytes.extend_from_slice(key);
    *bound = make(bytes);
}

impl TransactionIter {
    pub(super) fn new(
        transaction: &Arc<SharedState>,
        keyspace: &Keyspace,
        bounds: Bounds,
    ) -> Result<TransactionIter> {
        let mut state = transaction.lock()?;
        state.check_usable()?;
        let index = state.touch(keyspace)?;
        state.register_ranges()?;
        let shown = state.state(index)?;
        let is_ordered = shown.engine()?.capabilities().ordered;
        let at = state.read_point();
        let scope = ScanScope {
            handle: Arc::clone(state.handle()),
            keyspace: shown,
            _view: Some(Arc::clone(state.view())),
        };
        let snapshot = Iter::from_snapshot(Arc::new(scope), at, bounds.clone(), Projection::Pairs)?;
        Ok(TransactionIter {
            transaction: Arc::clone(transaction),
            keyspace: index,
            is_ordered,
            snapshot,
            front: None,
            back: None,
            rest: bounds.clone(),
            front_range: None,
            back_range: None,
            is_done: bounds.is_empty(),
            whole: bounds,
            has_returned_changes: false,
        })
    }

    /// Returns an iterator over all pairs, prepared for one pair. `feature` names the call for the
    /// error of an unordered engine.
    pub(super) fn ordered(
        transaction: &Arc<SharedState>,
        keyspace: &Keyspace,
        feature: &'static str,
    ) -> Result<TransactionIter> {
        let mut iter = TransactionIter::new(transaction, keyspace, Bounds::all())?;
        if !iter.is_ordered {
            return Err(Error::Unsupported { engine: keyspace.engine(), feature });
        }
        iter.snapshot = iter.snapshot.expect_pairs(1);
        Ok(iter)
    }

    fn advance(&mut self, forward: bool) -> Option<Result<(Value, Value)>> {
        if self.is_done {
            return None;
        }
        let transaction = Arc::clone(&self.transaction);
        let mut state = match transaction.lock() {
            Ok(state) => state,
            Err(error) => {
                self.is_done = true;
                return Some(Err(error));
            }
        };
        let stepped = match state.check_usable() {
            Ok(()) if self.is_ordered => self.step(&mut state, forward),
            Ok(()) => self.step_unordered(&mut state, forward),
            Err(error) => Err(error),
        };
        match stepped {
            Ok(Some(pair)) => Some(Ok(pair)),
            Ok(None) => {
                self.is_done = true;
                None
            }
            Err(error) => {
                // After damage the snapshot continues, or has ended.
                self.is_done = !error.is_corrupt();
                Some(Err(error))
            }
        }
    }

    /// Returns the next pair of the snapshot from one end, without taking it.
    fn peek(&mut self, forward: bool) -> Result<Option<&(Value, Value)>> {
        let (mine, other) =
            if forward { (&mut self.front, &mut self.back) } else { (&mut self.back, &mut self.front) };
        if mine.is_none() {
            let next = if forward { self.snapshot.next() } else { self.snapshot.next_back() };
            // The last pair may already have been read from the other end.
            *mine = next.transpose()?.or_else(|| other.take());
        }
        Ok(mine.as_ref())
    }

    fn take(&mut self, forward: bool) -> Option<(Value, Value)> {
        if forward { self.front.take() } else { self.back.take() }
    }

    fn step(&mut self, state: &mut TransactionState, forward: bool) -> Result<Option<(Value, Value)>> {
        let keyspace = self.keyspace;
        let found = loop {
            while let Some((key, _)) = self.peek(forward)?
                && state.is_removed(keyspace, key)
            {
                drop(self.take(forward));
            }
            let peeked = if forward { &self.front } else { &self.back };
            let changed = match self.rest.is_empty() {
                true => None,
                false => state.first_change(
                    self.keyspace,
                    (borrow_bound(&self.rest.low), borrow_bound(&self.rest.high)),
                    forward,
                ),
            };
            let Some((key, value)) = changed else { break self.take(forward) };
            let order = peeked.as_ref().map(|(next, _)| match forward {
                true => key.cmp(next),
                false => (**next).cmp(key),
            });
            match order {
                Some(std::cmp::Ordering::Greater) => break self.take(forward),
                Some(std::cmp::Ordering::Equal) => drop(self.take(forward)),
                Some(std::cmp::Ordering::Less) | None => {}
            }
            if let Some(value) = value {
                break Some((Value::new(key), value.clone()));
            }
            self.pass(key, forward); // removed by the transaction
        };
        self.record(state, found.as_ref().map(|(key, _)| &**key), forward);
        if let Some((key, _)) = &found {
            self.pass(key, forward);
        }
        Ok(found)
    }

    /// Moves one end past `key`.
    fn pass(&mut self, key: &[u8], forward: bool) {
        let bound = if forward { &mut self.rest.low } else { &mut self.rest.high };
        set_bound(bound, key, Bound::Excluded);
    }

    /// Extends the range that one end has read to `key`, or over all that is left.
    fn record(&mut self, state: &mut TransactionState, key: Option<&[u8]>, forward: bool) {
        let number = if forward { &mut self.front_range } else { &mut self.back_range };
        let number = *number.get_or_insert_with(|| state.add_range(self.keyspace, self.whole.clone()));
        let range = state.range_mut(self.keyspace, number);
        let end = if forward { &mut range.high } else { &mut range.low };
        match key {
            Some(key) => set_bound(end, key, Bound::Included),
            None => *end = if forward { self.whole.high.clone() } else { self.whole.low.clone() },
        }
    }

    /// Returns the changes of the transaction, then the pairs of the snapshot that it did not
    /// change.
    fn step_unordered(
        &mut self,
        state: &mut TransactionState,
        forward: bool,
    ) -> Result<Option<(Value, Value)>> {
        if self.front_range.is_none() {
            self.front_range = Some(state.add_range(self.keyspace, Bounds::all()));
        }
        while forward && !self.has_returned_changes {
            let rest = (borrow_bound(&self.rest.low), Bound::Unbounded);
            let Some((key, value)) = state.first_change(self.keyspace, rest, true) else {
                self.has_returned_changes = true;
                break;
            };
            let pair = value.map(|value| (Value::new(key), value.clone()));
            self.pass(key, true);
            if pair.is_some() {
                return Ok(pair);
            }
        }
        loop {
            let next = if forward { self.snapshot.next() } else { self.snapshot.next_back() };
            match next.transpose()? {
                Some((key, _)) if state.is_changed(self.keyspace, &key) => {}
                other => return Ok(other),
            }
        }
    }
}

impl Iterator for TransactionIter {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(true)
    }
}

impl DoubleEndedIterator for TransactionIter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(false)
    }
}
