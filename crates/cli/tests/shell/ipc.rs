//! # Verbs while another process has the database open

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use sheaf::{ChangeRetention, Database};

use crate::support::Sandbox;

/// A process that has `db` open, and does nothing with it.
struct Application(Child);

impl Application {
    fn start(sandbox: &Sandbox) -> Application {
        let mut command = sandbox.command(&["serve", "db", "--flatrpc", "./sock"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        lines.next().expect("an address").expect("readable"); // from here on it has the database
        Application(child)
    }

    fn kill(mut self) {
        self.0.kill().expect("ours to kill");
        self.0.wait().expect("it ends");
    }
}

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::with(&[("a", "1"), ("b", "2"), ("c", "3")]);
    sandbox.run(&["put", "db", "-k", "sorted", "-e", "flat-ordered", "x", "y"]).succeeds();
    sandbox
}

#[test]
fn reading_and_maintenance_work_while_another_process_has_the_database() {
    let sandbox = sandbox();
    let application = Application::start(&sandbox);
    let run = |args: &[&str]| sandbox.run(args).succeeds();
    run(&["get", "db", "b"]).prints("2");
    run(&["scan", "db", "--from", "b"]).prints("b\t2\nc\t3\n");
    run(&["dump", "db", "--plain"]).prints("a\t1\nb\t2\nc\t3\n");
    run(&["keyspaces", "db"]).prints("default\tflex\t3\nsorted\tflat-ordered\t1\n");
    assert!(run(&["stats", "db"]).stdout().contains("3 keys"));
    let stats = run(&["stats", "db", "--json"]).json();
    assert_eq!((&stats["ipc"], &stats["keyspaces"][0]["keys"]), (&true.into(), &3.into()));
    let sound = run(&["verify", "db", "--json"]).json();
    assert_eq!((&sound["sound"], &sound["pairs"]), (&true.into(), &4.into()));
    run(&["backup", "db", "one"]);
    let second = run(&["backup", "db", "two", "--base", "one", "--json"]).json();
    assert!(second["linked"].as_u64().is_some_and(|linked| linked > 0), "{second}");
    assert!(run(&["convert", "db", "--to", "flat", "--dry-run"]).stdout().contains("3 pairs"));
    assert!(run(&["convert", "db", "--to", "kreon"]).stdout().contains("from flex to kreon"));
    assert!(run(&["convert", "db", "--to", "kreon"]).stdout().contains("already"));
    assert!(run(&["compact", "db", "-k", "sorted"]).stdout().contains("1 pair"));
    sandbox.run(&["compact", "db", "-k", "none"]).exits(1);
    sandbox.run(&["backup", "db", "one"]).exits(4).mentions("not empty");
    sandbox.run(&["put", "db", "a", "2", "--wait", "0.1"]).exits(4).mentions("in use");
    let top = run(&["top", "db", "--once"]).stdout();
    for part in ["memory", "default", "kreon", "reads/s", "journal", "appended/s", "pinned state"] {
        assert!(top.contains(part), "{top}");
    }
    assert!(run(&["top", "db", "--once", "--json"]).json()["memory"]["budget"].is_u64());
    application.kill();
    sandbox.run(&["top", "db", "--once"]).exits(4).mentions("no process has db open");
    run(&["restore", "two", "again"]);
    run(&["get", "again", "a"]).prints("1");
    run(&["get", "db", "a"]).prints("1");
    run(&["put", "db", "a", "2"]);
    assert!(!sandbox.path("db").join("door").exists());
}

#[test]
fn changes_follows_the_process_that_has_the_database() {
    let sandbox = Sandbox::new();
    let retention = ChangeRetention::new(1 << 30, Duration::from_secs(3600));
    let db = Database::builder().retain_changes(retention).open(sandbox.path("db")).expect("a new database");
    let users = db.keyspace("users", "flex").expect("a keyspace");
    users.insert("ada", "1").expect("a put");
    db.persist().expect("a sync");
    let run = |args: &[&str]| sandbox.run(&[&["changes", "db"], args].concat());
    let present = run(&["--prefix", "a"]).succeeds().stdout();
    let present: Vec<&str> = present.lines().collect();
    assert_eq!((present[0], present[2]), ("created\tusers\tflex", "put\tusers\tada\t1"));
    let position = present[3].strip_prefix("commit\t").expect("a position");
    assert_eq!(run(&["--limit", "1", "--json"]).succeeds().json()["changes"][0]["kind"], "created");
    run(&["--from", &format!("{:032x}-0", 7)]).exits(4).mentions("another database");

    let follow = ["changes", "db", "--from", position, "--follow", "--keyspace", "users"];
    let mut follower = sandbox.command(&follow);
    let mut follower = follower.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(follower.stdout.take().expect("piped")).lines();
    for name in ["alan", "grace"] {
        users.insert(name, "2").expect("a put");
        assert_eq!(lines.next().expect("it follows").expect("text"), format!("put\tusers\t{name}\t2"));
        assert!(lines.next().expect("it follows").expect("text").starts_with("commit\t"));
    }
    drop(users);
    db.close().expect("it closes");
    assert!(lines.next().is_none());
    assert_eq!(follower.wait().expect("it ends").code(), Some(4), "the owner closed the database");
    run(&["--follow"]).exits(2).mentions("nothing to follow");
    assert_eq!(run(&["--from", position]).succeeds().lines().len(), 4);
}

/// The snapshot of a killed reader is released. If the owner is killed, its reader ends with an
/// error, or with all data if it had read everything.
#[test]
fn reader_or_owner_may_be_killed() {
    let sandbox = Sandbox::new();
    let lines: String = (0..200_000).map(|n| format!("key-{n:06}\t{n:0100}\n")).collect();
    sandbox.feed(&["load", "db", "--sorted", "-"], lines.as_bytes()).succeeds();
    let application = Application::start(&sandbox);
    // It fills a pipe without a reader, and waits.
    let dump = || {
        let mut reader = sandbox.command(&["dump", "db", "--plain"]);
        let mut reader = reader.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut out = BufReader::new(reader.stdout.take().expect("piped"));
        let mut first = String::new();
        out.read_line(&mut first).expect("a line");
        assert!(lines.starts_with(&first));
        (reader, out, first)
    };
    let pinned_states = || sandbox.run(&["stats", "db", "--json"]).succeeds().json()["pinned_states"].clone();
    let (mut reader, out, _) = dump();
    assert_eq!(pinned_states(), 1);
    reader.kill().expect("ours to kill");
    reader.wait().expect("it ends");
    drop(out);
    while pinned_states() != 0 {} // the owner learns it from the kernel

    let (mut reader, mut out, mut text) = dump();
    application.kill();
    sandbox.run(&["put", "db", "key-100000", "other"]).succeeds(); // a new owner
    std::io::Read::read_to_string(&mut out, &mut text).expect("text");
    let ended = reader.wait().expect("it ends");
    assert!(lines.starts_with(&text), "the output is a prefix of the snapshot");
    assert_eq!(ended.code(), Some(if text.len() == lines.len() { 0 } else { 4 }));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut reader.stderr.take().expect("piped"), &mut said).expect("text");
    assert!(ended.success() || said.contains("has closed it or ended"), "{said}");
}

/// The reader is a process of its own, and the test has the database open.
#[test]
fn a_reader_that_runs_during_a_rename_reads_the_old_keyspace_to_its_end() {
    let sandbox = Sandbox::new();
    let lines: String = (0..20_000).map(|n| format!("key-{n:06}\t{n:0100}\n")).collect();
    sandbox.feed(&["load", "db", "-k", "words", "--sorted", "-"], lines.as_bytes()).succeeds();
    let db = sheaf::Database::open(sandbox.path("db")).expect("it opens");
    // The reader fills a pipe, and waits.
    let mut reader = sandbox.command(&["dump", "db", "-k", "words", "--plain"]);
    let mut reader = reader.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut out = BufReader::new(reader.stdout.take().expect("piped"));
    let mut text = String::new();
    out.read_line(&mut text).expect("a line");
    assert_eq!(db.stats().pinned_states, 1);
    db.rename_keyspace("words", "terms").expect("it renames");
    let other = db.keyspace("words", "flex").expect("the name is free");
    other.insert("other", "1").expect("it writes");
    db.open_keyspace("terms").expect("it opens").expect("it is there").clear().expect("it clears");
    std::io::Read::read_to_string(&mut out, &mut text).expect("text");
    assert!(reader.wait().expect("it ends").success());
    assert!(text == lines, "{} bytes of {}", text.len(), lines.len());
    sandbox.run(&["keyspaces", "db"]).succeeds().prints("terms\tflex\t0\nwords\tflex\t1\n");
    sandbox.run(&["dump", "db", "-k", "words", "--plain"]).succeeds().prints("other\t1\n");
    db.close().expect("it closes");
}

#[test]
fn a_moved_database_is_refused_by_that_reason() {
    let sandbox = sandbox();
    let application = Application::start(&sandbox);
    std::fs::rename(sandbox.path("db"), sandbox.path("moved")).expect("it can be moved");
    let reason = "its directory was moved or replaced while it was open";
    for args in [&["get", "moved", "a"][..], &["verify", "moved"], &["backup", "moved", "copy"]] {
        let ran = sandbox.run(args).exits(4).mentions(reason);
        ran.mentions("the process that has it open must close it, then open it where it is now");
    }
    // A write is refused once a sync in the background has failed.
    let put = || sandbox.run(&["call", "./sock", "put", "d", "4"]);
    let refused = std::iter::repeat_with(put).take(1000).find(|ran| !ran.0.status.success());
    refused.expect("a sync fails").exits(4).mentions(reason);
    assert!(sandbox.run(&["top", "moved", "--once"]).succeeds().stdout().contains(reason));
    application.kill();
    sandbox.run(&["get", "moved", "a"]).succeeds().prints("1");
}
