//! # Model steps: the kinds of steps, and their generation from a seed
//!
//! A step names keys and values by numbers, and snapshots and iterators as "the n-th open one". A
//! sequence therefore stays valid when steps are removed from it.

use std::ops::Bound;

use super::merge::{EditCommit, KeyEdit};
use super::transact::TransactionStep;
use crate::crash::workload::TestRandom;
use crate::fixture::TestSetting;

/// Keyspaces: 0 and 2 use the engine under test, 1 the other engine.
pub(super) const SPACES: u8 = 3;
/// Keyspace with expiry.
pub(super) const EXPIRING: u8 = 2;
/// Number of keys.
pub(super) const KEYS: u16 = 120;

/// A value: its length, and a number that determines its bytes.
#[derive(Clone, Copy, Debug)]
pub struct ValueSpec(pub usize, pub u32);

/// Change of a key: its keyspace, its number, and its value, or `None` to remove it.
pub(super) type KeyChange = (u8, u16, Option<ValueSpec>);

/// A range by the numbers of its ends; see [`RangeSpec::bounds`].
#[derive(Clone, Copy, Debug)]
pub struct RangeSpec(pub u16, pub u16, pub u8);

/// Write to the same key while an update is running.
#[derive(Clone, Copy, Debug)]
pub enum ConcurrentChange {
    /// No write.
    None,
    /// Sets the key.
    Put(ValueSpec),
    /// Removes the key.
    Remove,
}

/// Batch or transaction that removes a range between other changes of one keyspace.
#[derive(Clone, Debug)]
pub struct RangeCommit {
    /// The keyspace.
    pub space: u8,
    /// The range.
    pub ends: RangeSpec,
    /// Changes before the range is removed.
    pub before: Vec<(u16, KeyEdit)>,
    /// Changes after it.
    pub after: Vec<(u16, KeyEdit)>,
    /// Whether it is a transaction.
    pub is_transaction: bool,
}

/// One step. Its first number is the keyspace and its second the key, unless a field name says
/// otherwise.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named after the verbs they call")]
pub enum ModelStep {
    Put(u8, u16, ValueSpec),
    PutExpiring { key: u16, value: ValueSpec, ttl_ms: u64 },
    PersistKey(u16),
    Remove(u8, u16),
    Batch { ops: Vec<(u8, u16, Option<ValueSpec>)>, expects: Vec<(u8, u16, bool)>, sync: bool },
    Swap { space: u8, key: u16, right: bool, new: Option<ValueSpec> },
    Update { space: u8, key: u16, how: u8, concurrent: ConcurrentChange },
    InsertIfAbsent(u8, u16, ValueSpec),
    Pop { space: u8, back: bool },
    Merge { space: u8, key: u16, operand: ValueSpec, is_sync: bool },
    EditCommit(EditCommit),
    Transact(TransactionStep),
    Get(u8, u16),
    MultiGet(u8, Vec<u16>),
    Scan { space: u8, ends: RangeSpec, back: bool },
    Prefix { space: u8, key: u16, len: usize },
    FirstAndLast(u8),
    Len(u8),
    SnapshotOpen,
    SnapshotGet { which: usize, space: u8, key: u16 },
    SnapshotScan { which: usize, space: u8, ends: RangeSpec, back: bool },
    SnapshotClose(usize),
    IterOpen { space: u8, ends: RangeSpec },
    IterStep { which: usize, count: usize, back: bool },
    IterSeek { which: usize, key: u16, back: bool },
    IterClose(usize),
    RemoveRange { space: u8, ends: RangeSpec },
    RangeCommit(RangeCommit),
    Clear(u8),
    Recreate(u8),
    Rename(u8),
    Persist,
    Compact(u8),
    Background,
    AdvanceClock(u64),
    Follow { retained_bytes: u64 },
    CatchUp,
    Reopen,
    Crash,
    CompareAll,
}

/// Returns the bytes of a key: empty, zeros, high bytes, groups with common prefixes, a long one.
pub(super) fn key_of(number: u16) -> Vec<u8> {
    match number {
        0 => vec![],
        1 => vec![0],
        2 => vec![0, 0],
        3 => vec![0xff],
        4 => vec![0xff, 0xff],
        5 => vec![b'l'; 700],
        6 => vec![0xff, 0],
        7 => b"user".to_vec(),
        n if n % 3 == 0 => format!("user/{:03}", n / 3).into_bytes(),
        n if n % 3 == 1 => format!("user/{:03}/visits", n / 3).into_bytes(),
        n => [b"\xff", n.to_be_bytes().as_slice()].concat(),
    }
}

impl ValueSpec {
    pub(super) fn bytes(self) -> Vec<u8> {
        let seed = u64::from(self.1);
        match seed % 2 {
            0 => crate::conformance::bytes(self.0, seed),
            // Half of the values compress.
            _ => crate::conformance::bytes(24, seed).into_iter().cycle().take(self.0).collect(),
        }
    }
}

impl RangeSpec {
    /// Returns the bounds; bits of the third number select their kinds. Inverted ranges are
    /// included.
    pub(super) fn bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let bound = |kind: u8, key: u16| match kind & 3 {
            0 | 1 => Bound::Included(key_of(key)),
            2 => Bound::Excluded(key_of(key)),
            _ => Bound::Unbounded,
        };
        (bound(self.2, self.0), bound(self.2 >> 2, self.1))
    }
}

/// Generator of steps, based on splitmix64.
struct StepGenerator(TestRandom);

impl StepGenerator {
    fn below(&mut self, bound: usize) -> usize {
        self.0.index_below(bound)
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    #[expect(clippy::cast_possible_truncation, reason = "three")]
    fn space(&mut self) -> u8 {
        self.below(usize::from(SPACES)) as u8
    }

    /// Draws a key; a few keys are drawn most of the time.
    #[expect(clippy::cast_possible_truncation, reason = "keys are below 120")]
    fn key(&mut self) -> u16 {
        let span = [8, 30, usize::from(KEYS)][self.below(3)];
        let offset = if span == 8 { 40 } else { 0 };
        (offset + self.below(span)) as u16
    }

    #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
    fn value(&mut self, setting: TestSetting) -> ValueSpec {
        let limit = setting.blob_threshold();
        let large = if setting.tiny { 12 } else { 80 };
        let len = if self.one_in(large) {
            [limit - 1, limit, limit + 1, 2 * limit, 3 * limit][self.below(5)]
        } else {
            [0, 1, 30, 31, 100, self.below(60), self.below(400)][self.below(7)]
        };
        ValueSpec(len, self.0.next() as u32)
    }

    fn change(&mut self, setting: TestSetting) -> Option<ValueSpec> {
        if self.one_in(4) { None } else { Some(self.value(setting)) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
    fn ends(&mut self) -> RangeSpec {
        let kinds = if self.one_in(3) { 0b1111 } else { self.0.next() as u8 };
        RangeSpec(self.key(), self.key(), kinds)
    }

    fn batch(&mut self, setting: TestSetting) -> ModelStep {
        let count = [1, 3, 10, 40][self.below(4)];
        let ops = (0..count).map(|_| (self.space(), self.key(), self.change(setting))).collect();
        let expects =
            (0..self.below(4).saturating_sub(1)).map(|_| (self.space(), self.key(), !self.one_in(3)));
        ModelStep::Batch { ops, expects: expects.collect(), sync: false }
    }

    fn transaction(&mut self, setting: TestSetting) -> TransactionStep {
        let reads = (0..self.below(5)).map(|_| (self.space(), self.key())).collect();
        let changes = (0..self.below(5)).map(|_| (self.space(), self.key(), self.change(setting))).collect();
        let scan = self.one_in(3).then(|| self.space());
        let outside =
            self.one_in(2).then(|| ((self.space(), self.key(), self.change(setting)), self.one_in(2)));
        TransactionStep { reads, changes, scan, outside }
    }

    fn edit(&mut self, setting: TestSetting) -> KeyEdit {
        match self.below(4) {
            0 => KeyEdit::Remove,
            1 => KeyEdit::Put(self.value(setting)),
            _ => KeyEdit::Merge(self.value(setting)),
        }
    }

    fn edit_commit(&mut self, setting: TestSetting) -> EditCommit {
        let count = 1 + self.below(8);
        let edits = (0..count).map(|_| (self.space(), self.key(), self.edit(setting))).collect();
        EditCommit { edits, is_transaction: self.one_in(2) }
    }

    fn range_commit(&mut self, setting: TestSetting) -> RangeCommit {
        let (space, ends) = (self.space(), self.ends());
        let mut changes = || (0..self.below(5)).map(|_| (self.key(), self.edit(setting))).collect();
        let (before, after) = (changes(), changes());
        RangeCommit { space, ends, before, after, is_transaction: self.one_in(2) }
    }

    fn step(&mut self, setting: TestSetting) -> ModelStep {
        match self.below(1000) {
            0..=149 => ModelStep::Put(self.space(), self.key(), self.value(setting)),
            150..=174 => {
                let (space, key, operand) = (self.space(), self.key(), self.value(setting));
                ModelStep::Merge { space, key, operand, is_sync: self.one_in(4) }
            }
            175..=189 => ModelStep::EditCommit(self.edit_commit(setting)),
            190..=206 => {
                let (key, value) = (self.key(), self.value(setting));
                ModelStep::PutExpiring { key, value, ttl_ms: 1 + self.0.next() % 400 }
            }
            207..=209 => ModelStep::PersistKey(self.key()),
            210..=239 => ModelStep::Transact(self.transaction(setting)),
            240..=253 => ModelStep::InsertIfAbsent(self.space(), self.key(), self.value(setting)),
            254..=259 => ModelStep::Pop { space: self.space(), back: self.one_in(2) },
            260..=359 => ModelStep::Remove(self.space(), self.key()),
            360..=439 => match self.batch(setting) {
                ModelStep::Batch { ops, expects, .. } => {
                    ModelStep::Batch { ops, expects, sync: self.one_in(4) }
                }
                other => other,
            },
            440..=489 => {
                let (space, key, right) = (self.space(), self.key(), !self.one_in(3));
                ModelStep::Swap { space, key, right, new: self.change(setting) }
            }
            490..=539 => {
                let meddle = match self.below(4) {
                    0 => ConcurrentChange::Put(self.value(setting)),
                    1 => ConcurrentChange::Remove,
                    _ => ConcurrentChange::None,
                };
                #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
                let how = self.0.next() as u8;
                ModelStep::Update { space: self.space(), key: self.key(), how, concurrent: meddle }
            }
            540..=629 => ModelStep::Get(self.space(), self.key()),
            630..=649 => {
                let count = self.below(50);
                ModelStep::MultiGet(self.space(), (0..count).map(|_| self.key()).collect())
            }
            650..=689 => ModelStep::Scan { space: self.space(), ends: self.ends(), back: self.one_in(2) },
            690..=699 => ModelStep::Prefix { space: self.space(), key: self.key(), len: self.below(9) },
            700..=709 => ModelStep::FirstAndLast(self.space()),
            710..=729 => ModelStep::Len(self.space()),
            730..=759 => ModelStep::SnapshotOpen,
            760..=799 => {
                ModelStep::SnapshotGet { which: self.below(8), space: self.space(), key: self.key() }
            }
            800..=819 => {
                let (which, space) = (self.below(8), self.space());
                ModelStep::SnapshotScan { which, space, ends: self.ends(), back: self.one_in(2) }
            }
            820..=844 => ModelStep::SnapshotClose(self.below(8)),
            845..=864 => ModelStep::IterOpen { space: self.space(), ends: self.ends() },
            865..=879 => ModelStep::IterSeek { which: self.below(8), key: self.key(), back: self.one_in(2) },
            880..=914 => {
                ModelStep::IterStep { which: self.below(8), count: self.below(12), back: self.one_in(2) }
            }
            915..=918 => ModelStep::IterClose(self.below(8)),
            919..=922 => ModelStep::RangeCommit(self.range_commit(setting)),
            923..=927 => ModelStep::RemoveRange { space: self.space(), ends: self.ends() },
            928..=930 => ModelStep::Clear(self.space()),
            931..=933 => ModelStep::Recreate(self.space()),
            934..=942 => ModelStep::Persist,
            943 => ModelStep::Rename(self.space()),
            944..=945 => ModelStep::Compact(self.space()),
            946..=973 => ModelStep::Background,
            974..=981 => ModelStep::AdvanceClock(1 + self.0.next() % 200),
            982 => ModelStep::Follow { retained_bytes: if self.one_in(2) { u64::MAX } else { 64 << 10 } },
            983..=986 => ModelStep::CatchUp,
            987..=989 => ModelStep::Reopen,
            990..=995 => ModelStep::Crash,
            _ => ModelStep::CompareAll,
        }
    }
}

/// Generates the sequence of `seed`.
#[must_use]
pub fn generate(seed: u64, count: usize, setting: TestSetting) -> Vec<ModelStep> {
    let mut draw = StepGenerator(TestRandom::new(seed));
    (0..count).map(|_| draw.step(setting)).collect()
}
