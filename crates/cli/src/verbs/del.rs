//! # `del`: keys away, in one commit

use sheaf::Durability;

use crate::args::Del;
use crate::failure::{Failure, Result};
use crate::place::bytes_of;

pub(crate) fn run(args: &Del) -> Result {
    let keys = args.keys.iter().map(|key| bytes_of(key, args.hex)).collect::<Result<Vec<_>>>()?;
    let (db, keyspace) = args.target.write()?;
    let mut batch = db.batch();
    let mut missing = 0;
    for key in &keys {
        // Nobody changes it between the look and the commit: this process owns the database.
        if keyspace.contains_key(key)? {
            batch.remove(&keyspace, key);
        } else {
            missing += 1;
        }
    }
    if args.durable.durable {
        batch.durability(Durability::Sync);
    }
    if !batch.is_empty() {
        batch.commit()?;
    }
    db.close()?;
    match missing {
        0 => Ok(()),
        _ => Err(Failure::Missing(format!("{missing} of {} keys not there", keys.len()))),
    }
}
