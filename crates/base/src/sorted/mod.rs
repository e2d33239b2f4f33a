//! # Sorted: keys of a memtable in order, for one writer and readers who take no lock
//!
//! What the engines share that gather changes in memory before they move them: an [`arena`] whose places never move, [`order`],
//! a B+-tree of heads and places, and [`prefix`], what makes heads of keys.

pub mod arena;
pub mod order;
pub mod prefix;
