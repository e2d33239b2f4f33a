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

#[test]
fn the_report_of_a_damaged_backup_names_the_backup_only() {
    let sandbox = backed_up();
    for (path, mut bytes) in files(&sandbox).into_iter().filter(|(path, _)| !path.ends_with("BACKUP")) {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        write(&path, &bytes);
    }
    for format in [&[][..], &["--json"]] {
        let ran = sandbox.run(&[&["repair", "monday", "new"], format].concat()).exits(3);
        let text = ran.stdout();
        assert!(text.contains("monday/") && !text.contains("salvaged/"), "{text}");
        std::fs::remove_dir_all(sandbox.path("new")).expect("a new database");
    }
}

#[test]
fn a_killed_repair_of_a_backup_names_both_directories_that_it_left() {
    let sandbox = backed_up();
    for dir in ["new", "new.salvaged"] {
        std::fs::create_dir(sandbox.path(dir)).expect("a directory");
        sandbox.write(&format!("{dir}/UNFINISHED"), "");
    }
    let ran = sandbox.run(&["repair", "monday", "new"]).exits(4).mentions("new is not a Sheaf database");
    ran.mentions("remove it, remove ").mentions("new.salvaged, and run the command again");
    // As after a kill before the mark of the copy was written.
    std::fs::remove_file(sandbox.path("new.salvaged/UNFINISHED")).expect("it exists");
    sandbox.run(&["repair", "monday", "new"]).exits(4).mentions("new.salvaged, and run the command again");
    sandbox.write("new.salvaged/UNFINISHED", "");
    std::fs::remove_dir_all(sandbox.path("new")).expect("it exists");
    sandbox.run(&["repair", "monday", "new"]).exits(4).mentions("new.salvaged is not a Sheaf database");
    std::fs::remove_dir_all(sandbox.path("new.salvaged")).expect("it exists");
    sandbox.run(&["repair", "monday", "new"]).succeeds();
}

#[test]
fn a_keyspace_without_its_name_is_marked_in_the_report() {
    let sandbox = backed_up();
    std::fs::remove_file(sandbox.path("monday/BACKUP")).expect("it exists");
    std::fs::remove_dir_all(sandbox.path("monday/journal")).expect("it has the names");
    let ran = sandbox.run(&["repair", "monday", "new", "--keep-doubtful"]).exits(3);
    let text = ran.stdout();
    assert!(text.contains("its name is lost") && text.contains("`sheaf rename`"), "{}", ran.stderr());
    std::fs::remove_dir_all(sandbox.path("new")).expect("a new database");
    let ran = sandbox.run(&["repair", "monday", "new", "--keep-doubtful", "--json"]).exits(3);
    assert!(ran.stdout().contains("\"name lost\":true"), "{}", ran.stderr());
}
