//! The 24 scenarios that broke earlier drafts of the commit path, as tests of the real database.
//!
//! If the simulated disk can produce the crash of a scenario, the test does so with every choice of
//! kept units. If this design cannot reach the scenario, the test checks the nearest observable
//! property and says so.

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

/// Returns the keyspace `name` on `flat`: its log is its data, so damage of a scenario affects a
/// pair.
pub(crate) fn keyspace(db: &Database, name: &str) -> Keyspace {
    db.keyspace(name, KeyspaceOptions::default().engine("flat")).expect("a keyspace")
}

/// Inserts one pair with `Durability::Sync`.
pub(crate) fn put_durably(db: &Database, keyspace: &Keyspace, key: &str, value: &[u8]) -> sheaf::Result<()> {
    let mut batch = db.batch();
    batch.insert(keyspace, key, value).durability(Durability::Sync);
    batch.commit()
}

/// Returns the value of `key` as text.
pub(crate) fn text(keyspace: &Keyspace, key: &str) -> Option<String> {
    keyspace.get(key).expect("it can be read").map(|value| String::from_utf8_lossy(&value).into_owned())
}

/// Parses steps written by hand.
pub(crate) fn steps(line: &str) -> Vec<CrashStep> {
    parse_steps(line).expect("written by hand")
}

/// Explores every power cut at every point of `steps`, and many second ones. Panics on a failure.
pub(crate) fn survives(steps: &[CrashStep], plan: &ExplorePlan) -> ExploreReport {
    let report = explore(steps, plan);
    if let Some(failure) = &report.failure {
        panic!("{failure}");
    }
    report
}
