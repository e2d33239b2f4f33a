//! Interleavings of readers with the writer, flushes, syncs, checkpoints and garbage collection
//! under a scheduler.
//!
//! Built with `--cfg shuttle` only: `RUSTFLAGS='--cfg shuttle' cargo test -p sheaf-flexspace --test
//! interleavings`. `sheaf_platform::sync::explore` has the settings.
//!
//! Blind spots: weak memory order, and the interior of a load by arc-swap (threads switch only
//! before and after it).

#![cfg(shuttle)]

use std::sync::Arc;

use sheaf_flexspace::{FlexSpace, SpaceOptions};
use sheaf_platform::sync::{explore, thread};
use sheaf_sim::{KeepChoice, SimDisk};

const BLOCK: u64 = 64;

fn open(disk: &SimDisk) -> FlexSpace {
    let options = SpaceOptions { tiny: true, inline: true, limit: Some(12 << 12), ..SpaceOptions::default() };
    FlexSpace::open_on(Arc::new(disk.clone()), "/space", options).expect("it opens")
}

/// Returns a space of blocks, each filled with one number.
fn filled(blocks: u64) -> (SimDisk, Arc<FlexSpace>) {
    let disk = SimDisk::new();
    let space = open(&disk);
    for n in 0..blocks {
        space.insert(n * BLOCK, &[1; BLOCK as usize]).expect("room");
    }
    space.sync().expect("synced");
    (disk, Arc::new(space))
}

mod merging {
    use super::*;

    /// Records are appended to an open block while it is read and sealed by flushes.
    #[test]
    fn readers_see_complete_records_while_a_block_grows() {
        explore(400, || {
            let space = Arc::new(open(&SimDisk::new()));
            let writer = {
                let space = Arc::clone(&space);
                thread::spawn(move || {
                    for n in 0..9u8 {
                        space.write(u64::from(n) * 50, &[n + 1; 50]).expect("room");
                    }
                })
            };
            let flusher = {
                let space = Arc::clone(&space);
                thread::spawn(move || {
                    for _ in 0..3 {
                        space.sync().expect("synced");
                    }
                })
            };
            for _ in 0..4 {
                let view = space.view();
                let mut bytes = vec![0; 500];
                let count = view.read(0, &mut bytes).expect("nothing is damaged");
                let whole: Vec<u8> = (1..=9u8).flat_map(|n| [n; 50]).collect();
                assert_eq!(bytes[..count], whole[..count]);
                let peeked = view.peek(20, &mut bytes);
                assert_eq!(bytes[..peeked], whole[20..20 + peeked]);
            }
            writer.join().expect("it ended");
            flusher.join().expect("it ended");
            space.verify(|finding| panic!("{finding}")).expect("readable");
        });
    }
}

mod reading {
    use super::*;

    /// Two reads of a view during other work are equal, and each block is complete.
    #[test]
    fn views_stay_as_they_are_beside_writes_flushes_and_collection() {
        explore(300, || {
            let (_disk, space) = filled(24);
            let writer = {
                let space = Arc::clone(&space);
                thread::spawn(move || {
                    for n in 0..10u8 {
                        let at = u64::from(n) * 7 % 24 * BLOCK;
                        space.write(at, &[n + 2; BLOCK as usize]).expect("room");
                        if n % 4 == 3 {
                            space
                                .edit()
                                .collapse(0, BLOCK)
                                .insert(0, &[99; BLOCK as usize])
                                .commit()
                                .expect("room");
                        }
                    }
                })
            };
            let keeper = {
                let space = Arc::clone(&space);
                thread::spawn(move || {
                    for _ in 0..4 {
                        space.maintain().expect("nothing fails here");
                    }
                })
            };
            for _ in 0..3 {
                let view = space.view();
                let (mut once, mut twice) = (vec![0; 24 * BLOCK as usize], vec![0; 24 * BLOCK as usize]);
                view.read(0, &mut once).expect("nothing is damaged");
                view.read(0, &mut twice).expect("nothing is damaged");
                assert!(once == twice, "a view changed");
                assert!(once.chunks(BLOCK as usize).all(|block| block.iter().all(|byte| *byte == block[0])));
            }
            writer.join().expect("no panic");
            keeper.join().expect("no panic");
        });
    }

    /// Segments are emptied, freed and reused while a reader loads a new version for each read.
    #[test]
    fn segments_are_reused_only_without_readers() {
        explore(200, || {
            let (_disk, space) = filled(24);
            let churn = {
                let space = Arc::clone(&space);
                thread::spawn(move || {
                    for round in 0..3u8 {
                        space.write(0, &[round + 2; 20 * BLOCK as usize]).expect("room");
                        while space.maintain().expect("nothing fails here") {}
                    }
                })
            };
            for n in 0..12 {
                let mut block = [0; BLOCK as usize];
                space.read(n % 20 * BLOCK, &mut block).expect("nothing is damaged");
                assert!(block.iter().all(|byte| *byte == block[0]), "{block:?}");
            }
            churn.join().expect("no panic");
        });
    }
}

mod writing {
    use super::*;

    /// Operations before a sync survive a power cut, regardless of concurrent writes, syncs and
    /// checkpoints.
    #[test]
    fn a_sync_covers_what_was_before_it_beside_other_syncs_and_checkpoints() {
        explore(200, || {
            let (disk, space) = filled(2);
            let threads: Vec<_> = (0..3u8)
                .map(|id| {
                    let (space, disk) = (Arc::clone(&space), disk.clone());
                    thread::spawn(move || {
                        for round in 0..2u8 {
                            let number = 10 + id * 10 + round;
                            space.insert(0, &[number; 3]).expect("room");
                            match id {
                                0 => space.checkpoint().expect("nothing fails here"),
                                1 => drop(space.maintain().expect("nothing fails here")),
                                _ => {}
                            }
                            space.sync().expect("synced");
                            let after = open(&disk.power_cut(&KeepChoice::None));
                            let mut bytes = vec![0; usize::try_from(after.len()).expect("small")];
                            after.read(0, &mut bytes).expect("nothing is damaged");
                            assert_eq!(bytes.iter().filter(|byte| **byte == number).count(), 3, "{number}");
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            let stats = space.stats();
            assert_eq!((stats.operations, stats.len), (2 + 6, 2 * BLOCK + 18));
        });
    }
}
