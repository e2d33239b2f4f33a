//! # Pages of the trie on disk
//!
//! The file `own/<keyspace>/trie` is an array of places of one page each. A page is never written
//! to a place that a checkpoint's image refers to. Each checkpoint writes changed pages to free
//! places, and its image lists the place of every page. So no page is torn and no page log is
//! needed. The newest checkpoint stays complete until ROOT refers to the next one.
//!
//! ## Picture
//!
//! ```text
//!  place 0: head | page | free | page | page | ...    table of an image: page -> place, checksum
//!                   ^             \__ written by the running checkpoint, in no image yet
//!  frozen page ──> free place ──> image saved ──> old place retired ──> ROOT slots newer ──> free
//! ```
//!
//! ## Invariants
//!
//! 1. A place is not written while a ROOT slot may refer to an image that refers to the place.
//! 2. A page that is not in memory is on disk at the place in the table of the running checkpoint,
//!    or else in the present table.
//!
//! ## Crash
//!
//! Pages that no image refers to are garbage in free places. An image in ROOT has all its pages,
//! because they are synced before the image. The store makes the commits in these pages durable
//! before ROOT refers to the image. Every read of a page verifies the checksum in the table, so it
//! also detects an older content of the place.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use sheaf_engine::backup_files::PinnedFiles;
use sheaf_engine::context::EngineContext;
use sheaf_engine::page_file::PageFile;
use sheaf_log::types::KeyspaceId;
use sheaf_platform::disk::File;
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::epoch::Guard;

use crate::heap::FrozenTrie;
use crate::trie::{Trie, TrieError};

pub(crate) const FILE: &str = "trie";
const MAGIC: &[u8; 8] = b"SHEAFTRI";
const FORMAT: u32 = 1;
/// Limits of the growth of the file, which otherwise doubles. The minimum is small because most
/// keyspaces are small.
const MIN_GROWTH_PLACES: u32 = 4;
const MAX_GROWTH_PLACES: u32 = 256;
const TINY_GROWTH_PLACES: u32 = 16;

/// Place of a page in the file, and its checksum. Place 0 contains no page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageLocation {
    pub(crate) at: u32,
    pub(crate) crc: u32,
}

#[derive(Debug, Default)]
struct TrieFileState {
    file: Option<Arc<dyn File>>,
    /// Locations by page, as in the last saved image.
    table: Vec<PageLocation>,
    /// Number of pages with a place in `table`.
    stored_pages: u64,
    /// Table of the running checkpoint.
    next_table: Option<Vec<PageLocation>>,
    free: BTreeSet<u32>,
    /// Number of places, with the head.
    end: u32,
    /// Places that older images refer to, the oldest image first.
    retired_places: VecDeque<Vec<u32>>,
    is_name_synced: bool,
}

impl TrieFileState {
    /// Returns the location of a page that is not in memory (I2).
    fn location(&self, page: u32) -> PageLocation {
        let table = self.next_table.as_ref().unwrap_or(&self.table);
        table.get(page as usize).copied().unwrap_or_default()
    }
}

/// File of a trie's pages.
#[derive(Debug)]
pub(crate) struct TrieFile {
    context: Arc<EngineContext>,
    pub(crate) page_file: PageFile,
    inner: Mutex<TrieFileState>,
}

impl TrieFile {
    pub(crate) fn new(context: Arc<EngineContext>, id: KeyspaceId, page_bytes: usize) -> TrieFile {
        let paged = PageFile::new(Arc::clone(&context), id, FILE, (MAGIC, FORMAT), page_bytes);
        TrieFile {
            context,
            page_file: paged,
            inner: Mutex::new(TrieFileState { end: 1, ..TrieFileState::default() }),
        }
    }

    /// Adopts the table of an image.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be opened or its head is invalid.
    pub(crate) fn restore(&self, table: Vec<PageLocation>) -> Result<()> {
        let mut inner = self.inner.lock();
        let used: BTreeSet<u32> = table.iter().map(|place| place.at).filter(|at| *at > 0).collect();
        let end = used.last().map_or(1, |last| last + 1);
        let Some(file) = self.page_file.open(end)? else { return Ok(()) };
        inner.stored_pages = used.len() as u64;
        inner.free = (1..end).filter(|at| !used.contains(at)).collect();
        (inner.end, inner.file, inner.table, inner.is_name_synced) = (end, Some(file), table, true);
        Ok(())
    }

    /// Returns the bytes of the table, and of the pages in the last image.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (size_of_val(&inner.table[..]) as u64, inner.stored_pages * self.page_file.page as u64)
    }

    /// Reads a page into memory.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the page has no place or an invalid content, and [`Error::Io`]
    /// if the read fails.
    pub(crate) fn load(&self, page: u32, trie: &Trie, guard: &Guard) -> Result<()> {
        let (place, file) = {
            let inner = self.inner.lock();
            (inner.location(page), inner.file.clone())
        };
        let Some(file) = file.filter(|_| place.at > 0) else {
            return Err(self.invalid_page_error(page, "reference", "a page with a place in the file"));
        };
        let content = self.read(&*file, place)?;
        // The page may have been loaded, changed, written and evicted during the read.
        let is_still = || self.inner.lock().location(page) == place;
        trie.add_loaded_page(page, &content, is_still, guard).map_err(|trouble| self.damage_error(trouble))
    }

    /// Requests a page from the device and does not wait. Makes a system call.
    pub(crate) fn will_need(&self, page: u32) {
        let inner = self.inner.lock();
        let (place, file) = (inner.location(page), inner.file.clone());
        drop(inner);
        if let Some(file) = file.filter(|_| place.at > 0) {
            file.will_need(self.page_file.offset(place.at), self.page_file.page as u64);
        }
    }

    fn read(&self, file: &dyn File, place: PageLocation) -> Result<Vec<u64>> {
        let mut bytes = vec![0; self.page_file.page];
        self.page_file.read(file, place.at, &mut bytes)?;
        let got = crc32c::crc32c(&bytes);
        if got != place.crc {
            let what = Damage::BadChecksum { expected: place.crc, got };
            return Err(self.page_file.damage_error(place.at, what));
        }
        let mut words = bytes.chunks_exact(8);
        let word = |bytes: &[u8]| sheaf_platform::codec::u64_at(bytes, 0);
        Ok(words.by_ref().map(word).collect())
    }

    fn invalid_page_error(&self, page: u32, structure: &'static str, expected: &'static str) -> Error {
        let place = self.inner.lock().location(page);
        let what = Damage::bad_field("page", expected, u64::from(page));
        Error::corrupt(&self.page_file.path, self.page_file.offset(place.at), structure, what)
    }

    /// Returns the error of the public API for an error of the trie.
    pub(crate) fn damage_error(&self, trouble: TrieError) -> Error {
        match trouble {
            TrieError::Invalid(page, structure) => {
                self.invalid_page_error(page, structure, "a page with consistent content")
            }
            TrieError::NotResident(page) => self.invalid_page_error(page, "trie", "a page in memory"),
            TrieError::OutOfPages => {
                let page = crate::resident_pages::MAX_PAGES;
                self.invalid_page_error(page, "trie", "a number below the limit of pages")
            }
        }
    }

    /// Reads every page of the present table and reports damage.
    ///
    /// # Errors
    ///
    /// Returns the error of `step`, or [`Error::Io`] if a read fails.
    pub(crate) fn verify(
        &self,
        report: &mut dyn FnMut(Error),
        step: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let (table, file) = {
            let inner = self.inner.lock();
            (inner.table.clone(), inner.file.clone())
        };
        let Some(file) = file else { return Ok(()) };
        if let Err(error) = self.page_file.check_head(&*file) {
            report(error);
        }
        for (page, place) in table.iter().enumerate().filter(|(_, place)| place.at > 0) {
            step(self.page_file.page as u64)?;
            match self.read(&*file, *place) {
                // A checkpoint may have freed the place, and another one reused it.
                Err(_) if self.inner.lock().table.get(page) != Some(place) => {}
                Err(error @ Error::Corrupt { .. }) => report(error),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    // Writes. One checkpoint runs at a time.

    /// Writes pages of the running checkpoint. After an error none of them counts as written.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the file cannot be created, extended or written.
    pub(crate) fn write(&self, frozen: &FrozenTable, pages: &[(u32, Box<[u64]>)]) -> Result<()> {
        let mut inner = self.inner.lock();
        self.ensure_next_table(&mut inner, frozen);
        let file = self.page_file.open_or_create(&mut inner.file)?;
        let mut places: Vec<u32> = Vec::with_capacity(pages.len());
        let taken = self.allocate_places(&mut inner, &*file, pages.len(), &mut places);
        drop(inner);
        let written = taken.and_then(|()| self.write_pages(&*file, &places, pages));
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        match (written, &mut inner.next_table) {
            (Ok(sums), Some(next)) => {
                for (((page, _), at), crc) in pages.iter().zip(places).zip(sums) {
                    let present = inner.table.get(*page as usize);
                    assert!(
                        present.is_none_or(|present| present.at != at),
                        "trie_file (I1): a page is not written to its place in the present image"
                    );
                    next[*page as usize] = PageLocation { at, crc };
                }
                Ok(())
            }
            (written, _) => {
                inner.free.extend(places);
                written.map(drop)
            }
        }
    }

    /// Makes the table of the running checkpoint, unless it exists.
    fn ensure_next_table(&self, inner: &mut TrieFileState, frozen: &FrozenTable) {
        if inner.next_table.is_none() {
            let mut next = inner.table.clone();
            next.resize(next.len().max(frozen.page_count as usize), PageLocation::default());
            for page in &frozen.freed {
                next[*page as usize] = PageLocation::default();
            }
            inner.next_table = Some(next);
        }
    }

    fn allocate_places(
        &self,
        inner: &mut TrieFileState,
        file: &dyn File,
        count: usize,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        while inner.free.len() < count {
            let most = if self.context.tiny { TINY_GROWTH_PLACES } else { MAX_GROWTH_PLACES };
            let end = inner.end.saturating_add(inner.end.clamp(MIN_GROWTH_PLACES, most));
            file.allocate(self.page_file.offset(end)).during(IoOp::Allocate, &self.page_file.path)?;
            inner.free.extend(inner.end..end);
            inner.end = end;
        }
        while out.len() < count {
            let Some(at) = inner.free.pop_first() else { break };
            out.push(at);
        }
        Ok(())
    }

    /// Writes the pages, with one call for each run of adjacent places. Returns the checksums.
    fn write_pages(&self, file: &dyn File, places: &[u32], pages: &[(u32, Box<[u64]>)]) -> Result<Vec<u32>> {
        let mut bytes = Vec::with_capacity(self.page_file.page * pages.len());
        let mut sums = Vec::with_capacity(pages.len());
        let mut start = 0;
        for index in 0..places.len() {
            let from = bytes.len();
            pages[index].1.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
            sums.push(crc32c::crc32c(&bytes[from..]));
            let is_end = places.get(index + 1) != Some(&(places[index] + 1));
            if is_end {
                file.write_at(self.page_file.offset(places[start]), &bytes)
                    .during(IoOp::Write, &self.page_file.path)?;
                bytes.clear();
                start = index + 1;
            }
        }
        Ok(sums)
    }

    /// Syncs the pages of the running checkpoint and returns the table for its image. All pages
    /// must be written.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a sync fails.
    pub(crate) fn finish_checkpoint(&self, frozen: &FrozenTable) -> Result<Vec<PageLocation>> {
        let mut inner = self.inner.lock();
        self.ensure_next_table(&mut inner, frozen);
        let (file, is_name_synced) = (inner.file.clone(), inner.is_name_synced);
        let table = inner.next_table.clone().unwrap_or_default();
        drop(inner);
        let Some(file) = file else { return Ok(table) };
        self.page_file.sync(&*file, is_name_synced)?;
        self.inner.lock().is_name_synced = true;
        Ok(table)
    }

    /// Makes the table of the finished checkpoint the present one. Its image is durable.
    pub(crate) fn image_published(&self) {
        let mut inner = self.inner.lock();
        let Some(next) = inner.next_table.take() else {
            inner.retired_places.push_back(Vec::new());
            return;
        };
        inner.stored_pages = next.iter().filter(|place| place.at > 0).count() as u64;
        let table = std::mem::replace(&mut inner.table, next);
        let is_gone = |(page, place): (usize, &PageLocation)| {
            (place.at > 0 && inner.table.get(page).is_none_or(|now| now.at != place.at)).then_some(place.at)
        };
        let gone: Vec<u32> = table.iter().enumerate().filter_map(is_gone).collect();
        inner.retired_places.push_back(gone);
    }

    /// Frees the places that only an older image refers to. No ROOT slot refers to that image any
    /// more.
    pub(crate) fn image_superseded(&self) {
        let mut inner = self.inner.lock();
        let places = inner.retired_places.pop_front().unwrap_or_default();
        inner.free.extend(places);
        let last = inner.table.iter().chain(inner.next_table.iter().flatten()).map(|place| place.at).max();
        let buried = inner.retired_places.iter().flatten().copied().max();
        let end = last.max(buried).unwrap_or(0) + 1;
        // Truncates the file behind the last used place if that frees much. Not during a
        // checkpoint, which may write to free places there.
        if inner.next_table.is_none()
            && inner.end - end > (inner.end / 4).max(MIN_GROWTH_PLACES)
            && let Some(file) = inner.file.clone()
            && file.set_len(self.page_file.offset(end)).is_ok()
        {
            inner.free.split_off(&end);
            inner.end = end;
        }
    }

    /// Pins the pages of the last image until [`TrieFile::image_superseded`] is called.
    pub(crate) fn pin_files(&self) -> Result<Option<Box<dyn PinnedFiles>>> {
        let file = self.inner.lock().file.clone();
        self.page_file.pin_files(file.as_deref())
    }

    /// Removes the file. The keyspace is dropped.
    pub(crate) fn drop_data(&self) {
        *self.inner.lock() = TrieFileState { end: 1, ..TrieFileState::default() };
        self.page_file.remove();
    }

    pub(crate) fn close(&self) {
        self.inner.lock().file = None;
    }
}

/// State of the page numbers that a checkpoint froze.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrozenTable {
    page_count: u32,
    freed: Vec<u32>,
}

impl FrozenTable {
    pub(crate) fn of(frozen: &FrozenTrie) -> FrozenTable {
        FrozenTable { page_count: frozen.page_count, freed: frozen.freed.clone() }
    }
}
