//! # Closing: the end of a handle and of a database

#[cfg(unix)]
pub mod forks;

use super::{get, key, refused, sorted};
use crate::fixture::Fixture;
use sheaf::{Error, KeyspaceOptions};

pub fn every_verb_of_a_closed_handle_says_closed(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    for index in 0..10 {
        ks.insert(key(index), "v").unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    let of_snapshot = snapshot.keyspace("a").unwrap();
    let mut batch = db.batch();
    batch.insert(&ks, "k", "v");
    let mut expecting = db.batch();
    expecting.expect_value(&ks, "k", Some(b"other"));
    let handle = db.clone();
    db.close().unwrap();

    refused!(ks.insert("k", "v"), Error::Closed);
    refused!(ks.remove("k"), Error::Closed);
    refused!(ks.get("k"), Error::Closed);
    refused!(ks.get_with("k", |_| ()), Error::Closed);
    refused!(ks.contains_key("k"), Error::Closed);
    refused!(ks.multi_get(["k"]), Error::Closed);
    refused!(ks.update("k", |_| Some(vec![])), Error::Closed);
    refused!(ks.compare_and_swap("k", None, Some(b"v")), Error::Closed);
    refused!(ks.compare_and_swap("k", Some(b"other"), None), Error::Closed);
    refused!(ks.range::<&[u8]>(..), Error::Closed);
    refused!(ks.prefix(""), Error::Closed);
    refused!(ks.iter(), Error::Closed);
    refused!(ks.keys(), Error::Closed);
    refused!(ks.len(), Error::Closed);
    refused!(ks.is_empty(), Error::Closed);
    refused!(ks.clear(), Error::Closed);
    refused!(ks.remove_range::<&[u8]>(..), Error::Closed);
    refused!(ks.compact(), Error::Closed);
    refused!(ks.disk_bytes(), Error::Closed);
    refused!(handle.quiesce(), Error::Closed);
    if fixture.subject.ordered {
        refused!(ks.first(), Error::Closed);
        refused!(ks.last(), Error::Closed);
    }
    refused!(handle.keyspace("a", KeyspaceOptions::default()), Error::Closed);
    refused!(handle.keyspace("new", KeyspaceOptions::default()), Error::Closed);
    refused!(handle.open_keyspace("a"), Error::Closed);
    refused!(handle.drop_keyspace("a"), Error::Closed);
    refused!(handle.snapshot(), Error::Closed);
    refused!(handle.persist(), Error::Closed);
    refused!(handle.verify(|_| ()), Error::Closed);
    refused!(batch.commit(), Error::Closed);
    refused!(expecting.commit(), Error::Closed);
    refused!(of_snapshot.get("k"), Error::Closed);
    refused!(of_snapshot.contains_key("k"), Error::Closed);
    refused!(of_snapshot.iter(), Error::Closed);
    refused!(of_snapshot.len(), Error::Closed);
    // These calls return no error and must not panic.
    let _ = (handle.stats(), handle.keyspaces(), handle.path(), ks.name(), ks.engine(), snapshot.keyspaces());
    let _ = (handle.pump(), handle.close());
    let db = fixture.open();
    assert_eq!(fixture.keyspace(&db, "a").len().unwrap(), 10, "and nothing was changed");
}

pub fn iterators_and_snapshots_say_closed_after_the_close(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    for index in 0..10 {
        ks.insert(key(index), "v").unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    let (mut begun, mut fresh) = (ks.iter().unwrap(), ks.iter().unwrap());
    let mut keys = snapshot.keyspace("a").unwrap().keys().unwrap();
    begun.next().unwrap().unwrap();
    db.close().unwrap();
    for _ in 0..2 {
        let db = fixture.open(); // a new opening does not revive them
        refused!(begun.next().unwrap_or(Err(Error::Closed)), Error::Closed);
        refused!(fresh.next().unwrap_or(Err(Error::Closed)), Error::Closed);
        refused!(keys.next().unwrap_or(Err(Error::Closed)), Error::Closed);
        assert!(begun.next().is_none() && fresh.next().is_none() && keys.next().is_none());
        assert_eq!(fixture.keyspace(&db, "a").len().unwrap(), 10);
    }
    drop((snapshot, begun, fresh, keys));
}

pub fn dropping_the_last_handle_closes_in_order(fixture: &Fixture) {
    let db = fixture.open();
    let ks = fixture.keyspace(&db, "a");
    ks.insert("k", "v").unwrap();
    drop(db);
    ks.insert("l", "v").unwrap(); // a keyspace handle keeps the database open
    assert_eq!(get(&ks, "k").as_deref(), Some(&b"v"[..]));
    drop(ks);
    let db = fixture.open();
    assert!(db.stats().opening.is_clean, "it was closed in order");
    assert_eq!(sorted(&fixture.keyspace(&db, "a")).len(), 2);
}
