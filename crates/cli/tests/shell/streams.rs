//! # Streams that are closed: no answer and no value is lost without an error

use std::process::{Command, Output, Stdio};

use crate::support::{RunResult, Sandbox};

/// Runs `sheaf` with the arguments and redirections that a shell reads from `rest`.
fn shell(sandbox: &Sandbox, rest: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("\"$0\" {rest}")).arg(env!("CARGO_BIN_EXE_sheaf"));
    shell.current_dir(sandbox.path("."));
    shell.stdin(Stdio::piped()).output().expect("there is a shell")
}

#[test]
fn a_closed_stdin_is_no_empty_value() {
    let sandbox = Sandbox::new();
    for rest in ["put db k - <&-", "put db k - 0> file", "put db --hex 00 - <&-", "load db - <&-"] {
        RunResult(shell(&sandbox, rest)).exits(4).mentions("cannot read stdin");
        assert!(!sandbox.path("db").exists(), "{rest}");
    }
    RunResult(shell(&sandbox, "put db k - < /dev/null")).succeeds();
    RunResult(shell(&sandbox, "put db k value <&-")).succeeds();
    sandbox.run(&["get", "db", "k"]).succeeds().prints("value");
}

#[test]
fn a_closed_stdout_is_an_error_where_there_is_something_to_say() {
    let sandbox = Sandbox::with(&[("k", "v")]);
    for verb in ["get db k", "scan db", "dump db", "stats db", "keyspaces db", "get db k --json"] {
        RunResult(shell(&sandbox, &format!("{verb} >&-"))).exits(4).mentions("cannot write to stdout");
        RunResult(shell(&sandbox, &format!("{verb} 1< /dev/null")))
            .exits(4)
            .mentions("cannot write to stdout");
        RunResult(shell(&sandbox, &format!("{verb} > /dev/null"))).succeeds();
    }
    RunResult(shell(&sandbox, "put db k w >&-")).succeeds();
    sandbox.run(&["get", "db", "k"]).succeeds().prints("w");
}

#[test]
fn a_stderr_without_a_reader_changes_no_exit_code() {
    let sandbox = Sandbox::with(&[("k", "v")]);
    for (args, code) in [(&["get", "db", "none"][..], 1), (&["get", "nowhere", "k"], 4)] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let status = sandbox.command(args).stderr(writer).status().expect("it starts");
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}
