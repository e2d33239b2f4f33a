//! # Deliberate bugs of the reference engine
//!
//! Each is a bug that engines have had. A harness must find each of them within its budget.

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineFlaw {
    /// Frees versions that a snapshot needs as soon as they are superseded.
    DropsPinned,
    /// Includes the excluded end of a range.
    IncludesRangeEnd,
    /// Does not replay removals at opening.
    ForgetsRemovals,
    /// Lets `update` and `compare_and_swap` miss a concurrent change of the key.
    IgnoresConcurrentChanges,
    /// Omits the last key of each batch from the image.
    SavesIncompleteImage,
    /// Shows iterators commits that are newer than their view.
    ShowsNewerCommits,
    /// Skips the lowest key in reverse iteration.
    SkipsLowestKeyInReverse,
    /// Counts keys that only a snapshot can still read.
    CountsTombstones,
    /// Panics in `apply` at the key [`EngineFlaw::PANIC_KEY`]. Not in [`EngineFlaw::ALL`]:
    /// harnesses are not required to find it.
    PanicsInApply,
    /// Panics in `save`. Not in [`EngineFlaw::ALL`] either.
    PanicsInSave,
}

impl EngineFlaw {
    /// Key at which [`EngineFlaw::PanicsInApply`] panics.
    pub const PANIC_KEY: &[u8] = b"panic";

    /// Bugs that a harness must find.
    pub const ALL: [EngineFlaw; 8] = [
        EngineFlaw::DropsPinned,
        EngineFlaw::IncludesRangeEnd,
        EngineFlaw::ForgetsRemovals,
        EngineFlaw::IgnoresConcurrentChanges,
        EngineFlaw::SavesIncompleteImage,
        EngineFlaw::ShowsNewerCommits,
        EngineFlaw::SkipsLowestKeyInReverse,
        EngineFlaw::CountsTombstones,
    ];
}
