//! # Shared memory: words that a peer may write at any time
//!
//! A buffer that one side writes while the other reads, without a lock. Over shared memory both
//! processes map it. Over TCP it is private, and the thread that reads the socket writes it. Each
//! word is an atomic of 64 bits. A hostile peer can therefore only produce arbitrary values, never
//! undefined behaviour.
//!
//! ## Invariants
//!
//! 1. Words are accessed only as atomics. No plain reference into the bytes exists. A read-only
//!    mapping is only loaded: a store would raise a signal.
//! 2. A mapped file cannot shrink while it is mapped: it is a memfd that is sealed against
//!    shrinking. [`SharedMemory::create`] sets the seal and [`SharedMemory::map`] checks it. An
//!    access therefore never raises a signal.
//! 3. A reader copies data out before it inspects it more than once, because the peer may change
//!    it.
//!
//! ## Threads
//!
//! Any thread may access the words. [`SharedMemory::publish`] and [`SharedMemory::observe`] order
//! them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use sheaf_platform::sync::atomic::{AtomicU64, Ordering, fence};

/// Maximum size in words (1 GiB): larger than any inbox in use.
const MAX_WORDS: usize = 1 << 27;

/// Words shared with a peer.
#[derive(Debug)]
pub struct SharedMemory {
    words: NonNull<AtomicU64>,
    count: usize,
    /// True if `words` came from a box, false if it is a mapping. `self` owns it in both cases.
    is_heap: bool,
    /// False for a mapping that the system does not let this process write.
    is_writable: bool,
}

// SAFETY:
// * `words` points to atomics that live as long as `self`. The type accesses no other memory.
unsafe impl Send for SharedMemory {}
// SAFETY:
// * As above. Atomics may be accessed by several threads at once.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Returns `count` zeroed words of private memory.
    #[must_use]
    pub fn heap(count: usize) -> SharedMemory {
        let heap: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        // Not kept as a box: a pointer to its content is invalid once the box is moved.
        let words = NonNull::from(Box::leak(heap)).cast();
        SharedMemory { words, count, is_heap: true, is_writable: true }
    }

    /// Creates `count` zeroed words in an anonymous file that can be passed to another process.
    /// With `read_only`, only the returned mapping can ever write them.
    ///
    /// # Errors
    ///
    /// Returns `InvalidInput` if `count` is 0 or too large, and the errors of the system calls.
    pub fn create(count: usize, read_only: bool) -> io::Result<(SharedMemory, OwnedFd)> {
        let file =
            rustix::fs::memfd_create("sheaf-flatrpc", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, byte_len(count)? as u64)?;
        let memory = SharedMemory::map_file(&file, count, ProtFlags::READ | ProtFlags::WRITE)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if read_only {
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&file, seals | SealFlags::SEAL)?;
        Ok((memory, file))
    }

    /// Maps `count` words of a file that [`SharedMemory::create`] created in another process.
    ///
    /// # Errors
    ///
    /// Returns `InvalidData` if the file is not sealed against shrinking or is too small. Returns
    /// `InvalidInput` if `count` is 0 or too large, and the errors of the system calls.
    pub fn map(file: impl AsFd, count: usize, read_only: bool) -> io::Result<SharedMemory> {
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        let held = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        if !sealed || held < byte_len(count)? as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory handed over could vanish"));
        }
        let write = if read_only { ProtFlags::empty() } else { ProtFlags::WRITE };
        SharedMemory::map_file(&file, count, ProtFlags::READ | write)
    }

    fn map_file(file: impl AsFd, count: usize, prot: ProtFlags) -> io::Result<SharedMemory> {
        let bytes = byte_len(count)?;
        if size_of::<AtomicU64>() != 8 {
            // Under a model checker the atomics have another size: only `heap` works.
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY:
        // * The address hint is null: the kernel selects an unused range.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, file, 0) }?;
        let words = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedMemory { words, count, is_heap: false, is_writable: prot.contains(ProtFlags::WRITE) })
    }

    /// Returns the number of words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there are no words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the word at `at`, without an order to other accesses.
    ///
    /// # Panics
    ///
    /// Panics if `at` is out of bounds. Callers pass only positions that they computed or checked.
    #[inline]
    #[must_use]
    pub fn load_word(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    /// Returns the word at `at` for a store.
    ///
    /// # Panics
    ///
    /// Panics if `at` is out of bounds or the mapping is read-only.
    #[inline]
    #[must_use]
    pub fn writable_word(&self, at: usize) -> &AtomicU64 {
        self.assert_writable();
        self.word(at)
    }

    #[inline]
    fn assert_writable(&self) {
        assert!(self.is_writable, "memory (I1): a read-only mapping is only loaded");
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.count, "word {at} of {}", self.count);
        // SAFETY: `at < count` (asserted above). The slice or mapping has `count` aligned,
        // initialized words and lives as long as `self`; a mapped file does not shrink (I2).
        unsafe { self.words.add(at).as_ref() }
    }

    /// Writes `bytes` at word `at`. The last word is padded with zeros.
    ///
    /// # Panics
    ///
    /// Panics if the range is out of bounds or the mapping is read-only.
    #[inline]
    pub fn store(&self, at: usize, bytes: &[u8]) {
        self.assert_writable();
        let words = self.words(at, bytes.len().div_ceil(8));
        let (whole, rest) = bytes.as_chunks::<8>();
        for (word, chunk) in words.iter().zip(whole) {
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
        if let (Some(word), false) = (words.last(), rest.is_empty()) {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
    }

    /// Copies words from position `at` into `bytes`. The last word may be copied in part.
    #[inline]
    pub fn load(&self, at: usize, bytes: &mut [u8]) {
        let words = self.words(at, bytes.len().div_ceil(8));
        let (whole, rest) = bytes.as_chunks_mut::<8>();
        for (word, chunk) in words.iter().zip(whole) {
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if let (Some(word), false) = (words.last(), rest.is_empty()) {
            let last = word.load(Ordering::Relaxed).to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }

    #[inline]
    fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        assert!(at <= self.count && count <= self.count - at, "{count} words at {at} of {}", self.count);
        // SAFETY:
        // * As in `word`. The check above covers all `count` words.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().add(at), count) }
    }

    /// Stores `value` with release order: a thread that observes the value also sees all earlier
    /// writes of this thread.
    ///
    /// # Panics
    ///
    /// Panics if `at` is out of bounds or the mapping is read-only.
    #[inline]
    pub fn publish(&self, at: usize, value: u64) {
        fence(Ordering::Release);
        self.writable_word(at).store(value, Ordering::Relaxed);
    }

    /// Loads the word at `at` with acquire order. The caller also sees all writes before its
    /// publication.
    #[inline]
    #[must_use]
    pub fn observe(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }
}

fn byte_len(count: usize) -> io::Result<usize> {
    if count == 0 || count > MAX_WORDS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such size of shared memory"));
    }
    Ok(count * 8)
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.is_heap {
            let heap = NonNull::slice_from_raw_parts(self.words, self.count);
            // SAFETY:
            // * `heap` leaked a box of this length. `self` owns it, and no reference outlives
            //   `self`.
            return drop(unsafe { Box::from_raw(heap.as_ptr()) });
        }
        // SAFETY:
        // * `map_file` mapped this range with this length. No reference outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), self.count * 8) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_in_both_kinds_of_memory_also_between_two_mappings() {
        let (ours, file) = SharedMemory::create(1024, false).unwrap();
        let theirs = SharedMemory::map(&file, 1024, false).unwrap();
        let heap = SharedMemory::heap(1024);
        for len in 0..40 {
            let bytes: Vec<u8> = (1..=len).collect();
            let mut back = vec![0; usize::from(len)];
            ours.store(7, &bytes);
            theirs.load(7, &mut back);
            assert_eq!(back, bytes);
            heap.store(7, &bytes);
            heap.load(7, &mut back);
            assert_eq!(back, bytes);
        }
    }

    #[test]
    fn shared_memory_cannot_be_truncated() {
        let (_memory, file) = SharedMemory::create(1024, false).unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        let unsealed = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, 8192).unwrap();
        assert!(SharedMemory::map(&unsealed, 1024, false).is_err());
        assert!(SharedMemory::map(&file, 4096, false).is_err());
    }

    #[test]
    fn read_only_memory_is_writable_by_its_creator_only() {
        let (memory, file) = SharedMemory::create(8, true).unwrap();
        assert!(SharedMemory::map(&file, 8, false).is_err());
        assert!(rustix::io::write(&file, b"x").is_err());
        let theirs = SharedMemory::map(&file, 8, true).unwrap();
        memory.publish(3, 9);
        assert_eq!((theirs.observe(3), theirs.load_word(3)), (9, 9));
    }

    /// Without the assertion the store would end the process by a signal.
    #[test]
    #[should_panic(expected = "memory (I1)")]
    fn a_store_to_read_only_memory_panics() {
        let (_memory, file) = SharedMemory::create(8, true).unwrap();
        SharedMemory::map(&file, 8, true).unwrap().publish(3, 9);
    }
}
