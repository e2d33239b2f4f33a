//! Repairs while background threads of the database run.

use std::ops::ControlFlow;

use sheaf::{Database, Error, KeyspaceOptions, RepairOptions};

#[test]
fn a_cancelled_repair_leaves_nothing_while_background_threads_work() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to] = ["db", "repaired"].map(|name| dir.path().join(name));
    let db = Database::open(&from).unwrap();
    let keyspace = db.keyspace("pairs", KeyspaceOptions::default()).unwrap();
    let mut batch = db.batch();
    for key in 0..40_000u32 {
        batch.insert(&keyspace, key.to_be_bytes(), [7; 60]);
    }
    batch.commit().unwrap();
    drop(keyspace);
    db.close().unwrap();
    for calls in (0..40).step_by(4) {
        let mut left = calls;
        let mut watcher = |_| {
            left -= 1;
            if left < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let options = RepairOptions::default().on_progress(&mut watcher);
        match Database::builder().repair(&from, &to, options) {
            Err(Error::Cancelled) => assert!(!to.exists(), "after {calls} calls"),
            done => {
                done.unwrap();
                std::fs::remove_dir_all(&to).unwrap();
            }
        }
    }
}
