//! # Costs: what each engine was measured to take for each operation
//!
//! `costs.tsv` is the table; its head says how it was made. Between two sizes of values costs are taken from the line through both, in
//! logarithms; beyond the last, along it.

use std::sync::OnceLock;

/// The table itself, with the command that measured each line.
pub const COSTS: &str = include_str!("costs.tsv");

/// Values below this cost what values of this size cost.
const SMALL: f64 = 256.0;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Get,
    Miss,
    Contains,
    /// An operation where one of ten overwrites and nine get; where one of two does.
    TenthOverwrites,
    HalfOverwrites,
    /// An operation where one of two sets a new key and one gets.
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

/// How keys were used when it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Used {
    /// Some far more than others: the processor's caches answer most of it, and what is overwritten was written just before.
    Hot,
    /// All alike, and the budget holds them.
    Memory,
    /// All alike, and the budget holds a sixteenth of them.
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

/// The table.
#[derive(Debug)]
pub(super) struct Costs(Vec<Row>);

/// It.
pub(super) fn costs() -> &'static Costs {
    static TABLE: OnceLock<Costs> = OnceLock::new();
    TABLE.get_or_init(|| Costs(COSTS.lines().filter_map(row).collect()))
}

/// A line of five columns and a source; none for a comment.
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
    /// The engines in it, in its order.
    pub(super) fn engines(&self) -> Vec<&'static str> {
        let mut engines = Vec::new();
        for row in &self.0 {
            if !engines.contains(&row.engine) {
                engines.push(row.engine);
            }
        }
        engines
    }

    /// Whether gets were measured with values used eight times these bytes, and where they are.
    pub(super) fn covers(&self, bytes: f64, used: Used) -> bool {
        let gets = self.0.iter().filter(|row| row.what == What::Get && row.used == used);
        let near = |row: &Row| bytes <= 8.0 * row.bytes && (row.bytes <= 8.0 * bytes || row.bytes <= SMALL);
        gets.into_iter().any(near)
    }

    /// Bytes of index for a key, and for each byte of it.
    pub(super) fn index(&self, engine: &str) -> (f64, f64) {
        let of = |what| self.ns(engine, what, 1.0, Used::Memory);
        (of(What::Index), of(What::IndexPerKeyByte))
    }

    pub(super) fn is_ordered(&self, engine: &str) -> bool {
        self.ns(engine, What::Ordered, 1.0, Used::Memory) > 0.5
    }

    /// Whether it takes no more keys when its index fills the budget.
    pub(super) fn must_hold_index(&self, engine: &str) -> bool {
        self.ns(engine, What::HoldsIndex, 1.0, Used::Memory) > 0.5
    }

    /// Nanoseconds (or whatever the line has) at values of `bytes`. What was not measured beyond memory, or with hot keys and values so
    /// large, is as it is within memory.
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
