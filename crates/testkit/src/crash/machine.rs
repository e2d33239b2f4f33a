//! # World: a machine that can crash, with a database on it
//!
//! A simulated disk, the tap on it, and a clock. Everything runs in the caller's thread, so a seed
//! fixes everything. A crash makes another world; the old one goes on as if nothing had happened.

use std::sync::Arc;
use std::time::Duration;

use sheaf::{Builder, Database, Error};
use sheaf_base::clock::ManualClock;
use sheaf_base::disk::sim::{KeepChoice, SimDisk};

use crate::fixture::TestSubject;
use crate::recording_disk::RecordingDisk;

/// Where the database is on every simulated disk.
pub const DATABASE_DIR: &str = "/db";

/// A disk, its tap, a clock.
#[derive(Clone, Debug)]
pub struct TestMachine {
    /// The disk.
    pub sim: SimDisk,
    /// What the database sees of it.
    pub recording_disk: RecordingDisk,
    /// The time.
    pub clock: Arc<ManualClock>,
    /// The engines of its keyspaces.
    pub subject: TestSubject,
}

impl TestMachine {
    /// A machine with an empty disk.
    #[must_use]
    pub fn new() -> TestMachine {
        TestMachine::with_disk(SimDisk::new())
    }

    /// A machine whose disk tears sectors, lengths and renames as well.
    #[must_use]
    pub fn with_torn_sectors() -> TestMachine {
        let machine = TestMachine::new();
        machine.sim.set_paranoid(true);
        machine
    }

    /// A machine with this disk, just booted, for the first engine.
    #[must_use]
    pub fn with_disk(sim: SimDisk) -> TestMachine {
        TestMachine::for_subject(&TestSubject::flat(), sim)
    }

    /// A machine with this disk, just booted, for the engine under test.
    #[must_use]
    pub fn for_subject(subject: &TestSubject, sim: SimDisk) -> TestMachine {
        let recording_disk = RecordingDisk::new(Arc::new(sim.clone()));
        TestMachine { sim, recording_disk, clock: Arc::new(ManualClock::new()), subject: subject.clone() }
    }

    /// How its databases are opened: tiny, without threads.
    #[must_use]
    pub fn builder(&self) -> Builder {
        let clock: Arc<ManualClock> = Arc::clone(&self.clock);
        let factories = self.subject.factories.iter().cloned();
        factories
            .fold(Database::builder(), Builder::engine)
            .disk(Arc::new(self.recording_disk.clone()))
            .clock(clock)
            .tiny(true)
            .inline(true)
            .memory(16 << 20)
    }

    /// Opens its database, or makes it.
    pub fn open(&self) -> Result<Database, Error> {
        self.builder().open(DATABASE_DIR)
    }

    /// The sync interval passes; one round of background work.
    pub fn tick(&self, db: &Database) -> Result<bool, Error> {
        self.clock.advance(Duration::from_millis(150));
        db.pump()
    }

    /// Time passes until background work has nothing left to do (or for a hundred rounds).
    pub fn run_background(&self, db: &Database) -> Result<(), Error> {
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
    pub fn after_kill(&self) -> TestMachine {
        TestMachine::for_subject(&self.subject, self.sim.kill())
    }

    /// The same machine after a power cut that keeps what `keep` says.
    #[must_use]
    pub fn after_power_cut(&self, keep: &KeepChoice) -> TestMachine {
        TestMachine::for_subject(&self.subject, self.sim.power_cut(keep))
    }

    /// Every machine that a power cut at this moment may leave: all of them if at most twelve units
    /// are pending, else many.
    pub fn after_any_power_cut(&self) -> impl Iterator<Item = TestMachine> + '_ {
        self.sim.pending().keeps(12, 64, 7).into_iter().map(|keep| self.after_power_cut(&keep))
    }
}

impl Default for TestMachine {
    fn default() -> TestMachine {
        TestMachine::new()
    }
}
