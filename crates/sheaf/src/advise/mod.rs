//! # Advise: recommends an engine for the workload of a keyspace
//!
//! Predicts the mean cost of an operation with each engine, from the workload statistics
//! ([`LoadStats`]), the number of keys and the memory budget, and names the decisive parts of the
//! workload.
//!
//! ## Picture
//!
//! ```text
//!   LoadStats ── shares ─────────┐
//!   keys, sizes ── cache hits ───┤  Σ share × cost  ──> ranked candidates, reasons, drawbacks
//!   costs.tsv (measured) ────────┘  ordered? index fits? ──> excluded engines
//! ```
//!
//! ## Limits
//!
//! The costs were measured on one machine, with one thread and one kind of operation at a time.
//! Mixed operations share caches, and reads pay for background work of writes. Ratios carry over
//! better than absolute figures. `sheaf advise --replay` measures the workload itself.
//!
//! ## Costs
//!
//! Some microseconds; no I/O.

mod costs;
mod words;

pub use costs::COSTS;

use crate::LoadStats;
use costs::{Used, What, costs};

/// Assumed size of the processor's caches in bytes, and the extra cache space of each pair: lines
/// of the index, and its neighbours in a line.
const CACHES: f64 = (24 << 20) as f64;
const LINES: f64 = 256.0;
/// Share of the calls that hit the processor's caches when the costs of hot keys were measured,
/// computed in the same way.
const HOT: f64 = 0.8;
/// Number of samples below which there is no recommendation.
const TOO_FEW: u64 = 50;
/// Number of samples above which a share of 10 % is known within a tenth.
const ENOUGH: u64 = 1000;
/// Engines with costs within this factor are considered equal.
const CLOSE: f64 = 1.1;
/// Shares of writes in the measured mixes of single operations.
const FEW_WRITES: f64 = 0.1;
const MANY_WRITES: f64 = 0.5;
/// Share of writes above which gets have the full cost of gets among writes.
const WRITTEN: f64 = 0.05;
/// Up to this factor, differences between the device waits of engines are noise: they share the
/// journal.
const SAME_WAIT: f64 = 1.3;

/// Input of [`advise`].
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Workload statistics of the keyspace.
    pub load: &'a LoadStats,
    /// Number of keys in the keyspace.
    pub keys: u64,
    /// Memory budget of the database in bytes.
    pub memory: u64,
}

/// Confidence of an advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sureness {
    /// Too few operations were sampled for a recommendation.
    No,
    /// Few operations were sampled; rare kinds may be missing.
    Little,
    /// The costs were not measured for values of about this size, or not for data beyond memory:
    /// the ranking is a guess.
    Outside,
    /// The best engines are too close for a prediction.
    Close,
    /// The highest confidence that a prediction can have.
    Good,
}

/// Share of one kind of operation in the predicted cost.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Part {
    /// Kind of operation.
    pub what: &'static str,
    /// Share of these operations among all, from 0 to 1.
    pub share: f64,
    /// Cost of one such operation in nanoseconds.
    pub ns: f64,
}

/// Engine that can store the keyspace, with its predicted costs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Candidate {
    /// Name of the engine.
    pub engine: &'static str,
    /// Predicted mean cost of an operation of this workload in nanoseconds.
    pub ns: f64,
    /// Parts of the cost, by kind of operation.
    pub parts: Vec<Part>,
    /// Memory for the index in bytes.
    pub index: u64,
    /// Memory in bytes that would hold the index and all keys in use.
    pub resident: u64,
    /// Share of the reads that memory answers with the present budget, from 0 to 1.
    pub hits: f64,
    /// Bytes written to the device per byte written by the user.
    pub device: f64,
    /// Disk space per live byte under updates.
    pub space: f64,
    /// Reasons for the rank.
    pub reasons: Vec<String>,
    /// Drawbacks.
    pub hurts: Vec<String>,
}

/// Result of [`advise`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Advice {
    /// Possible engines, the best first.
    pub candidates: Vec<Candidate>,
    /// Engines that cannot store the keyspace, with the reason.
    pub ruled_out: Vec<(&'static str, String)>,
    /// Confidence of the ranking.
    pub sureness: Sureness,
}

impl Advice {
    /// Returns the recommended engine, or `None` if too little is known.
    ///
    /// ```
    /// use sheaf::LoadStats;
    /// use sheaf::advise::{Question, advise};
    ///
    /// let unused = LoadStats::default();
    /// let advice = advise(&Question { load: &unused, keys: 0, memory: 1 << 30 });
    /// assert!(advice.best().is_none(), "no operation was sampled");
    /// ```
    #[must_use]
    pub fn best(&self) -> Option<&Candidate> {
        if self.sureness == Sureness::No { None } else { self.candidates.first() }
    }
}

/// Ranks the engines for a workload.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// use sheaf::advise::{Question, advise};
///
/// for index in 0..10_000_u32 {
///     users.insert(index.to_be_bytes(), "")?;
/// }
/// let load = users.load()?;
/// let advice = advise(&Question { load: &load, keys: users.len()?, memory: 1 << 30 });
/// if let Some(best) = advice.best() {
///     println!("{}: {:.0} ns per operation, {:?}", best.engine, best.ns, advice.sureness);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn advise(question: &Question<'_>) -> Advice {
    let (mut candidates, mut ruled_out) = (Vec::new(), Vec::new());
    for engine in costs().engines() {
        match rule_out(question, engine) {
            Some(why) => ruled_out.push((engine, why)),
            None => candidates.push(candidate(question, engine)),
        }
    }
    candidates.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    let sureness = match &candidates[..] {
        _ if question.load.samples < TOO_FEW => Sureness::No,
        _ if question.load.samples < ENOUGH => Sureness::Little,
        [first, ..] if !costs().covers(question.load.value_bytes.mean, used(first.hits)) => Sureness::Outside,
        [first, second, ..] if second.ns < first.ns * CLOSE => Sureness::Close,
        _ => Sureness::Good,
    };
    words::explain(question, &mut candidates);
    Advice { candidates, ruled_out, sureness }
}

/// Returns the place where most reads find their pair.
fn used(hits: f64) -> Used {
    if hits > 0.9 { Used::Memory } else { Used::Beyond }
}

/// Returns the reason why the engine cannot store the keyspace, if there is one.
fn rule_out(question: &Question<'_>, engine: &str) -> Option<String> {
    if question.load.all_scans() > 0 && !costs().is_ordered(engine) {
        return Some("it has no key order, and the workload has scans".to_owned());
    }
    let index = index_bytes(question, engine);
    let needed = question.memory / 10 * 9;
    (index > needed && costs().must_hold_index(engine)).then(|| {
        let (index, budget) = (words::size(index), words::size(question.memory));
        format!("its index needs {index} of memory; the budget is {budget}")
    })
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
fn index_bytes(question: &Question<'_>, engine: &str) -> u64 {
    let (plain, per_key_byte) = costs().index(engine);
    (question.keys as f64 * (plain + per_key_byte * question.load.key_bytes.mean)) as u64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
fn candidate(question: &Question<'_>, engine: &'static str) -> Candidate {
    let load = question.load;
    let index = index_bytes(question, engine);
    let pair = load.key_bytes.mean + load.value_bytes.mean;
    let used = load.skew.map_or(question.keys as f64, |skew| skew.keys.min(question.keys.max(1) as f64));
    let resident = index + (used * pair * 1.15) as u64;
    let room = question.memory.saturating_sub(index) as f64;
    let hits_of = |bytes: f64, pair: f64| hits(load, bytes / (used * pair).max(1.0));
    let hits = hits_of(room, pair * 1.15);
    let hot = (hits_of(CACHES, pair + LINES) / HOT).min(hits);
    let bytes = load.value_bytes.mean.max(1.0);
    let cost = |what: What| {
        let of = |used| costs().ns(engine, what, bytes, used);
        hot * of(Used::Hot) + (hits - hot) * of(Used::Memory) + (1.0 - hits) * of(Used::Beyond)
    };
    let parts = parts(load, cost, wait(engine, bytes));
    let ns = parts.iter().map(|part| part.share * part.ns).sum();
    let factor = |what: What| costs().ns(engine, what, bytes, Used::Memory);
    Candidate {
        engine,
        ns,
        parts,
        index,
        resident,
        hits,
        device: factor(What::Device),
        space: factor(What::Space),
        reasons: Vec::new(),
        hurts: Vec::new(),
    }
}

/// Returns the time that a commit waits for the device in nanoseconds. Measured differences between
/// engines are mostly noise of the device.
fn wait(engine: &str, bytes: f64) -> f64 {
    let of = |engine: &str| {
        let single = Single::of(MANY_WRITES, |what| costs().ns(engine, what, bytes, Used::Memory));
        (costs().ns(engine, What::Durable, bytes, Used::Memory) - single.overwrite).max(0.0)
    };
    let mut all: Vec<f64> = costs().engines().into_iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    let (own, usual) = (of(engine), all[all.len() / 2]);
    if own > SAME_WAIT * usual { own } else { usual }
}

/// Cost of single operations in a mix with a given share of writes.
///
/// A mix of gets and writes costs more than its parts alone: gets also search recent writes, and
/// background work grows with the writes. The cost of a get is therefore derived from mixes with
/// few and with many writes. The cost of a write is the cost of the mix without its gets.
#[derive(Clone, Copy, Debug)]
struct Single {
    get: f64,
    overwrite: f64,
    new: f64,
}

impl Single {
    fn of(writes: f64, cost: impl Fn(What) -> f64) -> Single {
        let (few, many) = (cost(What::TenthOverwrites), cost(What::HalfOverwrites));
        let slope = (many - few) / (MANY_WRITES - FEW_WRITES);
        let (alone, among) = (cost(What::Get), (few - FEW_WRITES * slope).max(cost(What::Get)));
        let share = writes.clamp(FEW_WRITES, MANY_WRITES);
        let mix = few + (share - FEW_WRITES) * slope;
        let write = |mix: f64| ((mix - (1.0 - share) * among) / share).max(1.0);
        Single {
            get: alone + (among - alone) * (writes / WRITTEN).min(1.0),
            overwrite: write(mix),
            new: write(mix * cost(What::HalfNew) / many.max(1.0)),
        }
    }
}

/// Returns the share of reads that memory answers if it holds this part of the keys in use, the
/// hottest ones.
fn hits(load: &LoadStats, part: f64) -> f64 {
    if part >= 1.0 {
        return 1.0;
    }
    let Some(skew) = load.skew else { return part };
    // Interpolates between the points of the statistics, over the logarithm of the part.
    let points = [(0.001, skew.hottest[0]), (0.01, skew.hottest[1]), (0.1, skew.hottest[2]), (1.0, 1.0)];
    if part <= points[0].0 {
        return points[0].1 * part / points[0].0;
    }
    let above = points.iter().position(|point| part <= point.0).unwrap_or(points.len() - 1);
    let ((low, from), (high, to)) = (points[above - 1], points[above]);
    from + (to - from) * (part / low).ln() / (high / low).ln()
}

/// Returns the kinds of operations of the load with their costs. `wait` is the time that a durable
/// commit waits for the device.
fn parts(load: &LoadStats, cost: impl Fn(What) -> f64, wait: f64) -> Vec<Part> {
    let all = load.operations().max(1) as f64;
    let single = Single::of(load.writes() as f64 / all, &cost);
    let more = single.get / cost(What::Get).max(1.0);
    let set = single.overwrite * (1.0 - load.new_share)
        + load.new_share
            * (cost(What::Append) * load.sequential_share + single.new * (1.0 - load.sequential_share));
    let batch = cost(What::Batch) * (1.0 - load.new_share) + cost(What::BatchNew) * load.new_share;
    let wait = wait * load.durable_share;
    let pairs = (load.scan_pairs.mean - 1.0).max(0.0);
    let batched = (load.batch_inserts + load.batch_removes) as f64;
    // Each operation gets its share of the wait of its batch.
    let batch_wait = if batched > 0.0 { wait * load.batches as f64 / batched } else { 0.0 };
    let part = |what, count: u64, ns: f64| Part { what, share: count as f64 / all, ns };
    let mut parts = vec![
        part("gets", load.gets_found + load.stream_reads, single.get),
        part("gets of missing keys", load.gets_missing, cost(What::Miss) * more),
        part("contains", load.contains, cost(What::Contains) * more),
        part("inserts", load.inserts + load.stream_writes, set + wait),
        part("removals", load.removes, single.overwrite + wait),
        part("updates", load.updates, cost(What::Update) + wait),
        part("writes in batches", load.batch_inserts + load.batch_removes, batch + batch_wait),
        part("scans", load.scans, cost(What::Seek) + pairs * cost(What::Pair)),
        part("reverse scans", load.scans_reverse, cost(What::Seek) + pairs * cost(What::PairBack)),
    ];
    parts.retain(|part| part.share > 0.0);
    parts
}

#[cfg(test)]
mod tests;
