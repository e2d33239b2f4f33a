//! # `path`: prints the path of the file that contains a value

use std::ffi::OsString;
use std::io::Write;

use clap::Args;

use crate::args::KeyspaceArgs;
use crate::failure::{Failure, Result};
use crate::open::decode_argument;
use crate::output::stdout;
use crate::text_format;

/// Arguments of `path`.
#[derive(Debug, Args)]
pub(crate) struct PathArgs {
    #[command(flatten)]
    pub(crate) target: KeyspaceArgs,
    /// Read KEY as hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Key
    pub(crate) key: OsString,
}

pub(crate) fn run(args: &PathArgs) -> Result {
    let key = decode_argument(&args.key, args.hex)?;
    let (_db, keyspace) = args.target.open_read_only()?;
    let Some(path) = keyspace.blob_path(&key)? else {
        let name = &args.target.keyspace;
        if !keyspace.contains_key(&key)? {
            return Err(Failure::missing_key(&key, name));
        }
        let mut shown = String::new();
        text_format::escape(&key, &mut shown);
        let why = format!("the value of key \"{shown}\" in keyspace {name:?} has no file of its own");
        return Err(Failure::Missing(why));
    };
    let mut out = stdout();
    out.write_all(path.as_os_str().as_encoded_bytes())?;
    writeln!(out)?;
    Ok(out.flush()?)
}
