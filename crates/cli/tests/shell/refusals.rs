//! # Refusals: a command that fails before its first commit
//!
//! Such a command leaves no new keyspace. If its arguments show the refusal, it creates no
//! database.

use crate::support::Sandbox;

/// Command, and its input.
type Command = (Vec<&'static str>, &'static str);

fn put(args: &[&'static str]) -> Command {
    ([&["put", "-k", "new", "a", "1"], args].concat(), "")
}

fn merge(args: &[&'static str]) -> Command {
    ([&["merge", "-k", "new"], args].concat(), "")
}

fn load(args: &[&'static str], input: &'static str) -> Command {
    ([&["load", "-k", "new", "-"], args].concat(), input)
}

/// Commands for `DB -k new` that are refused before a database is created.
fn refused_early() -> Vec<Command> {
    vec![
        put(&["--ttl", "999999999d"]),
        put(&["--ttl", "0s"]),
        put(&["--option", "expiry=2"]),
        put(&["--option", "expiry=off", "--option", "ttl=5m"]),
        put(&["--option", "expiry=off", "--ttl", "5m"]),
        put(&["--option", "merge=bogus"]),
        put(&["--option", "colour=1"]),
        put(&["-e", "flat", "--option", "branching=4"]),
        put(&["-e", "cedrus", "--option", "branching=5"]),
        #[cfg(not(feature = "zstd"))]
        put(&["--option", "compression=zstd"]),
        merge(&["--option", "merge=bogus", "a", "1"]),
        load(&["--option", "expiry=2"], "a\t1\n"),
        load(&["--sorted", "--option", "merge=bogus"], "a\t1\n"),
        load(&["-e", "flat", "--option", "branching=4"], "a\t1\n"),
    ]
}

/// Commands for `DB -k new` that are refused when the keyspace is open.
fn refused_late() -> Vec<Command> {
    vec![
        merge(&["--option", "merge=union", "a", "1"]),
        load(&[], "a\t1\nno tab\n"),
        load(&["--sorted"], "a\t1\nno tab\n"),
        load(&["--sorted"], "b\t1\na\t1\n"),
    ]
}

/// Inserts the database after the verb.
fn on<'a>(database: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    let mut all = args.to_vec();
    all.insert(1, database);
    all
}

#[test]
fn a_refused_command_creates_no_database_and_no_directory() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("empty")).expect("a directory");
    for (args, input) in refused_early() {
        for database in ["db", "empty", "below/two/dirs"] {
            let ran = sandbox.feed(&on(database, &args), input.as_bytes());
            assert!(ran.0.status.code().is_some_and(|code| code > 1), "{args:?}: {}", ran.stderr());
            let left = sandbox.image(".");
            assert_eq!(left.len(), 2, "{database} {args:?} left {left:?}");
        }
    }
    let long = "k".repeat(65_536);
    sandbox.run(&["put", "db", &long, "v"]).exits(4).mentions("too large");
    sandbox.run(&["merge", "db", "--option", "merge=add", &long, "1"]).exits(4).mentions("too large");
    sandbox.run(&["put", "db", "-k", "", "k", "v"]).exits(2);
    assert!(!sandbox.path("db").exists());
    sandbox.run(&["put", "db", "a", "1"]).succeeds();
    sandbox.run(&["get", "db", "a"]).succeeds().prints("1");
}

#[test]
fn a_refused_command_creates_no_keyspace_and_changes_no_pair() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    for (args, input) in refused_early().into_iter().chain(refused_late()) {
        let ran = sandbox.feed(&on("db", &args), input.as_bytes());
        assert!(ran.0.status.code().is_some_and(|code| code > 1), "{args:?}: {}", ran.stderr());
        sandbox.run(&["keyspaces", "db"]).succeeds().prints("default\tflex\t1\n");
    }
    sandbox.run(&["get", "db", "a"]).succeeds().prints("1");
}

/// Regression: the removal of a new database by name removed a directory that was there before.
#[test]
fn a_refused_command_removes_nothing_that_was_there() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.path("project/images")).expect("a directory");
    std::fs::write(sandbox.path("project/LOCK"), "notes").expect("a file");
    let before = sandbox.image(".");
    for (args, input) in refused_early() {
        sandbox.feed(&on("project", &args), input.as_bytes());
        assert_eq!(sandbox.image("."), before, "{args:?}");
    }
}
