//! Exported states over the simulated disk.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sheaf_platform::disk::exported::{ByteSource, ExportLease, ExportedDisk, ExportedExtent, ExportedItem};
use sheaf_platform::disk::{Disk, LockMode, LockOutcome, OpenMode};
use sheaf_platform::error::{Error, IoOp};
use sheaf_sim::SimDisk;

#[derive(Debug)]
struct TestLease(Arc<AtomicBool>);

impl ExportLease for TestLease {
    fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn piece(name: &str, whole: u64, at: u64, len: u64, bytes: ByteSource) -> ExportedItem {
    ExportedItem::Extent(ExportedExtent { name: name.into(), file_len: whole, offset: at, len, bytes })
}

fn shown(items: Vec<ExportedItem>) -> (Option<ExportedDisk>, Arc<AtomicBool>) {
    let disk = SimDisk::new();
    disk.create_dir(Path::new("/db")).unwrap();
    let file = disk.open(Path::new("/db/real"), OpenMode::Create).unwrap();
    file.write_at(0, b"0123456789").unwrap();
    let is_held = Arc::new(AtomicBool::new(true));
    let lease = Arc::new(TestLease(Arc::clone(&is_held)));
    (ExportedDisk::new(Arc::new(disk), Path::new("/db"), items, lease), is_held)
}

fn all(disk: &dyn Disk, path: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(Path::new(path), OpenMode::Read)?;
    let mut bytes = vec![9; usize::try_from(file.len()?).unwrap()];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn the_disk_shows_exactly_the_listed_items() {
    let real = |at| ByteSource::File("real".into(), at);
    let (disk, is_held) = shown(vec![
        ExportedItem::Directory("empty/deep".into()),
        piece("a/parts", 9, 4, 2, real(7)),
        piece("a/parts", 9, 1, 2, ByteSource::Inline(b"xy".to_vec())),
        piece("a/short", 0, 0, 3, real(0)),
        piece("nothing", 0, 0, 0, real(0)),
    ]);
    let disk = disk.unwrap();
    let _lock = disk.lock(Path::new("/db/LOCK"), LockMode::Shared).unwrap();
    assert!(matches!(disk.lock(Path::new("/db/LOCK"), LockMode::Shared).unwrap(), LockOutcome::Busy(_)));
    assert_eq!(all(&disk, "/db/a/parts").unwrap(), b"\0xy\x0078\0\0\0");
    assert_eq!(all(&disk, "/db/a/short").unwrap(), b"012");
    assert_eq!(all(&disk, "/db/nothing").unwrap(), b"");
    let names = |dir: &str| -> Vec<String> {
        disk.list(Path::new(dir)).unwrap().into_iter().map(|entry| entry.name).collect()
    };
    assert_eq!(
        (names("/db"), names("/db/a")),
        (
            vec!["a", "empty", "nothing"].into_iter().map(str::to_owned).collect(),
            vec!["parts".to_owned(), "short".to_owned()]
        )
    );
    assert!(names("/db/empty/deep").is_empty());
    for missing in ["/db/real", "/db/a/part", "/db/a/parts/x", "/other"] {
        assert_eq!(all(&disk, missing).unwrap_err().kind(), io::ErrorKind::NotFound, "{missing}");
    }
    let part = disk.open(Path::new("/db/a/parts"), OpenMode::Read).unwrap();
    let mut two = [0; 2];
    for (offset, expected) in [(0, b"\0x"), (2, b"y\0"), (3, b"\x007"), (5, b"8\0")] {
        part.read_at(offset, &mut two).unwrap();
        assert_eq!(&two, expected);
    }
    assert_eq!(part.read_at(8, &mut two).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(disk.open(Path::new("/db/new"), OpenMode::Create).is_err() && part.write_at(0, b"x").is_err());
    is_held.store(false, Ordering::Relaxed);
    let said = Error::io(IoOp::Read, Path::new("x"), part.read_at(0, &mut two).unwrap_err());
    assert!(matches!(said, Error::OwnerClosed { .. }), "{said:?}");
}

#[test]
fn no_name_escapes_the_directory() {
    for name in ["..", "/etc/passwd", "a/../b", ""] {
        assert!(shown(vec![ExportedItem::Directory(name.into())]).0.is_none());
        assert!(shown(vec![piece(name, 0, 0, 1, ByteSource::Inline(vec![1]))]).0.is_none());
        assert!(shown(vec![piece("a", 0, 0, 1, ByteSource::File(name.into(), 0))]).0.is_none());
    }
    assert!(shown(vec![piece("a", 0, 0, 2, ByteSource::Inline(vec![1]))]).0.is_none());
    assert!(shown(vec![piece("a", 0, u64::MAX, 2, ByteSource::File("b".into(), 0))]).0.is_none());
}

#[test]
fn without_the_lease_every_call_fails() {
    let (disk, _) = shown(vec![piece("a", 0, 0, 1, ByteSource::Inline(vec![1]))]);
    let disk = disk.unwrap();
    let lock = disk.lock(Path::new("/db/LOCK"), LockMode::Shared).unwrap();
    assert!(all(&disk, "/db/a").is_ok());
    drop(lock);
    assert!(all(&disk, "/db/a").is_err());
}
