//! # `serve`: serves the database to other processes
//!
//! SIGINT and SIGTERM end it cleanly. If it is killed, acknowledged commits are not lost either.

use std::io::{ErrorKind, Write};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sheaf::Database;
use sheaf_server::Address;
use sheaf_server::{Builder, Denied, Limits, rdma};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{Modes, Place};
use crate::failure::{Failure, Result};
use crate::notation::many;
use crate::output::{CAUTION, HINT, say, stdout};
use crate::place::token_of;

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Database.
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) modes: Modes,
    /// Address to listen at: a path, PORT or HOST:PORT
    #[arg(long, required = true, value_name = "ADDRESS")]
    pub(crate) flatrpc: Vec<Address>,
    /// File with a token in its first line, which clients over TCP must send
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Serve TCP without a token, to every process that can reach the address
    #[arg(long, conflicts_with = "token_file")]
    pub(crate) insecure: bool,
    /// Number of threads that execute requests [default: half of the processors]
    #[arg(long, value_name = "COUNT")]
    pub(crate) workers: Option<usize>,
    /// Disconnect clients that send no request for this time [default: never]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_timeout: Option<NonZeroU64>,
    /// Interval of background syncs of commits to the device [default: 100]
    #[arg(long, value_name = "MILLISECONDS")]
    pub(crate) sync_interval: Option<NonZeroU64>,
    /// Disk space of logs relative to their live data, from 1.1 to 10; smaller values cost more
    /// writes [default: 1.6]
    #[arg(long, value_name = "TIMES")]
    pub(crate) space_limit: Option<f64>,
}

impl Serve {
    /// Opens the database; creates it if it does not exist.
    fn open(&self) -> Result<Database> {
        let mut builder = self.modes.on(self.place.builder());
        if let Some(interval) = self.sync_interval {
            builder = builder.sync_interval(Duration::from_millis(interval.get()));
        }
        if let Some(times) = self.space_limit {
            builder = builder.space_limit(times);
        }
        Ok(builder.open(&self.place.database)?)
    }
}

/// Prints that a client sent a wrong token.
fn report(denied: &Denied) {
    let Denied { peer, count } = denied;
    say(format_args!("{CAUTION}sheaf:{CAUTION:#} {} from {peer}", many(*count, "wrong token")));
}

pub(crate) fn run(args: &Serve) -> Result {
    let token = token_of(args.token_file.as_deref())?; // read first: a failure creates nothing
    let refused = |error: std::io::Error| Failure::Refused(error.to_string());
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(refused)?;
    let db = args.open()?;
    let mut limits = Limits::default();
    limits.workers = args.workers.unwrap_or(limits.workers);
    limits.idle = args.idle_timeout.map(|seconds| Duration::from_secs(seconds.get()));
    let mut builder = Builder::default().limits(limits).insecure(args.insecure).on_denied(report);
    for address in &args.flatrpc {
        builder = builder.listen(address.clone());
    }
    if let Some(token) = &token {
        builder = builder.token(token);
    }
    let has_tcp = args.flatrpc.iter().any(|address| matches!(address, Address::Tcp(_)));
    let is_open = has_tcp && token.is_none() && !args.insecure;
    let server = builder.start(&db).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied if is_open => {
            Failure::Refused(format!("{error} (--token-file FILE or --insecure)"))
        }
        _ => refused(error),
    })?;
    let mut out = stdout();
    for address in server.addresses() {
        writeln!(out, "serving {} at {address}", args.place.database.display())?;
    }
    out.flush()?;
    drop(out);
    let cards = rdma::devices();
    if !cards.is_empty() {
        let cards = cards.join(", ");
        say(format_args!("{HINT}RDMA cards ({cards}) are not supported and not used{HINT:#}"));
    }
    let _ = signals.forever().next();
    server.close().map_err(refused)?;
    Ok(db.close()?)
}
