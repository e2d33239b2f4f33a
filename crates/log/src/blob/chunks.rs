//! # Chunks: files of slots of equal size for large values
//!
//! Creating and removing files dominates the cost of values up to about a megabyte. A value that
//! needs no file of its own is therefore written to a slot of a chunk file, which other values used
//! before. No blocks or names are allocated. A value that is replaced before writeback never
//! reaches the device.
//!
//! ## Picture
//!
//! ```text
//!  write   allocate a slot | write the value in whole units | write the stamp | commit
//!  round   sync each chunk that was written to, and new names | sync the logs
//!  remove  free the slot after its last reader | remove unneeded empty chunks, punch free slots
//!  open    mark referenced slots | remove other chunks | read a head when a slot is first reused
//! ```
//!
//! `slot_layout` has the layout, and `slot_allocator` the argument that no referenced or pinned
//! slot is overwritten.
//!
//! ## Invariants
//!
//! 1. When a record counts, its value, its stamp, and length and name of the chunk are durable. The
//!    sync round synced them before the log, or recovery found the value complete and rewrote it
//!    (`rewrite_slot`).
//! 2. So the stamp found by an opening is at least the generation of any record that counts.
//!    Together with `slot_allocator` I3, numbers never repeat.
//! 3. Values are written in whole units, the last one padded with zeros, so that no page is read
//!    before a write.
//! 4. After [`Blobs::close`], nothing is written, punched or removed: the next opening may use the
//!    slot.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use super::slot_allocator::{SlotAllocation, SlotAllocator};
use super::slot_layout::{self, ChunkLayout, HEAD, MAX_CHUNKS, SlotLocation, slots, stamp, stamp_at};
use super::{BlobRef, BlobStats, Blobs, UncommittedBlob};
use crate::blob_reader::OpenBlob;
use sheaf_platform::disk::{File, OpenMode, read_up_to_end, set_len_dirty};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::fork::ForkGuard;
use sheaf_platform::sync::atomic::{AtomicBool, Ordering};
use sheaf_platform::sync::{Mutex, RwLock, RwLockReadGuard};

/// Chunks that are kept open.
const MAX_OPEN_CHUNKS: usize = 64;
const TINY_MAX_OPEN_CHUNKS: usize = 2;
/// Slots of a class that are punched per call of [`Blobs::trim`], at most.
const MAX_PUNCHED: usize = 256;
/// Name of the header of a chunk in errors.
const CHUNK_HEADER: &str = "chunk header";
/// Largest unit in bytes.
const UNIT: usize = 4096;

/// State of all chunks, in memory. Any thread may use it. The lock of `state` is the last one in
/// the lock order and is not held during I/O.
///
/// Reading a value needs nothing of a chunk's head. A chunk with a damaged head is therefore still
/// read, but gets no new values. If the head never reached the device, no record of the chunk
/// counts, and an opening removes the chunk. A value without a record leaves unreferenced bytes and
/// a stamp.
#[derive(Debug)]
pub(super) struct ChunkTable {
    state: Mutex<ChunkTableState>,
    /// Held for reading by each thread that changes a chunk (I4).
    close_lock: RwLock<()>,
    is_closed: AtomicBool,
    /// In a forked child the slots and files belong to the parent, and a thread that exists only in
    /// the parent may hold the locks.
    pub(super) fork: ForkGuard,
}

#[derive(Debug)]
struct ChunkTableState {
    slots: SlotAllocator,
    /// False during recovery: no slot is taken or released, and reads need no pin. If the database
    /// is opened for reading only, it stays false.
    is_recovered: bool,
    files: HashMap<u64, Arc<dyn File>>,
    /// Chunks in the order of opening; some may be closed since.
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
            fork: ForkGuard::new(),
        })
    }

    /// Delays closing the database. Returns `None` if it is closed.
    fn block_close(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let life = self.close_lock.read();
        (!self.is_closed.load(Ordering::Acquire)).then_some(life)
    }

    /// Marks slots as used. `frozen` means that others may be in use too.
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

    /// Ends recovery: all used slots were marked, and others may be taken now.
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

/// Pin that keeps a slot from being reused until the database is closed. After that the next
/// opening may reuse it.
#[derive(Debug)]
pub(crate) struct SlotPin {
    table: Arc<ChunkTable>,
    /// `None` during recovery and in read-only openings, where no slot is reused.
    place: Option<SlotLocation>,
}

impl SlotPin {
    /// Returns true if the bytes that were just read may belong to another value. An open value
    /// outlives the database like an open file does, but its bytes do not.
    pub(crate) fn is_reused(&self) -> bool {
        self.table.is_closed.load(Ordering::Acquire)
    }
}

impl Drop for SlotPin {
    fn drop(&mut self) {
        if let Some(place) = self.place.filter(|_| !self.table.fork.is_child()) {
            self.table.state.lock().slots.unpin(place);
        }
    }
}

impl Blobs {
    /// Writes a value to a slot; it is not durable before the next sync. Returns `None` if it needs
    /// a file of its own. In the FlatStore paper, a value larger than a chunk gets several chunks.
    /// Here it gets a file, which fits it exactly and is removed with it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] if the database is closed, and an error of opening, creating or
    /// writing a chunk. In that case the slot is free again.
    pub fn try_write_slot(self: &Arc<Blobs>, value: &[u8]) -> Result<Option<UncommittedBlob>> {
        let Some(class) = self.layout.class_for(value.len() as u64) else { return Ok(None) };
        let Ok(len) = u32::try_from(value.len()) else { return Ok(None) };
        let Some(life) = self.chunks.block_close() else { return Err(Error::Closed) };
        self.volume();
        let Some((place, file)) = self.allocate_slot(class)? else { return Ok(None) };
        let blob = BlobRef { id: place.id(), len, sum: crc32c::crc32c(value) };
        let found = SlotLocation::from_id(blob.id);
        assert!(found == Some(place), "slot_layout (I1): the number of a value determines its location");
        let uncommitted = UncommittedBlob { blob, file, owner: Arc::clone(self), is_committed: false };
        let filled =
            self.write_slot(&*uncommitted.file, place, value).during(IoOp::Write, &self.path(blob.id));
        // Dropping `uncommitted` takes this lock again, and a waiting `close` would block it.
        drop(life);
        filled.map(|()| Some(uncommitted))
    }

    /// Takes a slot, in a new chunk if necessary. Returns `None` if the numbers of chunks are used
    /// up.
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
                            // removed by someone else: readers of its values report it
                            state.slots.freeze(place.chunk);
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

    /// Frees the slot of a value that is not committed. Removes the chunk at once if it becomes
    /// empty, since the disk may be full.
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
            let _ = self.remove_file(chunk, "chunk"); // if it stays, it is an orphan
            return Err(error);
        }
        let mut state = self.chunks.state.lock();
        state.keep_open(chunk, &file);
        Ok(Some((state.slots.add_chunk(chunk, class), file)))
    }

    fn init_chunk(&self, file: &dyn File, chunk: u64, class: u8) -> Result<()> {
        let path = self.file_path(chunk, "chunk");
        file.write_at(0, &self.new_head(chunk, class)).during(IoOp::Write, &path)?;
        file.set_len(self.layout.chunk_bytes()).during(IoOp::Extend, &path)
    }

    /// Returns the head of a new chunk.
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
        assert!(
            base.is_multiple_of(unit as u64) && value.len() as u64 <= self.layout.slot_bytes(place.class),
            "chunks (I3): a value is written in whole units of its slot"
        );
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
        let file = self.disk.open(&path, OpenMode::ReadWrite).during(IoOp::Open, &path)?;
        let mut state = self.chunks.state.lock();
        if state.slots.contains(chunk) {
            state.keep_open(chunk, &file);
        }
        Ok(file)
    }

    /// Reads the stamps of a chunk of an earlier opening. If the head is damaged or cannot be read,
    /// the chunk gets no new values.
    fn read_generations(&self, chunk: u64, class: u8) -> Result<()> {
        let head = self.read_head(chunk, class);
        if let Err(error) = &head
            && !error.is_corrupt()
            && !is_not_found(error)
            && !matches!(error, Error::Io { op: IoOp::Read, .. })
        {
            return head.map(drop);
        }
        self.chunks.state.lock().slots.set_generations(chunk, head.as_ref().ok().map(|head| &head[..]));
        Ok(())
    }

    fn read_head(&self, chunk: u64, class: u8) -> Result<[u8; HEAD]> {
        let path = self.file_path(chunk, "chunk");
        let file = self.disk.open(&path, OpenMode::Read).during(IoOp::Open, &path)?;
        let mut head = [0; HEAD];
        if let Some(got) = read_up_to_end(&*file, 0, &mut head).during(IoOp::Read, &path)? {
            return Err(Error::corrupt(
                &path,
                got,
                CHUNK_HEADER,
                Damage::Truncated { got, expected: HEAD as u64 },
            ));
        }
        let fields = self.layout.fields(self.store, chunk, class);
        match (0..fields.len()).find(|at| head[*at] != fields[*at]) {
            Some(at) => {
                let what = Damage::bad_field("byte", u64::from(fields[at]), u64::from(head[at]));
                Err(Error::corrupt(&path, at as u64, CHUNK_HEADER, what))
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
                file => file.during(IoOp::Open, &path)?,
            },
        };
        if u64::from(blob.len) > self.layout.slot_bytes(place.class) {
            let (got, max) = (u64::from(blob.len), self.layout.slot_bytes(place.class));
            return Err(Error::corrupt(&path, 0, "blob", Damage::BadLength { got, max }));
        }
        Ok(Some(OpenBlob::in_slot(file, path, *blob, self.layout.offset(place), pin)))
    }

    /// Writes a slot again with the same value, and the head with a stamp at least as new as the
    /// value's generation. Syncs both.
    pub(super) fn rewrite_slot(&self, place: SlotLocation, value: &OpenBlob, file: &dyn File) -> Result<()> {
        let path = self.file_path(place.chunk, "chunk");
        let base = self.layout.offset(place);
        value.for_each_stride(|at, bytes| file.write_at(base + at, bytes).during(IoOp::Write, &path))?;
        let mut head = match self.read_head(place.chunk, place.class) {
            Err(error) if error.is_corrupt() => self.new_head(place.chunk, place.class),
            head => head?,
        };
        let newest =
            slot_layout::generation_in(&head, place.chunk, place.slot).unwrap_or(0).max(place.generation);
        head[stamp_at(place.slot)..][..8].copy_from_slice(&stamp(place.chunk, place.slot, newest));
        file.write_at(0, &head).during(IoOp::Write, &path)?;
        set_len_dirty(file, self.layout.chunk_bytes()).during(IoOp::Extend, &path)?;
        file.sync().during(IoOp::Sync, &path)
    }

    /// Refuses further changes of chunks and waits for those in progress (I4). Called before the
    /// lock of the database is released.
    pub fn close(&self) {
        self.chunks.is_closed.store(true, Ordering::Release);
        drop(self.chunks.close_lock.write());
    }

    /// Removes empty chunks: `all` of them, or those that were not needed since the last call. In
    /// the latter case also punches free slots that were not needed.
    pub fn trim(&self, all: bool) {
        let Some(_life) = self.chunks.block_close() else { return };
        let surplus = {
            let mut state = self.chunks.state.lock();
            let surplus = state.slots.take_empty_chunks(all);
            surplus.iter().for_each(|chunk| state.close(*chunk));
            surplus
        };
        for chunk in &surplus {
            let _ = self.remove_file(*chunk, "chunk"); // if it stays, the next opening removes it
        }
        let excess =
            if all { Vec::new() } else { self.chunks.state.lock().slots.take_excess_slots(MAX_PUNCHED) };
        for place in excess {
            if let Ok(file) = self.open_chunk(place.chunk) {
                // If punching fails, the blocks are reused later.
                let _ = file.punch_hole(self.layout.offset(place), self.layout.slot_bytes(place.class));
            }
            self.chunks.state.lock().slots.mark_punched(place);
        }
    }

    /// Returns the paths of the chunk files. Passes an error to `report` for each damaged head.
    pub fn verify(&self, report: &mut dyn FnMut(Error)) -> Vec<PathBuf> {
        let chunks = self.chunks.state.lock().slots.numbers();
        let mut paths = Vec::new();
        for (chunk, class) in chunks {
            match self.check_head(chunk, class) {
                // removed just now; if a value needs it, its reader reports it
                Err(error) if is_not_found(&error) => continue,
                Err(error) => report(error),
                Ok(()) => {}
            }
            paths.push(self.file_path(chunk, "chunk"));
        }
        paths
    }

    fn check_head(&self, chunk: u64, class: u8) -> Result<()> {
        let head = self.read_head(chunk, class)?;
        for slot in 0..slots(class) {
            slot_layout::generation_in(&head, chunk, slot).map_err(|what| {
                Error::corrupt(&self.file_path(chunk, "chunk"), stamp_at(slot) as u64, "slot stamp", what)
            })?;
        }
        Ok(())
    }
}

fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}
