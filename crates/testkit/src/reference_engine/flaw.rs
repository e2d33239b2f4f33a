//! # Flaw: the mistakes a ledger can be told to make
//!
//! Each is a bug that engines have had. A harness that does not find one of them within its budget
//! is decoration.

/// One deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineFlaw {
    /// Versions that a snapshot needs go when they are superseded.
    DropsPinned,
    /// The excluded end of a range is in it.
    IncludesRangeEnd,
    /// Removals are not replayed at opening.
    ForgetsRemovals,
    /// `update` and `compare_and_swap` do not notice that the key changed under them.
    IgnoresConcurrentChanges,
    /// The image lacks the last key of each portion.
    SavesIncompleteImage,
    /// Iterators see commits that are younger than their view.
    ShowsNewerCommits,
    /// Walking backwards leaves out the lowest key.
    SkipsLowestKeyInReverse,
    /// Keys that only a snapshot still sees are counted.
    CountsTombstones,
    /// `apply` panics at the key [`EngineFlaw::PANIC_KEY`]. Not in [`EngineFlaw::ALL`]: no harness
    /// has to find it.
    PanicsInApply,
    /// `save` panics. Not in [`EngineFlaw::ALL`] either.
    PanicsInSave,
}

impl EngineFlaw {
    /// Where [`EngineFlaw::PanicsInApply`] does.
    pub const PANIC_KEY: &[u8] = b"panic";

    /// All that a harness finds.
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
