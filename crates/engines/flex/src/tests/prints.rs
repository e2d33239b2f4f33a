//! Intervals that memory has no room for, and what prints spare of reading them.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use sheaf_base::memory::Part;
use sheaf_base::shares::is_clogged;

use super::*;
use crate::slots::Slot;

/// Keys, of some thousand intervals: more than a cache remembers that let them go.
const KEYS: u32 = 6000;
/// An interval has about so many.
const FAR: u32 = 3;
/// What a cache may have that keeps most prints, and few blocks.
const LITTLE: u64 = 180 << 10;

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:04}").into_bytes()
}

fn value(n: u32, version: u32) -> Vec<u8> {
    format!("the value of key {n} as of version {version}").into_bytes()
}

/// What waits for guards is one sum for all tests of the process: the one that makes it large is alone, the others share it.
static WAITING: RwLock<()> = RwLock::new(());

/// A keyspace on a disk of its own, with all keys in its space.
struct Cold {
    play: Play,
    disk: Arc<SimDisk>,
    /// What nobody has, and is taken.
    idle: u64,
    _shared: Option<RwLockReadGuard<'static, ()>>,
}

/// What `works` returns is so, if not at once: as long as another test's thread has no processor, and a guard, nothing goes and
/// there is no place for prints.
fn in_the_end<T: std::fmt::Debug>(mut works: impl FnMut() -> (bool, T)) {
    let mut seen = Vec::new();
    while seen.len() < 20 {
        assert!(epoch::settle(Duration::from_secs(60)));
        let (is_so, figures) = works();
        if is_so {
            return;
        }
        seen.push(figures);
    }
    panic!("{seen:?}");
}

impl Cold {
    fn new() -> Cold {
        Cold::with(Some(WAITING.read().unwrap_or_else(PoisonError::into_inner)))
    }

    fn with(shared: Option<RwLockReadGuard<'static, ()>>) -> Cold {
        let disk = Arc::new(SimDisk::new());
        let play = Play::on(Some(Home::new(disk.clone(), Path::new("/"), false)));
        let mut cold = Cold { play, disk, idle: 0, _shared: shared };
        (0..KEYS).for_each(|n| cold.play.commit(&key(n), Content::Put(&value(n, 0))));
        cold.play.checkpoint();
        assert!(cold.play.engine.state(&epoch::pin()).index.tree.entries() > 1000);
        cold.forget();
        cold.leave_little();
        cold
    }

    /// The cache has room for little. What states held that are gone is counted until nobody can look at them.
    fn leave_little(&mut self) {
        self.leave_all();
        assert!(epoch::settle(Duration::from_secs(60)));
        let memory = &self.play.engine.shelf.ground.memory;
        self.idle = memory.cache_limit() + memory.used(Part::Cache) - memory.total() - LITTLE;
        memory.take(Part::Index, self.idle);
    }

    /// Everything has all the room that there is.
    fn leave_all(&mut self) {
        self.play.engine.shelf.ground.memory.give(Part::Index, std::mem::take(&mut self.idle));
    }

    /// Nothing of any interval is in memory.
    fn forget(&self) {
        let shelf = &self.play.engine.shelf;
        shelf.slots.clear(&shelf.ground, &epoch::pin());
    }

    fn get(&self, at: Seq, n: u32) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.play.engine.get(at, &key(n), &mut |value| found = Some(value.to_vec()))?;
        Ok(found)
    }

    fn shows(&self, n: u32, version: u32) {
        assert_eq!(self.get(self.play.newest, n).unwrap(), Some(value(n, version)), "{n}");
    }

    /// Intervals of which there are prints.
    fn printed(&self) -> usize {
        let guard = &epoch::pin();
        let tree = &self.play.engine.state(guard).index.tree;
        tree.range(0)
            .filter(|entry| self.play.engine.shelf.slots.get(entry.item.slot).prints(guard).is_some())
            .count()
    }

    /// Gets that were answered by prints while `with` ran.
    fn by_prints(&self, with: impl FnOnce()) -> u64 {
        let count = || self.play.engine.shelf.spared.load(sheaf_base::sync::atomic::Ordering::Relaxed);
        let before = count();
        with();
        count() - before
    }

    /// All keys, those of an interval far from each other.
    fn all() -> impl Iterator<Item = u32> {
        (0..FAR).flat_map(|first| (first..KEYS).step_by(FAR as usize))
    }

    fn show_all(&self) {
        Cold::all().for_each(|n| self.shows(n, 0));
    }

    /// Of most intervals there are prints.
    fn print_most(&self) {
        in_the_end(|| {
            self.show_all();
            let printed = self.printed() as u64;
            let all = self.play.engine.state(&epoch::pin()).index.tree.entries();
            (printed > all / 2, (printed, all))
        });
    }

    /// A byte of the value of `n` is another one on the disk; false if none was found that is in one piece.
    fn damage(&self, n: u32) -> bool {
        let (wanted, mut found) = (value(n, 0), false);
        for (path, _) in
            self.disk.files().iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "area"))
        {
            let bytes = self.disk.read_file(path).unwrap();
            for at in (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&wanted)) {
                self.disk.overwrite(path, at as u64 + 5, b"!").unwrap();
                found = true;
            }
        }
        found
    }
}

#[test]
fn what_was_read_whole_once_is_read_by_its_prints() {
    let cold = Cold::new();
    let absent = || {
        for n in Cold::all() {
            let absent = [&key(n)[..], b"."].concat();
            assert!(!cold.play.engine.contains(cold.play.newest, &absent).unwrap());
        }
    };
    // Of each interval the first get reads all, most of those after it one pair.
    let most = u64::from(KEYS / 5 * 3);
    in_the_end(|| {
        cold.forget();
        let first = cold.by_prints(|| cold.show_all());
        let again = cold.by_prints(|| cold.show_all());
        let missing = cold.by_prints(absent);
        (first > most / 2 && again > most && missing > most, (first, again, missing))
    });
}

#[test]
fn prints_show_what_a_view_sees_of_what_was_appended_unread() {
    let mut cold = Cold::new();
    cold.show_all();
    let before = cold.play.newest;
    cold.play.views.register(before);
    cold.leave_all(); // to memtables
    for n in (0..KEYS).step_by(6) {
        cold.play.commit(&key(n), Content::Put(&value(n, 1)));
    }
    for n in (3..KEYS).step_by(6) {
        cold.play.commit(&key(n), Content::Remove);
    }
    cold.play.checkpoint();
    cold.leave_little();
    let appended =
        cold.play.engine.counters().iter().find(|(name, _)| *name == "intervals appended to").unwrap().1;
    assert!(appended > 100, "{appended}");
    let all = || {
        for n in Cold::all() {
            assert_eq!(cold.get(before, n).unwrap(), Some(value(n, 0)), "{n}");
        }
        for n in Cold::all() {
            match n % 6 {
                0 => cold.shows(n, 1),
                3 => assert_eq!(cold.get(cold.play.newest, n).unwrap(), None, "{n}"),
                _ => cold.shows(n, 0),
            }
        }
    };
    let most = u64::from(KEYS / 5 * 3 * 2);
    in_the_end(|| {
        let first = cold.by_prints(all);
        let again = cold.by_prints(all);
        (first > most / 2 && again > most, (first, again))
    });
}

#[test]
fn a_damaged_pair_is_no_other_value_and_no_missing_key() {
    let cold = Cold::new();
    cold.print_most();
    let hit: Vec<u32> = (0..KEYS).step_by(KEYS as usize / 50).filter(|n| cold.damage(*n)).collect();
    assert!(hit.len() > 20, "{}", hit.len());
    // What stands beside it is there all the same, if its prints are.
    let beside = cold.by_prints(|| {
        for n in hit.iter().copied() {
            match cold.get(cold.play.newest, n + 1) {
                Err(error) => assert!(error.is_corrupt(), "{error}"),
                Ok(found) => assert_eq!(found, Some(value(n + 1, 0)), "{n}"),
            }
        }
    });
    assert!(beside > 10, "{beside}");
    let mut damaged = 0;
    for n in hit.iter().copied() {
        match cold.get(cold.play.newest, n) {
            Err(error) => {
                assert!(error.is_corrupt(), "{error}");
                damaged += 1;
            }
            Ok(found) => assert_eq!(found, Some(value(n, 0)), "{n} is in memory"),
        }
    }
    assert!(damaged > 10, "{damaged}");
    cold.forget();
    assert!(hit.iter().all(|n| cold.get(cold.play.newest, *n).is_err_and(|error| error.is_corrupt())));
}

#[test]
fn of_a_block_that_gets_have_asked_for_prints_stay_and_of_no_other() {
    let cold = Cold::new();
    let (slots, ground) = (&cold.play.engine.shelf.slots, &cold.play.engine.shelf.ground);
    let give_way = |bytes: u64| slots.give_way(bytes, ground, &epoch::pin());
    let mut walk = cold.play.engine.cursor(cold.play.newest, Bounds::all(), Want::Keys).unwrap();
    while walk.next().unwrap() {}
    let held = slots.account.bytes();
    give_way(held / 2);
    assert!(held > 100 << 10 && slots.account.bytes() <= held / 2);
    assert_eq!(cold.printed(), 0);
    cold.forget();
    let some = || (0..KEYS).step_by(KEYS as usize / 50).for_each(|n| cold.shows(n, 0));
    assert_eq!(cold.by_prints(some), 0, "there is room for their blocks");
    give_way(slots.account.bytes() / 10 * 9);
    assert!(cold.printed() > 30, "{}", cold.printed());
}

/// What went and waits for a guard is in memory, and in no account: as long as that is much nothing else goes for what was missed.
#[test]
fn while_much_of_what_went_waits_for_a_guard_nothing_else_goes() {
    let _alone = WAITING.write().unwrap_or_else(PoisonError::into_inner);
    let cold = Cold::with(None);
    cold.show_all();
    let (slots, ground) = (&cold.play.engine.shelf.slots, &cold.play.engine.shelf.ground);
    let cached = || {
        let ids = 0..u32::try_from(slots.bytes() / size_of::<Slot>() as u64).unwrap();
        ids.filter(|id| slots.get(*id).block(&epoch::pin()).is_some()).collect::<Vec<_>>()
    };
    let (some, guard) = (cached(), epoch::pin());
    assert!(!some.is_empty());
    epoch::note_deferred(4 << 20);
    epoch::relieve(&guard);
    assert!(is_clogged(&ground.memory));
    cold.show_all();
    assert_eq!(cached(), some);
    drop(guard);
    in_the_end(|| {
        cold.show_all();
        (cached() != some, epoch::waiting()) // by luck at least
    });
}

#[test]
fn prints_are_accounted_for_and_go_with_the_rest() {
    let cold = Cold::new();
    cold.show_all();
    let (slots, ground) = (&cold.play.engine.shelf.slots, &cold.play.engine.shelf.ground);
    let held = slots.account.bytes();
    assert!(held > 0 && held == ground.memory.used(Part::Cache));
    (0..2).for_each(|_| slots.give_way(held, ground, &epoch::pin())); // of a block that goes prints stay once
    assert_eq!((slots.account.bytes(), ground.memory.used(Part::Cache)), (0, 0));
    assert!(!slots.has_many_prints());
    cold.show_all();
    cold.forget();
    assert_eq!((slots.account.bytes(), ground.memory.used(Part::Cache)), (0, 0));
}
