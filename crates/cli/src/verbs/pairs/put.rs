//! # `put`: writes one pair

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::time::Duration;

use clap::Args;
use sheaf::{Durability, Keyspace};

use crate::args::{CreateArgs, DurabilityArgs, KeyspaceArgs};
use crate::failure::{Failure, Result};
use crate::open::{FirstPair, decode_argument};
use crate::streams::input;
use crate::text_format;

/// Arguments of `put`.
#[derive(Debug, Args)]
pub(crate) struct Put {
    #[command(flatten)]
    pub(crate) target: KeyspaceArgs,
    #[command(flatten)]
    pub(crate) creation: CreateArgs,
    #[command(flatten)]
    pub(crate) durable: DurabilityArgs,
    /// Remove the pair after this time, such as 30s, 10m or 7d; a new keyspace gets expiry=on
    #[arg(long, value_name = "DURATION", value_parser = text_format::parse_duration, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,
    /// Read KEY and VALUE as hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Key
    pub(crate) key: OsString,
    /// Value, or `-` to read it from stdin
    pub(crate) value: OsString,
}

/// Bytes of a value from stdin that are held in memory.
const CHUNK: usize = 1 << 16;

pub(crate) fn run(args: &Put) -> Result {
    args.creation.check()?;
    if args.ttl.is_some() && args.creation.chosen.value("expiry") == Some(0) {
        let why = "--ttl needs expiry, and --option expiry=off excludes it: leave out one of them";
        return Err(Failure::Usage(why.to_owned()));
    }
    let key = decode_argument(&args.key, args.hex)?;
    // Read first: a value that cannot be read creates nothing.
    let (first, mut rest): (Vec<u8>, Box<dyn Read>) = match args.value.as_encoded_bytes() {
        b"-" if args.hex => (unhexed(read(&mut input()?)?)?, Box::new(io::empty())),
        b"-" => {
            let mut input = input()?;
            (read(&mut Read::by_ref(&mut input).take(CHUNK as u64))?, Box::new(input))
        }
        _ => (decode_argument(&args.value, args.hex)?, Box::new(io::empty())),
    };
    let target = args.target.open_or_create(&args.creation, FirstPair { key: &key, ttl: args.ttl })?;
    target.write_once(|keyspace| write(args, keyspace, key, &first, &mut *rest))
}

/// Commits a pair with the value `first`, followed by `rest`.
fn write(args: &Put, keyspace: &Keyspace, key: Vec<u8>, first: &[u8], rest: &mut dyn Read) -> Result {
    let mut writer = match args.ttl {
        Some(ttl) => keyspace.writer_with_ttl(key, ttl)?,
        None => keyspace.writer(key)?,
    };
    writer.write_all(first)?;
    let mut chunk = vec![0; CHUNK];
    loop {
        match rest.read(&mut chunk).map_err(Failure::stream("read", "stdin"))? {
            0 => break,
            count => writer.write_all(&chunk[..count])?,
        }
    }
    match args.durable.durable {
        true => writer.submit(Durability::Sync)?.wait()?,
        false => writer.commit()?,
    }
    Ok(())
}

fn read(from: &mut dyn Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).map_err(Failure::stream("read", "stdin"))?;
    Ok(bytes)
}

fn unhexed(digits: Vec<u8>) -> Result<Vec<u8>> {
    text_format::unhex(&digits).map_err(|why| Failure::Usage(format!("--hex: stdin {why}")))
}
