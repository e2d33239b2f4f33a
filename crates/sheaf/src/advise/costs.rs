//! # Costs: the measured cost of each operation with each engine
//!
//! `costs.tsv` is the table; its header describes the measurement. Between two sizes of values,
//! costs are interpolated on a log-log line; beyond the last size they are extrapolated.

use std::sync::OnceLock;

/// Measured costs as tab-separated values, with the source of each line.
///
/// ```
/// assert!(sheaf::advise::COSTS.lines().any(|line| line.starts_with("flex\tget\t")));
/// ```
pub const COSTS: &str = include_str!("costs.tsv");

/// Smallest measured size of a value: smaller ones cost the same.
const SMALL: f64 = 256.0;

/// Measured quantities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
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

const NAMES: [(&str, What); 20] = [
    ("get", What::Get),
    ("miss", What::Miss),
    ("contains", What::Contains),
    ("tenth-overwrites", What::TenthOverwrites),
    ("half-overwrites", What::HalfOverwrites),
    ("half-new", What::HalfNew),
    ("update", What::Update),
    ("append", What::Append),
    ("batch", What::Batch),
    ("batch-new", What::BatchNew),
    ("durable", What::Durable),
    ("seek", What::Seek),
    ("pair", What::Pair),
    ("pair-back", What::PairBack),
    ("device", What::Device),
    ("space", What::Space),
    ("index", What::Index),
    ("index-key", What::IndexPerKeyByte),
    ("ordered", What::Ordered),
    ("holds-index", What::HoldsIndex),
];

/// Distribution of the keys in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Used {
    /// Skewed: the processor's caches answer most reads, and overwrites hit recent writes.
    Hot,
    /// Uniform, and the budget holds all keys.
    Memory,
    /// Uniform, and the budget holds a sixteenth of the keys.
    Beyond,
}

#[derive(Debug)]
struct Row {
    engine: &'static str,
    what: What,
    bytes: f64,
    used: Used,
    value: f64,
}

/// The parsed table.
#[derive(Debug)]
pub(super) struct Costs(Vec<Row>);

/// Returns the table.
pub(super) fn costs() -> &'static Costs {
    static TABLE: OnceLock<Costs> = OnceLock::new();
    TABLE.get_or_init(|| Costs(COSTS.lines().filter_map(row).collect()))
}

/// Parses a line of five columns and a source; returns `None` for a comment.
fn row(line: &'static str) -> Option<Row> {
    let mut columns = line.split('\t');
    let mut next = || columns.next();
    let (engine, what) = (next()?, next()?);
    let what = NAMES.iter().find(|(name, _)| *name == what)?.1;
    let bytes = next()?.parse().ok()?;
    let used = match next()? {
        "hot" => Used::Hot,
        "memory" => Used::Memory,
        _ => Used::Beyond,
    };
    let value = next()?.parse().ok()?;
    Some(Row { engine, what, bytes, used, value })
}

impl Costs {
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
    pub(super) fn covers(&self, bytes: f64, used: Used) -> bool {
        let gets = self.0.iter().filter(|row| row.what == What::Get && row.used == used);
        let near = |row: &Row| bytes <= 8.0 * row.bytes && (row.bytes <= 8.0 * bytes || row.bytes <= SMALL);
        gets.into_iter().any(near)
    }

    /// Returns the bytes of index per key, and per byte of a key.
    pub(super) fn index(&self, engine: &str) -> (f64, f64) {
        let of = |what| self.ns(engine, what, 1.0, Used::Memory);
        (of(What::Index), of(What::IndexPerKeyByte))
    }

    pub(super) fn is_ordered(&self, engine: &str) -> bool {
        self.ns(engine, What::Ordered, 1.0, Used::Memory) > 0.5
    }

    /// Returns true if the engine refuses new keys when its index fills the budget.
    pub(super) fn must_hold_index(&self, engine: &str) -> bool {
        self.ns(engine, What::HoldsIndex, 1.0, Used::Memory) > 0.5
    }

    /// Returns the value of a line (usually nanoseconds) for values of `bytes`. If it was not
    /// measured beyond memory, or not with hot keys and such large values, the measurement within
    /// memory is used.
    pub(super) fn ns(&self, engine: &str, what: What, bytes: f64, used: Used) -> f64 {
        let of = |used: Used| {
            let rows = self.0.iter();
            let mut points: Vec<(f64, f64)> = rows
                .filter(|row| row.engine == engine && row.what == what && row.used == used)
                .map(|row| (row.bytes.max(1.0).ln(), row.value.max(1e-9).ln()))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let mut points = of(used);
        let is_known = match used {
            Used::Hot => points.last().is_some_and(|last| bytes.max(1.0).ln() <= last.0),
            Used::Memory | Used::Beyond => !points.is_empty(),
        };
        if !is_known {
            points = of(Used::Memory);
        }
        let at = bytes.max(1.0).ln();
        match &points[..] {
            [] => 0.0,
            [only] => only.1.exp(),
            [.., last] if at >= last.0 && what == What::Device => last.1.exp(),
            [first, ..] if at <= first.0 => first.1.exp(),
            all => {
                let above = all.iter().position(|point| at <= point.0).unwrap_or(all.len() - 1);
                let (low, high) = (all[above - 1], all[above]);
                (low.1 + (high.1 - low.1) * (at - low.0) / (high.0 - low.0)).exp()
            }
        }
    }
}
