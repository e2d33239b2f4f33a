//! # Snapshots of the keyspace

use sheaf::KeyspaceSnapshot;

use crate::database::leveldb_t;
use crate::memory::guard;

/// The keyspace as of one commit. Copies share it.
#[derive(Clone)]
pub struct leveldb_snapshot_t(pub(crate) KeyspaceSnapshot);

/// Returns NULL if the database cannot be read.
#[unsafe(no_mangle)]
pub extern "C" fn leveldb_create_snapshot(db: Option<&leveldb_t>) -> Option<Box<leveldb_snapshot_t>> {
    guard(|| Some(Box::new(leveldb_snapshot_t(db?.snapshot().ok()?))))
}

#[unsafe(no_mangle)]
pub extern "C" fn leveldb_release_snapshot(
    _db: Option<&leveldb_t>,
    snapshot: Option<Box<leveldb_snapshot_t>>,
) {
    guard(|| drop(snapshot));
}
