//! # Refusals: a command that fails before its first commit leaves nothing behind

use crate::support::Sandbox;

/// Commands for `DB -k new` that are refused after the database was opened, with their input.
fn refused() -> Vec<(Vec<&'static str>, &'static str)> {
    let put = |args: &[&'static str]| ([&["put", "-k", "new", "a", "1"], args].concat(), "");
    let merge = |args: &[&'static str]| ([&["merge", "-k", "new"], args].concat(), "");
    let load = |args: &[&'static str], input| ([&["load", "-k", "new", "-"], args].concat(), input);
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
        merge(&["--option", "merge=union", "a", "1"]),
        load(&[], "a\t1\nno tab\n"),
        load(&["--sorted"], "a\t1\nno tab\n"),
        load(&["--sorted"], "b\t1\na\t1\n"),
        load(&["--option", "expiry=2"], "a\t1\n"),
        load(&["--sorted", "--option", "merge=bogus"], "a\t1\n"),
        load(&["-e", "flat", "--option", "branching=4"], "a\t1\n"),
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
    for (args, input) in refused() {
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
    for (args, input) in refused() {
        let ran = sandbox.feed(&on("db", &args), input.as_bytes());
        assert!(ran.0.status.code().is_some_and(|code| code > 1), "{args:?}: {}", ran.stderr());
        sandbox.run(&["keyspaces", "db"]).succeeds().prints("default\tflex\t1\n");
    }
    sandbox.run(&["get", "db", "a"]).succeeds().prints("1");
}

#[test]
fn a_server_that_cannot_listen_creates_no_database() {
    let sandbox = Sandbox::new();
    sandbox.run(&["serve", "db", "--flatrpc", "./no/such/dir/sock"]).exits(4);
    assert!(!sandbox.path("db").exists());
}

#[test]
fn a_time_to_live_and_no_expiry_contradict_each_other() {
    let sandbox = Sandbox::new();
    let put = |args: &[&str]| sandbox.run(&[&["put", "db", "-k", "k", "a", "1"], args].concat());
    put(&["--option", "expiry=off", "--ttl", "5m"]).exits(2).mentions("leave out one of them");
    put(&["--option", "expiry=off", "--option", "ttl=5m"]).exits(2).mentions("ttl-ms needs expiry=on");
    put(&["--option", "expiry=on", "--ttl", "5m"]).succeeds();
}

#[test]
fn refused_options_are_named_as_the_user_writes_them() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    let put = |option: &str| sandbox.run(&["put", "db", "-k", "k", "--option", option, "a", "1"]).exits(2);
    put("merge=add,max").mentions("merge=\"add,max\" names no merge operator");
    put("merge:add=2").mentions("the value must be 1");
    put("colour=1").mentions("(merge: a merge operator)").mentions("among them ttl and merge");
    let ran = sandbox.run(&["merge", "db", "a", "1"]).exits(4).mentions("has no merge operator");
    ran.mentions("`sheaf convert db --keyspace default --to flex --option merge=OPERATOR`");
    sandbox.run(&["convert", "db", "--to", "flex", "--option", "merge=append"]).succeeds();
    sandbox.run(&["merge", "db", "a", "2"]).succeeds();
    sandbox.run(&["get", "db", "a"]).succeeds().prints("12");
    let listed = sandbox.run(&["keyspaces", "db", "--json"]).succeeds().json();
    assert_eq!(listed[0]["options"], serde_json::json!({ "merge": "append" }));
}

#[test]
fn a_target_below_a_missing_directory_is_refused() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    sandbox.run(&["backup", "db", "monday"]).succeeds();
    for args in [["backup", "db"], ["restore", "monday"], ["repair", "db"], ["repair", "monday"]] {
        let ran = sandbox.run(&[&args[..], &["disk/new"]].concat()).exits(4);
        ran.mentions("cannot create disk/new: there is no directory");
        assert!(!sandbox.path("disk").exists(), "{args:?}");
    }
}

#[test]
fn a_refusal_names_the_remedy() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    let ran = sandbox.run(&["verify", "nowhere"]).exits(4).mentions("check the path");
    assert!(!ran.stderr().contains("sheaf put"), "{}", ran.stderr());
    sandbox.run(&["get", "nowhere", "a"]).exits(4).mentions("check the path");
    sandbox.run(&["put", "flat", "-e", "flat", "a", "1"]).succeeds();
    sandbox.run(&["scan", "flat", "--reverse"]).exits(4).mentions("`sheaf convert` changes the engine");
    sandbox.run(&["backup", "db", "flat"]).exits(4).mentions("is not empty; name a new or empty directory");
    for (dir, files, store) in [
        ("ldb", &["CURRENT", "MANIFEST-000002", "000003.log"][..], "LevelDB or RocksDB"),
        ("mdb", &["data.mdb", "lock.mdb"], "LMDB"),
    ] {
        std::fs::create_dir(sandbox.path(dir)).expect("a directory");
        files.iter().for_each(|file| sandbox.write(&format!("{dir}/{file}"), "x"));
        let ran = sandbox.run(&["put", dir, "a", "1"]).exits(4).mentions("not a Sheaf database");
        ran.mentions(store).mentions("`sheaf load`");
    }
}

#[test]
fn a_directory_in_place_of_the_lock_file_is_named_with_the_remedy() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    std::fs::remove_file(sandbox.path("db/LOCK")).expect("it exists");
    std::fs::create_dir(sandbox.path("db/LOCK")).expect("a directory");
    sandbox.run(&["put", "db", "a", "2"]).exits(4).mentions("it is a directory").mentions("remove it");
    sandbox.run(&["get", "db", "a"]).exits(4).mentions("remove it");
    std::fs::remove_dir(sandbox.path("db/LOCK")).expect("it is empty");
    sandbox.run(&["top", "db", "--once"]).exits(4).mentions("db has no file LOCK");
    sandbox.run(&["put", "db", "a", "2"]).succeeds();
}
