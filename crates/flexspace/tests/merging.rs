//! Writes that continue the bytes before extend their extent (FlexSpace paper, section 4.1).

#![allow(clippy::cast_possible_truncation, reason = "only one byte of a number is used")]

mod support;

use std::sync::Arc;

use sheaf_flexspace::{FlexSpace, SpaceOptions};
use sheaf_sim::{KeepChoice, SimDisk};
use support::{SPACE_DIR, content, open};

/// Bytes of a record.
const RECORD: u64 = 100;

fn record(n: u64) -> [u8; RECORD as usize] {
    [n as u8; RECORD as usize]
}

fn records(range: std::ops::Range<u64>) -> Vec<u8> {
    range.flat_map(record).collect()
}

/// Opens a space of normal sizes without threads.
fn open_standard(disk: &SimDisk) -> FlexSpace {
    let options = SpaceOptions { inline: true, ..SpaceOptions::default() };
    FlexSpace::open_on(Arc::new(disk.clone()), SPACE_DIR, options).expect("it opens")
}

/// Figure: before, each of the 26,200 records had an extent (112 bytes with checksum and padding,
/// 16 bytes in a checkpoint). Now a chunk of 128 KiB has 1310 records.
#[test]
fn appended_records_share_extents_and_checksums() {
    let disk = SimDisk::new();
    let space = open_standard(&disk);
    let count = 20 * 1310;
    for n in 0..count {
        space.write(n * RECORD, &record(n)).expect("room");
    }
    let stats = space.stats();
    println!("{count} records: {} extents, {} data bytes", stats.extents, stats.written_bytes);
    assert_eq!(stats.extents, 20, "one for each run of 1310 records");
    assert_eq!(stats.written_bytes, 20 * (131_000 + 32 * 8), "one checksum for 4 KiB, and no padding");
    assert_eq!(stats.live_bytes, stats.written_bytes);
    assert!(content(&space).expect("readable") == records(0..count));
    space.sync().expect("synced");
    let again = open_standard(&disk.power_cut(&KeepChoice::None));
    assert_eq!(again.stats().extents, 20, "replay merges as the writer did");
    assert!(content(&again).expect("readable") == records(0..count));
    assert_eq!(again.stats().live_bytes, stats.live_bytes);
    again.close().expect("closed");
}

#[test]
fn without_merging_each_write_has_extents_and_checksums_of_its_own() {
    let options = SpaceOptions { inline: true, merge_extents: false, ..SpaceOptions::default() };
    let space = FlexSpace::open_on(Arc::new(SimDisk::new()), SPACE_DIR, options).expect("a new space");
    for n in 0..1000 {
        space.write(n * RECORD, &record(n)).expect("room");
    }
    let stats = space.stats();
    assert_eq!((stats.extents, stats.written_bytes), (1000, 1000 * 112));
    assert_eq!(content(&space).expect("readable"), records(0..1000));
}

/// Insertions and overwrites merge too, wherever they are, but only behind the newest bytes.
#[test]
fn sequences_merge_in_the_middle_and_other_writes_do_not() {
    let space = open_standard(&SimDisk::new());
    space.insert(0, &[255; 10_000]).expect("room");
    for n in 0..20 {
        space.insert(5000 + n * RECORD, &record(n)).expect("room");
    }
    assert_eq!(space.stats().extents, 3, "the run between two parts");
    for n in 0..20 {
        space.write(5000 + n * RECORD, &record(n + 100)).expect("room");
    }
    assert_eq!(space.stats().extents, 3, "the new run replaced the old one");
    let expected = [&[255; 5000][..], &records(100..120), &[255; 5000]].concat();
    assert_eq!(content(&space).expect("readable"), expected);
    // Behind the newest bytes of the segment, but not of the space.
    space.insert(3000, &record(1)).expect("room");
    assert_eq!(space.stats().extents, 5);
    // Behind bytes of the space that are not the newest.
    space.insert(3000 + 50, &record(2)).expect("room");
    assert_eq!(space.stats().extents, 7);
    let edit = space.edit().collapse(0, 1000).insert(0, &[1; 500]).insert(500, &[2; 500]);
    edit.insert(1000, &[3; 500]).commit().expect("room");
    assert_eq!(space.stats().extents, 8, "the parts of an operation");
    space.verify(|finding| panic!("{finding}")).expect("readable");
}

/// A synced block is not written again: a crash that tears the next write must not destroy it. Full
/// blocks do not change, so a chunk of full blocks grows.
#[test]
fn a_flushed_block_grows_only_if_it_is_full() {
    let disk = SimDisk::new();
    let space = open(Arc::new(disk.clone())).expect("a new space");
    let parts = [(0, 64, 1), (64, 20, 1), (84, 44, 2), (128, 128, 3), (256, 128, 3), (384, 100, 3)];
    for (number, (at, len, extents)) in parts.into_iter().enumerate() {
        space.write(at, &vec![number as u8 + 1; len]).expect("room");
        assert_eq!(space.stats().extents, extents, "part {number}");
        if number != 0 {
            space.sync().expect("synced");
        }
    }
    let now = content(&space).expect("readable");
    for after in [disk.power_cut(&KeepChoice::None), disk.kill()] {
        let again = open(Arc::new(after)).expect("it opens");
        assert_eq!(content(&again).expect("readable"), now);
    }
    space.write(0, &[9; 500]).expect("room");
    space.collapse(0, 484).expect("within");
    assert_eq!(space.stats().live_bytes, 24, "all extents were accounted for");
}

/// A view keeps the length that its extents had, and an older version is read while they grow.
#[test]
fn views_do_not_see_bytes_that_extend_their_extents() {
    let space = open(Arc::new(SimDisk::new())).expect("a new space");
    let mut views = Vec::new();
    for n in 0..60 {
        space.write(n * 9, &[n as u8; 9]).expect("room");
        views.push(space.view());
        if n % 7 == 6 {
            space.sync().expect("synced");
        }
        for (last, view) in (0u64..).zip(&views) {
            let mut bytes = vec![0; 1000];
            let count = view.read(0, &mut bytes).expect("readable");
            let expected: Vec<u8> = (0..=last).flat_map(|n| [n as u8; 9]).collect();
            assert_eq!(bytes[..count], expected);
        }
    }
    // A last block that is not full ends an extent at each sync; 500 bytes do in any case.
    assert!(space.stats().extents < 14, "{:?}", space.stats());
}
