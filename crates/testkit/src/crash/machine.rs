//! # Test machine: a simulated disk, a clock and a database that can crash
//!
//! Everything runs in the caller's thread, so a seed determines the whole run. A crash returns a
//! new machine; the old one is not affected.

use std::sync::Arc;
use std::time::Duration;

use sheaf::{Builder, Database, Error, KeyspaceOptions};
use sheaf_platform::clock::{Clock, ManualClock};
use sheaf_sim::{KeepChoice, SimDisk};

use crate::fixture::TestSubject;
use crate::recording_disk::RecordingDisk;
use crate::replica::keep_all_changes;

/// Path of the database on every simulated disk.
pub const DATABASE_DIR: &str = "/db";

/// Rounds of background work within which all expired pairs are removed.
const MAX_REMOVAL_ROUNDS: usize = 1_000;

/// A disk, a recorder of its calls, and a clock.
#[derive(Clone, Debug)]
pub struct TestMachine {
    /// The simulated disk.
    pub sim: SimDisk,
    /// The disk as the database sees it.
    pub recording_disk: RecordingDisk,
    /// The clock.
    pub clock: Arc<ManualClock>,
    /// Engines of the keyspaces.
    pub subject: TestSubject,
    /// Whether pairs of new keyspaces may expire.
    pub has_expiry: bool,
}

impl TestMachine {
    /// Returns a machine with an empty disk.
    #[must_use]
    pub fn new() -> TestMachine {
        TestMachine::with_disk(SimDisk::new())
    }

    /// Returns a machine with a disk that also tears sectors, lengths and renames.
    #[must_use]
    pub fn with_torn_sectors() -> TestMachine {
        let machine = TestMachine::new();
        machine.sim.set_paranoid(true);
        machine
    }

    /// Returns a freshly booted machine with this disk, for `flat`.
    #[must_use]
    pub fn with_disk(sim: SimDisk) -> TestMachine {
        TestMachine::for_subject(&TestSubject::flat(), sim)
    }

    /// Returns a freshly booted machine with this disk, for the engine under test.
    #[must_use]
    pub fn for_subject(subject: &TestSubject, sim: SimDisk) -> TestMachine {
        let recording_disk = RecordingDisk::new(Arc::new(sim.clone()));
        let clock = Arc::new(ManualClock::new());
        TestMachine { sim, recording_disk, clock, subject: subject.clone(), has_expiry: false }
    }

    /// Returns the options for a new keyspace of a workload. Merges append.
    #[must_use]
    pub fn keyspace_options(&self, space: usize) -> KeyspaceOptions {
        let options = self.subject.options_of(self.subject.engines()[space]).merge_operator("append");
        if self.has_expiry { options.expiry() } else { options }
    }

    /// Returns a builder for its database: tiny, without threads.
    #[must_use]
    pub fn builder(&self) -> Builder {
        let clock: Arc<ManualClock> = Arc::clone(&self.clock);
        let builder = match self.subject.retains_changes {
            true => Database::builder().retain_changes(keep_all_changes()),
            false => Database::builder(),
        };
        self.subject
            .configure(builder)
            .disk(Arc::new(self.recording_disk.clone()))
            .clock(clock)
            .tiny(true)
            .inline(true)
            .memory(16 << 20)
    }

    /// Opens or creates its database.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Builder::open`].
    pub fn open(&self) -> Result<Database, Error> {
        self.builder().open(DATABASE_DIR)
    }

    /// Advances the clock past the sync interval and runs one round of background work. Returns
    /// true if work was done.
    ///
    /// # Errors
    ///
    /// Returns the error of the background work.
    pub fn tick(&self, db: &Database) -> Result<bool, Error> {
        self.clock.advance(Duration::from_millis(150));
        db.pump()
    }

    /// Advances the clock and runs background work until none is left, for at most 100 rounds.
    ///
    /// # Errors
    ///
    /// Returns the error of the background work.
    pub fn run_background(&self, db: &Database) -> Result<(), Error> {
        for _ in 0..100 {
            self.clock.advance(Duration::from_secs(2));
            if !db.pump()? {
                break;
            }
        }
        Ok(())
    }

    /// Runs background work until it has removed all pairs that have expired.
    ///
    /// # Errors
    ///
    /// Returns the error of the background work.
    pub fn remove_expired(&self, db: &Database) -> Result<(), Error> {
        for _ in 0..MAX_REMOVAL_ROUNDS {
            let due = db.stats().expiry.next_due_ms;
            if due.is_none_or(|due| due > self.clock.unix_millis().0) {
                break;
            }
            db.pump()?;
        }
        Ok(())
    }

    /// Returns the machine after a kill of its processes: data in the kernel survives.
    #[must_use]
    pub fn after_kill(&self) -> TestMachine {
        TestMachine::for_subject(&self.subject, self.sim.kill())
    }

    /// Returns the machine after a power cut that keeps the units selected by `keep`.
    #[must_use]
    pub fn after_power_cut(&self, keep: &KeepChoice) -> TestMachine {
        TestMachine::for_subject(&self.subject, self.sim.power_cut(keep))
    }

    /// Returns machines that a power cut now may leave: all of them if at most twelve units are
    /// pending, otherwise a selection.
    pub fn after_any_power_cut(&self) -> impl Iterator<Item = TestMachine> + '_ {
        self.sim.pending().keeps(12, 64, 7).into_iter().map(|keep| self.after_power_cut(&keep))
    }
}

impl Default for TestMachine {
    fn default() -> TestMachine {
        TestMachine::new()
    }
}
