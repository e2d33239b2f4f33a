//! # Pipes: any bytes survive dump and load, and a closed stdout is no error

use std::io::Read;
use std::process::Stdio;

use crate::support::Sandbox;

/// Pairs that are hard on a text format: every byte, cut UTF-8, escapes as data, empty ones.
fn hard_pairs() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = vec![
        (b"".to_vec(), b"the empty key".to_vec()),
        (b"an empty value".to_vec(), b"".to_vec()),
        (b"\\t\\x41\\".to_vec(), b"a\tb\nc\r\nd\\".to_vec()),
        ("grün €\u{1F33E}\u{85}".into(), b"\xe2\x82".to_vec()),
        ((0..=255).collect(), (0..=255).rev().collect()),
        (vec![0xff; 65_535], vec![0; 100_000]),
    ];
    let mut state = 0x2545_F491_4F6C_DD1D_u64; // a fixed seed: the same cases each time
    for number in 0..300_u32 {
        let mut key = number.to_be_bytes().to_vec();
        let mut value = Vec::new();
        for _ in 0..number % 90 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            value.push(state.to_le_bytes()[3]);
        }
        key.extend(value.iter().rev().take(9));
        pairs.push((key, value));
    }
    pairs
}

#[test]
fn any_bytes_survive_dump_and_load() {
    let sandbox = Sandbox::new();
    {
        let db = sheaf::Database::open(sandbox.path("one")).expect("a new database");
        let keyspace = db.keyspace("default", sheaf::KeyspaceOptions::default()).expect("a keyspace");
        for (key, value) in hard_pairs() {
            keyspace.insert(key, value).expect("within the limits");
        }
        db.close().expect("an orderly end");
    }
    let first = sandbox.run(&["dump", "one"]).succeeds();
    assert!(
        std::str::from_utf8(&first.0.stdout).is_ok_and(|text| !text.contains(['\r', '\0', '\x1b', '\u{85}']))
    );
    assert_eq!(first.lines().len(), hard_pairs().len() + 2);
    sandbox.feed(&["load", "two", "--keyspace", "copy", "-"], &first.0.stdout).succeeds();
    assert_eq!(sandbox.run(&["dump", "two", "--keyspace", "copy"]).succeeds().lines(), first.lines());

    let db = sheaf::Database::builder().read_only(true).create(false).open(sandbox.path("two")).expect("it");
    let keyspace = db.open_keyspace("copy").expect("no error").expect("there");
    for (key, value) in hard_pairs() {
        assert_eq!(keyspace.get(&key).expect("no error").as_deref(), Some(&value[..]), "{key:?}");
    }
    assert_eq!(keyspace.len().expect("no error"), hard_pairs().len() as u64);
}

#[test]
fn a_closed_stdout_is_no_error() {
    let sandbox = Sandbox::new();
    let text: String = (0..20_000).map(|i| format!("key{i}\t{}\n", "v".repeat(100))).collect();
    sandbox.feed(&["load", "db", "-"], text.as_bytes()).succeeds();
    for verb in ["dump", "scan"] {
        let mut command = sandbox.command(&[verb, "db"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut stdout = child.stdout.take().expect("piped");
        stdout.read_exact(&mut [0; 10]).expect("a first line");
        drop(stdout);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

/// Runs with a closed pipe as stdout and returns the exit code.
fn unread(sandbox: &Sandbox, args: &[&str]) -> Option<i32> {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    sandbox.command(args).stdout(writer).stderr(Stdio::null()).status().expect("it starts").code()
}

/// Verbs that report their verdict by the exit code.
#[test]
fn a_closed_stdout_changes_no_verdict() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    assert_eq!(unread(&sandbox, &["verify", "db"]), Some(0));
    for key in ["one", "two"] {
        sandbox.feed(&["put", "db", key, "-"], &vec![b'x'; 3 << 20]).succeeds();
    }
    let large = |(_, bytes): &(std::path::PathBuf, Vec<u8>)| bytes.len() >= 3 << 20;
    let (path, mut bytes) = sandbox.image("db").into_iter().find(large).expect("a value in a file");
    bytes[1 << 20] ^= 1;
    sandbox.write(path.to_str().expect("UTF-8"), &bytes);
    assert_eq!(unread(&sandbox, &["verify", "db"]), Some(3));
    assert_eq!(unread(&sandbox, &["repair", "db", "new"]), Some(3));
    // Any other failure to print is reported on stderr.
    let ran = sandbox.run(&["repair", "db", "newer", "--report", "/dev/full"]).exits(3);
    let said = ran.stderr();
    assert!(said.contains("/dev/full") && said.contains("salvaged"), "{said}");
}

#[test]
fn colour_and_bars_appear_only_on_terminals() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    for verb in ["scan", "dump", "stats", "verify", "keyspaces"] {
        let ran = sandbox.run(&[verb, "db"]).succeeds();
        assert!(!ran.stdout().contains('\x1b'), "{verb}");
    }
    let ran = sandbox.run(&["get", "nowhere", "k"]).exits(4);
    assert!(!ran.stderr().contains('\x1b'));
}
