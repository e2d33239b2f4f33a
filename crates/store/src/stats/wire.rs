//! # Encoding of statistics, progress and results for another process
//!
//! docs/format/ipc.md lists the fields. The code is next to the types, so that the compiler
//! reports every missing field although the types are `non_exhaustive`.

use sheaf_platform::error::Damage;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::{
    BackupPhase, BackupProgress, BackupRate, BackupReport, BlobStats, CacheStats, ChangeStats,
    CompactionReport, ConversionEstimate, ConversionPhase, ConversionProgress, ConversionReport,
    DatabaseStats, ExpiryStats, KeyspaceInfo, LogStats, MemoryStats, OpeningStats, StallKind, StallStats,
    TransactionStats, VerifyReport,
};
use sheaf_log::options::EngineOptions;
use sheaf_log::types::KeyspaceId;
use sheaf_platform::codec::{FieldReader, FieldWriter};
use sheaf_platform::disk::DescriptorStats;
use sheaf_platform::wire_error::{ReadWire, WriteWire, decode_named, decode_poison_cause};

fn put_duration(w: &mut FieldWriter, time: Duration) {
    w.u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// Encodes everything except the caches. These have messages of their own, because their number
/// grows with the number of keyspaces.
pub fn encode_stats(stats: &DatabaseStats, w: &mut FieldWriter) {
    let DatabaseStats {
        visible_seq,
        durable_seq: durable,
        unsynced_age,
        sync_rounds,
        sync_waits,
        views,
        oldest_view_seq,
        pinned_states,
        pinned_bytes,
        throttles,
        transactions,
        expiry,
        stalls,
        checkpoints,
        checkpoint_bytes,
        blob_bytes_written,
        blobs,
        poisoned,
        memory,
        caches: _,
        logs,
        changes,
        opening,
        descriptors,
        has_ipc,
    } = stats;
    w.u64s([visible_seq, durable, sync_rounds, sync_waits, views, pinned_states]);
    w.u64s([pinned_bytes, throttles, checkpoints, checkpoint_bytes, blob_bytes_written]);
    let TransactionStats { committed, conflicts, range_readers, recent_key_bytes } = transactions;
    w.u64s([committed, conflicts, range_readers, recent_key_bytes]);
    let ExpiryStats { removed_pairs, dropped_hints, next_due_ms, lag } = expiry;
    w.u64s([removed_pairs, dropped_hints]);
    w.option(*next_due_ms, FieldWriter::u64);
    put_duration(w, *lag);
    put_duration(w, *unsynced_age);
    w.option(*oldest_view_seq, FieldWriter::u64);
    w.u64s(blobs.to_words().each_ref());
    w.list(stalls, |w, stall| {
        let StallStats { kind, count, total, longest } = stall;
        w.text(kind.name());
        w.u64(*count);
        put_duration(w, *total);
        put_duration(w, *longest);
    });
    w.option(*poisoned, |w, cause| w.text(cause.name()));
    let MemoryStats { budget, index, versions, buffers, cache } = memory;
    w.u64s([budget, index, versions, buffers, cache]);
    w.list(logs, |w, log| {
        let LogStats {
            name,
            segments,
            disk_bytes,
            live_bytes,
            appended_bytes: appended,
            relocated_bytes: moved,
            freed_segments: freed,
            damaged_segments: damaged,
        } = log;
        w.text(name);
        w.u64s([segments, disk_bytes, live_bytes, appended, moved, freed, damaged]);
    });
    let OpeningStats {
        is_clean: clean,
        duration: took,
        frames_scanned,
        records_replayed,
        discarded_bytes: bytes_cut,
    } = opening;
    w.flag(*clean);
    put_duration(w, *took);
    w.u64s([frames_scanned, records_replayed, bytes_cut]);
    w.flag(*has_ipc);
    w.u64s(descriptors.to_words().each_ref());
    w.u64s(changes.to_words().each_ref());
}

/// Decodes everything except the caches.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_stats(r: &mut FieldReader<'_>) -> Result<DatabaseStats, Damage> {
    Ok(DatabaseStats {
        visible_seq: r.u64()?,
        durable_seq: r.u64()?,
        sync_rounds: r.u64()?,
        sync_waits: r.u64()?,
        views: r.u64()?,
        pinned_states: r.u64()?,
        pinned_bytes: r.u64()?,
        throttles: r.u64()?,
        checkpoints: r.u64()?,
        checkpoint_bytes: r.u64()?,
        blob_bytes_written: r.u64()?,
        transactions: TransactionStats {
            committed: r.u64()?,
            conflicts: r.u64()?,
            range_readers: r.u64()?,
            recent_key_bytes: r.u64()?,
        },
        expiry: ExpiryStats {
            removed_pairs: r.u64()?,
            dropped_hints: r.u64()?,
            next_due_ms: r.option(FieldReader::u64)?,
            lag: Duration::from_nanos(r.u64()?),
        },
        unsynced_age: Duration::from_nanos(r.u64()?),
        oldest_view_seq: r.option(FieldReader::u64)?,
        blobs: BlobStats::from_words([r.u64()?, r.u64()?, r.u64()?, r.u64()?, r.u64()?]),
        stalls: r.list(decode_stall)?.into_iter().flatten().collect(),
        poisoned: r.option(decode_poison_cause)?,
        memory: MemoryStats {
            budget: r.u64()?,
            index: r.u64()?,
            versions: r.u64()?,
            buffers: r.u64()?,
            cache: r.u64()?,
        },
        caches: Vec::new(),
        logs: r.list(|r| {
            Ok(LogStats {
                name: r.name()?,
                segments: r.u64()?,
                disk_bytes: r.u64()?,
                live_bytes: r.u64()?,
                appended_bytes: r.u64()?,
                relocated_bytes: r.u64()?,
                freed_segments: r.u64()?,
                damaged_segments: r.u64()?,
            })
        })?,
        opening: OpeningStats {
            is_clean: r.flag()?,
            duration: Duration::from_nanos(r.u64()?),
            frames_scanned: r.u64()?,
            records_replayed: r.u64()?,
            discarded_bytes: r.u64()?,
        },
        has_ipc: r.flag()?,
        descriptors: DescriptorStats::from_words([r.u64()?, r.u64()?, r.u64()?]),
        changes: ChangeStats::from_words({
            let mut words = [0; 8];
            words.iter_mut().try_for_each(|word| r.u64().map(|read| *word = read))?;
            words
        }),
    })
}

/// Decodes a stall. Returns `None` for a kind that this build does not know.
fn decode_stall(r: &mut FieldReader<'_>) -> Result<Option<StallStats>, Damage> {
    let kind = decode_named(r, &StallKind::ALL, StallKind::name)?;
    let (count, total, longest) = (r.u64()?, Duration::from_nanos(r.u64()?), Duration::from_nanos(r.u64()?));
    Ok(kind.map(|kind| StallStats { kind, count, total, longest }))
}

/// Encodes a cache.
pub fn encode_cache(w: &mut FieldWriter, cache: &CacheStats) {
    let CacheStats { keyspace, bytes, limit_bytes: share } = cache;
    w.option(keyspace.as_deref(), FieldWriter::text);
    w.u64(*bytes);
    w.option(*share, FieldWriter::u64);
}

/// Decodes a cache.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_cache(r: &mut FieldReader<'_>) -> Result<CacheStats, Damage> {
    Ok(CacheStats {
        keyspace: r.option(|r| r.text())?,
        bytes: r.u64()?,
        limit_bytes: r.option(FieldReader::u64)?,
    })
}

/// Encodes the options of a keyspace, or those requested.
pub fn encode_options(options: &EngineOptions, w: &mut FieldWriter) {
    let options: Vec<(&str, u64)> = options.iter().collect();
    w.list(&options, |w, (name, value)| {
        w.text(name);
        w.u64(*value);
    });
}

/// Decodes engine options. Does not check that an engine has them.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_options(r: &mut FieldReader<'_>) -> Result<EngineOptions, Damage> {
    let mut options = EngineOptions::default();
    for (name, value) in r.list(|r| Ok((r.text()?, r.u64()?)))? {
        options.set(&name, value);
    }
    Ok(options)
}

/// Encodes a keyspace of a list.
pub fn encode_keyspace_info(info: &KeyspaceInfo, w: &mut FieldWriter) {
    let KeyspaceInfo { name, id, engine, options, damage } = info;
    w.text(name);
    w.u32(id.0);
    w.text(engine);
    encode_options(options, w);
    w.option(damage.as_deref(), |w, damage| w.text(damage));
}

/// Decodes a keyspace of a list.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_keyspace_info(r: &mut FieldReader<'_>) -> Result<KeyspaceInfo, Damage> {
    Ok(KeyspaceInfo {
        name: r.text()?,
        id: KeyspaceId(r.u32()?),
        engine: r.name()?,
        options: decode_options(r)?,
        damage: r.option(|r| r.text())?,
    })
}

/// Encodes the pace of a backup in bytes per second. 0 is [`BackupRate::YieldToCommits`], and the
/// largest number is [`BackupRate::Unlimited`].
pub fn encode_pace(pace: BackupRate, w: &mut FieldWriter) {
    w.u64(match pace {
        BackupRate::YieldToCommits => 0,
        BackupRate::BytesPerSecond(rate) => rate.get(),
        BackupRate::Unlimited => u64::MAX,
    });
}

/// Decodes the pace of a backup.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_pace(r: &mut FieldReader<'_>) -> Result<BackupRate, Damage> {
    Ok(match r.u64()? {
        u64::MAX => BackupRate::Unlimited,
        rate => NonZeroU64::new(rate).map_or(BackupRate::YieldToCommits, BackupRate::BytesPerSecond),
    })
}

/// Encodes the progress of a backup.
pub fn encode_backup_progress(progress: &BackupProgress, w: &mut FieldWriter) {
    let BackupProgress { phase, done, total } = progress;
    w.flag(*phase == BackupPhase::Verifying);
    w.u64s([done, total]);
}

/// Decodes the progress of a backup.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_backup_progress(r: &mut FieldReader<'_>) -> Result<BackupProgress, Damage> {
    let phase = if r.flag()? { BackupPhase::Verifying } else { BackupPhase::Copying };
    Ok(BackupProgress { phase, done: r.u64()?, total: r.u64()? })
}

/// Encodes the result of a backup.
pub fn encode_backup_report(report: &BackupReport, w: &mut FieldWriter) {
    let BackupReport { seq, files, copied_bytes: copied, linked_bytes: linked } = report;
    w.u64s([seq, files, copied, linked]);
}

/// Decodes the result of a backup.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_backup_report(r: &mut FieldReader<'_>) -> Result<BackupReport, Damage> {
    Ok(BackupReport { seq: r.u64()?, files: r.u64()?, copied_bytes: r.u64()?, linked_bytes: r.u64()? })
}

/// Encodes the progress of a conversion.
pub fn encode_conversion_progress(progress: &ConversionProgress, w: &mut FieldWriter) {
    let ConversionProgress { phase, pairs, copied_pairs: copied, bytes, passes } = progress;
    w.u8(match phase {
        ConversionPhase::Copying => 0,
        ConversionPhase::CatchingUp => 1,
        ConversionPhase::Done => 2,
    });
    w.u64s([pairs, copied, bytes]);
    w.u32(*passes);
}

/// Decodes the progress of a conversion.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_conversion_progress(r: &mut FieldReader<'_>) -> Result<ConversionProgress, Damage> {
    Ok(ConversionProgress {
        phase: match r.u8()? {
            0 => ConversionPhase::Copying,
            1 => ConversionPhase::CatchingUp,
            2 => ConversionPhase::Done,
            other => return Err(Damage::bad_field("phase", ..=2, u64::from(other))),
        },
        pairs: r.u64()?,
        copied_pairs: r.u64()?,
        bytes: r.u64()?,
        passes: r.u32()?,
    })
}

/// Encodes the result of a conversion.
pub fn encode_conversion_report(done: &ConversionReport, w: &mut FieldWriter) {
    let ConversionReport { copied_pairs: copied, bytes, passes, is_direct: direct } = done;
    w.u64s([copied, bytes]);
    w.u32(*passes);
    w.flag(*direct);
}

/// Decodes the result of a conversion.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_conversion_report(r: &mut FieldReader<'_>) -> Result<ConversionReport, Damage> {
    Ok(ConversionReport { copied_pairs: r.u64()?, bytes: r.u64()?, passes: r.u32()?, is_direct: r.flag()? })
}

/// Encodes the estimate of a conversion.
pub fn encode_estimate(estimate: &ConversionEstimate, w: &mut FieldWriter) {
    let ConversionEstimate { pairs, data_bytes: data, required_bytes: bytes, free_bytes: free } = estimate;
    w.u64s([pairs, data, bytes, free]);
}

/// Decodes the estimate of a conversion.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_estimate(r: &mut FieldReader<'_>) -> Result<ConversionEstimate, Damage> {
    Ok(ConversionEstimate {
        pairs: r.u64()?,
        data_bytes: r.u64()?,
        required_bytes: r.u64()?,
        free_bytes: r.u64()?,
    })
}

/// Encodes the progress or the result of a compaction.
pub fn encode_compaction_report(done: &CompactionReport, w: &mut FieldWriter) {
    let CompactionReport { rewritten_pairs: moved, rewritten_bytes: bytes, skipped_pairs: left } = done;
    w.u64s([moved, bytes, left]);
}

/// Decodes the progress or the result of a compaction.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_compaction_report(r: &mut FieldReader<'_>) -> Result<CompactionReport, Damage> {
    Ok(CompactionReport { rewritten_pairs: r.u64()?, rewritten_bytes: r.u64()?, skipped_pairs: r.u64()? })
}

/// Encodes a verification except its files, which have messages of their own.
pub fn encode_verify_report(report: &VerifyReport, w: &mut FieldWriter) {
    let VerifyReport { pairs, frames, bytes, findings, files: _ } = report;
    w.u64s([pairs, frames, bytes, findings]);
}

/// Decodes a verification except its files.
///
/// # Errors
///
/// Returns the damage if the bytes are not valid.
pub fn decode_verify_report(r: &mut FieldReader<'_>) -> Result<VerifyReport, Damage> {
    let (pairs, frames, bytes, findings) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    Ok(VerifyReport { pairs, frames, bytes, findings, files: Vec::new() })
}

#[cfg(test)]
mod tests {
    use sheaf_platform::error::PoisonCause;

    use super::*;

    fn round_trip<T>(
        encode: impl FnOnce(&mut FieldWriter),
        decode: impl FnOnce(&mut FieldReader<'_>) -> Result<T, Damage>,
    ) -> T {
        let mut w = FieldWriter::default();
        encode(&mut w);
        let mut r = FieldReader::new(&w.0);
        let decoded = decode(&mut r).unwrap();
        r.finish().unwrap();
        decoded
    }

    fn sample() -> DatabaseStats {
        let log = LogStats { name: "journal", segments: 1, disk_bytes: 2, ..LogStats::default() };
        DatabaseStats {
            visible_seq: 77,
            unsynced_age: Duration::from_nanos(5),
            oldest_view_seq: Some(4),
            stalls: vec![StallStats {
                kind: StallKind::Throttle,
                count: 3,
                total: Duration::from_nanos(9),
                longest: Duration::from_nanos(4),
            }],
            transactions: TransactionStats {
                committed: 8,
                conflicts: 7,
                range_readers: 2,
                recent_key_bytes: 90,
            },
            expiry: ExpiryStats {
                removed_pairs: 5,
                dropped_hints: 2,
                next_due_ms: Some(1 << 40),
                lag: Duration::from_millis(3),
            },
            poisoned: Some(PoisonCause::Sync),
            memory: MemoryStats { budget: 6, index: 4, versions: 2, buffers: 1, cache: 3 },
            logs: vec![log.clone(), LogStats { name: "flat", damaged_segments: 3, ..log }],
            has_ipc: true,
            descriptors: DescriptorStats::from_words([64, 9, 3]),
            ..DatabaseStats::default()
        }
    }

    #[test]
    fn statistics_survive_encoding() {
        let stats = sample();
        assert_eq!(round_trip(|w| encode_stats(&stats, w), decode_stats), stats);
        let cache = CacheStats { keyspace: Some("k".into()), bytes: 2, limit_bytes: Some(3) };
        assert_eq!(round_trip(|w| encode_cache(w, &cache), decode_cache), cache);
        let mut options = EngineOptions::default();
        options.set("branching", 64);
        let (name, damage) = ("k".into(), Some("bad".into()));
        let info = KeyspaceInfo { name, id: KeyspaceId(7), engine: "flex", options, damage };
        assert_eq!(round_trip(|w| encode_keyspace_info(&info, w), decode_keyspace_info), info);
    }

    #[test]
    fn progress_and_results_survive_encoding() {
        for pace in
            [BackupRate::Unlimited, BackupRate::YieldToCommits, BackupRate::BytesPerSecond(NonZeroU64::MIN)]
        {
            assert_eq!(round_trip(|w| encode_pace(pace, w), decode_pace), pace);
        }
        for phase in [BackupPhase::Copying, BackupPhase::Verifying] {
            let progress = BackupProgress { phase, done: 1, total: 2 };
            assert_eq!(
                round_trip(|w| encode_backup_progress(&progress, w), decode_backup_progress),
                progress
            );
        }
        let backup = BackupReport { seq: 1, files: 2, copied_bytes: 3, linked_bytes: 4 };
        assert_eq!(round_trip(|w| encode_backup_report(&backup, w), decode_backup_report), backup);
        for phase in [ConversionPhase::Copying, ConversionPhase::CatchingUp, ConversionPhase::Done] {
            let progress = ConversionProgress { phase, pairs: 1, copied_pairs: 2, bytes: 3, passes: 4 };
            assert_eq!(
                round_trip(|w| encode_conversion_progress(&progress, w), decode_conversion_progress),
                progress
            );
        }
        let converted = ConversionReport { copied_pairs: 1, bytes: 2, passes: 3, is_direct: true };
        assert_eq!(
            round_trip(|w| encode_conversion_report(&converted, w), decode_conversion_report),
            converted
        );
        let estimate = ConversionEstimate { pairs: 1, data_bytes: 2, required_bytes: 3, free_bytes: 4 };
        assert_eq!(round_trip(|w| encode_estimate(&estimate, w), decode_estimate), estimate);
        let compacted = CompactionReport { rewritten_pairs: 1, rewritten_bytes: 2, skipped_pairs: 3 };
        assert_eq!(
            round_trip(|w| encode_compaction_report(&compacted, w), decode_compaction_report),
            compacted
        );
        let verified = VerifyReport { pairs: 1, frames: 2, bytes: 3, findings: 4, files: Vec::new() };
        assert_eq!(round_trip(|w| encode_verify_report(&verified, w), decode_verify_report), verified);
    }
}
