//! Checkpoints of an index with many leaves: crashes, bytes written, length of the files, damage.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_flexspace::{FlexSpace, SpaceOptions};
use sheaf_platform::disk::Disk;
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, KeepChoice, SimDisk};
use support::buggy_disk::SeededBug;
use support::explore::{Totals, explore_steps};
use support::{Random, SPACE_DIR, WorkloadStep, content, open};

/// Returns `count` steps of small writes, insertions and removals at random places, with a
/// checkpoint after every `interval`. Reopens the space sometimes.
fn small_changes(random: &mut Random, mut len: u64, count: usize, interval: usize) -> Vec<WorkloadStep> {
    let mut steps = Vec::new();
    for n in 0..count {
        let fill = n.to_le_bytes()[0] | 1;
        let at = random.below(len);
        match random.below(8) {
            0 => {
                steps.push(WorkloadStep::Collapse(at, (len - at).min(5)));
                len -= (len - at).min(5);
            }
            1 | 2 => {
                steps.push(WorkloadStep::Insert(at, vec![fill; 7]));
                len += 7;
            }
            _ => steps.push(WorkloadStep::Write(at.min(len - 3), vec![fill; 3])),
        }
        if n % interval == interval - 1 {
            steps.push(WorkloadStep::Checkpoint);
            if random.below(4) == 0 {
                steps.push(WorkloadStep::Reopen);
            }
        }
    }
    steps
}

/// Returns insertions at random places that make an index of about `count` extents, and a
/// checkpoint.
fn many_extents(random: &mut Random, count: usize) -> Vec<WorkloadStep> {
    let at = |random: &mut Random, n: usize| random.below(n as u64 * 5 + 1);
    let steps = (0..count).map(|n| WorkloadStep::Insert(at(random, n), vec![n.to_le_bytes()[0]; 5]));
    let mut steps: Vec<WorkloadStep> = steps.collect();
    steps.extend([WorkloadStep::Checkpoint, WorkloadStep::Checkpoint]);
    steps
}

fn workload_of_leaves(seed: u64) -> (Vec<WorkloadStep>, usize) {
    let mut random = Random(seed);
    let mut steps = many_extents(&mut random, 400);
    let from = steps.len();
    steps.extend(small_changes(&mut random, 400 * 5, 30, 3));
    (steps, from)
}

/// Every cut of a checkpoint leaves the old or the new index, also while blocks of superseded nodes
/// are written again. The older recovery point is verified too.
#[test]
fn every_cut_of_a_checkpoint_leaves_the_old_or_the_new_index() {
    let mut totals = Totals::default();
    for seed in 0..2 {
        let (steps, from) = workload_of_leaves(seed);
        explore_steps((seed, &steps), from, seed == 1, SeededBug::None, &mut totals)
            .unwrap_or_else(|what| panic!("{what}"));
    }
    println!("{} moments, {} images", totals.points, totals.images);
    assert!(totals.images > 2_000, "the search has become shallow: {}", totals.images);
}

#[test]
fn a_forgotten_sync_of_nodes_is_found() {
    let found = (0..4).any(|seed| {
        let (steps, from) = workload_of_leaves(seed);
        let bug = SeededBug::SyncOf(".nodes");
        explore_steps((seed, &steps), from, false, bug, &mut Totals::default()).is_err()
    });
    assert!(found);
}

fn large(disk: &SimDisk) -> FlexSpace {
    let options = SpaceOptions { inline: true, fine: true, ..SpaceOptions::default() };
    FlexSpace::open_on(Arc::new(disk.clone()), SPACE_DIR, options).expect("it opens")
}

/// Returns a space of `extents` extents of eight bytes in random order, after two checkpoints.
fn large_space(disk: &SimDisk, extents: u64) -> FlexSpace {
    let space = large(disk);
    let mut random = Random(extents);
    for n in 0..extents {
        space.insert(random.below(n + 1) * 8, &n.to_le_bytes()).expect("room");
    }
    space.checkpoint().expect("nothing fails here");
    space.write(0, &[1; 8]).expect("room");
    space.checkpoint().expect("nothing fails here");
    space
}

/// Overwrites `count` random extents. Returns the bytes that the checkpoint after it writes.
fn update(space: &FlexSpace, random: &mut Random, count: u64) -> u64 {
    for _ in 0..count {
        let at = random.below(space.len() / 8) * 8;
        space.write(at, &random.next().to_le_bytes()).expect("room");
    }
    let before = space.stats().checkpoint_bytes;
    space.checkpoint().expect("nothing fails here");
    space.stats().checkpoint_bytes - before
}

/// The checkpoint after N random updates writes at most the leaves of the last two periods and
/// their ancestors: 2 N nodes on each level, and never much more than the whole index.
#[test]
fn a_checkpoint_writes_the_changed_leaves_and_their_ancestors() {
    let disk = SimDisk::new();
    let mut space = large_space(&disk, 30_000);
    let mut random = Random(1);
    let (mut whole, mut small) = (0, 0);
    for (round, updates) in [1, 10, 100, 1, 10, 10_000, 10_000, 1, 1, 1].into_iter().enumerate() {
        let written = update(&space, &mut random, updates);
        println!("{updates} updates: {written} bytes");
        match updates {
            10_000 => whole = written,
            // The checkpoint before has changed other leaves, which this file does not have yet.
            1 if round == 9 => small = written,
            _ => {}
        }
        if round == 2 {
            space.close().expect("closed");
            space = large(&disk);
        }
    }
    assert!((280_000..500_000).contains(&whole), "{whole} bytes for all of 30,000 extents");
    assert!(small < 2 * 3 * 1_600 + 1_000, "{small} bytes for one update");
    // The two files have the same nodes also after the space was opened again.
    space.close().expect("closed");
    let space = large(&disk);
    let written = update(&space, &mut random, 1);
    assert!(written < 2 * 3 * 1_600 + 1_000, "{written} bytes for one update after an opening");
    space.verify(|finding| panic!("{finding}")).expect("readable");
}

fn node_files(disk: &SimDisk) -> Vec<(PathBuf, u64)> {
    disk.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "nodes")).collect()
}

/// A node file is never longer than 2.75 times its nodes and 16 blocks.
#[test]
fn node_files_stay_short() {
    let disk = SimDisk::new();
    let mut space = large_space(&disk, 8_000);
    let mut random = Random(2);
    let whole = update(&space, &mut random, 8_000);
    let (mut longest, mut names) = (0, BTreeSet::new());
    for round in 0..120 {
        update(&space, &mut random, [1, 5, 30, 60, 120, 400][round % 6]);
        let files = node_files(&disk);
        assert_eq!(files.len(), 2, "{files:?}");
        longest = files.iter().map(|(_, len)| *len).fold(longest, u64::max);
        names.extend(files);
        if round == 60 {
            space.close().expect("closed");
            space = large(&disk);
        }
    }
    println!("{whole} bytes of nodes, at most {longest} bytes a file");
    assert!(longest * 4 <= whole * 11 + 16 * 4096 * 4, "{longest} bytes for {whole} bytes of nodes");
    // After removals the file is as short as its nodes.
    space.collapse(800, space.len() - 800 - 3000 * 8).expect("within");
    for _ in 0..6 {
        update(&space, &mut random, 1);
    }
    let longest = node_files(&disk).iter().map(|(_, len)| *len).max();
    assert!(longest.is_some_and(|len| len * 4 <= whole * 11 / 2 + 16 * 4096 * 4), "{longest:?} of {whole}");
}

/// Returns the disk of a killed space with many leaves and several checkpoints, and its content.
fn damaged_fixture() -> (SimDisk, Vec<u8>) {
    let disk = SimDisk::new();
    let space = open(Arc::new(disk.clone())).expect("a new space");
    let (steps, _) = workload_of_leaves(3);
    let mut len = 0;
    for step in &steps {
        step.clamp_to(len).run(&space).expect("nothing fails here");
        len = space.len();
    }
    space.write(0, b"last").expect("room");
    space.sync().expect("synced");
    let model = content(&space).expect("readable");
    (disk.kill(), model)
}

/// The two recovery points share no byte. Damage to a node file is found or has no effect, and the
/// content is read from the other one.
#[test]
fn a_damaged_node_file_is_replaced_by_the_other_one() {
    let (disk, model) = damaged_fixture();
    let (mut found, mut healed) = (0, 0);
    for (path, len) in node_files(&disk) {
        let bytes = disk.read_file(&path).expect("it is there");
        for at in (0..len).step_by(61) {
            let image = disk.fork();
            let byte = bytes[usize::try_from(at).expect("small")];
            image.overwrite(&path, at, &[byte ^ 1 << (at % 8)]).expect("within");
            let space = open(Arc::new(image.clone())).unwrap_or_else(|e| panic!("byte {at}: {e}"));
            assert_eq!(content(&space).expect("readable"), model, "byte {at}");
            let mut findings = 0;
            space.verify(|_| findings += 1).expect("readable");
            found += findings;
            healed += u32::from(space.repaired_damage().is_some());
            // Two checkpoints later nothing of the damage is left.
            for n in 0..2 {
                space.write(n, b"x").expect("room");
                space.checkpoint().expect("nothing fails here");
            }
            space.verify(|finding| panic!("byte {at}: {finding}")).expect("readable");
        }
        let image = disk.fork();
        image.remove_file(&path).expect("it is there");
        let space = open(Arc::new(image)).expect("it opens");
        assert_eq!(content(&space).expect("readable"), model, "{} removed", path.display());
    }
    println!("{found} damages found, {healed} repaired at the opening");
    assert!(found > 20 && healed > 20, "{found} found, {healed} repaired");
}

/// A checkpoint that fails at any call leaves both recovery points, and the next one succeeds.
#[test]
fn a_checkpoint_that_fails_anywhere_leaves_both_recovery_points() {
    for failure in [FaultKind::NoSpace, FaultKind::Io] {
        for nth in 1..12 {
            let (disk, mut model) = damaged_fixture();
            let space = open(Arc::new(disk.clone())).expect("it opens");
            for round in 0..6u8 {
                space.write(u64::from(round) * 50, &[round; 9]).expect("room");
                model[usize::from(round) * 50..][..9].fill(round);
                let class = [CallClass::Write, CallClass::Create][usize::from(round % 2)];
                disk.set_faults(Fault::new(class, failure).on("/tree/").nth(nth));
                let _ = space.checkpoint();
                disk.set_faults(FaultPlan::default());
                let context = format!("{failure:?} {nth} round {round}");
                space.verify(|finding| panic!("{context}: {finding}")).expect("readable");
                space.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
                let after = open(Arc::new(disk.power_cut(&KeepChoice::None))).expect("it opens");
                assert_eq!(content(&after).expect("readable"), model, "{context}");
                after.verify(|finding| panic!("{context}: {finding}")).expect("readable");
            }
            space.checkpoint().expect("nothing fails now");
            let list = disk.list(&Path::new(SPACE_DIR).join("tree")).expect("it is there");
            assert!(list.len() <= 4, "two images and two node files: {list:?}");
        }
    }
}
