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

use sheaf_base::disk::File;
use sheaf_base::error::{Damage, Error, IoContext, Result};
use sheaf_base::ground::Ground;
use sheaf_base::own::OwnFiles;
use sheaf_base::paged::Paged;
use sheaf_base::sync::Mutex;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::KeyspaceId;

use crate::heap::Frozen;
use crate::trie::{Trie, Trouble};

const FILE: &str = "trie";
const MAGIC: &[u8; 8] = b"SHEAFTRI";
const FORMAT: u32 = 1;
/// The file grows by as many places as it has, but by so many at least and at most: most keyspaces
/// of many are small.
const LEAST_REGION: u32 = 4;
const REGION: u32 = 256;
const TINY_REGION: u32 = 16;

/// Where a page is, and its checksum. Place 0 holds no page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) at: u32,
    pub(crate) crc: u32,
}

#[derive(Debug, Default)]
struct Inner {
    file: Option<Arc<dyn File>>,
    /// By page: as the last image that was saved has it.
    table: Vec<Place>,
    /// Pages that have a place in it.
    named: u64,
    /// The same, for the checkpoint under way.
    next: Option<Vec<Place>>,
    free: BTreeSet<u32>,
    /// Places there are, the head's among them.
    end: u32,
    /// Places of images before the present one, the oldest first.
    graves: VecDeque<Vec<u32>>,
    is_named: bool,
}

impl Inner {
    /// Where a page is that is not in memory (I2).
    fn place(&self, page: u32) -> Place {
        let table = self.next.as_ref().unwrap_or(&self.table);
        table.get(page as usize).copied().unwrap_or_default()
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Space {
    ground: Arc<Ground>,
    pub(crate) paged: Paged,
    inner: Mutex<Inner>,
}

impl Space {
    pub(crate) fn new(ground: Arc<Ground>, id: KeyspaceId, page_bytes: usize) -> Space {
        let paged = Paged::new(Arc::clone(&ground), id, FILE, (MAGIC, FORMAT), page_bytes);
        Space { ground, paged, inner: Mutex::new(Inner { end: 1, ..Inner::default() }) }
    }

    /// Takes up the table of an image.
    pub(crate) fn restore(&self, table: Vec<Place>) -> Result<()> {
        let mut inner = self.inner.lock();
        let used: BTreeSet<u32> = table.iter().map(|place| place.at).filter(|at| *at > 0).collect();
        let end = used.last().map_or(1, |last| last + 1);
        let Some(file) = self.paged.open(end)? else { return Ok(()) };
        inner.named = used.len() as u64;
        inner.free = (1..end).filter(|at| !used.contains(at)).collect();
        (inner.end, inner.file, inner.table, inner.is_named) = (end, Some(file), table, true);
        Ok(())
    }

    /// Bytes of the table, and of the pages that the last image names.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (size_of_val(&inner.table[..]) as u64, inner.named * self.paged.page as u64)
    }

    /// Reads a page and puts it into memory.
    pub(crate) fn load(&self, page: u32, trie: &Trie, guard: &Guard) -> Result<()> {
        let (place, file) = {
            let inner = self.inner.lock();
            (inner.place(page), inner.file.clone())
        };
        let Some(file) = file.filter(|_| place.at > 0) else { return Err(self.nonsense(page, "reference")) };
        let content = self.read(&*file, place)?;
        // It may have come, changed, and gone again meanwhile.
        let is_still = || self.inner.lock().place(page) == place;
        trie.arrive(page, &content, is_still, guard).map_err(|trouble| self.damaged(trouble))
    }

    fn read(&self, file: &dyn File, place: Place) -> Result<Vec<u64>> {
        let mut bytes = vec![0; self.paged.page];
        self.paged.read(file, place.at, &mut bytes)?;
        let got = crc32c::crc32c(&bytes);
        if got != place.crc {
            let what = Damage::BadChecksum { expected: place.crc, got };
            return Err(self.paged.damaged(place.at, what));
        }
        let mut words = bytes.chunks_exact(8);
        let word = |bytes: &[u8]| sheaf_base::frame::u64_at(bytes, 0);
        Ok(words.by_ref().map(word).collect())
    }

    fn nonsense(&self, page: u32, field: &'static str) -> Error {
        let place = self.inner.lock().place(page);
        Error::corrupt(
            &self.paged.path,
            self.paged.offset(place.at),
            Damage::BadField { field, value: u64::from(page) },
        )
    }

    /// What a trouble of the trie is, as an error.
    pub(crate) fn damaged(&self, trouble: Trouble) -> Error {
        match trouble {
            Trouble::Nonsense(page, field) => self.nonsense(page, field),
            Trouble::Absent(page) => self.nonsense(page, "page not in memory"),
            Trouble::Full => self.nonsense(crate::page::MOST_PAGES, "pages"),
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
        if let Err(error) = self.paged.check_head(&*file) {
            report(error);
        }
        for (page, place) in table.iter().enumerate().filter(|(_, place)| place.at > 0) {
            step(self.paged.page as u64)?;
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
        self.begin(&mut inner, frozen);
        let file = self.paged.made(&mut inner.file)?;
        let mut places: Vec<u32> = Vec::with_capacity(pages.len());
        let taken = self.take_places(&mut inner, &*file, pages.len(), &mut places);
        drop(inner);
        let written = taken.and_then(|()| self.write_at(&*file, &places, pages));
        let mut inner = self.inner.lock();
        match (written, &mut inner.next) {
            (Ok(sums), Some(next)) => {
                for (((page, _), at), crc) in pages.iter().zip(places).zip(sums) {
                    next[*page as usize] = Place { at, crc };
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
    fn begin(&self, inner: &mut Inner, frozen: &FrozenTable) {
        if inner.next.is_none() {
            let mut next = inner.table.clone();
            next.resize(next.len().max(frozen.page_count as usize), Place::default());
            for page in &frozen.freed {
                next[*page as usize] = Place::default();
            }
            inner.next = Some(next);
        }
    }

    fn take_places(
        &self,
        inner: &mut Inner,
        file: &dyn File,
        count: usize,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        while inner.free.len() < count {
            let most = if self.ground.tiny { TINY_REGION } else { REGION };
            let end = inner.end.saturating_add(inner.end.clamp(LEAST_REGION, most));
            file.allocate(self.paged.offset(end)).during("allocate", &self.paged.path)?;
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
    fn write_at(&self, file: &dyn File, places: &[u32], pages: &[(u32, Box<[u64]>)]) -> Result<Vec<u32>> {
        let mut bytes = Vec::with_capacity(self.paged.page * pages.len());
        let mut sums = Vec::with_capacity(pages.len());
        let mut start = 0;
        for index in 0..places.len() {
            let from = bytes.len();
            pages[index].1.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
            sums.push(crc32c::crc32c(&bytes[from..]));
            let is_end = places.get(index + 1) != Some(&(places[index] + 1));
            if is_end {
                file.write_at(self.paged.offset(places[start]), &bytes).during("write", &self.paged.path)?;
                bytes.clear();
                start = index + 1;
            }
        }
        Ok(sums)
    }

    /// All pages of the checkpoint are written: makes them durable; the table for its image.
    pub(crate) fn seal(&self, frozen: &FrozenTable) -> Result<Vec<Place>> {
        let mut inner = self.inner.lock();
        self.begin(&mut inner, frozen);
        let (file, is_named) = (inner.file.clone(), inner.is_named);
        let table = inner.next.clone().unwrap_or_default();
        drop(inner);
        let Some(file) = file else { return Ok(table) };
        self.paged.sync(&*file, is_named, ["sync of a trie", "sync of a trie's directory"])?;
        self.inner.lock().is_named = true;
        Ok(table)
    }

    /// The image is durable.
    pub(crate) fn saved(&self) {
        let mut inner = self.inner.lock();
        let Some(next) = inner.next.take() else {
            inner.graves.push_back(Vec::new());
            return;
        };
        inner.named = next.iter().filter(|place| place.at > 0).count() as u64;
        let table = std::mem::replace(&mut inner.table, next);
        let is_gone = |(page, place): (usize, &Place)| {
            (place.at > 0 && inner.table.get(page).is_none_or(|now| now.at != place.at)).then_some(place.at)
        };
        let gone: Vec<u32> = table.iter().enumerate().filter_map(is_gone).collect();
        inner.graves.push_back(gone);
    }

    /// No slot of ROOT names the image before.
    pub(crate) fn outlived(&self) {
        let mut inner = self.inner.lock();
        let places = inner.graves.pop_front().unwrap_or_default();
        inner.free.extend(places);
        let last = inner.table.iter().chain(inner.next.iter().flatten()).map(|place| place.at).max();
        let buried = inner.graves.iter().flatten().copied().max();
        let end = last.max(buried).unwrap_or(0) + 1;
        // Gives back what is free behind all that is used, once it is much. A checkpoint that writes is not in the way.
        if inner.next.is_none()
            && inner.end - end > (inner.end / 4).max(LEAST_REGION)
            && let Some(file) = inner.file.clone()
            && file.set_len(self.paged.offset(end)).is_ok()
        {
            inner.free.split_off(&end);
            inner.end = end;
        }
    }

    /// The pages of the last image, for as long as [`Space::outlived`] is not called.
    pub(crate) fn still(&self) -> Result<Option<Box<dyn OwnFiles>>> {
        let file = self.inner.lock().file.clone();
        self.paged.still(file.as_deref())
    }

    /// The keyspace is dropped.
    pub(crate) fn retire(&self) {
        *self.inner.lock() = Inner { end: 1, ..Inner::default() };
        self.paged.remove();
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
    pub(crate) fn of(frozen: &Frozen) -> FrozenTable {
        FrozenTable { page_count: frozen.page_count, freed: frozen.freed.clone() }
    }
}
