//! # Workload: a list of steps, from a seed or by hand
//!
//! Values are made from the step's number, so a stale value is never mistaken for a fresh one.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::fmt;

use super::history::NAMES;

/// A small deterministic generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that depend on `seed` alone.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    #[allow(clippy::should_implement_trait)] // it never ends
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// A place in something of `bound` items.
    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// Puts `items` into any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// One write of a step: which keyspace, which key, how long a value (`None` removes).
pub type Put = (u8, u8, Option<u32>);

/// What keyspaces are converted to.
pub const ENGINES: [&str; 6] = ["flat", "flat-ordered", "flex", "cedrus", "kreon", "delsm"];

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// One operation with `Durability::Buffer`.
    One(Put),
    /// Several as one commit; with `true` on the device on return.
    Batch(Vec<Put>, bool),
    /// `persist`.
    Persist,
    /// The clock passes the sync interval and one round of background work runs.
    Tick,
    /// The clock goes far ahead and background work runs until there is none.
    Work,
    /// A keyspace is emptied.
    Clear(u8),
    /// A keyspace is dropped; the next use makes it again.
    Drop(u8),
    /// A keyspace is compacted, where its engine can be.
    Compact(u8),
    /// A keyspace is replaced by a bulk load of so many pairs.
    Load(u8, u8),
    /// A keyspace is converted to the engine of this number in [`ENGINES`], with a commit to it after each third step.
    Convert(u8, u8),
    /// A clean close, and open again.
    Reopen,
    /// Every handle is dropped without a close: and open again.
    Abandon,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let put = |(space, key, len): &Put| match len {
            Some(len) => format!("{space}.{key}={len}"),
            None => format!("{space}.{key}-"),
        };
        match self {
            Step::One(one) => write!(f, "{}", put(one)),
            Step::Batch(puts, sync) => {
                let puts: Vec<String> = puts.iter().map(put).collect();
                write!(f, "{}[{}]", if *sync { "S" } else { "B" }, puts.join(","))
            }
            Step::Persist => write!(f, "persist"),
            Step::Tick => write!(f, "tick"),
            Step::Work => write!(f, "work"),
            Step::Clear(space) => write!(f, "clear{space}"),
            Step::Drop(space) => write!(f, "drop{space}"),
            Step::Compact(space) => write!(f, "compact{space}"),
            Step::Load(space, count) => write!(f, "load{space}:{count}"),
            Step::Convert(space, to) => write!(f, "convert{space}:{}", ENGINES[usize::from(*to)]),
            Step::Reopen => write!(f, "reopen"),
            Step::Abandon => write!(f, "abandon"),
        }
    }
}

/// Steps as one line that [`parse`] reads back.
#[must_use]
pub fn show(steps: &[Step]) -> String {
    steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// The steps of a line written by [`show`]; `None` if it is none.
#[must_use]
pub fn parse(line: &str) -> Option<Vec<Step>> {
    line.split_whitespace().map(parse_step).collect()
}

fn parse_step(word: &str) -> Option<Step> {
    Some(match word {
        "persist" => Step::Persist,
        "tick" => Step::Tick,
        "work" => Step::Work,
        "reopen" => Step::Reopen,
        "abandon" => Step::Abandon,
        _ => {
            if let Some(space) = word.strip_prefix("clear") {
                Step::Clear(space.parse().ok()?)
            } else if let Some(space) = word.strip_prefix("drop") {
                Step::Drop(space.parse().ok()?)
            } else if let Some(space) = word.strip_prefix("compact") {
                Step::Compact(space.parse().ok()?)
            } else if let Some(rest) = word.strip_prefix("load") {
                let (space, count) = rest.split_once(':')?;
                Step::Load(space.parse().ok()?, count.parse().ok()?)
            } else if let Some(rest) = word.strip_prefix("convert") {
                let (space, engine) = rest.split_once(':')?;
                let to = ENGINES.iter().position(|name| *name == engine)?;
                Step::Convert(space.parse().ok()?, to as u8)
            } else if let Some(rest) = word.strip_suffix(']') {
                let (kind, list) = rest.split_once('[')?;
                let puts = list.split(',').map(parse_put).collect::<Option<Vec<_>>>()?;
                Step::Batch(puts, kind == "S")
            } else {
                Step::One(parse_put(word)?)
            }
        }
    })
}

fn parse_put(word: &str) -> Option<Put> {
    let (place, len) = match word.strip_suffix('-') {
        Some(place) => (place, None),
        None => {
            let (place, len) = word.split_once('=')?;
            (place, Some(len.parse().ok()?))
        }
    };
    let (space, key) = place.split_once('.')?;
    let space: u8 = space.parse().ok()?;
    (usize::from(space) < NAMES.len()).then_some(())?;
    Some((space, key.parse().ok()?, len))
}

/// The bytes of key number `key`: the empty one, long ones, ones that are prefixes of others.
#[must_use]
pub fn key_bytes(key: u8) -> Vec<u8> {
    match key {
        0 => Vec::new(),
        1 => vec![0xff; 70],
        key => format!("key{key}").into_bytes(),
    }
}

/// The `len` bytes that write number `write` of step number `step` puts.
#[must_use]
pub fn value_bytes(step: usize, write: usize, len: u32) -> Vec<u8> {
    let tag = format!("<{step}.{write}>");
    tag.bytes().cycle().take(len as usize).collect()
}

/// What a generated workload is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many steps.
    pub steps: usize,
    /// How many keyspaces.
    pub spaces: u64,
    /// How many keys a keyspace.
    pub keys: u64,
    /// Longest usual value.
    pub len: u64,
    /// Length of the rare large ones; 0 for none.
    pub large: u32,
    /// Whether background work is asked for often (cleaning, checkpoints).
    pub busy: bool,
    /// Whether keyspaces come and go.
    pub drops: bool,
    /// Whether they are compacted.
    pub compacts: bool,
    /// Whether they are loaded in bulk and converted.
    pub moves: bool,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            steps: 30,
            spaces: 3,
            keys: 8,
            len: 120,
            large: 700,
            busy: false,
            drops: false,
            compacts: false,
            moves: false,
        }
    }
}

/// The steps of `seed`.
#[must_use]
pub fn generate(seed: u64, shape: &Shape) -> Vec<Step> {
    let mut random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    (0..shape.steps).map(|_| step(&mut random, shape)).collect()
}

fn step(random: &mut Random, shape: &Shape) -> Step {
    let background = if shape.busy { 25 } else { 10 };
    match random.below(100) {
        n if n < background / 2 => Step::Tick,
        n if n < background => Step::Work,
        n if n < background + 6 => Step::Persist,
        n if n < background + 9 => Step::Reopen,
        n if n < background + 10 => Step::Abandon,
        n if n < background + 13 && shape.drops => Step::Drop(random.below(shape.spaces) as u8),
        n if n < background + 15 && shape.drops => Step::Clear(random.below(shape.spaces) as u8),
        n if n < background + 20 && shape.compacts => Step::Compact(random.below(shape.spaces) as u8),
        n if n < background + 24 && shape.moves => {
            Step::Load(random.below(shape.spaces) as u8, random.below(40) as u8)
        }
        n if n < background + 32 && shape.moves => {
            Step::Convert(random.below(shape.spaces) as u8, random.below(ENGINES.len() as u64) as u8)
        }
        n if n < 65 => Step::One(put(random, shape)),
        n => {
            let count = 1 + random.below(4);
            Step::Batch((0..count).map(|_| put(random, shape)).collect(), n >= 82)
        }
    }
}

fn put(random: &mut Random, shape: &Shape) -> Put {
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
            let spaces = [3, NAMES.len() as u64][seed as usize % 2];
            let shape =
                Shape { spaces, drops: true, busy: true, compacts: true, moves: true, ..Shape::default() };
            let steps = generate(seed, &shape);
            assert_eq!(parse(&show(&steps)), Some(steps));
        }
        assert_eq!(parse("0.1=x"), None);
        assert_eq!(parse("9.1=1"), None);
    }
}
