//! # `drop`: deletes a keyspace with all its pairs

use std::io::{self, IsTerminal, Write};

use clap::Args;
use sheaf::Error;

use crate::args::DatabaseArgs;
use crate::failure::{Failure, Result};
use crate::text_format::many;

/// Arguments of `drop`.
#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    #[command(flatten)]
    pub(crate) database_args: DatabaseArgs,
    /// Name of the keyspace
    #[arg(value_name = "KEYSPACE")]
    pub(crate) name: String,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
}

pub(crate) fn run(args: &DropArgs) -> Result {
    if !args.yes && !io::stdin().is_terminal() {
        return Err(Failure::Usage("`drop` needs --yes if stdin is not a terminal".into()));
    }
    let db = args.database_args.open_existing()?;
    let missing = || Failure::Database(Error::KeyspaceNotFound { name: args.name.clone() });
    // A damaged keyspace can be dropped too: the size is only for the question.
    let keys = match db.open_keyspace(&args.name) {
        Ok(None) => return Err(missing()),
        Ok(Some(keyspace)) => keyspace.len().ok(),
        Err(error) if error.is_corrupt() => None,
        Err(error) => return Err(error.into()),
    };
    if !args.yes && !confirmed(&args.name, keys)? {
        return Err(Failure::Missing("nothing was dropped".into()));
    }
    if !db.drop_keyspace(&args.name)? {
        return Err(missing());
    }
    Ok(db.close()?)
}

fn confirmed(name: &str, keys: Option<u64>) -> Result<bool> {
    let size = keys.map_or_else(|| "damaged".to_owned(), |keys| many(keys, "key"));
    let _ = write!(anstream::stderr(), "Drop keyspace {name:?} ({size})? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Failure::stream("read", "stdin"))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
