//! Models of commits in the window, of waits and of stripes under a scheduler.
//!
//! Compiled only with `--cfg shuttle`; `sheaf_platform::sync::explore` lists the settings. The
//! scheduler does not explore weak memory orders.

use sheaf_platform::error::PoisonCause;
use std::path::Path;
use std::sync::Arc;

use super::{
    ChangedKey, CommitProgress, CommitWindow, OpenTail, RecentKeys, ReserveDecision, Stripes, TailSet,
};
use crate::contract::Bounds;
use sheaf_log::segment::{DATA_START, Segment, SegmentIdentity};
use sheaf_log::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId};
use sheaf_platform::disk::Disk;
use sheaf_platform::memory::Memory;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::{Mutex, epoch, explore, thread};
use sheaf_sim::SimDisk;

/// Runs each of `works` in a thread.
fn run<const N: usize>(works: [Box<dyn FnOnce() + Send>; N]) {
    let threads = works.map(thread::spawn);
    threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
}

#[test]
fn each_commit_becomes_visible_and_every_wait_ends() {
    explore(20_000, || {
        let world = Arc::new((CommitWindow::new(), CommitProgress::started()));
        let commits = |count: usize| -> Box<dyn FnOnce() + Send> {
            let world = Arc::clone(&world);
            Box::new(move || {
                let (window, progress) = &*world;
                for _ in 0..count {
                    let guard = epoch::pin();
                    let seq = window.reserve(&guard, |_, word| ReserveDecision::Yes(word.take_seq()));
                    let seq = seq.expect("the window stays open").0;
                    drop(guard);
                    assert!(progress.visible() < seq, "it is not complete");
                    progress.complete(seq).expect("no commit fails");
                    progress.wait(seq).expect("no commit fails");
                }
            })
        };
        run([commits(3), commits(3), commits(2)]);
        assert_eq!((world.0.reserved(), world.1.visible()), (Seq(8), Seq(8)));
    });
}

/// More commits complete than the ring has places, while an earlier one is incomplete.
#[test]
fn a_place_of_the_ring_is_used_again_when_its_commit_is_visible() {
    explore(20_000, || {
        let world = Arc::new((CommitWindow::new(), CommitProgress::default()));
        let commits = || -> Box<dyn FnOnce() + Send> {
            let world = Arc::clone(&world);
            Box::new(move || {
                let (window, progress) = &*world;
                for _ in 0..3 {
                    let guard = epoch::pin();
                    let seq = window.reserve(&guard, |_, word| ReserveDecision::Yes(word.take_seq()));
                    let seq = seq.expect("the window stays open").0;
                    drop(guard);
                    assert!(progress.visible() < seq, "it is not complete");
                    progress.complete(seq).expect("no commit fails");
                }
            })
        };
        run([commits(), commits(), commits()]);
        world.1.wait(Seq(9)).expect("no commit fails");
    });
}

#[test]
fn a_failed_commit_ends_every_wait_for_later_ones() {
    explore(20_000, || {
        let progress = Arc::new(CommitProgress::started());
        let commit = |seq: Seq, fails: bool| -> Box<dyn FnOnce() + Send> {
            let progress = Arc::clone(&progress);
            Box::new(move || {
                if fails {
                    return progress.fail(seq, PoisonCause::Append);
                }
                progress.complete(seq).expect("the ring has room");
                assert_eq!(progress.wait(seq).is_ok(), seq < Seq(2), "{seq}");
            })
        };
        run([commit(Seq(1), false), commit(Seq(2), true), commit(Seq(3), false)]);
        assert_eq!(progress.visible(), Seq(1));
    });
}

/// State of the model of [`RecentKeys`].
struct RangeChecks {
    window: CommitWindow,
    progress: CommitProgress,
    order: Mutex<()>,
    recent: RecentKeys,
    memory: Memory,
}

impl RangeChecks {
    /// Records the key of a commit that has its seq, if there are readers, and completes it.
    fn finish(&self, seq: Seq) {
        if self.recent.has_readers() {
            let key = (KeyspaceId(1), ChangedKey::Key(b"k"));
            self.recent.record(seq, [key].into_iter(), &self.memory);
        }
        self.progress.complete(seq).expect("no commit fails");
    }

    fn commit(&self) {
        let guard = epoch::pin();
        let take = |_: &TailSet, word: &mut super::WindowWord| ReserveDecision::Yes(word.take_seq());
        let seq = match self.window.reserve(&guard, take) {
            Some((seq, _)) => seq,
            None => {
                let _order = self.order.lock();
                self.window.close().word.take_seq()
            }
        };
        drop(guard);
        self.finish(seq);
    }

    /// Commits if no other commit follows the snapshot, because every commit changes the range.
    fn commit_if_unchanged(&self) {
        let mut reader = self.recent.register(&self.progress);
        self.progress.wait(self.window.reserved()).expect("no commit fails");
        let snapshot = self.progress.visible();
        self.recent.set_bound(&mut reader, snapshot);
        thread::yield_now();
        let order = self.order.lock();
        let mut closed = self.window.close();
        self.progress.wait(closed.word.reserved()).expect("no commit fails");
        let bounds = Bounds::all();
        let found = self.recent.find_change(snapshot, [(KeyspaceId(1), &bounds)].into_iter());
        let seq = found.is_none().then(|| closed.word.take_seq());
        drop((closed, order));
        if let Some(seq) = seq {
            assert_eq!(seq, snapshot.next(), "a commit that changed the range was missed");
            self.finish(seq);
        }
        self.recent.release(reader, &self.memory);
    }
}

#[test]
fn a_range_check_misses_no_commit() {
    explore(20_000, || {
        let world = Arc::new(RangeChecks {
            window: CommitWindow::new(),
            progress: CommitProgress::started(),
            order: Mutex::new(()),
            recent: RecentKeys::new(1 << 20),
            memory: Memory::new(1 << 20),
        });
        let threads =
            [RangeChecks::commit, RangeChecks::commit_if_unchanged, RangeChecks::commit_if_unchanged].map(
                |work| -> Box<dyn FnOnce() + Send> {
                    let world = Arc::clone(&world);
                    Box::new(move || (0..2).for_each(|_| work(&world)))
                },
            );
        run(threads);
        assert_eq!(world.recent.stats(), (0, 0));
    });
}

#[test]
fn a_closed_window_gives_each_seq_once() {
    explore(20_000, || {
        let world = Arc::new((CommitWindow::new(), Mutex::new(()), Mutex::new(Vec::new())));
        let reserves = || -> Box<dyn FnOnce() + Send> {
            let world = Arc::clone(&world);
            Box::new(move || {
                let (window, order, taken) = &*world;
                for _ in 0..2 {
                    let guard = epoch::pin();
                    let seq = match window.reserve(&guard, |_, word| ReserveDecision::Yes(word.take_seq())) {
                        Some((seq, _)) => seq,
                        None => {
                            let _order = order.lock();
                            window.close().word.take_seq()
                        }
                    };
                    taken.lock().push(seq);
                }
            })
        };
        let changes: Box<dyn FnOnce() + Send> = {
            let world = Arc::clone(&world);
            Box::new(move || {
                let _order = world.1.lock();
                let mut closed = world.0.close();
                let before = closed.word;
                thread::yield_now();
                world.2.lock().push(closed.word.take_seq());
                assert_eq!(before.next(), world.0.word().next(), "a commit was reserved in between");
                closed.set_tail_set(TailSet::default());
            })
        };
        run([reserves(), reserves(), changes]);
        let mut taken = world.2.lock();
        taken.sort_unstable();
        assert_eq!(*taken, (1..=5).map(Seq).collect::<Vec<_>>());
    });
}

#[test]
fn the_end_of_a_segment_is_never_that_of_another_segment() {
    const ROLLS: u64 = 2;
    explore(20_000, || {
        let segments: Vec<Arc<Segment>> = (0..=ROLLS).map(segment).collect();
        let window = Arc::new(CommitWindow::new());
        roll(&window, &segments[0]);
        let rolls: Box<dyn FnOnce() + Send> = {
            let (window, segments) = (Arc::clone(&window), segments.clone());
            Box::new(move || segments[1..].iter().for_each(|segment| roll(&window, segment)))
        };
        let looks = || -> Box<dyn FnOnce() + Send> {
            let window = Arc::clone(&window);
            Box::new(move || {
                for (segment, at) in (0..2).flat_map(|_| window.tail_ends().1) {
                    assert_eq!(at, end(&segment), "segment {}", segment.id());
                }
            })
        };
        run([rolls, looks(), looks()]);
    });
}

/// Returns the end of this segment. Each segment has a different one.
fn end(segment: &Segment) -> u64 {
    DATA_START + 8 * segment.id().0
}

/// Makes the window reserve behind the end of this segment.
fn roll(window: &CommitWindow, segment: &Arc<Segment>) {
    let (segment, limit) = (Arc::clone(segment), segment.identity().capacity);
    let mut closed = window.close();
    closed.word.set_offset(0, end(&segment));
    closed.set_tail_set(TailSet::new([
        Some(OpenTail { segment, limit, start: DATA_START, gap: 0 }),
        None,
        None,
    ]));
}

#[test]
fn a_reservation_is_in_the_segment_of_its_offset() {
    const ROLLS: u64 = 2;
    explore(20_000, || {
        let segments: Vec<Arc<Segment>> = (0..=ROLLS).map(segment).collect();
        let window = Arc::new(CommitWindow::new());
        roll(&window, &segments[0]);
        let rolls: Box<dyn FnOnce() + Send> = {
            let (window, segments) = (Arc::clone(&window), segments.clone());
            Box::new(move || segments[1..].iter().for_each(|segment| roll(&window, segment)))
        };
        let reserves = || -> Box<dyn FnOnce() + Send> {
            let window = Arc::clone(&window);
            Box::new(move || {
                for _ in 0..2 {
                    let guard = epoch::pin();
                    let reserved = window.reserve(&guard, |_, word| {
                        word.take_seq();
                        ReserveDecision::Yes(word.offset(0))
                    });
                    let Some((offset, shape)) = reserved else { continue }; // the window is closed
                    let open = shape.tails[0].as_ref().expect("there is a segment");
                    assert_eq!(offset, end(&open.segment), "segment {}", open.segment.id());
                }
            })
        };
        run([rolls, reserves(), reserves()]);
    });
}

/// Creates a segment with this number.
fn segment(id: u64) -> Arc<Segment> {
    let (disk, dir) = (SimDisk::new(), Path::new("/flat"));
    disk.create_dir(dir).expect("an empty disk");
    let (store, log, incarnation) = (StoreId(1), LogId::ValueLog, Incarnation(1));
    let (id, stream, capacity) = (SegmentId(id), 0, 2 * DATA_START);
    let identity = SegmentIdentity { store, log, id, stream, incarnation, capacity };
    Arc::new(Segment::create(&disk, dir, identity).expect("an empty directory"))
}

#[test]
fn stripes_exclude_and_every_wait_ends() {
    explore(20_000, || {
        let world = Arc::new((Stripes::default(), [AtomicU64::new(0), AtomicU64::new(0)]));
        let enter = |world: &(Stripes, [AtomicU64; 2]), keys: &[usize]| {
            for key in keys {
                assert_eq!(world.1[*key].fetch_add(1, Ordering::SeqCst), 0, "key {key}");
            }
            thread::yield_now();
            for key in keys {
                world.1[*key].fetch_sub(1, Ordering::SeqCst);
            }
        };
        let commit = |stripes: &'static [u16], keys: &'static [usize]| -> Box<dyn FnOnce() + Send> {
            let world = Arc::clone(&world);
            Box::new(move || {
                let _held = world.0.lock(stripes);
                enter(&world, keys);
            })
        };
        let alone: Box<dyn FnOnce() + Send> = {
            let world = Arc::clone(&world);
            Box::new(move || {
                let _alone = world.0.lock_exclusive();
                enter(&world, &[0, 1]);
            })
        };
        run([commit(&[0], &[0]), commit(&[0, 1], &[0, 1]), commit(&[1], &[1]), alone]);
    });
}
