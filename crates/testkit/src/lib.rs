//! # sheaf-testkit: harnesses that test the other crates
//!
//! One module per harness. Each header states the blind spots of its harness.
//!
//! ## New engines
//!
//! A new engine needs two lines in [`fixture`]: its [`fixture::TestSubject`] in `TestSubject::all`
//! (used by campaigns, replay lines and tests that compare engines), and one in `every_engine!`,
//! which generates the tests of every suite:
//!
//! | suite | runs in CI, per engine |
//! |---|---|
//! | `conformance` | every promise, on both disks, in both geometries, with and without threads |
//! | `model_suite` | 500,000 operations compared with a map |
//! | `crash_suite` | about 70,000 crash states in ten families |
//! | `kill_suite` | 200 killed processes |
//! | `fault_suite` | a share of the disk calls of a workload, each failing in every way |
//! | `corruption_suite` | 10,000 to 25,000 damages in six lifecycle states |
//! | `repair_suite` | repairs of damaged databases, each compared with the original |
//! | `linearizability_suite` | 100,000 operations of real threads, with kills and power cuts |
//! | `fuzz_suite` | 20,000 inputs with valid checksums |
//! | `backup_suite` | backups during random workloads; interrupted, failing and damaged ones |
//! | `attach_suite` | attached readers while the owner continues, closes or fails |
//! | `limits_suite` | real file systems that are full |
//!
//! A set of non-default options is added to `TestSubject::geometries` and to
//! `tests/results/geometries.rs`. It runs most suites at a small part of these lengths.
//!
//! The scenarios of `tests/interleavings` name their engines: an engine with lock-free parts needs
//! its own scenarios. Seeded bugs prove the harnesses, not the engines: one engine is enough.

pub mod alloc;
pub mod attach;
pub mod backups;
pub mod checksums;
pub mod conformance;
pub mod conversion;
pub mod corruption;
pub mod crash;
pub mod crashable_disk;
#[cfg(unix)]
pub mod faults;
pub mod fixture;
pub mod fuzz;
#[cfg(unix)]
pub mod kill;
pub mod limits;
pub mod linearizability;
pub mod model;
pub mod recording_disk;
pub mod reference_engine;
pub mod repairs;
pub mod replica;
pub mod supervise;
pub mod totals;
