//! # Advise: recommends an engine for the workload of a keyspace
//!
//! Predicts the mean cost of an operation with each engine, from the workload statistics
//! ([`WorkloadStats`]), the number of keys and the memory budget, and names the decisive parts of
//! the workload.
//!
//! ## Picture
//!
//! ```text
//!   WorkloadStats ── shares ─────────┐
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
mod explanation;

pub use costs::COSTS;

use costs::{CostKind, KeyLocality, cost_table};
use sheaf::WorkloadStats;

/// Assumed size of the processor's caches in bytes, and the extra cache space of each pair: lines
/// of the index, and its neighbours in a line.
const CPU_CACHE_BYTES: f64 = (24 << 20) as f64;
const PAIR_CACHE_OVERHEAD: f64 = 256.0;
/// Share of the calls that hit the processor's caches when the costs of hot keys were measured,
/// computed in the same way.
const MEASURED_HIT_SHARE: f64 = 0.8;
/// Number of samples below which there is no recommendation.
const MIN_SAMPLES: u64 = 50;
/// Number of samples above which a share of 10 % is known within a tenth.
const CONFIDENT_SAMPLES: u64 = 1000;
/// Engines with costs within this factor are considered equal.
const CLOSE_FACTOR: f64 = 1.1;
/// Shares of writes in the measured mixes of single operations.
const FEW_WRITES: f64 = 0.1;
const MANY_WRITES: f64 = 0.5;
/// Share of writes above which gets have the full cost of gets among writes.
const FULL_MIX_WRITES: f64 = 0.05;
/// Up to this factor, differences between the device waits of engines are noise: they share the
/// journal.
const WAIT_NOISE_FACTOR: f64 = 1.3;

/// Input of [`advise`].
#[derive(Clone, Debug)]
pub struct AdviceRequest<'a> {
    /// Workload statistics of the keyspace.
    pub workload: &'a WorkloadStats,
    /// Number of keys in the keyspace.
    pub key_count: u64,
    /// Memory budget of the database in bytes.
    pub memory_budget: u64,
}

/// Confidence of an advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Confidence {
    /// Too few operations were sampled for a recommendation.
    TooFewSamples,
    /// Few operations were sampled; rare kinds may be missing.
    FewSamples,
    /// The costs were not measured for values of about this size, or not for data beyond memory:
    /// the ranking is a guess.
    Extrapolated,
    /// The best engines are too close for a prediction.
    CloseCandidates,
    /// The highest confidence that a prediction can have.
    High,
}

/// Share of one kind of operation in the predicted cost.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CostPart {
    /// Kind of operation.
    pub operation: &'static str,
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
    pub parts: Vec<CostPart>,
    /// Memory for the index in bytes.
    pub index_bytes: u64,
    /// Memory in bytes that would hold the index and all keys in use.
    pub resident_bytes: u64,
    /// Share of the reads that memory answers with the present budget, from 0 to 1.
    pub hit_rate: f64,
    /// Bytes written to the device per byte written by the user.
    pub write_amplification: f64,
    /// Disk space per live byte under updates.
    pub space_amplification: f64,
    /// Reasons for the rank.
    pub reasons: Vec<String>,
    /// Drawbacks.
    pub drawbacks: Vec<String>,
}

/// Result of [`advise`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Advice {
    /// Possible engines, the best first.
    pub candidates: Vec<Candidate>,
    /// Engines that cannot store the keyspace, with the reason.
    pub excluded: Vec<(&'static str, String)>,
    /// Confidence of the ranking.
    pub confidence: Confidence,
}

impl Advice {
    /// Returns the recommended engine, or `None` if too little is known.
    ///
    /// ```
    /// use sheaf::WorkloadStats;
    /// use sheaf_advisor::{AdviceRequest, advise};
    ///
    /// let unused = WorkloadStats::default();
    /// let request = AdviceRequest { workload: &unused, key_count: 0, memory_budget: 1 << 30 };
    /// let advice = advise(&request);
    /// assert!(advice.best().is_none(), "no operation was sampled");
    /// ```
    #[must_use]
    pub fn best(&self) -> Option<&Candidate> {
        if self.confidence == Confidence::TooFewSamples { None } else { self.candidates.first() }
    }
}

/// Ranks the engines for a workload.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// use sheaf_advisor::{AdviceRequest, advise};
///
/// for index in 0..10_000_u32 {
///     users.insert(index.to_be_bytes(), "")?;
/// }
/// let load = users.workload()?;
/// let key_count = users.len()?;
/// let advice = advise(&AdviceRequest { workload: &load, key_count, memory_budget: 1 << 30 });
/// if let Some(best) = advice.best() {
///     println!("{}: {:.0} ns per operation, {:?}", best.engine, best.ns, advice.confidence);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn advise(request: &AdviceRequest<'_>) -> Advice {
    let (mut candidates, mut excluded) = (Vec::new(), Vec::new());
    for engine in cost_table().engines() {
        match exclusion_reason(request, engine) {
            Some(why) => excluded.push((engine, why)),
            None => candidates.push(candidate(request, engine)),
        }
    }
    candidates.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    let sureness = match &candidates[..] {
        _ if request.workload.samples < MIN_SAMPLES => Confidence::TooFewSamples,
        _ if request.workload.samples < CONFIDENT_SAMPLES => Confidence::FewSamples,
        [first, ..]
            if !cost_table().covers(request.workload.value_bytes.mean, key_locality(first.hit_rate)) =>
        {
            Confidence::Extrapolated
        }
        [first, second, ..] if second.ns < first.ns * CLOSE_FACTOR => Confidence::CloseCandidates,
        _ => Confidence::High,
    };
    explanation::explain(request, &mut candidates);
    Advice { candidates, excluded, confidence: sureness }
}

/// Returns the place where most reads find their pair.
fn key_locality(hits: f64) -> KeyLocality {
    if hits > 0.9 { KeyLocality::Memory } else { KeyLocality::Disk }
}

/// Returns the reason why the engine cannot store the keyspace, if there is one.
fn exclusion_reason(question: &AdviceRequest<'_>, engine: &str) -> Option<String> {
    if question.workload.all_scans() > 0 && !cost_table().is_ordered(engine) {
        return Some("it has no key order, and the workload has scans".to_owned());
    }
    let index = index_bytes(question, engine);
    let needed = question.memory_budget / 10 * 9;
    (index > needed && cost_table().requires_index_in_memory(engine)).then(|| {
        let (index, budget) = (explanation::size(index), explanation::size(question.memory_budget));
        format!("its index needs {index} of memory; the budget is {budget}")
    })
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
fn index_bytes(question: &AdviceRequest<'_>, engine: &str) -> u64 {
    let (plain, per_key_byte) = cost_table().index(engine);
    (question.key_count as f64 * (plain + per_key_byte * question.workload.key_bytes.mean)) as u64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
fn candidate(question: &AdviceRequest<'_>, engine: &'static str) -> Candidate {
    let load = question.workload;
    let index = index_bytes(question, engine);
    let pair = load.key_bytes.mean + load.value_bytes.mean;
    let used =
        load.skew.map_or(question.key_count as f64, |skew| skew.keys.min(question.key_count.max(1) as f64));
    let resident = index + (used * pair * 1.15) as u64;
    let room = question.memory_budget.saturating_sub(index) as f64;
    let hits_of = |bytes: f64, pair: f64| hit_rate(load, bytes / (used * pair).max(1.0));
    let hits = hits_of(room, pair * 1.15);
    let hot = (hits_of(CPU_CACHE_BYTES, pair + PAIR_CACHE_OVERHEAD) / MEASURED_HIT_SHARE).min(hits);
    let bytes = load.value_bytes.mean.max(1.0);
    let cost = |what: CostKind| {
        let of = |used| cost_table().ns(engine, what, bytes, used);
        hot * of(KeyLocality::Hot)
            + (hits - hot) * of(KeyLocality::Memory)
            + (1.0 - hits) * of(KeyLocality::Disk)
    };
    let parts = parts(load, cost, device_wait(engine, bytes));
    let ns = parts.iter().map(|part| part.share * part.ns).sum();
    let factor = |what: CostKind| cost_table().ns(engine, what, bytes, KeyLocality::Memory);
    Candidate {
        engine,
        ns,
        parts,
        index_bytes: index,
        resident_bytes: resident,
        hit_rate: hits,
        write_amplification: factor(CostKind::Device),
        space_amplification: factor(CostKind::Space),
        reasons: Vec::new(),
        drawbacks: Vec::new(),
    }
}

/// Returns the time that a commit waits for the device in nanoseconds. Measured differences between
/// engines are mostly noise of the device.
fn device_wait(engine: &str, bytes: f64) -> f64 {
    let of = |engine: &str| {
        let single = SingleOperationCosts::with_writes(MANY_WRITES, |what| {
            cost_table().ns(engine, what, bytes, KeyLocality::Memory)
        });
        (cost_table().ns(engine, CostKind::Durable, bytes, KeyLocality::Memory) - single.overwrite).max(0.0)
    };
    let mut all: Vec<f64> = cost_table().engines().into_iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    let (own, usual) = (of(engine), all[all.len() / 2]);
    if own > WAIT_NOISE_FACTOR * usual { own } else { usual }
}

/// Cost of single operations in a mix with a given share of writes.
///
/// A mix of gets and writes costs more than its parts alone: gets also search recent writes, and
/// background work grows with the writes. The cost of a get is therefore derived from mixes with
/// few and with many writes. The cost of a write is the cost of the mix without its gets.
#[derive(Clone, Copy, Debug)]
struct SingleOperationCosts {
    get: f64,
    overwrite: f64,
    new: f64,
}

impl SingleOperationCosts {
    fn with_writes(writes: f64, cost: impl Fn(CostKind) -> f64) -> SingleOperationCosts {
        let (few, many) = (cost(CostKind::TenthOverwrites), cost(CostKind::HalfOverwrites));
        let slope = (many - few) / (MANY_WRITES - FEW_WRITES);
        let (alone, among) = (cost(CostKind::Get), (few - FEW_WRITES * slope).max(cost(CostKind::Get)));
        let share = writes.clamp(FEW_WRITES, MANY_WRITES);
        let mix = few + (share - FEW_WRITES) * slope;
        let write = |mix: f64| ((mix - (1.0 - share) * among) / share).max(1.0);
        SingleOperationCosts {
            get: alone + (among - alone) * (writes / FULL_MIX_WRITES).min(1.0),
            overwrite: write(mix),
            new: write(mix * cost(CostKind::HalfNew) / many.max(1.0)),
        }
    }
}

/// Returns the share of reads that memory answers if it holds this part of the keys in use, the
/// hottest ones.
fn hit_rate(load: &WorkloadStats, part: f64) -> f64 {
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
fn parts(load: &WorkloadStats, cost: impl Fn(CostKind) -> f64, wait: f64) -> Vec<CostPart> {
    let all = load.operations().max(1) as f64;
    let single = SingleOperationCosts::with_writes(load.writes() as f64 / all, &cost);
    let more = single.get / cost(CostKind::Get).max(1.0);
    let set = single.overwrite * (1.0 - load.new_share)
        + load.new_share
            * (cost(CostKind::Append) * load.sequential_share + single.new * (1.0 - load.sequential_share));
    let batch = cost(CostKind::Batch) * (1.0 - load.new_share) + cost(CostKind::BatchNew) * load.new_share;
    let wait = wait * load.durable_share;
    let pairs = (load.scan_pairs.mean - 1.0).max(0.0);
    let batched = (load.batch_inserts + load.batch_removes) as f64;
    // Each operation gets its share of the wait of its batch.
    let batch_wait = if batched > 0.0 { wait * load.batches as f64 / batched } else { 0.0 };
    let part = |what, count: u64, ns: f64| CostPart { operation: what, share: count as f64 / all, ns };
    let mut parts = vec![
        part("gets", load.gets_found + load.stream_reads, single.get),
        part("gets of missing keys", load.gets_missing, cost(CostKind::Miss) * more),
        part("contains", load.contains, cost(CostKind::Contains) * more),
        part("inserts", load.inserts + load.stream_writes, set + wait),
        part("removals", load.removes, single.overwrite + wait),
        part("updates", load.updates, cost(CostKind::Update) + wait),
        part("writes in batches", load.batch_inserts + load.batch_removes, batch + batch_wait),
        part("scans", load.scans, cost(CostKind::Seek) + pairs * cost(CostKind::Pair)),
        part("reverse scans", load.scans_reverse, cost(CostKind::Seek) + pairs * cost(CostKind::PairBack)),
    ];
    parts.retain(|part| part.share > 0.0);
    parts
}

#[cfg(test)]
mod tests;
