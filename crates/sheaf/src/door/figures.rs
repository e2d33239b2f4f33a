//! # Figures: statistics of a database and its keyspaces, and their encoding

use std::sync::Arc;
use std::time::Duration;

use sheaf_base::codec::{Reader, Writer};
use sheaf_base::fault::{ReadTexts, Texts};
use sheaf_base::store::{OpeningStats, Store};
use sheaf_base::types::KeyspaceId;

use crate::{
    CacheStats, Damage, DescriptorStats, EngineOptions, EngineStats, KeyspaceInfo, LoadStats, LogStats,
    MemoryStats, StagedStats, StallKind, StallStats, Stats,
};

/// Statistics of a database and of each keyspace. [`Database::overview`](crate::Database::overview)
/// collects them without reading data.
#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    /// Statistics of the database.
    pub stats: Stats,
    /// Statistics of each keyspace, sorted by name.
    pub keyspaces: Vec<KeyspaceOverview>,
}

/// Statistics of a keyspace.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyspaceOverview {
    /// Name, engine, options, and damage.
    pub info: KeyspaceInfo,
    /// True if the engine is ordered.
    pub ordered: bool,
    /// Statistics of the engine; zeros if the keyspace is damaged.
    pub stats: EngineStats,
    /// Event counters of the engine since the database was opened, by name.
    pub counters: Vec<(&'static str, u64)>,
    /// Workload statistics.
    pub load: LoadStats,
}

/// Collects the statistics of the store.
pub(crate) fn overview(store: &Arc<Store>, door: bool) -> Overview {
    let map = store.keyspaces();
    let keyspaces = map.into_iter().map(|info| {
        let kept = store.existing(&info.name).ok().flatten();
        let engine = kept.as_ref().and_then(|kept| kept.engine().ok());
        KeyspaceOverview {
            ordered: engine.is_some_and(|engine| engine.capabilities().ordered),
            stats: engine.map(|engine| engine.stats()).unwrap_or_default(),
            counters: engine.map(|engine| engine.counters()).unwrap_or_default(),
            load: kept.as_ref().map(|kept| store.load_stats(kept)).unwrap_or_default(),
            info,
        }
    });
    let keyspaces = keyspaces.collect();
    Overview { stats: Stats { door, ..store.stats() }, keyspaces }
}

fn time(w: &mut Writer, time: Duration) {
    w.u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// Encodes all but the caches, which have messages of their own: there may be as many as keyspaces.
pub(super) fn encode_stats(stats: &Stats, w: &mut Writer) {
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
    [visible, durable, sync_rounds, sync_waits, views, stills].into_iter().for_each(|n| w.u64(*n));
    [held_bytes, brakes, checkpoints, checkpoint_bytes, staged_bytes].into_iter().for_each(|n| w.u64(*n));
    time(w, *unsynced_age);
    w.option(*oldest_view, Writer::u64);
    let StagedStats { chunks, slots, used_bytes, free_bytes, files } = staged;
    [chunks, slots, used_bytes, free_bytes, files].into_iter().for_each(|number| w.u64(*number));
    w.list(stalls, |w, stall| {
        let StallStats { kind, count, total, longest } = stall;
        w.text(kind.name());
        w.u64(*count);
        time(w, *total);
        time(w, *longest);
    });
    w.option(*poisoned, |w, op| w.text(op));
    let MemoryStats { budget, index, versions, buffers, cache } = memory;
    [budget, index, versions, buffers, cache].into_iter().for_each(|number| w.u64(*number));
    w.list(logs, |w, log| {
        let LogStats { name, segments, disk_bytes, live_bytes, appended, moved, freed, damaged } = log;
        w.text(name);
        let numbers = [segments, disk_bytes, live_bytes, appended, moved, freed, damaged];
        numbers.into_iter().for_each(|number| w.u64(*number));
    });
    let OpeningStats { clean, took, frames_scanned, records_replayed, bytes_cut } = opening;
    w.flag(*clean);
    time(w, *took);
    [frames_scanned, records_replayed, bytes_cut].into_iter().for_each(|number| w.u64(*number));
    w.flag(*door);
    let DescriptorStats { limit, in_use, reopened } = descriptors;
    [u64::from(*limit), u64::from(*in_use), *reopened].into_iter().for_each(|number| w.u64(number));
}

pub(super) fn decode_stats(r: &mut Reader<'_>) -> Result<Stats, Damage> {
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

pub(super) fn encode_cache(w: &mut Writer, cache: &CacheStats) {
    let CacheStats { keyspace, bytes, share } = cache;
    w.option(keyspace.as_deref(), Writer::text);
    w.u64(*bytes);
    w.option(*share, Writer::u64);
}

pub(super) fn decode_cache(r: &mut Reader<'_>) -> Result<CacheStats, Damage> {
    Ok(CacheStats { keyspace: r.option(|r| r.text())?, bytes: r.u64()?, share: r.option(Reader::u64)? })
}

/// Encodes the options of a keyspace, or those requested.
pub(super) fn encode_options(options: &EngineOptions, w: &mut Writer) {
    let options: Vec<(&str, u64)> = options.iter().collect();
    w.list(&options, |w, (name, value)| {
        w.text(name);
        w.u64(*value);
    });
}

pub(super) fn decode_options(r: &mut Reader<'_>) -> Result<EngineOptions, Damage> {
    let mut options = EngineOptions::default();
    for (name, value) in r.list(|r| Ok((r.text()?, r.u64()?)))? {
        options.set(&name, value);
    }
    Ok(options)
}

pub(super) fn encode_keyspace(keyspace: &KeyspaceOverview, w: &mut Writer) {
    let KeyspaceOverview { info, ordered, stats, counters, load } = keyspace;
    let KeyspaceInfo { name, id, engine, options, damage } = info;
    w.text(name);
    w.u32(id.0);
    w.text(engine);
    encode_options(options, w);
    w.option(damage.as_deref(), |w, damage| w.text(damage));
    w.flag(*ordered);
    let EngineStats { keys, index_bytes, pinned_versions } = stats;
    [keys, index_bytes, pinned_versions].into_iter().for_each(|number| w.u64(*number));
    w.list(counters, |w, (name, count)| {
        w.text(name);
        w.u64(*count);
    });
    load.encode(w);
}

pub(super) fn decode_keyspace(r: &mut Reader<'_>) -> Result<KeyspaceOverview, Damage> {
    let info = KeyspaceInfo {
        name: r.text()?,
        id: KeyspaceId(r.u32()?),
        engine: r.name()?,
        options: decode_options(r)?,
        damage: r.option(|r| r.text())?,
    };
    Ok(KeyspaceOverview {
        info,
        ordered: r.flag()?,
        stats: EngineStats { keys: r.u64()?, index_bytes: r.u64()?, pinned_versions: r.u64()? },
        counters: r.list(|r| Ok((r.name()?, r.u64()?)))?,
        load: LoadStats::decode(r)?,
    })
}
