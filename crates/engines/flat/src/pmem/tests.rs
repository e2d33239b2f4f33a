//! Tests of the medium alone, and of the whole store on it.

use std::path::Path;
use std::sync::Arc;

use super::*;
use sheaf_engine::contract::{Action, EngineOp};
use sheaf_log::options::EngineOptions;
use sheaf_log::types::{Durability, Seq};
use sheaf_platform::clock::ManualClock;
use sheaf_platform::disk::{Disk, OpenMode};
use sheaf_sim::SimDisk;
use sheaf_store::{CommitOutcome, CommitWrite, EngineChoice, KeyspaceState, Store, StoreOptions};

/// Stores to emulated memory.
fn store(memory: &EmulatedPmem, at: u64, bytes: &[u8]) {
    // SAFETY:
    // * Only this thread uses the memory, and the range has blocks.
    unsafe { memory.store(at, bytes) }.unwrap();
}

#[test]
fn unfenced_stores_may_be_lost_kept_or_torn_by_a_power_cut() {
    let lines = EmulatedPmem::with_bytes(vec![0; 256]);
    store(&lines, 0, b"durable");
    lines.flush(0..7).unwrap();
    lines.fence().unwrap();
    store(&lines, 64, b"flushed, no fence");
    lines.flush(64..81).unwrap();
    store(&lines, 128, b"stored only");
    let mut seen = [0; 11];
    lines.load(128, &mut seen);
    assert_eq!(&seen, b"stored only");
    let lost = lines.after_power_cut(UnfencedBytes::Lost);
    assert_eq!((&lost[..7], &lost[64..]), (&b"durable"[..], &[0; 192][..]));
    let kept = lines.after_power_cut(UnfencedBytes::Kept);
    assert_eq!(&kept[128..139], b"stored only");
    // At least one seed keeps a part of the line and loses the rest.
    let is_torn = |seed| {
        let torn = lines.after_power_cut(UnfencedBytes::Torn(seed));
        &torn[64..81] != b"flushed, no fence" && torn[64..81] != [0; 17]
    };
    assert!((0..64).any(is_torn));
}

#[test]
fn a_store_after_a_flush_needs_another_flush() {
    let lines = EmulatedPmem::with_bytes(vec![0; 64]);
    store(&lines, 0, &[1; 8]);
    lines.flush(0..8).unwrap();
    store(&lines, 8, &[2; 8]);
    lines.fence().unwrap();
    let left = lines.after_power_cut(UnfencedBytes::Lost);
    assert_eq!((&left[..8], &left[8..16]), (&[1; 8][..], &[0; 8][..]));
    assert_eq!(lines.after_power_cut(UnfencedBytes::Kept)[8..16], [2; 8]);
}

#[test]
#[should_panic(expected = "SIGBUS")]
fn a_store_to_a_hole_is_found() {
    let lines = EmulatedPmem::default();
    lines.resize(8192);
    lines.allocate(0..4096);
    store(&lines, 4090, b"over the edge");
}

#[test]
fn probing_finds_out_if_pmem_is_usable() {
    let found = probe(&sheaf_platform::disk::real::RealDisk::default(), &std::env::temp_dir());
    println!("{found:?}");
    assert!(!found.is_usable() || found.maps_synchronously);
    assert!(found.devices.iter().all(|path| path.starts_with("/dev")));
}

/// Store on the emulated medium.
struct TestStore {
    disk: EmulatedDisk,
    pm_disk: PmDisk,
    store: Arc<Store>,
    keyspace: Arc<KeyspaceState>,
}

impl TestStore {
    fn on(disk: EmulatedDisk) -> TestStore {
        TestStore::with_geometry(disk, false)
    }

    fn with_geometry(disk: EmulatedDisk, tiny: bool) -> TestStore {
        let options = StoreOptions { tiny, inline: true, ..StoreOptions::default() };
        let clock = Arc::new(ManualClock::new());
        let pm_disk = PmDisk::new(Arc::new(disk.clone()), PersistenceMode::Dax);
        let own: Arc<dyn Disk> = Arc::new(pm_disk.clone());
        let engines = vec![crate::hashed(), crate::ordered()];
        let store = Store::open(Path::new("/db"), options, own, clock, engines).unwrap();
        let choice = EngineChoice { engine: Some("flat"), options: &EngineOptions::default() };
        let keyspace = store.keyspace("k", choice, "flat").unwrap();
        TestStore { disk, pm_disk, store, keyspace }
    }

    fn new() -> TestStore {
        TestStore::on(EmulatedDisk::new(SimDisk::new()).unwrap())
    }

    fn put(&self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Seq {
        let write =
            |(key, value): &'_ (Vec<u8>, Vec<u8>)| -> (Vec<u8>, Vec<u8>) { (key.clone(), value.clone()) };
        let owned: Vec<_> = pairs.iter().map(write).collect();
        let mut writes: Vec<CommitWrite<'_>> = owned
            .iter()
            .map(|(key, value)| CommitWrite::new(&self.keyspace, EngineOp::new(key, Action::Put(value))))
            .collect();
        match self.store.commit(&mut writes).unwrap() {
            CommitOutcome::Committed(seq) => seq,
            CommitOutcome::Conflict(_) => panic!("nothing was expected"),
        }
    }

    fn put_durably(&self, pairs: &[(Vec<u8>, Vec<u8>)]) {
        let seq = self.put(pairs);
        self.store.acknowledge(seq, Durability::Sync).unwrap();
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut found = None;
        let engine = self.keyspace.engine().unwrap();
        engine.get(Seq::LATEST, key, &mut |value| found = Some(value.to_vec())).unwrap();
        found
    }
}

fn value(n: usize, bytes: usize) -> Vec<u8> {
    vec![u8::try_from(n % 251).unwrap(); bytes]
}

fn pairs(from: usize, count: usize, bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    (from..from + count).map(|n| (format!("key {n}").into_bytes(), value(n, bytes))).collect()
}

/// Returns the pairs of write-back and fence per call of `work`, after one call that does not
/// count.
fn fences_per_round(world: &TestStore, rounds: u64, mut work: impl FnMut(usize)) -> f64 {
    work(0);
    let before = world.pm_disk.flush_counts().fences;
    (1..=rounds).for_each(|round| work(usize::try_from(round).unwrap()));
    (world.pm_disk.flush_counts().fences - before) as f64 / rounds as f64
}

#[test]
fn a_put_and_a_batch_take_one_flush_and_fence() {
    let world = TestStore::new();
    let put = fences_per_round(&world, 100, |round| world.put_durably(&pairs(round, 1, 64)));
    let batch = fences_per_round(&world, 100, |round| world.put_durably(&pairs(32 * round, 32, 64)));
    println!("{put} for a put, {batch} for a batch of 32; the paper: 2 and 2");
    // Sometimes a segment is full, and ROOT is written.
    assert!(put <= 1.2 && batch <= 1.2, "{put}, {batch}");
}

#[test]
fn a_blob_takes_one_more_flush_and_fence() {
    let world = TestStore::new();
    let large = 100_000;
    let put = fences_per_round(&world, 20, |round| world.put_durably(&pairs(round, 1, large)));
    let batch = fences_per_round(&world, 5, |round| world.put_durably(&pairs(8 * round, 8, large)));
    println!("{put} for a put by pointer, {batch} for a batch of 8; the paper: 3 and 10");
    assert!(put <= 3.0 && batch <= 10.0, "{put}, {batch}");
}

#[test]
fn no_line_is_written_back_twice() {
    let world = TestStore::new();
    world.put_durably(&pairs(0, 1, 8));
    let before = world.pm_disk.flush_counts();
    for round in 1..=50 {
        world.put_durably(&pairs(round, 1, 8));
    }
    let told = world.pm_disk.flush_counts();
    let lines = told.lines - before.lines;
    assert!(lines <= 2 * (told.fences - before.fences), "{lines} lines: a note and a put are in two");
}

/// Returns the lines that a durable put flushes and its fences: the medians of 41 puts, since some
/// puts start a segment.
fn lines_and_fences_per_put(tiny: bool, bytes: usize) -> (u64, u64) {
    let world = TestStore::with_geometry(EmulatedDisk::new(SimDisk::new()).unwrap(), tiny);
    // Later puts reuse slots, which have blocks by then.
    for n in 0..80 {
        world.put_durably(&pairs(n % 8, 1, bytes));
        world.store.pump().unwrap();
    }
    let mut puts: Vec<(u64, u64)> = (0..41)
        .map(|n| {
            let before = world.pm_disk.flush_counts();
            world.put_durably(&pairs(n % 8, 1, bytes));
            let after = world.pm_disk.flush_counts();
            (after.lines - before.lines, after.fences - before.fences)
        })
        .collect();
    puts.sort_unstable();
    puts[20]
}

/// Prints the figures of decisions/0035. A value in the log takes its own lines, and few more for
/// its frame and the note.
#[test]
fn lines_of_a_put_in_the_log_and_by_pointer() {
    for bytes in [8, 64, 256, 1000, 2000, 4000] {
        let (lines, fences) = lines_and_fences_per_put(false, bytes);
        println!("{bytes} bytes in the log: {lines} lines, {fences} fences");
        assert!(lines <= bytes as u64 / 64 + 3 && fences == 1, "{lines}, {fences}");
    }
    for bytes in [1100, 2000, 4000] {
        let (lines, fences) = lines_and_fences_per_put(true, bytes);
        println!("{bytes} bytes by pointer: {lines} lines, {fences} fences");
    }
}

#[test]
fn acknowledged_writes_survive_any_power_cut() {
    for fate in [
        UnfencedBytes::Lost,
        UnfencedBytes::Kept,
        UnfencedBytes::Torn(1),
        UnfencedBytes::Torn(2),
        UnfencedBytes::Torn(3),
        UnfencedBytes::Torn(4),
    ] {
        let mut disk = EmulatedDisk::new(SimDisk::new()).unwrap();
        let mut durable = 0;
        for life in 0..4 {
            let world = TestStore::on(disk);
            for n in 0..durable {
                assert_eq!(world.get(format!("key {n}").as_bytes()), Some(value(n, 64)), "{fate:?} {n}");
            }
            world.put_durably(&pairs(durable, 30, 64));
            durable += 30;
            if life % 2 == 1 {
                world.put_durably(&pairs(1_000, 1, 70_000));
            }
            world.put(&pairs(durable, 20, 64)); // not acknowledged
            disk = world.disk.power_cut(fate).unwrap();
        }
    }
}

/// Commits pairs in a tiny database, some of them large, some over older ones, until logs roll and
/// GC and checkpoints have run. The mark of `disk` is the number of durable puts.
fn run_workload(disk: &EmulatedDisk) {
    let world = TestStore::with_geometry(disk.clone(), true);
    for n in 0..WORKLOAD {
        let bytes = if n % 7 == 3 { 3_000 } else { 150 };
        world.put_durably(&[(workload_key(n), value(n, bytes))]);
        disk.set_mark(n as u64 + 1);
        if n % 16 == 15 {
            world.store.pump().unwrap();
        }
    }
    world.store.close().unwrap();
}

const WORKLOAD: usize = 150;

fn workload_key(n: usize) -> Vec<u8> {
    format!("key {}", n % 40).into_bytes()
}

/// Opens the disk after a power cut. Returns an error text if a durable put is missing.
fn check_after_cut(disk: EmulatedDisk, durable: u64) -> Result<(), String> {
    let world = TestStore::with_geometry(disk, true);
    for key in 0..40 {
        let puts: Vec<usize> = (0..WORKLOAD).filter(|n| n % 40 == key).collect();
        let found = world.get(&workload_key(key));
        let newest = puts.iter().rposition(|n| (*n as u64) < durable);
        let is_allowed = |n: &usize| found.as_ref().is_some_and(|value| usize::from(value[0]) == *n % 251);
        let allowed = &puts[newest.unwrap_or(0)..];
        let is_right = allowed.iter().any(is_allowed) || newest.is_none() && found.is_none();
        if !is_right {
            let found = found.map(|value| value[0]);
            return Err(format!("key {key}: {found:?} instead of one of {allowed:?}, {durable} durable"));
        }
    }
    Ok(())
}

/// Cuts the power before events of the workload, one run for each, and opens the rest.
fn explore_power_cuts(stride: u64, loses_fences: bool) -> Result<u64, String> {
    let counting = EmulatedDisk::new(SimDisk::new()).unwrap();
    run_workload(&counting);
    let (events, mut cuts) = (counting.events(), 0);
    for event in (1..events).step_by(usize::try_from(stride).unwrap()) {
        let fate = match cuts % 3 {
            0 => UnfencedBytes::Lost,
            1 => UnfencedBytes::Kept,
            _ => UnfencedBytes::Torn(event),
        };
        let disk = EmulatedDisk::new(SimDisk::new()).unwrap();
        if loses_fences {
            disk.lose_fences();
        }
        disk.plan_power_cut(event, fate);
        run_workload(&disk);
        // Random numbers of a database may make a run a little shorter.
        let Some((image, durable)) = disk.take_image() else { continue };
        check_after_cut(image, durable).map_err(|text| format!("event {event}, {fate:?}: {text}"))?;
        cuts += 1;
    }
    println!("{cuts} power cuts of {events} events");
    Ok(cuts)
}

#[test]
fn a_power_cut_before_any_event_loses_no_durable_put() {
    let cuts = explore_power_cuts(7, false).unwrap();
    assert!(cuts > 100, "{cuts}");
}

#[test]
fn lost_fences_are_found_by_power_cuts() {
    let found = std::panic::catch_unwind(|| explore_power_cuts(13, true));
    assert!(!matches!(found, Ok(Ok(_))), "no power cut lost a put");
}

#[test]
fn file_changes_survive_a_power_cut_after_sync() {
    let emulated = EmulatedDisk::new(SimDisk::new()).unwrap();
    let disk = PmDisk::new(Arc::new(emulated.clone()), PersistenceMode::Dax);
    let path = Path::new("/file");
    let file = disk.open(path, OpenMode::Create).unwrap();
    file.write_at(3, b"bytes").unwrap();
    file.sync().unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    file.write_at(3, b"later").unwrap();
    let after = emulated.power_cut(UnfencedBytes::Lost).unwrap();
    let file = after.open(path, OpenMode::Read).unwrap();
    let mut bytes = [0; 8];
    file.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0\0\0bytes");
    assert!(file.read_at(1, &mut bytes).is_err(), "beyond the end");
}

/// Bytes that one handle stored are durable after the sync of another one.
#[test]
fn a_sync_covers_the_stores_of_all_handles() {
    let emulated = EmulatedDisk::new(SimDisk::new()).unwrap();
    let disk = PmDisk::new(Arc::new(emulated.clone()), PersistenceMode::Dax);
    let path = Path::new("/file");
    let first = disk.open(path, OpenMode::Create).unwrap();
    first.allocate(8192).unwrap();
    first.sync().unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let second = disk.open(path, OpenMode::ReadWrite).unwrap();
    first.write_at(100, b"stored").unwrap();
    assert_eq!(disk.flush_counts(), FlushCounts { lines: 0, fences: 0, file_syncs: 1 });
    second.sync().unwrap();
    assert_eq!(disk.flush_counts(), FlushCounts { lines: 1, fences: 1, file_syncs: 1 });
    let left = emulated.power_cut(UnfencedBytes::Lost).unwrap();
    let mut bytes = [0; 6];
    left.open(path, OpenMode::Read).unwrap().read_at(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"stored");
}

/// The emulation panics where a store raises SIGBUS: in a hole, and behind the end.
#[test]
fn holes_and_truncated_files_are_written_and_not_stored_to() {
    let emulated = EmulatedDisk::new(SimDisk::new()).unwrap();
    let disk = PmDisk::new(Arc::new(emulated), PersistenceMode::Dax);
    let file = disk.open(Path::new("/file"), OpenMode::Create).unwrap();
    file.allocate(4 * 4096).unwrap();
    file.write_at(0, &[1; 4 * 4096]).unwrap();
    file.punch_hole(4096, 4096).unwrap();
    file.write_at(5000, b"in the hole").unwrap();
    file.write_at(5000, b"again").unwrap();
    file.set_len(6000).unwrap();
    file.sync().unwrap(); // lines behind the end are not flushed
    file.write_at(9000, b"behind the end").unwrap();
    file.set_len(20_000).unwrap();
    file.write_at(15_000, b"behind the bytes").unwrap();
    file.sync().unwrap();
    let mut bytes = [0; 5];
    file.read_at(5000, &mut bytes).unwrap();
    assert_eq!(&bytes, b"again");
}

/// Files of the real disk, mapped as the substitute.
#[test]
fn real_files_are_stored_to_where_they_have_blocks() {
    let dir = std::env::temp_dir().join(format!("sheaf-pmem-{}", std::process::id()));
    let real = sheaf_platform::disk::real::RealDisk::default();
    let disk = PmDisk::new(Arc::new(real), PersistenceMode::Substitute);
    sheaf_platform::disk::create_dirs(&disk, &dir).unwrap();
    let file = disk.open(&dir.join("a"), OpenMode::Create).unwrap();
    file.write_at(0, b"written").unwrap();
    file.write_at(0, b"stored!").unwrap();
    file.allocate(1 << 20).unwrap();
    file.make_resident(4096, 1 << 20);
    assert!(file.is_resident(0, 1 << 20) && !file.is_resident(1, 1 << 20));
    file.write_at(500_000, b"stored").unwrap();
    file.sync().unwrap();
    assert_eq!(disk.flush_counts(), FlushCounts { lines: 2, fences: 1, file_syncs: 1 });
    file.write_at(500_000, b"STORED").unwrap();
    file.sync_to(600_000).unwrap();
    assert_eq!(disk.flush_counts(), FlushCounts { lines: 3, fences: 2, file_syncs: 1 });
    file.write_at(3 << 20, b"longer").unwrap();
    let reader = disk.open(&dir.join("a"), OpenMode::Read).unwrap();
    for (at, expected) in [(0, b"stored"), (500_000, b"STORED"), (3 << 20, b"longer")] {
        let mut bytes = [0; 6];
        reader.read_at(at, &mut bytes).unwrap();
        assert_eq!(&bytes, expected);
    }
    assert!(reader.write_at(0, b"x").is_err(), "it is open for reading");
    drop((file, reader));
    sheaf_platform::disk::remove_tree(&disk, &dir).unwrap();
}
