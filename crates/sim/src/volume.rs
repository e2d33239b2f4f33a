//! # Simulated volume: names and files, in the cache and on the platter
//!
//! The state of a [`super::SimDisk`] without locks, faults and threads. A clone shares all bytes
//! with its origin until one of them changes.
//!
//! ## Invariants
//!
//! 1. A directory has `names` (visible to calls) and `durable` (on the platter); `changes` lists
//!    the differences in order. `sync_dir` applies the changes of one directory, and those of
//!    others that they depend on. The order of the changes of one name is always kept.
//! 2. A node lives as long as it is open or has a name: a visible, a durable or a pending one.
//! 3. `used` is the number of blocks in the caches of all files that have a name or are open.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::AfterFailedSync;
use super::content::{BLOCK, FileContent};
use super::error_numbers::ENOSPC;
use super::inode::Inode;
use super::random::SimRandom;
use sheaf_platform::disk::DirEntry;

/// Number of a file or directory, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ino(pub(super) u64);

const ROOT: Ino = Ino(0);

/// Names and files of a volume.
#[derive(Clone)]
pub(super) struct VolumeState {
    pub(super) nodes: BTreeMap<Ino, SimNode>,
    pub(super) changes: Vec<NameChange>,
    next_ino: u64,
    open: BTreeMap<Ino, u32>,
    /// Files that ever had two names.
    linked: BTreeSet<Ino>,
    used: u64,
    /// Number of blocks.
    pub(super) capacity: u64,
    /// Reported numbers of free and of all files.
    pub(super) files: Option<(u64, u64)>,
    /// Number of the running or last operation.
    pub(super) op: u64,
    pub(super) is_paranoid: bool,
    pub(super) after_failed_sync: AfterFailedSync,
    pub(super) random: SimRandom,
}

#[derive(Clone)]
pub(super) enum SimNode {
    File(Arc<Inode>),
    Dir(Arc<SimDir>),
}

#[derive(Clone, Default)]
pub(super) struct SimDir {
    pub(super) names: DirNames,
    pub(super) durable: DirNames,
}

type DirNames = BTreeMap<String, Ino>;

/// Directory and name of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameLocation {
    pub(super) dir: Ino,
    pub(super) name: String,
}

/// A change of names that is not on the platter yet.
#[derive(Clone)]
pub(super) struct NameChange {
    pub(super) op: u64,
    pub(super) ino: Ino,
    /// Location of the removed name.
    pub(super) from: Option<NameLocation>,
    /// Location of the added name.
    pub(super) to: Option<NameLocation>,
    /// The (old) name, and the new name of a rename, for messages.
    pub(super) path: Arc<Path>,
    pub(super) new_path: Option<Arc<Path>>,
}

impl VolumeState {
    pub(super) fn new(seed: u64) -> VolumeState {
        VolumeState {
            nodes: BTreeMap::from([(ROOT, SimNode::Dir(Arc::default()))]),
            changes: Vec::new(),
            next_ino: 1,
            open: BTreeMap::new(),
            linked: BTreeSet::new(),
            used: 0,
            capacity: u64::MAX / BLOCK,
            files: None,
            op: 0,
            is_paranoid: false,
            after_failed_sync: AfterFailedSync::ShowsNew,
            random: SimRandom::new(seed),
        }
    }

    /// Returns the volume without open files. Files without a name are deleted.
    pub(super) fn with_all_closed(mut self) -> VolumeState {
        for ino in std::mem::take(&mut self.open).into_keys() {
            self.free_unreferenced(ino);
        }
        self
    }

    // --- names -------------------------------------------------------------------------------

    pub(super) fn ino(&self, path: &Path) -> io::Result<Ino> {
        let words = path_components(path)?;
        match words.clone().any(|word| word == "..") {
            true => self.walk_down(parts(path)?.into_iter()),
            false => self.walk_down(words),
        }
    }

    fn walk_down<'a>(&self, names: impl Iterator<Item = &'a str>) -> io::Result<Ino> {
        let mut ino = ROOT;
        for name in names {
            ino = *self.dir(ino)?.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(ino)
    }

    pub(super) fn file_at(&self, path: &Path) -> io::Result<Ino> {
        let ino = self.ino(path)?;
        match self.nodes[&ino] {
            SimNode::File(_) => Ok(ino),
            SimNode::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn name_location(&self, path: &Path) -> io::Result<NameLocation> {
        let parts = parts(path)?;
        let (name, parents) = parts.split_last().ok_or(io::ErrorKind::InvalidInput)?;
        let dir = self.walk_down(parents.iter().copied())?;
        self.dir(dir)?;
        let name = (*name).to_owned();
        Ok(NameLocation { dir, name })
    }

    pub(super) fn create(&mut self, path: &Path, is_dir: bool) -> io::Result<Ino> {
        let place = self.free_name_location(path)?;
        let ino = self.add_node(path, is_dir);
        self.change_names(ino, None, Some(place), path, None);
        Ok(ino)
    }

    pub(super) fn remove(&mut self, path: &Path, is_dir: bool) -> io::Result<()> {
        let ino = self.ino(path)?;
        let place = self.name_location(path)?;
        match (&self.nodes[&ino], is_dir) {
            (SimNode::File(_), false) => {}
            (SimNode::Dir(dir), true) if dir.names.is_empty() => {}
            (SimNode::Dir(_), true) => return Err(io::ErrorKind::DirectoryNotEmpty.into()),
            (SimNode::Dir(_), false) => return Err(io::ErrorKind::IsADirectory.into()),
            (SimNode::File(_), true) => return Err(io::ErrorKind::NotADirectory.into()),
        }
        self.change_names(ino, Some(place), None, path, None);
        let is_named = self.linked.contains(&ino) && self.has_name(ino, |dir| &dir.names);
        if let (SimNode::File(file), false) = (&self.nodes[&ino], is_named || self.open.contains_key(&ino)) {
            self.used -= file.cache().used();
        }
        Ok(())
    }

    pub(super) fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let ino = self.ino(from)?;
        let place = self.free_name_location(to)?;
        if matches!(self.nodes[&ino], SimNode::Dir(_)) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.linked.insert(ino);
        self.change_names(ino, None, Some(place), to, None);
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (old, new) = (self.name_location(from)?, self.name_location(to)?);
        let ino = self.ino(from)?;
        let (old_parts, new_parts) = (parts(from)?, parts(to)?);
        if new_parts.len() > old_parts.len() && new_parts.starts_with(&old_parts) {
            return Err(io::ErrorKind::InvalidInput.into()); // Into itself.
        }
        if old_parts.len() > new_parts.len() && old_parts.starts_with(&new_parts) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into()); // Onto its parent.
        }
        if old == new {
            return Ok(());
        }
        if let Some(target) = self.dir(new.dir)?.names.get(&new.name) {
            match (&self.nodes[&ino], &self.nodes[target]) {
                // Both names of one file remain.
                (SimNode::File(_), SimNode::File(_)) if *target == ino => return Ok(()),
                (SimNode::File(_), SimNode::File(_)) => {}
                (SimNode::Dir(_), SimNode::Dir(dir)) if dir.names.is_empty() => {}
                (SimNode::Dir(_), SimNode::Dir(_)) => return Err(io::ErrorKind::DirectoryNotEmpty.into()),
                (SimNode::File(_), _) => return Err(io::ErrorKind::IsADirectory.into()),
                (SimNode::Dir(_), _) => return Err(io::ErrorKind::NotADirectory.into()),
            }
        }
        if let Some(SimNode::File(file)) = self.nodes.get_mut(&ino) {
            Arc::make_mut(file).path = to.into();
        }
        self.change_names(ino, Some(old), Some(new), from, Some(to.into()));
        self.recount();
        Ok(())
    }

    /// Makes the names of a directory durable. If the sync fails, saves a random part of them and
    /// treats the others as durable.
    pub(super) fn sync_dir(&mut self, path: &Path, fails: bool) -> io::Result<()> {
        let dir = self.ino(path)?;
        self.dir(dir)?;
        let synced = self.changes_synced_with(dir);
        let mut may_orphan = fails;
        for (change, is_synced) in std::mem::take(&mut self.changes).into_iter().zip(synced) {
            if !is_synced {
                self.changes.push(change);
            } else if !fails || self.random.one_in(2) {
                may_orphan |= change.from.is_some();
                self.make_durable(&change, true, true);
            }
        }
        if may_orphan {
            self.forget_unreachable();
        }
        Ok(())
    }

    /// Makes all files and names durable. If the sync fails, saves a random part of them and treats
    /// the others as durable.
    pub(super) fn sync_all(&mut self, fails: bool) {
        for change in std::mem::take(&mut self.changes) {
            if !fails || self.random.one_in(2) {
                self.make_durable(&change, true, true);
            }
        }
        let is_file = |(ino, node): (&Ino, &SimNode)| matches!(node, SimNode::File(_)).then_some(*ino);
        let files: Vec<Ino> = self.nodes.iter().filter_map(is_file).collect();
        for ino in files {
            if !self.file(ino).is_durable() {
                self.sync(ino, fails);
            }
        }
        self.forget_unreachable();
    }

    /// Returns for each pending change whether a sync of `dir` includes it: the changes in `dir`,
    /// and those that one of them depends on. (A file that was renamed into `dir` must not reappear
    /// under its old name.)
    fn changes_synced_with(&self, dir: Ino) -> Vec<bool> {
        let mut needed: Vec<&NameLocation> = Vec::new();
        let mut synced = vec![false; self.changes.len()];
        for (change, is_synced) in self.changes.iter().zip(&mut synced).rev() {
            let places = || change.from.iter().chain(&change.to);
            *is_synced = places().any(|place| place.dir == dir || needed.contains(&place));
            if *is_synced {
                needed.extend(places());
            }
        }
        synced
    }

    /// Applies the removal, the addition, or both parts of a change to the platter.
    pub(super) fn make_durable(&mut self, change: &NameChange, remove: bool, add: bool) {
        if let (Some(place), true) = (&change.from, remove) {
            let names = &mut self.dir_mut(place.dir).durable;
            if names.get(&place.name) == Some(&change.ino) {
                names.remove(&place.name);
            }
        }
        if let (Some(place), true) = (&change.to, add) {
            let names = &mut self.dir_mut(place.dir).durable;
            names.insert(place.name.clone(), change.ino);
        }
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let entry = |(name, ino): (&String, &Ino)| DirEntry {
            name: name.clone(),
            is_dir: matches!(self.nodes[ino], SimNode::Dir(_)),
        };
        Ok(self.dir(self.ino(path)?)?.names.iter().map(entry).collect())
    }

    fn free_name_location(&self, path: &Path) -> io::Result<NameLocation> {
        let place = match self.ino(path) {
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => self.name_location(path)?,
        };
        Ok(place)
    }

    fn add_node(&mut self, path: &Path, is_dir: bool) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let node = match is_dir {
            true => SimNode::Dir(Arc::default()),
            false => SimNode::File(Arc::new(Inode::new(path.into()))),
        };
        self.nodes.insert(ino, node);
        ino
    }

    fn change_names(
        &mut self,
        ino: Ino,
        from: Option<NameLocation>,
        to: Option<NameLocation>,
        path: &Path,
        new_path: Option<Arc<Path>>,
    ) {
        if let Some(place) = &from {
            self.dir_mut(place.dir).names.remove(&place.name);
        }
        if let Some(place) = &to {
            self.dir_mut(place.dir).names.insert(place.name.clone(), ino);
        }
        let (op, path) = (self.op, path.into());
        self.changes.push(NameChange { op, ino, from, to, path, new_path });
    }

    fn dir(&self, ino: Ino) -> io::Result<&SimDir> {
        match &self.nodes[&ino] {
            SimNode::Dir(dir) => Ok(dir),
            SimNode::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn dir_mut(&mut self, ino: Ino) -> &mut SimDir {
        match self.nodes.get_mut(&ino) {
            Some(SimNode::Dir(dir)) => Arc::make_mut(dir),
            _ => unreachable!("a place's directory lives as long as the place"),
        }
    }

    // --- files -------------------------------------------------------------------------------

    pub(super) fn file(&self, ino: Ino) -> &Inode {
        match &self.nodes[&ino] {
            SimNode::File(file) => file,
            SimNode::Dir(_) => unreachable!("only files are opened"),
        }
    }

    pub(super) fn opened(&mut self, ino: Ino) {
        *self.open.entry(ino).or_default() += 1;
    }

    pub(super) fn closed(&mut self, ino: Ino) {
        let count = self.open.get_mut(&ino).expect("opened before");
        *count -= 1;
        if *count == 0 {
            self.open.remove(&ino);
            self.free_unreferenced(ino);
        }
    }

    /// Deletes a closed file and frees its space, if it has no name (invariant 2).
    fn free_unreferenced(&mut self, ino: Ino) {
        assert!(!self.open.contains_key(&ino), "volume (I2): an open file lives on without a name");
        let is_found = self.ino(&self.file(ino).path).is_ok_and(|found| found == ino);
        if is_found || self.has_name(ino, |dir| &dir.names) {
            return;
        }
        self.used -= self.file(ino).cache().used();
        let is_pending = self.changes.iter().any(|change| change.ino == ino);
        if !is_pending && !self.has_name(ino, |dir| &dir.durable) {
            self.nodes.remove(&ino);
        }
    }

    fn has_name(&self, ino: Ino, names: impl Fn(&SimDir) -> &DirNames) -> bool {
        let dirs = self.nodes.values().filter_map(|node| match node {
            SimNode::Dir(dir) => Some(dir),
            SimNode::File(_) => None,
        });
        dirs.flat_map(|dir| names(dir).values()).any(|found| *found == ino)
    }

    /// Writes the part that fits. Fails if a part does not fit.
    pub(super) fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        let room = usize::try_from(self.capacity.saturating_sub(self.used)).unwrap_or(usize::MAX);
        let first_unfit = self.file(ino).cache().holes(offset..end).nth(room);
        let fitting = match first_unfit {
            Some(block) => &bytes[..super::content::index((block * BLOCK).saturating_sub(offset))],
            None => bytes,
        };
        let (op, is_paranoid) = (self.op, self.is_paranoid);
        self.change_file(ino, |file| file.write(op, offset, fitting, is_paranoid));
        match first_unfit {
            Some(_) => Err(io::Error::from_raw_os_error(ENOSPC)),
            None => Ok(()),
        }
    }

    pub(super) fn set_len(&mut self, ino: Ino, len: u64) {
        let (op, is_paranoid) = (self.op, self.is_paranoid);
        self.change_file(ino, |file| file.set_len(op, len, is_paranoid));
    }

    pub(super) fn allocate(&mut self, ino: Ino, len: u64) -> io::Result<()> {
        let needed = self.file(ino).cache().holes(0..len).count() as u64;
        if needed > self.capacity.saturating_sub(self.used) {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        let op = self.op;
        self.change_file(ino, |file| file.allocate(op, len));
        Ok(())
    }

    pub(super) fn has_blocks(&self, ino: Ino, len: u64) -> bool {
        self.file(ino).cache().holes(0..len).next().is_none()
    }

    pub(super) fn sync(&mut self, ino: Ino, fails: bool) {
        if self.file(ino).is_durable() && !fails {
            return;
        }
        let (mut random, after) = (self.random.clone(), self.after_failed_sync);
        self.change_file(ino, |file| match fails {
            true => file.fail_sync(&mut random, after),
            false => file.sync(),
        });
        self.random = random;
    }

    /// Returns the number of free bytes.
    pub(super) fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used) * BLOCK
    }

    fn change_file(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) {
        let Some(SimNode::File(file)) = self.nodes.get_mut(&ino) else {
            unreachable!("only files are opened");
        };
        let before = file.cache().used();
        change(Arc::make_mut(file));
        self.used = self.used + file.cache().used() - before;
    }

    // --- without the model -------------------------------------------------------------------

    /// Returns all files with their paths, as calls see them or as they are on the platter.
    pub(super) fn walk(&self, durable: bool) -> Vec<(PathBuf, &Inode)> {
        let mut found = Vec::new();
        let mut dirs = vec![(PathBuf::from("/"), ROOT)];
        while let Some((path, ino)) = dirs.pop() {
            let SimNode::Dir(dir) = &self.nodes[&ino] else {
                continue;
            };
            let names = if durable { &dir.durable } else { &dir.names };
            for (name, &child) in names {
                match &self.nodes[&child] {
                    SimNode::File(file) => found.push((path.join(name), &**file)),
                    SimNode::Dir(_) => dirs.push((path.join(name), child)),
                }
            }
        }
        found.sort_by(|one, two| one.0.cmp(&two.0));
        found
    }

    /// Returns a hash of names and bytes on the platter.
    pub(super) fn platter_hash(&self) -> u64 {
        let mut hasher = SipHasher13::new();
        let mut dirs = vec![ROOT];
        while let Some(ino) = dirs.pop() {
            let SimNode::Dir(dir) = &self.nodes[&ino] else {
                continue;
            };
            hasher.write_usize(dir.durable.len());
            for (name, child) in &dir.durable {
                name.hash(&mut hasher);
                match &self.nodes[child] {
                    SimNode::File(file) => file.platter().hash_into(&mut hasher),
                    SimNode::Dir(_) => dirs.push(*child),
                }
            }
        }
        hasher.finish()
    }

    /// Changes a file in the cache and on the platter.
    pub(super) fn edit(&mut self, path: &Path, change: impl Fn(&mut FileContent)) -> io::Result<()> {
        let ino = self.file_at(path)?;
        self.change_file(ino, |file| file.edit(change));
        Ok(())
    }

    /// Creates or replaces a file with `content`, in the cache and on the platter.
    pub(super) fn put(&mut self, path: &Path, content: FileContent) -> io::Result<()> {
        let place = self.name_location(path)?;
        let ino = self.add_node(path, false);
        let file = Inode::durable(path.into(), content);
        self.nodes.insert(ino, SimNode::File(Arc::new(file)));
        let dir = self.dir_mut(place.dir);
        dir.names.insert(place.name.clone(), ino);
        dir.durable.insert(place.name, ino);
        self.recount();
        Ok(())
    }

    /// Removes the name of a file, in the cache and on the platter.
    pub(super) fn erase(&mut self, path: &Path) -> io::Result<()> {
        self.file_at(path)?;
        let place = self.name_location(path)?;
        let dir = self.dir_mut(place.dir);
        dir.names.remove(&place.name);
        dir.durable.remove(&place.name);
        self.recount();
        Ok(())
    }

    // --- housekeeping ------------------------------------------------------------------------

    /// Resets all names to the durable ones, and deletes nodes without a name.
    pub(super) fn drop_pending_names(&mut self) {
        self.changes.clear();
        for node in self.nodes.values_mut() {
            if let SimNode::Dir(dir) = node
                && dir.names != dir.durable
            {
                let dir = Arc::make_mut(dir);
                dir.names = dir.durable.clone();
            }
        }
        self.open.clear();
        self.forget_unreachable();
    }

    /// Returns the nodes that may have a name after a power cut.
    pub(super) fn nameable(&self) -> BTreeSet<Ino> {
        let mut found: BTreeSet<Ino> = self.changes.iter().map(|change| change.ino).collect();
        for node in self.nodes.values() {
            if let SimNode::Dir(dir) = node {
                found.extend(dir.durable.values());
            }
        }
        found
    }

    /// Deletes the nodes that invariant 2 does not keep.
    fn forget_unreachable(&mut self) {
        let mut reached = BTreeSet::new();
        let mut ahead = vec![ROOT];
        ahead.extend(self.open.keys());
        for change in &self.changes {
            let places = change.from.iter().chain(&change.to);
            ahead.extend(places.map(|place| place.dir));
            ahead.push(change.ino);
        }
        while let Some(ino) = ahead.pop() {
            if let (true, SimNode::Dir(dir)) = (reached.insert(ino), &self.nodes[&ino]) {
                ahead.extend(dir.names.values().chain(dir.durable.values()));
            }
        }
        self.nodes.retain(|ino, _| reached.contains(ino));
    }

    /// Restores invariant 3 after names or open files changed.
    pub(super) fn recount(&mut self) {
        let named = self.nodes.values().flat_map(|node| match node {
            SimNode::Dir(dir) => dir.names.values().copied().collect(),
            SimNode::File(_) => Vec::new(),
        });
        let alive: BTreeSet<Ino> = named.chain(self.open.keys().copied()).collect();
        let used = |ino: &Ino| match &self.nodes[ino] {
            SimNode::File(file) => file.cache().used(),
            SimNode::Dir(_) => 0,
        };
        self.used = alive.iter().map(used).sum();
    }
}

/// Returns the names along a path from the root. Absolute and relative paths are equivalent.
fn parts(path: &Path) -> io::Result<Vec<&str>> {
    let mut parts = Vec::new();
    for name in path_components(path)? {
        if name == ".." {
            parts.pop();
        } else {
            parts.push(name);
        }
    }
    Ok(parts)
}

/// Returns the components of a path. Every call looks up a path, so this does not allocate.
fn path_components(path: &Path) -> io::Result<impl Iterator<Item = &str> + Clone> {
    let text = path.to_str().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(text.split(std::path::is_separator).filter(|word| !word.is_empty() && *word != "."))
}
