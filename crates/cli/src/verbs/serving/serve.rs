//! # `serve`: serves the database to other processes
//!
//! SIGINT and SIGTERM end it cleanly. If it is killed, acknowledged commits are not lost either.

use std::io::Write;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sheaf::Database;
use sheaf_server::ServerAddress;
use sheaf_server::{DeniedClients, ServerBuilder, ServerLimits, rdma};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{DatabaseArgs, NewDatabaseModeArgs};
use crate::failure::{Failure, Result};
use crate::open::read_token;
use crate::output::{CAUTION, HINT, print_message, stdout};
use crate::text_format::many;

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Database.
    #[command(flatten)]
    pub(crate) database_args: DatabaseArgs,
    #[command(flatten)]
    pub(crate) modes: NewDatabaseModeArgs,
    /// Address to listen at: a path, PORT or HOST:PORT
    #[arg(long, required = true, value_name = "ADDRESS")]
    pub(crate) flatrpc: Vec<ServerAddress>,
    /// File with a token in its first line, which clients over TCP must send
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Serve TCP without a token, to every process that can reach the address
    #[arg(long, conflicts_with = "token_file")]
    pub(crate) insecure: bool,
    /// Number of threads that execute requests, 1 to 64 [default: half of the processors]
    #[arg(long, value_name = "COUNT", value_parser = parse_workers)]
    pub(crate) workers: Option<usize>,
    /// Bind each worker to a processor, for a machine that runs little besides this server
    #[arg(long)]
    pub(crate) bind_workers: bool,
    /// Disconnect clients that send no request and wait for no reply for this time [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = parse_positive)]
    pub(crate) idle_timeout: Option<NonZeroU64>,
    /// Interval of background syncs of commits to the device [default: 100]
    #[arg(long, value_name = "MILLISECONDS", value_parser = parse_positive)]
    pub(crate) sync_interval: Option<NonZeroU64>,
    /// Number of threads that do background work at the same time [default: half of the processors,
    /// at most 8]
    #[arg(long, value_name = "COUNT", value_parser = parse_threads)]
    pub(crate) background_threads: Option<usize>,
    /// Disk space of logs relative to their live data, from 1.1 to 10; smaller values cost more
    /// writes [default: 1.6]
    #[arg(long, value_name = "TIMES", value_parser = parse_space_limit)]
    pub(crate) space_limit: Option<f64>,
}

/// Largest number of background threads.
const MAX_THREADS: usize = 64;

/// Parses a number of workers.
fn parse_workers(text: &str) -> Result<usize, String> {
    let most = sheaf_server::MAX_WORKERS;
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("expected a number from 1 to {most}"))
}

/// Parses a number of threads.
fn parse_threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX_THREADS).contains(number));
    number.ok_or_else(|| format!("expected a number from 1 to {MAX_THREADS}"))
}

/// Parses a number that must not be 0.
fn parse_positive(text: &str) -> Result<NonZeroU64, String> {
    let number: u64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    NonZeroU64::new(number).ok_or_else(|| "must be at least 1".to_owned())
}

/// Parses a limit of disk space, relative to the live data.
fn parse_space_limit(text: &str) -> Result<f64, String> {
    let times = text.parse().ok().filter(|times| (1.1..=10.0).contains(times));
    times.ok_or_else(|| "expected a number from 1.1 to 10".to_owned())
}

impl Serve {
    /// Opens the database; creates it if it does not exist.
    fn open(&self) -> Result<Database> {
        let mut builder = self.modes.apply(self.database_args.builder());
        if let Some(interval) = self.sync_interval {
            builder = builder.sync_interval(Duration::from_millis(interval.get()));
        }
        if let Some(threads) = self.background_threads {
            builder = builder.background_threads(threads);
        }
        if let Some(times) = self.space_limit {
            builder = builder.space_limit(times);
        }
        Ok(builder.open(&self.database_args.database)?)
    }
}

/// Prints that a client sent a wrong token.
fn report(denied: &DeniedClients) {
    let DeniedClients { peer, count } = denied;
    print_message(format_args!("{CAUTION}sheaf:{CAUTION:#} {} from {peer}", many(*count, "wrong token")));
}

/// Fails if TCP needs a token and there is none.
fn check_token(args: &Serve, token: Option<&str>) -> Result {
    let open = args.flatrpc.iter().find(|address| matches!(address, ServerAddress::Tcp(_)));
    match open {
        Some(open) if token.is_none() && !args.insecure => {
            let peers = if open.is_local() { "by every user of this machine" } else { "from other machines" };
            Err(Failure::Usage(format!(
                "{open} can be reached {peers}: set a token with --token-file FILE, or allow access without \
                 one with --insecure"
            )))
        }
        _ => Ok(()),
    }
}

pub(crate) fn run(args: &Serve) -> Result {
    let token = read_token(args.token_file.as_deref())?; // read first: a failure creates nothing
    check_token(args, token.as_deref())?;
    let refused = |error: std::io::Error| Failure::Refused(error.to_string());
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(refused)?;
    let db = args.open()?;
    let mut limits = ServerLimits::default();
    limits.workers = args.workers.unwrap_or(limits.workers);
    limits.bind_workers = args.bind_workers;
    limits.idle_timeout = args.idle_timeout.map(|seconds| Duration::from_secs(seconds.get()));
    let mut builder = ServerBuilder::default().limits(limits).insecure(args.insecure).on_denied(report);
    for address in &args.flatrpc {
        builder = builder.listen(address.clone());
    }
    if let Some(token) = &token {
        builder = builder.token(token);
    }
    let server = builder.start(&db).map_err(refused)?;
    let mut out = stdout();
    for address in server.addresses() {
        writeln!(out, "serving {} at {address}", args.database_args.database.display())?;
    }
    out.flush()?;
    drop(out);
    let cards = rdma::devices();
    if !cards.is_empty() {
        let cards = cards.join(", ");
        print_message(format_args!("{HINT}RDMA cards ({cards}) are not supported and not used{HINT:#}"));
    }
    let _ = signals.forever().next();
    server.close().map_err(refused)?;
    Ok(db.close()?)
}
