//! # Verbs: each does the job that its help describes

use crate::support::Sandbox;
use serde_json::json;

#[test]
fn put_creates_and_get_returns_the_same_bytes() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "db", "ada", "lovelace"]).succeeds().prints("");
    sandbox.run(&["get", "db", "ada"]).succeeds().prints("lovelace");
    sandbox.run(&["put", "db", "ada", "byron"]).succeeds();
    sandbox.run(&["get", "db", "ada"]).succeeds().prints("byron");
    sandbox.run(&["get", "db", "--json", "ada"]).succeeds().prints("{\"key\":\"ada\",\"value\":\"byron\"}\n");
}

#[test]
fn a_value_is_read_from_stdin_and_printed_to_stdout_byte_for_byte() {
    let sandbox = Sandbox::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    sandbox.feed(&["put", "db", "all", "-"], &bytes).succeeds();
    sandbox.run(&["get", "db", "all"]).succeeds().prints(&bytes);
    sandbox.feed(&["put", "db", "none", "-"], b"").succeeds();
    sandbox.run(&["get", "db", "none"]).succeeds().prints("");
}

#[test]
fn hex_reads_and_prints_any_bytes() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "db", "--hex", "00FF", "0a0b"]).succeeds();
    sandbox.run(&["get", "db", "--hex", "00ff"]).succeeds().prints("0a0b\n");
    sandbox.run(&["get", "db", "--hex", "00ff", "--json"]).succeeds();
    sandbox.run(&["scan", "db", "--hex"]).succeeds().prints("00ff\t0a0b\n");
    let pair = sandbox.run(&["scan", "db", "--json"]).succeeds().json();
    assert_eq!(pair, json!({ "key": { "hex": "00ff" }, "value": "\n\u{b}" }));
    sandbox.feed(&["put", "db", "--hex", "", "-"], b"ca fe\n").succeeds();
    sandbox.run(&["get", "db", "--hex", ""]).succeeds().prints("cafe\n");
    sandbox.run(&["del", "db", "--hex", "00ff", ""]).succeeds();
    sandbox.run(&["scan", "db"]).succeeds().prints("");
}

#[test]
fn a_key_may_start_with_a_hyphen() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "db", "--", "-k", "--v"]).succeeds();
    sandbox.run(&["get", "db", "--", "-k"]).succeeds().prints("--v");
}

#[test]
fn del_removes_the_existing_keys_and_reports_missing_ones() {
    let sandbox = Sandbox::with(&[("a", "1"), ("b", "2"), ("c", "3")]);
    sandbox.run(&["del", "db", "a"]).succeeds().prints("");
    sandbox.run(&["del", "db", "--durable", "a", "b"]).exits(1).mentions("1 of 2 keys");
    sandbox.run(&["get", "db", "b"]).exits(1);
    sandbox.run(&["get", "db", "c"]).succeeds().prints("3");
}

#[test]
fn del_removes_a_range() {
    let sandbox = Sandbox::with(&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]);
    sandbox.run(&["del", "db", "--from", "b", "--to", "d"]).succeeds().prints("");
    sandbox.run(&["get", "db", "b"]).exits(1);
    sandbox.run(&["get", "db", "c"]).exits(1);
    sandbox.run(&["get", "db", "d"]).succeeds().prints("4");
    sandbox.run(&["del", "db", "--to", "b"]).succeeds();
    sandbox.run(&["get", "db", "a"]).exits(1);
    sandbox.run(&["del", "db", "--from", "b", "d"]).exits(2);
}

#[test]
fn scan_lists_each_pair_once_and_stops_at_the_limit() {
    let sandbox = Sandbox::with(&[("a", "1"), ("b", "2"), ("c", "x\\ty")]);
    let all = sandbox.run(&["scan", "db"]).succeeds();
    assert_eq!(all.lines(), ["a\t1", "b\t2", "c\tx\\ty"]);
    assert_eq!(sandbox.run(&["scan", "db", "--limit", "2"]).succeeds().lines().len(), 2);
    sandbox.run(&["scan", "db", "--limit", "0"]).succeeds().prints("");
    for line in sandbox.run(&["scan", "db", "--json"]).succeeds().lines() {
        let pair: serde_json::Value = serde_json::from_str(&line).expect("an object a line");
        assert!(pair["key"].is_string() && pair["value"].is_string());
    }
}

#[test]
fn scan_of_a_range_needs_an_ordered_engine() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "db", "--engine", "flat", "a", "1"]).succeeds();
    for limits in [&["--from", "a"][..], &["--to", "b"], &["--prefix", "a"], &["--reverse"]] {
        let args = [&["scan", "db"], limits].concat();
        sandbox.run(&args).exits(4).prints("").mentions("flat does not support");
    }
}

#[test]
fn load_stores_plain_lines_under_their_numbers() {
    let sandbox = Sandbox::new();
    sandbox.write("poem", "so much\\n\tdepends\n\nupon"); // no escapes, no TABs, no last newline
    sandbox.run(&["load", "db", "--lines", "poem"]).succeeds();
    let lines = sandbox.run(&["scan", "db"]).succeeds().lines();
    assert_eq!(lines, ["0000000001\tso much\\\\n\\tdepends", "0000000002\t", "0000000003\tupon"]);
}

#[test]
fn load_commits_many_batches() {
    let sandbox = Sandbox::new();
    let text: String = (0..5_500).map(|i| format!("key{i}\tvalue{i}\n")).collect();
    sandbox.write("pairs", &text);
    sandbox.run(&["load", "db", "--durable", "pairs"]).succeeds();
    let mut expected: Vec<&str> = text.lines().collect();
    expected.sort_unstable();
    assert_eq!(sandbox.run(&["dump", "db", "--plain"]).succeeds().lines(), expected);
    sandbox.run(&["load", "db", "pairs"]).succeeds(); // again: harmless
    assert_eq!(sandbox.run(&["dump", "db", "--plain"]).succeeds().lines(), expected);
}

#[test]
fn keyspaces_are_separate_listed_and_dropped() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "db", "k", "1"]).succeeds();
    sandbox.run(&["put", "db", "--keyspace", "users", "--engine", "flat", "k", "2"]).succeeds();
    sandbox.run(&["get", "db", "k"]).succeeds().prints("1");
    sandbox.run(&["get", "db", "-k", "users", "k"]).succeeds().prints("2");
    sandbox.run(&["keyspaces", "db"]).succeeds().prints("default\tflex\t1\nusers\tflat\t1\n");
    let listing = sandbox.run(&["keyspaces", "db", "--json"]).succeeds().json();
    assert_eq!(listing[1]["name"], "users");
    assert_eq!(listing[1]["engine"], "flat");
    assert_eq!(listing[1]["keys"], 1);
    sandbox.run(&["drop", "db", "users", "--yes"]).succeeds();
    sandbox.run(&["keyspaces", "db"]).succeeds().prints("default\tflex\t1\n");
    sandbox.run(&["get", "db", "-k", "users", "k"]).exits(1);
}

#[test]
fn a_renamed_keyspace_has_its_pairs_under_the_new_name() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "db", "-k", "users", "k", "2"]).succeeds();
    sandbox.run(&["put", "db", "other", "1"]).succeeds();
    sandbox.run(&["rename", "db", "users", "default"]).exits(4).mentions("exists");
    sandbox.run(&["rename", "db", "nobody", "members"]).exits(1);
    sandbox.run(&["rename", "db", "users", "members"]).succeeds().prints("");
    sandbox.run(&["get", "db", "-k", "members", "k"]).succeeds().prints("2");
    sandbox.run(&["get", "db", "-k", "users", "k"]).exits(1);
}

#[test]
fn an_estimate_prints_the_number_and_size_of_pairs() {
    let sandbox = Sandbox::new();
    for key in ["a1", "a2", "b1"] {
        sandbox.run(&["put", "db", key, "value"]).succeeds();
    }
    sandbox.run(&["scan", "db", "--estimate"]).succeeds().prints("about 3 pairs of 21 bytes\n");
    let found = sandbox.run(&["scan", "db", "--prefix", "a", "--estimate", "--json"]).succeeds().json();
    assert_eq!(found, json!({ "pairs": 2, "bytes": 14 }));
    sandbox.run(&["put", "flat", "--engine", "flat", "k", "v"]).succeeds();
    let ran = sandbox.run(&["scan", "flat", "--from", "a", "--estimate"]).exits(4);
    ran.mentions("estimates of ranges").mentions("sheaf convert");
    for engine in ["flat", "flat-ordered", "cedrus", "flex", "delsm"] {
        sandbox.run(&["put", "one", "-k", engine, "--engine", engine, "key", "value"]).succeeds();
        let ran = sandbox.run(&["scan", "one", "-k", engine, "--estimate"]).succeeds();
        ran.prints("about 1 pair of 8 bytes\n");
    }
}

#[test]
fn options_are_chosen_listed_and_changed() {
    let sandbox = Sandbox::new();
    let put = |option: &str| {
        sandbox.run(&["put", "db", "-k", "a", "--engine", "cedrus", "--option", option, "k", "v"])
    };
    put("branching=3").exits(2).mentions("branching: 4 to 256, a power of two; default 16");
    put("width=4").exits(2).mentions("sluggishness: 1 to 128");
    put("branching").exits(2).mentions("NAME=VALUE");
    assert!(!sandbox.path("db").exists());
    put("branching=64").succeeds();
    put("branching=16").exits(4).mentions("cedrus branching=64");
    sandbox.run(&["put", "db", "-k", "a", "l", "w"]).succeeds();
    sandbox.run(&["keyspaces", "db"]).succeeds().prints("a\tcedrus\t2\tbranching=64\n");
    let to = ["convert", "db", "-k", "a", "--to", "cedrus", "--option", "sluggishness=8"];
    sandbox.run(&[&to[..], &["--dry-run"]].concat()).succeeds();
    sandbox.run(&to).succeeds();
    let again = sandbox.run(&to).succeeds().stdout();
    assert!(again.contains("already"), "{again}");
    let listing = sandbox.run(&["stats", "db", "--json"]).succeeds().json();
    assert_eq!(listing["keyspaces"][0]["options"], json!({ "branching": 64, "sluggishness": 8 }));
    let sizes =
        ["load", "db", "-k", "b", "--sorted", "--engine", "flex", "--option", "interval-bytes=4KiB", "-"];
    sandbox.feed(&sizes, b"k\tv\n").succeeds();
    let lz4 = ["put", "db", "-k", "c", "--engine", "flat", "--option", "compression=lz4"];
    let text = "stored in ".repeat(500);
    sandbox.run(&[&lz4[..], &["key", &text]].concat()).succeeds();
    sandbox.run(&["get", "db", "-k", "c", "key"]).succeeds().prints(&text);
    assert!(sandbox.run(&["keyspaces", "db"]).succeeds().stdout().contains("compression=lz4"));
    let snappy = [&lz4[..6], &["--option", "compression=snappy", "k", "v"]].concat();
    sandbox.run(&snappy).exits(2);
    let engines = sandbox.run(&["engines"]).succeeds().stdout();
    assert!(engines.contains("compression: none, lz4, zstd; default none"), "{engines}");
    assert!(engines.contains("flex (the default)\n  interval-pairs: 4 to 128; default 16\n"));
}

#[test]
fn compact_rewrites_records_that_are_out_of_order() {
    let sandbox = Sandbox::new();
    for key in ["5", "3", "9", "1", "7"] {
        sandbox.run(&["put", "db", "--keyspace", "k", "--engine", "kreon", key, "x"]).succeeds();
    }
    let before = sandbox.run(&["scan", "db", "--keyspace", "k"]).succeeds().stdout();
    let done = sandbox.run(&["compact", "db", "--keyspace", "k", "--json"]).succeeds().json();
    assert_eq!(done["moved"], json!(5));
    let done = sandbox.run(&["compact", "db", "--keyspace", "k", "--json"]).succeeds().json();
    assert_eq!(done, json!({ "moved": 0, "bytes": 0, "left": 5 }));
    assert_eq!(sandbox.run(&["scan", "db", "--keyspace", "k"]).succeeds().stdout(), before);
    sandbox.run(&["put", "db", "--keyspace", "f", "--engine", "flat", "a", "b"]).succeeds();
    let done = sandbox.run(&["compact", "db", "--keyspace", "f", "--json"]).succeeds().json();
    assert_eq!(done, json!({ "moved": 0, "bytes": 0, "left": 0 }), "it has no order of keys");
    sandbox.run(&["compact", "db", "--keyspace", "none"]).exits(1).mentions("none");
}

#[test]
fn stats_prints_text_and_json() {
    let sandbox = Sandbox::with(&[("a", "1"), ("b", "2")]);
    let text = sandbox.run(&["stats", "db"]).succeeds().stdout();
    assert!(text.contains("default") && text.contains("2 keys") && !text.contains('\x1b'), "{text}");
    let stats = sandbox.run(&["stats", "db", "--json", "--memory", "64MiB"]).succeeds().json();
    assert_eq!(stats["memory"]["budget"], 64 << 20);
    assert_eq!(stats["keyspaces"][0]["keys"], 2);
    assert_eq!(stats["opening"]["clean"], true);
    assert!(stats["logs"].as_array().is_some_and(|logs| !logs.is_empty()), "{stats}");
    assert_eq!(stats["blobs"]["chunks"], 0);
    for key in ["large", "larger"] {
        sandbox
            .run(&["put", "db", "--keyspace", "k", "--engine", "flat", key, &"x".repeat(100_000)])
            .succeeds();
    }
    let stats = sandbox.run(&["stats", "db", "--json"]).succeeds().json();
    assert_eq!((&stats["blobs"]["chunks"], &stats["blobs"]["slots"]), (&json!(1), &json!(2)));
    let text = sandbox.run(&["stats", "db"]).succeeds().stdout();
    assert!(text.contains("2 in 1 chunk ("), "{text}");
}

#[test]
fn workload_statistics_survive_a_close() {
    let sandbox = Sandbox::with(&[("a", "1")]);
    let nothing = sandbox.run(&["advise", "db"]).succeeds().stdout();
    assert!(nothing.contains("no advice yet"), "{nothing}");
    use_it(&sandbox.path("db")).unwrap();
    let stats = sandbox.run(&["stats", "db", "--json"]).succeeds().json();
    let load = &stats["keyspaces"][0]["load"];
    assert!(load["gets_found"].as_u64().is_some_and(|gets| (20_000..80_000).contains(&gets)), "{load}");
    let text = sandbox.run(&["stats", "db"]).succeeds().stdout();
    assert!(text.contains("% gets"), "{text}");
    let again = sandbox.run(&["stats", "db", "--json"]).succeeds().json();
    assert_eq!(again["keyspaces"][0]["load"], *load, "looking changes nothing");
    let advice = sandbox.run(&["advise", "db", "--keyspace", "default", "--json"]).succeeds().json();
    assert!(advice[0]["advised"].is_string(), "{advice}");
    assert_eq!(advice[0]["candidates"].as_array().map(Vec::len), Some(sheaf::engines().len()));
    let text = sandbox.run(&["advise", "db"]).succeeds().stdout();
    assert!(text.contains("suit") && text.contains("per operation"), "{text}");
    sandbox.run(&["advise", "db", "--keyspace", "none"]).exits(1).mentions("none");
}

/// Some ten thousand gets.
fn use_it(database: &std::path::Path) -> sheaf::Result<()> {
    let db = sheaf::Database::open(database)?;
    if let Some(keyspace) = db.open_keyspace("default")? {
        for _ in 0..40_000 {
            keyspace.get("a")?;
        }
    }
    db.close()
}

#[test]
fn a_replay_measures_and_leaves_no_file() {
    let sandbox = Sandbox::with(&[("a", "1"), ("b", "2")]);
    use_it(&sandbox.path("db")).unwrap();
    let tmp = sandbox.path("tmp");
    std::fs::create_dir(&tmp).unwrap();
    let replay = ["advise", "db", "--replay", "--seconds", "1", "--json", "--tmp", "tmp"];
    let advice = sandbox.run(&replay).succeeds().json();
    for candidate in advice[0]["candidates"].as_array().unwrap() {
        assert!(candidate["replayed"]["operations"].as_u64().is_some_and(|count| count > 0), "{candidate}");
    }
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0, "the scratch databases are removed");
    let full = ["advise", "db", "--replay", "--seconds", "1", "--disk", "1", "--tmp", "tmp"];
    sandbox.run(&full).succeeds();
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0);
}

#[test]
fn verify_reads_everything_and_finds_a_sound_database_sound() {
    let sandbox = Sandbox::with(&[("a", "1"), ("b", "2")]);
    let text = sandbox.run(&["verify", "db"]).succeeds().stdout();
    assert!(text.starts_with("sound: 2 pairs"), "{text}");
    let report = sandbox.run(&["verify", "db", "--json"]).succeeds().json();
    assert_eq!(report["sound"], true);
    assert_eq!(report["pairs"], 2);
    assert_eq!(report["findings"], json!([]));
}

#[test]
fn help_names_the_exit_codes_and_every_verb() {
    let sandbox = Sandbox::new();
    let help = sandbox.run(&["--help"]).succeeds().stdout();
    for word in [
        "put",
        "get",
        "del",
        "scan",
        "load",
        "dump",
        "stats",
        "advise",
        "verify",
        "keyspaces",
        "drop",
        "demo",
    ] {
        assert!(help.contains(word), "{word}");
        sandbox.run(&[word, "--help"]).succeeds();
    }
    assert!(help.contains("Exit codes"));
    assert!(!help.contains("demo-writer"));
    assert!(sandbox.run(&["--version"]).succeeds().stdout().contains("disk formats"));
}

#[test]
fn a_backup_is_restored_and_shares_unchanged_files() {
    let sandbox = Sandbox::with(&[("a", "1"), ("b", "2")]);
    let full = sandbox.run(&["backup", "db", "monday", "--json"]).succeeds().json();
    assert!(full["files"].as_u64() > Some(1) && full["linked"] == 0, "{full}");
    sandbox.run(&["put", "db", "c", "3"]).succeeds();
    let next = sandbox.run(&["backup", "db", "tuesday", "--base", "monday", "--json"]).succeeds().json();
    assert!(next["commit"].as_u64() > full["commit"].as_u64(), "{next}");
    for rate in ["100MiB", "full"] {
        sandbox.run(&["backup", "db", &format!("at-{rate}"), "--rate", rate]).succeeds();
    }
    let text = sandbox.run(&["restore", "monday", "again"]).succeeds();
    assert!(text.lines().concat().contains("restored"));
    sandbox.run(&["scan", "again"]).succeeds().prints("a\t1\nb\t2\n");
    sandbox.run(&["restore", "tuesday", "later", "--json"]).succeeds();
    sandbox.run(&["scan", "later"]).succeeds().prints("a\t1\nb\t2\nc\t3\n");
    sandbox.run(&["verify", "later"]).succeeds();
}

#[test]
fn a_damaged_database_is_repaired_into_a_new_one() {
    let sandbox = Sandbox::new();
    for engine in ["flat", "flex"] {
        let pairs: String = (0..40).map(|n| format!("key{n:02}\t{}\n", "v".repeat(50))).collect();
        let args = ["load", "db", "--keyspace", engine, "--engine", engine, "-"];
        sandbox.feed(&args, pairs.as_bytes()).succeeds();
    }
    let before = sandbox.image("db");
    let whole = sandbox.run(&["repair", "db", "copy"]).succeeds();
    assert!(whole.stdout().contains("flat\tflat\t40 certain, whole\n"), "{}", whole.stdout());
    assert!(sandbox.image("db") == before, "the damaged database was written to");

    // A bit of one value in the log of `flat`.
    let (path, mut bytes) = before.iter().find(|(path, bytes)| is_log_of_flat(path, bytes)).unwrap().clone();
    let at = bytes.windows(50).position(|window| window.iter().all(|byte| *byte == b'v')).unwrap();
    bytes[at] ^= 1;
    std::fs::write(sandbox.path("db").join(&path), &bytes).unwrap();
    let args = ["repair", "db", "new", "--report", "list", "--json"];
    let ran = sandbox.run(&args).exits(3).mentions("not everything could be salvaged");
    let said: Vec<serde_json::Value> =
        ran.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| said.iter().find(|line| line["name"] == name).unwrap().clone();
    assert_eq!((&of("flat")["certain"], &of("flat")["lost"]), (&json!(39), &json!(1)));
    assert_eq!((&of("flex")["certain"], &of("flex")["whole"]), (&json!(40), &json!(true)));
    assert_eq!(of("flat")["unnamed"], 1, "flat knows hashes of keys");
    let list = std::fs::read_to_string(sandbox.path("list")).unwrap();
    let line = list.lines().find(|line| line.contains("unnamed")).expect("the file of the lost pair");
    let unnamed: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!((&unnamed["keyspace"], &unnamed["pairs"]), (&json!("flat"), &json!(1)), "{list}");
    assert!(
        unnamed["file"].as_str().unwrap().ends_with(path.file_name().unwrap().to_str().unwrap()),
        "{list}"
    );
    assert!(list.contains("\"kind\":\"damage\"") && list.contains("checksum"), "{list}");
    sandbox.run(&["verify", "new"]).succeeds();
    assert_eq!(sandbox.run(&["scan", "new", "--keyspace", "flat"]).succeeds().lines().len(), 39);
}

/// Loads so many pairs that the engine `flex` has files of its own.
fn load_flex(sandbox: &Sandbox) {
    let pairs: String = (0..3000).map(|n| format!("key{n:05}\t{}\n", "v".repeat(50))).collect();
    let args = ["load", "db", "--keyspace", "words", "--engine", "flex", "-"];
    sandbox.feed(&args, pairs.as_bytes()).succeeds();
}

/// Flips a bit of a file of the database.
fn flip(sandbox: &Sandbox, file: &str, at: usize) {
    let path = sandbox.path("db").join(file);
    let mut bytes = std::fs::read(&path).expect("a file of the database");
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).expect("it can be written");
}

#[test]
fn a_damaged_head_of_a_space_is_reported_by_verify_and_by_repair() {
    let sandbox = Sandbox::new();
    load_flex(&sandbox);
    flip(&sandbox, "own/00000001/HEAD.0", 20);
    let found = sandbox.run(&["verify", "db"]).exits(3).stdout();
    assert!(found.contains("own/00000001/HEAD.0") && found.contains("keyspace words"), "{found}");
    let repaired = sandbox.run(&["repair", "db", "new"]).succeeds().stdout();
    assert!(repaired.contains("damage\tdb/own/00000001/HEAD.0\t"), "{repaired}");
    assert!(repaired.contains("3000 certain, whole") && repaired.contains("1 damaged place,"), "{repaired}");
}

#[test]
fn damaged_data_of_a_space_is_reported_with_its_places_and_keys() {
    let sandbox = Sandbox::new();
    load_flex(&sandbox);
    let area = "own/00000001/data/00000000.area";
    flip(&sandbox, area, 5000);
    flip(&sandbox, area, 90_000);
    let found = sandbox.run(&["verify", "db", "--json"]).exits(3).json();
    assert_eq!(found["findings"].as_array().unwrap().len(), 2, "{found}");
    let ran = sandbox.run(&["repair", "db", "new", "--json"]).exits(3);
    let said: Vec<serde_json::Value> =
        ran.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    for finding in found["findings"].as_array().unwrap() {
        let is_it = |line: &&serde_json::Value| {
            line["kind"] == "damage" && line["file"] == finding["file"] && line["from"] == finding["offset"]
        };
        assert!(said.iter().any(|line| is_it(&line)), "{finding}: {said:?}");
    }
    let gaps: Vec<_> = said.iter().filter(|line| line["kind"] == "gap").collect();
    assert_eq!(gaps.len(), 2, "{said:?}");
    let certain = said.iter().find(|line| line["kind"] == "keyspace").unwrap()["certain"].as_u64().unwrap();
    let number = |key: &serde_json::Value| key.as_str().unwrap()[3..].parse::<u64>().unwrap();
    let lost: u64 = gaps.iter().map(|gap| number(&gap["before"]) - number(&gap["after"]) - 1).sum();
    assert_eq!(certain + lost, 3000, "{said:?}");
}

fn is_log_of_flat(path: &std::path::Path, bytes: &[u8]) -> bool {
    path.components().any(|part| part.as_os_str() == "flat")
        && bytes.windows(50).any(|window| window.iter().all(|byte| *byte == b'v'))
}

#[test]
fn a_sorted_load_is_atomic() {
    let sandbox = Sandbox::new();
    let text: String = (0..3_000).map(|n| format!("key{n:05}\tvalue {n}\n")).collect();
    for engine in ["flex", "delsm", "flat"] {
        let args = ["load", "db", "--sorted", "--keyspace", engine, "--engine", engine, "--json", "-"];
        let loaded = sandbox.feed(&args, text.as_bytes()).succeeds().json();
        assert_eq!((&loaded["pairs"], loaded["bytes"].as_u64() > Some(40_000)), (&json!(3_000), true));
        sandbox.run(&["get", "db", "--keyspace", engine, "key02999"]).succeeds().prints("value 2999");
        let again = ["load", "db", "--sorted", "--keyspace", engine, "-"];
        sandbox.feed(&again, b"a\t1\n").exits(4).mentions("not empty");
        let replace = ["load", "db", "--sorted", "--replace", "--keyspace", engine, "-"];
        sandbox
            .feed(&replace, b"a\t1\nb\t2\nb\t3\n")
            .exits(4)
            .mentions("line 3")
            .mentions("nothing was replaced");
        sandbox.run(&["get", "db", "--keyspace", engine, "key02999"]).succeeds().prints("value 2999");
        sandbox.feed(&replace, b"a\t1\nb\t2\n").succeeds();
        assert_eq!(sandbox.run(&["scan", "db", "--keyspace", engine]).succeeds().lines().len(), 2);
    }
    sandbox.feed(&["load", "db", "--sorted", "--lines", "--keyspace", "lines", "-"], b"x\ny\n").succeeds();
    sandbox.run(&["scan", "db", "--keyspace", "lines"]).succeeds().prints("0000000001\tx\n0000000002\ty\n");
    sandbox.run(&["verify", "db"]).succeeds();
}

#[test]
fn convert_changes_the_engine_of_a_keyspace() {
    let sandbox = Sandbox::with(&[("a", "1"), ("b", "2"), ("c", "3")]);
    let dump = sandbox.run(&["dump", "db", "--plain"]).succeeds().lines();
    let before = sandbox.image("db");
    let dry = sandbox.run(&["convert", "db", "--to", "flat", "--dry-run", "--json"]).succeeds().json();
    assert_eq!((&dry["pairs"], &dry["bytes"]), (&json!(3), &json!(6)));
    assert!(dry["needed"].as_u64() < dry["free"].as_u64() && dry["seconds"].as_f64() > Some(0.0), "{dry}");
    sandbox.run(&["convert", "db", "--to", "flat", "--dry-run"]).succeeds();
    assert_eq!(sandbox.image("db"), before, "a dry run changes nothing");
    let left = std::fs::read_dir(sandbox.path(".")).expect("a directory").count();
    assert_eq!(left, 1, "and leaves nothing");
    for to in ["flat", "cedrus", "delsm", "kreon", "flat-ordered", "flex"] {
        sandbox.run(&["convert", "db", "--to", to]).succeeds();
        sandbox.run(&["keyspaces", "db"]).succeeds().prints(format!("default\t{to}\t3\n"));
        let mut lines = sandbox.run(&["dump", "db", "--plain"]).succeeds().lines();
        lines.sort();
        assert_eq!(lines, dump);
    }
    sandbox.run(&["convert", "db", "--to", "flex"]).succeeds();
    sandbox.run(&["convert", "db", "--to", "tree"]).exits(2).mentions("the engines are flat");
    sandbox.run(&["convert", "db", "--keyspace", "none", "--to", "flat"]).exits(1);
    sandbox.run(&["verify", "db"]).succeeds();
}

#[test]
fn merge_computes_values_and_get_prints_integers() {
    let sandbox = Sandbox::new();
    let merge = |words: &[&str]| sandbox.run(&[&["merge", "db"], words].concat());
    merge(&["-k", "c", "--option", "merge=add", "--engine", "flat", "logins", "5"]).succeeds();
    merge(&["-k", "c", "--durable", "logins", "-7"]).succeeds();
    merge(&["-k", "c", "--hex", "6c6f67696e73", "0a00000000000000"]).succeeds();
    sandbox.run(&["get", "db", "-k", "c", "--integer", "logins"]).succeeds().prints("8\n");
    let json = sandbox.run(&["get", "db", "-k", "c", "--integer", "--json", "logins"]).succeeds().json();
    assert_eq!(json["value"], 8);
    merge(&["-k", "c", "logins", "many"]).exits(2).mentions("no integer");
    merge(&["-k", "c", "logins", "9223372036854775808"]).exits(2).mentions("no integer");
    merge(&["-k", "c", "--hex", "6c6f67696e73", "0a"]).exits(4).mentions("\"add\"");
    merge(&["-k", "new", "--option", "merge=max", "--integer", "k", "x"]).exits(2);

    for (number, highest) in [("9", "9"), ("-10", "9"), ("11", "11")] {
        merge(&["-k", "m", "--option", "merge=max", "--integer", "k", number]).succeeds();
        sandbox.run(&["get", "db", "-k", "m", "--integer", "k"]).succeeds().prints(format!("{highest}\n"));
    }
    for word in ["a;", "b;"] {
        merge(&["-k", "l", "--option", "merge=append", "today", word]).succeeds();
    }
    sandbox.run(&["get", "db", "-k", "l", "today"]).succeeds().prints("a;b;");
    sandbox.run(&["get", "db", "-k", "l", "--integer", "today"]).exits(4).mentions("4 bytes");
    sandbox.run(&["put", "db", "plain", "v"]).succeeds();
    merge(&["plain", "w"]).exits(4).mentions("no merge operator");
    merge(&["-k", "o", "k", "v"]).exits(4).mentions("--option merge=OPERATOR");
    sandbox.run(&["merge", "new", "k", "v"]).exits(4).mentions("--option merge=OPERATOR");
    sandbox.run(&["merge", "new", "k", "v", "--option", "merge=add"]).exits(2).mentions("no integer");
    assert!(!sandbox.path("new").exists());
    merge(&["-k", "n", "--option", "merge=none", "k", "v"])
        .exits(4)
        .mentions("no operator \"none\"")
        .mentions("union");
    sandbox
        .run(&["keyspaces", "db"])
        .succeeds()
        .prints("c\tflat\t1\tmerge=add\ndefault\tflex\t1\nl\tflex\t1\tmerge=append\nm\tflex\t1\tmerge=max\n");
    sandbox.run(&["convert", "db", "-k", "m", "--to", "kreon"]).succeeds();
    merge(&["-k", "m", "--integer", "k", "12"]).succeeds();
    sandbox.run(&["convert", "db", "-k", "m", "--to", "kreon", "--option", "merge=min"]).succeeds();
    merge(&["-k", "m", "--integer", "k", "-3"]).succeeds();
    sandbox.run(&["get", "db", "-k", "m", "--integer", "k"]).succeeds().prints("-3\n");
}

#[test]
fn ttl_prints_the_seconds_for_which_a_key_exists() {
    let sandbox = Sandbox::new();
    sandbox.run(&["put", "db", "-k", "s", "--ttl", "10m", "ada", "token"]).succeeds();
    sandbox.run(&["put", "db", "-k", "s", "alan", "token"]).succeeds();
    sandbox.run(&["put", "db", "-k", "s", "--ttl", "1ms", "gone", "token"]).succeeds();
    std::thread::sleep(std::time::Duration::from_millis(5));
    let left: f64 =
        sandbox.run(&["ttl", "db", "-k", "s", "ada"]).succeeds().stdout().trim().parse().expect("seconds");
    assert!((500.0..=600.0).contains(&left), "{left}");
    sandbox.run(&["ttl", "db", "-k", "s", "alan"]).succeeds().prints("never\n");
    sandbox.run(&["ttl", "db", "-k", "s", "gone"]).exits(1).mentions("no key \"gone\"");
    sandbox.run(&["get", "db", "-k", "s", "gone"]).exits(1);
    sandbox.run(&["put", "db", "plain", "v"]).succeeds();
    sandbox.run(&["put", "db", "--ttl", "1h", "plain", "w"]).exits(4).mentions("expiry=on");
    sandbox.run(&["get", "db", "plain"]).succeeds().prints("v");
    sandbox.run(&["put", "db", "-k", "s", "--ttl", "0s", "k", "v"]).exits(4).mentions("zero");
    sandbox.run(&["put", "db", "-k", "d", "--option", "ttl=1h", "k", "v"]).succeeds();
    let left = sandbox.run(&["ttl", "db", "-k", "d", "--json", "k"]).succeeds().json();
    assert!(left["ttl_seconds"].as_f64().is_some_and(|left| left > 3500.0), "{left}");
    let stats = sandbox.run(&["stats", "db", "--json"]).succeeds().json();
    assert!(stats["expiry"]["removed_pairs"].is_u64(), "{stats}");
    sandbox
        .run(&["keyspaces", "db"])
        .succeeds()
        .prints("d\tflex\t1\texpiry=on ttl-ms=3600000\ndefault\tflex\t1\ns\tflex\t2\texpiry=on\n");
}
