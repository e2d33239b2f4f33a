//! # `changes`: prints the change feed, one change per line

use std::ffi::OsString;
use std::io::Write;
use std::ops::ControlFlow;
use std::time::UNIX_EPOCH;

use clap::Args;
use serde_json::{Value as Json, json};
use sheaf::{
    AttachedOwner, Change, ChangeKind, ChangePosition, ChangeQuery, Changes, CommittedChanges, Database,
    OpenOutcome,
};

use crate::args::DatabaseArgs;
use crate::failure::{Failure, Result};
use crate::open::decode_argument;
use crate::output::{NAME, on_stdout, stdout};
use crate::text_format::{self, escape, hex, parse_count};

/// Arguments of `changes`.
#[derive(Debug, Args)]
pub(crate) struct ChangesArgs {
    #[command(flatten)]
    pub(crate) database_args: DatabaseArgs,
    /// Position to start at, from the end of an earlier line `commit`; default: the oldest
    #[arg(long, value_name = "POSITION")]
    pub(crate) from: Option<ChangePosition>,
    /// Keyspace; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) keyspace: Vec<String>,
    /// Prefix of the keys; may be repeated
    #[arg(long, value_name = "KEY")]
    pub(crate) prefix: Vec<OsString>,
    /// Maximum number of commits
    #[arg(long, value_name = "COUNT", value_parser = parse_count, allow_negative_numbers = true)]
    pub(crate) limit: Option<usize>,
    /// Wait for further commits, as long as the process that has the database open runs
    #[arg(long)]
    pub(crate) follow: bool,
    /// Read and print keys and values as hexadecimal digits
    #[arg(long)]
    pub(crate) hex: bool,
    /// Print a JSON object per commit
    #[arg(long, conflicts_with = "hex")]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &ChangesArgs) -> Result {
    let prefixes = args.prefix.iter().map(|prefix| decode_argument(prefix, args.hex));
    let prefixes = prefixes.collect::<Result<Vec<Vec<u8>>>>()?;
    match args.database_args.open_or_connect_read_only()? {
        OpenOutcome::Owner(owner) => print_from_owner(owner, &prefixes, args),
        OpenOutcome::Database(_) if args.follow => {
            let path = args.database_args.database.display();
            Err(Failure::Usage(format!("no process has {path} open, so there is nothing to follow")))
        }
        OpenOutcome::Database(db) => print_from_database(&db, &prefixes, args),
    }
}

fn print_from_database(db: &Database, prefixes: &[Vec<u8>], args: &ChangesArgs) -> Result {
    let from = match args.from {
        Some(from) => from,
        None => db.oldest_change()?,
    };
    let mut changes = args.keyspace.iter().fold(db.changes(from)?, Changes::keyspace);
    changes = prefixes.iter().fold(changes, Changes::prefix);
    let mut out = stdout();
    for _ in 0..args.limit.unwrap_or(usize::MAX) {
        let Some(commit) = changes.try_next()? else { break };
        print(&commit, args, &mut out)?;
    }
    Ok(out.flush()?)
}

/// Prints the changes that the process sends that has the database open.
fn print_from_owner(mut owner: AttachedOwner, prefixes: &[Vec<u8>], args: &ChangesArgs) -> Result {
    let mut left = args.limit.unwrap_or(usize::MAX);
    if left == 0 {
        return Ok(());
    }
    let mut query = args.from.into_iter().fold(ChangeQuery::default(), ChangeQuery::after);
    query = args.keyspace.iter().fold(query, ChangeQuery::keyspace);
    query = prefixes.iter().fold(query, ChangeQuery::prefix);
    if args.follow {
        query = query.follow();
    }
    let (mut out, mut printed) = (stdout(), Ok(()));
    owner.changes(&query, |commit| {
        printed = print(commit, args, &mut out).and_then(|()| match args.follow {
            true => Ok(out.flush()?), // a reader waits for each commit
            false => Ok(()),
        });
        left -= 1;
        if left == 0 || printed.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    printed?;
    Ok(out.flush()?)
}

/// Returns the fields of a change after its kind: the key, the value and the time of expiry in
/// milliseconds since 1970, if it has one; or the engine, or the new name.
fn fields(change: &Change) -> sheaf::Result<Vec<Vec<u8>>> {
    Ok(match &change.kind {
        ChangeKind::Put { key, value, expires_at } => {
            let mut fields = vec![key.clone(), value.read()?];
            let since = expires_at.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            fields.extend(since.map(|since| since.as_millis().to_string().into_bytes()));
            fields
        }
        ChangeKind::Removed { key } | ChangeKind::Expired { key } => vec![key.clone()],
        ChangeKind::RangeRemoved { start, end } => [start.clone()].into_iter().chain(end.clone()).collect(),
        ChangeKind::Renamed { to } => vec![to.as_bytes().to_vec()],
        kind => kind.engine().map(|(engine, _)| engine.as_bytes().to_vec()).into_iter().collect(),
    })
}

fn print(commit: &CommittedChanges, args: &ChangesArgs, out: &mut impl Write) -> Result {
    if args.json {
        return Ok(writeln!(out, "{}", describe(commit)?)?);
    }
    let name = on_stdout(NAME);
    let mut line = String::new();
    for change in &commit.changes {
        line.clear();
        escape(change.keyspace.as_bytes(), &mut line);
        let is_key = change.kind.key().is_some();
        for (at, field) in fields(change)?.into_iter().enumerate() {
            line.push('\t');
            match args.hex && is_key && at < 2 {
                true => line.push_str(&hex(&field)),
                false => escape(&field, &mut line),
            }
        }
        writeln!(out, "{name}{}{name:#}\t{line}", change.kind.name())?;
    }
    Ok(writeln!(out, "{name}commit{name:#}\t{}", commit.position)?)
}

/// Returns a commit as JSON.
fn describe(commit: &CommittedChanges) -> sheaf::Result<Json> {
    let describe = |change: &Change| -> sheaf::Result<Json> {
        let mut all = json!({ "keyspace": &*change.keyspace, "kind": change.kind.name() });
        let names: &[&str] = match &change.kind {
            kind if kind.engine().is_some() => &["engine"],
            ChangeKind::RangeRemoved { .. } => &["start", "end"],
            ChangeKind::Renamed { .. } => &["to"],
            _ => &["key", "value", "expires_at_ms"],
        };
        for (name, field) in names.iter().zip(fields(change)?) {
            all[*name] = text_format::json(&field);
        }
        Ok(all)
    };
    let changes = commit.changes.iter().map(describe).collect::<sheaf::Result<Vec<_>>>()?;
    Ok(json!({ "position": commit.position.to_string(), "changes": changes }))
}
