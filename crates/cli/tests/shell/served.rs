//! # `serve` and `call`

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::support::Sandbox;

struct Served {
    child: Child,
    addresses: Vec<String>,
}

impl Served {
    fn start(sandbox: &Sandbox, args: &[&str], addresses: usize) -> Served {
        let all = [&["serve", "db"], args].concat();
        let mut child = sandbox.command(&all).stdout(Stdio::piped()).spawn().expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines().take(addresses);
        let address = |line: std::io::Result<String>| {
            let line = line.expect("a line");
            line.strip_prefix("serving db at ").expect("an address").to_owned()
        };
        Served { addresses: lines.map(address).collect(), child }
    }

    /// Asks it to end and waits for its end.
    fn end(mut self) {
        let asked = Command::new("kill").arg(self.child.id().to_string()).status().expect("kill runs");
        assert!(asked.success());
        assert!(self.child.wait().expect("it ends").success());
    }
}

#[test]
fn a_served_database_can_be_called_over_both_transports_and_is_complete_afterwards() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &["--flatrpc", "./sock", "--flatrpc", "0", "--insecure"], 2);
    assert_eq!(served.addresses.len(), 2);
    for address in &served.addresses {
        let call = |words: &[&str]| sandbox.run(&[&["call", address], words].concat());
        assert!(call(&["ping"]).succeeds().stdout().contains("reply in"));
        call(&["put", "ada", "lovelace"]).succeeds();
        call(&["put", "--durable", "tab\there", "x"]).succeeds();
        call(&["get", "ada"]).succeeds().prints("lovelace");
        assert_eq!(call(&["scan", "--limit", "5"]).succeeds().lines().len(), 2);
        call(&["--keyspace", "o", "put", "--engine", "flat-ordered", "a", "1"]).succeeds();
        call(&["--keyspace", "o", "scan", "--from", "a"]).succeeds().prints("a\t1\n");
        call(&["put", "--option", "branching=64", "a", "1"]).exits(2); // no such option
        call(&["del", "ada"]).succeeds();
        call(&["get", "ada"]).exits(1);
        call(&["--keyspace", "none", "get", "ada"]).exits(1);
        call(&["persist"]).succeeds();
    }
    sandbox.run(&["get", "db", "tab\there"]).succeeds().prints("x"); // while it is served
    sandbox.run(&["put", "db", "a", "1", "--wait", "0"]).exits(4);
    served.end();
    sandbox.run(&["get", "db", "tab\there"]).succeeds().prints("x");
    sandbox.run(&["call", "./sock", "ping"]).exits(4).mentions("is `sheaf serve` running");
}

#[test]
fn a_value_from_stdin_is_stored_up_to_the_size_of_a_message() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &["--flatrpc", "./sock"], 1);
    let put = |key: &str, value: &[u8]| sandbox.feed(&["call", "./sock", "put", key, "-"], value);
    let value = vec![b'x'; 3 << 20];
    put("large", &value).succeeds();
    sandbox.run(&["call", "./sock", "get", "large"]).succeeds().prints(&value);
    put("empty", b"").succeeds();
    sandbox.run(&["call", "./sock", "get", "empty"]).succeeds().prints("");
    put("larger", &vec![b'x'; 5 << 20]).exits(4).mentions("at most 4.0 MiB");
    put("just", &vec![b'x'; 4 << 20]).exits(4).mentions("too large");
    served.end();
    sandbox.run(&["keyspaces", "db"]).succeeds().prints("default\tflex\t2\n");
    sandbox.feed(&["put", "db", "larger", "-"], &vec![b'x'; 5 << 20]).succeeds();
    let served = Served::start(&sandbox, &["--flatrpc", "./sock"], 1);
    let ran = sandbox
        .run(&["call", "./sock", "get", "larger"])
        .exits(4)
        .mentions("reply of 5242880 bytes is too large");
    ran.mentions("`sheaf get`");
    assert_eq!(sandbox.run(&["get", "db", "larger"]).succeeds().stdout().len(), 5 << 20);
    served.end();
}

#[test]
fn a_server_takes_the_options_of_its_database() {
    let sandbox = Sandbox::new();
    for [option, wrong, why] in [
        ["--space-limit", "1", "from 1.1 to 10"],
        ["--space-limit", "much", "from 1.1 to 10"],
        ["--sync-interval", "0", "at least 1"],
        ["--background-threads", "0", "from 1 to 64"],
        ["--workers", "0", "from 1 to 64"],
    ] {
        sandbox.run(&["serve", "db", "--flatrpc", "./sock", option, wrong]).exits(2).mentions(why);
    }
    assert!(!sandbox.path("db").exists());
    let options = [
        "--flatrpc",
        "0",
        "--insecure",
        "--space-limit",
        "2.5",
        "--sync-interval",
        "20",
        "--background-threads",
        "2",
        "--bind-workers",
        "--memory",
        "16MiB",
    ];
    let served = Served::start(&sandbox, &options, 1);
    sandbox.run(&["call", &served.addresses[0], "put", "a", "1"]).succeeds();
    served.end();
    sandbox.run(&["get", "db", "a"]).succeeds().prints("1");
}

#[test]
fn tcp_needs_a_token_and_checks_it() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["serve", "db", "--flatrpc", "0"]).exits(2).mentions("every user of this machine");
    ran.mentions("--token-file FILE");
    sandbox.run(&["serve", "db", "--flatrpc", "0.0.0.0:0"]).exits(2);
    assert!(!sandbox.path("db").exists(), "a refused server created a database");
    sandbox.write("token", "open sesame\n");
    sandbox.write("wrong", "open\n");
    let served = Served::start(&sandbox, &["--flatrpc", "0.0.0.0:0", "--token-file", "token"], 1);
    let at = served.addresses[0].replace("0.0.0.0", "127.0.0.1");
    sandbox.run(&["call", &at, "ping"]).exits(4).mentions("--token-file FILE");
    sandbox.run(&["call", &at, "--token-file", "wrong", "ping"]).exits(4);
    sandbox.run(&["call", &at, "--token-file", "token", "ping"]).succeeds();
    served.end();
}
