//! # `serve`: the database for other processes
//!
//! Ends in order on SIGINT and SIGTERM; a killed server loses nothing that it acknowledged, either.

use std::io::Write;
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
    /// The database.
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) modes: Modes,
    /// Where to listen
    #[arg(long, required = true, value_name = "ADDRESS")]
    pub(crate) flatrpc: Vec<Address>,
    /// What clients over TCP have to show: the first line of FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Serve TCP without a token, to whoever can reach it: on loopback every user of this machine
    #[arg(long, conflicts_with = "token_file")]
    pub(crate) insecure: bool,
    /// Threads that execute requests (half of the processors)
    #[arg(long, value_name = "COUNT")]
    pub(crate) workers: Option<usize>,
    /// Let go of clients that ask for nothing so long (never)
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_timeout: Option<NonZeroU64>,
    /// Put commits that nobody waits for on the device every so often (100)
    #[arg(long, value_name = "MILLISECONDS")]
    pub(crate) sync_interval: Option<NonZeroU64>,
    /// Disk that logs may take under updates, in times of what is live in them, from 1.1 to 10 (1.6):
    /// less costs writes
    #[arg(long, value_name = "TIMES")]
    pub(crate) space_limit: Option<f64>,
}

impl Serve {
    /// Opens the database, or creates it.
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

/// Says on stderr that a token was wrong.
fn report(denied: &Denied) {
    let Denied { peer, count } = denied;
    say(format_args!("{CAUTION}sheaf:{CAUTION:#} {} from {peer}", many(*count, "wrong token")));
}

pub(crate) fn run(args: &Serve) -> Result {
    let token = token_of(args.token_file.as_deref())?; // first: a mistake creates nothing
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
    let server = builder.start(&db).map_err(refused)?;
    let mut out = stdout();
    for address in server.addresses() {
        writeln!(out, "serving {} at {address}", args.place.database.display())?;
    }
    out.flush()?;
    drop(out);
    let cards = rdma::devices();
    if !cards.is_empty() {
        let cards = cards.join(", ");
        say(format_args!("{HINT}RDMA cards ({cards}) are not used: there is no link for them{HINT:#}"));
    }
    let _ = signals.forever().next();
    server.close().map_err(refused)?;
    Ok(db.close()?)
}
