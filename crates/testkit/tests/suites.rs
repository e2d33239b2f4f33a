//! All suites in one program, so that CPU-bound tests share the cores with tests that wait for the
//! disk.

// Results of every operation, on all engines.
#[path = "results/conformance.rs"]
mod conformance;
#[path = "results/geometries.rs"]
mod geometries;
#[path = "results/linearizability.rs"]
mod linearizability;
#[path = "results/model.rs"]
mod model;
#[path = "results/multi_keyspace.rs"]
mod multi_keyspace;
#[path = "results/removed_ranges.rs"]
mod removed_ranges;
#[path = "results/seeded_bugs.rs"]
mod seeded_bugs;

// Crashes and failing calls.
#[path = "crashes/background_retry.rs"]
mod background_retry;
#[path = "crashes/crash.rs"]
mod crash;
#[path = "crashes/faults.rs"]
mod faults;
#[path = "crashes/feed.rs"]
mod feed;
#[path = "crashes/group_commit_modes.rs"]
mod group_commit_modes;
#[path = "crashes/kill.rs"]
mod kill;
#[path = "crashes/openings.rs"]
mod openings;
#[path = "crashes/parallel_openings.rs"]
mod parallel_openings;

// Damaged files.
#[path = "damage/corruption.rs"]
mod corruption;
#[path = "damage/engine_file_damage.rs"]
mod engine_file_damage;
#[path = "damage/fuzz.rs"]
mod fuzz;
#[path = "damage/index_rebuild.rs"]
mod index_rebuild;
#[path = "damage/repairs.rs"]
mod repairs;

// Copies of a database, and readers in other processes.
#[path = "copies/attach.rs"]
mod attach;
#[path = "copies/backups.rs"]
mod backups;
#[path = "copies/conversion.rs"]
mod conversion;

// Memory, disk space and waiting.
#[path = "resources/blob_reclaim.rs"]
mod blob_reclaim;
#[path = "resources/blobs.rs"]
mod blobs;
#[path = "resources/frozen_memtables.rs"]
mod frozen_memtables;
#[path = "resources/limits.rs"]
mod limits;
#[path = "resources/many_keyspaces.rs"]
mod many_keyspaces;
#[path = "resources/memory.rs"]
mod memory;
#[path = "resources/process_memory.rs"]
mod process_memory;
#[path = "resources/stalls.rs"]
mod stalls;
#[path = "resources/value_files.rs"]
mod value_files;

// The scenarios of earlier drafts.
mod scenarios;

/// Counts the allocations of a case, for harnesses that limit them.
#[global_allocator]
static COUNTING: sheaf_testkit::alloc::CountingAllocator =
    sheaf_testkit::alloc::CountingAllocator(std::alloc::System);
