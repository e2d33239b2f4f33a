//! # `put`: one pair

use std::ffi::OsStr;
use std::io::{self, Read};

use sheaf::Durability;

use crate::args::Put;
use crate::failure::{Failure, Result};
use crate::notation;
use crate::place::bytes_of;

pub(crate) fn run(args: &Put) -> Result {
    let key = bytes_of(&args.key, args.hex)?;
    let value = value_of(&args.value, args.hex)?; // first: a value that cannot be read creates nothing
    let (db, keyspace) = args.target.create(&args.creation)?;
    let mut batch = db.batch();
    batch.insert(&keyspace, key, value);
    if args.durable.durable {
        batch.durability(Durability::Sync);
    }
    batch.commit()?;
    Ok(db.close()?)
}

fn value_of(argument: &OsStr, hex: bool) -> Result<Vec<u8>> {
    if argument != "-" {
        return bytes_of(argument, hex);
    }
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).map_err(Failure::stream("read", "stdin"))?;
    if !hex {
        return Ok(bytes);
    }
    notation::unhex(&bytes).map_err(|why| Failure::Usage(format!("stdin with --hex: {why}")))
}
