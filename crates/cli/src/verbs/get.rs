//! # `get`: prints the value of a key

use std::ffi::OsString;
use std::io::{self, Read, Write};

use clap::Args;
use serde_json::json;

use crate::args::Target;
use crate::failure::{Failure, Result};
use crate::notation::{self, hex, printable};
use crate::output::{is_terminal, stdout};
use crate::place::bytes_of;

/// Arguments of `get`.
#[derive(Debug, Args)]
pub(crate) struct Get {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Read KEY as hexadecimal digits, and print the value as hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Print {"key":..,"value":..}
    #[arg(long, conflicts_with = "raw")]
    pub(crate) json: bool,
    /// Print the exact bytes also on a terminal
    #[arg(long, conflicts_with = "hex")]
    pub(crate) raw: bool,
    /// Key
    pub(crate) key: OsString,
}

pub(crate) fn run(args: &Get) -> Result {
    let key = bytes_of(&args.key, args.hex)?;
    let (_db, keyspace) = args.target.read()?;
    let Some(mut reader) = keyspace.reader(&key)? else {
        let mut shown = String::new();
        notation::escape(&key, &mut shown);
        return Err(Failure::Missing(format!(
            "there is no key {shown} in keyspace {}",
            args.target.keyspace
        )));
    };
    let mut out = stdout();
    if !args.json && !args.hex && (args.raw || !is_terminal()) {
        io::copy(&mut reader, &mut out)?;
        return Ok(out.flush()?);
    }
    let mut value = Vec::new();
    reader.read_to_end(&mut value)?;
    if args.json {
        writeln!(out, "{}", json!({ "key": notation::json(&key), "value": notation::json(&value) }))?;
    } else if args.hex {
        writeln!(out, "{}", hex(&value))?;
    } else {
        writeln!(out, "{}", printable(&value))?;
    }
    Ok(out.flush()?)
}
