//! # Space: the trie's pages on disk
//!
//! `own/<keyspace>/trie`, a row of places of one page each. A page is never written where an image of a checkpoint has it:
//! each checkpoint puts what changed into free places, and its image says where every page is now. So nothing is torn, no
//! log of pages is written, and what the last checkpoint left stays whole until the next one is durable and named by ROOT.
//!
//! ## Picture
//!
//! ```text
//!  place 0: head | page | free | page | page | ...           table of an image: page -> place, checksum
//!                   ^             \__ written by the checkpoint under way, named by no image yet
//!  frozen page ──> free place ──> image saved ──> place of before: grave ──> ROOT's slots are past it ──> free
//! ```
//!
//! ## Invariants
//!
//! 1. A place that an image names which a slot of ROOT may name is not written.
//! 2. A page that is not in memory stands on disk as the table of the checkpoint under way says, or else the present one.
//!
//! ## Crash
//!
//! What was written and is in no image is garbage in free places. An image that ROOT names has all its pages, since they are
//! synced before it. The pages hold commits that may be durable nowhere else only until then: the store makes these
//! durable before ROOT names the image.
//!
//! ## Damage
//!
//! A page is checked against its table's checksum whenever it is read, so that one that is not what this image wrote is
//! found out, also if it was right once.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use sheaf_base::backup_files::PinnedFiles;
use sheaf_base::disk::File;
use sheaf_base::engine_context::EngineContext;
use sheaf_base::error::{Damage, Error, IoContext, Result};
use sheaf_base::page_file::PageFile;
use sheaf_base::sync::Mutex;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::KeyspaceId;

use crate::heap::FrozenTrie;
use crate::trie::{Trie, TrieError};

const FILE: &str = "trie";
const MAGIC: &[u8; 8] = b"SHEAFTRI";
const FORMAT: u32 = 1;
/// The file grows by as many places as it has, but by so many at least and at most: most keyspaces
/// of many are small.
const MIN_GROWTH_PLACES: u32 = 4;
const MAX_GROWTH_PLACES: u32 = 256;
const TINY_GROWTH_PLACES: u32 = 16;

/// Where a page is, and its checksum. Place 0 holds no page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageLocation {
    pub(crate) at: u32,
    pub(crate) crc: u32,
}

#[derive(Debug, Default)]
struct TrieFileState {
    file: Option<Arc<dyn File>>,
    /// By page: as the last image that was saved has it.
    table: Vec<PageLocation>,
    /// Pages that have a place in it.
    stored_pages: u64,
    /// The same, for the checkpoint under way.
    next_table: Option<Vec<PageLocation>>,
    free: BTreeSet<u32>,
    /// Places there are, the head's among them.
    end: u32,
    /// Places of images before the present one, the oldest first.
    retired_places: VecDeque<Vec<u32>>,
    is_name_synced: bool,
}

impl TrieFileState {
    /// Where a page is that is not in memory (I2).
    fn location(&self, page: u32) -> PageLocation {
        let table = self.next_table.as_ref().unwrap_or(&self.table);
        table.get(page as usize).copied().unwrap_or_default()
    }
}

/// See the module.
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

    /// Takes up the table of an image.
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

    /// Bytes of the table, and of the pages that the last image names.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (size_of_val(&inner.table[..]) as u64, inner.stored_pages * self.page_file.page as u64)
    }

    /// Reads a page and puts it into memory.
    pub(crate) fn load(&self, page: u32, trie: &Trie, guard: &Guard) -> Result<()> {
        let (place, file) = {
            let inner = self.inner.lock();
            (inner.location(page), inner.file.clone())
        };
        let Some(file) = file.filter(|_| place.at > 0) else {
            return Err(self.invalid_page_error(page, "reference"));
        };
        let content = self.read(&*file, place)?;
        // It may have come, changed, and gone again meanwhile.
        let is_still = || self.inner.lock().location(page) == place;
        trie.add_loaded_page(page, &content, is_still, guard).map_err(|trouble| self.damage_error(trouble))
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
        let word = |bytes: &[u8]| sheaf_base::frame::u64_at(bytes, 0);
        Ok(words.by_ref().map(word).collect())
    }

    fn invalid_page_error(&self, page: u32, field: &'static str) -> Error {
        let place = self.inner.lock().location(page);
        Error::corrupt(
            &self.page_file.path,
            self.page_file.offset(place.at),
            Damage::BadField { field, value: u64::from(page) },
        )
    }

    /// What a trouble of the trie is, as an error.
    pub(crate) fn damage_error(&self, trouble: TrieError) -> Error {
        match trouble {
            TrieError::Invalid(page, field) => self.invalid_page_error(page, field),
            TrieError::NotResident(page) => self.invalid_page_error(page, "page not in memory"),
            TrieError::OutOfPages => self.invalid_page_error(crate::resident_pages::MAX_PAGES, "pages"),
        }
    }

    /// Reads every page of the present table that is on disk.
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
                // A checkpoint may have let go of the place, and another one used it.
                Err(_) if self.inner.lock().table.get(page) != Some(place) => {}
                Err(error @ Error::Corrupt { .. }) => report(error),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    // Writing: one checkpoint at a time.

    /// Writes pages of the checkpoint under way. On an error none counts as written.
    pub(crate) fn write(&self, frozen: &FrozenTable, pages: &[(u32, Box<[u64]>)]) -> Result<()> {
        let mut inner = self.inner.lock();
        self.ensure_next_table(&mut inner, frozen);
        let file = self.page_file.open_or_create(&mut inner.file)?;
        let mut places: Vec<u32> = Vec::with_capacity(pages.len());
        let taken = self.allocate_places(&mut inner, &*file, pages.len(), &mut places);
        drop(inner);
        let written = taken.and_then(|()| self.write_pages(&*file, &places, pages));
        let mut inner = self.inner.lock();
        match (written, &mut inner.next_table) {
            (Ok(sums), Some(next)) => {
                for (((page, _), at), crc) in pages.iter().zip(places).zip(sums) {
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

    /// The table of the checkpoint under way, before its pages are written.
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
            file.allocate(self.page_file.offset(end)).during("allocate", &self.page_file.path)?;
            inner.free.extend(inner.end..end);
            inner.end = end;
        }
        while out.len() < count {
            let Some(at) = inner.free.pop_first() else { break };
            out.push(at);
        }
        Ok(())
    }

    /// Writes what stands side by side with one call; the checksums.
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
                    .during("write", &self.page_file.path)?;
                bytes.clear();
                start = index + 1;
            }
        }
        Ok(sums)
    }

    /// All pages of the checkpoint are written: makes them durable; the table for its image.
    pub(crate) fn finish_checkpoint(&self, frozen: &FrozenTable) -> Result<Vec<PageLocation>> {
        let mut inner = self.inner.lock();
        self.ensure_next_table(&mut inner, frozen);
        let (file, is_name_synced) = (inner.file.clone(), inner.is_name_synced);
        let table = inner.next_table.clone().unwrap_or_default();
        drop(inner);
        let Some(file) = file else { return Ok(table) };
        self.page_file.sync(&*file, is_name_synced, ["sync of a trie", "sync of a trie's directory"])?;
        self.inner.lock().is_name_synced = true;
        Ok(table)
    }

    /// The image is durable.
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

    /// No slot of ROOT names the image before.
    pub(crate) fn image_superseded(&self) {
        let mut inner = self.inner.lock();
        let places = inner.retired_places.pop_front().unwrap_or_default();
        inner.free.extend(places);
        let last = inner.table.iter().chain(inner.next_table.iter().flatten()).map(|place| place.at).max();
        let buried = inner.retired_places.iter().flatten().copied().max();
        let end = last.max(buried).unwrap_or(0) + 1;
        // Gives back what is free behind all that is used, once it is much. A checkpoint that
        // writes is not in the way.
        if inner.next_table.is_none()
            && inner.end - end > (inner.end / 4).max(MIN_GROWTH_PLACES)
            && let Some(file) = inner.file.clone()
            && file.set_len(self.page_file.offset(end)).is_ok()
        {
            inner.free.split_off(&end);
            inner.end = end;
        }
    }

    /// The pages of the last image, for as long as [`TrieFile::image_superseded`] is not called.
    pub(crate) fn pin_files(&self) -> Result<Option<Box<dyn PinnedFiles>>> {
        let file = self.inner.lock().file.clone();
        self.page_file.pin_files(file.as_deref())
    }

    /// The keyspace is dropped.
    pub(crate) fn drop_data(&self) {
        *self.inner.lock() = TrieFileState { end: 1, ..TrieFileState::default() };
        self.page_file.remove();
    }

    pub(crate) fn close(&self) {
        self.inner.lock().file = None;
    }
}

/// What a checkpoint has to know of the pages there were.
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
