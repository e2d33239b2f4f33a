//! # Route: which intervals a batch of changes touches
//!
//! Changes and intervals are in the same order, so one walk beside each other finds them. What is further on than a few intervals is looked
//! for from the root of the index.

use std::ops::Range;

use sheaf_flexspace::tree::{self, Entry};

use crate::index::Interval;
use crate::plan::Planning;

/// Intervals further on are looked for from the root of the index.
const NEAR: usize = 8;

/// An interval, the one behind it, and the changes that belong to it.
pub(crate) struct Route {
    pub(crate) entry: Entry<Interval>,
    pub(crate) next: Option<Entry<Interval>>,
    pub(crate) changes: Range<usize>,
}

/// An interval, the one behind it, and those behind that.
struct Walk<'a> {
    entry: Entry<Interval>,
    next: Option<Entry<Interval>>,
    behind: tree::Range<'a, Interval>,
}

impl Planning<'_> {
    /// The intervals that the batch touches, in order. None if there are no intervals.
    pub(crate) fn routes(&self) -> Vec<Route> {
        let (index, batch) = (self.index, self.batch);
        let mut routes = Vec::new();
        let mut from = 0;
        let mut walk: Option<Walk<'_>> = None;
        while from < batch.len() {
            let key = batch.key(from);
            let near = walk.take().and_then(|mut walk| {
                for _ in 0..NEAR {
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
                Some(Walk { entry, next: behind.next(), behind })
            });
            let Some(found) = found else { return routes };
            let (entry, next) = (found.entry, found.next);
            let is_in = |at: usize| next.is_none_or(|next| index.is_before(batch.key(at), &next));
            let to = (from + 1..batch.len()).find(|at| !is_in(*at)).unwrap_or(batch.len());
            routes.push(Route { entry, next, changes: from..to });
            walk = Some(found);
            from = to;
        }
        routes
    }
}
