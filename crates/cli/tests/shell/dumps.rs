//! # Truncated and modified dumps, lines without an end, incomplete input

use std::io::Write;
use std::process::Stdio;

use crate::support::Sandbox;

/// A dump of three pairs in keyspace `default` of `db`.
fn dumped(sandbox: &Sandbox) -> Vec<u8> {
    sandbox.feed(&["load", "db", "-"], b"a\tone\nb\ttwo\nc\tthree\n").succeeds();
    sandbox.run(&["dump", "db"]).succeeds().0.stdout
}

#[test]
fn a_dump_has_a_first_line_and_a_last_line_with_count_and_checksum() {
    let sandbox = Sandbox::new();
    let dump = dumped(&sandbox);
    let body = "a\tone\nb\ttwo\nc\tthree\n";
    let expected = format!("#sheaf-dump 1\n{body}#end 3 {:08x}\n", crc32c::crc32c(body.as_bytes()));
    assert_eq!(String::from_utf8_lossy(&dump), expected);
    sandbox.run(&["dump", "db", "--plain"]).succeeds().prints(body);
    sandbox.run(&["put", "db", "-k", "empty", "a", "1"]).succeeds();
    sandbox.run(&["del", "db", "-k", "empty", "a"]).succeeds();
    sandbox.run(&["dump", "db", "-k", "empty"]).succeeds().prints("#sheaf-dump 1\n#end 0 00000000\n");
}

#[test]
fn a_truncated_dump_replaces_nothing_and_shortens_no_value() {
    let sandbox = Sandbox::with(&[("old", "good")]);
    let dump = dumped(&Sandbox::new());
    for end in (1..dump.len() - 1).step_by(3) {
        sandbox
            .feed(&["load", "db", "--sorted", "--replace", "-"], &dump[..end])
            .exits(4)
            .mentions(if end < 14 { "line 1" } else { "is truncated" });
    }
    sandbox.run(&["dump", "db", "--plain"]).succeeds().prints("old\tgood\n");
    let cut = dump.windows(4).position(|part| part == b"thre").expect("it is there") + 2;
    sandbox.feed(&["load", "db", "-"], &dump[..cut]).exits(4).mentions("it ends after 2 lines");
    sandbox.run(&["get", "db", "c"]).exits(1);
    sandbox.feed(&["load", "db", "--sorted", "--replace", "-"], &dump).succeeds();
    sandbox.run(&["dump", "db"]).succeeds().prints(&dump);
}

#[test]
fn a_refused_load_tells_how_many_pairs_are_there() {
    let sandbox = Sandbox::new();
    let load = |args: &[&str], input: &str| sandbox.feed(&[&["load"], args].concat(), input.as_bytes());
    let cut = "#sheaf-dump 1\na\t1\n";
    load(&["new", "-"], cut).exits(4).mentions("nothing was loaded, and the new database new has no pairs");
    load(&["new", "-"], cut).exits(4).mentions("make the dump again; nothing was loaded\n");
    load(&["other", "--sorted", "-"], cut).exits(4).mentions("new database other has no pairs");
    let ran = load(&["new", "--sorted", "-"], "b\t1\na\t2\n").exits(4).mentions("stdin, line 2: its key");
    ran.mentions("load without --sorted").mentions("nothing was loaded");
    load(&["new", "-"], "a\t1\n").succeeds();
    load(&["new", "--sorted", "-"], "b\t1\n").exits(4).mentions("--replace replaces its content");
    let pairs: String = (0..200_000).map(|n| format!("key{n}\tvalue\n")).collect();
    let ran = load(&["new", "-k", "large", "-e", "flat", "--memory", "1MiB", "-"], &pairs).exits(4);
    let ran = ran.mentions("has no room for more keys; loaded: ").mentions("raise the budget");
    let loaded =
        ran.stderr().split("loaded: ").nth(1).and_then(|text| text.split(" pairs").next().map(str::to_owned));
    let keys = sandbox.run(&["keyspaces", "new"]).succeeds().stdout();
    let loaded = loaded.expect("a number").replace(',', "");
    assert!(keys.contains(&format!("large\tflat\t{loaded}\n")), "{loaded}: {keys}");
}

#[test]
fn a_modified_dump_is_refused() {
    let sandbox = Sandbox::with(&[("old", "good")]);
    let dump = String::from_utf8(dumped(&Sandbox::new())).expect("text");
    for changed in
        [dump.replace("two", "twi"), dump.replace("b\ttwo\n", ""), dump.replace("#end 3", "#end 4")]
    {
        sandbox
            .feed(&["load", "db", "--sorted", "--replace", "-"], changed.as_bytes())
            .exits(4)
            .mentions("stdin was changed: ")
            .mentions("nothing was replaced");
    }
    let mut sorted: Vec<&str> = dump.lines().collect();
    sorted.sort_unstable();
    let sorted = sorted.iter().rev().map(|line| format!("{line}\n")).collect::<String>();
    sandbox.feed(&["load", "db", "--sorted", "--replace", "-"], sorted.as_bytes()).exits(4);
    let unknown = dump.replace("#sheaf-dump 1", "#sheaf-dump 3");
    sandbox.feed(&["load", "db", "-"], unknown.as_bytes()).exits(4).mentions("this version");
    sandbox.run(&["dump", "db", "--plain"]).succeeds().prints("old\tgood\n");
}

#[test]
fn plain_input_without_a_last_newline_is_loaded_with_a_warning_but_replaces_nothing() {
    let sandbox = Sandbox::with(&[("old", "good")]);
    sandbox
        .feed(&["load", "db", "--sorted", "--replace", "-"], b"a\tone\nb\ttw")
        .exits(4)
        .mentions("nothing was replaced");
    sandbox.run(&["get", "db", "old"]).succeeds().prints("good");
    sandbox.feed(&["load", "db", "-"], b"a\tone\nb\ttwo").exits(0).mentions("without a newline");
    sandbox.run(&["get", "db", "b"]).succeeds().prints("two");
    sandbox.feed(&["load", "db", "--lines", "-"], b"x\ny").succeeds();
    sandbox.run(&["get", "db", "0000000002"]).succeeds().prints("y");
}

#[test]
fn a_line_without_an_end_is_refused_at_the_key_limit() {
    let sandbox = Sandbox::new();
    let endless = vec![b'x'; 8 << 20];
    sandbox.feed(&["load", "db", "-"], &endless).exits(4).mentions("line 1").mentions("at most 65535 bytes");
}

/// Returns the peak memory of a process in bytes.
fn peak(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux has this line");
    peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn a_value_of_any_length_is_loaded_in_bounded_memory() {
    const LENGTH: usize = 160 << 20;
    for args in [
        &["load", "db", "--memory", "16MiB", "-k", "a", "-"][..],
        &["load", "db", "--memory", "16MiB", "-k", "b", "--sorted", "--engine", "delsm", "-"],
        &["load", "db", "--memory", "16MiB", "-k", "c", "--lines", "-"],
    ] {
        let sandbox = Sandbox::new();
        let mut child = sandbox.command(args).stdin(Stdio::piped()).spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("piped");
        let key = if args.contains(&"--lines") { "" } else { "k\t" };
        stdin.write_all(key.as_bytes()).expect("it reads");
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..LENGTH >> 20 {
            stdin.write_all(&piece).expect("it reads");
        }
        let peak = peak(child.id());
        stdin.write_all(b"\n").expect("it reads");
        drop(stdin);
        assert_eq!(child.wait().expect("it ends").code(), Some(0), "{args:?}");
        assert!(peak < 100 << 20, "{args:?}: {peak} bytes of memory");
        let db = sheaf::Database::builder().read_only(true).open(sandbox.path("db")).expect("it is there");
        let keyspace = db.open_keyspace(args[5]).expect("no error").expect("it is there");
        let key = if key.is_empty() { "0000000001" } else { "k" };
        let reader = keyspace.reader(key).expect("no error").expect("it is there");
        assert_eq!(reader.len(), LENGTH as u64);
    }
}

#[test]
fn a_dump_continues_after_damage_and_lists_it() {
    let sandbox = Sandbox::new();
    for key in ["one", "three", "two"] {
        sandbox.feed(&["put", "db", key, "-"], &vec![b'x'; 3 << 20]).succeeds();
    }
    let mut files: Vec<_> = sandbox.image("db");
    files.retain(|(_, bytes)| bytes.len() >= 3 << 20 && bytes[..3 << 20].iter().all(|byte| *byte == b'x'));
    let (path, bytes) = files.first_mut().expect("values in files of their own");
    bytes[2 << 20] ^= 1;
    sandbox.write(path.to_str().expect("UTF-8"), &bytes);
    let ran = sandbox.run(&["dump", "db"]).exits(3).mentions("is damaged");
    assert!(!ran.stdout().contains("#end"));
    let ran = sandbox.run(&["dump", "db", "--skip-damaged"]).exits(3);
    ran.exits(3).mentions("skipped ").mentions("is damaged").mentions("1 damaged place skipped");
    let dump = sandbox.run(&["dump", "db", "--skip-damaged"]).0.stdout;
    sandbox.feed(&["load", "copy", "-"], &dump).succeeds();
    assert_eq!(sandbox.run(&["scan", "copy"]).succeeds().lines().len(), 2);
}

#[test]
fn a_dump_keeps_expiry_times() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "db", "--ttl", "1h", "a", "one"]).succeeds();
    sandbox.run(&["put", "db", "b", "two"]).succeeds();
    sandbox.feed(&["put", "db", "--ttl", "2h", "c", "-"], &[b'x'; 3_000_000]).succeeds();
    let dump = sandbox.run(&["dump", "db"]).succeeds().0.stdout;
    assert!(dump.starts_with(b"#sheaf-dump 2\na\t1"), "{}", String::from_utf8_lossy(&dump[..60]));
    let time = |db: &str, key: &str| {
        sandbox.run(&["ttl", db, "--json", key]).succeeds().json()["expires_at_ms"].clone()
    };
    for (name, sorted) in [("copy", false), ("sorted", true)] {
        let load = ["load", name, "--option", "expiry=on", "-"];
        let sorted: &[&str] = if sorted { &["--sorted"] } else { &[] };
        sandbox.feed(&[&load[..], sorted].concat(), &dump).succeeds();
        for key in ["a", "b", "c"] {
            assert_eq!(time(name, key), time("db", key), "{key}");
        }
        assert!(time(name, "a").is_u64() && time(name, "b").is_null());
        sandbox.run(&["dump", name]).succeeds().prints(&dump);
    }
    sandbox.feed(&["load", "plain", "-"], &dump).exits(4).mentions("expiry=on");
    let plain = sandbox.run(&["dump", "db", "--plain"]).succeeds().stdout();
    assert!(plain.starts_with("a\tone\nb\ttwo\nc\tx"));
}

#[test]
fn a_dump_of_merged_values_loads_with_the_operator() {
    let sandbox = Sandbox::new();
    for (key, number) in [("a", "1"), ("b", "-2"), ("a", "40")] {
        sandbox.run(&["merge", "db", "-k", "c", "--option", "merge=add", key, number]).succeeds();
    }
    let dump = sandbox.run(&["dump", "db", "-k", "c"]).succeeds().0.stdout;
    let listed = sandbox.run(&["keyspaces", "db"]).succeeds().stdout();
    let option = listed.trim_end().rsplit('\t').next().expect("a column").to_owned();
    for (name, sorted) in [("copy", false), ("sorted", true)] {
        let sorted: &[&str] = if sorted { &["--sorted"] } else { &[] };
        let load = ["load", name, "-k", "c", "--option", &option, "-"];
        sandbox.feed(&[&load[..], sorted].concat(), &dump).succeeds();
        sandbox.run(&["merge", name, "-k", "c", "a", "1"]).succeeds();
        sandbox.run(&["get", name, "-k", "c", "--integer", "a"]).succeeds().prints("42\n");
    }
    // A load that replaces the content keeps the operator.
    sandbox.feed(&["load", "db", "-k", "c", "--sorted", "--replace", "-"], &dump).succeeds();
    sandbox.run(&["merge", "db", "-k", "c", "b", "2"]).succeeds();
    sandbox.run(&["get", "db", "-k", "c", "--integer", "b"]).succeeds().prints("0\n");
}

#[test]
fn a_dump_of_a_renamed_keyspace_loads_under_any_name() {
    let sandbox = Sandbox::new();
    let put = |db: &str, args: &[&str]| sandbox.run(&[&["put", db], args].concat()).succeeds();
    put("db", &["-k", "old", "--ttl", "1h", "a", "one"]);
    put("db", &["-k", "old", "b", "two"]);
    let before = sandbox.run(&["dump", "db", "-k", "old"]).succeeds().0.stdout;
    sandbox.run(&["rename", "db", "old", "new"]).succeeds();
    put("db", &["-k", "old", "c", "three"]);
    let dump = sandbox.run(&["dump", "db", "-k", "new"]).succeeds().0.stdout;
    assert_eq!(dump, before, "the pairs and times are those of before");
    for (name, sorted) in [("copy", false), ("sorted", true)] {
        let sorted: &[&str] = if sorted { &["--sorted"] } else { &[] };
        let load = ["load", name, "-k", "new", "--option", "expiry=on", "-"];
        sandbox.feed(&[&load[..], sorted].concat(), &dump).succeeds();
        sandbox.run(&["rename", name, "new", "third"]).succeeds();
        sandbox.run(&["dump", name, "-k", "third"]).succeeds().prints(&dump);
        sandbox.run(&["dump", name, "-k", "new"]).exits(1);
    }
    // A load into the renamed keyspace, which replaces its content.
    put("db", &["-k", "new", "d", "four"]);
    sandbox.feed(&["load", "db", "-k", "new", "--sorted", "--replace", "-"], &dump).succeeds();
    sandbox.run(&["dump", "db", "-k", "new"]).succeeds().prints(&dump);
    sandbox.run(&["get", "db", "-k", "old", "c"]).succeeds().prints("three");
}

#[test]
fn a_sorted_load_that_keeps_the_pairs_adds_all_or_nothing() {
    let sandbox = Sandbox::with(&[("a", "old"), ("b", "old"), ("z", "old")]);
    let load = |args: &[&str], input: &str| {
        sandbox.feed(&[&["load", "db", "--sorted", "--keep"], args].concat(), input.as_bytes())
    };
    load(&["-"], "b\tnew\nc\tnew\n").succeeds();
    let all = "a\told\nb\tnew\nc\tnew\nz\told\n";
    sandbox.run(&["dump", "db", "--plain"]).succeeds().prints(all);
    load(&["-"], "d\tnew\na\tnew\n").exits(4).mentions("line 2").mentions("nothing was loaded");
    load(&["-"], "").succeeds();
    sandbox.run(&["dump", "db", "--plain"]).succeeds().prints(all);
    load(&["--replace", "-"], "a\t1\n").exits(2);
    load(&["-e", "flat", "-"], "a\t1\n").exits(4);
    load(&["-k", "other", "-e", "flat", "-"], "a\t1\n").succeeds();
    load(&["-k", "other", "-"], "b\t2\n").succeeds();
    sandbox.run(&["get", "db", "-k", "other", "a"]).succeeds().prints("1");
    sandbox.run(&["get", "db", "-k", "other", "b"]).succeeds().prints("2");
}
