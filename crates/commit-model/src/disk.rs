//! # Simulated disk of the models
//!
//! Separates the page cache, which reads show, from the platter, the content after a power cut. A
//! [`ModelPage`] is the unit that a power cut keeps or loses: a sector of a log or a slot of ROOT.
//!
//! ## Picture
//! ```text
//!            write            sync, ok              power cut
//!   process ------> cache  ------------> platter  -----------> one of `platter_states`
//!                     |      sync, failed            (old, new, or a torn mix: None)
//!                     +----> clean, on the platter or not: no later sync writes it. The kernel
//!                            may drop it and read the platter again, as a reopen does.
//! ```
//!
//! A model chooses the content of the platter as late as possible, at the power cut. This covers
//! every moment at which the kernel could have written a page by itself.

/// Effect of a power cut on a sector that is being written at that moment.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum TornSectors {
    /// The sector has old bytes, new bytes or a mix. Bytes that are equal in both survive.
    OldOrNewBytes,
    /// The sector may become unreadable, also if its old and new bytes agree. Scenario 11 assumes
    /// such a disk.
    Garbage,
}

/// A sector or a slot of ROOT, in the page cache and on the platter.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelPage<T> {
    cached: Option<T>,
    /// Possible contents of the platter after a power cut at this moment; sorted, never empty.
    platter_states: Vec<Option<T>>,
    dirty: bool,
}

impl<T: Clone + Ord> ModelPage<T> {
    /// Returns a page of zeros, or of other bytes that no checksum accepts.
    #[must_use]
    pub fn empty() -> Self {
        Self { cached: None, platter_states: vec![None], dirty: false }
    }

    /// Returns the content that a read shows.
    #[must_use]
    pub fn read(&self) -> Option<&T> {
        self.cached.as_ref()
    }

    /// Returns whether the next sync writes this page.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Returns whether a power cut always leaves the content that a read shows.
    #[must_use]
    pub fn is_on_platter(&self) -> bool {
        self.platter_states.len() == 1 && self.platter_states[0] == self.cached
    }

    /// Writes `new`. If `torn` is true, a power cut may leave neither the old nor the new content.
    pub fn write(&mut self, new: T, torn: bool) {
        let new = Some(new);
        self.add_platter_state(new.clone());
        if torn {
            self.add_platter_state(None);
        }
        self.cached = new;
        self.dirty = !self.is_on_platter();
    }

    /// Writes the same bytes again, so that the next sync writes them to the platter.
    pub fn rewrite(&mut self, tears: TornSectors) {
        if let Some(same) = self.cached.clone() {
            self.write(same, tears == TornSectors::Garbage);
        }
    }

    /// Syncs the page successfully. A dirty page reaches the platter; a clean page does not change.
    pub fn sync(&mut self) {
        if self.dirty {
            self.set_platter(self.cached.clone());
        }
    }

    /// Fails a sync: the page is clean afterwards, whether it reached the platter or not.
    pub fn fail_sync(&mut self) {
        self.dirty = false;
    }

    /// Damages the stored bytes, so that no checksum accepts the page.
    pub fn rot(&mut self) {
        self.set_platter(None);
    }

    fn add_platter_state(&mut self, content: Option<T>) {
        if let Err(at) = self.platter_states.binary_search(&content) {
            self.platter_states.insert(at, content);
        }
    }

    fn set_platter(&mut self, content: Option<T>) {
        self.cached = content.clone();
        self.platter_states = vec![content];
        self.dirty = false;
    }

    fn is_uncertain(&self) -> bool {
        !self.dirty && !self.is_on_platter()
    }
}

/// Page of any content, reduced to the possible outcomes of a crash.
pub trait CrashOutcomes {
    /// Returns the number of possible outcomes of `crash` for this page.
    fn outcome_count(&self, crash: CrashKind) -> usize;
    /// Applies the outcome `way` of `crash`.
    fn apply_crash(&mut self, crash: CrashKind, way: usize);
}

/// Effect of a crash on the page cache.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum CrashKind {
    /// Drops the page cache.
    PowerCut,
    /// Ends the process. The kernel may drop clean pages before they are read again.
    Kill,
    /// Drops clean pages on purpose, so that the next reads come from the platter.
    ReadThrough,
}

impl<T: Clone + Ord> CrashOutcomes for ModelPage<T> {
    fn outcome_count(&self, crash: CrashKind) -> usize {
        match crash {
            CrashKind::PowerCut => self.platter_states.len(),
            CrashKind::Kill if self.is_uncertain() => self.platter_states.len() + 1,
            CrashKind::ReadThrough if self.is_uncertain() => self.platter_states.len(),
            CrashKind::Kill | CrashKind::ReadThrough => 1,
        }
    }

    fn apply_crash(&mut self, crash: CrashKind, way: usize) {
        match crash {
            CrashKind::PowerCut => self.set_platter(self.platter_states[way].clone()),
            CrashKind::Kill if self.is_uncertain() && way > 0 => {
                self.set_platter(self.platter_states[way - 1].clone())
            }
            CrashKind::ReadThrough if self.is_uncertain() => {
                self.set_platter(self.platter_states[way].clone())
            }
            CrashKind::Kill | CrashKind::ReadThrough => {}
        }
    }
}

/// Returns the number of possible outcomes of a crash for all pages together.
#[must_use]
pub fn outcome_count<'a>(pages: impl Iterator<Item = &'a dyn CrashOutcomes>, crash: CrashKind) -> usize {
    pages.map(|page| page.outcome_count(crash)).product()
}

/// Applies the outcome `way` of a crash to all pages. `way` has mixed radix, one digit per page.
pub fn apply_crash<'a>(
    pages: impl Iterator<Item = &'a mut dyn CrashOutcomes>,
    crash: CrashKind,
    mut way: usize,
) {
    for page in pages {
        let ways = page.outcome_count(crash);
        page.apply_crash(crash, way % ways);
        way /= ways;
    }
}
