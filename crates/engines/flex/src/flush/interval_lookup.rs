//! # Interval lookup: the intervals that a batch of changes touches
//!
//! Changes and intervals are in the same order, so one walk over both finds the intervals. An
//! interval that is more than a few steps ahead is looked up from the root of the index.

use std::ops::Range;

use sheaf_flexspace::tree::{self, TreeEntry};

use crate::flush::plan::PlanInputs;
use crate::index::Interval;

/// Maximum number of intervals that are walked over before a lookup from the root of the index.
const MAX_WALK_STEPS: usize = 8;

/// An interval, the one behind it, and the changes that belong to it.
pub(crate) struct TouchedInterval {
    pub(crate) entry: TreeEntry<Interval>,
    pub(crate) next: Option<TreeEntry<Interval>>,
    pub(crate) changes: Range<usize>,
}

/// An interval, the one behind it, and an iterator over those behind that.
struct IntervalWalk<'a> {
    entry: TreeEntry<Interval>,
    next: Option<TreeEntry<Interval>>,
    behind: tree::TreeRange<'a, Interval>,
}

impl PlanInputs<'_> {
    /// Returns the intervals that the batch touches, in order. Returns none if the index is empty.
    pub(crate) fn touched_intervals(&self) -> Vec<TouchedInterval> {
        let (index, batch) = (self.index, self.batch);
        let mut routes = Vec::new();
        let mut from = 0;
        let mut walk: Option<IntervalWalk<'_>> = None;
        while from < batch.len() {
            let key = batch.key(from);
            let near = walk.take().and_then(|mut walk| {
                for _ in 0..MAX_WALK_STEPS {
                    match walk.next {
                        Some(after) if !index.is_before(key, &after) => walk.entry = after,
                        _ => return Some(walk),
                    }
                    walk.next = walk.behind.next();
                }
                None
            });
            let found = near.or_else(|| {
                let entry = index.find(key)?;
                let mut behind = index.tree.range(entry.start + entry.len);
                Some(IntervalWalk { entry, next: behind.next(), behind })
            });
            let Some(found) = found else { return routes };
            let (entry, next) = (found.entry, found.next);
            let is_in = |at: usize| next.is_none_or(|next| index.is_before(batch.key(at), &next));
            let to = (from + 1..batch.len()).find(|at| !is_in(*at)).unwrap_or(batch.len());
            routes.push(TouchedInterval { entry, next, changes: from..to });
            walk = Some(found);
            from = to;
        }
        routes
    }
}
