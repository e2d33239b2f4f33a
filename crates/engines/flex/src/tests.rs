//! A small keyspace, whose pairs stay in memory, from checkpoint to checkpoint.

use std::path::Path;
use std::sync::Arc;

use sheaf_base::blob::{BlobRef, Blobs};
use sheaf_base::disk::sim::SimDisk;
use sheaf_base::engine::{Bounds, Engine, ImageSink, Want};
use sheaf_base::error::Result;
use sheaf_base::ground::{Ground, Home};
use sheaf_base::memtable::Version;
use sheaf_base::options::EngineOptions;
use sheaf_base::record::Content;
use sheaf_base::sync::epoch;
use sheaf_base::types::{KeyspaceId, Seq, StoreId};
use sheaf_base::views::Views;

use crate::engine::FlexEngine;

mod gaps;
mod prints;

/// An image that nobody reads.
struct Unread;

impl ImageSink for Unread {
    fn put(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// A keyspace, and who commits to it. Values stand in its memtables: there is no journal.
struct Play {
    engine: Arc<FlexEngine>,
    views: Views,
    newest: Seq,
}

impl Play {
    fn new() -> Play {
        Play::on(None)
    }

    /// With a place for a space, which takes what is more than an image has.
    fn at_home() -> Play {
        Play::on(Some(Home::new(Arc::new(SimDisk::new()), Path::new("/"), false)))
    }

    fn on(home: Option<Home>) -> Play {
        let blobs = Blobs::new(Arc::new(SimDisk::new()), "blobs".into(), 1, StoreId(1), true);
        let mut ground = Ground::new(blobs, 1 << 22, 7, true);
        ground.home = home;
        let ground = Arc::new(ground);
        let engine = Arc::new(FlexEngine::new(ground, KeyspaceId(1), &EngineOptions::default()));
        Play { engine, views: Views::default(), newest: Seq::ZERO }
    }

    fn commit(&mut self, key: &[u8], content: Content<'_>) {
        let engine = &self.engine;
        self.newest = Seq(self.newest.0 + 1);
        if let Content::Staged(blob) = content {
            engine.blobs.lock().insert(blob.id);
        }
        let guard = &epoch::pin();
        let active = &engine.state(guard).memtables.active;
        let hash = engine.shelf.hash(key);
        let place = active.find(hash, key, guard).map_or(0, |entry| entry.place);
        let ground = &engine.shelf.ground;
        let word = active.counted(ground, || active.own(&content));
        if matches!(content, Content::Remove) {
            engine.gaps.removed(self.newest, key);
        }
        active.put(place, hash, key, Version { word, seq: self.newest }, &self.views, ground, guard);
        if !matches!(content, Content::Remove) {
            engine.gaps.put(key);
        }
    }

    fn put(&mut self, key: &[u8]) {
        self.commit(key, Content::Put(b""));
    }

    /// All that is frozen stays in memory, and the image is written.
    fn save(&self) {
        while self.engine.step(&self.views.copy_as_of(self.newest), self.newest).unwrap() {}
        assert!(self.engine.is_settled());
        self.engine.save(&mut Unread).unwrap();
    }

    fn checkpoint(&self) {
        self.engine.freeze();
        self.save();
        self.engine.saved();
    }

    fn shows(&self, at: Seq, key: &[u8]) -> bool {
        self.engine.contains(at, key).unwrap()
    }

    fn blobs(&self) -> Vec<u64> {
        let mut blobs = Vec::new();
        self.engine.blobs(&mut blobs).unwrap();
        blobs
    }

    fn dead_blobs(&self) -> Vec<u64> {
        self.engine.shelf.ground.take_dead_blobs(self.newest)
    }
}

fn blob(id: u64) -> Content<'static> {
    Content::Staged(BlobRef { id, len: 1, sum: 0 })
}

/// 80 keys are frozen, `late` comes behind or before them, and the checkpoint ends when a cursor has taken its first pairs: it shows
/// all the same.
fn check_walk_beside_an_end(late: &[u8], forward: bool) {
    let mut play = Play::new();
    let mut keys: Vec<Vec<u8>> = (100..180).map(|number| format!("{number}").into_bytes()).collect();
    keys.iter().for_each(|key| play.put(key));
    play.engine.freeze();
    play.put(late);
    keys.push(late.to_vec());
    keys.sort();
    if !forward {
        keys.reverse();
    }
    let engine = Arc::clone(&play.engine);
    let mut cursor = engine.cursor(play.newest, Bounds::all(), Want::Keys).unwrap();
    let mut shown = Vec::new();
    while if forward { cursor.next() } else { cursor.prev() }.unwrap() {
        shown.push(cursor.key().to_vec());
        if shown.len() == 1 {
            play.save();
            play.engine.saved();
        }
    }
    assert_eq!(shown.len(), 81);
    assert_eq!(shown, keys);
}

#[test]
fn a_walk_misses_nothing_of_what_comes_back_to_memory_meanwhile() {
    check_walk_beside_an_end(b"000", true);
}

#[test]
fn a_walk_downwards_misses_nothing_of_what_comes_back_to_memory_meanwhile() {
    check_walk_beside_an_end(b"zzz", false);
}

#[test]
fn a_staged_value_that_was_superseded_goes_when_the_checkpoint_ends() {
    let mut play = Play::new();
    play.commit(b"key", blob(7));
    play.engine.freeze();
    play.put(b"key");
    play.save();
    assert_eq!(play.blobs(), [7], "nothing goes before the image is durable");
    play.engine.saved();
    assert_eq!((play.blobs(), play.dead_blobs()), (vec![], vec![7]));
    assert!(play.shows(play.newest, b"key"));
}

#[test]
fn a_staged_value_that_is_superseded_beside_the_image_goes_with_the_next_checkpoint() {
    let mut play = Play::new();
    play.commit(b"key", blob(7));
    play.engine.freeze();
    play.save();
    play.commit(b"key", Content::Remove);
    play.engine.saved();
    assert_eq!((play.blobs(), play.dead_blobs()), (vec![7], vec![]));
    play.checkpoint();
    assert_eq!((play.blobs(), play.dead_blobs()), (vec![], vec![7]));
    assert!(!play.shows(play.newest, b"key"));
}

/// The copy of the registry that a step is given may be older than the newest view, and than what superseded a version.
#[test]
fn what_a_view_shows_stays_in_memory_as_long_as_it() {
    let mut play = Play::new();
    play.commit(b"key", blob(7));
    play.engine.freeze();
    let before = play.views.copy_as_of(play.newest);
    let at = play.newest;
    play.views.register(at);
    play.put(b"key");
    assert!(!play.engine.step(&before, play.newest).unwrap());
    play.engine.save(&mut Unread).unwrap();
    play.engine.saved();
    play.checkpoint();
    assert!(play.shows(at, b"key"));
    assert_eq!((play.blobs(), play.dead_blobs()), (vec![7], vec![]));
    play.views.release(at);
    play.checkpoint();
    assert!(!play.shows(at, b"key"));
    assert_eq!((play.blobs(), play.dead_blobs()), (vec![], vec![7]));
}

#[test]
fn old_versions_go_as_fast_as_they_come() {
    let mut play = Play::new();
    let mut bytes = 0;
    for round in 0..1000_u32 {
        let key = format!("{}", round % 10);
        let at = play.newest;
        play.views.register(at);
        match round % 30 {
            0..20 => play.put(key.as_bytes()),
            _ => play.commit(key.as_bytes(), Content::Remove),
        }
        play.views.release(at);
        play.checkpoint();
        let now = play.engine.stats().index_bytes;
        if round == 100 {
            bytes = now;
        }
        assert!(round <= 100 || now <= bytes + bytes / 4, "{bytes} bytes, {now} in round {round}");
    }
}

/// Writers are slowed down by what is left: it goes down with every step, from all to nothing.
#[test]
fn what_is_left_to_move_follows_the_move() {
    let mut play = Play::at_home();
    (0..300).for_each(|n| play.put(format!("{n:04}").as_bytes()));
    assert_eq!(play.engine.left_to_move(), 0, "nothing is frozen");
    play.engine.freeze();
    let (mut left, mut steps) = (play.engine.left_to_move(), 0);
    assert_eq!(left, 100);
    while play.engine.step(&play.views.copy_as_of(play.newest), play.newest).unwrap() {
        let now = play.engine.left_to_move();
        assert!(now < left && left - now < 5, "{left} and then {now}");
        (left, steps) = (now, steps + 1);
    }
    assert!(steps > 20 && left < 5, "{steps} steps, {left} left");
    assert_eq!(play.engine.left_to_move(), 0);
}

/// Writers are slowed down by the memory that memtables take while one of them is moved, before there is none left: who finds
/// none waits for the whole move.
#[test]
fn the_pressure_is_of_the_memory_that_the_move_keeps() {
    let mut play = Play::at_home();
    let due = play.engine.shelf.ground.memory.budget() / 6;
    let active = |play: &Play| play.engine.state(&epoch::pin()).memtables.active.bytes();
    let fill = |play: &mut Play, to: u64| {
        let mut n = 0u32;
        while active(play) < to {
            play.put(&n.to_be_bytes());
            n += 1;
        }
    };
    fill(&mut play, due);
    assert_eq!(play.engine.pressure(), 0, "nothing is moved");
    play.engine.freeze();
    let begin = play.engine.pressure();
    assert!(begin > 100, "{begin}");
    while play.engine.left_to_move() > 20 {
        play.engine.step(&play.views.copy_as_of(play.newest), play.newest).unwrap();
    }
    let late = play.engine.pressure();
    assert!(late < begin / 2, "{begin}, {late}");
    fill(&mut play, due);
    assert!(play.engine.pressure() > late + 100, "what gathers meanwhile counts");
    while play.engine.step(&play.views.copy_as_of(play.newest), play.newest).unwrap() {}
    assert_eq!(play.engine.pressure(), 0);
}

/// A view keeps what is removed, and then goes: intervals of pairs that are all dead. Whoever comes after goes through each of them a
/// few times at most, however many there are, and no step through all.
#[test]
fn what_a_rewrite_goes_through_does_not_grow_with_the_dead_intervals() {
    let mut play = Play::at_home();
    let key = |n: u32| format!("{n:04}").into_bytes();
    (0..1200).for_each(|n| play.put(&key(n)));
    play.checkpoint();
    play.views.register(play.newest);
    (0..1200).for_each(|n| play.commit(&key(n), Content::Remove));
    play.checkpoint();
    play.views.release(Seq(1200));
    let before = play.engine.table.lock().counts;
    play.put(&key(0));
    play.put(&key(700));
    play.engine.freeze();
    let mut most = 0;
    loop {
        let read = play.engine.table.lock().counts.read;
        let more = play.engine.step(&play.views.copy_as_of(play.newest), play.newest).unwrap();
        most = most.max(play.engine.table.lock().counts.read - read);
        if !more {
            break;
        }
    }
    assert!(most < 1200, "{most} versions in a step");
    let read = play.engine.table.lock().counts.read - before.read;
    assert!(read < 4 * 2400, "{read} versions were gone through");
    assert_eq!(play.engine.count_keys(u64::MAX).unwrap(), 2);
    assert!(play.shows(play.newest, &key(700)));
}

/// Versions that a view kept go when it is gone, though nothing touches their intervals again; the sweep then rests.
#[test]
fn what_a_view_kept_is_swept_when_it_is_gone() {
    let mut play = Play::at_home();
    let key = |n: u32| format!("{n:04}").into_bytes();
    (0..400).for_each(|n| play.put(&key(n)));
    play.checkpoint();
    let at = play.newest;
    play.views.register(at);
    for round in 0..5 {
        (0..400).filter(|n| n % 5 == round).for_each(|n| play.put(&key(n)));
        (0..400).filter(|n| n % 5 == round).for_each(|n| play.put(&key(n)));
        play.checkpoint();
    }
    (100..200).for_each(|n| play.commit(&key(n), Content::Remove));
    play.checkpoint();
    let len = |play: &Play| play.engine.table.lock().space.as_ref().unwrap().len();
    let sweep = |play: &Play| play.engine.sweep(&play.views.copy_as_of(play.newest)).unwrap();
    assert!(!sweep(&play), "the view is there");
    let before = len(&play);
    play.views.release(at);
    let mut steps = 0;
    while sweep(&play) {
        steps += 1;
    }
    assert!(steps > 3 && !sweep(&play), "{steps}");
    assert!(len(&play) * 2 < before, "{before} and then {}", len(&play));
    assert_eq!(play.engine.count_keys(u64::MAX).unwrap(), 300);
    assert!(!play.shows(play.newest, &key(150)) && play.shows(play.newest, &key(250)));
}
