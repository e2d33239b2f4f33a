//! # `path`: prints the path of the file that contains a value

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use clap::Args;

use crate::args::Target;
use crate::failure::{Failure, Result};
use crate::notation;
use crate::output::stdout;
use crate::place::bytes_of;

/// Arguments of `path`.
#[derive(Debug, Args)]
pub(crate) struct PathOf {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Read KEY as hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Key
    pub(crate) key: OsString,
}

pub(crate) fn run(args: &PathOf) -> Result {
    let key = bytes_of(&args.key, args.hex)?;
    let (_db, keyspace) = args.target.read()?;
    let Some(path) = keyspace.path(&key)? else {
        let mut shown = String::new();
        notation::escape(&key, &mut shown);
        let why = if keyspace.contains_key(&key)? {
            "its value is stored together with others and has no file of its own"
        } else {
            "the key does not exist"
        };
        return Err(Failure::Missing(format!("key {shown} in keyspace {}: {why}", args.target.keyspace)));
    };
    let mut out = stdout();
    out.write_all(path.as_os_str().as_bytes())?;
    writeln!(out)?;
    Ok(out.flush()?)
}
