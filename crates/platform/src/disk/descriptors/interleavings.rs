//! Models of writes, stores, syncs and evictions of one file under a scheduler.
//!
//! Compiled only with `--cfg shuttle`; `crate::sync::explore` lists the settings. The scheduler
//! does not explore weak memory orders.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Backend, Descriptors, FileIdentity, OpenedFd, OwnedHandle, RawFd};
use crate::disk::MIN_OPEN_FILES;
use crate::disk::OpenMode;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{explore, thread};

/// A disk of one file: the number of its writes, and of those that were synced.
#[derive(Debug, Default)]
struct One {
    written: AtomicU64,
    synced: AtomicU64,
    open: AtomicU64,
}

#[derive(Debug)]
struct Fake(Arc<One>);

impl Fake {
    fn opened(&self) -> io::Result<OpenedFd> {
        self.0.open.fetch_add(1, Ordering::SeqCst);
        Ok(OpenedFd { fd: 7, identity: FileIdentity { device: 0, inode: 1 }, len: 0 })
    }
}

impl Backend for Fake {
    fn open(&self, _: &Path, _: OpenMode) -> io::Result<OpenedFd> {
        self.opened()
    }

    fn sync(&self, _: RawFd) -> io::Result<()> {
        assert!(self.0.open.load(Ordering::SeqCst) > 0, "a sync without a descriptor");
        let written = self.0.written.load(Ordering::SeqCst);
        thread::yield_now();
        self.0.synced.fetch_max(written, Ordering::SeqCst);
        Ok(())
    }

    fn close(&self, _: RawFd) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }

    fn before_eviction(&self, _: RawFd) {
        let (written, synced) = (&self.0.written, &self.0.synced);
        assert_eq!(written.load(Ordering::SeqCst), synced.load(Ordering::SeqCst), "descriptors I1");
    }
}

fn one() -> (Arc<One>, Arc<Descriptors>, Arc<OwnedHandle>) {
    let one = Arc::new(One::default());
    let cache = Descriptors::new(Box::new(Fake(Arc::clone(&one))), MIN_OPEN_FILES, PathBuf::new());
    let opener = Fake(Arc::clone(&one));
    let (held, _) = cache.open(Path::new("a"), OpenMode::Create, || opener.opened()).unwrap();
    (one, cache, Arc::new(held))
}

/// Evicts the file repeatedly while other threads use it.
fn evict(cache: &Descriptors) {
    for _ in 0..3 {
        drop(cache.close_one_idle(cache.inner.lock()));
        thread::yield_now();
    }
}

#[test]
fn no_descriptor_is_closed_with_an_unsynced_write() {
    explore(100, || {
        let (disk, cache, file) = one();
        let writer = {
            let (disk, file) = (Arc::clone(&disk), Arc::clone(&file));
            thread::spawn(move || {
                for _ in 0..2 {
                    let pin = file.pin().unwrap();
                    disk.written.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    file.note_write(8);
                    drop(pin);
                }
            })
        };
        let storer = {
            let (disk, cache, file) = (Arc::clone(&disk), Arc::clone(&cache), Arc::clone(&file));
            thread::spawn(move || {
                for _ in 0..2 {
                    let pin = file.pin().unwrap();
                    file.begin_stores();
                    drop(pin);
                    disk.written.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    file.end_stores(8);
                    let pin = file.pin().unwrap();
                    let marks = file.marks();
                    cache.backend.sync(pin.fd()).unwrap();
                    file.note_sync(marks);
                }
            })
        };
        let syncer = {
            let (cache, file) = (Arc::clone(&cache), Arc::clone(&file));
            thread::spawn(move || {
                let pin = file.pin().unwrap();
                let marks = file.marks();
                cache.backend.sync(pin.fd()).unwrap();
                file.note_sync(marks);
            })
        };
        evict(&cache);
        [writer, storer, syncer].into_iter().for_each(|thread| thread.join().unwrap());
        assert!(disk.open.load(Ordering::SeqCst) <= 1);
    });
}

#[test]
fn a_file_that_is_dropped_while_it_is_synced_early_is_closed_once() {
    explore(100, || {
        let (disk, cache, file) = one();
        let pin = file.pin().unwrap();
        disk.written.fetch_add(1, Ordering::SeqCst);
        file.note_write(8);
        drop(pin);
        let evictor = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || evict(&cache))
        };
        drop(file);
        evictor.join().unwrap();
        assert_eq!(disk.open.load(Ordering::SeqCst), 0);
    });
}
