//! # Mistakes: each has a message and an exit code, and loses no data

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::Sandbox;

/// Every reading verb, with the arguments it needs.
const READERS: [&[&str]; 6] = [
    &["get", "db", "k"],
    &["scan", "db"],
    &["dump", "db"],
    &["stats", "db"],
    &["verify", "db"],
    &["keyspaces", "db"],
];

#[test]
fn reading_creates_no_database() {
    let sandbox = Sandbox::new();
    for args in READERS {
        sandbox.run(args).exits(4).prints("").mentions("there is no database at db");
        assert!(!sandbox.path("db").exists(), "{args:?}");
    }
    sandbox.run(&["del", "db", "k"]).exits(4);
    sandbox.run(&["drop", "db", "users", "--yes"]).exits(4);
    assert!(!sandbox.path("db").exists());
}

#[test]
fn reading_creates_no_keyspace_and_changes_no_byte() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    let before = sandbox.image("db");
    for args in READERS {
        let code = if args[0] == "get" { 1 } else { 0 };
        sandbox.run(args).exits(code);
    }
    for verb in ["scan", "dump"] {
        sandbox.run(&[verb, "db", "--keyspace", "nowhere"]).exits(1).mentions("there is no keyspace");
    }
    sandbox.run(&["get", "db", "--keyspace", "nowhere", "k"]).exits(1).mentions("there is no keyspace");
    assert!(sandbox.image("db") == before, "a reading verb changed a file");
    sandbox.run(&["del", "db", "--keyspace", "nowhere", "k"]).exits(1);
    sandbox.run(&["drop", "db", "nowhere", "--yes"]).exits(1);
    sandbox.run(&["keyspaces", "db"]).succeeds().prints("default\tflex\t1\n");
}

#[test]
fn a_missing_key_is_exit_code_1_and_its_name_is_escaped() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    sandbox.run(&["get", "db", "no\x1b[31mne"]).exits(1).prints("").mentions("no\\x1b[31mne");
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    let before = sandbox.image(".");
    let wrong: [&[&str]; 23] = [
        &[],
        &["frobnicate", "db"],
        &["get", "db"],
        &["get", "db", "k", "--colour"],
        &["get", "db", "--hex", "abc"],
        &["get", "db", "--hex", "xy"],
        &["put", "new", "--hex", "00", "0"],
        &["scan", "db", "--prefix", "a", "--from", "b"],
        &["scan", "db", "--limit", "-1"],
        &["stats", "db", "--memory", "lots"],
        &["stats", "db", "--memory", "1000"],
        &["put", "new", "--mode", "777", "a", "2"],
        &["put", "db", "-e", "rocks", "a", "2"],
        &["put", "db", "-k", "new", "-e", "rocks", "a", "2"],
        &["convert", "db", "--to", "rocks"],
        &["load", "db", "-k", "new", "-e", "rocks", "--sorted", "/dev/null"],
        &["serve", "new", "--flatrpc", "0"],
        &["serve", "new", "--flatrpc", "./sock", "--workers", "0"],
        &["serve", "new", "--flatrpc", "./sock", "--workers", "65"],
        &["serve", "new", "--flatrpc", "./sock", "--space-limit", "1"],
        &["serve", "new", "--flatrpc", "sock"],
        &["drop", "db", "default"],
        &["del", "db"],
    ];
    for args in wrong {
        let ran = sandbox.run(args).exits(2).prints("");
        assert!(!ran.stderr().is_empty(), "{args:?}");
    }
    assert!(sandbox.image(".") == before, "a wrong command line changed a file");
    sandbox.run(&["get", "db", "-key"]).exits(2).mentions("write `--` before it");
    sandbox.run(&["get", "db", "-x"]).exits(2).mentions("-- -x");
    sandbox.run(&["get", "db", "--hex", "abc"]).exits(2).mentions("odd number of digits (3)");
    sandbox.run(&["scan", "db", "--limit", "x"]).exits(2).mentions("expected a number");
}

#[test]
fn a_foreign_directory_is_left_alone() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("db")).expect("a directory");
    sandbox.write("db/letter.txt", "dear reader");
    let before = sandbox.image(".");
    for args in READERS {
        sandbox.run(args).exits(4).prints("");
    }
    let ran = sandbox.run(&["put", "db", "k", "v"]).exits(4).mentions("not a Sheaf database");
    ran.mentions("name a new or empty directory");
    assert!(sandbox.image(".") == before);
}

#[test]
fn a_database_without_both_slots_of_root_is_salvaged_as_doubtful() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    for slot in ["db/ROOT.0", "db/ROOT.1"] {
        std::fs::remove_file(sandbox.path(slot)).expect("it is there");
    }
    sandbox.run(&["get", "db", "a"]).exits(4).mentions("`sheaf repair` salvages it");
    sandbox.run(&["put", "db", "a", "2"]).exits(4).mentions("`sheaf repair` salvages it");
    sandbox.run(&["repair", "db", "less"]).exits(3).mentions("1 doubtful pair left out: --keep-doubtful");
    sandbox.run(&["repair", "db", "new", "--keep-doubtful"]).exits(3);
    sandbox.run(&["get", "new", "a"]).succeeds().prints("1");
}

#[test]
fn a_file_in_place_of_the_directory_is_an_error() {
    let sandbox = Sandbox::new();
    sandbox.write("db", "dear reader");
    for args in READERS {
        sandbox.run(args).exits(4).prints("");
    }
    sandbox.run(&["put", "db", "k", "v"]).exits(4);
    sandbox.run(&["put", "db/below", "k", "v"]).exits(4);
    assert_eq!(sandbox.image("db")[0].1, b"dear reader");
}

#[test]
fn a_second_open_is_refused_with_the_owners_process_id() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    let mut command = sandbox.command(&["demo-writer", "db"]);
    let mut owner = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(owner.stdout.take().expect("piped")).lines();
    lines.next().expect("a first batch").expect("readable"); // now it has the database
    let second = sandbox.run(&["put", "db", "a", "2", "--wait", "0"]);
    let reader = sandbox.run(&["get", "db", "a"]); // at the same time
    owner.kill().expect("ours to kill");
    owner.wait().expect("it ends");
    second.exits(4).mentions("in use").mentions(&owner.id().to_string());
    reader.succeeds().prints("1");
    sandbox.run(&["get", "db", "a"]).succeeds().prints("1");
}

#[test]
fn an_engine_is_remembered() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    sandbox.run(&["put", "db", "--engine", "flex", "b", "2"]).succeeds();
    sandbox.run(&["put", "db", "--engine", "abacus", "a", "2"]).exits(2).mentions("no engine \"abacus\"");
    sandbox.run(&["put", "db", "-k", "new", "--engine", "abacus", "a", "2"]).exits(2).mentions("abacus");
    sandbox.run(&["put", "db", "--engine", "flat", "a", "2"]).exits(4).mentions("sheaf convert");
    sandbox.run(&["keyspaces", "db"]).succeeds().prints("default\tflex\t2\n");
    sandbox.run(&["get", "db", "a"]).succeeds().prints("1");
}

#[test]
fn a_key_that_is_too_long_changes_nothing() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    let longest = "k".repeat(65_535);
    sandbox.run(&["put", "db", &longest, "v"]).succeeds();
    sandbox.run(&["get", "db", &longest]).succeeds().prints("v");
    let longer = "k".repeat(65_536);
    sandbox.run(&["put", "db", &longer, "v"]).exits(4).mentions("too large: at most 65535");
    sandbox.run(&["get", "db", "a"]).succeeds().prints("1");
    sandbox.run(&["keyspaces", "db"]).succeeds().prints("default\tflex\t2\n");
    sandbox.run(&["put", "db", "-k", &"n".repeat(300), "k", "v"]).exits(2);
    sandbox.run(&["put", "db", "-k", "", "k", "v"]).exits(2);
    sandbox.run(&["put", "db", "-k", "new", "--option", "colour=1", "a", "2"]).exits(2).mentions("colour");
    sandbox.run(&["put", "db", "-k", "new", "--option", "interval-pairs=1", "a", "2"]).exits(2);
    sandbox.run(&["keyspaces", "db"]).succeeds().prints("default\tflex\t2\n");
}

#[test]
fn a_malformed_line_is_named_and_earlier_batches_stay() {
    let sandbox = Sandbox::new();
    let mut text: String = (1..=1500).map(|i| format!("key{i}\tvalue\n")).collect();
    text.push_str("no tab here\nafter\tit\n");
    sandbox
        .feed(&["load", "db", "-"], text.as_bytes())
        .exits(4)
        .mentions("line 1501")
        .mentions("1,000 pairs");
    sandbox.run(&["keyspaces", "db"]).succeeds().prints("default\tflex\t1000\n");
    sandbox.run(&["get", "db", "after"]).exits(1);
    for (line, why) in [("a\tb\tc", "second TAB"), ("a\\q\tb", "\\q"), ("a\t\\x4", "\\x4"), ("", "no TAB")] {
        let text = format!("fine\tline\n{line}\n");
        sandbox.feed(&["load", "db", "-"], text.as_bytes()).exits(4).mentions("line 2").mentions(why);
    }
    let long = format!("{}\tv\n", "k".repeat(65_536));
    sandbox.feed(&["load", "db", "-"], long.as_bytes()).exits(4).mentions("line 1").mentions("too large");
    sandbox.run(&["keyspaces", "db"]).succeeds().prints("default\tflex\t1000\n");
}

#[test]
fn a_file_that_cannot_be_loaded_creates_nothing() {
    let sandbox = Sandbox::new();
    sandbox.run(&["load", "db", "nowhere"]).exits(4).mentions("cannot open nowhere");
    sandbox.run(&["load", "db", "."]).exits(4).mentions("cannot read .");
    sandbox.feed(&["load", "db", "-"], b"no tab\n").exits(4).mentions("line 1: no TAB");
    assert!(!sandbox.path("db").exists());
    sandbox.feed(&["load", "db", "-"], b"a\t1\nno tab\n").exits(4).mentions("line 2: no TAB");
    assert!(sandbox.run(&["keyspaces", "db"]).succeeds().lines().is_empty());
    sandbox.run(&["put", "db", "--option", "expiry=yes", "k", "v"]).exits(2).mentions("off, on");
    sandbox.run(&["scan", "db", "--limit", "-1"]).exits(2).mentions("expected a number");
    sandbox.run(&["put", "db", "--ttl", "-5s", "k", "v"]).exits(2).mentions("expected a duration");
}

#[test]
fn damage_is_exit_code_3_and_named_by_file_offset_and_keyspace() {
    let sandbox = Sandbox::new();
    let text: String = (0..2000).map(|i| format!("key{i}\t{}\n", "v".repeat(100))).collect();
    sandbox.feed(&["load", "db", "--keyspace", "users", "-"], text.as_bytes()).succeeds();
    // The middle of the largest file: it holds the pairs.
    let (path, mut bytes) =
        sandbox.image("db").into_iter().max_by_key(|(_, bytes)| written(bytes)).expect("there are files");
    let middle = written(&bytes) / 2;
    bytes[middle] ^= 0x40;
    sandbox.write(path.to_str().expect("UTF-8"), &bytes);
    let file = path.file_name().expect("a file").to_string_lossy().into_owned();
    let ran = sandbox.run(&["verify", "db"]).exits(3).mentions("damage");
    let text = ran.stdout();
    assert!(text.contains(&file) && text.contains("offset") && text.contains("keyspace users"), "{text}");
    let report = sandbox.run(&["verify", "db", "--json"]).exits(3).json();
    assert_eq!(report["sound"], false);
    let finding = &report["findings"][0];
    assert!(finding["file"].as_str().is_some_and(|path| path.contains(&file)), "{finding}");
    assert!(finding["offset"].as_u64().is_some_and(|offset| offset <= middle as u64), "{finding}");
    assert_eq!(finding["keyspaces"][0], "users");
}

/// As in `sheaf dump typo | sheaf load --sorted --replace -`: the first command has printed the
/// error.
#[test]
fn an_empty_input_replaces_nothing() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    sandbox
        .feed(&["load", "db", "--sorted", "--replace", "-"], b"")
        .exits(4)
        .mentions("nothing was replaced");
    sandbox.run(&["get", "db", "a"]).prints("1");
    sandbox.feed(&["load", "db", "--sorted", "--replace", "-"], b"b\t2\n").succeeds();
    sandbox.run(&["get", "db", "a"]).exits(1);
}

#[test]
fn every_damaged_large_value_is_found() {
    let sandbox = Sandbox::new();
    for key in ["one", "two", "three"] {
        sandbox.feed(&["put", "db", key, "-"], &vec![b'x'; 3 << 20]).succeeds();
    }
    let mut damaged = 0;
    for (path, mut bytes) in sandbox.image("db").into_iter().filter(|(_, bytes)| bytes.len() >= 3 << 20) {
        bytes[2 << 20] ^= 1;
        sandbox.write(path.to_str().expect("UTF-8"), &bytes);
        damaged += 1;
    }
    sandbox.run(&["get", "db", "two"]).exits(3).prints("").mentions("is damaged");
    let report = sandbox.run(&["verify", "db", "--json"]).exits(3).json();
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(damaged), "{report}");
}

#[test]
fn a_database_that_cannot_be_opened_because_of_damage_is_exit_code_3() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    for (path, mut bytes) in sandbox.image("db") {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ROOT")) {
            bytes.fill(0x55);
            sandbox.write(path.to_str().expect("UTF-8"), &bytes);
        }
    }
    // LOCK names the last process that tried to write. All other files must stay unchanged.
    let image = || {
        let mut files = sandbox.image("db");
        files.retain(|(path, _)| !path.ends_with("LOCK"));
        files
    };
    let before = image();
    let report = sandbox.run(&["verify", "db", "--json"]).exits(3).json();
    assert!(report["findings"][0]["file"].as_str().is_some_and(|file| file.contains("ROOT")), "{report}");
    for args in [&["get", "db", "a"][..], &["put", "db", "a", "2"], &["stats", "db"]] {
        sandbox.run(args).exits(3).prints("").mentions("ROOT");
    }
    assert!(image() == before, "a damaged database was changed");
}

/// Returns the length of a file up to its last byte that is not zero: the rest may be preallocated.
fn written(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

#[test]
fn a_refused_backup_names_the_reason_and_leaves_no_file() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    sandbox.run(&["backup", "db", "monday"]).succeeds();
    sandbox.run(&["backup", "db", "monday"]).exits(4).mentions("monday is not empty");
    sandbox.run(&["backup", "db", "disk/monday"]).exits(4).mentions("there is no directory");
    assert!(!sandbox.path("disk").exists());
    sandbox.run(&["backup", "db", "db/inside"]).exits(4).mentions("inside the database");
    sandbox.run(&["backup", "nowhere", "tuesday"]).exits(4).mentions("there is no database");
    sandbox.run(&["backup", "db", "tuesday", "--base", "db"]).exits(4).mentions("not a Sheaf backup");
    for rate in ["0", "fast", "-1"] {
        sandbox.run(&["backup", "db", "tuesday", &format!("--rate={rate}")]).exits(2).mentions("--rate");
    }
    sandbox.run(&["put", "other", "a", "1"]).succeeds();
    sandbox.run(&["backup", "other", "theirs"]).succeeds();
    sandbox.run(&["backup", "db", "tuesday", "--base", "theirs"]).exits(4).mentions("another database");
    assert!(!sandbox.path("tuesday").exists());
    for verb in ["get", "put"] {
        let args = [&[verb, "monday", "a"][..], if verb == "put" { &["2"] } else { &[] }].concat();
        sandbox.run(&args).exits(4).mentions("sheaf restore");
    }
    sandbox.run(&["restore", "monday", "db"]).exits(4).mentions("db is not empty");
    sandbox.run(&["restore", "db", "again"]).exits(4).mentions("there is no file BACKUP");
    sandbox.run(&["restore", "no-backup", "again"]).exits(4).mentions("no directory with this name");
    sandbox.run(&["restore", "monday", "./monday/sub"]).exits(4).mentions("is inside the backup");
    sandbox.run(&["repair", "monday", "monday/../new"]).succeeds();
    assert_eq!(
        sandbox.run(&["scan", "new"]).succeeds().lines(),
        sandbox.run(&["scan", "db"]).succeeds().lines()
    );
    let backup = sandbox.image("monday");
    let (path, mut bytes) =
        backup.into_iter().find(|(path, _)| path.ends_with("BACKUP")).expect("a file BACKUP");
    bytes[40] ^= 1;
    std::fs::write(&path, &bytes).expect("it can be written");
    let ran = sandbox.run(&["restore", "monday", "again"]).exits(3).mentions("BACKUP is damaged");
    assert!(ran.stderr().contains("sheaf repair BACKUP NEW") && !ran.stderr().contains("verify"));
    assert!(!sandbox.path("again").exists());
}

#[test]
fn a_repair_needs_a_database_and_an_empty_target() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    sandbox.run(&["repair", "db"]).exits(2);
    sandbox.run(&["repair", "nowhere", "new"]).exits(4).mentions("there is no database at nowhere");
    std::fs::create_dir(sandbox.path("empty")).unwrap();
    sandbox.run(&["repair", "empty", "new"]).exits(4).mentions("is not a Sheaf database");
    sandbox.write("file", "x");
    sandbox.run(&["repair", "file", "new"]).exits(4).mentions("is not a Sheaf database");
    sandbox.run(&["repair", "db", "db/new"]).exits(4).mentions("is inside db");
    std::fs::create_dir(sandbox.path("full")).unwrap();
    sandbox.write("full/file", "x");
    sandbox.run(&["repair", "db", "full"]).exits(4).mentions("is not empty");
    assert!(!sandbox.path("new").exists() && !sandbox.path("db/new").exists());
}
