//! # `del`: removes keys, or a range of keys, in one commit

use std::ffi::OsString;
use std::ops::Bound;

use clap::Args;
use sheaf::Durability;

use crate::args::{DurabilityArgs, KeyspaceArgs};
use crate::failure::{Failure, Result};
use crate::open::decode_argument;

/// Arguments of `del`.
#[derive(Debug, Args)]
pub(crate) struct Del {
    #[command(flatten)]
    pub(crate) target: KeyspaceArgs,
    #[command(flatten)]
    pub(crate) durable: DurabilityArgs,
    /// Read each KEY as hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// First key of a range to remove
    #[arg(long, value_name = "KEY", conflicts_with = "keys")]
    pub(crate) from: Option<OsString>,
    /// End of the range, exclusive
    #[arg(long, value_name = "KEY", conflicts_with = "keys")]
    pub(crate) to: Option<OsString>,
    /// Keys
    #[arg(required_unless_present_any = ["from", "to"], value_name = "KEY")]
    pub(crate) keys: Vec<OsString>,
}

pub(crate) fn run(args: &Del) -> Result {
    let end = |key: &Option<OsString>| key.as_ref().map(|key| decode_argument(key, args.hex)).transpose();
    let (from, to) = (end(&args.from)?, end(&args.to)?);
    let keys = args.keys.iter().map(|key| decode_argument(key, args.hex)).collect::<Result<Vec<_>>>()?;
    let (db, keyspace) = args.target.open_existing()?;
    let mut batch = db.batch();
    let mut missing = 0;
    if from.is_some() || to.is_some() {
        let low = from.map_or(Bound::Unbounded, Bound::Included);
        batch.remove_range(&keyspace, (low, to.map_or(Bound::Unbounded, Bound::Excluded)));
    }
    for key in &keys {
        // No other process can change it before the commit: this process owns the database.
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
        _ => Err(Failure::Missing(format!("{missing} of {} keys did not exist", keys.len()))),
    }
}
