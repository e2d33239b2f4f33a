//! Tests of the choice of victims and of freed segments.

use std::time::Duration;

use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, FaultRepeat, SimDisk};

use super::*;
use crate::{FlexSpace, SpaceOptions};

/// The log has no space for a step, and there is no spare. Repeated attempts must not use up
/// free segments. Collection works once there is space.
#[test]
fn steps_that_find_no_room_in_the_log_use_up_nothing() {
    let disk = SimDisk::new();
    let options = SpaceOptions { inline: true, tiny: true, ..SpaceOptions::default() };
    let space = FlexSpace::open_on(Arc::new(disk.clone()), "/space", options).unwrap();
    for n in 0..120u64 {
        space.insert(n * 300, &[3; 300]).unwrap();
    }
    let shared = space.shared();
    shared.preallocate(WriteClass::Gc, 60 << 10).unwrap();
    disk.set_faults(Fault::new(CallClass::Create, FaultKind::NoSpace).on("log").repeat(FaultRepeat::Forever));
    // Overwrites every third entry until the log is full.
    (0..).step_by(3).map(|n| n % 120 * 300).find(|at| space.write(*at, &[4; 300]).is_err()).unwrap();
    shared.release().unwrap();
    let left = |space: &FlexSpace| {
        let w = space.shared().writer.lock();
        (w.allocator.free.len() + w.allocator.without_blocks.len()) as u64 + w.dead_segments()
    };
    let (before, moved) = (left(&space), space.stats().moved_bytes);
    assert!(before > 4 && !shared.writer.lock().victims(None, GcReason::LowSpace).is_empty(), "{before}");
    for _ in 0..50 {
        assert!(!shared.gc_step().unwrap());
    }
    assert_eq!(left(&space), before);
    assert_eq!(space.stats().moved_bytes, moved, "nothing was mapped");
    disk.set_faults(FaultPlan::default());
    assert!(shared.gc_step().unwrap());
    space.verify(|finding| panic!("{finding}")).unwrap();
    space.close().unwrap();
}

/// Users remove all extents of a step while it copies them, and a sync makes that durable. The
/// copies are then only in a buffer. The segment that they fill is freed after the flush, not
/// before.
#[test]
fn a_segment_of_abandoned_copies_is_freed_after_its_flush() {
    let options = SpaceOptions { inline: true, tiny: true, ..SpaceOptions::default() };
    let space = FlexSpace::open_on(Arc::new(SimDisk::new()), "/space", options).unwrap();
    space.insert(0, &[1; 9000]).unwrap();
    let shared = space.shared();
    let version = shared.current.load_full();
    let copies: Vec<_> =
        version.tree.range(0).map(|entry| (entry, vec![1; usize::try_from(entry.len).unwrap()])).collect();
    drop(version);
    shared.preallocate(WriteClass::Gc, 20 << 10).unwrap();
    shared.writer.lock().gc_range = Some((0, 9000));
    space.collapse(0, 9000).unwrap();
    shared.release().unwrap();
    shared.remap_copies(copies).unwrap();
    let dead = || shared.writer.lock().dead_segments();
    let abandoned = dead();
    assert!(abandoned > 0, "the copies filled a segment");
    assert_eq!((shared.release().unwrap(), dead()), (0, abandoned), "its bytes are in a buffer");
    shared.flush().unwrap();
    assert_eq!((shared.release().unwrap(), dead()), (abandoned, 0));
    space.insert(0, &[2; 20_000]).unwrap();
    space.verify(|finding| panic!("{finding}")).unwrap();
    space.close().unwrap();
}

/// Segments that a view has pinned for long are not collected. Newer segments are, and pinned
/// dead segments leave the page cache once.
#[test]
fn segments_of_a_long_pinned_view_are_not_collected() {
    let options = SpaceOptions { inline: true, tiny: true, ..SpaceOptions::default() };
    let space = FlexSpace::open_on(Arc::new(SimDisk::new()), "/space", options).unwrap();
    space.insert(0, &[1; 90_000]).unwrap();
    space.sync().unwrap();
    let view = space.view();
    space.write(0, &[2; 45_000]).unwrap();
    let every_other = |from: u64| (from..from + 40_000).step_by(2000);
    every_other(50_000).for_each(|at| space.write(at, &[3; 1000]).unwrap());
    every_other(0).for_each(|at| space.write(at, &[3; 1000]).unwrap());
    space.sync().unwrap();
    let held = |at: u64| {
        let mut w = space.shared().writer.lock();
        let read = w.tree.versions_in_use(None);
        let held = w.find_long_pinned(&read, Duration::from_millis(at));
        (held, held.map_or(0, |mark| w.take_pinned_dead(mark, u64::MAX).len()))
    };
    assert_eq!(held(0), (None, 0), "seen for the first time");
    assert_eq!(held(400), (None, 0));
    let (mark, forgotten) = held(600);
    assert!(mark.is_some() && forgotten > 3, "{mark:?}, {forgotten}");
    assert_eq!(held(700), (mark, 0), "told already");
    let w = space.shared().writer.lock();
    let chosen = |held: Option<u64>| {
        let victims = w.victims(held, GcReason::LowSpace);
        let chosen = (0..).zip(&w.segments).filter(|(number, _)| victims.contains(*number));
        chosen.map(|(_, segment)| Some(segment.open_seq) >= mark).collect::<Vec<_>>()
    };
    assert!(chosen(None).contains(&false), "{:?}", chosen(None));
    assert!(chosen(mark).contains(&true) && !chosen(mark).contains(&false), "{:?}", chosen(mark));
    drop(w);
    drop(view);
    assert_eq!(held(800), (None, 0), "the view was released");
}

/// Garbage in pinned segments does not trigger the collection of other segments with little
/// garbage.
#[test]
fn pinned_garbage_does_not_trigger_gc() {
    let options = SpaceOptions { inline: true, tiny: true, ..SpaceOptions::default() };
    let space = FlexSpace::open_on(Arc::new(SimDisk::new()), "/space", options).unwrap();
    [1, 1].iter().for_each(|byte| space.insert(0, &[*byte; 80_000]).unwrap());
    let view = space.view();
    let look = |at: u64| {
        let mut w = space.shared().writer.lock();
        let read = w.tree.versions_in_use(None);
        let held = w.find_long_pinned(&read, Duration::from_millis(at));
        (held.is_some(), w.pinned.segments > 3 && w.pinned.live > 0, w.is_gc_due())
    };
    let overwrite = |every: usize| {
        (0..160_000).step_by(every).for_each(|at| space.write(at, &[2; 1400]).unwrap());
    };
    overwrite(2000);
    space.sync().unwrap();
    assert_eq!(look(0), (false, false, true), "more than half of the space is dead");
    assert_eq!(look(600), (true, true, false), "only pinned segments have garbage");
    [4000, 6000, 10_000].into_iter().for_each(overwrite);
    assert_eq!(look(700), (true, true, true), "other segments have garbage too");
    drop(view);
    assert!(!look(800).1);
    space.close().unwrap();
}

/// A space smaller than the normal slack is collected when idle. Each pass leaves fewer
/// segments in use, and the passes end.
#[test]
fn an_idle_space_collects_garbage_below_the_normal_slack() {
    let options = SpaceOptions { inline: true, ..SpaceOptions::default() };
    let space = FlexSpace::open_on(Arc::new(SimDisk::new()), "/space", options).unwrap();
    let (shared, mib) = (space.shared(), 1 << 20);
    let segment = shared.geometry.segment;
    let count = 16 * segment / mib;
    (0..count).for_each(|n| space.insert(n * mib, &vec![1; 1 << 20]).unwrap());
    // Half of each segment is overwritten in parts.
    (0..2 * count).step_by(2).for_each(|n| space.write(n * mib / 2, &vec![2; 1 << 19]).unwrap());
    space.sync().unwrap();
    let used = || {
        let w = shared.writer.lock();
        let unused = (w.allocator.free.len() + w.allocator.without_blocks.len()) as u64 + w.dead_segments();
        (w.allocator.with_file - unused, w.is_gc_due(), w.is_idle_gc_due())
    };
    let (now, is_tight, is_loose) = used();
    assert!(now >= 24 && !is_tight && is_loose, "{now} {is_tight} {is_loose}");
    let (mut before, mut passes) = (used().0, 0);
    while shared.gc_step_for(GcReason::Idle).unwrap() {
        if shared.gc_pass.lock().is_none() {
            shared.release().unwrap();
            let now = used().0;
            assert!(now < before, "{now} segments in use, {before} before");
            (before, passes) = (now, passes + 1);
        }
    }
    assert!((1..5).contains(&passes) && before <= 20, "{before} segments after {passes} passes");
    space.verify(|finding| panic!("{finding}")).unwrap();
    space.close().unwrap();
}
