//! # Space: the pages of the levels on disk
//!
//! `own/<keyspace>/levels`, a row of pages. A page that an image of a checkpoint names is never
//! written while a slot of ROOT may name the image: changes go to free pages, and the next image
//! says where everything is.
//!
//! ## Picture
//!
//! ```text
//!  free ──take──> fresh (in no image) ──image──> named ──replaced──> limbo ──image──> grave ──outlived──> free
//!                    \__ replaced before any image __________________________________________________/
//! ```
//!
//! While somebody reads everything ([`LevelFile::pin_pages`]) no page becomes free: it waits for
//! the end of that.
//!
//! ## Invariants
//!
//! 1. A page is free only when no reader can mean it: it comes back through the epoch.
//! 2. No image that a slot of ROOT names, or may come to name, has a free page.
//!
//! ## Crash
//!
//! Bytes that were written after the image stand in pages that the image calls free. The pages of
//! an image are synced before the image.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sheaf_base::backup_files::{PinnedFile, PinnedFiles};
use sheaf_base::disk::File;
use sheaf_base::engine_context::EngineContext;
use sheaf_base::error::{Damage, Error, IoContext, Result};
use sheaf_base::memory::block_alloc::BlockBox;
use sheaf_base::page_file::PageFile;
use sheaf_base::sync::Mutex;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::KeyspaceId;

use crate::cache::CachedNode;
use crate::node::{Node, NodeRef};

const FILE: &str = "levels";
const MAGIC: &[u8; 8] = b"SHEAFKRE";
const FORMAT: u32 = 2;
/// Bytes of a page; small ones in tiny geometry, so that there are many.
pub(crate) const PAGE: usize = 4096;
const TINY_PAGE: usize = 512;
/// Pages by which a file grows: as many as it has, but at least so many, and from so many on a
/// sixteenth of them.
const MIN_GROWTH_PAGES: u32 = 4;
const GROWTH_PAGES: u32 = 256;
const TINY_GROWTH_PAGES: u32 = 16;
/// Pages are taken from runs of at least this length, if there are such.
const PREFERRED_RUN_PAGES: u32 = 32;
/// This part of the file's pages is much.
const UNRECLAIMED_DIVISOR: u32 = 4;
/// Bytes read or written at once.
pub(crate) const MAX_IO_BYTES: usize = 256 << 10;

/// Runs of pages: where each begins, and how long it is.
type PageRuns = BTreeMap<u32, u32>;

/// A bit for each page.
#[derive(Debug, Default)]
struct PageBits(Vec<u64>);

impl PageBits {
    /// Sets or clears the bit of `page`; whether it was set.
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
}

#[derive(Debug, Default)]
struct PageAllocator {
    free: PageRuns,
    free_count: u64,
    /// Pages there are, the head's among them.
    page_count: u32,
    /// A bit for each page that the present levels, or what is being made, have.
    used: PageBits,
    /// Bits that are set in it.
    used_count: u64,
    /// Nodes' first pages that were taken since the last image. There may be as many as there are
    /// pages.
    allocated_since_image: PageBits,
    /// Replaced since the last image, which may name them.
    replaced_since_image: Vec<(u32, u32)>,
    /// Not in the image that is being saved.
    leaving_with_image: Vec<(u32, u32)>,
    /// Of images before the present one, the oldest first.
    superseded_images: VecDeque<Vec<(u32, u32)>>,
    /// How many read everything, and what would be free but for them.
    pin_count: usize,
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

    /// No reader means these pages any more, but for those who read everything.
    fn free_when_unpinned(&mut self, start: u32, len: u32) {
        match self.pin_count {
            0 => self.add_free_run(start, len),
            _ => self.free_when_unpinned.push((start, len)),
        }
    }

    fn allocate_run(&mut self, start: u32, len: u32) {
        let Some(run) = self.free.remove(&start) else { return };
        if run > len {
            self.free.insert(start + len, run - len);
        }
        self.free_count -= u64::from(len);
    }
}

/// While it lives no page that was in use when it was made gets another content.
#[derive(Debug)]
pub(crate) struct PagePin(Arc<Mutex<PageAllocator>>);

impl Drop for PagePin {
    fn drop(&mut self) {
        let mut pages = self.0.lock();
        pages.pin_count = pages.pin_count.saturating_sub(1); // a keyspace that was dropped has forgotten it
        if pages.pin_count == 0 {
            std::mem::take(&mut pages.free_when_unpinned)
                .into_iter()
                .for_each(|(page, len)| pages.add_free_run(page, len));
        }
    }
}

/// The file as of a moment. It keeps its length meanwhile.
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

/// See the module.
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

    /// Bytes of the file, and of those the free ones.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let pages = self.pages.lock();
        (self.page_file.offset(pages.page_count), pages.free_count * self.page_file.page as u64)
    }

    /// Takes up the pages of an image: `end` of them, of which it has those whose bits are set in
    /// `used`.
    pub(crate) fn restore(&self, end: u32, used: Vec<u64>) -> Result<()> {
        // What was free at the end may have been given back since.
        let last = (0..end)
            .rev()
            .find(|page| used.get(*page as usize / 64).is_some_and(|word| word >> (page % 64) & 1 == 1));
        let end = last.map_or(1, |last| last + 1);
        let Some(file) = self.page_file.open(end)? else { return Ok(()) };
        let mut pages = self.pages.lock();
        pages.used_count = used.iter().map(|word| u64::from(word.count_ones())).sum();
        (pages.page_count, pages.used) = (end, PageBits(used));
        let mut start = None;
        for page in 1..=end {
            let word = pages.used.0.get(page as usize / 64).copied().unwrap_or(0);
            let is_free = page < end && word >> (page % 64) & 1 == 0;
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

    fn open_file(&self) -> Result<Arc<dyn File>> {
        let file = self.file.lock().clone();
        file.ok_or_else(|| self.page_file.damage_error(1, Damage::BadField { field: "reference", value: 0 }))
    }

    /// Reads the pages of a node of `level`, and checks them.
    pub(crate) fn read(&self, at: NodeRef, level: u8) -> Result<BlockBox<CachedNode>> {
        let mut bytes = vec![0; usize::from(at.pages) * self.page_file.page];
        self.read_bytes(at.page, &mut bytes)?;
        self.frame(at, level, &bytes)
    }

    /// Reads so many bytes from the start of a page on.
    pub(crate) fn read_bytes(&self, page: u32, bytes: &mut [u8]) -> Result<()> {
        self.page_file.read(&*self.open_file()?, page, bytes)
    }

    /// The bytes of a node, checked.
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

    /// Takes pages for nodes of so many pages each, side by side as far as can be; their numbers.
    pub(crate) fn allocate(&self, sizes: &[u16]) -> Result<Vec<u32>> {
        let file = self.open_or_create()?;
        let want: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
        let mut taken = Vec::with_capacity(sizes.len());
        let mut pages = self.pages.lock();
        let good = PREFERRED_RUN_PAGES.min(u32::try_from(want).unwrap_or(PREFERRED_RUN_PAGES));
        let mut from = 0; // the run in use
        for size in sizes.iter().map(|size| u32::from(*size)) {
            let fits = |run: Option<(&u32, &u32)>| run.filter(|(_, len)| **len >= size).map(|(at, _)| *at);
            let next = fits(pages.free.get_key_value(&from))
                .or_else(|| pages.free.iter().find(|(_, len)| **len >= good.max(size)).map(|(at, _)| *at));
            let next = match next {
                Some(at) => at,
                None => {
                    let small = (pages.free_count > u64::from(pages.page_count / 2))
                        .then(|| pages.free.iter().find(|(_, len)| **len >= size).map(|(at, _)| *at))
                        .flatten();
                    match small {
                        Some(at) => at,
                        None => match self.grow(&mut pages, &*file, good.max(size)) {
                            Ok(at) => at,
                            Err(error) => {
                                let any = pages.free.iter().find(|(_, len)| **len >= size).map(|(at, _)| *at);
                                match any {
                                    Some(at) => at,
                                    None => {
                                        for (page, size) in taken.iter().zip(sizes) {
                                            pages.add_free_run(*page, u32::from(*size));
                                            pages.set_used(*page, u32::from(*size), false);
                                            pages.allocated_since_image.set(*page, false);
                                        }
                                        return Err(error);
                                    }
                                }
                            }
                        },
                    }
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

    /// Makes the file longer, on a full disk by `least` pages only. Returns the first page of the
    /// new run.
    fn grow(&self, pages: &mut PageAllocator, file: &dyn File, least: u32) -> Result<u32> {
        let region = match self.context.tiny {
            true => TINY_GROWTH_PAGES,
            false => pages.page_count.clamp(MIN_GROWTH_PAGES, GROWTH_PAGES).max(pages.page_count / 16),
        };
        let start = pages.page_count;
        let mut grow_by = |region: u32| -> Result<()> {
            let end = start.checked_add(region).ok_or_else(|| self.no_space())?;
            file.allocate(self.page_file.offset(end)).during("allocate", &self.page_file.path)?;
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

    /// Returns the bytes by which the file may have to grow until `entries` bytes more are in the
    /// levels: at worst every page is written again while an image names the old ones.
    pub(crate) fn max_growth_bytes(&self, entries: u64) -> u64 {
        let pages = self.pages.lock();
        let levels = pages.used_count * self.page_file.page as u64 + entries;
        (2 * levels).saturating_sub(self.page_file.offset(pages.page_count))
    }

    /// Writes nodes where they belong, in the order of the file, side by side ones together.
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
                file.write_at(self.page_file.offset(start), &run).during("write", &self.page_file.path)?;
                run.clear();
                start = page;
            }
            run.extend_from_slice(bytes);
        }
        file.write_at(self.page_file.offset(start), &run).during("write", &self.page_file.path)
    }

    /// Nodes are in use no more, by what is published now. Those that no image can name are free as
    /// soon as no reader can mean them: see [`LevelFile::free_pages`].
    pub(crate) fn release_pages(&self, gone: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let mut free = Vec::new();
        let mut pages = self.pages.lock();
        for (page, len) in gone.iter().copied() {
            pages.set_used(page, len, false);
            match pages.allocated_since_image.set(page, false) {
                true => free.push((page, len)),
                false => pages.replaced_since_image.push((page, len)),
            }
        }
        free
    }

    /// Pages are free.
    pub(crate) fn free_pages(&self, free: &[(u32, u32)]) {
        let mut pages = self.pages.lock();
        free.iter().for_each(|(page, len)| pages.free_when_unpinned(*page, *len));
    }

    /// Has the pages that are in use stay as they are.
    pub(crate) fn pin_pages(&self) -> PagePin {
        self.pages.lock().pin_count += 1;
        PagePin(Arc::clone(&self.pages))
    }

    /// What was taken is not going to be used, and nobody has seen it.
    pub(crate) fn cancel_allocation(&self, taken: &[(u32, u32)]) {
        let mut pages = self.pages.lock();
        for (page, len) in taken {
            pages.allocated_since_image.set(*page, false);
            pages.set_used(*page, *len, false);
            pages.add_free_run(*page, *len);
        }
    }

    fn free_later(&self, runs: Vec<(u32, u32)>, guard: &Guard) {
        if runs.is_empty() {
            return;
        }
        let pages = Arc::clone(&self.pages);
        guard.defer(move || {
            let mut pages = pages.lock();
            runs.into_iter().for_each(|(page, len)| pages.free_when_unpinned(page, len));
        });
        guard.flush();
    }

    /// Makes everything written durable; the pages of the image that is to be: how many there are,
    /// and a bit for each that it has.
    pub(crate) fn sync_for_image(&self) -> Result<(u32, Vec<u64>)> {
        let file = self.file.lock().clone();
        if let Some(file) = file {
            let mut is_named = self.is_name_synced.lock();
            self.page_file.sync(&*file, *is_named, ["sync of levels", "sync of the levels' directory"])?;
            *is_named = true;
        }
        let mut pages = self.pages.lock();
        pages.allocated_since_image.0.clear();
        let mut limbo = std::mem::take(&mut pages.replaced_since_image);
        pages.leaving_with_image.append(&mut limbo);
        let words = pages.page_count.div_ceil(64) as usize;
        Ok((pages.page_count, pages.used.0.iter().copied().take(words).collect()))
    }

    /// The image is durable.
    pub(crate) fn image_published(&self) {
        let mut pages = self.pages.lock();
        let leaving = std::mem::take(&mut pages.leaving_with_image);
        pages.superseded_images.push_back(leaving);
    }

    /// No slot of ROOT names the image before.
    pub(crate) fn image_superseded(&self, guard: &Guard) {
        let gone = self.pages.lock().superseded_images.pop_front().unwrap_or_default();
        self.free_later(gone, guard);
    }

    /// Whether a large part of the file waits for the next image to be free.
    pub(crate) fn is_much_unreclaimed(&self) -> bool {
        let pages = self.pages.lock();
        let waiting: u64 = pages.replaced_since_image.iter().map(|(_, len)| u64::from(*len)).sum();
        waiting > u64::from((pages.page_count / UNRECLAIMED_DIVISOR).max(GROWTH_PAGES))
    }

    /// Gives back what is free at the end of the file, once it is much. Not while somebody reads
    /// everything. A step calls it, so that the engine is not closed meanwhile.
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

    /// The pages of the last image, for as long as [`LevelFile::image_superseded`] is not called.
    pub(crate) fn pin_files(&self) -> Result<Option<Box<dyn PinnedFiles>>> {
        let kept = self.pin_pages(); // before the file is measured
        let file = self.file.lock().clone();
        let files = self.page_file.pin_files(file.as_deref())?;
        Ok(files.map(|files| -> Box<dyn PinnedFiles> { Box::new(PinnedLevelFile { files, _pin: kept }) }))
    }

    /// The keyspace is dropped.
    pub(crate) fn drop_data(&self) {
        *self.pages.lock() = PageAllocator { page_count: 1, ..PageAllocator::default() };
        *self.file.lock() = None;
        self.page_file.remove();
    }

    pub(crate) fn close(&self) {
        *self.file.lock() = None;
    }

    /// An error if the file's head is not what it should be.
    pub(crate) fn verify(&self) -> Result<()> {
        let file = self.file.lock().clone();
        file.map_or(Ok(()), |file| self.page_file.check_head(&*file))
    }
}
