//! # Opening and closing: from files to an open database, and back

pub(crate) mod close;
pub(crate) mod damaged_ranges;
mod journal_replay;
pub(crate) mod recover;
pub(crate) mod replay;
pub(crate) mod tail_scan;
