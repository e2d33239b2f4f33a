//! Seeded workloads compared with a vector, on the simulated and the real disk, with reopenings.

#![allow(clippy::cast_possible_truncation, reason = "only one byte of a number is used")]

mod support;

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_flexspace::{FlexSpace, SpaceOptions};
use sheaf_platform::disk::real::RealDisk;
use sheaf_platform::disk::{Disk, OpenMode};
use sheaf_platform::error::Error;
use sheaf_platform::memory::Memory;
use sheaf_sim::SimDisk;
use support::mapping_check_disk::MappingCheckDisk;
use support::{Random, SPACE_DIR, WorkloadStep, content, open, options, workload};

/// Runs a workload and compares the space with the model after every step.
fn compare_with_model(seed: u64, count: usize) {
    let mut disk = SimDisk::with_seed(seed);
    let mut space = open(Arc::new(disk.clone())).expect("a new space");
    let mut model = Vec::new();
    let mut views = Vec::new();
    let mut random = Random(seed);
    let mut peeked = 0;
    for (n, step) in workload(seed, count).into_iter().enumerate() {
        let context = || format!("seed {seed}, step {n}: {step:?}");
        match step {
            WorkloadStep::Reopen => {
                views.clear();
                let live = space.stats().live_bytes;
                space.close().unwrap_or_else(|e| panic!("{}: {e}", context()));
                space = open(Arc::new(disk.clone())).unwrap_or_else(|e| panic!("{}: {e}", context()));
                assert_eq!(space.stats().live_bytes, live, "as counted: {}", context());
            }
            WorkloadStep::Kill => {
                views.clear();
                space.sync().expect("nothing fails here");
                let live = space.stats().live_bytes;
                disk = disk.kill();
                space = open(Arc::new(disk.clone())).unwrap_or_else(|e| panic!("{}: {e}", context()));
                assert_eq!(space.stats().live_bytes, live, "as counted: {}", context());
            }
            _ => step.run(&space).unwrap_or_else(|e| panic!("{}: {e}", context())),
        }
        step.apply(&mut model);
        assert_eq!(content(&space).unwrap_or_else(|e| panic!("{}: {e}", context())), model, "{}", context());
        let (at, len) = (random.below(model.len() as u64 + 10), random.below(700));
        let mut part = vec![1; usize::try_from(len).expect("small")];
        let got = space.read(at, &mut part).expect("nothing is damaged");
        let from = usize::try_from(at).expect("small").min(model.len());
        assert_eq!(part[..got], model[from..(from + part.len()).min(model.len())], "{}", context());
        let at_hand = space.view().peek(at, &mut part);
        assert_eq!(part[..at_hand], model[from..(from + at_hand).min(model.len())], "{}", context());
        peeked += at_hand;
        if n % 7 == 0 {
            views.push((space.view(), model.clone()));
        }
        if views.len() > 4 {
            views.remove(usize::try_from(random.below(4)).expect("small"));
        }
        for (view, model) in &views {
            let mut bytes = vec![0; model.len()];
            assert_eq!(view.read(0, &mut bytes).expect("a view stays readable"), model.len());
            assert!(bytes == *model, "a view changed: {}", context());
        }
    }
    assert!(peeked > 0, "seed {seed}: nothing was at hand");
    let mut findings = 0;
    space.verify(|_| findings += 1).expect("readable");
    assert_eq!(findings, 0);
    let before = space.stats();
    assert!(before.live_bytes <= before.capacity);
}

#[test]
fn a_space_equals_a_vector_across_reopenings() {
    for seed in 0..60 {
        compare_with_model(seed, 150);
    }
}

#[test]
fn long_lives_collect_and_checkpoint() {
    compare_with_model(1000, 2500);
}

/// Directory on the real disk. It is deleted at the end of the test.
struct SpaceTestDir(PathBuf);

impl SpaceTestDir {
    fn new(name: &str) -> SpaceTestDir {
        let dir = std::env::temp_dir().join(format!("sheaf-flexspace-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        SpaceTestDir(dir)
    }
}

impl Drop for SpaceTestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_real_disk_and_normal_sizes_do_the_same() {
    let scratch = SpaceTestDir::new("real");
    for tiny in [true, false] {
        let dir = scratch.0.join(if tiny { "tiny" } else { "normal" });
        let options = || SpaceOptions { tiny, ..SpaceOptions::default() };
        let mut space = FlexSpace::open(&dir, options()).expect("a new space");
        let mut model = Vec::new();
        for step in workload(77, 600) {
            if matches!(step, WorkloadStep::Reopen | WorkloadStep::Kill) {
                space.close().expect("nothing fails here");
                space = FlexSpace::open(&dir, options()).expect("a closed space opens");
            } else {
                step.run(&space).expect("nothing fails here");
            }
            step.apply(&mut model);
        }
        assert_eq!(content(&space).expect("readable"), model);
        let large = vec![0xab; 9 << 20];
        if !tiny {
            space.insert(3, &large).expect("three segments");
            model.splice(3..3, large.iter().copied());
            assert!(content(&space).expect("readable") == model);
        }
    }
}

#[test]
fn a_second_open_is_refused_and_a_missing_space_is_not_made_unasked() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let missing =
        FlexSpace::open_on(Arc::clone(&disk), SPACE_DIR, SpaceOptions { create: false, ..options() });
    assert!(matches!(missing, Err(Error::DatabaseNotFound { .. })));
    let _space = open(Arc::clone(&disk)).expect("a new space");
    assert!(matches!(open(disk), Err(Error::Locked { pid: Some(_), .. })));
}

#[test]
fn cursors_read_write_insert_and_remove() {
    let space = open(Arc::new(SimDisk::new())).expect("a new space");
    let mut cursor = space.cursor(0);
    cursor.write_all(b"one three").expect("room");
    cursor.seek(SeekFrom::Start(4)).expect("within");
    cursor.insert(b"two ").expect("room");
    assert_eq!(cursor.position(), 8);
    let mut rest = String::new();
    cursor.read_to_string(&mut rest).expect("readable");
    assert_eq!(rest, "three");
    cursor.seek(SeekFrom::End(-5)).expect("within");
    cursor.collapse(2).expect("within");
    assert_eq!(content(&space).expect("readable"), b"one two ree");
    assert!(cursor.seek(SeekFrom::Current(-100)).is_err());
    cursor.seek(SeekFrom::Start(0)).expect("within");
    let mut extents = Vec::new();
    while let Some(extent) = cursor.read_extent(100).expect("readable") {
        extents.push(extent.bytes);
    }
    assert_eq!(extents, [&b"one "[..], b"two ", b"ree"]);
    cursor.seek(SeekFrom::Start(0)).expect("within");
    cursor.defrag(8).expect("room");
    cursor.sync().expect("synced");
    assert_eq!((cursor.position(), space.view().fragments(0, 11)), (0, 2));
    let mut all = String::new();
    space.view().reader().read_to_string(&mut all).expect("readable");
    assert_eq!(all, "one two ree");
}

#[test]
fn read_extent_gives_what_was_inserted_in_one_go() {
    let space = open(Arc::new(SimDisk::new())).expect("a new space");
    space.insert(0, b"second").expect("room");
    space.insert(0, b"first").expect("room");
    space.write(20, b"after a hole").expect("room");
    let extent = space.read_extent(8, 3).expect("readable").expect("there");
    assert_eq!((extent.start, extent.len, extent.bytes.as_slice()), (5, 6, &b"sec"[..]));
    let hole = space.read_extent(15, 100).expect("readable").expect("there");
    assert_eq!((hole.start, hole.len, hole.is_hole), (11, 9, true));
    assert!(space.read_extent(32, 1).expect("readable").is_none());
    assert_eq!(space.view().fragments(0, 32), 4);
    space.defrag(0, 32).expect("room");
    assert_eq!(space.view().fragments(0, 32), 3, "the hole stays one");
    assert!(matches!(space.insert(33, b"x"), Err(Error::InvalidArgument { .. })));
    assert!(matches!(space.collapse(30, 3), Err(Error::InvalidArgument { .. })));
}

#[test]
fn holes_beyond_2_to_the_48_take_no_space() {
    let space = open(Arc::new(SimDisk::new())).expect("a new space");
    space.write(1 << 50, b"far out").expect("room");
    space.insert_hole(3, 1 << 49).expect("room");
    let mut bytes = [1; 12];
    assert_eq!(space.read((1 << 50) + (1 << 49) - 5, &mut bytes).expect("readable"), 12);
    assert_eq!(&bytes, b"\0\0\0\0\0far out");
    assert!(space.stats().live_bytes < 100);
    assert!(matches!(space.insert_hole(0, u64::MAX), Err(Error::TooLarge { .. })));
}

#[test]
fn the_mark_travels_with_the_state() {
    let disk = SimDisk::new();
    let space = open(Arc::new(disk.clone())).expect("a new space");
    space.edit().insert(0, b"a").mark(7).commit().expect("room");
    space.sync().expect("synced");
    space.edit().insert(0, b"b").mark(8).commit().expect("room");
    assert_eq!((space.view().mark(), space.mark()), (8, 8));
    let cut = disk.power_cut(&sheaf_sim::KeepChoice::None);
    let space = open(Arc::new(cut.clone())).expect("it opens");
    assert_eq!((space.view().mark(), content(&space).expect("readable")), (7, b"a".to_vec()));
    space.close().expect("closed");
    assert_eq!(open(Arc::new(cut)).expect("it opens").mark(), 7);
}

#[test]
fn random_overwrites_at_the_limit_go_on_for_ever() {
    let limit = 64 * 4096;
    let space = FlexSpace::open_on(
        Arc::new(SimDisk::new()),
        SPACE_DIR,
        SpaceOptions { limit: Some(limit), ..options() },
    )
    .expect("a new space");
    let mut len = 0u64;
    while space.insert(len, &[9; 500]).is_ok() {
        len += 500;
    }
    let full = space.stats();
    assert!(full.live_bytes > full.capacity - 1024, "{full:?}: filled to 93.75 % of all but the reserve");
    space.collapse(0, 2000).expect("removing needs no room");
    len -= 2000;
    let mut random = Random(1);
    for n in 0..20_000u64 {
        // Random blocks first, then all blocks in turn, in a new order for each round. Bytes that
        // were written together then die far apart, and no segment is much emptier than others.
        let blocks = len / 500;
        let block = if n < 10_000 { random.below(blocks) } else { n * (31 + 2 * (n / blocks)) % blocks };
        let at = block * 500;
        space.write(at, &[n as u8; 500]).unwrap_or_else(|e| panic!("write {n}: {e}; {:?}", space.stats()));
    }
    let stats = space.stats();
    assert!(stats.freed_segments > 1000 && stats.segments <= 64, "{stats:?}");
    space.close().expect("closed");
}

#[test]
fn user_bytes_are_counted_once_with_checksums() {
    let space = open(Arc::new(SimDisk::new())).expect("a new space");
    for n in 0..5 {
        space.insert(n * 500, &[7; 500]).expect("room");
    }
    assert_eq!(space.stats().written_bytes, 5 * 536, "500 bytes, four sums, padded");
    assert_eq!(space.stats().live_bytes, 5 * 536);
}

#[test]
fn space_of_removed_bytes_goes_back() {
    let disk = SimDisk::new();
    let space = open(Arc::new(disk.clone())).expect("a new space");
    let bytes = |disk: &SimDisk| disk.files().iter().map(|(_, len)| len).sum::<u64>();
    for n in 0..200 {
        space.insert(0, &[n; 4000]).expect("room");
    }
    let full = bytes(&disk);
    space.collapse(0, space.len() - 10).expect("within");
    while space.maintain().expect("nothing fails here") {}
    // The log after the last checkpoint is deleted by the next checkpoint that has changes.
    space.write(0, &[0; 10]).expect("room");
    space.checkpoint().expect("nothing fails here");
    assert!(bytes(&disk) < full / 8, "{} of {full}", bytes(&disk));
    assert_eq!(content(&space).expect("readable"), [0; 10]);
}

#[test]
fn beyond_the_memory_budget_bytes_can_only_be_removed() {
    let memory = Arc::new(Memory::new(20_000));
    let options = SpaceOptions { memory: Arc::clone(&memory), ..options() };
    let space = FlexSpace::open_on(Arc::new(SimDisk::new()), SPACE_DIR, options).expect("a new space");
    let mut refused = None;
    for n in 0..10_000u64 {
        if let Err(error) = space.insert(n * 3 % 7919 % (space.len() + 1), b"abc") {
            refused = Some(error);
            break;
        }
    }
    assert!(matches!(refused, Some(Error::MemoryBudgetExceeded { budget: 20_000 })), "{refused:?}");
    space.collapse(0, 2).expect("removing goes on");
    space.close().expect("closed");
    assert_eq!(memory.total(), 0, "all memory was given back");
}

#[test]
fn readers_continue_during_writes_and_gc() {
    let scratch = SpaceTestDir::new("beside");
    let options = SpaceOptions { tiny: true, limit: Some(1 << 20), ..SpaceOptions::default() };
    let space = FlexSpace::open_on(Arc::new(RealDisk::default()), &scratch.0, options).expect("a new space");
    // Each block of 64 bytes is filled with one number. A torn read would show two numbers.
    for n in 0..4000u64 {
        space.insert(n * 64, &[n as u8; 64]).expect("room");
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (space, done) = (&space, &done);
            scope.spawn(move || {
                let mut random = Random(reader);
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let mut block = [0; 64];
                    let at = random.below(3900) * 64;
                    assert_eq!(space.read(at, &mut block).expect("nothing is damaged"), 64);
                    assert!(block.iter().all(|byte| *byte == block[0]), "{block:?} at {at}");
                }
            });
        }
        let mut random = Random(9);
        for n in 0..20_000u64 {
            let at = random.below(3900) * 64;
            match n % 3 {
                0 => space.write(at, &[n as u8; 64]),
                1 => space.insert(at, &[n as u8; 64]),
                _ => space.collapse(at, 64),
            }
            .unwrap_or_else(|e| panic!("operation {n}: {e}; {:?}", space.stats()));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(space.stats().moved_bytes > 0, "{:?}", space.stats());
    space.verify(|finding| panic!("{finding}")).expect("readable");
    space.close().expect("closed");
}

/// A damaged length may claim that a block includes unwritten bytes. The mapping is not accessed
/// there. Written bytes are accessed in the mapping, also in an open segment.
#[test]
fn mapped_bytes_are_read_only_after_they_were_written() {
    let scratch = SpaceTestDir::new("watched");
    let disk = MappingCheckDisk::default();
    let options = SpaceOptions { inline: true, tiny: true, ..SpaceOptions::default() };
    let space = FlexSpace::open_on(Arc::new(disk.clone()), &scratch.0, options).expect("a new space");
    for round in 0..6u8 {
        space.insert(space.len(), &[round; 100]).expect("room");
        space.sync().expect("synced");
        // An idle space detaches its buffers.
        for _ in 0..4 {
            space.maintain().expect("at rest");
        }
        let before = disk.valid_reads.load(Ordering::SeqCst);
        assert_eq!(content(&space).expect("readable").last(), Some(&round));
        assert!(
            disk.valid_reads.load(Ordering::SeqCst) > before,
            "round {round}: it was not read where it is mapped"
        );
    }
    let data_file = RealDisk::default()
        .open(&scratch.0.join("data/00000000.area"), OpenMode::ReadWrite)
        .expect("a data file");
    let mut bytes = vec![0; usize::try_from(data_file.len().expect("measured")).expect("small")];
    data_file.read_at(0, &mut bytes).expect("readable");
    let last = bytes.windows(100).position(|window| window == [5; 100]).expect("it is there") as u64;
    data_file.write_at(last - 4, &128u32.to_le_bytes()).expect("damaged");
    assert!(matches!(space.read(500, &mut [0; 50]), Err(error) if error.is_corrupt()));
    assert_eq!(disk.invalid_reads.load(Ordering::SeqCst), 0);
}
