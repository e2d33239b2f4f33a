//! Every interleaving a scheduler thinks of: the commit lock, sync rounds, views, cleaning, closing, and
//! what reads without a lock.
//!
//! Built with `--cfg shuttle` only; `cargo xtask ci` does. `SHEAF_SCHEDULES=100000` explores longer,
//! `SHEAF_SEED` elsewhere. A failure prints its schedule; `SHEAF_SCHEDULE=... cargo test ... NAME` replays it.

#![cfg(shuttle)]

#[path = "interleavings/closing.rs"]
mod closing;
#[path = "interleavings/opening.rs"]
mod opening;
#[path = "interleavings/reading.rs"]
mod reading;
#[path = "interleavings/waiting.rs"]
mod waiting;
#[path = "interleavings/writing.rs"]
mod writing;

use std::sync::Arc;
use std::time::Duration;

use sheaf::{Builder, Database, Durability, Keyspace, KeyspaceOptions};
use sheaf_base::clock::{Clock, ManualClock};
use sheaf_base::disk::sim::SimDisk;
use sheaf_base::sync::thread::JoinHandle;
use sheaf_testkit::ledger::LedgerFactory;
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};
use shuttle::{Config, Runner};

/// Preemptions that the directed half of the schedules has at most.
const DEPTH: usize = 3;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Runs `scenario` under as many schedules as asked: half of them random, half with few preemptions.
fn explore(schedules: u64, scenario: fn()) {
    let mut config = Config::new();
    config.stack_size = 256 << 10;
    config.silence_warnings = true;
    if let Ok(schedule) = std::env::var("SHEAF_SCHEDULE") {
        let scheduler = ReplayScheduler::new_from_encoded(&schedule);
        Runner::new(scheduler, config).run(scenario);
        return;
    }
    let seed = setting("SHEAF_SEED", 1);
    let half = usize::try_from(setting("SHEAF_SCHEDULES", schedules) / 2).expect("small");
    let mut done = Runner::new(RandomScheduler::new_from_seed(seed, half), config.clone()).run(scenario);
    done += Runner::new(PctScheduler::new_from_seed(seed, DEPTH, half), config).run(scenario);
    println!("{done} schedules");
}

/// A clock that goes on whenever somebody looks at it: who waits for a time waits for a few looks.
#[derive(Debug, Default)]
struct Hasty(ManualClock);

impl Clock for Hasty {
    fn now(&self) -> Duration {
        self.0.advance(Duration::from_micros(5));
        self.0.now()
    }

    fn unix_seconds(&self) -> u64 {
        self.0.unix_seconds()
    }
}

/// A machine of the model.
#[derive(Clone, Default)]
struct World {
    disk: SimDisk,
    clock: Arc<Hasty>,
}

impl World {
    fn builder(&self) -> Builder {
        let clock: Arc<Hasty> = Arc::clone(&self.clock);
        Database::builder()
            .engine(Arc::new(LedgerFactory::default()))
            .disk(Arc::new(self.disk.clone()))
            .clock(clock)
            .tiny(true)
            .inline(true)
            .memory(16 << 20)
    }

    fn open(&self) -> Database {
        self.builder().open("/db").expect("it opens")
    }
}

fn space(db: &Database, name: &str, engine: &str) -> Keyspace {
    db.keyspace(name, KeyspaceOptions::default().engine(engine)).expect("the keyspace opens")
}

/// The engines that every scenario runs with.
const ENGINES: [&str; 2] = ["flat", "ledger"];

fn spawn(body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    sheaf_base::sync::thread::spawn(body)
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
}

fn insert_durably(db: &Database, keyspace: &Keyspace, key: &str, value: &str) {
    let mut batch = db.batch();
    batch.durability(Durability::Sync).insert(keyspace, key, value);
    batch.commit().expect("the batch commits");
}

fn text(value: Option<sheaf::Value>) -> Option<String> {
    value.map(|value| String::from_utf8(value.to_vec()).expect("text"))
}
