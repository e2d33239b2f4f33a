//! Seeded workloads, and a vector as their model, for all tests.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::cast_possible_truncation, reason = "numbers here are small by construction")]

pub(crate) mod buggy_disk;
pub(crate) mod explore;
pub(crate) mod mapping_check_disk;

use std::sync::Arc;

use sheaf_flexspace::{FlexSpace, SpaceOptions};
use sheaf_platform::disk::Disk;
use sheaf_platform::error::Result;

/// Directory of the space.
pub(crate) const SPACE_DIR: &str = "/space";

/// splitmix64 generator.
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
pub(crate) enum WorkloadStep {
    Write(u64, Vec<u8>),
    Insert(u64, Vec<u8>),
    Hole(u64, u64),
    Collapse(u64, u64),
    /// Removes a range and inserts new bytes elsewhere, as one operation.
    Replace(u64, u64, u64, Vec<u8>),
    Defrag(u64, u64),
    Sync,
    Pump,
    Checkpoint,
    /// Closes the space and opens it again.
    Reopen,
    /// Opens the space again as after a kill.
    Kill,
}

/// Returns a random workload. The content stays below some KiB. Many steps continue the bytes of
/// the step before, so that their extents merge.
pub(crate) fn workload(seed: u64, count: usize) -> Vec<WorkloadStep> {
    let mut random = Random(seed);
    let (mut len, mut last_end) = (0u64, 0u64);
    let mut steps = Vec::new();
    for n in 0..count {
        let bytes = |random: &mut Random| {
            let most = [8, 40, 300, 1500][random.below(4) as usize];
            let fill = (n as u8).wrapping_mul(31) | 1;
            (0..=random.below(most)).map(|i| fill ^ (i as u8).wrapping_mul(7)).collect::<Vec<u8>>()
        };
        let mut at = random.below(len + 1);
        let kind = if len > 9000 { 30 + random.below(12) } else { random.below(64) };
        // Half of the new bytes continue those of the step before.
        let continues = kind < 28 && last_end <= len && random.below(2) == 0;
        at = if continues { last_end } else { at };
        let step = match kind {
            0..=9 if continues => WorkloadStep::Write(at, bytes(&mut random)),
            0..=9 => WorkloadStep::Write(random.below(len + 1 + len / 16), bytes(&mut random)),
            10..=27 => WorkloadStep::Insert(at, bytes(&mut random)),
            28..=29 => WorkloadStep::Hole(at, 1 + random.below(900)),
            30..=41 => WorkloadStep::Collapse(at, random.below(len - at + 1).min(2500)),
            42..=46 => {
                let cut = random.below(len - at + 1).min(300);
                let to = random.below(len - cut + 1);
                WorkloadStep::Replace(at, cut, to, bytes(&mut random))
            }
            47..=48 => WorkloadStep::Defrag(at, random.below(2000)),
            49..=53 => WorkloadStep::Sync,
            54..=60 => WorkloadStep::Pump,
            61 => WorkloadStep::Checkpoint,
            62 => WorkloadStep::Reopen,
            _ => WorkloadStep::Kill,
        };
        len = step.len_after(len);
        if let WorkloadStep::Write(at, bytes) | WorkloadStep::Insert(at, bytes) = &step {
            last_end = at + bytes.len() as u64;
        }
        steps.push(step);
    }
    steps
}

impl WorkloadStep {
    fn len_after(&self, len: u64) -> u64 {
        match self {
            WorkloadStep::Write(at, bytes) => len.max(at + bytes.len() as u64),
            WorkloadStep::Insert(_, bytes) => len + bytes.len() as u64,
            WorkloadStep::Hole(_, more) => len + more,
            WorkloadStep::Collapse(_, less) => len - less,
            WorkloadStep::Replace(_, cut, _, bytes) => len - cut + bytes.len() as u64,
            _ => len,
        }
    }

    /// Returns the step, adapted to a space of `len` bytes: a kill may have removed bytes that it
    /// assumes.
    pub(crate) fn clamp_to(&self, len: u64) -> WorkloadStep {
        let range = |at: u64, count: u64| (at.min(len), count.min(len - at.min(len)));
        match self.clone() {
            WorkloadStep::Write(at, bytes) => WorkloadStep::Write(at.min(len + len / 16), bytes),
            WorkloadStep::Insert(at, bytes) => WorkloadStep::Insert(at.min(len), bytes),
            WorkloadStep::Hole(at, more) => WorkloadStep::Hole(at.min(len), more),
            WorkloadStep::Collapse(at, less) => WorkloadStep::Collapse(range(at, less).0, range(at, less).1),
            WorkloadStep::Replace(at, cut, to, bytes) => {
                let (at, cut) = range(at, cut);
                WorkloadStep::Replace(at, cut, to.min(len - cut), bytes)
            }
            other => other,
        }
    }

    /// Applies the step to a vector.
    pub(crate) fn apply(&self, model: &mut Vec<u8>) {
        match self {
            WorkloadStep::Write(at, bytes) => {
                let (at, end) = (*at as usize, *at as usize + bytes.len());
                model.resize(model.len().max(end), 0);
                model[at..end].copy_from_slice(bytes);
            }
            WorkloadStep::Insert(at, bytes) => {
                let at = *at as usize;
                model.splice(at..at, bytes.iter().copied());
            }
            WorkloadStep::Hole(at, len) => {
                let at = *at as usize;
                model.splice(at..at, std::iter::repeat_n(0, *len as usize));
            }
            WorkloadStep::Collapse(at, len) => {
                model.drain(*at as usize..(*at + *len) as usize);
            }
            WorkloadStep::Replace(at, cut, to, bytes) => {
                model.drain(*at as usize..(*at + *cut) as usize);
                let to = *to as usize;
                model.splice(to..to, bytes.iter().copied());
            }
            _ => {}
        }
    }

    /// Applies the step to a space, except reopenings.
    pub(crate) fn run(&self, space: &FlexSpace) -> Result<()> {
        match self {
            WorkloadStep::Write(at, bytes) => space.write(*at, bytes),
            WorkloadStep::Insert(at, bytes) => space.insert(*at, bytes),
            WorkloadStep::Hole(at, len) => space.insert_hole(*at, *len),
            WorkloadStep::Collapse(at, len) => space.collapse(*at, *len),
            WorkloadStep::Replace(at, cut, to, bytes) => {
                space.edit().collapse(*at, *cut).insert(*to, bytes).commit()
            }
            WorkloadStep::Defrag(at, len) => space.defrag(*at, *len),
            WorkloadStep::Sync => space.sync(),
            WorkloadStep::Pump => space.maintain().map(drop),
            WorkloadStep::Checkpoint => space.checkpoint(),
            WorkloadStep::Reopen | WorkloadStep::Kill => Ok(()),
        }
    }
}

/// Returns options for a tiny space without threads.
pub(crate) fn options() -> SpaceOptions {
    SpaceOptions { tiny: true, inline: true, ..SpaceOptions::default() }
}

pub(crate) fn open(disk: Arc<dyn Disk>) -> Result<FlexSpace> {
    FlexSpace::open_on(disk, SPACE_DIR, options())
}

/// Returns all bytes of the space.
pub(crate) fn content(space: &FlexSpace) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; usize::try_from(space.len()).expect("small")];
    let count = space.read(0, &mut bytes)?;
    assert_eq!(count, bytes.len());
    Ok(bytes)
}
