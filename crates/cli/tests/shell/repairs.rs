//! # Repairs and restores of damaged backups

use std::path::{Path, PathBuf};

use crate::support::Sandbox;

/// A sandbox with the backup `monday` of a database with keyspaces of several engines.
fn backed_up() -> Sandbox {
    let sandbox = Sandbox::new();
    let pairs: String = (0..3000).map(|n| format!("key{n:05}\t{}\n", "v".repeat(50))).collect();
    for engine in ["flat", "flex", "delsm"] {
        let args = ["load", "db", "-k", engine, "-e", engine, "--sorted", "-"];
        sandbox.feed(&args, pairs.as_bytes()).succeeds();
    }
    sandbox.run(&["backup", "db", "monday"]).succeeds();
    sandbox
}

/// Returns the files of the backup with their content.
fn files(sandbox: &Sandbox) -> Vec<(PathBuf, Vec<u8>)> {
    let is_file = |(path, _): &(PathBuf, Vec<u8>)| path.is_file();
    sandbox.image("monday").into_iter().filter(is_file).collect()
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("it can be written");
}

#[test]
fn bytes_that_were_appended_to_a_file_of_a_backup_are_damage() {
    let sandbox = backed_up();
    for (path, bytes) in files(&sandbox) {
        write(&path, &[&bytes[..], b"x"].concat());
        let name = path.file_name().expect("a file").to_string_lossy();
        let ran = sandbox.run(&["restore", "monday", "again"]).exits(3).mentions(&name);
        ran.mentions("is damaged").mentions("sheaf repair BACKUP NEW");
        assert!(!sandbox.path("again").exists(), "{name}");
        write(&path, &bytes);
    }
    sandbox.run(&["restore", "monday", "again"]).succeeds();
    sandbox.run(&["verify", "monday"]).exits(4).mentions("sheaf restore");
}
