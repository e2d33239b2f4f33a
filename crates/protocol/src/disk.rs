//! # The disk: what the kernel shows and what the platter may hold
//!
//! A [`ModelPage`] is the unit that a power cut keeps or loses: a sector of a log, a slot of ROOT.
//!
//! ## Picture
//! ```text
//!            write            sync, ok              power cut
//!   process ------> cache  ------------> platter  -----------> one of `platter_states`
//!                     |      sync, failed            (old, new, or a torn mix: None)
//!                     +----> clean, and on the platter or not: no later sync writes it,
//!                            and the kernel may drop it and read the platter back (a reopen does)
//! ```
//! The choice of what the platter holds is made as late as possible (at the cut), which covers
//! every moment at which the kernel could have written by itself.

/// What a power cut does to a sector that is being written at that moment.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum TornSectors {
    /// Old bytes, new bytes or a mix: bytes that are the same in both survive.
    OldOrNewBytes,
    /// The sector may become unreadable, whatever it held (scenario 11 supposes this).
    Garbage,
}

/// A sector or slot, in the page cache and on the platter.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelPage<T> {
    cached: Option<T>,
    /// Everything that the platter may hold if the power goes now; sorted, never empty.
    platter_states: Vec<Option<T>>,
    dirty: bool,
}

impl<T: Clone + Ord> ModelPage<T> {
    /// A page of zeros (or of anything that no checksum accepts).
    #[must_use]
    pub fn empty() -> Self {
        Self { cached: None, platter_states: vec![None], dirty: false }
    }

    /// What a read shows.
    #[must_use]
    pub fn read(&self) -> Option<&T> {
        self.cached.as_ref()
    }

    /// Whether the next sync writes this page.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Whether a power cut can only leave what a read shows.
    #[must_use]
    pub fn is_on_platter(&self) -> bool {
        self.platter_states.len() == 1 && self.platter_states[0] == self.cached
    }

    /// Writes `new`; `torn` says whether a power cut may leave neither old nor new.
    pub fn write(&mut self, new: T, torn: bool) {
        let new = Some(new);
        self.add_platter_state(new.clone());
        if torn {
            self.add_platter_state(None);
        }
        self.cached = new;
        self.dirty = !self.is_on_platter();
    }

    /// Writes the same bytes again, so that the next sync has to put them on the platter.
    pub fn rewrite(&mut self, tears: TornSectors) {
        if let Some(same) = self.cached.clone() {
            self.write(same, tears == TornSectors::Garbage);
        }
    }

    /// A sync that succeeds: what is dirty is on the platter. What is clean stays as it is.
    pub fn sync(&mut self) {
        if self.dirty {
            self.set_platter(self.cached.clone());
        }
    }

    /// A sync that fails: the page is clean now, on the platter or not.
    pub fn fail_sync(&mut self) {
        self.dirty = false;
    }

    /// The page rots: no checksum accepts it any more.
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

/// A page seen only by what a crash may do to it.
pub trait CrashOutcomes {
    /// In how many ways `crash` may end for this page.
    fn outcome_count(&self, crash: CrashKind) -> usize;
    /// Ends it in one of them.
    fn apply_crash(&mut self, crash: CrashKind, way: usize);
}

/// What happens to the page cache.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum CrashKind {
    /// The page cache is gone.
    PowerCut,
    /// The process is gone; the kernel may drop clean pages before they are read again.
    Kill,
    /// Clean pages are dropped on purpose: what is read next comes from the platter.
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

/// In how many ways a crash may end for all pages together.
#[must_use]
pub fn outcome_count<'a>(pages: impl Iterator<Item = &'a dyn CrashOutcomes>, crash: CrashKind) -> usize {
    pages.map(|page| page.outcome_count(crash)).product()
}

/// Ends a crash in the way numbered `way` (a number in mixed radix, one digit a page).
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
