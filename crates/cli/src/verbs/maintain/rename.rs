//! # `rename`: gives a keyspace another name

use clap::Args;

use crate::args::DatabaseArgs;
use crate::failure::Result;

/// Arguments of `rename`.
#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    #[command(flatten)]
    pub(crate) database_args: DatabaseArgs,
    /// Present name of the keyspace
    #[arg(value_name = "OLD")]
    pub(crate) old: String,
    /// New name
    #[arg(value_name = "NEW")]
    pub(crate) new: String,
}

pub(crate) fn run(args: &RenameArgs) -> Result {
    let db = args.database_args.open_existing()?;
    db.rename_keyspace(&args.old, &args.new)?;
    Ok(db.close()?)
}
