//! # Interleavings of slot operations under a scheduler
//!
//! Values are written, removed and read concurrently, in as few slots as possible.
//!
//! Built with `--cfg shuttle` only; the settings are those of `sheaf_platform::sync::explore`. Weak
//! memory orderings are not explored.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{BlobRef, Blobs};
use crate::types::StoreId;
use sheaf_platform::disk::Disk;
use sheaf_platform::sync::{explore, thread};
use sheaf_sim::{CallClass, Fault, FaultKind, SimDisk};

/// Half a chunk in bytes.
const LEN: usize = 8 << 10;

fn blobs() -> Arc<Blobs> {
    blobs_on(&SimDisk::new())
}

fn blobs_on(disk: &SimDisk) -> Arc<Blobs> {
    disk.create_dir(Path::new("/db")).unwrap();
    let blobs = Blobs::new(Arc::new(disk.clone()), PathBuf::from("/db"), 1, StoreId::default(), true);
    blobs.finish_recovery(&HashSet::new(), false).unwrap();
    blobs
}

fn put(blobs: &Arc<Blobs>, byte: u8) -> BlobRef {
    let uncommitted = blobs.try_write_slot(&[byte; LEN]).unwrap().expect("it fits a slot");
    let blob = uncommitted.blob;
    drop(uncommitted.commit());
    blob
}

/// Asserts that a value that was found has its bytes, however late it is read.
fn read(blobs: &Blobs, blob: &BlobRef, byte: u8) {
    if let Some(value) = blobs.open(blob).unwrap() {
        thread::yield_now();
        assert_eq!(value.read(|bytes| bytes == [byte; LEN]).unwrap(), true);
    }
}

/// Discarding a failed blob takes the lock that a close waits for. The failed write must have
/// released it before: the scheduler rejects a thread that takes it twice.
#[test]
fn a_failed_blob_write_releases_its_slot() {
    explore(100, || {
        let disk = SimDisk::new();
        let blobs = blobs_on(&disk);
        put(&blobs, 1);
        disk.set_faults(Fault::new(CallClass::Write, FaultKind::NoSpace));
        let closing = {
            let blobs = Arc::clone(&blobs);
            thread::spawn(move || blobs.close())
        };
        assert!(blobs.try_write_slot(&[2; LEN]).is_err());
        closing.join().unwrap();
    });
}

#[test]
fn an_open_blob_does_not_change() {
    explore(1000, || {
        let blobs = blobs();
        let old = put(&blobs, 1);
        let reader = {
            let blobs = Arc::clone(&blobs);
            thread::spawn(move || (0..2).for_each(|_| read(&blobs, &old, 1)))
        };
        let writer = {
            let blobs = Arc::clone(&blobs);
            thread::spawn(move || {
                let new = put(&blobs, 2);
                blobs.remove(new.id).unwrap();
                blobs.trim(true);
                put(&blobs, 3)
            })
        };
        blobs.remove(old.id).unwrap();
        blobs.trim(true);
        let newest = put(&blobs, 4);
        reader.join().unwrap();
        let other = writer.join().unwrap();
        assert_ne!(other.id, newest.id);
        for (blob, byte) in [(other, 3), (newest, 4)] {
            assert_eq!(blobs.read(&blob).unwrap(), Some(vec![byte; LEN]));
        }
        assert!(blobs.open(&old).unwrap().is_none());
    });
}
