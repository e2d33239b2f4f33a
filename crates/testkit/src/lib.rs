//! # sheaf-testkit: what proves the other crates
//!
//! One module a harness; each says in its header what it cannot see.
//!
//! ## A new engine
//!
//! Two lines, both in [`fixture`]: its [`fixture::TestSubject`] in `Subject::all`, which campaigns, replay lines and the tests
//! that compare engines go through, and one in `every_engine!`, which writes the tests of every suite for it:
//!
//! | suite | what CI runs for an engine |
//! |---|---|
//! | `conformance` | every promise, real and simulated disk, tiny and normal, with and without threads |
//! | `model_suite` | a million operations against a map |
//! | `crash_suite` | 75,000 crash states in nine families |
//! | `kill_suite` | 500 processes killed |
//! | `fault_suite` | calls of a workload of 50 to 300 operations, in every way: all of them, of `flat` each fifth, of the ledger each second |
//! | `corruption_suite` | 70,000 damages in six states of its life |
//! | `repair_suite` | repairs of damaged databases, each compared with what there was |
//! | `linearizability_suite` | 100,000 operations of real threads, with cuts |
//! | `fuzz_suite` | 20,000 inputs behind right checksums |
//! | `backup_suite` | backups in the midst of random lives, cut, failing, damaged |
//! | `attach_suite` | states read beside their owner, who goes on, closes, or fails |
//!
//! One whose options were chosen goes into `Subject::geometries` and into the list of `tests/geometries.rs`: all suites, at a small part
//! of these lengths.
//! | `limits_suite` | real file systems that are full |
//!
//! The scenarios of `tests/interleavings` name their engines, because what they aim at differs: an engine with lock-free
//! parts of its own brings scenarios of its own. The seeded bugs prove the harnesses, not the engines: once is enough.

pub mod alloc;
pub mod attach;
pub mod backups;
pub mod checksums;
pub mod conformance;
pub mod conversion;
pub mod corruption;
pub mod crash;
pub mod crashable_disk;
pub mod faults;
pub mod fixture;
pub mod fuzz;
pub mod kill;
pub mod limits;
pub mod linearizability;
pub mod model;
pub mod recording_disk;
pub mod reference_engine;
pub mod repairs;
pub mod supervise;
pub mod totals;
