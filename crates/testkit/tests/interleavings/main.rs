//! Models of thread interleavings: commits, sync rounds, views, GC, closing, and lock-free reads.
//!
//! Built with `--cfg shuttle` only, as `cargo xtask ci` does. `SHEAF_SCHEDULES=100000` explores
//! longer, and `SHEAF_SEED` explores other schedules. A failure prints its schedule;
//! `SHEAF_SCHEDULE=... cargo test ... NAME` replays it.

#![cfg(shuttle)]

mod background;
mod changes;
mod closing;
mod committing;
mod converting;
mod copying;
mod creating;
mod merging;
mod opening;
mod range_removal;
mod reading;
mod tasks;
mod transactions;
mod waiting;
mod writing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sheaf::{Builder, Database, Durability, Keyspace, KeyspaceOptions};
use sheaf_platform::clock::{Clock, ManualClock, UnixMillis};
use sheaf_platform::sync::explore;
use sheaf_platform::sync::thread::JoinHandle;
use sheaf_sim::SimDisk;
use sheaf_testkit::reference_engine::ReferenceEngineFactory;

/// A clock that advances at each call, so that a timed wait ends after a few calls.
#[derive(Debug, Default)]
struct AutoAdvancingClock(ManualClock);

impl Clock for AutoAdvancingClock {
    fn now(&self) -> Duration {
        self.0.advance(Duration::from_micros(5));
        self.0.now()
    }

    fn unix_millis(&self) -> UnixMillis {
        self.0.unix_millis()
    }
}

/// Disk and clock of a model.
#[derive(Clone, Default)]
struct ModelMachine {
    disk: SimDisk,
    clock: Arc<AutoAdvancingClock>,
}

impl ModelMachine {
    fn builder(&self) -> Builder {
        let clock: Arc<AutoAdvancingClock> = Arc::clone(&self.clock);
        Database::builder()
            .engine(Arc::new(ReferenceEngineFactory::default()))
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

fn open_keyspace(db: &Database, name: &str, engine: &str) -> Keyspace {
    db.keyspace(name, KeyspaceOptions::default().engine(engine)).expect("the keyspace opens")
}

/// All engines.
const ENGINES: [&str; 7] = ["flat", "flat-ordered", "flex", "cedrus", "kreon", "delsm", "ledger"];

/// Runs the scenario on every engine, or on `SHEAF_ENGINE`. `flat` gets all schedules, each other
/// engine a tenth of them.
fn on_every_engine(schedules: u64, scenario: fn(&'static str)) {
    let only = std::env::var("SHEAF_ENGINE").ok();
    for engine in ENGINES.into_iter().filter(|engine| only.as_deref().is_none_or(|only| only == *engine)) {
        println!("{engine}");
        explore(if engine == "flat" { schedules } else { schedules.div_ceil(10).max(2) }, move || {
            scenario(engine)
        });
    }
}

fn spawn(body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    sheaf_platform::sync::thread::spawn(body)
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no thread fails"));
}

fn insert_durably(db: &Database, keyspace: &Keyspace, key: &str, value: &str) {
    let mut batch = db.batch();
    batch.durability(Durability::Sync).insert(keyspace, key, value);
    batch.commit().expect("the batch commits");
}

/// Writes to `keys` keys in turn, and removes the key in every fifth of `count` steps. Returns the
/// pairs.
fn write_and_remove(keyspace: &Keyspace, count: u32, keys: u32) -> BTreeMap<String, String> {
    let mut expected = BTreeMap::new();
    for n in 0..count {
        let key = (n % keys).to_string();
        if n % 5 == 4 {
            keyspace.remove(&key).expect("it removes");
            expected.remove(&key);
        } else {
            keyspace.insert(&key, n.to_string()).expect("it inserts");
            expected.insert(key, n.to_string());
        }
    }
    expected
}

/// Returns the pairs of a keyspace, which are text.
fn pairs(keyspace: &Keyspace) -> BTreeMap<String, String> {
    let pairs = keyspace.iter().expect("it begins").map(|pair| pair.expect("it reads"));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    pairs.map(|(key, value)| (text(&key), text(&value))).collect()
}

fn text(value: Option<sheaf::Value>) -> Option<String> {
    value.map(|value| String::from_utf8(value.to_vec()).expect("text"))
}
