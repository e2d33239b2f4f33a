//! # Memory control group: a bound on a process's memory, including its page cache
//!
//! The control group has version 2 or, if the memory controller is still there, version 1. It is
//! made below the group of this process, or below the parent of that group, and is removed when
//! dropped. Without the permission to make it, the workloads with a cap are reported as not
//! measured, with the reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Result;

/// A control group with a limit on its memory.
pub(crate) struct MemoryCgroup {
    dir: PathBuf,
}

impl MemoryCgroup {
    /// Creates a group with a limit in bytes.
    pub(crate) fn new(bytes: u64) -> Result<MemoryCgroup> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let (parent, limit) = memory_controller(&own, Path::new("/sys/fs/cgroup"))
            .ok_or("there is no memory controller of control groups here")?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("sheaf-bench-{}-{number}", std::process::id()));
        let refused = |error| format!("memory cannot be capped: {}: {error}", dir.display());
        fs::create_dir(&dir).map_err(refused)?;
        let cap = MemoryCgroup { dir: dir.clone() };
        fs::write(cap.dir.join(limit), bytes.to_string()).map_err(refused)?;
        Ok(cap)
    }

    /// Moves a process into the group.
    pub(crate) fn add_process(&self, pid: u32) -> Result<()> {
        Ok(fs::write(self.dir.join("cgroup.procs"), pid.to_string())?)
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir); // fails if processes are left
    }
}

/// Returns the directory of our own group under the memory controller, and the name of the file
/// with a limit.
fn memory_controller(own: &str, root: &Path) -> Option<(PathBuf, &'static str)> {
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?.trim_start_matches('/'));
        if controllers.split(',').any(|controller| controller == "memory") {
            return Some((root.join("memory").join(path), "memory.limit_in_bytes"));
        }
        let dir = root.join(path);
        let has_memory = |dir: &Path| {
            fs::read_to_string(dir.join("cgroup.subtree_control")).is_ok_and(|text| text.contains("memory"))
        };
        // A version 2 group that contains processes cannot pass controllers to children: try its
        // parent.
        if controllers.is_empty() {
            let dirs = [Some(dir.as_path()), dir.parent()];
            if let Some(dir) = dirs.into_iter().flatten().find(|dir| has_memory(dir)) {
                return Some((dir.to_path_buf(), "memory.max"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_is_found_in_either_version() {
        let root = std::env::temp_dir().join(format!("sheaf-bench-cap-{}", std::process::id()));
        fs::create_dir_all(root.join("user/job")).unwrap();
        let first = memory_controller("3:cpu:/\n4:memory:/a/b\n0::/\n", &root);
        assert_eq!(first, Some((root.join("memory/a/b"), "memory.limit_in_bytes")));
        assert_eq!(memory_controller("0::/user/job\n", &root), None);
        fs::write(root.join("user/cgroup.subtree_control"), "cpu memory").unwrap();
        let second = memory_controller("0::/user/job\n", &root);
        assert_eq!(second, Some((root.join("user"), "memory.max")));
        fs::remove_dir_all(&root).unwrap();
    }
}
