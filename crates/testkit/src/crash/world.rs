//! # World: a machine that can crash, with a database on it
//!
//! A simulated disk, the tap on it, and a clock. Everything runs in the caller's thread, so a seed
//! fixes everything. A crash makes another world; the old one goes on as if nothing had happened.

use std::sync::Arc;
use std::time::Duration;

use sheaf::{Builder, Database, Error};
use sheaf_base::clock::ManualClock;
use sheaf_base::disk::sim::{Keep, SimDisk};

use crate::stage::Subject;
use crate::tap::Tap;

/// Where the database is on every simulated disk.
pub const PLACE: &str = "/db";

/// A disk, its tap, a clock.
#[derive(Clone, Debug)]
pub struct World {
    /// The disk.
    pub sim: SimDisk,
    /// What the database sees of it.
    pub tap: Tap,
    /// The time.
    pub clock: Arc<ManualClock>,
    /// The engines of its keyspaces.
    pub subject: Subject,
}

impl World {
    /// A machine with an empty disk.
    #[must_use]
    pub fn new() -> World {
        World::on(SimDisk::new())
    }

    /// A machine whose disk tears sectors, lengths and renames as well.
    #[must_use]
    pub fn paranoid() -> World {
        let world = World::new();
        world.sim.set_paranoid(true);
        world
    }

    /// A machine with this disk, just booted, for the first engine.
    #[must_use]
    pub fn on(sim: SimDisk) -> World {
        World::of(&Subject::flat(), sim)
    }

    /// A machine with this disk, just booted, for the engine under test.
    #[must_use]
    pub fn of(subject: &Subject, sim: SimDisk) -> World {
        let tap = Tap::new(Arc::new(sim.clone()));
        World { sim, tap, clock: Arc::new(ManualClock::new()), subject: subject.clone() }
    }

    /// How its databases are opened: tiny, without threads.
    #[must_use]
    pub fn builder(&self) -> Builder {
        let clock: Arc<ManualClock> = Arc::clone(&self.clock);
        let factories = self.subject.factories.iter().cloned();
        factories
            .fold(Database::builder(), Builder::engine)
            .disk(Arc::new(self.tap.clone()))
            .clock(clock)
            .tiny(true)
            .inline(true)
            .memory(16 << 20)
    }

    /// Opens its database, or makes it.
    pub fn open(&self) -> Result<Database, Error> {
        self.builder().open(PLACE)
    }

    /// The sync interval passes; one round of background work.
    pub fn tick(&self, db: &Database) -> Result<bool, Error> {
        self.clock.advance(Duration::from_millis(150));
        db.pump()
    }

    /// Time passes until background work has nothing left to do (or for a hundred rounds).
    pub fn work(&self, db: &Database) -> Result<(), Error> {
        for _ in 0..100 {
            self.clock.advance(Duration::from_secs(2));
            if !db.pump()? {
                break;
            }
        }
        Ok(())
    }

    /// The same machine after its processes were killed: what the kernel has, stays.
    #[must_use]
    pub fn killed(&self) -> World {
        World::of(&self.subject, self.sim.kill())
    }

    /// The same machine after a power cut that keeps what `keep` says.
    #[must_use]
    pub fn cut(&self, keep: &Keep) -> World {
        World::of(&self.subject, self.sim.power_cut(keep))
    }

    /// Every machine that a power cut at this moment may leave: all of them if at most twelve units are
    /// pending, else many.
    pub fn cuts(&self) -> impl Iterator<Item = World> + '_ {
        self.sim.pending().keeps(12, 64, 7).into_iter().map(|keep| self.cut(&keep))
    }
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}
