//! # Names of open files
//!
//! An index from names to open files, and back. It contains the names by which files were opened,
//! and follows later renames, links and removals. A second name that a file had before it was
//! opened is not known. A file that loses all known names counts as removed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use super::FileIdentity;

/// Index of the names of open files.
#[derive(Debug, Default)]
pub(super) struct FileNames {
    files: BTreeMap<FileIdentity, OpenFileNames>,
    names: BTreeMap<PathBuf, FileIdentity>,
}

/// An open file: its names, and the numbers of its handles.
#[derive(Debug, Default)]
struct OpenFileNames {
    names: Vec<PathBuf>,
    handles: Vec<u64>,
}

impl FileNames {
    /// Records that handle `id` was opened at `path`.
    pub(super) fn add_handle(&mut self, id: u64, identity: FileIdentity, path: &Path) {
        self.files.entry(identity).or_default().handles.push(id);
        self.add_name(path, identity);
    }

    /// Adds a name of a file, and removes it from another file that had it.
    fn add_name(&mut self, path: &Path, identity: FileIdentity) {
        match self.names.insert(path.to_path_buf(), identity) {
            Some(old) if old == identity => return,
            Some(old) => self.remove_name(path, old),
            None => {}
        }
        if let Some(node) = self.files.get_mut(&identity) {
            node.names.push(path.to_path_buf());
        }
    }

    fn remove_name(&mut self, path: &Path, identity: FileIdentity) {
        if let Some(node) = self.files.get_mut(&identity) {
            node.names.retain(|name| name != path);
        }
    }

    /// Removes handle `id`.
    pub(super) fn remove_handle(&mut self, id: u64, identity: FileIdentity) {
        let Some(node) = self.files.get_mut(&identity) else { return };
        node.handles.retain(|handle| *handle != id);
        if node.handles.is_empty() {
            for name in std::mem::take(&mut node.names) {
                self.names.remove(&name);
            }
            self.files.remove(&identity);
        }
    }

    /// Returns the names of a file.
    pub(super) fn all(&self, identity: FileIdentity) -> Vec<PathBuf> {
        self.files.get(&identity).map(|node| node.names.clone()).unwrap_or_default()
    }

    /// Returns one name of a file.
    pub(super) fn any(&self, identity: FileIdentity) -> Option<PathBuf> {
        self.files.get(&identity)?.names.first().cloned()
    }

    /// Returns the handles of the file at `path`, if it has no other name.
    pub(super) fn only_named(&self, path: &Path) -> Vec<u64> {
        let node = self.names.get(path).and_then(|identity| self.files.get(identity));
        node.filter(|node| node.names.len() == 1).map(|node| node.handles.clone()).unwrap_or_default()
    }

    /// Returns whether both are names of one open file.
    pub(super) fn is_same_file(&self, a: &Path, b: &Path) -> bool {
        self.names.get(a).is_some_and(|identity| self.names.get(b) == Some(identity))
    }

    /// Removes a name.
    pub(super) fn remove_path(&mut self, path: &Path) {
        if let Some(identity) = self.names.remove(path) {
            self.remove_name(path, identity);
        }
    }

    /// Renames a file, or a directory with the files below it.
    pub(super) fn rename_path(&mut self, from: &Path, to: &Path) {
        if self.is_same_file(from, to) {
            return; // two names of one file both remain
        }
        let after = (Bound::Included(from.to_path_buf()), Bound::Unbounded);
        let below = self.names.range(after).take_while(|(name, _)| name.starts_with(from));
        let moved: Vec<(PathBuf, FileIdentity)> = below.map(|(name, file)| (name.clone(), *file)).collect();
        for (name, identity) in moved {
            self.remove_path(&name);
            let rest = name.strip_prefix(from).unwrap_or(Path::new(""));
            let target = if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) };
            self.add_name(&target, identity);
        }
    }

    /// Adds the name `to` to the file at `from`.
    pub(super) fn add_link(&mut self, from: &Path, to: &Path) {
        if let Some(identity) = self.names.get(from).copied() {
            self.add_name(to, identity);
        }
    }
}
