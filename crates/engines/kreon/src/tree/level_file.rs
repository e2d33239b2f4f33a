//! # Level file: the pages of the levels on disk
//!
//! The file `own/<keyspace>/levels` is an array of pages. A page that an image contains is never
//! written while a slot of ROOT may refer to the image. Changes go to free pages, and the next
//! image contains the new locations.
//!
//! ## Picture
//!
//! ```text
//!  free ── allocate ─> in no image ── image ─> in an image ── replaced ─> waits for the next image
//!   ^                       │ replaced                                           │ image published
//!   └── readers gone ───────┴─────────────── image superseded ───────────────────┘
//! ```
//!
//! While pages are pinned ([`LevelFile::pin_pages`]), no page becomes free.
//!
//! ## Invariants
//!
//! 1. A page becomes free only when no reader can refer to it and its node has left the cache. One
//!    function does both through the epoch. It may run before or after the image is superseded.
//! 2. No image that a slot of ROOT refers to, or may refer to later, contains a free page.
//!
//! ## Crash
//!
//! Bytes written after the image are in pages that are free in the image. The pages of an image are
//! synced before the image.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sheaf_engine::backup_files::{PinnedFile, PinnedFiles};
use sheaf_engine::context::EngineContext;
use sheaf_engine::page_file::PageFile;
use sheaf_log::types::KeyspaceId;
use sheaf_platform::disk::File;
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::memory::block_alloc::BlockBox;
use sheaf_platform::sync::Mutex;

use super::cache::CachedNode;
use super::node::{Node, NodeRef};

pub(crate) const FILE: &str = "levels";
const MAGIC: &[u8; 8] = b"SHEAFKRE";
const FORMAT: u32 = 2;
/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Bytes of a page in tiny geometry, so that there are many.
const TINY_PAGE: usize = 512;
/// Minimum number of pages by which a file grows. It grows by its own size at first.
const MIN_GROWTH_PAGES: u32 = 4;
/// Maximum of that doubling; larger files grow by a sixteenth.
const GROWTH_PAGES: u32 = 256;
const TINY_GROWTH_PAGES: u32 = 16;
/// Pages are allocated from free runs of at least this length, if there are any.
const PREFERRED_RUN_PAGES: u32 = 32;
/// Divisor of the file's pages that gives a large part of the file.
const UNRECLAIMED_DIVISOR: u32 = 4;
/// Bytes read or written at once.
pub(crate) const MAX_IO_BYTES: usize = 256 << 10;

/// Free runs of pages: start and length.
type PageRuns = BTreeMap<u32, u32>;

/// A bit for each page.
#[derive(Debug, Default)]
struct PageBits(Vec<u64>);

impl PageBits {
    /// Sets or clears the bit of `page`. Returns whether it was set.
    fn set(&mut self, page: u32, is: bool) -> bool {
        let (word, bit) = (page as usize / 64, 1 << (page % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let was = self.0[word] & bit != 0;
        if is {
            self.0[word] |= bit
        } else {
            self.0[word] &= !bit
        }
        was
    }

    fn contains(&self, page: u32) -> bool {
        self.0.get(page as usize / 64).is_some_and(|word| word >> (page % 64) & 1 == 1)
    }
}

#[derive(Debug, Default)]
struct PageAllocator {
    free: PageRuns,
    free_count: u64,
    /// Number of pages, including the header page.
    page_count: u32,
    /// Pages that the current levels, or nodes being built, use.
    used: PageBits,
    /// Number of bits set in `used`.
    used_count: u64,
    /// First pages of the nodes allocated since the last image. There may be as many as there are
    /// pages.
    allocated_since_image: PageBits,
    /// Nodes replaced since the last image, which may refer to them.
    replaced_since_image: Vec<(u32, u32)>,
    /// Nodes that are not in the image being saved.
    leaving_with_image: Vec<(u32, u32)>,
    /// Nodes that only images before the current one contain, the oldest first.
    superseded_images: VecDeque<Vec<(u32, u32)>>,
    /// First pages of the replaced nodes that readers may refer to and the cache may contain.
    readable: PageBits,
    /// First pages of those `readable` nodes that no image contains.
    readable_without_image: PageBits,
    /// Number of pins.
    pin_count: usize,
    /// Pages that become free when the last pin is released.
    free_when_unpinned: Vec<(u32, u32)>,
}

impl PageAllocator {
    fn set_used(&mut self, start: u32, len: u32, is_used: bool) {
        for page in start..start + len {
            match (self.used.set(page, is_used), is_used) {
                (false, true) => self.used_count += 1,
                (true, false) => self.used_count -= 1,
                _ => {}
            }
        }
    }

    fn add_free_run(&mut self, start: u32, len: u32) {
        let (mut start, mut len) = (start, len);
        self.free_count += u64::from(len);
        if let Some((before, run)) = self.free.range(..start).next_back().map(|(b, r)| (*b, *r))
            && before + run == start
        {
            self.free.remove(&before);
            (start, len) = (before, len + run);
        }
        if let Some(run) = self.free.remove(&(start + len)) {
            len += run;
        }
        self.free.insert(start, len);
    }

    /// Frees pages that no reader refers to, or keeps them until the last pin is released.
    fn free_when_unpinned(&mut self, start: u32, len: u32) {
        match self.pin_count {
            0 => self.add_free_run(start, len),
            _ => self.free_when_unpinned.push((start, len)),
        }
    }

    /// Returns the start of the first free run of at least `len` pages.
    fn first_run(&self, len: u32) -> Option<u32> {
        self.free.iter().find(|(_, run)| **run >= len).map(|(start, _)| *start)
    }

    /// Frees allocated pages of a node that was never published.
    fn cancel(&mut self, start: u32, len: u32) {
        self.allocated_since_image.set(start, false);
        self.set_used(start, len, false);
        self.add_free_run(start, len);
    }

    fn allocate_run(&mut self, start: u32, len: u32) {
        let Some(run) = self.free.remove(&start) else { return };
        if run > len {
            self.free.insert(start + len, run - len);
        }
        self.free_count -= u64::from(len);
    }
}

/// While it exists, no page that was in use at its creation gets another content.
#[derive(Debug)]
pub(crate) struct PagePin(Arc<Mutex<PageAllocator>>);

impl Drop for PagePin {
    fn drop(&mut self) {
        let mut pages = self.0.lock();
        // a dropped keyspace has reset the count
        pages.pin_count = pages.pin_count.saturating_sub(1);
        if pages.pin_count == 0 {
            std::mem::take(&mut pages.free_when_unpinned)
                .into_iter()
                .for_each(|(page, len)| pages.add_free_run(page, len));
        }
    }
}

/// The file at one moment. It does not shrink while this exists.
struct PinnedLevelFile {
    files: Box<dyn PinnedFiles>,
    _pin: PagePin,
}

impl PinnedFiles for PinnedLevelFile {
    fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    fn for_each(&self, each: &mut dyn FnMut(PinnedFile<'_>) -> Result<()>) -> Result<()> {
        self.files.for_each(each)
    }
}

/// The file of the levels; see the header of the module.
#[derive(Debug)]
pub(crate) struct LevelFile {
    context: Arc<EngineContext>,
    pub(crate) page_file: PageFile,
    pages: Arc<Mutex<PageAllocator>>,
    file: Mutex<Option<Arc<dyn File>>>,
    is_name_synced: Mutex<bool>,
}

impl LevelFile {
    pub(crate) fn new(context: Arc<EngineContext>, id: KeyspaceId) -> LevelFile {
        let page = if context.tiny { TINY_PAGE } else { PAGE };
        let paged = PageFile::new(Arc::clone(&context), id, FILE, (MAGIC, FORMAT), page);
        let pages = Arc::new(Mutex::new(PageAllocator { page_count: 1, ..PageAllocator::default() }));
        LevelFile {
            context,
            page_file: paged,
            pages,
            file: Mutex::default(),
            is_name_synced: Mutex::new(false),
        }
    }

    /// Returns the bytes of the file, and those of its free pages.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let pages = self.pages.lock();
        (self.page_file.offset(pages.page_count), pages.free_count * self.page_file.page as u64)
    }

    /// Returns the number of pages of the file. No reference points behind them.
    pub(crate) fn page_count(&self) -> u32 {
        self.pages.lock().page_count
    }

    /// Restores the `end` pages of an image; the bits in `used` mark the pages that it uses.
    pub(crate) fn restore(&self, end: u32, used: Vec<u64>) -> Result<()> {
        let used = PageBits(used);
        // Free pages at the end may have been truncated since.
        let last = (0..end).rev().find(|page| used.contains(*page));
        let end = last.map_or(1, |last| last + 1);
        let Some(file) = self.page_file.open(end)? else { return Ok(()) };
        let mut pages = self.pages.lock();
        pages.used_count = used.0.iter().map(|word| u64::from(word.count_ones())).sum();
        (pages.page_count, pages.used) = (end, used);
        let mut start = None;
        for page in 1..=end {
            let is_free = page < end && !pages.used.contains(page);
            match start {
                None if is_free => start = Some(page),
                Some(from) if !is_free => {
                    pages.add_free_run(from, page - from);
                    start = None;
                }
                _ => {}
            }
        }
        *self.file.lock() = Some(file);
        *self.is_name_synced.lock() = true;
        Ok(())
    }

    // Reading.

    /// Returns the file for a read of `page`. A reference to a page of a missing file is damage.
    fn open_file(&self, page: u32) -> Result<Arc<dyn File>> {
        let file = self.file.lock().clone();
        let missing = || Damage::bad_field("pages of the file", u64::from(page) + 1.., 0);
        file.ok_or_else(|| self.page_file.damage_error(page, missing()))
    }

    /// Reads the pages of a node of `level` and checks them.
    pub(crate) fn read(&self, at: NodeRef, level: u8) -> Result<BlockBox<CachedNode>> {
        let mut bytes = vec![0; usize::from(at.pages) * self.page_file.page];
        self.read_bytes(at.page, &mut bytes)?;
        self.frame(at, level, &bytes)
    }

    /// Reads bytes from the start of a page on.
    pub(crate) fn read_bytes(&self, page: u32, bytes: &mut [u8]) -> Result<()> {
        self.page_file.read(&*self.open_file(page)?, page, bytes)
    }

    /// Checks the bytes of a node.
    pub(crate) fn frame(&self, at: NodeRef, level: u8, bytes: &[u8]) -> Result<BlockBox<CachedNode>> {
        let got = crc32c::crc32c(bytes);
        if got != at.crc {
            return Err(self.page_file.damage_error(at.page, Damage::BadChecksum { expected: at.crc, got }));
        }
        Node::parse(bytes, level).map_err(|what| self.page_file.damage_error(at.page, what))?;
        Ok(CachedNode::new(bytes, level == 0, false))
    }

    // Writing: one at a time.

    fn open_or_create(&self) -> Result<Arc<dyn File>> {
        self.page_file.open_or_create(&mut self.file.lock())
    }

    /// Allocates pages for nodes of the given sizes, contiguous if possible. Returns their numbers.
    pub(crate) fn allocate(&self, sizes: &[u16]) -> Result<Vec<u32>> {
        let file = self.open_or_create()?;
        let want: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
        let mut taken = Vec::with_capacity(sizes.len());
        let mut pages = self.pages.lock();
        let good = PREFERRED_RUN_PAGES.min(u32::try_from(want).unwrap_or(PREFERRED_RUN_PAGES));
        let mut from = 0; // end of the last allocation
        for size in sizes.iter().map(|size| u32::from(*size)) {
            let next = match self.find_run(&mut pages, &*file, from, size, good) {
                Ok(next) => next,
                Err(error) => {
                    for (page, size) in taken.iter().zip(sizes) {
                        pages.cancel(*page, u32::from(*size));
                    }
                    return Err(error);
                }
            };
            pages.allocate_run(next, size);
            pages.set_used(next, size, true);
            pages.allocated_since_image.set(next, true);
            taken.push(next);
            from = next + size;
        }
        Ok(taken)
    }

    /// Returns the start of a free run of at least `size` pages: at page `from`, else in a run of
    /// at least `good` pages, else in any run if half of the file is free. Grows the file if there
    /// is none.
    fn find_run(
        &self,
        pages: &mut PageAllocator,
        file: &dyn File,
        from: u32,
        size: u32,
        good: u32,
    ) -> Result<u32> {
        if pages.free.get(&from).is_some_and(|len| *len >= size) {
            return Ok(from);
        }
        if let Some(start) = pages.first_run(good.max(size)) {
            return Ok(start);
        }
        let any = pages.first_run(size);
        if let Some(start) = any.filter(|_| pages.free_count > u64::from(pages.page_count / 2)) {
            return Ok(start);
        }
        self.grow(pages, file, good.max(size)).or_else(|error| any.ok_or(error))
    }

    /// Grows the file; on a full disk only by `least` pages. Returns the first page of the new run.
    fn grow(&self, pages: &mut PageAllocator, file: &dyn File, least: u32) -> Result<u32> {
        let region = match self.context.tiny {
            true => TINY_GROWTH_PAGES,
            false => pages.page_count.clamp(MIN_GROWTH_PAGES, GROWTH_PAGES).max(pages.page_count / 16),
        };
        let start = pages.page_count;
        let mut grow_by = |region: u32| -> Result<()> {
            let end = start.checked_add(region).ok_or_else(|| self.no_space())?;
            file.allocate(self.page_file.offset(end)).during(IoOp::Allocate, &self.page_file.path)?;
            pages.add_free_run(start, region);
            pages.page_count = end;
            Ok(())
        };
        match grow_by(region.max(least)) {
            Err(Error::NoSpace { .. }) if least < region => grow_by(least)?,
            grown => grown?,
        }
        Ok(pages.free.range(..=start).next_back().map_or(start, |(at, _)| *at))
    }

    fn no_space(&self) -> Error {
        Error::NoSpace { path: self.page_file.path.clone() }
    }

    /// Returns the bytes by which the file may grow until `entries` more bytes are in the levels.
    /// In the worst case every page is written again while an image refers to the old ones.
    pub(crate) fn max_growth_bytes(&self, entries: u64) -> u64 {
        let pages = self.pages.lock();
        let levels = pages.used_count * self.page_file.page as u64 + entries;
        (2 * levels).saturating_sub(self.page_file.offset(pages.page_count))
    }

    /// Writes nodes to their pages in the order of the file, consecutive ones in one call.
    pub(crate) fn write<'b>(&self, nodes: impl Iterator<Item = (u32, &'b [u8])>) -> Result<()> {
        let mut nodes: Vec<(u32, &[u8])> = nodes.collect();
        if nodes.is_empty() {
            return Ok(());
        }
        let file = self.open_or_create()?;
        nodes.sort_unstable_by_key(|(page, _)| *page);
        let mut run: Vec<u8> = Vec::new();
        let mut start = nodes[0].0;
        for (page, bytes) in nodes {
            if self.page_file.offset(start) + run.len() as u64 != self.page_file.offset(page)
                || run.len() >= MAX_IO_BYTES
            {
                file.write_at(self.page_file.offset(start), &run)
                    .during(IoOp::Write, &self.page_file.path)?;
                run.clear();
                start = page;
            }
            run.extend_from_slice(bytes);
        }
        file.write_at(self.page_file.offset(start), &run).during(IoOp::Write, &self.page_file.path)
    }

    /// Like [`LevelFile::write`], for nodes of a step that is not published yet.
    pub(crate) fn write_unpublished<'b>(
        &self,
        nodes: impl Iterator<Item = (u32, &'b [u8])> + Clone,
    ) -> Result<()> {
        let pages = self.pages.lock();
        for (page, _) in nodes.clone() {
            assert!(
                pages.allocated_since_image.contains(page),
                "kreon (I5): a step writes to no page of an image"
            );
        }
        drop(pages);
        self.write(nodes)
    }

    /// Marks nodes as unused by the published levels. Readers may still refer to them, until
    /// [`LevelFile::free_unreadable_pages`] is called.
    pub(crate) fn release_pages(&self, gone: &[(u32, u32)]) {
        let mut pages = self.pages.lock();
        for (page, len) in gone.iter().copied() {
            pages.set_used(page, len, false);
            pages.readable.set(page, true);
            if pages.allocated_since_image.set(page, false) {
                pages.readable_without_image.set(page, true);
            } else {
                pages.replaced_since_image.push((page, len));
            }
        }
    }

    /// Called when no reader can refer to released nodes and none of them is in the cache. Frees
    /// those that no image contains. The others become free with their last image.
    pub(crate) fn free_unreadable_pages(&self, gone: &[(u32, u32)]) {
        let mut pages = self.pages.lock();
        for (page, len) in gone.iter().copied() {
            pages.readable.set(page, false);
            if pages.readable_without_image.set(page, false) {
                pages.free_when_unpinned(page, len);
            }
        }
    }

    /// Pins the pages in use.
    pub(crate) fn pin_pages(&self) -> PagePin {
        self.pages.lock().pin_count += 1;
        PagePin(Arc::clone(&self.pages))
    }

    /// Frees allocated pages that were never published.
    pub(crate) fn cancel_allocation(&self, taken: &[(u32, u32)]) {
        let mut pages = self.pages.lock();
        taken.iter().for_each(|(page, len)| pages.cancel(*page, *len));
    }

    /// Makes everything written durable. Returns the pages of the next image: their number, and a
    /// bit for each that it uses.
    pub(crate) fn sync_for_image(&self) -> Result<(u32, Vec<u64>)> {
        let file = self.file.lock().clone();
        if let Some(file) = file {
            let mut is_named = self.is_name_synced.lock();
            self.page_file.sync(&*file, *is_named)?;
            *is_named = true;
        }
        let mut pages = self.pages.lock();
        pages.allocated_since_image.0.clear();
        let mut limbo = std::mem::take(&mut pages.replaced_since_image);
        pages.leaving_with_image.append(&mut limbo);
        let words = pages.page_count.div_ceil(64) as usize;
        Ok((pages.page_count, pages.used.0.iter().copied().take(words).collect()))
    }

    /// Called when the image is durable.
    pub(crate) fn image_published(&self) {
        let mut pages = self.pages.lock();
        let leaving = std::mem::take(&mut pages.leaving_with_image);
        pages.superseded_images.push_back(leaving);
    }

    /// Called when no slot of ROOT refers to the previous image.
    pub(crate) fn image_superseded(&self) {
        let mut pages = self.pages.lock();
        for (page, len) in pages.superseded_images.pop_front().unwrap_or_default() {
            if pages.readable.contains(page) {
                pages.readable_without_image.set(page, true);
            } else {
                pages.free_when_unpinned(page, len);
            }
        }
    }

    /// Whether a large part of the file becomes free with the next image.
    pub(crate) fn is_much_unreclaimed(&self) -> bool {
        let pages = self.pages.lock();
        let waiting: u64 = pages.replaced_since_image.iter().map(|(_, len)| u64::from(*len)).sum();
        waiting > u64::from((pages.page_count / UNRECLAIMED_DIVISOR).max(GROWTH_PAGES))
    }

    /// Truncates the file if much of its end is free and no page is pinned. A step calls this, so
    /// the engine is not closed concurrently.
    pub(crate) fn truncate_free_tail(&self) {
        let mut pages = self.pages.lock();
        let Some((start, len)) = pages.free.last_key_value().map(|(s, l)| (*s, *l)) else { return };
        let is_much = len > (pages.page_count / UNRECLAIMED_DIVISOR).max(4 * MIN_GROWTH_PAGES);
        if pages.pin_count > 0 || start + len != pages.page_count || !is_much {
            return;
        }
        let Some(file) = self.file.lock().clone() else { return };
        if file.set_len(self.page_file.offset(start)).is_ok() {
            pages.allocate_run(start, len);
            pages.page_count = start;
        }
    }

    /// Pins the pages of the last image. The store does not call [`LevelFile::image_superseded`]
    /// while a pinned state exists.
    pub(crate) fn pin_files(&self) -> Result<Option<Box<dyn PinnedFiles>>> {
        let kept = self.pin_pages(); // before the file is measured
        let file = self.file.lock().clone();
        let files = self.page_file.pin_files(file.as_deref())?;
        Ok(files.map(|files| -> Box<dyn PinnedFiles> { Box::new(PinnedLevelFile { files, _pin: kept }) }))
    }

    /// Removes the file of a dropped keyspace.
    pub(crate) fn drop_data(&self) {
        *self.pages.lock() = PageAllocator { page_count: 1, ..PageAllocator::default() };
        *self.file.lock() = None;
        self.page_file.remove();
    }

    pub(crate) fn close(&self) {
        *self.file.lock() = None;
    }

    /// Returns an error if the header of the file is damaged.
    pub(crate) fn verify(&self) -> Result<()> {
        let file = self.file.lock().clone();
        file.map_or(Ok(()), |file| self.page_file.check_head(&*file))
    }
}
