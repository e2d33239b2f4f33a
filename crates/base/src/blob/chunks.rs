//! # Chunks: large values side by side, in slots of one size a file
//!
//! Making and removing a file is most of what a value of up to a megabyte costs. So a value that no
//! engine wants as a file is written to a slot of a chunk, where another one was before: no blocks
//! are found or freed, no name is made, and one that is replaced before it was written back never
//! reaches the device.
//!
//! ## Picture
//!
//! ```text
//!  stage   take a slot | write the value in whole units | write the stamp          in the kernel; then the commit
//!  round   sync each chunk that was written to, and the names of those that were made; then the logs
//!  remove  the slot is free, or will be with its last reader; an empty chunk that is not needed goes, and so do a slot's blocks
//!  open    slots are taken as engines name them | chunks without any go | a head is read when a slot of it is to be used
//! ```
//!
//! `place` has the layout, `slots` the life of a slot and the argument why nothing that is named or
//! read is written over. Class, fields and stamps stand in the head; nothing there is needed to
//! read a value. The class is written once, a stamp with each value: it says which generation the
//! next one has, also if the record of this one never comes to count.
//!
//! ## Why not for every size
//!
//! The paper gives a value that is larger than a chunk chunks of its own; on a file system that is
//! a file of its own, which is what it gets: it fits, and its blocks come back when it goes.
//!
//! ## Invariants
//!
//! 1. When a record counts, its value and its stamp are durable, and so are length and name of the
//!    chunk: the round synced them before the log, or recovery found the value whole and wrote all
//!    of it again (`rewrite_slot`).
//! 2. So the stamp that an opening finds is at least the generation of any record that ever
//!    counted; one that never counted is never looked at again. Together with `slots` 3, numbers
//!    never repeat.
//! 3. What is written at once is whole units, the last one filled up with zeros: no page has to be
//!    read for the part that stays.
//!
//! 4. Nothing is written, punched or removed here once the database is closed ([`Blobs::close`]
//!    waits for those who are at it): the slot may be another value's in the next life.
//!
//! ## Threads
//!
//! Any. The table's lock is taken last of all, and not held over I/O. An open value outlives the
//! database as a file would, but its bytes do not: once the lock of the database may be another's,
//! reading answers `Closed`.
//!
//! ## Crash
//!
//! A value without a record leaves a stamp and bytes that nobody names. A chunk whose head never
//! reached the device has no record that counts, and goes. One whose head is damaged goes on being
//! read, and gets no new values.
//!
//! ## Costs
//!
//! Two or three writes a value. A chunk's head is one page more to sync; it is read once a life,
//! when the first slot of it is used again. [`MAX_OPEN_CHUNKS`] files stay open.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use super::slot_allocator::{SlotAllocation, SlotAllocator};
use super::slot_layout::{self, ChunkLayout, HEAD, MAX_CHUNKS, SlotLocation, slots, stamp, stamp_at};
use super::{BlobRef, BlobStats, Blobs, UncommittedBlob};
use crate::blob_reader::OpenBlob;
use crate::disk::{File, OpenMode, read_up_to_end, set_len_dirty};
use crate::error::{Damage, Error, IoContext, Result};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, RwLock, RwLockReadGuard};

/// Chunks that are kept open.
const MAX_OPEN_CHUNKS: usize = 64;
const TINY_MAX_OPEN_CHUNKS: usize = 2;
/// Slots of a class whose blocks are given back at once.
const MAX_PUNCHED: usize = 256;
/// The largest unit.
const UNIT: usize = 4096;

/// What is known of chunks in memory.
#[derive(Debug)]
pub(super) struct ChunkTable {
    state: Mutex<ChunkTableState>,
    /// Held, to read, by whoever changes a chunk (I4).
    close_lock: RwLock<()>,
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct ChunkTableState {
    slots: SlotAllocator,
    /// Before it is settled nothing is taken or released, and what is read needs no pin. Without
    /// writing it never is.
    is_recovered: bool,
    files: HashMap<u64, Arc<dyn File>>,
    /// In the order they were opened; some are gone.
    open_order: VecDeque<u64>,
    max_open: usize,
}

impl ChunkTable {
    pub(super) fn new(tiny: bool) -> Arc<ChunkTable> {
        let state = ChunkTableState {
            slots: SlotAllocator::default(),
            is_recovered: false,
            files: HashMap::new(),
            open_order: VecDeque::new(),
            max_open: if tiny { TINY_MAX_OPEN_CHUNKS } else { MAX_OPEN_CHUNKS },
        };
        Arc::new(ChunkTable {
            state: Mutex::new(state),
            close_lock: RwLock::new(()),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Keeps the database from being closed. None if it is.
    fn block_close(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let life = self.close_lock.read();
        (!self.is_closed.load(Ordering::Acquire)).then_some(life)
    }

    /// These are taken. `frozen`: and others may be.
    pub(super) fn mark_used(
        &self,
        places: impl Iterator<Item = SlotLocation>,
        layout: ChunkLayout,
        frozen: bool,
    ) {
        let mut state = self.state.lock();
        places.for_each(|place| state.slots.mark_used(place, layout));
        state.slots.finish_recovery(frozen);
    }

    /// All that are taken were found: from now on others may be.
    pub(super) fn finish_recovery(&self) {
        self.state.lock().is_recovered = true;
    }

    pub(super) fn stats(&self, layout: ChunkLayout) -> BlobStats {
        self.state.lock().slots.stats(layout)
    }

    pub(super) fn contains(&self, chunk: u64) -> bool {
        self.state.lock().slots.contains(chunk)
    }

    pub(super) fn release(&self, place: SlotLocation) {
        self.state.lock().slots.release(place);
    }

    pub(super) fn is_name_unsynced(&self, chunk: u64) -> bool {
        self.state.lock().slots.is_name_unsynced(chunk)
    }

    pub(super) fn mark_names_synced(&self, chunks: impl Iterator<Item = u64>) {
        let mut state = self.state.lock();
        chunks.for_each(|chunk| state.slots.mark_name_synced(chunk));
    }
}

impl ChunkTableState {
    fn keep_open(&mut self, chunk: u64, file: &Arc<dyn File>) {
        if self.files.insert(chunk, Arc::clone(file)).is_none() {
            self.open_order.push_back(chunk);
        }
        while self.open_order.len() > self.max_open {
            let Some(oldest) = self.open_order.pop_front() else { break };
            self.files.remove(&oldest);
        }
    }

    fn close(&mut self, chunk: u64) {
        if self.files.remove(&chunk).is_some() {
            self.open_order.retain(|other| *other != chunk);
        }
    }
}

/// Keeps a slot from being used for another value, until the database is closed: what stands there
/// then is the next life's business.
#[derive(Debug)]
pub(crate) struct SlotPin {
    table: Arc<ChunkTable>,
    /// None where nothing is ever written.
    place: Option<SlotLocation>,
}

impl SlotPin {
    /// Whether what was just read may be another value's.
    pub(crate) fn is_reused(&self) -> bool {
        self.table.is_closed.load(Ordering::Acquire)
    }
}

impl Drop for SlotPin {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.table.state.lock().slots.unpin(place);
        }
    }
}

impl Blobs {
    /// Stages a value in a slot, in the kernel. None if it needs a file of its own.
    pub fn try_write_slot(self: &Arc<Blobs>, value: &[u8]) -> Result<Option<UncommittedBlob>> {
        let Some(class) = self.layout.class_for(value.len() as u64) else { return Ok(None) };
        let Ok(len) = u32::try_from(value.len()) else { return Ok(None) };
        let Some(life) = self.chunks.block_close() else { return Err(Error::Closed) };
        self.volume();
        let Some((place, file)) = self.allocate_slot(class)? else { return Ok(None) };
        let blob = BlobRef { id: place.id(), len, sum: crc32c::crc32c(value) };
        let staged = UncommittedBlob { blob, file, owner: Arc::clone(self), is_committed: false };
        let filled = self.write_slot(&*staged.file, place, value).during("write", &self.path(blob.id));
        drop(life); // what is given up stays by itself, and a close may be waiting in between
        filled.map(|()| Some(staged))
    }

    /// Takes a slot, in a chunk that is made if there is none. None if there can be no more chunks.
    fn allocate_slot(&self, class: u8) -> Result<Option<(SlotLocation, Arc<dyn File>)>> {
        loop {
            let mut state = self.chunks.state.lock();
            match state.slots.allocate(class) {
                SlotAllocation::Slot(place) => {
                    drop(state);
                    let file = self.open_chunk(place.chunk);
                    if let Err(error) = &file {
                        let mut state = self.chunks.state.lock();
                        state.slots.release(place);
                        if is_not_found(error) {
                            state.slots.freeze(place.chunk); // somebody took it away: readers will tell
                            continue;
                        }
                    }
                    return Ok(Some((place, file?)));
                }
                SlotAllocation::NeedsRead(chunk) => {
                    drop(state);
                    self.read_generations(chunk, class)?;
                }
                SlotAllocation::NoSlot => {
                    drop(state);
                    return self.create_chunk(class);
                }
            }
        }
    }

    /// A value that was staged, as far as that came, is not committed. A chunk that it leaves empty
    /// goes at once: there may be no room for it.
    pub(super) fn discard_slot(&self, place: SlotLocation) -> Result<()> {
        let Some(_life) = self.chunks.block_close() else { return Ok(()) };
        let mut state = self.chunks.state.lock();
        state.slots.release(place);
        if !state.slots.remove_if_empty(place.chunk) {
            return Ok(());
        }
        state.close(place.chunk);
        drop(state);
        self.remove_file(place.chunk, "chunk").map(drop)
    }

    fn create_chunk(&self, class: u8) -> Result<Option<(SlotLocation, Arc<dyn File>)>> {
        let chunk = self.number()?;
        if chunk >= MAX_CHUNKS {
            self.record_removal(chunk);
            return Ok(None);
        }
        let file = self.create(chunk, "chunk")?;
        if let Err(error) = self.init_chunk(&*file, chunk, class) {
            let _ = self.remove_file(chunk, "chunk"); // an orphan, if it stays
            return Err(error);
        }
        let mut state = self.chunks.state.lock();
        state.keep_open(chunk, &file);
        Ok(Some((state.slots.add_chunk(chunk, class), file)))
    }

    fn init_chunk(&self, file: &dyn File, chunk: u64, class: u8) -> Result<()> {
        let path = self.file_path(chunk, "chunk");
        file.write_at(0, &self.new_head(chunk, class)).during("write", &path)?;
        file.set_len(self.layout.chunk_bytes()).during("extend", &path)
    }

    /// The head of a chunk in which nothing was written yet.
    fn new_head(&self, chunk: u64, class: u8) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        let fields = self.layout.fields(self.store, chunk, class);
        head[..fields.len()].copy_from_slice(&fields);
        for slot in 0..slots(class) {
            head[stamp_at(slot)..][..8].copy_from_slice(&stamp(chunk, slot, 0));
        }
        head
    }

    fn write_slot(&self, file: &dyn File, place: SlotLocation, value: &[u8]) -> std::io::Result<()> {
        let (base, unit) = (self.layout.offset(place), usize::try_from(self.layout.unit).unwrap_or(UNIT));
        let (whole, rest) = value.split_at(value.len() - value.len() % unit);
        if !whole.is_empty() {
            file.write_at(base, whole)?;
        }
        if !rest.is_empty() {
            let mut last = [0; UNIT];
            last[..rest.len()].copy_from_slice(rest);
            file.write_at(base + whole.len() as u64, &last[..unit])?;
        }
        let stamp = stamp(place.chunk, place.slot, place.generation);
        file.write_at(stamp_at(place.slot) as u64, &stamp)
    }

    fn open_chunk(&self, chunk: u64) -> Result<Arc<dyn File>> {
        if let Some(file) = self.chunks.state.lock().files.get(&chunk) {
            return Ok(Arc::clone(file));
        }
        let path = self.file_path(chunk, "chunk");
        let file = self.disk.open(&path, OpenMode::ReadWrite).during("open", &path)?;
        let mut state = self.chunks.state.lock();
        if state.slots.contains(chunk) {
            state.keep_open(chunk, &file);
        }
        Ok(file)
    }

    /// Reads the stamps of a chunk of an earlier life. One whose head is damaged, or cannot be
    /// read, gets no new values.
    fn read_generations(&self, chunk: u64, class: u8) -> Result<()> {
        let head = self.read_head(chunk, class);
        if let Err(error) = &head
            && !error.is_corrupt()
            && !is_not_found(error)
            && !matches!(error, Error::Io { op: "read", .. })
        {
            return head.map(drop);
        }
        self.chunks.state.lock().slots.set_generations(chunk, head.as_ref().ok().map(|head| &head[..]));
        Ok(())
    }

    fn read_head(&self, chunk: u64, class: u8) -> Result<[u8; HEAD]> {
        let path = self.file_path(chunk, "chunk");
        let file = self.disk.open(&path, OpenMode::Read).during("open", &path)?;
        let mut head = [0; HEAD];
        if let Some(got) = read_up_to_end(&*file, 0, &mut head).during("read", &path)? {
            return Err(Error::corrupt(&path, got, Damage::Truncated { got, expected: HEAD as u64 }));
        }
        let fields = self.layout.fields(self.store, chunk, class);
        match (0..fields.len()).find(|at| head[*at] != fields[*at]) {
            Some(at) => {
                let (field, value) = ("chunk header", u64::from(head[at]));
                Err(Error::corrupt(&path, at as u64, Damage::BadField { field, value }))
            }
            None => Ok(head),
        }
    }

    pub(super) fn find_in_slot(&self, place: SlotLocation, blob: &BlobRef) -> Result<Option<OpenBlob>> {
        let path = self.path(blob.id);
        let (pin, file, is_settled) = {
            let mut state = self.chunks.state.lock();
            if state.is_recovered && !state.slots.pin(place) {
                return Ok(None);
            }
            let pin = SlotPin { table: Arc::clone(&self.chunks), place: state.is_recovered.then_some(place) };
            (pin, state.files.get(&place.chunk).map(Arc::clone), state.is_recovered)
        };
        let file = match file {
            Some(file) => file,
            None if is_settled => match self.open_chunk(place.chunk) {
                Err(error) if is_not_found(&error) => return Ok(None),
                other => other?,
            },
            None => match self.disk.open(&path, OpenMode::Read) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                file => file.during("open", &path)?,
            },
        };
        if u64::from(blob.len) > self.layout.slot_bytes(place.class) {
            let (got, max) = (u64::from(blob.len), self.layout.slot_bytes(place.class));
            return Err(Error::corrupt(&path, 0, Damage::BadLength { got, max }));
        }
        Ok(Some(OpenBlob::in_slot(file, path, *blob, self.layout.offset(place), pin)))
    }

    /// Writes a slot again as it is, and the head with at least its stamp, and syncs them.
    pub(super) fn rewrite_slot(&self, place: SlotLocation, value: &OpenBlob, file: &dyn File) -> Result<()> {
        let path = self.file_path(place.chunk, "chunk");
        let base = self.layout.offset(place);
        value.for_each_stride(|at, bytes| file.write_at(base + at, bytes).during("write", &path))?;
        let mut head = match self.read_head(place.chunk, place.class) {
            Err(error) if error.is_corrupt() => self.new_head(place.chunk, place.class),
            head => head?,
        };
        let newest =
            slot_layout::generation_in(&head, place.chunk, place.slot).unwrap_or(0).max(place.generation);
        head[stamp_at(place.slot)..][..8].copy_from_slice(&stamp(place.chunk, place.slot, newest));
        file.write_at(0, &head).during("write", &path)?;
        set_len_dirty(file, self.layout.chunk_bytes()).during("extend", &path)?;
        file.sync().during("sync", &path)
    }

    /// The lock of the database is about to be given back: waits for those who write to chunks, and
    /// refuses others (I4).
    pub fn close(&self) {
        self.chunks.is_closed.store(true, Ordering::Release);
        drop(self.chunks.close_lock.write());
    }

    /// Gives back chunks that are empty: `all`; or what was not needed since the last call, and the
    /// blocks of free slots.
    pub fn trim(&self, all: bool) {
        let Some(_life) = self.chunks.block_close() else { return };
        let surplus = {
            let mut state = self.chunks.state.lock();
            let surplus = state.slots.take_empty_chunks(all);
            surplus.iter().for_each(|chunk| state.close(*chunk));
            surplus
        };
        for chunk in &surplus {
            let _ = self.remove_file(*chunk, "chunk"); // one that stays is swept at the next opening
        }
        let excess =
            if all { Vec::new() } else { self.chunks.state.lock().slots.take_excess_slots(MAX_PUNCHED) };
        for place in excess {
            if let Ok(file) = self.open_chunk(place.chunk) {
                // What cannot be given back is used again one day.
                let _ = file.punch_hole(self.layout.offset(place), self.layout.slot_bytes(place.class));
            }
            self.chunks.state.lock().slots.mark_punched(place);
        }
    }

    /// The files of chunks; each whose head is damaged goes to `report`.
    pub fn verify(&self, report: &mut dyn FnMut(Error)) -> Vec<PathBuf> {
        let chunks = self.chunks.state.lock().slots.numbers();
        let mut paths = Vec::new();
        for (chunk, class) in chunks {
            match self.check_head(chunk, class) {
                Err(error) if is_not_found(&error) => continue, // gone meanwhile, or whoever needs it says so
                Err(error) => report(error),
                Ok(()) => {}
            }
            paths.push(self.file_path(chunk, "chunk"));
        }
        paths
    }

    fn check_head(&self, chunk: u64, class: u8) -> Result<()> {
        let head = self.read_head(chunk, class)?;
        let damaged = |slot: &u8| slot_layout::generation_in(&head, chunk, *slot).is_none();
        match (0..slots(class)).find(damaged) {
            Some(slot) => {
                let (field, value) = ("slot stamp", u64::from(slot));
                let path = self.file_path(chunk, "chunk");
                Err(Error::corrupt(&path, stamp_at(slot) as u64, Damage::BadField { field, value }))
            }
            None => Ok(()),
        }
    }
}

fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}
