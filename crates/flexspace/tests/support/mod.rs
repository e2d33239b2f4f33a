//! What the tests share: a seeded workload, and a plain vector that does the same.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::cast_possible_truncation, reason = "numbers here are small by construction")]

pub(crate) mod explore;
pub(crate) mod liar;
pub(crate) mod watched;

use std::sync::Arc;

use sheaf_base::disk::Disk;
use sheaf_base::error::Result;
use sheaf_flexspace::{FlexSpace, Options};

/// Where the space is.
pub(crate) const PLACE: &str = "/space";

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// One operation of a workload.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write(u64, Vec<u8>),
    Insert(u64, Vec<u8>),
    Hole(u64, u64),
    Collapse(u64, u64),
    /// Moves a range: removes it and inserts new bytes elsewhere, as one operation.
    Replace(u64, u64, u64, Vec<u8>),
    Defrag(u64, u64),
    Sync,
    Pump,
    Checkpoint,
    /// Closes in order and opens again.
    Reopen,
    /// Opens again as after a kill.
    Kill,
}

/// Draws a workload; contents stay below some KiB.
pub(crate) fn workload(seed: u64, count: usize) -> Vec<Step> {
    let mut random = Random(seed);
    let mut len = 0u64;
    let mut steps = Vec::new();
    for n in 0..count {
        let bytes = |random: &mut Random| {
            let most = [8, 40, 300, 1500][random.below(4) as usize];
            let fill = (n as u8).wrapping_mul(31) | 1;
            (0..=random.below(most)).map(|i| fill ^ (i as u8).wrapping_mul(7)).collect::<Vec<u8>>()
        };
        let at = random.below(len + 1);
        let kind = if len > 9000 { 30 + random.below(12) } else { random.below(64) };
        let step = match kind {
            0..=9 => Step::Write(random.below(len + 1 + len / 16), bytes(&mut random)),
            10..=27 => Step::Insert(at, bytes(&mut random)),
            28..=29 => Step::Hole(at, 1 + random.below(900)),
            30..=41 => Step::Collapse(at, random.below(len - at + 1).min(2500)),
            42..=46 => {
                let cut = random.below(len - at + 1).min(300);
                let to = random.below(len - cut + 1);
                Step::Replace(at, cut, to, bytes(&mut random))
            }
            47..=48 => Step::Defrag(at, random.below(2000)),
            49..=53 => Step::Sync,
            54..=60 => Step::Pump,
            61 => Step::Checkpoint,
            62 => Step::Reopen,
            _ => Step::Kill,
        };
        len = step.len_after(len);
        steps.push(step);
    }
    steps
}

impl Step {
    fn len_after(&self, len: u64) -> u64 {
        match self {
            Step::Write(at, bytes) => len.max(at + bytes.len() as u64),
            Step::Insert(_, bytes) => len + bytes.len() as u64,
            Step::Hole(_, more) => len + more,
            Step::Collapse(_, less) => len - less,
            Step::Replace(_, cut, _, bytes) => len - cut + bytes.len() as u64,
            _ => len,
        }
    }

    /// The step, made to fit a space of `len` bytes: a kill may have taken what it was drawn for.
    pub(crate) fn fit(&self, len: u64) -> Step {
        let range = |at: u64, count: u64| (at.min(len), count.min(len - at.min(len)));
        match self.clone() {
            Step::Write(at, bytes) => Step::Write(at.min(len + len / 16), bytes),
            Step::Insert(at, bytes) => Step::Insert(at.min(len), bytes),
            Step::Hole(at, more) => Step::Hole(at.min(len), more),
            Step::Collapse(at, less) => Step::Collapse(range(at, less).0, range(at, less).1),
            Step::Replace(at, cut, to, bytes) => {
                let (at, cut) = range(at, cut);
                Step::Replace(at, cut, to.min(len - cut), bytes)
            }
            other => other,
        }
    }

    /// The same to a vector.
    pub(crate) fn apply(&self, model: &mut Vec<u8>) {
        match self {
            Step::Write(at, bytes) => {
                let (at, end) = (*at as usize, *at as usize + bytes.len());
                model.resize(model.len().max(end), 0);
                model[at..end].copy_from_slice(bytes);
            }
            Step::Insert(at, bytes) => {
                let at = *at as usize;
                model.splice(at..at, bytes.iter().copied());
            }
            Step::Hole(at, len) => {
                let at = *at as usize;
                model.splice(at..at, std::iter::repeat_n(0, *len as usize));
            }
            Step::Collapse(at, len) => {
                model.drain(*at as usize..(*at + *len) as usize);
            }
            Step::Replace(at, cut, to, bytes) => {
                model.drain(*at as usize..(*at + *cut) as usize);
                let to = *to as usize;
                model.splice(to..to, bytes.iter().copied());
            }
            _ => {}
        }
    }

    /// To a space; not for openings.
    pub(crate) fn run(&self, space: &FlexSpace) -> Result<()> {
        match self {
            Step::Write(at, bytes) => space.write(*at, bytes),
            Step::Insert(at, bytes) => space.insert(*at, bytes),
            Step::Hole(at, len) => space.insert_hole(*at, *len),
            Step::Collapse(at, len) => space.collapse(*at, *len),
            Step::Replace(at, cut, to, bytes) => space.edit().collapse(*at, *cut).insert(*to, bytes).commit(),
            Step::Defrag(at, len) => space.defrag(*at, *len),
            Step::Sync => space.sync(),
            Step::Pump => space.pump().map(drop),
            Step::Checkpoint => space.checkpoint(),
            Step::Reopen | Step::Kill => Ok(()),
        }
    }
}

/// Tiny, without threads.
pub(crate) fn options() -> Options {
    Options { tiny: true, inline: true, ..Options::default() }
}

pub(crate) fn open(disk: Arc<dyn Disk>) -> Result<FlexSpace> {
    FlexSpace::open_on(disk, PLACE, options())
}

/// All bytes.
pub(crate) fn content(space: &FlexSpace) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; usize::try_from(space.len()).expect("small")];
    let count = space.read(0, &mut bytes)?;
    assert_eq!(count, bytes.len());
    Ok(bytes)
}
