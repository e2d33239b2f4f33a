//! # Permissions: modes of the files and directories that a database creates
//!
//! By default a database is accessible only to the user that creates it: files 0600, directories
//! 0700. Other modes are chosen once, at creation. Later openings derive them from the mode of
//! ROOT, so that a database keeps its permissions.
//!
//! ## Invariants
//!
//! 1. The umask of the process applies to every mode.
//! 2. A copy (backup, restored or repaired database) is not more permissive than its source. A
//!    class of users without search permission for the directory of the source gets no access. No
//!    class gets more access than the files of the source grant.

use std::path::Path;
use std::sync::Arc;

use super::Disk;
use crate::error::{Error, Result};

/// Modes of the files and directories of a database. The umask of the process applies to both.
/// Users of the crate `sheaf` have this type as `sheaf::Permissions`.
///
/// ```
/// # use sheaf_platform::disk::Permissions;
/// assert_eq!(Permissions::default(), Permissions::new(0o600, 0o700));
/// assert_eq!(Permissions::GROUP, Permissions::of_files(0o640));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    files: u32,
    directories: u32,
}

impl Default for Permissions {
    fn default() -> Permissions {
        Permissions::OWNER
    }
}

impl Permissions {
    /// Access for the owner only: files 0600, directories 0700. The default.
    pub const OWNER: Permissions = Permissions { files: 0o600, directories: 0o700 };
    /// Read access for the group: files 0640, directories 0750. A user that can read `LOCK` can
    /// also hold it and so exclude writers.
    pub const GROUP: Permissions = Permissions { files: 0o640, directories: 0o750 };

    /// Returns modes for files and directories. Opening a database returns
    /// [`Error::InvalidArgument`] for modes that lack 0600 and 0700, or that have bits beyond 0666
    /// and 0777.
    #[must_use]
    pub const fn new(files: u32, directories: u32) -> Permissions {
        Permissions { files, directories }
    }

    /// Returns the mode `files`, and for directories the same mode with search permission for each
    /// class that may read.
    #[must_use]
    pub const fn of_files(files: u32) -> Permissions {
        Permissions { files, directories: files | (files & 0o444) >> 2 }
    }

    /// Returns the mode of files.
    #[must_use]
    pub const fn files(self) -> u32 {
        self.files
    }

    /// Returns the mode of directories.
    #[must_use]
    pub const fn directories(self) -> u32 {
        self.directories
    }

    /// Validates the modes.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] for modes that exclude the owner, or that have other bits
    /// than those for reading, writing and search.
    pub fn check(self) -> Result<()> {
        let is_sound = self.files & !0o666 == 0
            && self.directories & !0o777 == 0
            && self.files & 0o600 == 0o600
            && self.directories & 0o700 == 0o700;
        if is_sound {
            return Ok(());
        }
        let why = format!(
            "{:o} for files and {:o} for directories; files must have the bits 600 and no others than 666, \
             directories the bits 700 and no others than 777",
            self.files, self.directories
        );
        Err(Error::InvalidArgument { argument: "permissions", reason: why })
    }

    /// Returns the modes of a copy of files of mode `files` in a directory of mode `directory`
    /// (I2).
    fn within(files: u32, directory: u32) -> Permissions {
        let mut permissions = Permissions::OWNER;
        for class in [3, 0] {
            let (file, dir) = (files >> class & 0o6, directory >> class & 0o7);
            if file & 0o4 != 0 && dir & 0o1 != 0 {
                let write = if file & 0o2 != 0 { 0o2 } else { 0 };
                permissions.files |= file << class;
                permissions.directories |= (dir & (0o5 | write)) << class;
            }
        }
        let added = permissions.files & !files | permissions.directories & !directory;
        assert!(added & 0o077 == 0, "permissions (I2): a copy is not more permissive than its source");
        permissions
    }

    /// Returns the modes for a copy of the files in `dir`, derived from the first existing file in
    /// `names`. `None` if the modes are unknown.
    pub fn of_copy(disk: &dyn Disk, dir: &Path, names: &[&str]) -> Option<Permissions> {
        let directory = disk.mode(dir)?;
        let files = names.iter().find_map(|name| disk.mode(&dir.join(name)))?;
        Some(Permissions::within(files, directory))
    }

    /// Returns the modes that a database was created with, derived from `file`.
    pub fn of_made(disk: &dyn Disk, file: &Path) -> Option<Permissions> {
        Some(Permissions::of_files(disk.mode(file)? & 0o666 | 0o600))
    }

    /// Returns `disk` with these modes for new files and directories.
    pub fn on(self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        disk.with_permissions(self).unwrap_or(disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_not_more_permissive_than_its_source() {
        let copy = |files, directory| {
            let copy = Permissions::within(files, directory);
            (copy.files(), copy.directories())
        };
        assert_eq!(copy(0o644, 0o700), (0o600, 0o700));
        assert_eq!(copy(0o600, 0o755), (0o600, 0o700));
        assert_eq!(copy(0o640, 0o750), (0o640, 0o750));
        assert_eq!(copy(0o644, 0o750), (0o640, 0o750));
        assert_eq!(copy(0o644, 0o755), (0o644, 0o755));
        assert_eq!(copy(0o644, 0o711), (0o644, 0o711));
        assert_eq!(copy(0o640, 0o770), (0o640, 0o750));
        assert_eq!(copy(0o660, 0o770), (0o660, 0o770));
        assert_eq!(copy(0o400, 0o500), (0o600, 0o700), "the owner may use a copy");
    }

    #[test]
    fn modes_that_no_database_can_have_are_refused() {
        for sound in [Permissions::OWNER, Permissions::GROUP, Permissions::of_files(0o666)] {
            assert!(sound.check().is_ok(), "{sound:?}");
        }
        let files = [0, 0o400, 0o700, 0o2600].map(Permissions::of_files);
        for bad in files.into_iter().chain([Permissions::new(0o600, 0o600), Permissions::new(0o600, 0o1700)])
        {
            assert!(
                matches!(bad.check(), Err(Error::InvalidArgument { argument: "permissions", .. })),
                "{bad:?}"
            );
        }
    }
}
