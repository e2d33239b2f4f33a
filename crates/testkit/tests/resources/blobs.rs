//! Values in files of their own: their moves between levels, and the memory of streams.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]
#![expect(clippy::disallowed_methods, reason = "looks at files of the real disk")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf::{Database, Keyspace, KeyspaceOptions};
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, KeepChoice, SimDisk};
use sheaf_testkit::alloc::measure;
use sheaf_testkit::fixture::{
    DiskKind, Fixture, TestSetting, TestSubject, scratch_dir, wait_epoch_garbage_freed,
};

const TINY: TestSetting = TestSetting::new(DiskKind::Real, true, true);
const NORMAL: TestSetting = TestSetting::new(DiskKind::Real, false, true);

/// Returns properties that change if a value is written again: inode, blocks, modification time.
fn identity(path: &Path) -> (u64, u64, i64, i64) {
    let meta = std::fs::metadata(path).unwrap();
    (meta.ino(), meta.blocks(), meta.mtime(), meta.mtime_nsec())
}

fn value(index: u64) -> Vec<u8> {
    (0..600).map(|at| (index * 31 + at).to_le_bytes()[0]).collect()
}

/// Whether the file is named after its key, as in the directory of a table.
fn is_named(path: &Path, key: &str) -> bool {
    path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{key}@"))
}

/// Each read of an opening fails once. Values that the opening could not attribute must not be
/// removed as unused.
#[test]
fn an_open_with_read_errors_removes_no_blob() {
    let fixture = Fixture::new(&TestSubject::delsm(), TestSetting::new(DiskKind::Simulated, true, true));
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "files");
    let key = |index: u64| format!("{index:04}");
    for index in 0..30 {
        ks.insert(key(index), value(index)).unwrap();
        if index == 20 {
            while db.pump().unwrap() {}
        }
    }
    db.persist().unwrap();
    let disk = fixture.sim_disk().unwrap().power_cut(&KeepChoice::All);
    drop((ks, db));
    let mut opened = 0;
    for nth in 0.. {
        let disk = disk.power_cut(&KeepChoice::All);
        disk.set_faults(Fault::new(CallClass::Read, FaultKind::Io).nth(nth));
        let Ok(db) = fixture.builder_on(Arc::new(disk.clone())).open(fixture.path()) else { continue };
        let injected = disk.injected();
        disk.set_faults(FaultPlan::default());
        if let Ok(Some(ks)) = db.open_keyspace("files") {
            for index in 0..30 {
                assert_eq!(
                    ks.get(key(index)).unwrap(),
                    Some(value(index).into()),
                    "{index} after read {nth} failed"
                );
            }
            opened += injected;
        }
        if injected == 0 {
            break;
        }
    }
    assert!(opened > 0, "no opening survives a read that fails");
}

/// The values are at every stage on their way into tables when the keyspace is dropped.
#[test]
fn a_dropped_keyspace_leaves_no_file_behind() {
    for steps in 0..60 {
        let fixture = Fixture::new(&TestSubject::delsm(), TestSetting::new(DiskKind::Simulated, true, true));
        let db = fixture.open();
        let ks = fixture.keyspace(&db, "files");
        for index in 0..40 {
            ks.insert(format!("{index:04}"), value(index)).unwrap();
        }
        for _ in 0..steps {
            fixture.advance(std::time::Duration::from_millis(50));
            db.pump().unwrap();
        }
        drop(ks);
        assert!(db.drop_keyspace("files").unwrap());
        let mut idle = 0;
        while idle < 20 {
            fixture.advance(std::time::Duration::from_millis(50));
            idle = if db.pump().unwrap() { 0 } else { idle + 1 };
        }
        let is_value = |path: &&PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.ends_with(".blob") || name.contains('@')
        };
        let tree = fixture.read_tree();
        let left: Vec<_> = tree.keys().filter(is_value).collect();
        assert!(left.is_empty(), "after {steps} steps: {left:?}");
    }
}

/// A thousand values, each in a file. The levels of tiny geometry are ten thousand times smaller,
/// so the values pass all of them.
#[test]
fn blobs_keep_their_files_through_all_levels() {
    let fixture = Fixture::new(&TestSubject::delsm(), TINY);
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "files");
    let key = |index: u64| format!("{:04}", index * 7919 % 1000);
    let path = |ks: &Keyspace, index: u64| ks.blob_path(key(index)).unwrap().unwrap();
    let mut born = BTreeMap::new();
    let mut names: BTreeMap<u64, BTreeSet<PathBuf>> = BTreeMap::new();
    for round in 0..10 {
        for index in round * 100..round * 100 + 100 {
            ks.insert(key(index), value(index)).unwrap();
            born.insert(index, identity(&path(&ks, index)));
        }
        let mut idle = 0;
        while idle < 6 {
            idle = if db.pump().unwrap() { 0 } else { idle + 1 };
            for index in (0..round * 100).step_by(50) {
                names.entry(index).or_default().insert(path(&ks, index));
            }
        }
    }
    let moves = names.values().map(BTreeSet::len).max().unwrap();
    assert!(moves >= 3, "from level to level: {names:?}");
    let named = (0..1000).filter(|index| is_named(&path(&ks, *index), &key(*index))).count();
    assert!(named > 980, "{named}: all but some in the last memtable");
    for index in 0..1000 {
        let now = path(&ks, index);
        assert_eq!(identity(&now), born[&index], "{}", now.display());
        assert_eq!(std::fs::read(&now).unwrap(), value(index), "the value and nothing else");
        assert_eq!(ks.get(key(index)).unwrap().unwrap(), value(index)[..]);
    }
}

/// Keys in a memtable and in tables. The value files are removed first, so a read of one would
/// fail.
#[test]
fn contains_key_reads_no_blob() {
    let fixture = Fixture::new(&TestSubject::delsm(), TINY);
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "files");
    let key = |index: u64| format!("{index:04}");
    for index in 0..40 {
        ks.insert(key(index), value(index)).unwrap();
        while index < 38 && db.pump().unwrap() {}
    }
    ks.remove(key(3)).unwrap();
    for index in (0..40).filter(|index| *index != 3) {
        std::fs::remove_file(ks.blob_path(key(index)).unwrap().unwrap()).unwrap();
        assert!(ks.get(key(index)).unwrap_err().is_corrupt());
    }
    for index in 0..45 {
        assert_eq!(ks.contains_key(key(index)).unwrap(), index < 40 && index != 3, "{index}");
    }
}

/// Values that would have their own files are packed while the file system has few free inodes.
#[test]
fn values_are_packed_while_inodes_are_scarce() {
    let sim = SimDisk::new();
    let db = Database::builder().disk(Arc::new(sim.clone())).inline(true).open("/db").unwrap();
    let ks = db.keyspace("files", KeyspaceOptions::default().engine("delsm")).unwrap();
    let value = vec![7; 20_000];
    let mut have = Vec::new();
    let mut put = |count: usize| {
        let mut files = 0;
        for _ in 0..count {
            let key = have.len().to_string();
            ks.insert(&key, &value).unwrap();
            files += usize::from(ks.blob_path(&key).unwrap().is_some());
            have.push(key);
        }
        files
    };
    sim.set_free_files(5000, 100_000);
    assert_eq!(put(200), 200);
    sim.set_free_files(3000, 100_000);
    put(100); // one of these reads the number of free inodes
    assert_eq!(put(300), 0);
    sim.set_free_files(4000, 100_000);
    assert_eq!(put(10), 10);
    sim.set_free_files(0, 0); // no inode limit
    assert_eq!(put(200), 200);
    db.persist().unwrap();
    for _ in 0..50 {
        db.pump().unwrap();
    }
    for key in have {
        assert!(*ks.get(&key).unwrap().unwrap() == value[..]);
    }
}

/// Writes a value of many MiB as a stream and reads it, with a few MiB of memory.
#[test]
fn streams_of_large_values_take_little_memory() {
    const CHUNK: usize = 100_000;
    const CHUNKS: u64 = 640;
    for subject in [TestSubject::delsm(), TestSubject::flat(), TestSubject::flex()] {
        let fixture = Fixture::new(&subject, NORMAL);
        let db = fixture.open();
        let ks = fixture.keyspace(&db, "files");
        ks.insert("small", "value").unwrap();
        let chunk = |index: u64| vec![(index * 11).to_le_bytes()[0]; CHUNK];
        let ((), peak) = measure(|| {
            let mut writer = ks.writer("large").unwrap();
            for index in 0..CHUNKS {
                writer.write_all(&chunk(index)).unwrap();
            }
            writer.commit().unwrap();
            let mut reader = ks.reader("large").unwrap().unwrap();
            assert_eq!(reader.len(), CHUNKS * CHUNK as u64);
            let mut got = vec![0; CHUNK];
            for index in 0..CHUNKS {
                reader.read_exact(&mut got).unwrap();
                assert!(got == chunk(index), "{subject:?}");
            }
            assert_eq!(reader.read(&mut got).unwrap(), 0);
            let range = ks.get_range("large", 250_000..250_010).unwrap().unwrap();
            assert_eq!(*range, chunk(2)[..10]);
        });
        assert!(peak.peak_bytes < 4 << 20, "{subject:?}: {peak:?}");
    }
}

/// Returns the bytes of the blocks of all files below `dir`.
fn bytes_in_blocks(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().map(Result::unwrap);
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_in_blocks(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0, // removed since it was listed
    };
    files.map(bytes).sum()
}

/// Two thirds of the chunk files become empty, and three of four slots of the others: both kinds of
/// space must be freed.
#[test]
fn blocks_of_removed_large_values_go_back_to_the_file_system() {
    const COUNT: u64 = 360;
    let dir = scratch_dir(env!("CARGO_TARGET_TMPDIR")).join(format!("blocks-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let value = |index: u64| vec![(index % 251).to_le_bytes()[0]; 180_000];
    let db = Database::builder().inline(true).open(&dir).unwrap();
    let ks = db.keyspace("files", KeyspaceOptions::default().engine("flat")).unwrap();
    (0..COUNT).for_each(|index| ks.insert(index.to_be_bytes(), value(index)).unwrap());
    db.persist().unwrap();
    let (full, before) = (bytes_in_blocks(&dir.join("blob")), db.stats().blobs);
    assert!(full >= COUNT * 180_000, "{full} bytes of blocks");
    let kept = |index: &u64| *index >= COUNT * 2 / 3 && index.is_multiple_of(4);
    (0..COUNT).filter(|index| !kept(index)).for_each(|index| ks.remove(index.to_be_bytes()).unwrap());
    let live = (0..COUNT).filter(kept).count() as u64 * 180_000;
    let mut left = full;
    for _ in 0..200 {
        db.persist().unwrap();
        db.pump().unwrap();
        wait_epoch_garbage_freed();
        left = bytes_in_blocks(&dir.join("blob"));
        if left < live * 5 / 4 {
            break;
        }
    }
    assert!(left < live * 5 / 4, "{left} bytes of blocks for {live} bytes of values: {:?}", db.stats().blobs);
    assert!(2 * db.stats().blobs.chunks < before.chunks, "{:?}", db.stats().blobs);
    for index in 0..COUNT {
        let found = ks.get(index.to_be_bytes()).unwrap();
        assert!(found.as_deref() == kept(&index).then(|| value(index)).as_deref(), "value {index}");
    }
    // A slot without blocks accepts a value again.
    (0..30u64).for_each(|index| ks.insert(index.to_be_bytes(), value(index)).unwrap());
    assert!((0..30u64).all(|index| *ks.get(index.to_be_bytes()).unwrap().unwrap() == *value(index)));
    db.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Returns the number of files and directories below `dir`.
fn inodes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().map(Result::unwrap);
    entries.map(|entry| 1 + if entry.metadata().unwrap().is_dir() { inodes(&entry.path()) } else { 0 }).sum()
}

/// Hundreds of small values share a file: at most one inode per hundred pairs, while they are
/// written and overwritten, and while idle.
#[test]
fn small_values_take_few_inodes() {
    const PAIRS: u64 = 30_000;
    let fixture = Fixture::new(&TestSubject::delsm(), NORMAL);
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "files");
    let value = |index: u64| vec![(index % 251).to_le_bytes()[0]; 511];
    for round in 0..3 {
        for index in 0..PAIRS {
            ks.insert((index * 7919 % PAIRS).to_be_bytes(), value(index + round)).unwrap();
        }
        db.persist().unwrap();
        let mut idle = 0;
        while idle < 20 {
            idle = if db.pump().unwrap() { 0 } else { idle + 1 };
            let taken = inodes(&fixture.path());
            assert!(taken * 100 <= PAIRS, "{taken} inodes for {PAIRS} pairs");
        }
    }
}
