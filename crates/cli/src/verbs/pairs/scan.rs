//! # `scan`: prints pairs, one per line

use std::ffi::OsString;
use std::io::Write;
use std::ops::Bound;

use clap::Args;
use serde_json::json;
use sheaf::{Iter, Keyspace, RangeEstimate};

use crate::args::KeyspaceArgs;
use crate::failure::Result;
use crate::open::decode_argument;
use crate::output::{NAME, on_stdout, stdout};
use crate::text_format::{self, escape, hex, many, parse_count};

/// Arguments of `scan`.
#[derive(Debug, Args)]
pub(crate) struct Scan {
    #[command(flatten)]
    pub(crate) target: KeyspaceArgs,
    /// First key of the range
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// End of the range, exclusive
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// Prefix of the keys
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<OsString>,
    /// Maximum number of pairs
    #[arg(long, value_name = "COUNT", value_parser = parse_count, allow_negative_numbers = true)]
    pub(crate) limit: Option<usize>,
    /// Descend from the highest key
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Read and print keys and values as hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Print a JSON object per line
    #[arg(long, conflicts_with = "hex")]
    pub(crate) json: bool,
    /// Print only the approximate number and size of the pairs
    #[arg(long, conflicts_with_all = ["limit", "reverse"])]
    pub(crate) estimate: bool,
}

pub(crate) fn run(args: &Scan) -> Result {
    let limits = ScanRange::of(args)?;
    let (_db, keyspace) = args.target.open_read_only()?;
    if args.estimate {
        return print_estimate(limits.estimate(&keyspace)?, args.json);
    }
    let pairs = limits.pairs(&keyspace)?;
    let limit = args.limit.unwrap_or(usize::MAX);
    if args.reverse { print(pairs.rev().take(limit), args) } else { print(pairs.take(limit), args) }
}

enum ScanRange {
    All,
    Prefix(Vec<u8>),
    Range(Bound<Vec<u8>>, Bound<Vec<u8>>),
}

impl ScanRange {
    fn of(args: &Scan) -> Result<ScanRange> {
        if let Some(prefix) = &args.prefix {
            return Ok(ScanRange::Prefix(decode_argument(prefix, args.hex)?));
        }
        let from = args.from.as_ref().map(|key| decode_argument(key, args.hex)).transpose()?;
        let to = args.to.as_ref().map(|key| decode_argument(key, args.hex)).transpose()?;
        if from.is_none() && to.is_none() {
            return Ok(ScanRange::All);
        }
        let low = from.map_or(Bound::Unbounded, Bound::Included);
        Ok(ScanRange::Range(low, to.map_or(Bound::Unbounded, Bound::Excluded)))
    }

    fn pairs(self, keyspace: &Keyspace) -> sheaf::Result<Iter> {
        match self {
            ScanRange::All => keyspace.iter(),
            ScanRange::Prefix(prefix) => keyspace.prefix(prefix),
            ScanRange::Range(low, high) => keyspace.range((low, high)),
        }
    }

    fn estimate(self, keyspace: &Keyspace) -> sheaf::Result<RangeEstimate> {
        match self {
            ScanRange::All => keyspace.estimate_range::<&[u8]>(..),
            ScanRange::Prefix(prefix) => keyspace.estimate_prefix(prefix),
            ScanRange::Range(low, high) => keyspace.estimate_range((low, high)),
        }
    }
}

fn print_estimate(estimate: RangeEstimate, is_json: bool) -> Result {
    let RangeEstimate { pairs, bytes, .. } = estimate;
    let mut out = stdout();
    if is_json {
        writeln!(out, "{}", json!({ "pairs": pairs, "bytes": bytes }))?;
    } else {
        writeln!(out, "about {} of {} bytes", many(pairs, "pair"), bytes)?;
    }
    Ok(out.flush()?)
}

fn print(pairs: impl Iterator<Item = sheaf::Result<(sheaf::Value, sheaf::Value)>>, args: &Scan) -> Result {
    let name = on_stdout(NAME);
    let mut out = stdout();
    let mut line = String::new();
    for pair in pairs {
        let (key, value) = pair?;
        if args.json {
            writeln!(
                out,
                "{}",
                json!({ "key": text_format::json(&key), "value": text_format::json(&value) })
            )?;
        } else if args.hex {
            writeln!(out, "{name}{}{name:#}\t{}", hex(&key), hex(&value))?;
        } else {
            line.clear();
            escape(&key, &mut line);
            write!(out, "{name}{line}{name:#}\t")?;
            line.clear();
            escape(&value, &mut line);
            writeln!(out, "{line}")?;
        }
    }
    Ok(out.flush()?)
}
