//! # Processes that use one database at the same time

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::Sandbox;

/// A process that ends with the test.
struct Process(Child);

impl Process {
    /// Serves `db` until it is killed.
    fn server(sandbox: &Sandbox) -> Process {
        let mut child = sandbox
            .command(&["serve", "db", "--flatrpc", "./sock"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        lines.next().expect("an address").expect("readable"); // now it has the database
        Process(child)
    }

    /// Reads `db` until it is killed: it fills a pipe without a reader.
    fn reader(sandbox: &Sandbox) -> Process {
        let mut child =
            sandbox.command(&["dump", "db"]).stdout(Stdio::piped()).spawn().expect("the program starts");
        let out = child.stdout.as_mut().expect("piped");
        out.read_exact(&mut [0; 16]).expect("it has begun");
        Process(child)
    }

    fn id(&self) -> String {
        self.0.id().to_string()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.id()]).status().expect("kill runs");
        assert!(sent.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn puts_and_gets_at_once_all_succeed() {
    let sandbox = Sandbox::with(&[("a", "b")]);
    let start = |args: &[&str]| {
        let mut command = sandbox.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    // The first of them make a database.
    let new: Vec<Child> = (0..8).map(|n| start(&["put", "new", &format!("k{n}"), "v"])).collect();
    let puts: Vec<Child> = (0..20).map(|n| start(&["put", "db", &format!("k{n}"), "v"])).collect();
    let gets: Vec<Child> = (0..20).map(|_| start(&["get", "db", "a"])).collect();
    for (children, expected) in [(new, ""), (puts, ""), (gets, "b")] {
        for child in children {
            let output = child.wait_with_output().expect("it ends");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && said.is_empty(), "{said}");
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        }
    }
    assert_eq!(sandbox.run(&["scan", "db"]).succeeds().lines().len(), 21);
    assert_eq!(sandbox.run(&["scan", "new"]).succeeds().lines().len(), 8);
}

#[test]
fn a_writer_waits_for_an_owner_and_then_names_it() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    let server = Process::server(&sandbox);
    let in_use = format!("in use by process {} (sheaf)", server.id());
    let began = Instant::now();
    sandbox.run(&["put", "db", "a", "2", "--wait", "0"]).exits(4).mentions(&in_use).mentions("--wait");
    assert!(began.elapsed() < Duration::from_secs(4), "not the usual five seconds");
    let began = Instant::now();
    for verb in [&["put", "db", "a", "2"][..], &["del", "db", "a"], &["repair", "db", "new"]] {
        sandbox.run(&[verb, &["--wait", "0.3"]].concat()).exits(4).mentions(&in_use);
    }
    assert!(began.elapsed() >= Duration::from_millis(900));
    for wrong in ["-1", "soon", "nan"] {
        sandbox.run(&["get", "db", "a", &format!("--wait={wrong}")]).exits(2);
    }
    // A wait that is long enough ends as soon as the owner ends.
    let mut put = sandbox.command(&["put", "db", "a", "2", "--wait", "100"]).spawn().expect("it starts");
    drop(server);
    assert!(put.wait().expect("it ends").success());
    sandbox.run(&["get", "db", "a"]).succeeds().prints("2");
}

/// Regression: after a removal of LOCK, a second process became an owner too, and both wrote.
#[test]
fn users_exclude_each_other_after_a_removal_of_the_lock_file() {
    let lines: String = (0..20_000).map(|n| format!("key-{n:06}\t{n:0100}\n")).collect();
    let sandbox = Sandbox::new();
    sandbox.feed(&["load", "db", "--sorted", "-"], lines.as_bytes()).succeeds();
    let remove = || std::fs::remove_file(sandbox.path("db/LOCK")).expect("it exists");
    let server = Process::server(&sandbox);
    let in_use = format!("in use by process {} (sheaf)", server.id());
    remove();
    sandbox.run(&["get", "db", "key-000000", "--wait", "0"]).exits(4).mentions(&in_use);
    sandbox.run(&["put", "db", "a", "2", "--wait", "0"]).exits(4).mentions(&in_use);
    sandbox.run(&["repair", "db", "new", "--wait", "0"]).exits(4).mentions(&in_use);
    drop(server);
    sandbox.run(&["put", "db", "a", "2"]).succeeds();

    let reader = Process::reader(&sandbox);
    remove();
    let being_read = format!("being read by process {} (sheaf)", reader.id());
    sandbox.run(&["put", "db", "a", "3", "--wait", "0"]).exits(4).mentions(&being_read);
    drop(reader);
    sandbox.run(&["get", "db", "a"]).succeeds().prints("2");
}

/// Regression: an attempt changed LOCK, which counted as a new owner, so that a writer waited for
/// twelve times its limit.
#[test]
fn the_limit_of_a_wait_is_not_extended_by_own_attempts() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    let copy = sandbox.path("copy");
    let linked = Command::new("cp").arg("-al").arg(sandbox.path("db")).arg(&copy).status();
    assert!(linked.expect("cp runs").success());
    std::fs::remove_file(copy.join("LOCK")).expect("it exists");
    let server = Process::server(&sandbox);
    for verb in [
        &["put", "copy", "a", "2"][..],
        &["backup", "copy", "saved"],
        &["convert", "copy", "--to", "flat"],
        &["compact", "copy"],
    ] {
        let began = Instant::now();
        let ran = sandbox.run(&[verb, &["--wait", "0.5"]].concat()).exits(4);
        ran.mentions(&format!("in use by process {}", server.id()));
        assert!(began.elapsed() < Duration::from_secs(4), "{verb:?} waited for {:?}", began.elapsed());
    }
}

#[test]
fn a_writer_waits_for_readers_and_then_names_one() {
    let sandbox = Sandbox::new();
    let lines: String = (0..20_000).map(|n| format!("key-{n:06}\t{n:0100}\n")).collect();
    sandbox.feed(&["load", "db", "--sorted", "-"], lines.as_bytes()).succeeds();
    let reader = Process::reader(&sandbox);
    let being_read = format!("being read by process {} (sheaf)", reader.id());
    sandbox.run(&["put", "db", "a", "2", "--wait", "0.2"]).exits(4).mentions(&being_read);
    sandbox.run(&["get", "db", "key-000000", "--wait", "0"]).succeeds();
    let mut put = sandbox.command(&["put", "db", "a", "2", "--wait", "100"]).spawn().expect("it starts");
    // A new reader waits for the writer for a while, and then reads before it.
    sandbox.run(&["get", "db", "key-000000"]).succeeds();
    drop(reader);
    assert!(put.wait().expect("it ends").success());
    sandbox.run(&["get", "db", "a"]).succeeds().prints("2");
}

#[test]
fn no_verb_waits_forever_for_a_stopped_owner() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    let server = Process::server(&sandbox);
    server.signal("-STOP");
    let remedy = format!("resume it (kill -CONT {})", server.id());
    let verbs: [&[&str]; 12] = [
        &["get", "db", "a"],
        &["scan", "db"],
        &["stats", "db"],
        &["keyspaces", "db"],
        &["verify", "db"],
        &["dump", "db"],
        &["backup", "db", "copy"],
        &["top", "db", "--once"],
        &["convert", "db", "--to", "flat"],
        &["compact", "db"],
        &["advise", "db"],
        &["put", "db", "a", "2", "--wait", "1"],
    ];
    let start = |args: &&[&str]| {
        let mut command = sandbox.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    let began = Instant::now();
    let children: Vec<Child> = verbs.iter().map(start).collect();
    for (child, verb) in children.into_iter().zip(verbs) {
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{verb:?}: {said}");
        assert!(said.contains(&format!("process {} (sheaf)", server.id())), "{verb:?}: {said}");
        assert!(said.contains("is stopped") && said.contains(&remedy), "{verb:?}: {said}");
    }
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!(!sandbox.path("copy").exists());
    // After SIGCONT it works as before.
    server.signal("-CONT");
    sandbox.run(&["get", "db", "a"]).succeeds().prints("1");
    sandbox.run(&["backup", "db", "copy"]).succeeds();
}

#[test]
fn a_database_is_created_with_the_requested_modes() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let mode = |name: &str| {
        let found = std::fs::metadata(sandbox.path(name)).expect("it is there");
        found.permissions().mode() & 0o777
    };
    sandbox.run(&["put", "own", "a", "1"]).succeeds();
    sandbox.run(&["put", "group", "a", "1", "--mode", "640"]).succeeds();
    sandbox.run(&["put", "group", "b", "2"]).succeeds();
    sandbox.run(&["backup", "group", "copy"]).succeeds();
    sandbox.run(&["restore", "copy", "again"]).succeeds();
    sandbox.run(&["restore", "copy", "alone", "--mode", "600"]).succeeds();
    sandbox.run(&["repair", "own", "new"]).succeeds();
    for (name, expected) in [
        ("own", 0o700),
        ("group", 0o750),
        ("copy", 0o750),
        ("again", 0o750),
        ("alone", 0o700),
        ("new", 0o700),
    ] {
        assert_eq!(mode(name), expected, "{name}");
        if name != "copy" {
            assert_eq!(mode(&format!("{name}/ROOT.0")), expected & 0o666, "{name}");
        }
    }
    for wrong in ["777", "400", "rw", "8"] {
        sandbox.run(&["put", "none", "a", "1", "--mode", wrong]).exits(2);
    }
    assert!(!sandbox.path("none").exists());
}
