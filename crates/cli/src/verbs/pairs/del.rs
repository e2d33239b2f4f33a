//! # `del`: removes keys in one commit

use std::ffi::OsString;

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
    /// Keys
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<OsString>,
}

pub(crate) fn run(args: &Del) -> Result {
    let keys = args.keys.iter().map(|key| decode_argument(key, args.hex)).collect::<Result<Vec<_>>>()?;
    let (db, keyspace) = args.target.open_existing()?;
    let mut batch = db.batch();
    let mut missing = 0;
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
