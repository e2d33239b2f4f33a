//! # `ttl`: prints the time for which a pair still exists

use std::ffi::OsString;
use std::io::Write;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::json;
use sheaf::Expiry;

use crate::args::KeyspaceArgs;
use crate::failure::{Failure, Result};
use crate::open::decode_argument;
use crate::output::stdout;
use crate::text_format::{self, unix_millis};

/// Arguments of `ttl`.
#[derive(Debug, Args)]
pub(crate) struct Ttl {
    #[command(flatten)]
    pub(crate) target: KeyspaceArgs,
    /// Read KEY as hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Print {"key":..,"expires_at_ms":..,"ttl_seconds":..}; null for a pair that never expires
    #[arg(long)]
    pub(crate) json: bool,
    /// Key
    pub(crate) key: OsString,
}

#[expect(clippy::disallowed_methods, reason = "the time for the user, not for the database")]
pub(crate) fn run(args: &Ttl) -> Result {
    let key = decode_argument(&args.key, args.hex)?;
    let (_db, keyspace) = args.target.open_read_only()?;
    let Some(expiry) = keyspace.expires_at(&key)? else {
        return Err(Failure::missing_key(&key, &args.target.keyspace));
    };
    let time = match expiry {
        Expiry::At(time) => Some((time, time.duration_since(SystemTime::now()).unwrap_or_default())),
        Expiry::Never => None,
    };
    let mut out = stdout();
    match (args.json, time) {
        (true, time) => {
            let at = time.map(|(time, _)| u64::try_from(unix_millis(time)).unwrap_or(u64::MAX));
            let left = time.map(|(_, left)| left.as_secs_f64());
            let key = text_format::json(&key);
            writeln!(out, "{}", json!({ "key": key, "expires_at_ms": at, "ttl_seconds": left }))?;
        }
        (false, Some((_, left))) => writeln!(out, "{}", seconds(left))?,
        (false, None) => writeln!(out, "never")?,
    }
    Ok(out.flush()?)
}

/// Formats a time to live in seconds, rounded down to milliseconds.
fn seconds(left: Duration) -> String {
    format!("{}.{:03}", left.as_secs(), left.subsec_millis())
}
