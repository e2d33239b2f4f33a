//! Versions that views may need, during spills and relocations.

use sheaf_engine::contract::{EngineCheckpoint, Liveness};
use sheaf_engine::views::Views;
use sheaf_log::segment::{Address, DATA_START};
use sheaf_log::types::Seq;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch;
use sheaf_sim::SimDisk;

use super::fixture::{engine_on, engine_with_segment, set_version, spill_all, tiny_context, write};
use crate::engine::KreonEngine;
use crate::memtable::{KreonVersion, RecordWord};

/// Spills version 1 of a key that commit 2 superseded after the copy of the registry was made; the
/// spill must keep it.
fn spill_with_possible_view() -> (KreonEngine, Views) {
    let engine = engine_on(tiny_context(&SimDisk::new()));
    let guard = &epoch::pin();
    let (key, hash) = (b"k", engine.hash(b"k"));
    let write = |seq, offset| {
        let word = RecordWord::put(Address::new(1, offset), 64, false);
        let version = KreonVersion { word, seq: Seq(seq) };
        engine.state(guard).memtables.active.put(0, hash, key, version, &engine.context.memory, guard);
    };
    write(1, 64);
    engine.freeze();
    let copy = Views::default().copy_as_of(Seq(1));
    write(2, 128);
    assert!(engine.step(&copy).unwrap());
    assert_eq!(engine.versions.at(&key.to_vec(), Seq(1)), [Address::new(1, 64)]);
    (engine, copy)
}

#[test]
fn a_version_that_a_younger_view_may_need_is_kept_by_a_spill() {
    let (engine, copy) = spill_with_possible_view();
    assert!(engine.step(&copy).unwrap(), "a younger view may need the version");
    let mut views = Views::default();
    views.register(Seq(1));
    assert!(!engine.step(&views.copy_as_of(Seq(2))).unwrap());
    assert_eq!(engine.versions.count(), 1);
}

#[test]
fn a_version_that_no_view_needs_is_freed_by_the_next_step() {
    let (engine, _) = spill_with_possible_view();
    assert!(!engine.step(&Views::default().copy_as_of(Seq(2))).unwrap());
    assert_eq!(engine.versions.count(), 0);
}

/// Location of version 1 when GC asks for it, and progress of commit 5 at the relocation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RelocationRace {
    InLevel,
    InFrozen,
    /// In a level, while commit 5 is being spilled into it.
    BySpill,
}

/// GC asks for version 1 of a key, and commit 5 then puts the key. Returns the answer of the engine
/// for the copy, and the address that the view at 3 shows, with or without such a view.
fn relocate_during_put(how: RelocationRace, has_view: bool) -> (bool, Vec<Address>) {
    let (engine, segment) = engine_with_segment();
    let len = write(&segment, DATA_START, b"k", &[7; 100], 1);
    let from = Address::new(segment.slot(), DATA_START);
    let to = Address::new(9, DATA_START);
    set_version(&engine, b"k", RecordWord::put(from, len, false), 1);
    match how {
        RelocationRace::InFrozen => engine.freeze(),
        _ => spill_all(&engine),
    }
    let guard = &epoch::pin();
    assert_eq!(engine.liveness_at(b"k", from, guard).unwrap(), Liveness::Newest);
    if has_view {
        // As a commit does.
        engine.oldest_view.store(3, Ordering::Release);
        engine.newest_view.store(3, Ordering::Release);
        engine.newest_superseding_seq.store(5, Ordering::Release);
    }
    let word = RecordWord::put(Address::new(9, 4096), 128, false);
    set_version(&engine, b"k", word, 5);
    if how == RelocationRace::BySpill {
        engine.freeze();
        engine.candidates.lock().note_superseded(b"k", KreonVersion { word, seq: Seq(5) });
    }
    let is_held = engine.repoint(b"k", from, to, guard);
    (is_held, engine.versions.at(&b"k".to_vec(), Seq(3)))
}

#[test]
fn a_version_superseded_during_relocation_is_retained_for_a_view() {
    for how in [RelocationRace::InLevel, RelocationRace::InFrozen, RelocationRace::BySpill] {
        assert_eq!(relocate_during_put(how, true), (true, vec![Address::new(9, DATA_START)]), "{how:?}");
        assert_eq!(relocate_during_put(how, false), (false, vec![]), "{how:?}");
    }
}
