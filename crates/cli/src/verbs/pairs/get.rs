//! # `get`: prints the value of a key

use std::ffi::OsString;
use std::io::{self, Read, Write};

use clap::Args;
use serde_json::json;

use super::integers;
use crate::args::KeyspaceArgs;
use crate::failure::{Failure, Result};
use crate::open::decode_argument;
use crate::output::{is_terminal, stdout};
use crate::text_format::{self, hex, printable};

/// Arguments of `get`.
#[derive(Debug, Args)]
pub(crate) struct Get {
    #[command(flatten)]
    pub(crate) target: KeyspaceArgs,
    /// Read KEY as hexadecimal digits, and print the value as hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Print {"key":..,"value":..}
    #[arg(long, conflicts_with = "raw")]
    pub(crate) json: bool,
    /// Print the value as an integer: 8 bytes, as the merge operator of the keyspace reads them
    #[arg(long, conflicts_with_all = ["hex", "raw"])]
    pub(crate) integer: bool,
    /// Print the exact bytes also on a terminal
    #[arg(long, conflicts_with = "hex")]
    pub(crate) raw: bool,
    /// Key
    pub(crate) key: OsString,
}

pub(crate) fn run(args: &Get) -> Result {
    let key = decode_argument(&args.key, args.hex)?;
    let (_db, keyspace) = args.target.open_read_only()?;
    let Some(mut reader) = keyspace.reader(&key)? else {
        return Err(Failure::missing_key(&key, &args.target.keyspace));
    };
    let mut out = stdout();
    if args.integer {
        let mut value = Vec::new();
        reader.read_to_end(&mut value)?;
        let Some(number) = integers::decode(&keyspace, &value) else {
            return Err(Failure::Refused(format!("the value has {} bytes; an integer has 8", value.len())));
        };
        match args.json {
            true => writeln!(out, "{}", json!({ "key": text_format::json(&key), "value": number }))?,
            false => writeln!(out, "{number}")?,
        }
        return Ok(out.flush()?);
    }
    if !args.json && !args.hex && (args.raw || !is_terminal()) {
        io::copy(&mut reader, &mut out)?;
        return Ok(out.flush()?);
    }
    let mut value = Vec::new();
    reader.read_to_end(&mut value)?;
    if args.json {
        writeln!(out, "{}", json!({ "key": text_format::json(&key), "value": text_format::json(&value) }))?;
    } else if args.hex {
        writeln!(out, "{}", hex(&value))?;
    } else {
        writeln!(out, "{}", printable(&value))?;
    }
    Ok(out.flush()?)
}
