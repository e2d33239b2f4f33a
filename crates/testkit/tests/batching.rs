//! Every way of sharing syncs keeps the promise: what was acknowledged survives the power cut.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::sync::Arc;

use sheaf::{Batching, Database, Durability, Keyspace, KeyspaceOptions};
use sheaf_base::disk::sim::{Keep, SimDisk};

fn open(sim: &SimDisk, batching: Batching) -> (Database, Keyspace) {
    let db =
        Database::builder().disk(Arc::new(sim.clone())).tiny(true).batching(batching).open("/db").unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
    (db, keyspace)
}

fn put(db: &Database, keyspace: &Keyspace, key: &str) -> sheaf::Commit {
    let mut batch = db.batch();
    batch.durability(Durability::Sync).insert(keyspace, key, key);
    batch.submit().unwrap()
}

#[test]
fn every_way_of_batching_keeps_what_it_acknowledged() {
    for batching in Batching::ALL {
        let sim = SimDisk::new();
        let (db, keyspace) = open(&sim, batching);
        for n in 0..30 {
            put(&db, &keyspace, &n.to_string()).wait().unwrap();
            let (_after, there) = open(&sim.power_cut(&Keep::None), batching);
            assert!(there.contains_key(n.to_string()).unwrap(), "{batching:?}: {n} is gone");
        }
        // The oldest ticket of several is waited for, then the others.
        let tickets: Vec<_> = (30..40).map(|n| put(&db, &keyspace, &n.to_string())).collect();
        tickets.iter().for_each(|ticket| ticket.wait().unwrap());
        let (_after, there) = open(&sim.power_cut(&Keep::None), batching);
        assert_eq!(there.len().unwrap(), 40, "{batching:?}");
    }
}

#[test]
fn writers_of_every_way_all_return_beside_readers_and_views() {
    for batching in Batching::ALL {
        let sim = SimDisk::new();
        let (db, keyspace) = open(&sim, batching);
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let (db, keyspace) = (&db, &keyspace);
                scope.spawn(move || {
                    for n in 0..50 {
                        put(db, keyspace, &format!("{writer}.{n}")).wait().unwrap();
                        assert!(db.snapshot().unwrap().keyspace("k").is_ok());
                    }
                });
            }
        });
        assert_eq!(keyspace.len().unwrap(), 200);
        let (_after, there) = open(&sim.power_cut(&Keep::None), batching);
        assert_eq!(there.len().unwrap(), 200, "{batching:?}");
        drop(keyspace);
        db.close().unwrap();
    }
}
