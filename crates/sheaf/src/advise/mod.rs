//! # Advise: which engine suits what a keyspace is used for
//!
//! A function of the sketch of its load ([`LoadStats`]), of how many keys there are, and of the memory there is. It predicts what an operation of
//! that load would cost with each engine, on the mean, and says which parts of the load decide.
//!
//! ## Picture
//!
//! ```text
//!   LoadStats ── shares ──┐
//!   keys, sizes ── what of it memory holds, what is hot ──┤  Σ share × cost  ──> ranked candidates, reasons, what hurts
//!   costs.tsv (measured) ─┘                     needs order? index fits? ──> ruled out
//! ```
//!
//! ## What it cannot know
//!
//! Costs were measured on one machine, one thread, one kind of operation at a time: mixes disturb caches, and background work of
//! writes is paid by reads. Ratios carry over better than figures. `sheaf advise --replay` measures the load itself.
//!
//! ## Costs
//!
//! Some microseconds; nothing is read or written.

mod costs;
mod words;

pub use costs::COSTS;

use crate::LoadStats;
use costs::{Used, What, costs};

/// What the processor's caches are taken to hold of the hottest pairs, in bytes, and what each takes there beside itself: lines of the index, and
/// what stands with it in a line.
const CACHES: f64 = (24 << 20) as f64;
const LINES: f64 = 256.0;
/// The share of the calls that the caches answered when the costs of hot keys were measured, by the same reckoning.
const HOT: f64 = 0.8;
/// Samples below which nothing is advised.
const TOO_FEW: u64 = 50;
/// Samples from which shares of a tenth are known within a tenth.
const ENOUGH: u64 = 1000;
/// Engines whose costs are within this of each other are as good.
const CLOSE: f64 = 1.1;
/// The shares of writes among single operations that mixes were measured with.
const FEW_WRITES: f64 = 0.1;
const MANY_WRITES: f64 = 0.5;
/// The share of writes from which gets cost what they cost among writes.
const WRITTEN: f64 = 0.05;
/// Engines that wait for the device as long as others, up to this factor, wait for the same: the journal is one for all of them.
const SAME_WAIT: f64 = 1.3;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// What the keyspace is used for.
    pub load: &'a LoadStats,
    /// Keys it has.
    pub keys: u64,
    /// The memory budget of its database.
    pub memory: u64,
}

/// How sure an advice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sureness {
    /// Too few operations were seen to say anything.
    No,
    /// Few operations were seen: rare kinds may be missing.
    Little,
    /// No cost was measured with values of about this size, or beyond memory as this load is: the order of the engines is a guess.
    Outside,
    /// The best ones are too close to each other to tell by a prediction.
    Close,
    /// As sure as a prediction can be.
    Good,
}

/// A part of what an operation of the load costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What.
    pub what: &'static str,
    /// Its share of the operations.
    pub share: f64,
    /// What one of them costs, in nanoseconds.
    pub ns: f64,
}

/// An engine that could keep the keyspace.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub engine: &'static str,
    /// What an operation of this load is predicted to cost, in nanoseconds.
    pub ns: f64,
    /// Of which.
    pub parts: Vec<Part>,
    /// Bytes of its index in memory.
    pub index: u64,
    /// Bytes of memory in which all that is in use would stay.
    pub resident: u64,
    /// The share of the reads that memory answers, with the budget there is.
    pub hits: f64,
    /// Bytes written to the device for a byte of the user's.
    pub device: f64,
    /// Bytes of the disk for a byte that is live, under updates.
    pub space: f64,
    /// Why it stands where it stands.
    pub reasons: Vec<String>,
    /// What is bad about it all the same.
    pub hurts: Vec<String>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The engines, the best one first.
    pub candidates: Vec<Candidate>,
    /// Engines that cannot keep it, and why.
    pub ruled_out: Vec<(&'static str, String)>,
    /// How sure it is.
    pub sureness: Sureness,
}

impl Advice {
    /// The engine to take; none if too little is known.
    #[must_use]
    pub fn best(&self) -> Option<&Candidate> {
        if self.sureness == Sureness::No { None } else { self.candidates.first() }
    }
}

/// Which engines suit, ranked.
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

/// Where most reads find what they look for.
fn used(hits: f64) -> Used {
    if hits > 0.9 { Used::Memory } else { Used::Beyond }
}

/// Why the engine cannot keep it.
fn rule_out(question: &Question<'_>, engine: &str) -> Option<String> {
    if question.load.all_scans() > 0 && !costs().is_ordered(engine) {
        return Some("it keeps no order of keys, and the load has scans".to_owned());
    }
    let index = index_bytes(question, engine);
    let needed = question.memory / 10 * 9;
    (index > needed && costs().must_hold_index(engine)).then(|| {
        let (index, budget) = (words::size(index), words::size(question.memory));
        format!("its index would take {index} of memory, the budget is {budget}")
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

/// What a commit waits for the device, in nanoseconds. What engines measured for that differ by is mostly the device's mood.
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

/// What single operations cost where a share of them writes. A mix of gets and writes costs more than its parts by themselves: gets
/// look into what was just written, too, and the more is written the more the background is in the way. So what a get costs comes from
/// mixes with few and with many writes, and what a write costs is what the mix of this share costs without its gets.
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

/// The share of reads that memory answers if it holds this part of the keys in use, the hottest ones.
fn hits(load: &LoadStats, part: f64) -> f64 {
    if part >= 1.0 {
        return 1.0;
    }
    let Some(skew) = load.skew else { return part };
    // Between the points that the sketch gives, in the logarithm of the part.
    let points = [(0.001, skew.hottest[0]), (0.01, skew.hottest[1]), (0.1, skew.hottest[2]), (1.0, 1.0)];
    if part <= points[0].0 {
        return points[0].1 * part / points[0].0;
    }
    let above = points.iter().position(|point| part <= point.0).unwrap_or(points.len() - 1);
    let ((low, from), (high, to)) = (points[above - 1], points[above]);
    from + (to - from) * (part / low).ln() / (high / low).ln()
}

/// What the load is made of, and what each costs; `wait`: a commit that waits for the device.
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
    // Of each of its operations, what a batch waits for.
    let batch_wait = if batched > 0.0 { wait * load.batches as f64 / batched } else { 0.0 };
    let part = |what, count: u64, ns: f64| Part { what, share: count as f64 / all, ns };
    let mut parts = vec![
        part("gets", load.gets_found + load.stream_reads, single.get),
        part("gets of nothing", load.gets_missing, cost(What::Miss) * more),
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
