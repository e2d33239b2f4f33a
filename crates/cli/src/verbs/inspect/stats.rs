//! # `stats`: statistics of a database

use std::io::Write;
use std::path::Path;

use serde_json::{Value as Json, json};
use sheaf::{
    BlobStats, CacheStats, DatabaseOverview, DatabaseStats, DescriptorStats, ExpiryStats, KeyspaceOverview,
    LogStats, StallKind, StallStats, TransactionStats,
};

use crate::args::ReportArgs;
use crate::failure::Result;
use crate::output::{HEADING, NAME, on_stdout, stdout, time};
use crate::text_format::{count, many, size};
use crate::verbs::keyspaces::describe;
use crate::workload;

pub(crate) fn run(args: &ReportArgs) -> Result {
    let all = args.database_args.overview()?;
    let mut out = stdout();
    if args.json {
        writeln!(out, "{}", as_json(&all))?;
    } else {
        print(&mut out, &args.database_args.database, &all)?;
    }
    Ok(out.flush()?)
}

fn print(out: &mut impl Write, path: &Path, all: &DatabaseOverview) -> Result {
    let stats = &all.stats;
    let (heading, name) = (on_stdout(HEADING), on_stdout(NAME));
    writeln!(out, "{heading}{}{heading:#}", path.display())?;
    let closed = if stats.opening.is_clean { "after a clean close" } else { "after an unclean end" };
    let opening = &stats.opening;
    writeln!(
        out,
        "  opened in {} {closed}: {} read, {} replayed, {} of unfinished commits discarded",
        time(opening.duration),
        many(opening.frames_scanned, "frame"),
        many(opening.records_replayed, "record"),
        size(opening.discarded_bytes)
    )?;
    writeln!(
        out,
        "  newest commit {}, durable up to {}",
        count(stats.visible_seq),
        count(stats.durable_seq)
    )?;
    writeln!(
        out,
        "  memory {} of {} (index {}, versions {}, buffers {}, caches {})",
        size(stats.memory.total()),
        size(stats.memory.budget),
        size(stats.memory.index),
        size(stats.memory.versions),
        size(stats.memory.buffers),
        size(stats.memory.cache)
    )?;
    if stats.memory.is_exceeded() {
        writeln!(out, "  memory that cannot be freed exceeds the budget: raise it with --memory")?;
    }
    let DescriptorStats { limit, in_use, reopened, .. } = stats.descriptors;
    if limit > 0 {
        let again =
            if reopened > 0 { format!(", {} files reopened", count(reopened)) } else { String::new() };
        writeln!(out, "  {in_use} of {limit} file descriptors in use{again}")?;
    }
    if stats.pinned_states > 0 {
        let (states, held) = (many(stats.pinned_states, "pinned state"), size(stats.pinned_bytes));
        writeln!(out, "  {states} of backups and readers: {held} cannot be reclaimed")?;
    }
    if stats.changes.is_retaining {
        let (segments, bytes) =
            (many(stats.changes.retained_segments, "log file"), size(stats.changes.retained_bytes));
        let cursors = many(stats.changes.cursors, "cursor");
        writeln!(
            out,
            "  changes after commit {} retained: {segments}, {bytes}, {cursors}",
            stats.changes.oldest_seq
        )?;
    }
    let TransactionStats { committed, conflicts, .. } = stats.transactions;
    if committed + conflicts > 0 {
        writeln!(out, "  {}, {}", many(committed, "transaction"), many(conflicts, "conflict"))?;
    }
    let ExpiryStats { removed_pairs, dropped_hints, next_due_ms, lag, .. } = stats.expiry;
    if removed_pairs + dropped_hints > 0 || next_due_ms.is_some() {
        let due = if lag.is_zero() { String::new() } else { format!(", late by {}", time(lag)) };
        writeln!(out, "  {} expired and removed{due}", many(removed_pairs, "pair"))?;
    }
    print_stalls(out, stats)?;
    print_keyspaces(out, &all.keyspaces)?;
    writeln!(out, "{heading}logs{heading:#}")?;
    for log in &stats.logs {
        let (segments, disk, live) =
            (many(log.segments, "segment"), size(log.disk_bytes), size(log.live_bytes));
        write!(out, "  {name}{:<20}{name:#} {segments:>16}  {disk:>8} on disk", log_name(log))?;
        writeln!(out, "  {live:>8} live{}", if log.damaged_segments > 0 { "  damaged" } else { "" })?;
    }
    let BlobStats { chunks, slots, used_bytes, free_bytes, files, .. } = stats.blobs;
    if chunks + files > 0 {
        writeln!(out, "{heading}large values outside the logs{heading:#}")?;
        write!(out, "  {} in {}", count(slots), many(chunks, "chunk"))?;
        write!(out, " ({} used, {} free)", size(used_bytes), size(free_bytes))?;
        writeln!(out, ", {} in separate files", count(files))?;
    }
    Ok(())
}

/// Prints the keyspaces, each with its workload.
fn print_keyspaces(out: &mut impl Write, keyspaces: &[KeyspaceOverview]) -> Result {
    let (heading, name) = (on_stdout(HEADING), on_stdout(NAME));
    writeln!(out, "{heading}keyspaces{heading:#}")?;
    for KeyspaceOverview { info, stats, workload: load, .. } in keyspaces {
        let (label, engine) = (info.name.escape_debug().to_string(), info.engine);
        if let Some(damage) = &info.damage {
            writeln!(out, "  {name}{label:<20}{name:#} {engine:<8} damaged: {damage}")?;
            continue;
        }
        let (keys, index) = (many(stats.keys, "key"), size(stats.index_bytes));
        write!(out, "  {name}{label:<20}{name:#} {engine:<8} {keys:>16}   index {index}")?;
        if !info.options.is_empty() {
            write!(out, "   {}", info.options)?;
        }
        writeln!(out)?;
        if stats.encoded_bytes > 0 {
            let (raw, stored) = (stats.encoded_raw_bytes, stats.encoded_bytes);
            let ratio = raw as f64 / stored as f64;
            writeln!(out, "    values written: {} stored in {}, ratio {ratio:.2}", size(raw), size(stored))?;
        }
        for line in workload::lines(load) {
            writeln!(out, "    {line}")?;
        }
    }
    Ok(())
}

/// Returns the name of a log in the terms of the documentation.
pub(crate) fn log_name(log: &LogStats) -> &'static str {
    if log.name == "flat" { "store log" } else { log.name }
}

/// Prints the stalls of writers since the database was opened, if there were any.
fn print_stalls(out: &mut impl Write, stats: &DatabaseStats) -> Result {
    if stats.stalls.iter().any(|stall| stall.count > 0) {
        let heading = on_stdout(HEADING);
        writeln!(out, "{heading}stalls of writers{heading:#}")?;
    }
    let name = on_stdout(NAME);
    for stall in stats.stalls.iter().filter(|stall| stall.count > 0) {
        let (count, total, longest) = (many(stall.count, "time"), time(stall.total), time(stall.longest));
        writeln!(
            out,
            "  {name}{:<20}{name:#} {count:>16}  {total:>8} in total, {longest} at most",
            cause(stall.kind)
        )?;
    }
    Ok(())
}

/// Returns the cause of a stall. The JSON has the name of the kind.
fn cause(kind: StallKind) -> &'static str {
    match kind {
        StallKind::Throttle => "throttling",
        StallKind::DiskSpace => "disk full",
        StallKind::Preallocation => "preallocation",
        StallKind::Sync => "slow sync",
        other => other.name(),
    }
}

/// Returns all statistics as JSON.
pub(crate) fn as_json(all: &DatabaseOverview) -> Json {
    let stats = &all.stats;
    let keyspaces: Vec<Json> = all.keyspaces.iter().map(describe).collect();
    json!({
        "visible": stats.visible_seq,
        "durable": stats.durable_seq,
        "unsynced_age_seconds": stats.unsynced_age.as_secs_f64(),
        "sync_rounds": stats.sync_rounds,
        "sync_waits": stats.sync_waits,
        "views": stats.views,
        "oldest_view": stats.oldest_view_seq,
        "pinned_states": stats.pinned_states,
        "pinned_bytes": stats.pinned_bytes,
        "throttles": stats.throttles,
        "transactions": {
            "committed": stats.transactions.committed,
            "conflicts": stats.transactions.conflicts,
            "range_readers": stats.transactions.range_readers,
            "recent_key_bytes": stats.transactions.recent_key_bytes,
        },
        "expiry": {
            "removed_pairs": stats.expiry.removed_pairs,
            "dropped_hints": stats.expiry.dropped_hints,
            "next_due_ms": stats.expiry.next_due_ms,
            "lag_seconds": stats.expiry.lag.as_secs_f64(),
        },
        "changes": {
            "is_retaining": stats.changes.is_retaining,
            "oldest": stats.changes.oldest_seq,
            "retained_segments": stats.changes.retained_segments,
            "retained_bytes": stats.changes.retained_bytes,
            "retained_blobs": stats.changes.retained_blobs,
            "trimmed_segments": stats.changes.trimmed_segments,
            "cursors": stats.changes.cursors,
            "slowest_cursor": stats.changes.slowest_cursor_seq,
        },
        "stalls": stats.stalls.iter().map(stall_as_json).collect::<Vec<_>>(),
        "checkpoints": stats.checkpoints,
        "checkpoint_bytes": stats.checkpoint_bytes,
        "blob_bytes_written": stats.blob_bytes_written,
        "blobs": {
            "chunks": stats.blobs.chunks,
            "slots": stats.blobs.slots,
            "used_bytes": stats.blobs.used_bytes,
            "free_bytes": stats.blobs.free_bytes,
            "files": stats.blobs.files,
        },
        "poisoned": stats.poisoned.map(|cause| cause.name()),
        "ipc": stats.has_ipc,
        "memory": {
            "budget": stats.memory.budget,
            "index": stats.memory.index,
            "versions": stats.memory.versions,
            "buffers": stats.memory.buffers,
            "cache": stats.memory.cache,
            "is_exceeded": stats.memory.is_exceeded(),
        },
        "descriptors": {
            "limit": stats.descriptors.limit,
            "in_use": stats.descriptors.in_use,
            "reopened": stats.descriptors.reopened,
        },
        "caches": stats.caches.iter().map(cache_as_json).collect::<Vec<_>>(),
        "opening": {
            "clean": stats.opening.is_clean,
            "seconds": stats.opening.duration.as_secs_f64(),
            "frames_scanned": stats.opening.frames_scanned,
            "records_replayed": stats.opening.records_replayed,
            "bytes_cut": stats.opening.discarded_bytes,
        },
        "logs": stats.logs.iter().map(log_as_json).collect::<Vec<_>>(),
        "keyspaces": keyspaces,
    })
}

fn cache_as_json(cache: &CacheStats) -> Json {
    json!({ "keyspace": cache.keyspace, "bytes": cache.bytes, "share": cache.limit_bytes })
}

fn stall_as_json(stall: &StallStats) -> Json {
    json!({
        "kind": stall.kind.name(),
        "count": stall.count,
        "total_seconds": stall.total.as_secs_f64(),
        "longest_seconds": stall.longest.as_secs_f64(),
    })
}

fn log_as_json(log: &LogStats) -> Json {
    json!({
        "name": log.name,
        "segments": log.segments,
        "disk_bytes": log.disk_bytes,
        "live_bytes": log.live_bytes,
        "appended": log.appended_bytes,
        "moved": log.relocated_bytes,
        "freed": log.freed_segments,
        "damaged": log.damaged_segments,
    })
}
