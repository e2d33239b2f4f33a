//! # Look: what the sources say of a key, and who holds a record
//!
//! ## Moving records
//!
//! The cleaner asks who holds a record, copies it, and has the key pointed at the copy with the key's stripe held, where nothing is
//! read from the disk. So a yes is remembered as a *candidate*: the copy becomes a record of the active memtable that says the
//! same as the level's entry and shadows it. A spill that brings something newer of the key takes the candidate away.
//!
//! ## Invariants
//!
//! 1. A candidate for a key is its newest version unless a memtable has a newer one: what a memtable had and has no more
//!    was spilled, and that has taken the candidate away. It becomes one while the memtable that was active when it was looked up still is:
//!    else something newer could have come and been spilled in between.

use std::collections::HashMap;

use sheaf_base::engine::Hold;
use sheaf_base::error::{Damage, Error, Result};
use sheaf_base::record::{Content, Record};
use sheaf_base::segment::{Address, Frame};
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;
use sheaf_base::versions::Old;
use sheaf_base::views::Views;
use smallvec::SmallVec;

use crate::engine::KreonEngine;
use crate::memtable::{Version, Word};
use crate::named::Spot;
use crate::tree::{Level, Seen, State, seq_in};

/// A staged value has at least about so many bytes.
const STAGED_BYTES: u64 = 64 << 10;

/// Records that are about to be moved.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// The newest of their keys.
    pub(crate) heads: HashMap<Vec<u8>, Head>,
    /// Old versions that views may need, in the levels or a frozen memtable.
    pub(crate) olds: HashMap<u64, Old>,
    /// Keys of versions that were kept because a view might need them, and when these died. Who knows sees to them.
    doubtful: Vec<(Vec<u8>, Seq)>,
}

impl Candidates {
    /// A memtable's `word` for `key` goes no further, and who let go of it has seen to it.
    pub(crate) fn skipped(&mut self, key: &[u8], word: Word) {
        if self.heads.get(key).is_some_and(|head| word.is_at(head.address)) {
            self.heads.remove(key);
        }
    }

    /// A memtable's `version` of `key` goes into the levels. What it supersedes there is the newest no more: a view may need it, and the
    /// cleaner may be about to move it.
    pub(crate) fn superseded(&mut self, key: &[u8], version: Version) {
        if self.heads.is_empty() || self.heads.get(key).is_none_or(|head| version.word.is_at(head.address)) {
            return;
        }
        if let Some(head) = self.heads.remove(key) {
            self.olds.insert(head.address.bits(), head.old(version.seq));
        }
    }
}

/// See [`Candidates`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) address: Address,
    span: u64,
    seq: Seq,
    blob: Option<u64>,
    /// The memtable that had it, if one had: what supersedes it there sees to it.
    memtable: Option<u32>,
}

impl Head {
    /// The same, superseded by commit `died`.
    fn old(self, died: Seq) -> Old {
        let span = u32::try_from(self.span).unwrap_or(u32::MAX);
        Old { address: self.address, span, born: self.seq, died, blob: self.blob }
    }
}

/// The byte of a hash that leaves keep.
pub(crate) fn print_of(hash: u64) -> u8 {
    hash.to_be_bytes()[3]
}

/// What a view is shown of a key that has a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'g> {
    pub(crate) address: Address,
    /// Bytes of the record's frame, as far as known.
    pub(crate) span: u64,
    /// The value, where it was found together with the key.
    pub(crate) value: Option<&'g [u8]>,
}

impl<'g> Shown<'g> {
    /// A memtable's version; nothing of a removal.
    #[inline]
    pub(crate) fn of(version: Version) -> Option<Shown<'g>> {
        let word = version.word;
        (!word.is_tomb()).then(|| Shown { address: word.address(), span: word.span(), value: None })
    }

    /// What a level says; nothing of a removal.
    #[inline]
    pub(crate) fn seen(seen: &Seen<'g>) -> Option<Shown<'g>> {
        let entry = &seen.entry;
        let value = entry.is_inline().then_some(seen.value);
        (!entry.is_tomb()).then(|| Shown { address: entry.address(), span: entry.span(), value })
    }

    /// An old version, kept for views; nothing of a removal.
    pub(crate) fn old(address: Address) -> Option<Shown<'g>> {
        (address != Address::NONE).then_some(Shown { address, span: 0, value: None })
    }
}

/// A version of a key in one of the sources.
#[derive(Clone, Copy, Debug)]
enum Source<'g> {
    /// With the number of the memtable.
    Memtable(Version, u32),
    Level(Seen<'g>),
}

impl<'g> Source<'g> {
    fn shown(&self) -> Option<Shown<'g>> {
        match self {
            Source::Memtable(version, _) => Shown::of(*version),
            Source::Level(seen) => Shown::seen(seen),
        }
    }

    /// Where the record stands; none of a removal.
    fn address(&self) -> Option<Address> {
        self.shown().map(|shown| shown.address)
    }
}

impl KreonEngine {
    /// The record at an address that a source has.
    #[inline]
    pub(crate) fn frame<'g>(&self, address: Address, guard: &'g Guard) -> Result<Frame<'g>> {
        match self.ground.segments.at(address.slot(), guard) {
            Some(segment) => segment.frame(address.offset(), segment.limit_at(address.offset())),
            None => Err(self.lost(address)),
        }
    }

    /// An address that leads nowhere.
    pub(crate) fn lost(&self, address: Address) -> Error {
        let what = Damage::BadField { field: "address", value: address.bits() };
        Error::corrupt(&self.shelf.space.paged.path, 0, what)
    }

    /// The record in `frame`, which must be of `key`.
    #[inline]
    pub(crate) fn record<'f>(
        &self,
        address: Address,
        frame: &'f Frame<'_>,
        key: &[u8],
        guard: &Guard,
    ) -> Result<Record<'f>> {
        let damaged = |what| match self.ground.segments.at(address.slot(), guard) {
            Some(segment) => Error::corrupt(segment.path(), address.offset(), what),
            None => self.lost(address),
        };
        let record = Record::decode(frame.payload()).map_err(damaged)?;
        if record.key == key { Ok(record) } else { Err(self.lost(address)) }
    }

    /// The number of what a level says; none if it says nothing any more, as its segment is gone.
    fn seq_of(&self, seen: &Seen<'_>, guard: &Guard) -> Result<Option<Seq>> {
        if seen.entry.is_tomb() {
            return Ok(Some(seen.entry.tomb_seq()));
        }
        let address = seen.entry.address();
        self.shelf.segment_of(address, seen.stamp, guard).map(|segment| seq_in(segment, address)).transpose()
    }

    /// The first source that has the key.
    #[inline]
    fn first<'g>(
        &self,
        state: &State,
        hash: u64,
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<Source<'g>>> {
        self.first_of(state, &state.levels, hash, key, guard)
    }

    /// The first source that has the key, of the memtables and these levels.
    #[inline]
    fn first_of<'g>(
        &self,
        state: &State,
        levels: &[Level],
        hash: u64,
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<Source<'g>>> {
        for memtable in state.memtables.iter() {
            if let Some(place) = memtable.find(hash, key, guard) {
                return Ok(Some(Source::Memtable(memtable.version(place), memtable.number)));
            }
        }
        for level in levels {
            if let Some(seen) = self.shelf.find(level, hash, key, guard)? {
                return Ok(Some(Source::Level(seen)));
            }
        }
        Ok(None)
    }

    /// Whether the levels have something of `key` that is not older than `seq`.
    pub(crate) fn is_old_news(&self, hash: u64, key: &[u8], seq: Seq, guard: &Guard) -> Result<bool> {
        for level in &*self.state(guard).levels {
            let Some(seen) = self.shelf.find(level, hash, key, guard)? else { continue };
            return Ok(self.seq_of(&seen, guard)?.is_some_and(|there| there >= seq));
        }
        Ok(false)
    }

    /// The number of the key's newest version; zero if it has no value.
    pub(crate) fn newest(&self, hash: u64, key: &[u8], guard: &Guard) -> Result<Seq> {
        self.newest_with_bytes(hash, key, guard).map(|(seq, _)| seq)
    }

    /// The same, and about how many bytes the version takes.
    pub(crate) fn newest_with_bytes(&self, hash: u64, key: &[u8], guard: &Guard) -> Result<(Seq, u64)> {
        let source = self.first(self.state(guard), hash, key, guard)?;
        let bytes = |span: u64, is_staged: bool| if is_staged { STAGED_BYTES } else { span };
        match source {
            Some(Source::Memtable(version, _)) if !version.word.is_tomb() => {
                Ok((version.seq, bytes(version.word.span(), version.word.is_staged())))
            }
            Some(Source::Level(seen)) if !seen.entry.is_tomb() => {
                let seq = self.seq_of(&seen, guard)?.ok_or_else(|| self.lost(seen.entry.address()))?;
                Ok((seq, bytes(seen.entry.span(), seen.entry.is_staged())))
            }
            _ => Ok((Seq::ZERO, 0)),
        }
    }

    /// As [`KreonEngine::find_at`] for a caller that hands it out: the newest state is revealed
    /// before.
    #[inline]
    pub(crate) fn find_revealed<'g>(
        &self,
        at: Seq,
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<Shown<'g>>> {
        if at != Seq::LATEST {
            return self.find_at(at, key, guard);
        }
        let source = self.first(self.state(guard), self.hash(key), key, guard)?;
        if let Some(Source::Memtable(version, _)) = &source {
            self.ground.reveal(version.seq)?;
        }
        Ok(source.and_then(|source| source.shown()))
    }

    /// What a view at `at` is shown of `key`.
    #[inline]
    pub(crate) fn find_at<'g>(&self, at: Seq, key: &[u8], guard: &'g Guard) -> Result<Option<Shown<'g>>> {
        let hash = self.hash(key);
        let state = self.state(guard);
        if at == Seq::LATEST {
            return Ok(self.first(state, hash, key, guard)?.and_then(|source| source.shown()));
        }
        let active =
            state.memtables.active.find(hash, key, guard).map(|place| state.memtables.active.version(place));
        if let Some(version) = active.filter(|version| version.seq <= at) {
            return Ok(Shown::of(version));
        }
        // After the state was loaded, and before what it has: what it lets go of is here before.
        if !self.versions.is_empty()
            && let Some(address) = self.versions.at(&key.to_vec(), at).first()
        {
            return Ok(Shown::old(*address));
        }
        let frozen = state
            .memtables
            .frozen
            .as_ref()
            .and_then(|f| f.find(hash, key, guard).map(|place| f.version(place)));
        if let Some(version) = frozen.filter(|version| version.seq <= at) {
            return Ok(Shown::of(version));
        }
        for level in &*state.levels {
            let Some(seen) = self.shelf.find(level, hash, key, guard)? else { continue };
            if self.is_shown(&seen, at, guard)? {
                return Ok(Shown::seen(&seen));
            }
        }
        Ok(None)
    }

    /// Whether what a level says is not too new for a view at `at`.
    pub(crate) fn is_shown(&self, seen: &Seen<'_>, at: Seq, guard: &Guard) -> Result<bool> {
        if seen.newest <= at {
            return Ok(true);
        }
        Ok(self.seq_of(seen, guard)?.is_some_and(|seq| seq <= at))
    }

    /// Whether the record at `address` is the newest of its key, as a question and nothing else.
    pub(crate) fn is_first(&self, key: &[u8], address: Address, guard: &Guard) -> Result<bool> {
        let first = self.newest_at(self.state(guard), self.hash(key), key, address, guard)?;
        Ok(first.is_some())
    }

    /// Whether the record at `address` is the newest of its key, and then, in which memtable it is, if in one. Of the last level
    /// no leaf is asked, if what it points at is known without.
    fn newest_at(
        &self,
        state: &State,
        hash: u64,
        key: &[u8],
        address: Address,
        guard: &Guard,
    ) -> Result<Option<Option<u32>>> {
        let upper = state.lowest().unwrap_or(0);
        let mut first = self.first_of(state, &state.levels[..upper], hash, key, guard)?;
        if first.is_none()
            && let Some(last) = state.levels.get(upper)
        {
            let (frame, segment) = self.ground.segments.frame_unchecked(address, guard)?;
            let spot = Spot::new(address, frame.span(), segment);
            if let Some(is_named) = self.named.names(&spot) {
                debug_assert!(self.is_right(hash, key, &spot, guard), "the mirror of a level");
                return Ok(is_named.then_some(None));
            }
            first = self.shelf.find(last, hash, key, guard)?.map(Source::Level);
        }
        if first.as_ref().and_then(Source::address) != Some(address) {
            return Ok(None);
        }
        let Some(Source::Memtable(_, number)) = first else { return Ok(Some(None)) };
        Ok(Some(Some(number)))
    }

    /// Whether the last level does what the mirror says, as far as nobody is changing it, and it can be read.
    fn is_right(&self, hash: u64, key: &[u8], spot: &Spot, guard: &Guard) -> bool {
        let Some(_spill) = self.spill.try_lock() else { return true };
        let state = self.state(guard);
        let Some(level) = state.lowest() else { return true };
        let Some(is_named) = self.named.known(spot) else { return true };
        let Ok(seen) = self.shelf.find(&state.levels[level], hash, key, guard) else { return true };
        let says = |seen: Seen<'_>| {
            let address = spot.address();
            let there = self.shelf.segment_of(address, seen.stamp, guard);
            seen.entry.address() == address && !seen.entry.is_tomb() && there.is_some()
        };
        is_named == seen.is_some_and(says)
    }

    /// Whether the record at `address` is needed.
    pub(crate) fn hold_at(&self, key: &[u8], address: Address, guard: &Guard) -> Result<Hold> {
        let hash = self.hash(key);
        let mut state = self.state(guard);
        while let Some(memtable) = self.newest_at(state, hash, key, address, guard)? {
            let head = Head { memtable, ..self.head_at(address, guard)? };
            let mut candidates = self.candidates.lock();
            let now = self.state(guard);
            if now.memtables.active.number == state.memtables.active.number {
                // What came since the look is in that memtable (I1).
                candidates.heads.insert(key.to_vec(), head);
                return Ok(Hold::Head);
            }
            state = now; // it may be in a level by now
        }
        if !self.versions.is_empty() && self.versions.contains(&key.to_vec(), address) {
            return Ok(Hold::Pinned);
        }
        if self.needed.load(Ordering::Acquire) == 0 {
            return Ok(Hold::Dead);
        }
        // A view may need it, and a lower source may have it.
        let mut sources: SmallVec<[Source<'_>; 4]> = SmallVec::new();
        for memtable in state.memtables.iter() {
            let source = |place| Source::Memtable(memtable.version(place), memtable.number);
            sources.extend(memtable.find(hash, key, guard).map(source));
        }
        for level in &*state.levels {
            sources.extend(self.shelf.find(level, hash, key, guard)?.map(Source::Level));
        }
        let is_it = |source: &Source<'_>| match source {
            Source::Level(seen) if self.shelf.is_dangling(address, seen.stamp, guard) => false,
            other => other.address() == Some(address),
        };
        let Some(place) = sources.iter().position(is_it) else { return Ok(Hold::Dead) };
        let died = match sources.get(place.wrapping_sub(1)) {
            Some(Source::Memtable(version, _)) => version.seq,
            Some(Source::Level(seen)) => self.seq_of(seen, guard)?.unwrap_or(seen.newest),
            None => return Ok(Hold::Dead),
        };
        let head = self.head_at(address, guard)?;
        if !self.may_need(head.seq, died) {
            return Ok(Hold::Dead);
        }
        self.candidates.lock().olds.insert(address.bits(), head.old(died));
        Ok(Hold::Pinned)
    }

    fn head_at(&self, address: Address, guard: &Guard) -> Result<Head> {
        let (frame, segment) = self.ground.segments.frame_unchecked(address, guard)?;
        let record = Record::decode(frame.payload())
            .map_err(|what| Error::corrupt(segment.path(), address.offset(), what))?;
        let blob = if let Content::Staged(blob) = record.content { Some(blob.id) } else { None };
        Ok(Head { address, span: frame.span(), seq: frame.header.seq, blob, memtable: None })
    }

    /// Keeps `old` if a view may need it. When it died is when the next version was born, as far as that is known: what is among
    /// the versions may have come between. The candidates are locked, so that nobody else does the same.
    pub(crate) fn keep_version(
        &self,
        candidates: &mut Candidates,
        key: &[u8],
        old: Old,
        may_need: impl Fn(Seq, Seq) -> bool,
    ) -> bool {
        let place = key.to_vec();
        let next = self.versions.next_born(&place, old.born).unwrap_or(old.died);
        let old = Old { died: old.died.min(next), ..old };
        if old.born >= old.died || !may_need(old.born, old.died) {
            return false;
        }
        // A copy of it may be there already.
        if self.versions.at(&place, old.born).is_empty() {
            self.unpin(old.born);
            candidates.doubtful.push((place.clone(), old.died));
            self.versions.push(place, old);
        }
        true
    }

    /// Lets go of versions that were kept in doubt and are needed by none of `views`. False if some are younger than these.
    pub(crate) fn resolve_doubts(&self, views: &Views, guard: &Guard) -> bool {
        let mut candidates = self.candidates.lock();
        let known = |(_, died): &mut (Vec<u8>, Seq)| *died <= views.as_of();
        for (key, _) in candidates.doubtful.extract_if(.., known) {
            for old in self.versions.trim_at(&key, views, views.as_of()) {
                self.accounts.bury(&old, guard);
            }
        }
        candidates.doubtful.is_empty()
    }

    /// Whether a view may need a version of such a life.
    fn may_need(&self, born: Seq, died: Seq) -> bool {
        let (oldest, newest) =
            (self.oldest_view.load(Ordering::Acquire), self.newest_view.load(Ordering::Acquire));
        self.needed.load(Ordering::Acquire) != 0 && born.0 <= newest && oldest < died.0
    }

    /// With the stripe of the key held: the record at `from` was copied to `to`.
    pub(crate) fn repoint(&self, key: &[u8], from: Address, to: Address, guard: &Guard) -> bool {
        let mut candidates = self.candidates.lock();
        // An old version of the key may be moved before its newest one.
        let is_head = candidates.heads.get(key).is_some_and(|head| head.address == from);
        let head = if is_head { candidates.heads.remove(key) } else { None };
        let old = candidates.olds.remove(&from.bits());
        let hash = self.hash(key);
        let state = self.state(guard);
        let found = |memtable: &crate::memtable::Memtable| {
            memtable.find(hash, key, guard).map(|place| (place, memtable.version(place)))
        };
        let active = found(&state.memtables.active);
        if let Some((place, version)) = active.filter(|(_, version)| version.word.is_at(from)) {
            self.rename_staged(version.word.is_staged(), from, to);
            state.memtables.active.replace(place, Version { word: version.word.at(to), ..version });
            return true;
        }
        let frozen = state.memtables.frozen.as_ref().and_then(|f| found(f));
        let is_frozen = frozen.is_some_and(|(_, version)| version.word.is_at(from));
        // What came first after it.
        let newer = frozen.filter(|_| !is_frozen).or(active).map(|(_, version)| version.seq);
        // A put does not look at what it supersedes below its memtable: a view may need that all the same.
        let is_seen_to = |number| {
            let is_in_frozen = state.memtables.frozen.as_ref().is_some_and(|frozen| frozen.number == number);
            number == state.memtables.active.number || (is_in_frozen && !is_frozen)
        };
        let old = match (head, newer) {
            (Some(head), None) => {
                if let Some(blob) = head.blob {
                    self.staged.lock().insert(to.bits(), blob);
                }
                // What the sources below have is accounted by the cleaner.
                let word = Word::put(to, head.span, head.blob.is_some()).below(true);
                state.memtables.active.put(
                    0,
                    hash,
                    key,
                    Version { word, seq: head.seq },
                    &self.ground.memory,
                    guard,
                );
                return true;
            }
            (Some(head), Some(died)) if !head.memtable.is_some_and(is_seen_to) => {
                old.or(Some(head.old(died)))
            }
            _ => old,
        };
        if !self.versions.is_empty() && self.versions.replace(&key.to_vec(), from, to) {
            return true;
        }
        match old {
            Some(old) => {
                let may_need = |born, died| self.may_need(born, died);
                self.keep_version(&mut candidates, key, Old { address: to, ..old }, may_need)
            }
            None => false,
        }
    }

    fn rename_staged(&self, is_staged: bool, from: Address, to: Address) {
        if is_staged {
            let mut staged = self.staged.lock();
            if let Some(blob) = staged.remove(&from.bits()) {
                staged.insert(to.bits(), blob);
            }
        }
    }
}
