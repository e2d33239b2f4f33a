//! # Wire: statistics, progress and results as bytes, for another process
//!
//! docs/format/door.md lists the fields. The code is next to the types, so that the compiler finds
//! every field that is missing here although the types are `non_exhaustive`.

use std::num::NonZeroU64;
use std::time::Duration;

use super::{
    BackupPace, BackupPhase, BackupProgress, BackupReport, CacheStats, Compacted, ConversionPhase,
    ConversionProgress, Converted, Estimate, KeyspaceInfo, LogStats, MemoryStats, OpeningStats, StagedStats,
    StallKind, StallStats, Stats, VerifyReport,
};
use crate::codec::{Reader, Writer};
use crate::disk::DescriptorStats;
use crate::error::Damage;
use crate::fault::{ReadTexts, Texts};
use crate::options::EngineOptions;
use crate::types::KeyspaceId;

fn time(w: &mut Writer, time: Duration) {
    w.u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// Encodes all but the caches, which have messages of their own: there may be as many as keyspaces.
pub fn encode_stats(stats: &Stats, w: &mut Writer) {
    let Stats {
        visible,
        durable,
        unsynced_age,
        sync_rounds,
        sync_waits,
        views,
        oldest_view,
        stills,
        held_bytes,
        brakes,
        stalls,
        checkpoints,
        checkpoint_bytes,
        staged_bytes,
        staged,
        poisoned,
        memory,
        caches: _,
        logs,
        opening,
        descriptors,
        door,
    } = stats;
    w.u64s([visible, durable, sync_rounds, sync_waits, views, stills]);
    w.u64s([held_bytes, brakes, checkpoints, checkpoint_bytes, staged_bytes]);
    time(w, *unsynced_age);
    w.option(*oldest_view, Writer::u64);
    let StagedStats { chunks, slots, used_bytes, free_bytes, files } = staged;
    w.u64s([chunks, slots, used_bytes, free_bytes, files]);
    w.list(stalls, |w, stall| {
        let StallStats { kind, count, total, longest } = stall;
        w.text(kind.name());
        w.u64(*count);
        time(w, *total);
        time(w, *longest);
    });
    w.option(*poisoned, |w, op| w.text(op));
    let MemoryStats { budget, index, versions, buffers, cache } = memory;
    w.u64s([budget, index, versions, buffers, cache]);
    w.list(logs, |w, log| {
        let LogStats { name, segments, disk_bytes, live_bytes, appended, moved, freed, damaged } = log;
        w.text(name);
        w.u64s([segments, disk_bytes, live_bytes, appended, moved, freed, damaged]);
    });
    let OpeningStats { clean, took, frames_scanned, records_replayed, bytes_cut } = opening;
    w.flag(*clean);
    time(w, *took);
    w.u64s([frames_scanned, records_replayed, bytes_cut]);
    w.flag(*door);
    let DescriptorStats { limit, in_use, reopened } = descriptors;
    w.u64s([&u64::from(*limit), &u64::from(*in_use), reopened]);
}

/// Decodes all but the caches.
///
/// # Errors
///
/// Returns the damage of the bytes.
pub fn decode_stats(r: &mut Reader<'_>) -> Result<Stats, Damage> {
    Ok(Stats {
        visible: r.u64()?,
        durable: r.u64()?,
        sync_rounds: r.u64()?,
        sync_waits: r.u64()?,
        views: r.u64()?,
        stills: r.u64()?,
        held_bytes: r.u64()?,
        brakes: r.u64()?,
        checkpoints: r.u64()?,
        checkpoint_bytes: r.u64()?,
        staged_bytes: r.u64()?,
        unsynced_age: Duration::from_nanos(r.u64()?),
        oldest_view: r.option(Reader::u64)?,
        staged: StagedStats {
            chunks: r.u64()?,
            slots: r.u64()?,
            used_bytes: r.u64()?,
            free_bytes: r.u64()?,
            files: r.u64()?,
        },
        stalls: r.list(decode_stall)?.into_iter().flatten().collect(),
        poisoned: r.option(|r| r.name())?,
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
                appended: r.u64()?,
                moved: r.u64()?,
                freed: r.u64()?,
                damaged: r.u64()?,
            })
        })?,
        opening: OpeningStats {
            clean: r.flag()?,
            took: Duration::from_nanos(r.u64()?),
            frames_scanned: r.u64()?,
            records_replayed: r.u64()?,
            bytes_cut: r.u64()?,
        },
        door: r.flag()?,
        descriptors: DescriptorStats {
            limit: u32::try_from(r.u64()?).unwrap_or(u32::MAX),
            in_use: u32::try_from(r.u64()?).unwrap_or(u32::MAX),
            reopened: r.u64()?,
        },
    })
}

/// Returns `None` for a kind that this build does not know.
fn decode_stall(r: &mut Reader<'_>) -> Result<Option<StallStats>, Damage> {
    let name = r.text()?;
    let (count, total, longest) = (r.u64()?, Duration::from_nanos(r.u64()?), Duration::from_nanos(r.u64()?));
    let kind = StallKind::ALL.into_iter().find(|kind| kind.name() == name);
    Ok(kind.map(|kind| StallStats { kind, count, total, longest }))
}

/// Encodes a cache.
pub fn encode_cache(w: &mut Writer, cache: &CacheStats) {
    let CacheStats { keyspace, bytes, share } = cache;
    w.option(keyspace.as_deref(), Writer::text);
    w.u64(*bytes);
    w.option(*share, Writer::u64);
}

/// Decodes a cache.
///
/// # Errors
///
/// Returns the damage of the bytes.
pub fn decode_cache(r: &mut Reader<'_>) -> Result<CacheStats, Damage> {
    Ok(CacheStats { keyspace: r.option(|r| r.text())?, bytes: r.u64()?, share: r.option(Reader::u64)? })
}

/// Encodes the options of a keyspace, or those requested.
pub fn encode_options(options: &EngineOptions, w: &mut Writer) {
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
/// Returns the damage of the bytes.
pub fn decode_options(r: &mut Reader<'_>) -> Result<EngineOptions, Damage> {
    let mut options = EngineOptions::default();
    for (name, value) in r.list(|r| Ok((r.text()?, r.u64()?)))? {
        options.set(&name, value);
    }
    Ok(options)
}

/// Encodes a keyspace of a list.
pub fn encode_info(info: &KeyspaceInfo, w: &mut Writer) {
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
/// Returns the damage of the bytes.
pub fn decode_info(r: &mut Reader<'_>) -> Result<KeyspaceInfo, Damage> {
    Ok(KeyspaceInfo {
        name: r.text()?,
        id: KeyspaceId(r.u32()?),
        engine: r.name()?,
        options: decode_options(r)?,
        damage: r.option(|r| r.text())?,
    })
}

/// Encodes the pace of a backup: bytes per second, with 0 and the largest number for the others.
pub fn encode_pace(pace: BackupPace, w: &mut Writer) {
    w.u64(match pace {
        BackupPace::GiveWay => 0,
        BackupPace::AtMost(rate) => rate.get(),
        BackupPace::Full => u64::MAX,
    });
}

/// Decodes the pace of a backup.
///
/// # Errors
///
/// Returns the damage of the bytes.
pub fn decode_pace(r: &mut Reader<'_>) -> Result<BackupPace, Damage> {
    Ok(match r.u64()? {
        u64::MAX => BackupPace::Full,
        rate => NonZeroU64::new(rate).map_or(BackupPace::GiveWay, BackupPace::AtMost),
    })
}

/// Encodes the progress of a backup.
pub fn encode_backup_progress(progress: &BackupProgress, w: &mut Writer) {
    let BackupProgress { phase, done, total } = progress;
    w.flag(*phase == BackupPhase::Verifying);
    w.u64s([done, total]);
}

/// Decodes the progress of a backup.
///
/// # Errors
///
/// Returns the damage of the bytes.
pub fn decode_backup_progress(r: &mut Reader<'_>) -> Result<BackupProgress, Damage> {
    let phase = if r.flag()? { BackupPhase::Verifying } else { BackupPhase::Copying };
    Ok(BackupProgress { phase, done: r.u64()?, total: r.u64()? })
}

/// Encodes the result of a backup.
pub fn encode_backup(report: &BackupReport, w: &mut Writer) {
    let BackupReport { seq, files, copied, linked } = report;
    w.u64s([seq, files, copied, linked]);
}

/// Decodes the result of a backup.
///
/// # Errors
///
/// Returns the damage of the bytes.
pub fn decode_backup(r: &mut Reader<'_>) -> Result<BackupReport, Damage> {
    Ok(BackupReport { seq: r.u64()?, files: r.u64()?, copied: r.u64()?, linked: r.u64()? })
}

/// Encodes the progress of a conversion.
pub fn encode_conversion(progress: &ConversionProgress, w: &mut Writer) {
    let ConversionProgress { phase, pairs, copied, bytes, passes } = progress;
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
/// Returns the damage of the bytes.
pub fn decode_conversion(r: &mut Reader<'_>) -> Result<ConversionProgress, Damage> {
    Ok(ConversionProgress {
        phase: match r.u8()? {
            0 => ConversionPhase::Copying,
            1 => ConversionPhase::CatchingUp,
            2 => ConversionPhase::Done,
            other => return Err(Damage::BadField { field: "phase", value: u64::from(other) }),
        },
        pairs: r.u64()?,
        copied: r.u64()?,
        bytes: r.u64()?,
        passes: r.u32()?,
    })
}

/// Encodes the result of a conversion.
pub fn encode_converted(done: &Converted, w: &mut Writer) {
    let Converted { copied, bytes, passes, direct } = done;
    w.u64s([copied, bytes]);
    w.u32(*passes);
    w.flag(*direct);
}

/// Decodes the result of a conversion.
///
/// # Errors
///
/// Returns the damage of the bytes.
pub fn decode_converted(r: &mut Reader<'_>) -> Result<Converted, Damage> {
    Ok(Converted { copied: r.u64()?, bytes: r.u64()?, passes: r.u32()?, direct: r.flag()? })
}

/// Encodes the estimate of a conversion.
pub fn encode_estimate(estimate: &Estimate, w: &mut Writer) {
    let Estimate { pairs, data, bytes, free } = estimate;
    w.u64s([pairs, data, bytes, free]);
}

/// Decodes the estimate of a conversion.
///
/// # Errors
///
/// Returns the damage of the bytes.
pub fn decode_estimate(r: &mut Reader<'_>) -> Result<Estimate, Damage> {
    Ok(Estimate { pairs: r.u64()?, data: r.u64()?, bytes: r.u64()?, free: r.u64()? })
}

/// Encodes the progress or the result of a compaction.
pub fn encode_compacted(done: &Compacted, w: &mut Writer) {
    let Compacted { moved, bytes, left } = done;
    w.u64s([moved, bytes, left]);
}

/// Decodes the progress or the result of a compaction.
///
/// # Errors
///
/// Returns the damage of the bytes.
pub fn decode_compacted(r: &mut Reader<'_>) -> Result<Compacted, Damage> {
    Ok(Compacted { moved: r.u64()?, bytes: r.u64()?, left: r.u64()? })
}

/// Encodes all but the files of a verification, which have messages of their own.
pub fn encode_verified(report: &VerifyReport, w: &mut Writer) {
    let VerifyReport { pairs, frames, bytes, findings, files: _ } = report;
    w.u64s([pairs, frames, bytes, findings]);
}

/// Decodes all but the files of a verification.
///
/// # Errors
///
/// Returns the damage of the bytes.
pub fn decode_verified(r: &mut Reader<'_>) -> Result<VerifyReport, Damage> {
    let (pairs, frames, bytes, findings) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    Ok(VerifyReport { pairs, frames, bytes, findings, files: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again<T>(
        encode: impl FnOnce(&mut Writer),
        decode: impl FnOnce(&mut Reader<'_>) -> Result<T, Damage>,
    ) -> T {
        let mut w = Writer::default();
        encode(&mut w);
        let mut r = Reader::new(&w.0);
        let decoded = decode(&mut r).unwrap();
        r.finish().unwrap();
        decoded
    }

    fn sample() -> Stats {
        let log = LogStats { name: "journal", segments: 1, disk_bytes: 2, ..LogStats::default() };
        Stats {
            visible: 77,
            unsynced_age: Duration::from_nanos(5),
            oldest_view: Some(4),
            stalls: vec![StallStats {
                kind: StallKind::Brake,
                count: 3,
                total: Duration::from_nanos(9),
                longest: Duration::from_nanos(4),
            }],
            poisoned: Some("sync"),
            memory: MemoryStats { budget: 6, index: 4, versions: 2, buffers: 1, cache: 3 },
            logs: vec![log.clone(), LogStats { name: "flat", damaged: 3, ..log }],
            door: true,
            descriptors: DescriptorStats { limit: 64, in_use: 9, reopened: 3 },
            ..Stats::default()
        }
    }

    #[test]
    fn statistics_survive_encoding() {
        let stats = sample();
        assert_eq!(again(|w| encode_stats(&stats, w), decode_stats), stats);
        let cache = CacheStats { keyspace: Some("k".into()), bytes: 2, share: Some(3) };
        assert_eq!(again(|w| encode_cache(w, &cache), decode_cache), cache);
        let mut options = EngineOptions::default();
        options.set("branching", 64);
        let (name, damage) = ("k".into(), Some("bad".into()));
        let info = KeyspaceInfo { name, id: KeyspaceId(7), engine: "flex", options, damage };
        assert_eq!(again(|w| encode_info(&info, w), decode_info), info);
    }

    #[test]
    fn progress_and_results_survive_encoding() {
        for pace in [BackupPace::Full, BackupPace::GiveWay, BackupPace::AtMost(NonZeroU64::MIN)] {
            assert_eq!(again(|w| encode_pace(pace, w), decode_pace), pace);
        }
        for phase in [BackupPhase::Copying, BackupPhase::Verifying] {
            let progress = BackupProgress { phase, done: 1, total: 2 };
            assert_eq!(again(|w| encode_backup_progress(&progress, w), decode_backup_progress), progress);
        }
        let backup = BackupReport { seq: 1, files: 2, copied: 3, linked: 4 };
        assert_eq!(again(|w| encode_backup(&backup, w), decode_backup), backup);
        for phase in [ConversionPhase::Copying, ConversionPhase::CatchingUp, ConversionPhase::Done] {
            let progress = ConversionProgress { phase, pairs: 1, copied: 2, bytes: 3, passes: 4 };
            assert_eq!(again(|w| encode_conversion(&progress, w), decode_conversion), progress);
        }
        let converted = Converted { copied: 1, bytes: 2, passes: 3, direct: true };
        assert_eq!(again(|w| encode_converted(&converted, w), decode_converted), converted);
        let estimate = Estimate { pairs: 1, data: 2, bytes: 3, free: 4 };
        assert_eq!(again(|w| encode_estimate(&estimate, w), decode_estimate), estimate);
        let compacted = Compacted { moved: 1, bytes: 2, left: 3 };
        assert_eq!(again(|w| encode_compacted(&compacted, w), decode_compacted), compacted);
        let verified = VerifyReport { pairs: 1, frames: 2, bytes: 3, findings: 4, files: Vec::new() };
        assert_eq!(again(|w| encode_verified(&verified, w), decode_verified), verified);
    }
}
