//! The 24 scenarios that broke weaker commit protocols, each as a test of the real database.
//!
//! They broke earlier drafts of the commit path one by one. Where a scenario's exact crash can be
//! made on the simulated disk it is, in every variant of what the power cut keeps; where this
//! design cannot arrive there at all, the nearest observable property is tested and the test says
//! so.

mod background;
mod damage;
mod handles;
mod order;
mod panics;
mod space;
mod tails;

use sheaf::{Database, Durability, Keyspace, KeyspaceOptions};
use sheaf_testkit::crash::explore::{ExplorePlan, ExploreReport, explore};
use sheaf_testkit::crash::workload::{CrashStep, parse_steps};

/// The keyspace `name`, on the engine whose log is its data: there a scenario's damage is damage to
/// a pair.
pub(crate) fn keyspace(db: &Database, name: &str) -> Keyspace {
    db.keyspace(name, KeyspaceOptions::default().engine("flat")).expect("a keyspace")
}

/// Puts one pair, on the device on return.
pub(crate) fn put_durably(db: &Database, keyspace: &Keyspace, key: &str, value: &[u8]) -> sheaf::Result<()> {
    let mut batch = db.batch();
    batch.insert(keyspace, key, value).durability(Durability::Sync);
    batch.commit()
}

/// The value of `key` as text.
pub(crate) fn text(keyspace: &Keyspace, key: &str) -> Option<String> {
    keyspace.get(key).expect("it can be read").map(|value| String::from_utf8_lossy(&value).into_owned())
}

/// Steps written by hand.
pub(crate) fn steps(line: &str) -> Vec<CrashStep> {
    parse_steps(line).expect("written by hand")
}

/// Every power cut at every moment of `steps`, and many second ones, must be survived.
pub(crate) fn survives(steps: &[CrashStep], plan: &ExplorePlan) -> ExploreReport {
    let report = explore(steps, plan);
    if let Some(failure) = &report.failure {
        panic!("{failure}");
    }
    report
}
