//! Every suite, in one program: the long ones share the cores with those that wait for the disk.

mod across;
mod backups;
mod batching;
mod beside;
mod conformance;
mod corruption;
mod crash;
mod damaged;
mod failing;
mod faults;
mod files;
mod fuzz;
mod geometries;
mod kill;
mod limits;
mod linear;
mod many;
mod memory;
mod model;
mod moving;
mod openings;
mod probes;
mod process;
mod removed;
mod repairs;
mod rest;
mod scenarios;
mod seeded_bugs;
mod stalls;

/// Counts what a case takes, for the harnesses that limit it.
#[global_allocator]
static COUNTING: sheaf_testkit::alloc::Counting = sheaf_testkit::alloc::Counting(std::alloc::System);
