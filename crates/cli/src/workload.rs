//! # Usage: workload statistics of a keyspace, as text and as JSON
//!
//! Formats `sheaf::WorkloadStats` with the usual names of the field. `stats` and `advise` print
//! them.

use serde_json::{Value as Json, json};
use sheaf::{Latency, LengthStats, WorkloadStats};

use crate::output::time;
use crate::text_format::{count, many, size};

/// Returns all workload statistics as JSON.
pub(crate) fn as_json(load: &WorkloadStats) -> Json {
    json!({
        "samples": load.samples,
        "operations": load.operations(),
        "open_seconds": load.seconds,
        "operations_per_second": load.rate(),
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
        "new_share": load.new_share,
        "durable_share": load.durable_share,
        "sequential_share": load.sequential_share,
        "bytes_written": load.bytes_written,
        "key_bytes": spread(&load.key_bytes),
        "value_bytes": spread(&load.value_bytes),
        "scan_pairs": spread(&load.scan_pairs),
        "skew": load.skew.map(|skew| json!({
            "zipf": skew.zipf,
            "keys": skew.keys,
            "hottest_thousandth": skew.hottest[0],
            "hottest_hundredth": skew.hottest[1],
            "hottest_tenth": skew.hottest[2],
        })),
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

fn spread(spread: &LengthStats) -> Json {
    json!({ "mean": spread.mean, "p50": spread.p50, "p99": spread.p99 })
}

fn latency(latency: &Latency) -> Json {
    let ns = |took: std::time::Duration| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    json!({
        "samples": latency.samples,
        "p50": ns(latency.p50),
        "p99": ns(latency.p99),
        "longest": ns(latency.longest),
    })
}

/// Returns a few lines of text; none if no operation was recorded.
pub(crate) fn lines(load: &WorkloadStats) -> Vec<String> {
    if load.samples == 0 {
        return Vec::new();
    }
    let mut lines = vec![format!("about {}{}: {}", count(load.operations()), rate(load), mix(load))];
    let mut shape = Vec::new();
    if load.key_bytes.mean > 0.0 {
        shape.push(format!("keys of {}", bytes(&load.key_bytes)));
    }
    if load.value_bytes.mean > 0.0 {
        shape.push(format!("values of {}", bytes(&load.value_bytes)));
    }
    if load.all_scans() > 0 {
        shape.push(format!(
            "scans of {:.0} pairs (p99 {})",
            load.scan_pairs.mean,
            count(load.scan_pairs.p99)
        ));
    }
    if let Some(skew) = load.skew {
        shape.push(format!(
            "Zipf {:.2}: {:.0} % of accesses to the hottest 1 % of keys",
            skew.zipf,
            skew.hottest[1] * 100.0
        ));
    }
    if !shape.is_empty() {
        lines.push(shape.join(", "));
    }
    let timed = [
        ("reads", &load.read_latency),
        ("writes", &load.write_latency),
        ("durable writes", &load.durable_write_latency),
        ("updates", &load.update_latency),
        ("batches", &load.batch_latency),
        ("seeks", &load.seek_latency),
    ];
    let shown = |(operation, latency): &(&str, &Latency)| {
        format!("{operation} {} (p99 {})", short(latency.p50), short(latency.p99))
    };
    let timed: Vec<String> = timed.iter().filter(|(_, l)| l.samples > 0).map(shown).collect();
    if !timed.is_empty() {
        lines.push(timed.join(", "));
    }
    if load.stalls > 0 {
        let longest = time(load.longest_stall);
        lines.push(format!(
            "writers stalled {}, {} in total, at most {longest}",
            many(load.stalls, "time"),
            time(load.stall_time)
        ));
    }
    lines
}

/// Formats a time that may be below a microsecond.
pub(crate) fn short(took: std::time::Duration) -> String {
    let us = took.as_secs_f64() * 1e6;
    if us < 10.0 { format!("{us:.1} µs") } else { time(took) }
}

fn rate(load: &WorkloadStats) -> String {
    match load.rate() {
        rate if rate >= 1.0 => format!(" operations ({rate:.0} a second while open)"),
        _ => " operations".to_owned(),
    }
}

fn bytes(spread: &LengthStats) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a mean of lengths")]
    let mean = spread.mean.round() as u64;
    format!("{} (p99 {})", size(mean), size(spread.p99))
}

/// Returns the shares of the kinds of operations, the largest first.
pub(crate) fn mix(load: &WorkloadStats) -> String {
    let mut kinds = [
        (load.gets_found, "gets"),
        (load.gets_missing, "gets of missing keys"),
        (load.contains, "contains"),
        (load.inserts + load.batch_inserts, "inserts"),
        (load.removes + load.batch_removes, "removals"),
        (load.updates, "updates"),
        (load.scans, "scans"),
        (load.scans_reverse, "reverse scans"),
        (load.stream_reads, "stream reads"),
        (load.stream_writes, "stream writes"),
    ];
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.0));
    let all = load.operations().max(1) as f64;
    let shown = kinds.iter().filter(|kind| kind.0 > 0);
    let shown: Vec<String> =
        shown.map(|(count, name)| format!("{:.0} % {name}", *count as f64 * 100.0 / all)).collect();
    let durable = match load.durable_share {
        share if share >= 0.005 => format!(" ({:.0} % of the commits durable)", share * 100.0),
        _ => String::new(),
    };
    shown.join(", ") + &durable
}
