//! All suites in one program, so that CPU-bound tests share the cores with tests that wait for the
//! disk.

mod attach;
mod background_retry;
mod backups;
mod blob_reclaim;
mod blobs;
mod conformance;
mod conversion;
mod corruption;
mod crash;
mod engine_file_damage;
mod faults;
mod fuzz;
mod geometries;
mod group_commit_modes;
mod index_rebuild;
mod kill;
mod limits;
mod linearizability;
mod many_keyspaces;
mod memory;
mod model;
mod multi_keyspace;
mod openings;
mod process_memory;
mod removed_ranges;
mod repairs;
mod scenarios;
mod seeded_bugs;
mod stalls;

/// Counts the allocations of a case, for harnesses that limit them.
#[global_allocator]
static COUNTING: sheaf_testkit::alloc::CountingAllocator =
    sheaf_testkit::alloc::CountingAllocator(std::alloc::System);
