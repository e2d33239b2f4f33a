//! # `merge`: lets the merge operator of a keyspace compute a value

use std::ffi::OsString;

use clap::Args;
use sheaf::{Durability, Error, Keyspace};

use super::integers;
use crate::args::{CreateArgs, DurabilityArgs, KeyspaceArgs};
use crate::failure::{Failure, Result};
use crate::open::{FirstPair, WritableKeyspace, decode_argument};

/// Arguments of `merge`.
#[derive(Debug, Args)]
pub(crate) struct Merge {
    #[command(flatten)]
    pub(crate) target: KeyspaceArgs,
    #[command(flatten)]
    pub(crate) creation: CreateArgs,
    #[command(flatten)]
    pub(crate) durable: DurabilityArgs,
    /// Read OPERAND as an integer, so that `min` and `max` compare numbers; with the operator
    /// `add` this is the default
    #[arg(long, conflicts_with = "hex")]
    pub(crate) integer: bool,
    /// Read KEY and OPERAND as hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Key
    pub(crate) key: OsString,
    /// Operand
    #[arg(allow_negative_numbers = true)]
    pub(crate) operand: OsString,
}

pub(crate) fn run(args: &Merge) -> Result {
    let key = decode_argument(&args.key, args.hex)?;
    let bytes = decode_argument(&args.operand, args.hex)?;
    let asked = args.creation.chosen.merge_operator();
    if args.integer || (asked == Some("add") && !args.hex) {
        integers::parse(&args.operand)?; // before the keyspace is created
    }
    open(args, asked, &key)?.write_once(|keyspace| {
        check_has_operator(args, keyspace)?;
        let operand = match args.integer || (integers::is_added(keyspace) && !args.hex) {
            true => integers::encode(keyspace, integers::parse(&args.operand)?),
            false => bytes,
        };
        match args.durable.durable {
            true => keyspace.submit_merge(key, operand, Durability::Sync)?.wait()?,
            false => keyspace.merge(key, operand)?,
        }
        Ok(())
    })
}

/// Fails if the keyspace has no merge operator.
fn check_has_operator(args: &Merge, keyspace: &Keyspace) -> Result {
    if keyspace.options().merge_operator().is_some() {
        return Ok(());
    }
    let (name, engine) = (&args.target.keyspace, keyspace.engine());
    let operators = sheaf::merge_operators().join(", ");
    Err(Failure::Refused(format!(
        "keyspace {name:?} has no merge operator; `sheaf convert {} --keyspace {name} --to {engine} --option \
         merge=OPERATOR` gives it one, with one of {operators}",
        args.target.database_args.database.display()
    )))
}

/// Opens the database and the keyspace. Creates them only if the arguments name an operator: a
/// keyspace without one cannot merge.
fn open(args: &Merge, asked: Option<&str>, key: &[u8]) -> Result<WritableKeyspace> {
    if asked.is_some() {
        return args.target.open_or_create(&args.creation, FirstPair { key, ttl: None });
    }
    args.target.open_existing_with(&args.creation).map_err(|failure| match failure {
        Failure::Database(Error::DatabaseNotFound { .. } | Error::KeyspaceNotFound { .. }) => {
            let name = &args.target.keyspace;
            let operators = sheaf::merge_operators().join(", ");
            Failure::Refused(format!(
                "there is no keyspace {name:?}; --option merge=OPERATOR creates it, with one of {operators}"
            ))
        }
        other => other,
    })
}
