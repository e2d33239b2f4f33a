//! # Metrics: the statistics of a database for the crate `metrics`
//!
//! [`publish`] passes [`Database::stats`] to the recorder. Call it before each scrape, or every few
//! seconds. All have the label `database`, the path. Counters start at 0 with each opening.
//!
//! | name | kind | labels | meaning |
//! |---|---|---|---|
//! | `sheaf_commits` | counter | | number of the newest commit |
//! | `sheaf_commits_durable` | counter | | number of the newest durable commit |
//! | `sheaf_unsynced_age_seconds` | gauge | | age of the oldest unsynced commit |
//! | `sheaf_sync_rounds`, `sheaf_sync_waits` | counter | | syncs; commits that waited |
//! | `sheaf_stalls` | counter | `kind` | waits of writers |
//! | `sheaf_stalled_microseconds` | counter | `kind` | total time of the waits |
//! | `sheaf_longest_stall_seconds` | gauge | `kind` | longest wait |
//! | `sheaf_expired_pairs` | counter | | expired pairs that were removed |
//! | `sheaf_transactions`, `sheaf_transaction_conflicts` | counter | | commits; conflicts |
//! | `sheaf_views` | gauge | | live snapshots and iterators |
//! | `sheaf_oldest_view` | gauge | | commits since the oldest snapshot; 0 without any |
//! | `sheaf_held_bytes`, `sheaf_retained_change_bytes` | gauge | | pinned; kept for changes |
//! | `sheaf_checkpoints`, `sheaf_checkpoint_bytes` | counter | | checkpoints; bytes written |
//! | `sheaf_blob_bytes_written` | counter | | bytes of values written to blob files |
//! | `sheaf_memory_budget_bytes` | gauge | | memory budget |
//! | `sheaf_memory_bytes` | gauge | `part` | used: `index`, `versions`, `buffers`, `cache` |
//! | `sheaf_cache_bytes` | gauge | `keyspace` | each cache; empty label for blobs |
//! | `sheaf_log_disk_bytes`, `sheaf_log_live_bytes` | gauge | `log` | size of each log; live part |
//! | `sheaf_log_segments`, `sheaf_log_damaged_segments` | gauge | `log` | segments; damaged ones |
//! | `sheaf_log_appended_bytes` | counter | `log` | bytes appended by commits |
//! | `sheaf_log_moved_bytes` | counter | `log` | bytes moved by GC |
//! | `sheaf_log_freed_segments` | counter | `log` | segments freed |
//! | `sheaf_poisoned` | gauge | | 1 if the database refuses writes |

use metrics::{counter, gauge};

use crate::{Database, DatabaseStats, LogStats, StallStats};

/// Passes the present statistics of `db` to the installed recorder. Does nothing without a
/// recorder.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// sheaf::metrics::publish(&db);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn publish(db: &Database) {
    let (stats, path) = (db.stats(), db.path().display().to_string());
    publish_commits(&stats, &path);
    publish_memory(&stats, &path);
    stats.stalls.iter().for_each(|stall| publish_stall(stall, &path));
    stats.logs.iter().for_each(|log| of_log(log, &path));
}

#[allow(clippy::cast_precision_loss)] // for graphs
fn real(number: u64) -> f64 {
    number as f64
}

fn publish_commits(stats: &DatabaseStats, path: &str) {
    let database = || path.to_owned();
    counter!("sheaf_commits", "database" => database()).absolute(stats.visible_seq);
    counter!("sheaf_commits_durable", "database" => database()).absolute(stats.durable_seq);
    gauge!("sheaf_unsynced_age_seconds", "database" => database()).set(stats.unsynced_age.as_secs_f64());
    counter!("sheaf_sync_rounds", "database" => database()).absolute(stats.sync_rounds);
    counter!("sheaf_sync_waits", "database" => database()).absolute(stats.sync_waits);
    counter!("sheaf_expired_pairs", "database" => database()).absolute(stats.expiry.removed_pairs);
    let transactions = &stats.transactions;
    counter!("sheaf_transactions", "database" => database()).absolute(transactions.committed);
    counter!("sheaf_transaction_conflicts", "database" => database()).absolute(transactions.conflicts);
    gauge!("sheaf_views", "database" => database()).set(real(stats.views));
    let oldest = stats.oldest_view_seq.map_or(0, |oldest| stats.visible_seq.saturating_sub(oldest));
    gauge!("sheaf_oldest_view", "database" => database()).set(real(oldest));
    gauge!("sheaf_held_bytes", "database" => database()).set(real(stats.pinned_bytes));
    gauge!("sheaf_retained_change_bytes", "database" => database()).set(real(stats.changes.retained_bytes));
    counter!("sheaf_checkpoints", "database" => database()).absolute(stats.checkpoints);
    counter!("sheaf_checkpoint_bytes", "database" => database()).absolute(stats.checkpoint_bytes);
    counter!("sheaf_blob_bytes_written", "database" => database()).absolute(stats.blob_bytes_written);
    gauge!("sheaf_poisoned", "database" => database()).set(f64::from(u8::from(stats.poisoned.is_some())));
}

fn publish_memory(stats: &DatabaseStats, path: &str) {
    let (memory, database) = (&stats.memory, || path.to_owned());
    gauge!("sheaf_memory_budget_bytes", "database" => database()).set(real(memory.budget));
    let parts = [
        ("index", memory.index),
        ("versions", memory.versions),
        ("buffers", memory.buffers),
        ("cache", memory.cache),
    ];
    for (part, bytes) in parts {
        gauge!("sheaf_memory_bytes", "database" => database(), "part" => part).set(real(bytes));
    }
    for cache in &stats.caches {
        let keyspace = cache.keyspace.clone().unwrap_or_default();
        gauge!("sheaf_cache_bytes", "database" => database(), "keyspace" => keyspace).set(real(cache.bytes));
    }
}

fn publish_stall(stall: &StallStats, path: &str) {
    let (kind, database) = (stall.kind.name(), || path.to_owned());
    counter!("sheaf_stalls", "database" => database(), "kind" => kind).absolute(stall.count);
    let total = u64::try_from(stall.total.as_micros()).unwrap_or(u64::MAX);
    counter!("sheaf_stalled_microseconds", "database" => database(), "kind" => kind).absolute(total);
    gauge!("sheaf_longest_stall_seconds", "database" => database(), "kind" => kind)
        .set(stall.longest.as_secs_f64());
}

fn of_log(log: &LogStats, path: &str) {
    let (name, database) = (log.name, || path.to_owned());
    gauge!("sheaf_log_disk_bytes", "database" => database(), "log" => name).set(real(log.disk_bytes));
    gauge!("sheaf_log_live_bytes", "database" => database(), "log" => name).set(real(log.live_bytes));
    gauge!("sheaf_log_segments", "database" => database(), "log" => name).set(real(log.segments));
    gauge!("sheaf_log_damaged_segments", "database" => database(), "log" => name)
        .set(real(log.damaged_segments));
    counter!("sheaf_log_appended_bytes", "database" => database(), "log" => name)
        .absolute(log.appended_bytes);
    counter!("sheaf_log_moved_bytes", "database" => database(), "log" => name).absolute(log.relocated_bytes);
    counter!("sheaf_log_freed_segments", "database" => database(), "log" => name)
        .absolute(log.freed_segments);
}
