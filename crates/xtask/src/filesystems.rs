//! # Test suites on other file systems
//!
//! Creates XFS and Btrfs in image files, mounts them, and runs the suites with their databases
//! there. Needs root, loop devices, `mkfs.xfs` (xfsprogs) and `mkfs.btrfs` (btrfs-progs).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{cargo, step, target};

/// Environment variable with the directory for files that the suites write to a real disk.
const SCRATCH: &str = "SHEAF_SCRATCH";
/// Size of an image, which is sparse.
const IMAGE_BYTES: &str = "3G";

/// File system in an image file. It is unmounted and removed on drop.
struct ImageMount {
    dir: PathBuf,
}

impl ImageMount {
    fn new(parent: &Path, kind: &str) -> Result<ImageMount, String> {
        let mount = ImageMount { dir: parent.join(format!("{kind}-{}", std::process::id())) };
        let (image, at) = (mount.dir.join("image"), mount.mount_point());
        std::fs::create_dir_all(&at).map_err(|e| format!("{}: {e}", at.display()))?;
        run(Command::new("truncate").args(["-s", IMAGE_BYTES]).arg(&image))?;
        run(Command::new(format!("mkfs.{kind}")).args(["-q", "-f"]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at))?;
        Ok(mount)
    }

    fn mount_point(&self) -> PathBuf {
        self.dir.join("at")
    }
}

impl Drop for ImageMount {
    fn drop(&mut self) {
        //
        // Fails if it was never mounted.
        let _ = run(Command::new("umount").arg("-l").arg(self.mount_point()));
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    if status.success() { Ok(()) } else { Err(format!("failed: {command:?}")) }
}

/// Runs the suites on each file system. `filters` are those of `cargo test`.
pub(crate) fn filesystems(filters: &[String]) -> Result<(), String> {
    let parent = target("filesystems");
    std::fs::create_dir_all(&parent).map_err(|e| format!("{}: {e}", parent.display()))?;
    let filters = if filters.is_empty() { &["delsm".to_owned()][..] } else { filters };
    for kind in ["xfs", "btrfs"] {
        let mount = ImageMount::new(&parent, kind)?;
        let mut test = cargo(&["test", "--locked", "-p", "sheaf-testkit", "--test", "suites", "--"]);
        test.args(filters).env("TMPDIR", mount.mount_point()).env(SCRATCH, mount.mount_point());
        println!("\n== on {kind}");
        step(test)?;
    }
    Ok(())
}
