//! # Commits of Kreon: preparation, validation and application of operations
//!
//! `prepare` of a put looks the key up in the active memtable. If the key is not there, and a view
//! may need a superseded version (`newest_superseding_seq`), it also asks the other sources, to
//! count that version. Older versions in other sources stay there. Readers of the newest state do
//! not reach them, because they ask the active memtable first. An expectation or a removal asks all
//! sources, from the newest on, until one has the key.
//!
//! The removal of a range adds a range tombstone to the active memtable. The versions that it hides
//! stay in their sources. Each one ends at the tombstone, also if a later commit supersedes it.

use sheaf_engine::contract::{Action, EngineCommits, EngineOp, FINDING_WORDS, Findings, Preparation};
use sheaf_engine::memtable::MemtableLayer;
use sheaf_engine::memtable::arena::{high, low};
use sheaf_engine::versions::OldVersion;
use sheaf_engine::views::Views;
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::{self, Guard};

use super::KreonEngine;
use crate::memtable::{self, KreonMemtable, KreonVersion};

/// Divisor of the bytes of a put that gives the estimate of the bytes that it supersedes, because a
/// put does not look them up.
const PUT_SUPERSEDED_DIVISOR: u64 = 16;
/// Bytes of the budget that the cache leaves free for the growth of memtables.
const MEMTABLE_HEADROOM: u64 = 256 << 10;

/// Findings of `prepare`.
#[derive(Clone, Copy, Debug)]
struct KreonFindings {
    hash: u64,
    /// Number of the active memtable.
    memtable: u32,
    /// Offset of the key's record in the memtable; 0 if there is none.
    record: u32,
    /// Seq of the record's version.
    seq: u64,
    /// Without a record: number of records in the key's part of the hash table. With a record: its
    /// word.
    len_or_word: u64,
    /// Bytes that a removal removes, as far as known.
    removed_bytes: u32,
    /// Low half of the commit of the memtable's newest range tombstone.
    newest_range: u32,
}

impl Findings for KreonFindings {
    #[inline]
    fn to_words(self) -> [u64; FINDING_WORDS] {
        let record = u64::from(self.memtable) << 32 | u64::from(self.record);
        let removed = u64::from(self.newest_range) << 32 | u64::from(self.removed_bytes);
        [self.hash, record, self.seq, self.len_or_word, removed]
    }

    #[inline]
    fn from_words([hash, record, seq, len_or_word, removed]: [u64; FINDING_WORDS]) -> KreonFindings {
        let (memtable, record) = (high(record), low(record));
        let (newest_range, removed_bytes) = (high(removed), low(removed));
        KreonFindings { hash, memtable, record, seq, len_or_word, removed_bytes, newest_range }
    }
}

impl KreonEngine {
    /// Records the range of `views` at commit `end_seq`, which supersedes a version. The newest
    /// commit decides: its views include every view that may need a version that an older commit
    /// superseded.
    fn record_view_range(&self, views: &Views, end_seq: Seq) {
        if let (Some(oldest), Some(newest)) = (views.oldest(), views.newest()) {
            let mut last = self.view_range_seq.lock();
            if end_seq >= *last {
                *last = end_seq;
                self.oldest_view.store(oldest.0, Ordering::Release);
                self.newest_view.store(newest.0, Ordering::Release);
            }
            self.newest_superseding_seq.fetch_max(end_seq.0, Ordering::AcqRel);
        }
    }

    /// Whether the record of `op` would exceed the budget even with all caches evicted.
    fn is_over_budget(&self, op: &EngineOp<'_>, active: &KreonMemtable) -> bool {
        let more = KreonMemtable::key_cost(op.key) * (u64::from(op.ops_before) + 1) + active.bytes() / 16;
        !self.context.memory.has_room_without_caches(more)
    }

    fn retain_or_free_superseded(
        &self,
        key: &[u8],
        version: KreonVersion,
        end_seq: Seq,
        views: &Views,
        guard: &Guard,
    ) {
        let old = self.old_version_of(version, end_seq);
        let old = self.ended_by_ranges(key, old, guard);
        if views.needs(old.begin_seq, old.end_seq) {
            self.versions.push(key.to_vec(), old);
        } else if !version.word.is_tombstone() {
            self.accounts.free_version(&old, guard);
        }
    }

    /// Returns `old` with its end at the oldest range tombstone after its beginning, if that is
    /// earlier.
    pub(crate) fn ended_by_ranges(&self, key: &[u8], old: OldVersion, guard: &Guard) -> OldVersion {
        let removed = self.state(guard).next_range_seq(key, old.begin_seq, guard);
        OldVersion { end_seq: removed.map_or(old.end_seq, |removed| old.end_seq.min(removed)), ..old }
    }

    /// Applies the removal of a range. The caller has exclusive access.
    fn remove_range(&self, seq: Seq, op: &EngineOp<'_>, end: Option<&[u8]>, views: &Views, guard: &Guard) {
        self.accounts.count_tombstone(op.address, op.span, guard);
        self.record_view_range(views, seq);
        if views.needs(Seq(1), seq) {
            // one for all versions in the range
            self.unspilled_pins.lock().entry(Seq(1)).or_default().push(seq);
        }
        let active = &self.state(guard).memtables.active;
        active.ranges().add_counted((op.key, end), seq, views, &self.context.memory, guard);
        self.removed_ranges.note_range(op.key, end, seq);
    }
}

impl EngineCommits for KreonEngine {
    fn removes_ranges(&self) -> bool {
        true
    }

    fn prepare(&self, op: &mut EngineOp<'_>) -> Result<Preparation> {
        let guard = &epoch::pin();
        let hash = self.hash(op.key);
        let active = &self.state(guard).memtables.active;
        let len = active.hash_part_len(hash); // before the lookup (I2 of the key table)
        let newest_range = low(active.ranges().newest().0); // before the lookups
        let place = active.find(hash, op.key, guard);
        let version = place.map(|place| active.version(place));
        let (seq, len_or_word) = version.map_or((0, u64::from(len)), |v| (v.seq.0, v.word.bits()));
        let (memtable, record) = (active.number, place.unwrap_or(0));
        let mut findings =
            KreonFindings { hash, memtable, record, seq, len_or_word, removed_bytes: 0, newest_range };
        op.findings.set(findings);
        let is_there =
            |version: &KreonVersion| !version.word.is_tombstone() && !active.hides(op.key, *version, guard);
        op.prior = version.filter(is_there).map_or(Seq::ZERO, |version| version.seq);
        match op.action {
            Action::Put(_) | Action::Blob(_) => {
                if place.is_none() {
                    self.level_store
                        .cache
                        .evict_until_room(MEMTABLE_HEADROOM.min(self.context.memory.budget() / 64), guard);
                    if self.is_over_budget(op, active) {
                        return Err(Error::MemoryBudgetExceeded { budget: self.context.memory.budget() });
                    }
                    if self.newest_superseding_seq.load(Ordering::Relaxed) != 0 {
                        // to count pinned versions
                        op.prior = self.newest_seq(hash, op.key, guard)?;
                    }
                }
                Ok(Preparation::Record)
            }
            Action::Expect => {
                op.prior = self.newest_seq(hash, op.key, guard)?;
                Ok(Preparation::NoChange)
            }
            // The tombstone needs little memory, and removing must succeed when memory is short.
            Action::RemoveRange(_) => Ok(Preparation::Record),
            Action::Remove => {
                let (prior, bytes) = self.newest_seq_and_bytes(hash, op.key, guard)?;
                (op.prior, findings.removed_bytes) = (prior, u32::try_from(bytes).unwrap_or(u32::MAX));
                op.findings.set(findings);
                Ok(if op.prior == Seq::ZERO { Preparation::NoChange } else { Preparation::Record })
            }
        }
    }

    fn is_current(&self, op: &EngineOp<'_>) -> bool {
        if matches!(op.action, Action::RemoveRange(_)) {
            return true; // it depends on no version
        }
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        let found: KreonFindings = op.findings.get();
        // The removal of a range changes the versions of any keys. It runs while no commit is
        // between this check and its `apply`.
        if active.number != found.memtable || low(active.ranges().newest().0) != found.newest_range {
            return false;
        }
        if found.record == 0 {
            // The additional records of this part of the table may belong to other keys.
            return u64::from(active.hash_part_len(found.hash)) == found.len_or_word
                || active.find(found.hash, op.key, guard).is_none();
        }
        // A lookup concurrent with `apply` may have combined the seq of a version with the word of
        // the previous one.
        let KreonVersion { word, seq } = active.version(found.record);
        matches!(op.action, Action::Put(_) | Action::Blob(_))
            || (seq.0 == found.seq && word.bits() == found.len_or_word)
    }

    fn apply(&self, seq: Seq, op: &EngineOp<'_>, views: &Views) {
        let Some(content) = op.action.content() else { return };
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        if let RecordContent::RemoveRange(end) = content {
            return self.remove_range(seq, op, end, views, guard);
        }
        let mut word = self.word_of(&content, op.address, op.span);
        self.account_record(&content, op.address, op.span, guard);
        if matches!(content, RecordContent::Remove) {
            self.accounts.count_tombstone(op.address, op.span, guard);
        }
        self.record_view_range(views, seq);
        let found: KreonFindings = op.findings.get();
        let place = found.record;
        if place == 0 {
            if op.prior != Seq::ZERO && views.needs(op.prior, seq) {
                self.unspilled_pins.lock().entry(op.prior).or_default().push(seq);
            }
        } else {
            let old = active.version(place);
            // before the record changes (memtable I2)
            self.retain_or_free_superseded(op.key, old, seq, views, guard);
            word = word.with_lower_unaccounted(old.word.is_lower_unaccounted());
        }
        active.put(place, found.hash, op.key, KreonVersion { word, seq }, &self.context.memory, guard);
        let brought = match content {
            RecordContent::Remove | RecordContent::RemoveRange(_) => {
                active.add_to_sum(memtable::REMOVALS, 1);
                u64::from(found.removed_bytes)
            }
            RecordContent::Blob(blob) => (u64::from(op.span) + u64::from(blob.len)) / PUT_SUPERSEDED_DIVISOR,
            RecordContent::Put(_) => u64::from(op.span) / PUT_SUPERSEDED_DIVISOR,
        };
        active.add_to_sum(memtable::SUPERSEDED_BYTES, brought);
        if !matches!(content, RecordContent::Remove) {
            self.removed_ranges.note_put(op.key);
        }
    }

    fn trim(&self, views: &Views, visible: Seq) {
        self.unspilled_pins.lock().retain(|begin_seq, end_seqs| {
            end_seqs.retain(|end_seq| *end_seq > visible || views.needs(*begin_seq, *end_seq));
            !end_seqs.is_empty()
        });
        if views.is_empty() {
            let needed = self.newest_superseding_seq.load(Ordering::Acquire);
            if needed <= visible.0 {
                // Fails if a commit has set it since.
                let _ = self.newest_superseding_seq.compare_exchange(
                    needed,
                    0,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
            }
        }
        if self.versions.is_empty() {
            return;
        }
        let guard = &epoch::pin();
        for old in self.versions.trim(views, visible) {
            self.accounts.free_version(&old, guard);
        }
    }
}
