//! # Power cuts: the changes that may be lost, and the disk afterwards
//!
//! Unsynced changes form a list of [`PendingUnit`]s: sectors, lengths, names. A power cut keeps the
//! subset that a [`KeepChoice`] selects. The result is a disk on which the other changes never
//! happened.
//!
//! ## Invariants
//!
//! 1. Units are independent: each may be kept without any other. Kept units are applied in the
//!    order of their operations.
//! 2. A file without a durable or kept name is lost, even if some of its bytes were kept. A kept
//!    name of a file without kept bytes is a file of its durable length.
//! 3. The order of units depends only on the history of the disk, so the number of a subset has the
//!    same meaning in every run.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::inode::{PendingPiece, PendingPieceKind};
use super::random::{SimRandom, mix};
use super::volume::{Ino, NameChange, SimNode, VolumeState};

/// Change that a power cut keeps or loses as a whole. In paranoid mode it may also tear.
#[derive(Clone, Debug)]
pub struct PendingUnit {
    /// The operation that made the change.
    pub op: u64,
    /// The file or directory, by its name at that time.
    pub path: Arc<Path>,
    /// The change.
    pub kind: UnitKind,
    source: UnitSource,
}

/// Kind of a [`PendingUnit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitKind {
    /// A version of a 512-byte sector of a file.
    Sector {
        /// Index of the sector in the file.
        index: u64,
        /// Whether no later version is pending.
        is_newest: bool,
    },
    /// A length of a file.
    Length(u64),
    /// A new name.
    Create,
    /// The removal of a name.
    Remove,
    /// The change of a name.
    Rename {
        /// The new name.
        to: Arc<Path>,
    },
}

#[derive(Clone, Copy, Debug)]
enum UnitSource {
    File(Ino, PendingPiece),
    /// An index into the name changes of the volume.
    Name(usize),
}

impl fmt::Display for PendingUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}: ", self.op, self.path.display())?;
        match &self.kind {
            UnitKind::Sector { index, is_newest: true } => write!(f, "sector {index}"),
            UnitKind::Sector { index, is_newest: false } => write!(f, "sector {index} (older)"),
            UnitKind::Length(len) => write!(f, "length {len}"),
            UnitKind::Create => write!(f, "create"),
            UnitKind::Remove => write!(f, "remove"),
            UnitKind::Rename { to } => write!(f, "rename to {}", to.display()),
        }
    }
}

/// All changes that a power cut could lose now, in the order of the operations.
#[derive(Clone, Debug, Default)]
pub struct PendingUnits {
    units: Vec<PendingUnit>,
}

impl PendingUnits {
    /// Returns the units. [`KeepChoice`] refers to their positions.
    #[must_use]
    pub fn units(&self) -> &[PendingUnit] {
        &self.units
    }

    /// Returns the number of units.
    #[must_use]
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Returns true if everything is durable.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Describes a power cut: one line per unit, with a mark for kept or lost.
    #[must_use]
    pub fn describe(&self, keep: &KeepChoice) -> String {
        let mut story = String::new();
        for (index, unit) in self.units.iter().enumerate() {
            let mark = if keep.keeps(index, unit) { '✓' } else { '✗' };
            // Writing to a string cannot fail.
            let _ = writeln!(story, "{mark} {unit}");
        }
        story
    }

    /// Returns the subsets worth trying. If there are at most `exhaustive` units (capped at 20),
    /// these are all subsets. Otherwise: none, all, each alone, all but each, every prefix, and
    /// `random` random ones.
    #[must_use]
    pub fn keeps(&self, exhaustive: usize, random: u64, seed: u64) -> Vec<KeepChoice> {
        let count = self.len();
        if count <= exhaustive.min(20) {
            return (0..1 << count).map(KeepChoice::Mask).collect();
        }
        let mut keeps = vec![KeepChoice::None, KeepChoice::All];
        keeps.extend((0..count).map(KeepChoice::Only));
        keeps.extend((0..count).map(KeepChoice::AllBut));
        keeps.extend((1..count).map(KeepChoice::Prefix));
        let drawn = |n| KeepChoice::Seeded { seed: mix(seed ^ mix(n)), percent: 50 };
        keeps.extend((0..random).map(drawn));
        keeps
    }
}

/// Selection of the units that a power cut keeps.
#[derive(Clone)]
pub enum KeepChoice {
    /// Only durable data.
    None,
    /// All units, as if everything had been synced.
    All,
    /// The units with a set bit, and none beyond the 64th.
    Mask(u64),
    /// Each unit with a probability. In paranoid mode the seed also determines how sectors tear.
    Seeded {
        /// Seed of the choice.
        seed: u64,
        /// Probability of being kept, in percent.
        percent: u8,
    },
    /// The units before this position.
    Prefix(usize),
    /// All units except the one at this position.
    AllBut(usize),
    /// The unit at this position.
    Only(usize),
    /// The units that a function selects by position and unit.
    By(Arc<KeepFn>),
}

/// The function in a [`KeepChoice::By`].
pub type KeepFn = dyn Fn(usize, &PendingUnit) -> bool + Send + Sync;

impl KeepChoice {
    /// Returns [`KeepChoice::By`] for a function.
    pub fn by(choice: impl Fn(usize, &PendingUnit) -> bool + Send + Sync + 'static) -> KeepChoice {
        KeepChoice::By(Arc::new(choice))
    }

    /// Returns whether the unit at this position is kept.
    #[must_use]
    pub fn keeps(&self, index: usize, unit: &PendingUnit) -> bool {
        match self {
            KeepChoice::None => false,
            KeepChoice::All => true,
            KeepChoice::Mask(mask) => index < 64 && mask & (1 << index) != 0,
            KeepChoice::Seeded { seed, percent } => {
                mix(seed ^ mix(index as u64 + 1)) % 100 < u64::from(*percent)
            }
            KeepChoice::Prefix(count) => index < *count,
            KeepChoice::AllBut(lost) => index != *lost,
            KeepChoice::Only(kept) => index == *kept,
            KeepChoice::By(choice) => choice(index, unit),
        }
    }

    /// Returns the seed of the random choices other than the selection of units.
    fn seed(&self) -> u64 {
        match self {
            KeepChoice::None | KeepChoice::By(_) => 1,
            KeepChoice::All => 2,
            KeepChoice::Mask(mask) => mix(*mask),
            KeepChoice::Seeded { seed, .. } => mix(seed ^ 3),
            KeepChoice::Prefix(n) => mix(*n as u64 ^ (4 << 32)),
            KeepChoice::AllBut(n) => mix(*n as u64 ^ (5 << 32)),
            KeepChoice::Only(n) => mix(*n as u64 ^ (6 << 32)),
        }
    }
}

impl fmt::Debug for KeepChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepChoice::None => write!(f, "None"),
            KeepChoice::All => write!(f, "All"),
            KeepChoice::Mask(mask) => write!(f, "Mask({mask:#x})"),
            KeepChoice::Seeded { seed, percent } => {
                write!(f, "Seeded {{ seed: {seed:#x}, percent: {percent} }}")
            }
            KeepChoice::Prefix(n) => write!(f, "Prefix({n})"),
            KeepChoice::AllBut(n) => write!(f, "AllBut({n})"),
            KeepChoice::Only(n) => write!(f, "Only({n})"),
            KeepChoice::By(_) => write!(f, "By(..)"),
        }
    }
}

impl VolumeState {
    /// Returns the changes that could be lost.
    pub(super) fn pending(&self) -> PendingUnits {
        let mut units = Vec::new();
        for ino in self.nameable() {
            let SimNode::File(file) = &self.nodes[&ino] else {
                continue;
            };
            for (op, piece) in file.pieces(self.is_paranoid) {
                let what = match file.describe(piece) {
                    PendingPieceKind::Sector { index, is_newest } => UnitKind::Sector { index, is_newest },
                    PendingPieceKind::Length(len) => UnitKind::Length(len),
                };
                let (path, source) = (file.path.clone(), UnitSource::File(ino, piece));
                units.push(PendingUnit { op, path, kind: what, source });
            }
        }
        let changes = self.changes.iter().enumerate();
        units.extend(changes.map(|(index, change)| unit_of(index, change)));
        units.sort_by_key(|unit| unit.op);
        PendingUnits { units }
    }

    /// Returns the volume after a power cut: the platter with the kept ones of the `pending` units.
    pub(super) fn after_power_cut(&self, pending: &PendingUnits, keep: &KeepChoice) -> VolumeState {
        let units = pending.units.iter().enumerate();
        let units = units.filter(|(index, unit)| keep.keeps(*index, unit)).map(|(_, unit)| unit);
        let mut wild = SimRandom::new(keep.seed() ^ mix(self.op));
        let mut after = self.clone();
        after.op = 0;
        after.random = wild.clone();
        let mut kept: BTreeMap<Ino, Vec<PendingPiece>> = BTreeMap::new();
        for unit in units {
            match unit.source {
                UnitSource::File(ino, piece) => kept.entry(ino).or_default().push(piece),
                UnitSource::Name(index) => {
                    let change = &self.changes[index];
                    let (remove, add) = self.kept_halves(change, &mut wild);
                    after.make_durable(change, remove, add);
                }
            }
        }
        after.drop_pending_names();
        for (ino, node) in &mut after.nodes {
            if let SimNode::File(file) = node
                && !file.is_durable()
            {
                let kept = kept.get(ino).map_or(&[][..], Vec::as_slice);
                let wild = self.is_paranoid.then_some(&mut wild);
                *file = Arc::new(file.after_power_cut(kept, wild));
            }
        }
        after.recount();
        after
    }

    /// Returns which halves of a kept name change are kept: both, except that paranoid mode may
    /// keep one half of a rename between directories.
    fn kept_halves(&self, change: &NameChange, wild: &mut SimRandom) -> (bool, bool) {
        let is_across = match (&change.from, &change.to) {
            (Some(from), Some(to)) => from.dir != to.dir,
            _ => false,
        };
        if !(self.is_paranoid && is_across) {
            return (true, true);
        }
        [(true, true), (true, false), (false, true)][super::content::index(wild.below(3))]
    }
}

fn unit_of(index: usize, change: &NameChange) -> PendingUnit {
    let what = match (&change.from, &change.new_path) {
        (None, _) => UnitKind::Create,
        (Some(_), None) => UnitKind::Remove,
        (Some(_), Some(to)) => UnitKind::Rename { to: to.clone() },
    };
    let (op, path, source) = (change.op, change.path.clone(), UnitSource::Name(index));
    PendingUnit { op, path, kind: what, source }
}
