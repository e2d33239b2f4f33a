//! # Flaw: the mistakes a ledger can be told to make
//!
//! Each is a bug that engines have had. A harness that does not find one of them within its budget
//! is decoration.

/// One deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Versions that a snapshot needs go when they are superseded.
    DropsPinned,
    /// The excluded end of a range is in it.
    IncludesRangeEnd,
    /// Removals are not replayed at opening.
    ForgetsRemovals,
    /// `update` and `compare_and_swap` do not notice that the key changed under them.
    SwapsUnchecked,
    /// The image lacks the last key of each portion.
    SavesShort,
    /// Iterators see commits that are younger than their view.
    ShowsFuture,
    /// Walking backwards leaves out the lowest key.
    SkipsLowest,
    /// Keys that only a snapshot still sees are counted.
    CountsTombstones,
    /// `apply` panics at the key [`Flaw::PANICS_AT`]. Not in [`Flaw::ALL`]: no harness has to find it.
    PanicsInApply,
    /// `save` panics. Not in [`Flaw::ALL`] either.
    PanicsInSave,
}

impl Flaw {
    /// Where [`Flaw::PanicsInApply`] does.
    pub const PANICS_AT: &[u8] = b"panic";

    /// All that a harness finds.
    pub const ALL: [Flaw; 8] = [
        Flaw::DropsPinned,
        Flaw::IncludesRangeEnd,
        Flaw::ForgetsRemovals,
        Flaw::SwapsUnchecked,
        Flaw::SavesShort,
        Flaw::ShowsFuture,
        Flaw::SkipsLowest,
        Flaw::CountsTombstones,
    ];
}
