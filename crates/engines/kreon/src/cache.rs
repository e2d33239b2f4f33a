//! # Cache: pages of the levels in memory, in place of the paper's kernel path
//!
//! A page's number leads straight to its frame: two loads, no lock, no system call, nothing shared is written but a mark once a
//! round of the clock. The ideas are kmmap's and FastMap's: priorities by kind, clean pages evicted and dirty ones not, a page
//! that was never written is never read. While there is room a missed leaf brings its neighbours ([`Cache::is_roomy`]). Of a leaf that
//! look-ups asked for, and that has to go, its [`Prints`] stay.
//!
//! ## Picture
//!
//! ```text
//!  page -> chunk of the table -> frame: bytes, mark          rings of the clock: leaves | prints | inner nodes
//!  page -> chunk of the table -> prints of a leaf that went
//! ```
//!
//! ## Invariants
//!
//! 1. A frame that is found under a guard stays until the guard goes: it is taken out first, and freed through the epoch.
//! 2. Frames in the table are the pages that the present levels mean: whoever gives a page another content calls
//!    [`Cache::put`] or [`Cache::forget`], and pages change their content only when no reader can mean the old one.
//! 3. What is in the table was checked: its checksum against its parent's, its lengths by [`Node::parse`].
//! 4. Inner nodes go only when no leaf is left to go, nor any prints; dirty pages never.
//! 5. Prints come and go under the lock of the rings. They are made of a frame that was in the table until then, or that a reader read
//!    whose guard keeps the page (I2); and whoever puts something into a page, or has it forgotten, takes its prints away after the frame:
//!    so those that are there are of what the page has.
//!
//! ## Threads
//!
//! Any. The rings have a lock that a miss takes, and no hit.

use std::collections::VecDeque;
use std::sync::Arc;

use sheaf_base::ground::Ground;
use sheaf_base::memory::allocated;
use sheaf_base::memory::pieces::{self, Piece};
use sheaf_base::shares::Account;
use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{Guard, relieve};

use crate::node::{Node, Prints};
use crate::space::PAGE;
use crate::table::{Table, lent};

/// Bytes of a frame in memory.
const FRAME: u64 = pieces::taken(size_of::<Frame>());
/// And beside it: in the rings.
const BESIDE: u64 = 16;
/// Prints have at most so many quarters of the cache. They answer look-ups for as many leaves as four times the memory would; scans and
/// steps need the leaves.
const PRINTED_QUARTERS: u64 = 3;

/// Marks of a frame: it was used since the clock came by, ...
const USED: u8 = 1;
/// ... and a look-up did.
const ASKED: u8 = 2;

/// A node in memory. The bytes of one of a single page stand beside what the cache keeps of it: who finds a frame has the head
/// of its node in the next line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Frame {
    /// [`USED`] | [`ASKED`].
    marks: AtomicU8,
    is_dirty: AtomicBool,
    is_leaf: bool,
    len: u32,
    /// Of a node of several pages.
    long: Box<[u8]>,
    short: [u8; PAGE],
}

impl Frame {
    /// A node that was parsed or made just now.
    pub(crate) fn new(bytes: &[u8], is_leaf: bool, is_dirty: bool) -> Piece<Frame> {
        let (marks, is_dirty) = (AtomicU8::new(0), AtomicBool::new(is_dirty));
        let long = if bytes.len() > PAGE { Box::from(bytes) } else { Box::default() };
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        let mut frame = Frame { marks, is_dirty, is_leaf, len, long, short: [0; PAGE] };
        if let Some(short) = frame.short.get_mut(..bytes.len()) {
            short.copy_from_slice(bytes);
        }
        Piece::new(frame)
    }

    #[inline]
    pub(crate) fn node(&self) -> Node<'_> {
        Node::of(self.bytes())
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.short.get(..self.len as usize).unwrap_or(&self.long)
    }

    /// It was used; `marks` says by whom.
    #[inline]
    fn mark(&self, marks: u8) {
        let before = self.marks.load(Ordering::Relaxed);
        if before | marks != before {
            self.marks.store(before | marks, Ordering::Relaxed);
        }
    }

    /// It was read for a look-up.
    pub(crate) fn asked(&self) {
        self.mark(ASKED);
    }

    /// It is written.
    pub(crate) fn clean(&self) {
        self.is_dirty.store(false, Ordering::Release);
    }

    fn cost(&self) -> u64 {
        FRAME + allocated(self.long.len() as u64) + BESIDE
    }
}

/// Pages in the order in which the clock comes by: leaves, prints, inner nodes.
type Rings = [VecDeque<u32>; 3];
const LEAVES: usize = 0;
const PRINTS: usize = 1;
const INNER: usize = 2;

/// See the module.
#[derive(Debug)]
pub(crate) struct Cache {
    ground: Arc<Ground>,
    table: Table<Frame>,
    prints: Table<Prints>,
    rings: Mutex<Rings>,
    account: Account,
    /// Frames and prints.
    items: AtomicU64,
    /// Bytes of prints.
    printed: AtomicU64,
    /// The last leaf of which prints were wanted had some.
    is_printable: AtomicBool,
    loads: AtomicU64,
    spared: AtomicU64,
}

impl Cache {
    pub(crate) fn new(ground: Arc<Ground>) -> Cache {
        Cache {
            table: Table::new(Arc::clone(&ground)),
            prints: Table::new(Arc::clone(&ground)),
            account: Account::new(ground.memory.budget()),
            ground,
            rings: Mutex::default(),
            items: AtomicU64::new(0),
            printed: AtomicU64::new(0),
            is_printable: AtomicBool::new(true),
            loads: AtomicU64::new(0),
            spared: AtomicU64::new(0),
        }
    }

    /// Bytes of its frames and prints, and of the tables.
    pub(crate) fn bytes(&self) -> u64 {
        self.account.bytes() + self.table.bytes() + self.prints.bytes()
    }

    /// What its frames and prints take of the budget.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Pages that were read since the opening.
    pub(crate) fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Reads that prints spared since the opening.
    pub(crate) fn spared(&self) -> u64 {
        self.spared.load(Ordering::Relaxed)
    }

    /// A look-up was answered by prints.
    pub(crate) fn spare(&self) {
        self.spared.fetch_add(1, Ordering::Relaxed);
    }

    /// The frame of `page`, if it is here.
    #[inline]
    pub(crate) fn get<'g>(&self, page: u32, guard: &'g Guard) -> Option<&'g Frame> {
        let frame = self.table.get(page, guard)?;
        frame.mark(USED);
        Some(frame)
    }

    /// As [`Cache::get`], for a look-up: if it is a leaf, its prints are to stay when it goes.
    #[inline]
    pub(crate) fn ask<'g>(&self, page: u32, guard: &'g Guard) -> Option<&'g Frame> {
        let frame = self.table.get(page, guard)?;
        frame.mark(USED | ASKED);
        Some(frame)
    }

    /// The prints of the leaf at `page`, if they are here.
    pub(crate) fn prints<'g>(&self, page: u32, guard: &'g Guard) -> Option<&'g Prints> {
        let prints = self.prints.get(page, guard)?;
        prints.touch();
        Some(prints)
    }

    /// Whether `page` is here, without a mark.
    pub(crate) fn has(&self, page: u32) -> bool {
        self.table.has(page)
    }

    /// Whether prints are here of the leaf at `page`.
    pub(crate) fn has_prints(&self, page: u32) -> bool {
        self.prints.has(page)
    }

    /// Takes in a page that was read, unless there is no room; the frame to use.
    pub(crate) fn take_in<'g>(&self, page: u32, frame: Piece<Frame>, guard: &'g Guard) -> &'g Frame {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let cost = frame.cost();
        let is_leaf = frame.is_leaf;
        self.account.missed(u64::from(page), cost);
        if !self.clear_until(guard, || self.account.has_room(cost, &self.ground.memory)) {
            self.account.went(u64::from(page), cost);
            return lent(frame, guard);
        }
        self.count(cost);
        match self.table.add(page, frame, guard) {
            Ok(frame) => {
                self.entered(page, is_leaf);
                frame
            }
            Err(frame) => {
                self.went(Some(&*frame)); // somebody else was faster
                lent(frame, guard)
            }
        }
    }

    /// Whether leaves had to go, of which prints are left.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.printed.load(Ordering::Relaxed) > 0
    }

    /// Whether prints of so many leaves may come without others going for them.
    pub(crate) fn wants_prints(&self, leaves: u32) -> bool {
        let coming = u64::from(leaves) * PAGE as u64 / 4;
        self.is_printable.load(Ordering::Relaxed) && !self.has_many_prints(coming)
    }

    /// Whether so many pages would fit without anything going for them, and as many again for others who read.
    pub(crate) fn is_roomy(&self, pages: u32) -> bool {
        self.account.has_room(2 * u64::from(pages) * (FRAME + BESIDE), &self.ground.memory)
    }

    /// Takes in a leaf that was read because it stands beside another, if there is room, or else its prints: nobody has missed it.
    pub(crate) fn take_along(&self, page: u32, leaf: Piece<Frame>, guard: &Guard) {
        let cost = leaf.cost();
        if !self.account.has_room(cost, &self.ground.memory) {
            if self.wants_prints(1)
                && self.clear_until(guard, || self.account.has_room(cost / 4, &self.ground.memory))
            {
                self.print(page, &leaf, &mut self.rings.lock()[PRINTS], guard);
            }
            return;
        }
        self.count(cost);
        match self.table.add(page, leaf, guard) {
            Ok(_) => self.entered(page, true),
            Err(_) => self.uncount(cost),
        }
    }

    /// Accounts for a frame before anybody can find it, and have it go.
    fn count(&self, cost: u64) {
        self.account.take(cost, &self.ground.memory);
        self.items.fetch_add(1, Ordering::Relaxed);
    }

    fn entered(&self, page: u32, is_leaf: bool) {
        let ring = if is_leaf { LEAVES } else { INNER };
        self.join(&mut self.rings.lock()[ring], page, |page| self.has(page));
    }

    /// `page` joins a ring, whose pages are those for which something `is_here`.
    fn join(&self, ring: &mut VecDeque<u32>, page: u32, is_here: impl Fn(u32) -> bool) {
        ring.push_back(page);
        if ring.len() as u64 > 2 * self.items.load(Ordering::Relaxed) + 1024 {
            // Pages that were forgotten, or are here twice.
            let mut pages: Vec<u32> = ring.drain(..).filter(|page| is_here(*page)).collect();
            pages.sort_unstable();
            pages.dedup();
            ring.extend(pages);
        }
    }

    /// Gives `page` a content that was just made.
    pub(crate) fn put(&self, page: u32, frame: Piece<Frame>, guard: &Guard) {
        let (cost, is_leaf) = (frame.cost(), frame.is_leaf);
        self.count(cost);
        let (before, is_there) = self.table.put(page, frame, guard);
        self.went(before);
        self.unprint(page, guard);
        if is_there {
            self.entered(page, is_leaf);
        } else {
            self.uncount(cost);
        }
    }

    /// Forgets what `page` held.
    pub(crate) fn forget(&self, page: u32, guard: &Guard) {
        self.went(self.table.take(page, guard));
        self.unprint(page, guard);
    }

    /// What `page` holds now, its prints are not of (I5).
    fn unprint(&self, page: u32, guard: &Guard) {
        let _rings = self.rings.lock();
        self.faded(self.prints.take(page, guard));
    }

    /// Accounts for what is in the table no more.
    fn went(&self, frame: Option<&Frame>) {
        if let Some(frame) = frame {
            self.uncount(frame.cost());
        }
    }

    /// Accounts for prints that are in the table no more.
    fn faded(&self, prints: Option<&Prints>) {
        if let Some(prints) = prints {
            let cost = prints.cost() + BESIDE;
            self.printed.fetch_sub(cost, Ordering::Relaxed);
            self.uncount(cost);
        }
    }

    fn uncount(&self, cost: u64) {
        self.items.fetch_sub(1, Ordering::Relaxed);
        self.account.give(cost, &self.ground.memory);
    }

    /// Lets clean pages go until `bytes` more fit into the budget. False if that cannot be had.
    pub(crate) fn make_room(&self, bytes: u64, guard: &Guard) -> bool {
        self.clear_until(guard, || self.ground.memory.has_room(bytes))
    }

    /// Lets about so many bytes of clean pages go.
    pub(crate) fn give_way(&self, bytes: u64, guard: &Guard) {
        let until = self.account.bytes().saturating_sub(bytes);
        self.clear_until(guard, || self.account.bytes() <= until);
    }

    /// Lets clean pages go until it is `enough`. False if that cannot be had.
    fn clear_until(&self, guard: &Guard, enough: impl Fn() -> bool) -> bool {
        relieve(guard); // of what went before, and what was read and not taken in
        if enough() {
            return true;
        }
        let mut rings = self.rings.lock();
        // Twice around each: once to take marks away.
        let mut turns = rings.each_ref().map(|ring| 2 * ring.len());
        loop {
            let ring = match turns.map(|turns| turns > 0) {
                [_, true, _] if self.has_many_prints(0) => PRINTS,
                [true, ..] => LEAVES,
                [_, true, _] => PRINTS,
                [.., true] => INNER,
                _ => return false,
            };
            turns[ring] -= 1;
            let Some(page) = rings[ring].pop_front() else { continue };
            let stays = if ring == PRINTS {
                self.pass_prints(page, guard)
            } else {
                self.pass(page, &mut rings, guard)
            };
            if stays {
                rings[ring].push_back(page);
            }
            if enough() {
                return true;
            }
        }
    }

    /// Whether prints would have too much of the cache with so many bytes more.
    fn has_many_prints(&self, coming: u64) -> bool {
        self.printed.load(Ordering::Relaxed) + coming > self.account.bytes() / 4 * PRINTED_QUARTERS
    }

    /// The clock passes a page: whether it stays.
    fn pass(&self, page: u32, rings: &mut Rings, guard: &Guard) -> bool {
        let Some(frame) = self.table.get(page, guard) else { return false };
        if frame.is_dirty.load(Ordering::Acquire)
            || frame.marks.fetch_and(!USED, Ordering::Relaxed) & USED != 0
        {
            return true;
        }
        if self.table.take_this(page, frame, guard) {
            self.account.went(u64::from(page), frame.cost());
            self.went(Some(frame));
            if frame.is_leaf && frame.marks.load(Ordering::Relaxed) & ASKED != 0 {
                self.print(page, frame, &mut rings[PRINTS], guard);
            }
        }
        false
    }

    /// Leaves the prints of the leaf at `page` (I5).
    fn print(&self, page: u32, leaf: &Frame, ring: &mut VecDeque<u32>, guard: &Guard) {
        if self.prints.has(page) {
            return;
        }
        let prints = Prints::of(&leaf.node(), |key| self.ground.hash(key));
        self.is_printable.store(prints.is_some(), Ordering::Relaxed);
        let Some(prints) = prints else { return };
        let cost = prints.cost() + BESIDE;
        if self.prints.add(page, prints, guard).is_ok() {
            self.count(cost);
            self.printed.fetch_add(cost, Ordering::Relaxed);
            self.join(ring, page, |page| self.prints.has(page));
        }
    }

    /// The clock passes prints: whether they stay.
    fn pass_prints(&self, page: u32, guard: &Guard) -> bool {
        let Some(prints) = self.prints.get(page, guard) else { return false };
        if prints.mark.swap(false, Ordering::Relaxed) {
            return true;
        }
        self.account.went(u64::from(page), prints.cost());
        self.faded(self.prints.take(page, guard));
        false
    }

    /// Forgets everything.
    pub(crate) fn clear(&self, guard: &Guard) {
        let mut rings = self.rings.lock();
        *rings = Rings::default();
        self.table.clear(guard, |frame| self.went(Some(frame)));
        self.prints.clear(guard, |prints| self.faded(Some(prints)));
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.account.give(self.account.bytes(), &self.ground.memory);
    }
}
