//! # `call`: a request to a served database

use std::ffi::OsString;
use std::io::Write;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use sheaf_client::{Batch, Client, Durability, Options};
use sheaf_server::Address;

use crate::args::Durable;
use crate::failure::{Failure, Result};
use crate::notation::{self, escape, many};
use crate::output::{NAME, Watch, on_stdout, stdout, time};
use crate::place::token_of;

/// Arguments of `call`.
#[derive(Debug, Args)]
#[command(subcommand_value_name = "REQUEST", subcommand_help_heading = "Requests")]
pub(crate) struct Call {
    /// Address of the server, as for `serve --flatrpc`
    pub(crate) address: Address,
    /// Name of the keyspace
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub(crate) keyspace: String,
    /// File with the token of the server in its first line
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Request to send
    #[command(subcommand)]
    pub(crate) request: CallVerb,
}

/// Requests to a served database.
#[derive(Debug, Subcommand)]
pub(crate) enum CallVerb {
    /// Set a key to a value; creates the keyspace if it does not exist
    Put {
        /// Engine of the new keyspace; an existing keyspace must have this engine
        #[arg(short, long, value_name = "NAME")]
        engine: Option<String>,
        #[command(flatten)]
        durable: Durable,
        /// Key
        key: OsString,
        /// Value
        value: OsString,
    },
    /// Print the value of a key, byte for byte
    Get {
        /// Key
        key: OsString,
    },
    /// Remove keys in one commit
    Del {
        #[command(flatten)]
        durable: Durable,
        /// Keys
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<OsString>,
    },
    /// List pairs of keys and values
    Scan {
        /// First key of the range
        #[arg(long, value_name = "KEY")]
        from: Option<OsString>,
        /// End of the range, exclusive
        #[arg(long, value_name = "KEY")]
        to: Option<OsString>,
        /// Maximum number of pairs
        #[arg(long, value_name = "COUNT")]
        limit: Option<usize>,
        /// Descend from the highest key
        #[arg(long)]
        reverse: bool,
    },
    /// Wait until all commits are on the device
    Persist,
    /// Check the connection and print the time of a reply
    Ping,
}

pub(crate) fn run(args: &Call) -> Result {
    let token = token_of(args.token_file.as_deref())?.unwrap_or_default();
    let client = Client::connect(&args.address, &Options::default().token(token));
    let mut client = client.map_err(|error| unconnected(&args.address, error))?;
    let name = &args.keyspace;
    match &args.request {
        CallVerb::Put { engine, durable, key, value } => {
            let keyspace = client.keyspace_of(name, engine.as_deref().unwrap_or_default())?;
            let mut batch = Batch::default();
            batch.durability(durability(durable.durable)).insert(keyspace, key.as_bytes(), value.as_bytes());
            client.commit(&batch)?;
        }
        CallVerb::Get { key } => {
            let keyspace = client.existing_keyspace(name)?;
            let value = client.get(keyspace, key.as_bytes())?.ok_or_else(|| missing(key, name))?;
            let mut out = stdout();
            out.write_all(&value)?;
            out.flush()?;
        }
        CallVerb::Del { durable, keys } => return del(&mut client, name, durability(durable.durable), keys),
        CallVerb::Scan { from, to, limit, reverse } => {
            let keyspace = client.existing_keyspace(name)?;
            let low = from.as_ref().map_or(Bound::Unbounded, |key| Bound::Included(key.as_bytes()));
            let high = to.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_bytes()));
            let snapshot = client.snapshot()?; // a range may take several requests
            let limit = limit.unwrap_or(usize::MAX);
            return print(&client.range::<&[u8]>(keyspace, Some(&snapshot), (low, high), *reverse, limit)?);
        }
        CallVerb::Persist => client.persist()?,
        CallVerb::Ping => {
            let watch = Watch::start();
            client.ping()?;
            let mut out = stdout();
            let (took, workers) = (time(watch.elapsed()), many(client.workers() as u64, "worker"));
            writeln!(out, "reply in {took}; the server has {workers}")?;
            out.flush()?;
        }
    }
    Ok(())
}

/// Returns a failure to connect.
fn unconnected(address: &Address, error: sheaf_client::Error) -> Failure {
    let why = match error {
        sheaf_client::Error::Lost(why) => why.to_string(),
        other => other.to_string(),
    };
    Failure::Refused(format!("cannot connect to {address}: {why}"))
}

fn durability(durable: bool) -> Durability {
    if durable { Durability::Sync } else { Durability::Buffer }
}

fn missing(key: &OsString, keyspace: &str) -> Failure {
    let mut shown = String::new();
    notation::escape(key.as_bytes(), &mut shown);
    Failure::Missing(format!("there is no key {shown} in keyspace {keyspace}"))
}

/// Removes all keys, then fails if one of them did not exist.
fn del(client: &mut Client, name: &str, durability: Durability, keys: &[OsString]) -> Result {
    let keyspace = client.existing_keyspace(name)?;
    let mut absent = None;
    let mut batch = Batch::default();
    batch.durability(durability);
    for key in keys {
        if client.get(keyspace, key.as_bytes())?.is_none() {
            absent.get_or_insert(key);
        }
        batch.remove(keyspace, key.as_bytes());
    }
    client.commit(&batch)?;
    absent.map_or(Ok(()), |key| Err(missing(key, name)))
}

fn print(pairs: &[(Vec<u8>, Vec<u8>)]) -> Result {
    let name = on_stdout(NAME);
    let mut out = stdout();
    let mut line = String::new();
    for (key, value) in pairs {
        line.clear();
        escape(key, &mut line);
        write!(out, "{name}{line}{name:#}\t")?;
        line.clear();
        escape(value, &mut line);
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}
