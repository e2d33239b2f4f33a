//! # The disk: what the kernel shows and what the platter may hold
//!
//! A [`Page`] is the unit that a power cut keeps or loses: a sector of a log, a slot of ROOT.
//!
//! ## Picture
//! ```text
//!            write            sync, ok              power cut
//!   process ------> cache  ------------> platter  -----------> one of `may` is what is there
//!                     |      sync, failed            (old, new, or a torn mix: None)
//!                     +----> clean, and on the platter or not: no later sync writes it,
//!                            and the kernel may drop it and read the platter back (a reopen does)
//! ```
//! The choice of what the platter holds is made as late as possible (at the cut), which covers
//! every moment at which the kernel could have written by itself.

/// What a power cut does to a sector that is being written at that moment.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Tears {
    /// Old bytes, new bytes or a mix: bytes that are the same in both survive.
    Mix,
    /// The sector may become unreadable, whatever it held (scenario 11 supposes this).
    Garbage,
}

/// A sector or slot, in the page cache and on the platter.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Page<T> {
    cache: Option<T>,
    /// Everything that the platter may hold if the power goes now; sorted, never empty.
    may: Vec<Option<T>>,
    dirty: bool,
}

impl<T: Clone + Ord> Page<T> {
    /// A page of zeros (or of anything that no checksum accepts).
    #[must_use]
    pub fn empty() -> Self {
        Self { cache: None, may: vec![None], dirty: false }
    }

    /// What a read shows.
    #[must_use]
    pub fn read(&self) -> Option<&T> {
        self.cache.as_ref()
    }

    /// Whether the next sync writes this page.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Whether a power cut can only leave what a read shows.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.may.len() == 1 && self.may[0] == self.cache
    }

    /// Writes `new`; `torn` says whether a power cut may leave neither old nor new.
    pub fn write(&mut self, new: T, torn: bool) {
        let new = Some(new);
        self.may(new.clone());
        if torn {
            self.may(None);
        }
        self.cache = new;
        self.dirty = !self.is_settled();
    }

    /// Writes the same bytes again, so that the next sync has to put them on the platter.
    pub fn rewrite(&mut self, tears: Tears) {
        if let Some(same) = self.cache.clone() {
            self.write(same, tears == Tears::Garbage);
        }
    }

    /// A sync that succeeds: what is dirty is on the platter. What is clean stays as it is.
    pub fn sync(&mut self) {
        if self.dirty {
            self.settle(self.cache.clone());
        }
    }

    /// A sync that fails: the page is clean now, on the platter or not.
    pub fn fail_sync(&mut self) {
        self.dirty = false;
    }

    /// The page rots: no checksum accepts it any more.
    pub fn rot(&mut self) {
        self.settle(None);
    }

    fn may(&mut self, content: Option<T>) {
        if let Err(at) = self.may.binary_search(&content) {
            self.may.insert(at, content);
        }
    }

    fn settle(&mut self, content: Option<T>) {
        self.cache = content.clone();
        self.may = vec![content];
        self.dirty = false;
    }

    fn is_doubtful(&self) -> bool {
        !self.dirty && !self.is_settled()
    }
}

/// A page seen only by what a crash may do to it.
pub trait Fate {
    /// In how many ways `crash` may end for this page.
    fn ways(&self, crash: Crash) -> usize;
    /// Ends it in one of them.
    fn suffer(&mut self, crash: Crash, way: usize);
}

/// What happens to the page cache.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Crash {
    /// The page cache is gone.
    PowerCut,
    /// The process is gone; the kernel may drop clean pages before they are read again.
    Kill,
    /// Clean pages are dropped on purpose: what is read next comes from the platter.
    ReadThrough,
}

impl<T: Clone + Ord> Fate for Page<T> {
    fn ways(&self, crash: Crash) -> usize {
        match crash {
            Crash::PowerCut => self.may.len(),
            Crash::Kill if self.is_doubtful() => self.may.len() + 1,
            Crash::ReadThrough if self.is_doubtful() => self.may.len(),
            Crash::Kill | Crash::ReadThrough => 1,
        }
    }

    fn suffer(&mut self, crash: Crash, way: usize) {
        match crash {
            Crash::PowerCut => self.settle(self.may[way].clone()),
            Crash::Kill if self.is_doubtful() && way > 0 => self.settle(self.may[way - 1].clone()),
            Crash::ReadThrough if self.is_doubtful() => self.settle(self.may[way].clone()),
            Crash::Kill | Crash::ReadThrough => {}
        }
    }
}

/// In how many ways a crash may end for all pages together.
#[must_use]
pub fn ways<'a>(pages: impl Iterator<Item = &'a dyn Fate>, crash: Crash) -> usize {
    pages.map(|page| page.ways(crash)).product()
}

/// Ends a crash in the way numbered `way` (a number in mixed radix, one digit a page).
pub fn suffer<'a>(pages: impl Iterator<Item = &'a mut dyn Fate>, crash: Crash, mut way: usize) {
    for page in pages {
        let ways = page.ways(crash);
        page.suffer(crash, way % ways);
        way /= ways;
    }
}
