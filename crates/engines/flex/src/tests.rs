//! A small keyspace, whose pairs stay in memory, from checkpoint to checkpoint.

use std::sync::Arc;

use sheaf_base::blob::Blobs;
use sheaf_base::disk::sim::SimDisk;
use sheaf_base::engine::{Bounds, Engine, ImageSink, Want};
use sheaf_base::error::Result;
use sheaf_base::ground::Ground;
use sheaf_base::memtable::Version;
use sheaf_base::options::EngineOptions;
use sheaf_base::record::Content;
use sheaf_base::sync::epoch;
use sheaf_base::types::{KeyspaceId, Seq, StoreId};
use sheaf_base::views::Views;

use crate::engine::FlexEngine;

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
        let blobs = Blobs::new(Arc::new(SimDisk::new()), "blobs".into(), 1, StoreId(1), true);
        let ground = Arc::new(Ground::new(blobs, 1 << 22, 7, true));
        let engine = Arc::new(FlexEngine::new(ground, KeyspaceId(1), &EngineOptions::default()));
        Play { engine, views: Views::default(), newest: Seq::ZERO }
    }

    fn commit(&mut self, key: &[u8], content: Content<'_>) {
        let engine = &self.engine;
        self.newest = Seq(self.newest.0 + 1);
        let guard = &epoch::pin();
        let active = &engine.state(guard).active;
        let hash = engine.shelf.hash(key);
        let place = active.find(hash, key, guard).map_or(0, |entry| entry.place);
        let version = Version { word: active.own(&content), seq: self.newest };
        active.put(place, hash, key, version, &self.views, &engine.shelf.ground, guard);
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
