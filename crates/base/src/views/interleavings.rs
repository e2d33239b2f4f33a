//! Views that register while commits run and while versions are freed, under a scheduler.
//!
//! Built with `--cfg shuttle` only; `crate::sync::explore` lists the settings. The scheduler does
//! not explore weak memory orders.

use std::sync::Arc;

use super::{Progress, ViewSlots, Views};
use crate::sync::{Mutex, explore, thread};
use crate::types::Seq;

/// One key that each commit writes.
#[derive(Default)]
struct World {
    slots: ViewSlots,
    progress: Progress,
    /// The commit that wrote the newest version, and the lives of the older versions that are kept.
    versions: Mutex<(Seq, Vec<(Seq, Seq)>)>,
}

impl World {
    fn commit(&self, seq: Seq) {
        self.progress.begin(seq);
        let views = self.slots.with(&Views::default());
        let mut versions = self.versions.lock();
        let born = versions.0;
        if views.needs(born, seq) {
            versions.1.push((born, seq));
        }
        versions.0 = seq;
        drop(versions);
        self.progress.publish(seq);
    }

    fn trim(&self) {
        let visible = self.progress.visible();
        let views = self.slots.with(&Views::default()).copy_as_of(visible);
        self.versions.lock().1.retain(|(born, died)| views.may_need(*born, *died));
    }

    fn look(&self) {
        let before = self.progress.visible();
        let wait = |_| {
            thread::yield_now();
            Ok(())
        };
        let (slot, seq) = self.slots.register(&self.progress, wait).expect("it waits").expect("a slot");
        assert!(seq >= before, "the view shows all that was visible");
        for _ in 0..2 {
            let versions = self.versions.lock();
            let is_there =
                versions.0 == seq || versions.1.iter().any(|(born, died)| *born <= seq && seq < *died);
            assert!(is_there, "the version of {seq} was freed: {:?}", *versions);
            drop(versions);
            thread::yield_now();
        }
        self.slots.release(slot);
    }
}

#[test]
fn a_view_finds_its_version_while_commits_run_and_versions_are_freed() {
    explore(20_000, || {
        let world = Arc::new(World::default());
        let beside = |work: fn(&World)| {
            let world = Arc::clone(&world);
            thread::spawn(move || work(&world))
        };
        let threads = [
            beside(|world| (1..=3).for_each(|seq| world.commit(Seq(seq)))),
            beside(|world| (0..2).for_each(|_| world.trim())),
            beside(World::look),
        ];
        world.look();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        world.trim();
        assert_eq!(world.versions.lock().1, [], "no view needs a version any more");
    });
}
