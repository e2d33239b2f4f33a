//! # Signals: an interrupted verb removes its output, a killed one is recognised
//!
//! Blind spots: a signal before the verb watches for it ends the process at once, when there is
//! nothing to remove yet.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use crate::support::{RunResult, Sandbox};

/// Sends a signal.
fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status();
    assert!(status.expect("there is kill").success());
}

/// Returns a database with a slow backup.
fn large() -> Sandbox {
    let sandbox = Sandbox::new();
    let text: String = (0..8_000).map(|i| format!("key{i}\t{}\n", "v".repeat(1000))).collect();
    sandbox.feed(&["load", "db", "-"], text.as_bytes()).succeeds();
    sandbox
}

/// Starts `sheaf` with default signal handling: the tests may run where signals are ignored, as in
/// the background of a script.
fn start(sandbox: &Sandbox, args: &[&str]) -> Child {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_sheaf")]).args(args);
    command.current_dir(sandbox.path("."));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Waits until the verb has made `name`. False if it ended before.
fn wait_for_file(sandbox: &Sandbox, child: &mut Child, name: &str) -> bool {
    while !sandbox.path(name).exists() {
        if child.try_wait().expect("ours").is_some() {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

fn end(child: Child) -> RunResult {
    RunResult(child.wait_with_output().expect("it ends"))
}

const SLOW_BACKUP: [&str; 5] = ["backup", "db", "copy", "--rate", "256KiB"];

#[test]
fn an_interrupted_backup_leaves_nothing() {
    let sandbox = large();
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let mut child = start(&sandbox, &SLOW_BACKUP);
        assert!(wait_for_file(&sandbox, &mut child, "copy/BACKUP.new"), "it is slow");
        signal(&child, name);
        end(child).exits(code).prints("").mentions("interrupted; no partial backup remains");
        assert!(!sandbox.path("copy").exists(), "{name}");
    }
    sandbox.run(&["backup", "db", "copy"]).succeeds();
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let sandbox = large();
    let mut shell = Command::new("sh");
    shell
        .args([
            "-c",
            "trap '' HUP; exec env --default-signal=TERM \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_sheaf"),
        ])
        .args(SLOW_BACKUP);
    shell.current_dir(sandbox.path(".")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = shell.spawn().expect("there is a shell");
    assert!(wait_for_file(&sandbox, &mut child, "copy/BACKUP.new"), "it is slow");
    signal(&child, "HUP");
    signal(&child, "TERM");
    end(child).exits(143);
}

#[test]
fn files_of_a_killed_backup_or_restore_are_named_with_the_remedy() {
    let sandbox = large();
    let mut child = start(&sandbox, &SLOW_BACKUP);
    assert!(wait_for_file(&sandbox, &mut child, "copy/BACKUP.new"), "it is slow");
    child.kill().expect("ours");
    child.wait().expect("it ends");
    for args in [["backup", "db", "copy"], ["restore", "copy", "again"]] {
        sandbox.run(&args).exits(4).mentions("unfinished");
    }
    sandbox.run(&["backup", "db", "copy"]).exits(4).mentions("remove copy");
    std::fs::remove_dir_all(sandbox.path("copy")).expect("it can be removed");
    sandbox.run(&["backup", "db", "copy"]).succeeds();

    // A restoration that is faster than the signal is tried again.
    let mut is_killed = false;
    for _ in 0..20 {
        let mut child = start(&sandbox, &["restore", "copy", "again"]);
        wait_for_file(&sandbox, &mut child, "again/UNFINISHED");
        child.kill().ok();
        child.wait().expect("it ends");
        if sandbox.path("again/UNFINISHED").exists() {
            is_killed = true;
            break;
        }
        std::fs::remove_dir_all(sandbox.path("again")).ok();
    }
    assert!(is_killed, "twenty restorations were faster than a signal");
    sandbox
        .run(&["restore", "copy", "again"])
        .exits(4)
        .mentions("unfinished repair or restoration")
        .mentions("remove it");
    for args in [&["put", "again", "k", "v"][..], &["get", "again", "k"]] {
        sandbox.run(args).exits(4).mentions("unfinished repair or restoration");
    }
    std::fs::remove_dir_all(sandbox.path("again")).expect("it can be removed");
    sandbox.run(&["restore", "copy", "again"]).succeeds();
    sandbox.run(&["put", "again", "key7", "v"]).succeeds();
}

#[test]
fn an_interrupted_restore_leaves_nothing() {
    let sandbox = large();
    sandbox.run(&["backup", "db", "copy"]).succeeds();
    for _ in 0..20 {
        let mut child = start(&sandbox, &["restore", "copy", "again"]);
        wait_for_file(&sandbox, &mut child, "again/UNFINISHED");
        signal(&child, "INT");
        let ran = end(child);
        if ran.0.status.code() == Some(130) {
            ran.mentions("interrupted; no partial database remains");
            assert!(!sandbox.path("again").exists());
            return;
        }
        ran.exits(0); // it was faster
        std::fs::remove_dir_all(sandbox.path("again")).expect("it can be removed");
    }
    panic!("twenty restorations were faster than a signal");
}

#[test]
fn a_load_that_waits_for_its_input_ends_with_the_signal() {
    let (add, replace): (&[&str], &[&str]) =
        (&["load", "db", "-"], &["load", "db", "--sorted", "--replace", "-"]);
    for (args, input, left) in [
        (add, &b"a\tnew\nb\t"[..], "interrupted; nothing was loaded"),
        (add, b"", "interrupted; nothing was loaded"),
        (replace, b"a\tnew\nb\t", "interrupted; nothing was replaced"),
        (replace, b"", "interrupted; nothing was replaced"),
    ] {
        let sandbox = Sandbox::with(&[("a", "old")]);
        let mut child = start(&sandbox, args);
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(input).expect("it reads");
        while !std::fs::read_to_string(format!("/proc/{}/status", child.id())).is_ok_and(is_watching) {
            std::thread::yield_now();
        }
        signal(&child, "INT");
        end(child).exits(130).mentions(left);
        drop(stdin);
        sandbox.run(&["get", "db", "a"]).succeeds().prints("old");
    }
}

/// Returns true if the process catches SIGINT.
fn is_watching(status: String) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("Linux has this line");
    u64::from_str_radix(caught.trim(), 16).expect("digits") & 2 != 0
}
