//! # Costs: the measured cost of each operation with each engine
//!
//! `costs.tsv` is the table; its header describes the measurement. Between two sizes of values,
//! costs are interpolated on a log-log line; beyond the last size they are extrapolated.

use std::sync::OnceLock;

/// Measured costs as tab-separated values, with the source of each line.
///
/// ```
/// assert!(sheaf_advisor::COSTS.lines().any(|line| line.starts_with("flex\tget\t")));
/// ```
pub const COSTS: &str = include_str!("costs.tsv");

/// Smallest measured size of a value: smaller ones cost the same.
const MIN_MEASURED_BYTES: f64 = 256.0;

/// Measured quantities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CostKind {
    Get,
    Miss,
    Contains,
    /// An operation of a mix with 10 % overwrites and 90 % gets, or half of each.
    TenthOverwrites,
    HalfOverwrites,
    /// An operation of a mix with half new keys and half gets.
    HalfNew,
    Update,
    Append,
    Batch,
    BatchNew,
    Durable,
    Seek,
    Pair,
    PairBack,
    Device,
    Space,
    Index,
    IndexPerKeyByte,
    Ordered,
    HoldsIndex,
}

const NAMES: [(&str, CostKind); 20] = [
    ("get", CostKind::Get),
    ("miss", CostKind::Miss),
    ("contains", CostKind::Contains),
    ("tenth-overwrites", CostKind::TenthOverwrites),
    ("half-overwrites", CostKind::HalfOverwrites),
    ("half-new", CostKind::HalfNew),
    ("update", CostKind::Update),
    ("append", CostKind::Append),
    ("batch", CostKind::Batch),
    ("batch-new", CostKind::BatchNew),
    ("durable", CostKind::Durable),
    ("seek", CostKind::Seek),
    ("pair", CostKind::Pair),
    ("pair-back", CostKind::PairBack),
    ("device", CostKind::Device),
    ("space", CostKind::Space),
    ("index", CostKind::Index),
    ("index-key", CostKind::IndexPerKeyByte),
    ("ordered", CostKind::Ordered),
    ("holds-index", CostKind::HoldsIndex),
];

/// Distribution of the keys in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyLocality {
    /// Skewed: the processor's caches answer most reads, and overwrites hit recent writes.
    Hot,
    /// Uniform, and the budget holds all keys.
    Memory,
    /// Uniform, and the budget holds a sixteenth of the keys.
    Disk,
}

#[derive(Debug)]
struct CostRow {
    engine: &'static str,
    kind: CostKind,
    bytes: f64,
    locality: KeyLocality,
    value: f64,
}

/// The parsed table.
#[derive(Debug)]
pub(super) struct CostTable(Vec<CostRow>);

/// Returns the table.
pub(super) fn cost_table() -> &'static CostTable {
    static TABLE: OnceLock<CostTable> = OnceLock::new();
    TABLE.get_or_init(|| CostTable(COSTS.lines().filter_map(row).collect()))
}

/// Parses a line of five columns and a source; returns `None` for a comment.
fn row(line: &'static str) -> Option<CostRow> {
    let mut columns = line.split('\t');
    let mut next = || columns.next();
    let (engine, what) = (next()?, next()?);
    let what = NAMES.iter().find(|(name, _)| *name == what)?.1;
    let bytes = next()?.parse().ok()?;
    let used = match next()? {
        "hot" => KeyLocality::Hot,
        "memory" => KeyLocality::Memory,
        _ => KeyLocality::Disk,
    };
    let value = next()?.parse().ok()?;
    Some(CostRow { engine, kind: what, bytes, locality: used, value })
}

impl CostTable {
    /// Returns the engines in the order of the table.
    pub(super) fn engines(&self) -> Vec<&'static str> {
        let mut engines = Vec::new();
        for row in &self.0 {
            if !engines.contains(&row.engine) {
                engines.push(row.engine);
            }
        }
        engines
    }

    /// Returns true if gets with this distribution were measured within a factor of eight of this
    /// size.
    pub(super) fn covers(&self, bytes: f64, used: KeyLocality) -> bool {
        let gets = self.0.iter().filter(|row| row.kind == CostKind::Get && row.locality == used);
        let near = |row: &CostRow| {
            bytes <= 8.0 * row.bytes && (row.bytes <= 8.0 * bytes || row.bytes <= MIN_MEASURED_BYTES)
        };
        gets.into_iter().any(near)
    }

    /// Returns the bytes of index per key, and per byte of a key.
    pub(super) fn index(&self, engine: &str) -> (f64, f64) {
        let of = |what| self.ns(engine, what, 1.0, KeyLocality::Memory);
        (of(CostKind::Index), of(CostKind::IndexPerKeyByte))
    }

    pub(super) fn is_ordered(&self, engine: &str) -> bool {
        self.ns(engine, CostKind::Ordered, 1.0, KeyLocality::Memory) > 0.5
    }

    /// Returns true if the engine refuses new keys when its index fills the budget.
    pub(super) fn requires_index_in_memory(&self, engine: &str) -> bool {
        self.ns(engine, CostKind::HoldsIndex, 1.0, KeyLocality::Memory) > 0.5
    }

    /// Returns the value of a line (usually nanoseconds) for values of `bytes`. If it was not
    /// measured beyond memory, or not with hot keys and such large values, the measurement within
    /// memory is used.
    pub(super) fn ns(&self, engine: &str, what: CostKind, bytes: f64, used: KeyLocality) -> f64 {
        let of = |used: KeyLocality| {
            let rows = self.0.iter();
            let mut points: Vec<(f64, f64)> = rows
                .filter(|row| row.engine == engine && row.kind == what && row.locality == used)
                .map(|row| (row.bytes.max(1.0).ln(), row.value.max(1e-9).ln()))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let mut points = of(used);
        let is_known = match used {
            KeyLocality::Hot => points.last().is_some_and(|last| bytes.max(1.0).ln() <= last.0),
            KeyLocality::Memory | KeyLocality::Disk => !points.is_empty(),
        };
        if !is_known {
            points = of(KeyLocality::Memory);
        }
        let at = bytes.max(1.0).ln();
        match &points[..] {
            [] => 0.0,
            [only] => only.1.exp(),
            [.., last] if at >= last.0 && what == CostKind::Device => last.1.exp(),
            [first, ..] if at <= first.0 => first.1.exp(),
            all => {
                let above = all.iter().position(|point| at <= point.0).unwrap_or(all.len() - 1);
                let (low, high) = (all[above - 1], all[above]);
                (low.1 + (high.1 - low.1) * (at - low.0) / (high.0 - low.0)).exp()
            }
        }
    }
}
