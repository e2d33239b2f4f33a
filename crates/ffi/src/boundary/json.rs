//! # JSON: statistics and reports as text
//!
//! Statistics get new fields between versions. A JSON object can grow, a C struct cannot. The names
//! are those of `sheaf stats --json`, where that command has the figure.

use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value as Json, json};
use sheaf::{
    BackupReport, BulkLoadReport, CompactionReport, ConversionEstimate, ConversionReport, DatabaseOverview,
    DatabaseStats, EngineOptions, EngineStats, KeyspaceInfo, KeyspaceOverview, KeyspaceRepair, Latency,
    LengthStats, OptionSpec, RepairReport, VerifyReport, WorkloadStats,
};

use crate::boundary::Outcome;
use crate::boundary::memory::sheaf_value;

/// Returns a value with the text of `json`.
pub(crate) fn handle(json: &Json) -> *mut sheaf_value {
    sheaf_value::handle(json.to_string())
}

/// Writes a report to `place`, unless that is NULL. After an error the place is NULL.
pub(crate) fn write_report(
    place: Option<&mut MaybeUninit<*mut sheaf_value>>,
    report: sheaf::Result<Json>,
) -> Outcome<()> {
    let place = place.map(|place| place.write(std::ptr::null_mut()));
    let report = report?;
    if let Some(place) = place {
        *place = handle(&report);
    }
    Ok(())
}

/// Returns a path as text; bytes that are not UTF-8 are replaced.
fn path(path: &Path) -> Json {
    path.to_string_lossy().into_owned().into()
}

fn seconds(duration: Duration) -> Json {
    duration.as_secs_f64().into()
}

pub(crate) fn engine_options(options: &EngineOptions) -> Json {
    options.iter().map(|(name, value)| (name.to_owned(), Json::from(value))).collect()
}

pub(crate) fn option_spec(spec: &OptionSpec) -> Json {
    json!({
        "name": spec.name,
        "min": spec.min,
        "max": spec.max,
        "default": spec.default,
        "help": spec.help,
    })
}

pub(crate) fn keyspace_info(info: &KeyspaceInfo) -> Json {
    json!({
        "name": info.name,
        "engine": info.engine,
        "options": engine_options(&info.options),
        "damage": info.damage,
    })
}

pub(crate) fn engine_stats(stats: &EngineStats) -> Json {
    json!({
        "keys": stats.keys,
        "index_bytes": stats.index_bytes,
        "pinned_versions": stats.pinned_versions,
        "encoded_raw_bytes": stats.encoded_raw_bytes,
        "encoded_bytes": stats.encoded_bytes,
    })
}

pub(crate) fn counters(counters: &[(&'static str, u64)]) -> Json {
    counters.iter().map(|(name, count)| ((*name).to_owned(), Json::from(*count))).collect()
}

fn lengths(stats: &LengthStats) -> Json {
    json!({ "mean": stats.mean, "p50": stats.p50, "p99": stats.p99 })
}

fn latency(latency: &Latency) -> Json {
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    json!({
        "samples": latency.samples,
        "p50": ns(latency.p50),
        "p99": ns(latency.p99),
        "longest": ns(latency.longest),
    })
}

pub(crate) fn workload(load: &WorkloadStats) -> Json {
    json!({
        "samples": load.samples,
        "operations": load.operations(),
        "open_seconds": load.seconds,
        "gets_found": load.gets_found,
        "gets_missing": load.gets_missing,
        "contains": load.contains,
        "inserts": load.inserts,
        "removes": load.removes,
        "updates": load.updates,
        "batches": load.batches,
        "batch_inserts": load.batch_inserts,
        "batch_removes": load.batch_removes,
        "scans": load.scans,
        "scans_reverse": load.scans_reverse,
        "pairs_scanned": load.pairs_scanned,
        "stream_reads": load.stream_reads,
        "stream_writes": load.stream_writes,
        "bytes_written": load.bytes_written,
        "key_bytes": lengths(&load.key_bytes),
        "value_bytes": lengths(&load.value_bytes),
        "scan_pairs": lengths(&load.scan_pairs),
        "latency_ns": {
            "read": latency(&load.read_latency),
            "write": latency(&load.write_latency),
            "durable_write": latency(&load.durable_write_latency),
            "update": latency(&load.update_latency),
            "batch": latency(&load.batch_latency),
            "seek": latency(&load.seek_latency),
        },
        "stalls": load.stalls,
        "stalled_seconds": load.stall_time.as_secs_f64(),
        "longest_stall_seconds": load.longest_stall.as_secs_f64(),
    })
}

pub(crate) fn database_stats(stats: &DatabaseStats) -> Json {
    let mut all = json!({
        "visible": stats.visible_seq,
        "durable": stats.durable_seq,
        "unsynced_age_seconds": seconds(stats.unsynced_age),
        "sync_rounds": stats.sync_rounds,
        "sync_waits": stats.sync_waits,
        "views": stats.views,
        "oldest_view": stats.oldest_view_seq,
        "pinned_states": stats.pinned_states,
        "pinned_bytes": stats.pinned_bytes,
        "throttles": stats.throttles,
        "checkpoints": stats.checkpoints,
        "checkpoint_bytes": stats.checkpoint_bytes,
        "blob_bytes_written": stats.blob_bytes_written,
        "poisoned": stats.poisoned.map(|cause| cause.name()),
        "ipc": stats.has_ipc,
    });
    all["memory"] = json!({
        "budget": stats.memory.budget,
        "index": stats.memory.index,
        "versions": stats.memory.versions,
        "buffers": stats.memory.buffers,
        "cache": stats.memory.cache,
        "is_exceeded": stats.memory.is_exceeded(),
    });
    all["blobs"] = json!({
        "chunks": stats.blobs.chunks,
        "slots": stats.blobs.slots,
        "used_bytes": stats.blobs.used_bytes,
        "free_bytes": stats.blobs.free_bytes,
        "files": stats.blobs.files,
    });
    all["descriptors"] = json!({
        "limit": stats.descriptors.limit,
        "in_use": stats.descriptors.in_use,
        "reopened": stats.descriptors.reopened,
    });
    all["opening"] = json!({
        "clean": stats.opening.is_clean,
        "seconds": seconds(stats.opening.duration),
        "frames_scanned": stats.opening.frames_scanned,
        "records_replayed": stats.opening.records_replayed,
        "bytes_cut": stats.opening.discarded_bytes,
    });
    all["expiry"] = json!({
        "removed_pairs": stats.expiry.removed_pairs,
        "dropped_hints": stats.expiry.dropped_hints,
        "next_due_ms": stats.expiry.next_due_ms,
        "lag_seconds": seconds(stats.expiry.lag),
    });
    all["changes"] = json!({
        "is_retaining": stats.changes.is_retaining,
        "oldest": stats.changes.oldest_seq,
        "retained_segments": stats.changes.retained_segments,
        "retained_bytes": stats.changes.retained_bytes,
        "retained_blobs": stats.changes.retained_blobs,
        "trimmed_segments": stats.changes.trimmed_segments,
        "cursors": stats.changes.cursors,
        "slowest_cursor": stats.changes.slowest_cursor_seq,
    });
    all["stalls"] = stats.stalls.iter().map(stall_stats).collect();
    all["caches"] = stats.caches.iter().map(cache_stats).collect();
    all["logs"] = stats.logs.iter().map(log_stats).collect();
    all
}

fn stall_stats(stall: &sheaf::StallStats) -> Json {
    json!({
        "kind": stall.kind.name(),
        "count": stall.count,
        "total_seconds": seconds(stall.total),
        "longest_seconds": seconds(stall.longest),
    })
}

fn cache_stats(cache: &sheaf::CacheStats) -> Json {
    json!({ "keyspace": cache.keyspace, "bytes": cache.bytes, "share": cache.limit_bytes })
}

fn log_stats(log: &sheaf::LogStats) -> Json {
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

pub(crate) fn overview(overview: &DatabaseOverview) -> Json {
    let mut all = database_stats(&overview.stats);
    all["keyspaces"] = overview.keyspaces.iter().map(keyspace_overview).collect();
    all
}

fn keyspace_overview(keyspace: &KeyspaceOverview) -> Json {
    let mut all = keyspace_info(&keyspace.info);
    all["ordered"] = keyspace.ordered.into();
    all["stats"] = engine_stats(&keyspace.stats);
    all["counters"] = counters(&keyspace.counters);
    all["workload"] = workload(&keyspace.workload);
    all
}

pub(crate) fn verification(report: &VerifyReport) -> Json {
    json!({
        "pairs": report.pairs,
        "frames": report.frames,
        "bytes": report.bytes,
        "findings": report.findings,
        "files": report.files.iter().map(|file| path(file)).collect::<Json>(),
    })
}

pub(crate) fn backup(report: &BackupReport) -> Json {
    json!({
        "seq": report.seq,
        "files": report.files,
        "copied_bytes": report.copied_bytes,
        "linked_bytes": report.linked_bytes,
    })
}

pub(crate) fn bulk_load(report: &BulkLoadReport) -> Json {
    json!({ "pairs": report.pairs, "bytes": report.bytes, "is_direct": report.is_direct })
}

pub(crate) fn compaction(report: &CompactionReport) -> Json {
    json!({
        "rewritten_pairs": report.rewritten_pairs,
        "rewritten_bytes": report.rewritten_bytes,
        "skipped_pairs": report.skipped_pairs,
    })
}

pub(crate) fn conversion(report: &ConversionReport) -> Json {
    json!({
        "copied_pairs": report.copied_pairs,
        "bytes": report.bytes,
        "passes": report.passes,
        "is_direct": report.is_direct,
    })
}

pub(crate) fn conversion_estimate(estimate: &ConversionEstimate) -> Json {
    json!({
        "pairs": estimate.pairs,
        "data_bytes": estimate.data_bytes,
        "required_bytes": estimate.required_bytes,
        "free_bytes": estimate.free_bytes,
    })
}

pub(crate) fn repair(report: &RepairReport) -> Json {
    let damaged_files = report.damaged_files.iter().map(|file| {
        json!({
            "path": path(&file.path),
            "start": file.start,
            "end": file.end,
            "description": file.description,
        })
    });
    json!({
        "is_complete": report.is_complete(),
        "seq": report.seq,
        "damage_count": report.damage_count,
        "damaged_files": damaged_files.collect::<Json>(),
        "missing_commits": report.missing_commits,
        "is_root_unreadable": report.is_root_unreadable,
        "is_catalog_doubtful": report.is_catalog_doubtful,
        "is_incomplete": report.is_incomplete,
        "keyspaces": report.keyspaces.iter().map(keyspace_repair).collect::<Json>(),
    })
}

fn keyspace_repair(keyspace: &KeyspaceRepair) -> Json {
    json!({
        "name": keyspace.name,
        "engine": keyspace.engine,
        "is_complete": keyspace.is_complete(),
        "certain": keyspace.certain,
        "doubtful": keyspace.doubtful,
        "lost": keyspace.lost,
        "lost_without_key": keyspace.lost_without_key,
        "has_more_lost": keyspace.has_more_lost,
        "index_error": keyspace.index_error,
    })
}
