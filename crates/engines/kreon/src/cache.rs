//! # Cache: pages of the levels in memory, in place of the paper's kernel path
//!
//! A page's number leads straight to its frame: two loads, no lock, no system call, nothing shared is written but a mark once a
//! round of the clock. The ideas are kmmap's and FastMap's: priorities by kind, clean pages evicted and dirty ones not, a page
//! that was never written is never read.
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
use std::ptr;
use std::sync::Arc;

use sheaf_base::ground::Ground;
use sheaf_base::memory::Part;
use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::node::Node;

/// Pages in the first chunk; chunk k has `FIRST << k`.
const FIRST: u64 = 256;
const CHUNKS: usize = 25;
/// Bytes of a frame beside its page, about.
const OVERHEAD: u64 = 96;

/// A page in memory.
#[derive(Debug)]
pub(crate) struct Frame {
    bytes: Box<[u8]>,
    /// It was used since the clock came by.
    mark: AtomicBool,
    is_dirty: AtomicBool,
    is_leaf: bool,
}

impl Frame {
    /// A node that was parsed or made just now.
    pub(crate) fn new(bytes: Vec<u8>, is_leaf: bool, is_dirty: bool) -> Frame {
        let (mark, is_dirty) = (AtomicBool::new(false), AtomicBool::new(is_dirty));
        Frame { bytes: bytes.into_boxed_slice(), mark, is_dirty, is_leaf }
    }

    #[inline]
    pub(crate) fn node(&self) -> Node<'_> {
        Node::of(&self.bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// It is written.
    pub(crate) fn clean(&self) {
        self.is_dirty.store(false, Ordering::Release);
    }

    fn cost(&self) -> u64 {
        self.bytes.len() as u64 + OVERHEAD
    }
}

type Slot = AtomicPtr<Frame>;

#[derive(Debug, Default)]
struct Rings {
    leaves: VecDeque<u32>,
    inner: VecDeque<u32>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Cache {
    ground: Arc<Ground>,
    chunks: [AtomicPtr<Box<[Slot]>>; CHUNKS],
    rings: Mutex<Rings>,
    bytes: AtomicU64,
    /// Of the table, which never goes.
    table_bytes: AtomicU64,
    frames: AtomicU64,
    loads: AtomicU64,
}

fn chunk_of(page: u32) -> (usize, usize) {
    let number = u64::from(page) + FIRST;
    let chunk = (number.ilog2() - FIRST.ilog2()) as usize;
    (chunk, usize::try_from(number - (FIRST << chunk)).unwrap_or(usize::MAX))
}

impl Cache {
    pub(crate) fn new(ground: Arc<Ground>) -> Cache {
        Cache {
            ground,
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            rings: Mutex::default(),
            bytes: AtomicU64::new(0),
            table_bytes: AtomicU64::new(0),
            frames: AtomicU64::new(0),
            loads: AtomicU64::new(0),
        }
    }

    /// Bytes of its frames and of the table.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) + self.table_bytes.load(Ordering::Relaxed)
    }

    #[inline]
    fn slot(&self, page: u32) -> Option<&Slot> {
        let (chunk, index) = chunk_of(page);
        // SAFETY:
        // * Made from a box in `slot_made`, and freed only with `self`.
        let chunk = unsafe { self.chunks.get(chunk)?.load(Ordering::Acquire).as_ref() }?;
        chunk.get(index)
    }

    fn slot_made(&self, page: u32) -> Option<&Slot> {
        let (chunk, _) = chunk_of(page);
        let place = self.chunks.get(chunk)?;
        if place.load(Ordering::Acquire).is_null() {
            let count = usize::try_from(FIRST << chunk).ok()?;
            let slots: Box<[Slot]> = (0..count).map(|_| Slot::default()).collect();
            let made = Box::into_raw(Box::new(slots));
            if place.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY:
                // * Made from a box above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
            } else {
                self.ground.memory.take(Part::Index, 8 * count as u64);
                self.table_bytes.fetch_add(8 * count as u64, Ordering::Relaxed);
            }
        }
        self.slot(page)
    }

    /// The frame of `page`, if it is here.
    #[inline]
    pub(crate) fn get<'g>(&self, page: u32, _guard: &'g Guard) -> Option<&'g Frame> {
        // SAFETY:
        // * Made from a box; freed only after all guards of the moment when it was taken out (I1).
        let frame = unsafe { self.slot(page)?.load(Ordering::Acquire).as_ref() }?;
        if !frame.mark.load(Ordering::Relaxed) {
            frame.mark.store(true, Ordering::Relaxed);
        }
        Some(frame)
    }

    /// Whether `page` is here, without a mark.
    pub(crate) fn has(&self, page: u32) -> bool {
        self.slot(page).is_some_and(|slot| !slot.load(Ordering::Acquire).is_null())
    }

    /// Takes in a page that was read, unless there is no room; the frame to use.
    pub(crate) fn take_in<'g>(&self, page: u32, frame: Frame, guard: &'g Guard) -> &'g Frame {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let cost = frame.cost();
        let is_leaf = frame.is_leaf;
        let has_room = self.make_room(cost, guard);
        let made = Box::into_raw(Box::new(frame));
        let Some(slot) = self.slot_made(page).filter(|_| has_room) else { return Cache::lend(made, guard) };
        match slot.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.entered(page, cost, is_leaf);
                // SAFETY:
                // * In the table now, and taken out through the epoch only (I1).
                unsafe { &*made }
            }
            Err(_) => Cache::lend(made, guard), // somebody else was faster
        }
    }

    /// A frame for as long as the guard lives.
    fn lend(made: *mut Frame, guard: &Guard) -> &Frame {
        let address = made as usize;
        guard.defer(move || {
            // SAFETY:
            // * Made from a box by the caller, in no table; all guards of now are gone.
            drop(unsafe { Box::from_raw(address as *mut Frame) });
        });
        // SAFETY:
        // * Freed after `guard` only.
        unsafe { &*made }
    }

    fn entered(&self, page: u32, cost: u64, is_leaf: bool) {
        self.ground.memory.take(Part::Cache, cost);
        self.bytes.fetch_add(cost, Ordering::Relaxed);
        let frames = self.frames.fetch_add(1, Ordering::Relaxed) + 1;
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
    pub(crate) fn put(&self, page: u32, frame: Frame, guard: &Guard) {
        let (cost, is_leaf) = (frame.cost(), frame.is_leaf);
        let Some(slot) = self.slot_made(page) else { return };
        let before = slot.swap(Box::into_raw(Box::new(frame)), Ordering::AcqRel);
        self.went(before, guard);
        self.entered(page, cost, is_leaf);
    }

    /// Forgets what `page` held.
    pub(crate) fn forget(&self, page: u32, guard: &Guard) {
        if let Some(slot) = self.slot(page) {
            self.went(slot.swap(ptr::null_mut(), Ordering::AcqRel), guard);
        }
    }

    fn went(&self, frame: *mut Frame, guard: &Guard) {
        // SAFETY:
        // * Null, or out of the table by a swap of the caller, who has a guard.
        let Some(cost) = (unsafe { frame.as_ref() }).map(Frame::cost) else { return };
        self.bytes.fetch_sub(cost, Ordering::Relaxed);
        self.frames.fetch_sub(1, Ordering::Relaxed);
        self.ground.memory.give(Part::Cache, cost);
        Cache::lend(frame, guard);
    }

    /// Lets clean pages go until `bytes` more fit into the budget. False if that cannot be had.
    pub(crate) fn make_room(&self, bytes: u64, guard: &Guard) -> bool {
        if self.ground.memory.has_room(bytes) {
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
                if self.ground.memory.has_room(bytes) {
                    return true;
                }
            }
        }
        false
    }

    /// The clock passes a page: whether it stays.
    fn pass(&self, page: u32, guard: &Guard) -> bool {
        let Some(slot) = self.slot(page) else { return false };
        let seen = slot.load(Ordering::Acquire);
        // SAFETY:
        // * As in `get`.
        let Some(frame) = (unsafe { seen.as_ref() }) else { return false };
        if frame.is_dirty.load(Ordering::Acquire) || frame.mark.swap(false, Ordering::Relaxed) {
            return true;
        }
        if slot.compare_exchange(seen, ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.went(seen, guard);
        }
        false
    }

    /// Forgets everything.
    pub(crate) fn clear(&self, guard: &Guard) {
        *self.rings.lock() = Rings::default();
        for chunk in &self.chunks {
            // SAFETY:
            // * As in `slot`.
            let slots = unsafe { chunk.load(Ordering::Acquire).as_ref() };
            for slot in slots.into_iter().flatten() {
                self.went(slot.swap(ptr::null_mut(), Ordering::AcqRel), guard);
            }
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let chunk = chunk.load(Ordering::Relaxed);
            if chunk.is_null() {
                continue;
            }
            // SAFETY:
            // * Made from a box, and `&mut self`: nobody reads it.
            let slots = unsafe { Box::from_raw(chunk) };
            for slot in &*slots {
                let frame = slot.load(Ordering::Relaxed);
                if !frame.is_null() {
                    // SAFETY:
                    // * Made from a box, in the table, so owned by it.
                    drop(unsafe { Box::from_raw(frame) });
                }
            }
        }
        self.ground.memory.give(Part::Cache, self.bytes.load(Ordering::Relaxed));
        self.ground.memory.give(Part::Index, self.table_bytes.load(Ordering::Relaxed));
    }
}
