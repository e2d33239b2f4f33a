//! # Workload: a list of steps, from a seed or written by hand
//!
//! Values depend on the step's number, so a stale value differs from a new one.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::fmt;

use super::history::KEYSPACE_NAMES;

/// A small deterministic random number generator (splitmix64).
#[derive(Clone, Debug)]
pub struct TestRandom(u64);

impl TestRandom {
    /// Returns a generator. Its numbers depend on `seed` only.
    #[must_use]
    pub fn new(seed: u64) -> TestRandom {
        TestRandom(seed)
    }

    /// Returns the next number.
    #[allow(clippy::should_implement_trait)] // it never ends
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Returns an index below `bound`.
    pub fn index_below(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index_below(last + 1));
        }
    }

    /// Returns true with probability 1 / `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// One write of a step: keyspace, key, and length of the value (`None` removes).
pub type PutSpec = (u8, u8, Option<u32>);

/// Target engines of conversions.
pub const CONVERSION_ENGINES: [&str; 6] = ["flat", "flat-ordered", "flex", "cedrus", "kreon", "delsm"];

/// Times to live in milliseconds: from less than one `tick` to more than a whole workload.
const TIMES_TO_LIVE: [u32; 6] = [1, 150, 300, 2_000, 10_000, 3_600_000];

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CrashStep {
    /// One operation with `Durability::Buffer`.
    Put(PutSpec),
    /// Several writes as one commit, with `Durability::Sync` if true.
    Batch(Vec<PutSpec>, bool),
    /// Merges a value into the one of each key that has a length, and removes the other keys: one
    /// commit with `Durability::Buffer`.
    Merge(Vec<PutSpec>),
    /// Sets a value that expires, with `Durability::Buffer`: keyspace, key, length of the value,
    /// and time to live in milliseconds. A workload with such a step creates all keyspaces with
    /// expiry.
    PutExpiring(u8, u8, u32, u32),
    /// Calls `persist`.
    Persist,
    /// Advances the clock past the sync interval and runs one round of background work.
    SyncInterval,
    /// Advances the clock far and runs background work until none is left.
    Background,
    /// Clears a keyspace.
    Clear(u8),
    /// Drops a keyspace; the next use creates it again.
    Drop(u8),
    /// Gives the first keyspace the name of the second one, if that does not exist.
    Rename(u8, u8),
    /// Compacts a keyspace, if its engine supports that.
    Compact(u8),
    /// Replaces a keyspace by a bulk load with a key count.
    Load(u8, u8),
    /// Converts a keyspace to the engine of this number in [`CONVERSION_ENGINES`], with a commit to
    /// it after every third step.
    Convert(u8, u8),
    /// Closes the database and opens it again.
    Reopen,
    /// Drops all handles without a close and opens the database again.
    DropHandles,
}

impl CrashStep {
    /// Whether the step writes a pair that expires.
    #[must_use]
    pub fn is_expiring(&self) -> bool {
        matches!(self, CrashStep::PutExpiring(..))
    }
}

impl fmt::Display for CrashStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let put = |(space, key, len): &PutSpec| match len {
            Some(len) => format!("{space}.{key}={len}"),
            None => format!("{space}.{key}-"),
        };
        match self {
            CrashStep::Put(one) => write!(f, "{}", put(one)),
            CrashStep::PutExpiring(space, key, len, ttl) => {
                write!(f, "{}~{ttl}", put(&(*space, *key, Some(*len))))
            }
            CrashStep::Batch(puts, _) | CrashStep::Merge(puts) => {
                let kind = match self {
                    CrashStep::Merge(_) => "M",
                    CrashStep::Batch(_, true) => "S",
                    _ => "B",
                };
                let puts: Vec<String> = puts.iter().map(put).collect();
                write!(f, "{kind}[{}]", puts.join(","))
            }
            CrashStep::Persist => write!(f, "persist"),
            CrashStep::SyncInterval => write!(f, "tick"),
            CrashStep::Background => write!(f, "work"),
            CrashStep::Clear(space) => write!(f, "clear{space}"),
            CrashStep::Drop(space) => write!(f, "drop{space}"),
            CrashStep::Rename(from, to) => write!(f, "rename{from}:{to}"),
            CrashStep::Compact(space) => write!(f, "compact{space}"),
            CrashStep::Load(space, count) => write!(f, "load{space}:{count}"),
            CrashStep::Convert(space, to) => {
                write!(f, "convert{space}:{}", CONVERSION_ENGINES[usize::from(*to)])
            }
            CrashStep::Reopen => write!(f, "reopen"),
            CrashStep::DropHandles => write!(f, "abandon"),
        }
    }
}

/// Returns the steps as one line that [`parse_steps`] can parse.
#[must_use]
pub fn format_steps(steps: &[CrashStep]) -> String {
    steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Parses a line written by [`format_steps`]. Returns `None` if it is invalid.
#[must_use]
pub fn parse_steps(line: &str) -> Option<Vec<CrashStep>> {
    line.split_whitespace().map(parse_step).collect()
}

fn parse_step(word: &str) -> Option<CrashStep> {
    Some(match word {
        "persist" => CrashStep::Persist,
        "tick" => CrashStep::SyncInterval,
        "work" => CrashStep::Background,
        "reopen" => CrashStep::Reopen,
        "abandon" => CrashStep::DropHandles,
        _ => {
            if let Some(space) = word.strip_prefix("clear") {
                CrashStep::Clear(space.parse().ok()?)
            } else if let Some(space) = word.strip_prefix("drop") {
                CrashStep::Drop(space.parse().ok()?)
            } else if let Some(rest) = word.strip_prefix("rename") {
                let (from, to) = rest.split_once(':')?;
                CrashStep::Rename(from.parse().ok()?, to.parse().ok()?)
            } else if let Some(space) = word.strip_prefix("compact") {
                CrashStep::Compact(space.parse().ok()?)
            } else if let Some(rest) = word.strip_prefix("load") {
                let (space, count) = rest.split_once(':')?;
                CrashStep::Load(space.parse().ok()?, count.parse().ok()?)
            } else if let Some(rest) = word.strip_prefix("convert") {
                let (space, engine) = rest.split_once(':')?;
                let to = CONVERSION_ENGINES.iter().position(|name| *name == engine)?;
                CrashStep::Convert(space.parse().ok()?, to as u8)
            } else if let Some(rest) = word.strip_suffix(']') {
                let (kind, list) = rest.split_once('[')?;
                let puts = list.split(',').map(parse_put).collect::<Option<Vec<_>>>()?;
                match kind {
                    "M" => CrashStep::Merge(puts),
                    _ => CrashStep::Batch(puts, kind == "S"),
                }
            } else if let Some((word, ttl)) = word.split_once('~') {
                let (space, key, len) = parse_put(word)?;
                CrashStep::PutExpiring(space, key, len?, ttl.parse().ok()?)
            } else {
                CrashStep::Put(parse_put(word)?)
            }
        }
    })
}

fn parse_put(word: &str) -> Option<PutSpec> {
    let (place, len) = match word.strip_suffix('-') {
        Some(place) => (place, None),
        None => {
            let (place, len) = word.split_once('=')?;
            (place, Some(len.parse().ok()?))
        }
    };
    let (space, key) = place.split_once('.')?;
    let space: u8 = space.parse().ok()?;
    (usize::from(space) < KEYSPACE_NAMES.len()).then_some(())?;
    Some((space, key.parse().ok()?, len))
}

/// Returns the bytes of key number `key`: an empty one, a long one, and prefixes of others.
#[must_use]
pub fn key_bytes(key: u8) -> Vec<u8> {
    match key {
        0 => Vec::new(),
        1 => vec![0xff; 70],
        key => format!("key{key}").into_bytes(),
    }
}

/// Returns the `len` bytes of write number `write` of step number `step`.
#[must_use]
pub fn value_bytes(step: usize, write: usize, len: u32) -> Vec<u8> {
    let tag = format!("<{step}.{write}>");
    tag.bytes().cycle().take(len as usize).collect()
}

/// Distribution of a generated workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadShape {
    /// Number of steps.
    pub steps: usize,
    /// Number of keyspaces.
    pub spaces: u64,
    /// Keys per keyspace.
    pub keys: u64,
    /// Maximum length of an ordinary value.
    pub len: u64,
    /// Length of the rare large values; 0 for none.
    pub large: u32,
    /// Whether background work runs often (GC, checkpoints).
    pub has_background_work: bool,
    /// Whether keyspaces are dropped, cleared and created again.
    pub has_drops: bool,
    /// Whether keyspaces are compacted.
    pub has_compactions: bool,
    /// Whether keyspaces are bulk-loaded and converted.
    pub has_loads_and_conversions: bool,
    /// Whether keyspaces are renamed and values merged. Without it, the workload of a seed is that
    /// of earlier versions, which some tests need.
    pub has_renames_and_merges: bool,
    /// Whether pairs expire. Without it, the workload of a seed is that of earlier versions.
    pub has_expiry: bool,
}

impl Default for WorkloadShape {
    fn default() -> WorkloadShape {
        WorkloadShape {
            steps: 30,
            spaces: 3,
            keys: 8,
            len: 120,
            large: 700,
            has_background_work: false,
            has_drops: false,
            has_compactions: false,
            has_loads_and_conversions: false,
            has_renames_and_merges: false,
            has_expiry: false,
        }
    }
}

/// Generates the steps of `seed`.
#[must_use]
pub fn generate(seed: u64, shape: &WorkloadShape) -> Vec<CrashStep> {
    let mut random = TestRandom::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    (0..shape.steps).map(|_| step(&mut random, shape)).collect()
}

fn step(random: &mut TestRandom, shape: &WorkloadShape) -> CrashStep {
    let background = if shape.has_background_work { 25 } else { 10 };
    match random.below(100) {
        n if n < background / 2 => CrashStep::SyncInterval,
        n if n < background => CrashStep::Background,
        n if n < background + 6 => CrashStep::Persist,
        n if n < background + 9 => CrashStep::Reopen,
        n if n < background + 10 => CrashStep::DropHandles,
        n if n < background + 13 && shape.has_drops => CrashStep::Drop(random.below(shape.spaces) as u8),
        n if n < background + 15 && shape.has_drops => CrashStep::Clear(random.below(shape.spaces) as u8),
        n if n < background + 18 && shape.has_drops && shape.has_renames_and_merges => {
            let from = random.below(shape.spaces);
            CrashStep::Rename(from as u8, ((from + 1) % shape.spaces) as u8)
        }
        n if n < background + 20 && shape.has_compactions => {
            CrashStep::Compact(random.below(shape.spaces) as u8)
        }
        n if n < background + 24 && shape.has_loads_and_conversions => {
            CrashStep::Load(random.below(shape.spaces) as u8, random.below(40) as u8)
        }
        n if n < background + 32 && shape.has_loads_and_conversions => CrashStep::Convert(
            random.below(shape.spaces) as u8,
            random.below(CONVERSION_ENGINES.len() as u64) as u8,
        ),
        n if n < 65 => match put(random, shape) {
            (space, key, Some(len)) if shape.has_expiry && !random.one_in(3) => CrashStep::PutExpiring(
                space,
                key,
                len,
                TIMES_TO_LIVE[random.index_below(TIMES_TO_LIVE.len())],
            ),
            other => CrashStep::Put(other),
        },
        n => {
            let count = 1 + random.below(4);
            let puts = (0..count).map(|_| put(random, shape)).collect();
            if n >= 92 && shape.has_renames_and_merges {
                CrashStep::Merge(puts)
            } else {
                CrashStep::Batch(puts, n >= 82)
            }
        }
    }
}

fn put(random: &mut TestRandom, shape: &WorkloadShape) -> PutSpec {
    let key = random.below(shape.keys).min(random.below(shape.keys)) as u8;
    let len = match random.below(20) {
        0..4 => None,
        4 => Some(0),
        5 if shape.large > 0 => Some(shape.large - random.below(u64::from(shape.large / 4 + 1)) as u32),
        _ => Some(random.below(shape.len + 1) as u32),
    };
    (random.below(shape.spaces) as u8, key, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_line_reads_back() {
        for seed in 0..50 {
            let spaces = [3, KEYSPACE_NAMES.len() as u64][seed as usize % 2];
            let shape = WorkloadShape {
                spaces,
                has_drops: true,
                has_background_work: true,
                has_compactions: true,
                has_loads_and_conversions: true,
                has_renames_and_merges: true,
                has_expiry: true,
                ..WorkloadShape::default()
            };
            let steps = generate(seed, &shape);
            assert_eq!(parse_steps(&format_steps(&steps)), Some(steps));
        }
        assert_eq!(parse_steps("0.1=x"), None);
        assert_eq!(parse_steps("9.1=1"), None);
    }
}
