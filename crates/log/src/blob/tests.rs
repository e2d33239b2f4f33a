//! Tests of blobs: files, slots, names, and removal.

use std::time::Duration;

use super::*;
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, KeepChoice, SimDisk};

fn blobs(disk: &SimDisk) -> Arc<Blobs> {
    Blobs::new(Arc::new(disk.clone()), PathBuf::from("/db"), 1, StoreId::default(), true)
}

fn settled(disk: &SimDisk, live: &[BlobRef]) -> Arc<Blobs> {
    let blobs = blobs(disk);
    let numbers = disk
        .files()
        .into_iter()
        .filter_map(|(path, _)| u64::from_str_radix(path.file_stem()?.to_str()?, 16).ok());
    // as ROOT would have reserved
    blobs.next.store(numbers.max().unwrap_or(0) + 1000, Ordering::Relaxed);
    blobs.finish_recovery(&live.iter().map(|blob| blob.id).collect(), false).unwrap();
    blobs
}

fn put(blobs: &Arc<Blobs>, value: &[u8]) -> BlobRef {
    let uncommitted = blobs.try_write_slot(value).unwrap().expect("it fits a slot");
    let (blob, mut unsynced) = (uncommitted.blob, UnsyncedBlobs::default());
    unsynced.add(uncommitted);
    blobs.sync(&unsynced).unwrap();
    blob
}

fn files(disk: &SimDisk) -> usize {
    disk.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "chunk")).count()
}

fn disk() -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir(Path::new("/db")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk
}

#[test]
fn a_directory_in_which_files_are_slow_gets_no_more_of_them() {
    let disk = disk();
    let blobs = Blobs::new(Arc::new(disk.clone()), PathBuf::from("/db"), 1, StoreId::default(), false);
    let mut made: Vec<UncommittedBlob> = Vec::new();
    let mut make = |count: usize, micros: u64| {
        for _ in 0..count {
            let uncommitted = blobs.create_blob_file().unwrap();
            assert!(
                made.last().is_none_or(|before| before.blob.id < uncommitted.blob.id),
                "numbers only go up"
            );
            blobs.record_create_time(uncommitted.blob.id, Duration::from_micros(micros));
            made.push(uncommitted);
        }
        made.last().map(|uncommitted| uncommitted.blob.id)
    };
    assert_eq!(make(10, 10), Some(10), "quick");
    assert_eq!(make(2, 400), Some(12), "and no more");
    assert_eq!(make(2, 400), Some(4097), "slow again");
    assert_eq!(make(2, 10), Some(2 * 4096 + 1));
    let dirs = || disk.list(Path::new("/db")).unwrap().len();
    assert_eq!(dirs(), 3);
    made.truncate(14);
    assert_eq!(dirs(), 3, "the last one may get more");
    made.clear();
    assert_eq!(dirs(), 1, "an abandoned directory is removed with its last file");
}

#[test]
fn numbers_of_slots_never_repeat_over_lives() {
    let disk = disk();
    let (mut seen, mut live) = (HashSet::new(), Vec::new());
    for life in 0..5u8 {
        let blobs = settled(&disk, &live);
        for round in 0..20 {
            let value = vec![life * 20 + round; 3000 + usize::from(round)];
            let blob = put(&blobs, &value);
            assert!(seen.insert(blob.id), "{blob:?} again");
            assert_eq!(blobs.read(&blob).unwrap(), Some(value));
            live.push(blob);
            if live.len() > 7 {
                blobs.remove(live.remove(3).id).unwrap();
            }
        }
    }
    assert!(files(&disk) <= 4, "{} chunks for 7 values, 5 a chunk", files(&disk));
    let blobs = settled(&disk, &live);
    live.iter().for_each(|blob| assert!(blobs.read(blob).unwrap().is_some()));
    live.iter().for_each(|blob| blobs.remove(blob.id).unwrap());
    blobs.trim(true);
    assert_eq!(files(&disk), 0);
}

#[test]
fn stats_count_used_and_free_slots_and_files() {
    let disk = disk();
    let blobs = settled(&disk, &[]);
    assert_eq!(blobs.stats(), BlobStats::default());
    let live: Vec<BlobRef> = (0..4).map(|n| put(&blobs, &vec![n; 9000])).collect();
    let mut uncommitted = blobs.create_blob_file().unwrap();
    uncommitted.append(&[9; 99]).unwrap();
    let file = uncommitted.blob;
    drop(uncommitted.commit());
    drop(blobs.create_blob_file().unwrap());
    let slot = blobs.layout.slot_bytes(SlotLocation::from_id(live[0].id).unwrap().class);
    let all = BlobStats { chunks: 4, slots: 4, used_bytes: 4 * slot, free_bytes: 0, files: 1 };
    assert_eq!(blobs.stats(), all);
    blobs.remove(live[3].id).unwrap();
    let less = BlobStats { slots: 3, used_bytes: 3 * slot, free_bytes: slot, ..all };
    assert_eq!(blobs.stats(), less);
    blobs.trim(true);
    assert_eq!(blobs.stats(), BlobStats { chunks: 3, free_bytes: 0, ..less });
    blobs.sync_all_names(&[file]).unwrap();
    // A read-only opening computes the same statistics.
    let reader = self::blobs(&disk);
    reader.mark_used(&live[..3].iter().chain([&file]).map(|blob| blob.id).collect(), false);
    assert_eq!(reader.stats(), blobs.stats());
    for _ in 0..2 {
        blobs.remove(file.id).unwrap();
        assert_eq!(blobs.stats().files, 0);
    }
}

#[test]
fn an_open_value_outlives_its_removal() {
    let disk = disk();
    let blobs = settled(&disk, &[]);
    let old = put(&blobs, &[1; 9000]);
    let open = blobs.open(&old).unwrap().unwrap();
    blobs.remove(old.id).unwrap();
    blobs.trim(true);
    assert!(blobs.open(&old).unwrap().is_none());
    let new = put(&blobs, &[2; 9000]);
    assert_eq!(open.read(<[u8]>::to_vec).unwrap(), [1; 9000]);
    drop(open);
    let again = put(&blobs, &[3; 9000]);
    assert_eq!(
        SlotLocation::from_id(again.id).map(|p| (p.chunk, p.slot)),
        SlotLocation::from_id(old.id).map(|p| (p.chunk, p.slot))
    );
    assert!(blobs.open(&old).unwrap().is_none());
    assert_eq!(blobs.read(&new).unwrap(), Some(vec![2; 9000]));
}

#[test]
fn blobs_rewritten_by_recovery_survive_a_power_cut() {
    let disk = disk();
    let first = settled(&disk, &[]);
    let uncommitted = first.try_write_slot(&[5; 3000]).unwrap().unwrap();
    let blob = uncommitted.blob;
    drop(uncommitted.commit()); // never synced
    let disk = disk.kill();
    let second = blobs(&disk);
    second.rewrite(&blob).unwrap();
    second.sync_all_names(&[blob]).unwrap();
    let disk = disk.power_cut(&KeepChoice::None);
    let third = settled(&disk, &[blob]);
    assert_eq!(third.read(&blob).unwrap(), Some(vec![5; 3000]));
    third.verify(&mut |error| panic!("{error}"));
    third.remove(blob.id).unwrap();
    let again = SlotLocation::from_id(put(&third, &[6; 3000]).id).unwrap();
    assert_eq!((again.slot, again.generation), (0, 2));
}

#[test]
fn a_damaged_head_is_found_and_its_values_are_read() {
    let disk = disk();
    let blob = put(&settled(&disk, &[]), &[5; 3000]);
    let path = settled(&disk, &[blob]).path(blob.id);
    disk.open(&path, OpenMode::ReadWrite).unwrap().write_at(13, b"x").unwrap();
    let blobs = settled(&disk, &[blob]);
    let mut found = Vec::new();
    assert_eq!(blobs.verify(&mut |error| found.push(error)), [path]);
    assert_eq!(found.len(), 1);
    let other = put(&blobs, &[6; 3000]);
    assert_ne!(SlotLocation::from_id(other.id).unwrap().chunk, SlotLocation::from_id(blob.id).unwrap().chunk);
    assert_eq!(blobs.read(&blob).unwrap(), Some(vec![5; 3000]));
    blobs.remove(blob.id).unwrap();
    blobs.trim(true);
    assert_eq!(files(&disk), 2, "a damaged chunk is kept for inspection");
}

#[test]
fn bytes_after_the_value_are_ignored_after_a_power_cut() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    disk.create_dir(Path::new("/db")).unwrap();
    let blobs = Blobs::new(Arc::clone(&disk), PathBuf::from("/db"), 1, StoreId::default(), true);
    let mut uncommitted = blobs.create_blob_file().unwrap();
    uncommitted.append(&[7; 300]).unwrap();
    uncommitted.append(&[7; 600]).unwrap();
    let blob = uncommitted.blob;
    drop(uncommitted.commit());
    let file = disk.open(&blobs.path(blob.id), OpenMode::ReadWrite).unwrap();
    file.set_len(1536).unwrap();
    assert_eq!(blobs.read(&blob).unwrap(), Some(vec![7; 900]));
    blobs.rewrite(&blob).unwrap();
    assert_eq!((file.len().unwrap(), blobs.read(&blob).unwrap()), (900, Some(vec![7; 900])));
    file.set_len(899).unwrap();
    assert!(blobs.read(&blob).unwrap_err().is_corrupt());
}

#[test]
fn pending_removals_delete_files_in_steps_and_free_slots_at_once() {
    let disk = disk();
    let blobs = settled(&disk, &[]);
    let slot = put(&blobs, &[1; 9000]);
    let mut files = Vec::new();
    for _ in 0..9 {
        let uncommitted = blobs.create_blob_file().unwrap();
        files.push(uncommitted.blob);
        drop(uncommitted.commit());
    }
    blobs.remove_later(slot.id);
    assert_eq!(blobs.stats().slots, 0);
    files.iter().for_each(|file| blobs.remove_later(file.id));
    assert_eq!(blobs.stats().files, 9, "nothing was removed yet");
    for left in [5, 1, 0] {
        assert!(blobs.remove_pending(4));
        assert_eq!(blobs.stats().files, left);
        assert!(files.iter().filter(|file| blobs.open(file).unwrap().is_some()).count() as u64 == left);
    }
    assert!(!blobs.remove_pending(4), "there is none");
}

#[test]
fn an_unreadable_chunk_head_does_not_block_new_blobs() {
    let disk = disk();
    let live = {
        let blobs = settled(&disk, &[]);
        [1, 2].map(|byte| put(&blobs, &[byte; 3000]))
    };
    let blobs = settled(&disk, &live[..1]);
    disk.set_faults(Fault::new(CallClass::Read, FaultKind::Io).on(".chunk"));
    let new = put(&blobs, &[3; 3000]);
    disk.set_faults(FaultPlan::default());
    assert_eq!(files(&disk), 2, "it is in a chunk of its own");
    for (blob, byte) in [(live[0], 1), (new, 3)] {
        assert_eq!(blobs.read(&blob).unwrap(), Some(vec![byte; 3000]));
    }
}
