//! # Cache: pages of the levels in memory, in place of the paper's kernel path
//!
//! A page's number leads straight to its frame: two loads, no lock, no system call, nothing shared is written but a mark once a
//! round of the clock. The ideas are kmmap's and FastMap's: priorities by kind, clean pages evicted and dirty ones not, a page
//! that was never written is never read. While there is room a missed leaf brings its neighbours ([`Cache::is_roomy`]).
//!
//! ## Picture
//!
//! ```text
//!  page -> chunk of the table -> frame: bytes, mark          rings of the clock: leaves | inner nodes
//! ```
//!
//! ## Invariants
//!
//! 1. A frame that is found under a guard stays until the guard goes: it is taken out first, and freed through the epoch.
//! 2. Frames in the table are the pages that the present levels mean: whoever gives a page another content calls
//!    [`Cache::put`] or [`Cache::forget`], and pages change their content only when no reader can mean the old one.
//! 3. What is in the table was checked: its checksum against its parent's, its lengths by [`Node::parse`].
//! 4. Inner nodes go only when no leaf is left to go; dirty pages never.
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
use sheaf_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{Guard, relieve};

use crate::node::Node;
use crate::space::PAGE;
use crate::table::{Table, lent};

/// Bytes of a frame in memory.
const FRAME: u64 = pieces::taken(size_of::<Frame>());
/// And beside it: in the rings.
const BESIDE: u64 = 16;

/// A node in memory. The bytes of one of a single page stand beside what the cache keeps of it: who finds a frame has the head
/// of its node in the next line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Frame {
    /// It was used since the clock came by.
    mark: AtomicBool,
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
        let (mark, is_dirty) = (AtomicBool::new(false), AtomicBool::new(is_dirty));
        let long = if bytes.len() > PAGE { Box::from(bytes) } else { Box::default() };
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        let mut frame = Frame { mark, is_dirty, is_leaf, len, long, short: [0; PAGE] };
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

    /// It is written.
    pub(crate) fn clean(&self) {
        self.is_dirty.store(false, Ordering::Release);
    }

    fn cost(&self) -> u64 {
        FRAME + allocated(self.long.len() as u64) + BESIDE
    }
}

#[derive(Debug, Default)]
struct Rings {
    leaves: VecDeque<u32>,
    inner: VecDeque<u32>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Cache {
    ground: Arc<Ground>,
    table: Table<Frame>,
    rings: Mutex<Rings>,
    account: Account,
    frames: AtomicU64,
    loads: AtomicU64,
}

impl Cache {
    pub(crate) fn new(ground: Arc<Ground>) -> Cache {
        Cache {
            table: Table::new(Arc::clone(&ground)),
            account: Account::new(ground.memory.budget()),
            ground,
            rings: Mutex::default(),
            frames: AtomicU64::new(0),
            loads: AtomicU64::new(0),
        }
    }

    /// Bytes of its frames and of the table.
    pub(crate) fn bytes(&self) -> u64 {
        self.account.bytes() + self.table.bytes()
    }

    /// What its frames take of the budget.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Pages that were read since the opening.
    pub(crate) fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// The frame of `page`, if it is here.
    #[inline]
    pub(crate) fn get<'g>(&self, page: u32, guard: &'g Guard) -> Option<&'g Frame> {
        let frame = self.table.get(page, guard)?;
        if !frame.mark.load(Ordering::Relaxed) {
            frame.mark.store(true, Ordering::Relaxed);
        }
        Some(frame)
    }

    /// Whether `page` is here, without a mark.
    pub(crate) fn has(&self, page: u32) -> bool {
        self.table.has(page)
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

    /// Whether so many pages would fit without anything going for them, and as many again for others who read.
    pub(crate) fn is_roomy(&self, pages: u32) -> bool {
        self.account.has_room(2 * u64::from(pages) * (FRAME + BESIDE), &self.ground.memory)
    }

    /// Takes in a page that was read because it stands beside another, if there is room: nobody has missed it.
    pub(crate) fn take_along(&self, page: u32, frame: Piece<Frame>, guard: &Guard) {
        let (cost, is_leaf) = (frame.cost(), frame.is_leaf);
        if !self.account.has_room(cost, &self.ground.memory) {
            return;
        }
        self.count(cost);
        match self.table.add(page, frame, guard) {
            Ok(_) => self.entered(page, is_leaf),
            Err(_) => self.uncount(cost),
        }
    }

    /// Accounts for a frame before anybody can find it, and have it go.
    fn count(&self, cost: u64) {
        self.account.take(cost, &self.ground.memory);
        self.frames.fetch_add(1, Ordering::Relaxed);
    }

    fn entered(&self, page: u32, is_leaf: bool) {
        let frames = self.frames.load(Ordering::Relaxed);
        let mut rings = self.rings.lock();
        let ring = if is_leaf { &mut rings.leaves } else { &mut rings.inner };
        ring.push_back(page);
        if ring.len() as u64 > 2 * frames + 1024 {
            // Pages that were forgotten, or are here twice.
            let mut pages: Vec<u32> = ring.drain(..).filter(|page| self.has(*page)).collect();
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
        if is_there {
            self.entered(page, is_leaf);
        } else {
            self.uncount(cost);
        }
    }

    /// Forgets what `page` held.
    pub(crate) fn forget(&self, page: u32, guard: &Guard) {
        self.went(self.table.take(page, guard));
    }

    /// Accounts for what is in the table no more.
    fn went(&self, frame: Option<&Frame>) {
        if let Some(frame) = frame {
            self.uncount(frame.cost());
        }
    }

    fn uncount(&self, cost: u64) {
        self.frames.fetch_sub(1, Ordering::Relaxed);
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
        let Rings { leaves, inner } = &mut *rings;
        for ring in [leaves, inner] {
            // Twice around: once to take marks away.
            for _ in 0..2 * ring.len() {
                let Some(page) = ring.pop_front() else { break };
                if self.pass(page, guard) {
                    ring.push_back(page);
                }
                if enough() {
                    return true;
                }
            }
        }
        false
    }

    /// The clock passes a page: whether it stays.
    fn pass(&self, page: u32, guard: &Guard) -> bool {
        let Some(frame) = self.table.get(page, guard) else { return false };
        if frame.is_dirty.load(Ordering::Acquire) || frame.mark.swap(false, Ordering::Relaxed) {
            return true;
        }
        if self.table.take_this(page, frame, guard) {
            self.account.went(u64::from(page), frame.cost());
            self.went(Some(frame));
        }
        false
    }

    /// Forgets everything.
    pub(crate) fn clear(&self, guard: &Guard) {
        *self.rings.lock() = Rings::default();
        self.table.clear(guard, |frame| self.went(Some(frame)));
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.account.give(self.account.bytes(), &self.ground.memory);
    }
}
