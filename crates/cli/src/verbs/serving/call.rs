//! # `call`: a request to a served database

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use sheaf_client::{Client, ClientBatch, ClientOptions, Durability};
use sheaf_server::ServerAddress;

use crate::failure::{Failure, Result};
use crate::open::read_token;
use crate::output::{NAME, Stopwatch, on_stdout, stdout, time};
use crate::streams::input;
use crate::text_format::{escape, many, parse_count, size};

/// Arguments of `call`.
#[derive(Debug, Args)]
#[command(subcommand_value_name = "REQUEST", subcommand_help_heading = "Requests")]
pub(crate) struct Call {
    /// Address of the server, as for `serve --flatrpc`
    pub(crate) address: ServerAddress,
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

/// Durability of the commits of a server.
#[derive(Debug, Args)]
pub(crate) struct CallDurabilityArgs {
    /// Sync the commit to the device before the reply. Without it a commit survives a kill of the
    /// server, and a power cut after the next background sync; `call persist` waits for that sync
    #[arg(long)]
    pub(crate) durable: bool,
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
        durable: CallDurabilityArgs,
        /// Key
        key: OsString,
        /// Value, or `-` to read it from stdin; key and value must fit into one message of the
        /// server (4 MiB)
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
        durable: CallDurabilityArgs,
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
        #[arg(long, value_name = "COUNT", value_parser = parse_count, allow_negative_numbers = true)]
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
    let token = read_token(args.token_file.as_deref())?.unwrap_or_default();
    let client = Client::connect(&args.address, &ClientOptions::default().token(token));
    let mut client = client.map_err(|error| connect_failure(args, error))?;
    let name = &args.keyspace;
    match &args.request {
        CallVerb::Put { engine, durable, key, value } => {
            // Read first: a value that cannot be read creates nothing.
            let value = value_of(value, client.max_message())?;
            let keyspace = client.keyspace_with_engine(name, engine.as_deref().unwrap_or_default())?;
            let mut batch = ClientBatch::default();
            batch.durability(durability(durable.durable)).insert(keyspace, key.as_bytes(), &value);
            client.commit(&batch)?;
        }
        CallVerb::Get { key } => {
            let keyspace = client.open_keyspace(name)?;
            let value = client.get(keyspace, key.as_bytes())?.ok_or_else(|| missing(key, name))?;
            let mut out = stdout();
            out.write_all(&value)?;
            out.flush()?;
        }
        CallVerb::Del { durable, keys } => return del(&mut client, name, durability(durable.durable), keys),
        CallVerb::Scan { from, to, limit, reverse } => {
            let keyspace = client.open_keyspace(name)?;
            let low = from.as_ref().map_or(Bound::Unbounded, |key| Bound::Included(key.as_bytes()));
            let high = to.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_bytes()));
            let snapshot = client.snapshot()?; // a range may take several requests
            let limit = limit.unwrap_or(usize::MAX);
            return print(&client.range::<&[u8]>(keyspace, Some(&snapshot), (low, high), *reverse, limit)?);
        }
        CallVerb::Persist => client.persist()?,
        CallVerb::Ping => {
            let watch = Stopwatch::start();
            client.ping()?;
            let mut out = stdout();
            let (took, workers) = (time(watch.elapsed()), many(client.workers() as u64, "worker"));
            writeln!(out, "reply in {took}; the server has {workers}")?;
            out.flush()?;
        }
    }
    Ok(())
}

/// Returns the bytes of a value argument; `-` reads them from stdin.
///
/// # Errors
///
/// Fails if stdin has more bytes than a message of the server.
fn value_of(value: &OsString, max_message: usize) -> Result<Vec<u8>> {
    if value != "-" {
        return Ok(value.as_bytes().to_vec());
    }
    let mut bytes = Vec::new();
    let read = input()?.take(max_message as u64 + 1).read_to_end(&mut bytes);
    if read.map_err(Failure::stream("read", "stdin"))? > max_message {
        let most = size(max_message as u64);
        let why = format!("the value is too large: a message of this server has at most {most}");
        return Err(Failure::Refused(why));
    }
    Ok(bytes)
}

/// Returns a failure to connect.
fn connect_failure(args: &Call, error: sheaf_client::ClientError) -> Failure {
    let address = &args.address;
    let why = match error {
        sheaf_client::ClientError::ConnectionLost(why)
            if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            format!("{why}; is `sheaf serve` running with this address?")
        }
        sheaf_client::ClientError::ConnectionLost(why) => why.to_string(),
        denied @ sheaf_client::ClientError::Denied if args.token_file.is_none() => {
            format!("{denied}; --token-file FILE names the file with the token")
        }
        other => other.to_string(),
    };
    Failure::Refused(format!("cannot connect to {address}: {why}"))
}

fn durability(durable: bool) -> Durability {
    if durable { Durability::Sync } else { Durability::Buffer }
}

fn missing(key: &OsString, keyspace: &str) -> Failure {
    Failure::missing_key(key.as_bytes(), keyspace)
}

/// Removes all keys, then fails if one of them did not exist.
fn del(client: &mut Client, name: &str, durability: Durability, keys: &[OsString]) -> Result {
    let keyspace = client.open_keyspace(name)?;
    let mut absent = None;
    let mut batch = ClientBatch::default();
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
