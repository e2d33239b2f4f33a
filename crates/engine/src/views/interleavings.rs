//! Views that register while commits run and while versions are freed, under a scheduler.
//!
//! Built with `--cfg shuttle` only; `sheaf_platform::sync::explore` lists the parameters. The
//! scheduler does not explore weak memory orders.

use std::sync::Arc;

use super::ViewSlots;
use crate::window::CommitProgress;
use sheaf_log::types::Seq;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::{Mutex, explore, thread};

/// Commit that wrote the newest version of a key, and the lifetimes of the older versions that are
/// kept.
type VersionLives = Mutex<(Seq, Vec<(Seq, Seq)>)>;

/// Two keys; one thread writes each of them.
struct ViewsWorld {
    slots: ViewSlots,
    progress: CommitProgress,
    /// The last seq that a commit has reserved.
    reserved: AtomicU64,
    keys: [VersionLives; 2],
}

impl ViewsWorld {
    fn new() -> ViewsWorld {
        ViewsWorld {
            slots: ViewSlots::default(),
            progress: CommitProgress::started(),
            reserved: AtomicU64::default(),
            keys: Default::default(),
        }
    }

    fn reserved(&self) -> Seq {
        Seq(self.reserved.load(Ordering::SeqCst))
    }

    fn commit(&self, key: usize) {
        let seq = Seq(self.reserved.fetch_add(1, Ordering::SeqCst) + 1);
        let views = self.slots.collect();
        let mut versions = self.keys[key].lock();
        let born = versions.0;
        if views.needs(born, seq) {
            versions.1.push((born, seq));
        }
        versions.0 = seq;
        drop(versions);
        self.progress.complete(seq).expect("no commit fails");
    }

    fn trim(&self) {
        let visible = self.progress.visible();
        let views = self.slots.collect().copy_as_of(visible);
        for key in &self.keys {
            key.lock().1.retain(|(born, died)| views.may_need(*born, *died));
        }
    }

    /// Returns the version of a key that a view of the state at `seq` sees.
    fn version_at(&self, key: usize, seq: Seq) -> Option<Seq> {
        let versions = self.keys[key].lock();
        if versions.0 <= seq {
            return Some(versions.0);
        }
        let lives = versions.1.iter();
        lives.filter(|(born, died)| *born <= seq && seq < *died).map(|(born, _)| *born).next()
    }

    fn look(&self) {
        let before = self.progress.visible();
        let (slot, seq) = self.slots.register(&self.progress, || self.reserved()).expect("no commit fails");
        assert!(seq >= before, "the view shows all that was visible");
        let first = [0, 1].map(|key| self.version_at(key, seq).expect("the version was freed"));
        thread::yield_now();
        let second = [0, 1].map(|key| self.version_at(key, seq).expect("the version was freed"));
        assert_eq!(first, second, "the view at {seq} does not change");
        self.slots.release(slot);
    }
}

#[test]
fn a_view_finds_its_versions_while_commits_run_and_versions_are_freed() {
    explore(20_000, || {
        let world = Arc::new(ViewsWorld::new());
        let beside = |work: fn(&ViewsWorld)| {
            let world = Arc::clone(&world);
            thread::spawn(move || work(&world))
        };
        let threads = [
            beside(|world| (0..2).for_each(|_| world.commit(0))),
            beside(|world| (0..2).for_each(|_| world.commit(1))),
            beside(|world| (0..2).for_each(|_| world.trim())),
            beside(ViewsWorld::look),
        ];
        world.look();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        world.trim();
        assert!(world.keys.iter().all(|key| key.lock().1.is_empty()), "no view needs a version any more");
        assert_eq!(world.progress.visible(), Seq(4));
    });
}
