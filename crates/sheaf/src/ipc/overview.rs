//! # Figures: statistics of a database and its keyspaces, and their encoding

use std::sync::Arc;

use sheaf_platform::codec::{FieldReader, FieldWriter};
use sheaf_platform::wire_error::{ReadWire, WriteWire};
use sheaf_store::{Store, wire};

use crate::{Damage, DatabaseStats, EngineStats, KeyspaceInfo, WorkloadStats};

/// Statistics of a database and of each keyspace. [`Database::overview`](crate::Database::overview)
/// returns them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DatabaseOverview {
    /// Statistics of the database.
    pub stats: DatabaseStats,
    /// Statistics of each keyspace, sorted by name.
    pub keyspaces: Vec<KeyspaceOverview>,
}

/// Statistics of a keyspace.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
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
    pub workload: WorkloadStats,
}

/// Collects the statistics of the store.
pub(crate) fn overview(store: &Arc<Store>, has_ipc: bool) -> DatabaseOverview {
    let map = store.keyspaces();
    let keyspaces = map.into_iter().map(|info| {
        let state = store.find_keyspace(&info.name).ok().flatten();
        let engine = state.as_ref().and_then(|state| state.engine().ok());
        KeyspaceOverview {
            ordered: engine.is_some_and(|engine| engine.capabilities().ordered),
            stats: engine.map(|engine| engine.stats()).unwrap_or_default(),
            counters: engine.map(|engine| engine.counters()).unwrap_or_default(),
            workload: state.as_ref().map(|state| store.workload_stats(state)).unwrap_or_default(),
            info,
        }
    });
    let keyspaces = keyspaces.collect();
    let mut stats = store.stats();
    stats.has_ipc = has_ipc;
    DatabaseOverview { stats, keyspaces }
}

pub(super) fn encode_keyspace(keyspace: &KeyspaceOverview, w: &mut FieldWriter) {
    let KeyspaceOverview { info, ordered, stats, counters, workload: load } = keyspace;
    wire::encode_keyspace_info(info, w);
    w.flag(*ordered);
    let EngineStats { keys, index_bytes, pinned_versions, encoded_raw_bytes, encoded_bytes } = stats;
    w.u64s([keys, index_bytes, pinned_versions, encoded_raw_bytes, encoded_bytes]);
    w.list(counters, |w, (name, count)| {
        w.text(name);
        w.u64(*count);
    });
    load.encode(w);
}

pub(super) fn decode_keyspace(r: &mut FieldReader<'_>) -> Result<KeyspaceOverview, Damage> {
    Ok(KeyspaceOverview {
        info: wire::decode_keyspace_info(r)?,
        ordered: r.flag()?,
        stats: EngineStats {
            keys: r.u64()?,
            index_bytes: r.u64()?,
            pinned_versions: r.u64()?,
            encoded_raw_bytes: r.u64()?,
            encoded_bytes: r.u64()?,
        },
        counters: r.list(|r| Ok((r.name()?, r.u64()?)))?,
        workload: WorkloadStats::decode(r)?,
    })
}
