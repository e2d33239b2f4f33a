//! # Inode: a file in the cache and on the platter
//!
//! ## Picture
//!
//! ```text
//!   write, set_len, allocate ──> cache ──sync──> platter
//!                                  └ dirty, cut, lengths: the difference between the two (pending)
//! ```
//!
//! ## Invariants
//!
//! 1. With no pending change and no failed sync, `cache` and `platter` contain the same bytes.
//! 2. `dirty` lists the sectors with unsynced newest bytes (those in `cache`), with the operation
//!    that wrote them last. Older unsynced versions are kept in paranoid mode only.
//! 3. `cut` contains unsynced sectors that a later `set_len` removed. They may be on the platter if
//!    a power cut comes before that `set_len` is durable.
//! 4. `lengths` lists the unsynced lengths in order. Each has the shortest length of the file since
//!    the last sync (`floor`): bytes of the platter beyond it are lost permanently.
//! 5. After a failed sync (`is_platter_outdated`) the cache may show bytes that the platter does
//!    not have. No sync writes them unless they are written again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::content::{BLOCK, FileContent, Sector};
use super::random::SimRandom;
use super::{AfterFailedSync, SECTOR};

/// A file with any number of names.
#[derive(Clone)]
pub(super) struct Inode {
    /// The last name of the file, for messages.
    pub(super) path: Arc<Path>,
    cache: FileContent,
    platter: FileContent,
    dirty: BTreeMap<u64, DirtySector>,
    cut: Vec<CutSector>,
    lengths: Vec<LengthChange>,
    /// Unsynced reservation of `[0, reserved)`.
    reserved: u64,
    is_platter_outdated: bool,
}

#[derive(Clone)]
struct DirtySector {
    op: u64,
    older: Vec<(u64, Arc<Sector>)>,
}

#[derive(Clone)]
struct CutSector {
    sector: u64,
    op: u64,
    cut_op: u64,
    bytes: Arc<Sector>,
}

#[derive(Clone, Copy)]
struct LengthChange {
    op: u64,
    len: u64,
    floor: u64,
}

/// A change that a power cut may keep or lose, independently of all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingPiece {
    /// A version of a sector: an index into `older`, or the length of `older` for the newest.
    Sector { sector: u64, version: usize },
    /// An index into `cut`.
    Cut(usize),
    /// An index into `lengths`.
    Length(usize),
}

impl Inode {
    /// Creates an empty file.
    pub(super) fn new(path: Arc<Path>) -> Inode {
        Inode::durable(path, FileContent::default())
    }

    /// Creates a file with the same content in the cache and on the platter.
    pub(super) fn durable(path: Arc<Path>, content: FileContent) -> Inode {
        Inode {
            path,
            platter: content.clone(),
            cache: content,
            dirty: BTreeMap::new(),
            cut: Vec::new(),
            lengths: Vec::new(),
            reserved: 0,
            is_platter_outdated: false,
        }
    }

    /// Returns the content that reads see.
    pub(super) fn cache(&self) -> &FileContent {
        &self.cache
    }

    /// Returns the content that is durable.
    pub(super) fn platter(&self) -> &FileContent {
        &self.platter
    }

    /// Returns true if a power cut changes nothing.
    pub(super) fn is_durable(&self) -> bool {
        !self.is_pending() && !self.is_platter_outdated
    }

    fn is_pending(&self) -> bool {
        !(self.dirty.is_empty() && self.lengths.is_empty()) || self.reserved > 0
    }

    /// Changes cache and platter alike, without the model.
    pub(super) fn edit(&mut self, change: impl Fn(&mut FileContent)) {
        change(&mut self.cache);
        change(&mut self.platter);
    }

    pub(super) fn write(&mut self, op: u64, offset: u64, bytes: &[u8], is_paranoid: bool) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len() as u64;
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            self.mark_dirty(op, sector, is_paranoid);
        }
        let old_len = self.cache.len();
        self.cache.write(offset, bytes);
        if end > old_len {
            self.note_length(op, old_len);
        }
    }

    pub(super) fn set_len(&mut self, op: u64, len: u64, is_paranoid: bool) {
        let old_len = self.cache.len();
        if len == old_len {
            return;
        }
        if len < old_len {
            self.cut_sectors(op, len.div_ceil(SECTOR));
            if !len.is_multiple_of(SECTOR) {
                self.mark_dirty(op, len / SECTOR, is_paranoid); // Its tail becomes zeros.
            }
        }
        self.cache.set_len(len);
        self.reserved = self.reserved.min(len);
        self.note_length(op, old_len);
    }

    pub(super) fn allocate(&mut self, op: u64, len: u64) {
        let old_len = self.cache.len();
        if len > old_len {
            self.cache.set_len(len);
            self.note_length(op, old_len);
        }
        self.cache.reserve(len);
        self.reserved = self.reserved.max(len);
    }

    /// Writes every pending change to the platter.
    pub(super) fn sync(&mut self) {
        self.sync_length();
        if self.is_platter_outdated {
            for &sector in self.dirty.keys() {
                self.platter.put_sector(sector, &self.cache.sector(sector));
            }
        } else {
            let mut last = None;
            for block in self.dirty.keys().map(|sector| sector * SECTOR / BLOCK) {
                if last.replace(block) != Some(block) {
                    self.platter.share_block(block, &self.cache);
                }
            }
            let has_same_length = self.platter.len() == self.cache.len();
            assert!(has_same_length, "inode (I1): after a sync the platter has the length of the cache");
        }
        self.forget_pending();
    }

    /// Writes each pending change to the platter or drops it, at random. In both cases the kernel
    /// treats it as clean from now on.
    pub(super) fn fail_sync(&mut self, random: &mut SimRandom, after: AfterFailedSync) {
        if random.one_in(2) {
            self.sync_length();
        }
        for &sector in self.dirty.keys() {
            if random.one_in(2) {
                self.platter.put_sector(sector, &self.cache.sector(sector));
            } else if after == AfterFailedSync::ShowsOld {
                self.cache.put_sector(sector, &self.platter.sector(sector));
            }
        }
        self.forget_pending();
        self.is_platter_outdated = true;
    }

    /// Returns the pending changes with their operations. `is_paranoid` adds those without effect
    /// as long as grown space reads as zeros.
    pub(super) fn pieces(&self, is_paranoid: bool) -> Vec<(u64, PendingPiece)> {
        let mut pieces = Vec::new();
        for (&sector, dirty) in &self.dirty {
            let newest = dirty.older.len();
            let older = dirty.older.iter().map(|(op, _)| *op).enumerate();
            for (version, op) in older.chain([(newest, dirty.op)]) {
                let piece = PendingPiece::Sector { sector, version };
                if is_paranoid || self.makes_a_difference(sector, piece) {
                    pieces.push((op, piece));
                }
            }
        }
        let cut = self.cut.iter().enumerate();
        pieces.extend(cut.map(|(index, cut)| (cut.op, PendingPiece::Cut(index))));
        let lengths = self.lengths.iter().enumerate();
        pieces.extend(lengths.map(|(index, change)| (change.op, PendingPiece::Length(index))));
        pieces
    }

    /// Returns false if the platter has these bytes anyway, for every length that may be kept.
    fn makes_a_difference(&self, sector: u64, piece: PendingPiece) -> bool {
        let bytes = self.bytes_of(piece);
        let floor = self.lengths.last().map_or(u64::MAX, |last| last.floor);
        let is_stable = bytes == [0; 512] || (sector + 1) * SECTOR <= floor;
        !(is_stable && self.cut.is_empty() && bytes == self.platter.sector(sector))
    }

    /// Describes a piece: its sector, and whether it has the newest bytes of the sector; or its
    /// length.
    pub(super) fn describe(&self, piece: PendingPiece) -> PendingPieceKind {
        match piece {
            PendingPiece::Sector { sector, version } => PendingPieceKind::Sector {
                index: sector,
                is_newest: version == self.dirty[&sector].older.len(),
            },
            PendingPiece::Cut(index) => {
                PendingPieceKind::Sector { index: self.cut[index].sector, is_newest: false }
            }
            PendingPiece::Length(index) => PendingPieceKind::Length(self.lengths[index].len),
        }
    }

    /// Returns the file after a power cut that kept only the pieces in `kept`, sorted by operation.
    /// With `wild`, sectors tear, lengths are random, and grown space contains garbage.
    pub(super) fn after_power_cut(&self, kept: &[PendingPiece], mut wild: Option<&mut SimRandom>) -> Inode {
        let last_length = kept.iter().rev().find_map(|piece| match *piece {
            PendingPiece::Length(index) => Some(self.lengths[index]),
            _ => None,
        });
        let length =
            last_length.unwrap_or(LengthChange { op: 0, len: self.platter.len(), floor: self.platter.len() });
        let mut content = self.platter.clone();
        content.set_len(length.floor.min(content.len()));
        let grown_from = content.len().div_ceil(SECTOR);
        content.set_len(self.final_length(length.len, wild.as_deref_mut()));
        if let Some(random) = wild.as_deref_mut() {
            write_garbage(&mut content, grown_from, random);
        }
        for &piece in kept {
            if let Some(sector) = self.surviving_sector(piece, length.op) {
                let bytes = torn(self.bytes_of(piece), content.sector(sector), wild.as_deref_mut());
                content.put_sector(sector, &bytes);
            }
        }
        if last_length.is_some_and(|change| change.len >= self.reserved) {
            content.reserve(self.reserved.min(content.len()));
        }
        Inode::durable(self.path.clone(), content)
    }

    /// Returns the sector that `piece` writes, unless a length change up to `length_op` removed it.
    fn surviving_sector(&self, piece: PendingPiece, length_op: u64) -> Option<u64> {
        match piece {
            PendingPiece::Sector { sector, .. } => Some(sector),
            PendingPiece::Cut(index) => {
                let cut = &self.cut[index];
                (cut.cut_op > length_op).then_some(cut.sector)
            }
            PendingPiece::Length(_) => None,
        }
    }

    fn bytes_of(&self, piece: PendingPiece) -> Sector {
        match piece {
            PendingPiece::Sector { sector, version } => match self.dirty[&sector].older.get(version) {
                Some((_, bytes)) => **bytes,
                None => self.cache.sector(sector),
            },
            PendingPiece::Cut(index) => *self.cut[index].bytes,
            PendingPiece::Length(_) => unreachable!("a length has no bytes"),
        }
    }

    /// Returns `len`. With `wild`, half of the time returns a multiple of the sector size between
    /// the shortest and the longest length that the file had.
    fn final_length(&self, len: u64, wild: Option<&mut SimRandom>) -> u64 {
        let passed = self.lengths.iter().flat_map(|change| [change.len, change.floor]);
        let (Some(longest), Some(shortest)) = (passed.clone().max(), passed.min()) else {
            return len;
        };
        let shortest = shortest.div_ceil(SECTOR);
        let choices = longest.max(self.platter.len()).div_ceil(SECTOR) - shortest + 1;
        let Some(random) = wild else {
            return len;
        };
        match random.one_in(2) {
            true => (shortest + random.below(choices)) * SECTOR,
            false => len,
        }
    }

    fn mark_dirty(&mut self, op: u64, sector: u64, is_paranoid: bool) {
        let Some(dirty) = self.dirty.get_mut(&sector) else {
            let older = Vec::new();
            self.dirty.insert(sector, DirtySector { op, older });
            return;
        };
        if is_paranoid && dirty.op != op {
            let bytes = Arc::new(self.cache.sector(sector));
            dirty.older.push((dirty.op, bytes));
        }
        dirty.op = op;
    }

    /// Moves the dirty sectors from `first` on to `cut`.
    fn cut_sectors(&mut self, cut_op: u64, first: u64) {
        for (sector, dirty) in self.dirty.split_off(&first) {
            let newest = (dirty.op, Arc::new(self.cache.sector(sector)));
            for (op, bytes) in dirty.older.into_iter().chain([newest]) {
                self.cut.push(CutSector { sector, op, cut_op, bytes });
            }
        }
    }

    fn note_length(&mut self, op: u64, old_len: u64) {
        let floor = match self.lengths.last() {
            Some(last) => last.floor,
            None => old_len.min(self.platter.len()),
        };
        let len = self.cache.len();
        let floor = floor.min(len);
        let is_later = self.lengths.last().is_none_or(|last| last.op <= op);
        assert!(is_later, "inode (I4): the unsynced lengths are listed in order");
        self.lengths.push(LengthChange { op, len, floor });
    }

    /// Applies the newest length to the platter, including the shortest length before it.
    fn sync_length(&mut self) {
        if let Some(last) = self.lengths.last() {
            self.platter.set_len(last.floor.min(self.platter.len()));
            self.platter.set_len(self.cache.len());
        }
        self.platter.reserve(self.reserved.min(self.platter.len()));
    }

    fn forget_pending(&mut self) {
        self.dirty.clear();
        self.cut.clear();
        self.lengths.clear();
        self.reserved = 0;
    }
}

/// Description of a [`PendingPiece`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingPieceKind {
    Sector { index: u64, is_newest: bool },
    Length(u64),
}

/// Writes garbage to the sectors from `first` on, half of the time.
fn write_garbage(content: &mut FileContent, first: u64, random: &mut SimRandom) {
    let end = content.len().div_ceil(SECTOR);
    if first >= end || random.one_in(2) {
        return;
    }
    for sector in first..end {
        let mut garbage: Sector = [0; 512];
        for word in garbage.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        content.put_sector(sector, &garbage);
    }
}

/// Returns `new`. With `wild`, one time in four returns a sector torn at a random byte: `new` on
/// one side and `old` on the other.
fn torn(new: Sector, old: Sector, wild: Option<&mut SimRandom>) -> Sector {
    let Some(random) = wild else {
        return new;
    };
    if !random.one_in(4) {
        return new;
    }
    let at = super::content::index(random.below(SECTOR));
    let (mut left, right) = match random.one_in(2) {
        true => (new, old),
        false => (old, new),
    };
    left[at..].copy_from_slice(&right[at..]);
    left
}

#[cfg(test)]
mod tests {
    use super::super::content::index;
    use super::*;

    /// Makes one random operation on a file of up to 12 sectors. Returns true if the file is
    /// durable.
    fn step(file: &mut Inode, op: u64, random: &mut SimRandom, is_paranoid: bool) -> bool {
        let at = random.below(6000);
        let len = index(random.below(1500));
        // Few values, so that sectors are often overwritten with equal bytes.
        let fill = [0, 0, 7][index(random.below(3))];
        match random.below(9) {
            0 => file.set_len(op, at, is_paranoid),
            1 => file.allocate(op, at),
            2 => file.sync(),
            _ => file.write(op, at, &vec![fill; len], is_paranoid),
        }
        file.is_durable()
    }

    fn in_order(mut pieces: Vec<(u64, PendingPiece)>) -> Vec<PendingPiece> {
        pieces.sort_by_key(|(op, _)| *op);
        pieces.into_iter().map(|(_, piece)| piece).collect()
    }

    fn bytes_after(file: &Inode, kept: &[PendingPiece]) -> Vec<u8> {
        file.after_power_cut(kept, None).cache().to_vec()
    }

    #[test]
    fn keeping_none_gives_the_last_sync_and_keeping_all_gives_the_cache() {
        for seed in 0..400 {
            let random = &mut SimRandom::new(seed);
            let is_paranoid = seed % 2 == 0;
            let mut file = Inode::new(Path::new("/a").into());
            let mut synced = Vec::new();
            for op in 1..60 {
                if step(&mut file, op, random, is_paranoid) {
                    synced = file.cache().to_vec();
                }
                let all = in_order(file.pieces(is_paranoid));
                assert!(bytes_after(&file, &[]) == synced, "seed {seed} op {op}");
                assert!(bytes_after(&file, &all) == file.cache().to_vec(), "seed {seed} op {op}");
            }
        }
    }

    #[test]
    fn pieces_left_out_make_no_difference() {
        for seed in 0..2000 {
            let random = &mut SimRandom::new(seed);
            let mut file = Inode::new(Path::new("/a").into());
            for op in 1..20 {
                step(&mut file, op, random, false);
                let offered = file.pieces(false);
                let mut kept = in_order(file.pieces(true));
                kept.retain(|_| random.one_in(2));
                let mut offered_kept = kept.clone();
                offered_kept.retain(|piece| offered.iter().any(|(_, other)| other == piece));
                let same = bytes_after(&file, &kept) == bytes_after(&file, &offered_kept);
                assert!(same, "seed {seed} op {op}");
            }
        }
    }

    #[test]
    fn after_a_failed_sync_each_sector_is_old_or_new_and_rewriting_heals() {
        for seed in 0..200 {
            let random = &mut SimRandom::new(seed);
            let mut file = Inode::new(Path::new("/a").into());
            file.write(1, 0, &[1; 4096], false);
            file.sync();
            file.write(2, 100, &[2; 3000], false);
            let (old, new) = (file.platter().clone(), file.cache().clone());
            file.fail_sync(random, AfterFailedSync::ShowsNew);
            assert!(file.pieces(true).is_empty());
            for sector in 0..8 {
                let bytes = file.platter().sector(sector);
                assert!(bytes == old.sector(sector) || bytes == new.sector(sector));
            }
            file.write(3, 0, &new.to_vec(), false);
            file.sync();
            assert_eq!(file.platter().to_vec(), new.to_vec());
        }
    }
}
