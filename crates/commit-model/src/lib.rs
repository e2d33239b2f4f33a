//! # Models of the commit protocol
//!
//! Checks the rules of the commit path: stateright explores every interleaving of small models
//! within bounds. The models specify the store; they run none of its code.
//!
//! With all rules on, no invariant breaks (`tests/all_rules.rs`, `tests/parallel_commit.rs`). With
//! one rule off, the checker finds the scenario that it prevents. Change a rule only with its
//! model. [`ProtocolRules`] lists them: R1 to R22 in docs/commit.md, W1 to W13 in decisions/0027.
//!
//! [`window`], [`stripes`], [`views`], [`freeze`] model parallel commits (decisions/0027),
//! [`memtable_queue`] frozen memtables (0036), [`range_checks`] transactions (0051), [`retention`]
//! the feed (0055), [`range_removal`], [`journal_replay`], [`keyspace_rename`] these (0053, 0039,
//! 0058). Others lock.
//!
//! Symbols: W is the durable mark, S the target of a sync round, F the floor in ROOT. `visible` is
//! the last commit of the newest state that readers may see.
//!
//! ## Invariants
//! 1. Recovery finds a commit over several logs completely or not at all.
//! 2. Recovery finds a prefix of the commit order.
//! 3. A power cut loses no commit up to W, a kill none up to `visible`. Neither loses a commit that
//!    a completed recovery found. After a failed sync a kill may lose commits above W.
//! 4. No kill takes back a value that was read. The commit order explains each read.
//! 5. No seq has two different contents that are both valid.
//! 6. After recovery the index equals the map at the recovered prefix and points to live bytes with
//!    the right key and seq. Deleted keys stay deleted.
//! 7. Crashes may interrupt recovery anywhere, also twice. I1 to I6 hold after the last recovery.
//! 8. Recovery reports damage only if stored bytes rotted.
//! 9. Recovery reports rot of data that the disk itself proves to have been durable.
//! 10. No thread waits forever, unless the thread that it waits for is never scheduled.

#![forbid(unsafe_code)]

pub mod blob;
pub mod commit_order;
pub mod conditional_commit;
pub mod damaged_log;
pub mod disk;
pub mod explore;
pub mod freeze;
pub mod gc;
pub mod in_place_page;
pub mod journal_replay;
pub mod keyspace_drop;
pub mod keyspace_rename;
pub mod memtable_queue;
pub mod range_checks;
pub mod range_removal;
pub mod retention;
mod rules;
pub mod segment_naming;
pub mod stripes;
pub mod views;
pub mod window;

pub use rules::{ProtocolRules, ReopenMethod};
