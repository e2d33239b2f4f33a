//! # xtask: `cargo xtask ci` and all other commands of the project
//!
//! Defines all checks of the project; `.ci/run` is only a wrapper. Has no dependencies, so that it
//! builds quickly.

//
// A tool: files, processes and time are its work.
#![allow(clippy::disallowed_methods)]

mod bindings;
mod bindings_python;
mod campaign;
mod ci;
mod cross;
mod emulate;
mod field;
mod filesystems;
mod invariants;
mod layers;
mod ledger;
mod names;
mod prose;
mod release;
mod safety;
mod seeded;
mod shell;
mod sizes;
mod source;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask ci                                  all checks of CI
cargo xtask field [--form short|full|long] [--only A,B] [--engine A,B] [--list]
    loads of real programs on the real disk, with the required value of each figure: short takes 3 minutes at most,
    full has the sizes of the required values (about an hour, 12 GB), long is ten times as long
cargo xtask bindings [--profile NAME] [--skip-leveldb] [--skip-header] [--update | --gets | --install PREFIX]
    libsheaf and libleveldb_sheaf: builds them, and runs their C tests plain, with sanitizers and under valgrind (takes
    a C compiler); --update writes sheaf.h, --gets compares gets in C and Rust, --install copies library and header
cargo xtask cross [--install] [TARGET ...]      clippy of the library and the command for other systems and processors;
                                                --install lets rustup install missing targets
cargo xtask emulate [--suites] [TARGET ...]     golden databases and unit tests of the formats on aarch64, s390x (big-endian)
                                                and i686, and of Windows under Wine: takes qemu, Wine and cross compilers,
                                                and prints their packages; --suites also runs conformance and model of all
                                                engines (hours), under Wine of flat and flex
cargo xtask prose [--update | --totals | --list PATH]
    the language of comments, documents and messages: no count of crates/xtask/prose.ratchet may grow; --update records
    smaller ones, --totals prints the counts of each crate, --list the violations of some files
cargo xtask bindings-python [--quick]           builds the wheel of the Python bindings, installs it in a clean environment,
                                                runs its tests, and checks its types; takes Python 3.11 or later;
                                                --quick, as in CI: without optimization, and without checks of types
cargo xtask invariants                          each numbered invariant of a module header has an assert that names it,
                                                or a row in docs/invariants.md with the reason
cargo xtask safety                              each unsafe block, impl and function has a note of at most three lines
cargo xtask sizes [--totals]                    files have at most 720 lines, functions at most 80 (99 of 100 at most 50), and
                                                folders at most 20 Rust files; --totals prints the largest
cargo xtask layers [--list]                     imports within the store that point upwards, at most 8; --list prints them
cargo xtask names                               no type name has two meanings in neighbouring crates or in the public interface
cargo xtask filesystems [FILTER ...]            the suites that the filters name (delsm) on XFS and on Btrfs, each in a
                                                file mounted for it: takes root, xfsprogs, btrfs-progs
cargo xtask golden                              makes the golden databases of the format that may still change
cargo xtask release --dry-run [--no-verify]     packages of all published crates, each built by itself, without an upload
cargo xtask seeded [--only A,B] [--list]        the test of each seeded bug of the commit window, in a copy of the tracked
                                                files: each test must pass without the bug and fail with it
cargo xtask campaign [--minutes N] [--cases N] [--turns N] [--only A,B] [--engine A,B] [--seed N] [--workers N]
    harnesses in turn, each on every engine, until the time is over or each has its cases or turns;
    totals go to docs/reliability/LEDGER.md after every turn
    A, B of: crash short loaded kill errors model corrupt repair linearizable fuzz interleavings sanitizers crowded
    short, loaded: 64 turns are every short workload, on an empty database and a loaded one; errors: a turn is a workload";

/// Makes the golden databases of the present format.
fn golden() -> Result<(), String> {
    let words = ["test", "--locked", "-p", "sheaf-testkit", "--test", "golden", "--"];
    shell::step(shell::cargo(&[&words[..], &["--ignored", "--nocapture", "make_golden"]].concat()))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        Some("ci") if words.len() == 1 => ci::run(),
        _ if words.iter().any(|word| word == "--help" || word == "-h") => {
            println!("{HELP}");
            Ok(())
        }
        Some("bindings-python") => bindings_python::bindings_python(&words[1..]),
        Some("cross") => cross::cross(&words[1..]),
        Some("emulate") => emulate::emulate(&words[1..]),
        Some("field") => field::field(&words[1..]),
        Some("bindings") => bindings::bindings(&words[1..]),
        Some("invariants") => invariants::invariants(&words[1..]),
        Some("safety") => safety::safety(&words[1..]),
        Some("sizes") => sizes::sizes(&words[1..]),
        Some("layers") => layers::layers(&words[1..]),
        Some("names") => names::names(&words[1..]),
        Some("prose") => prose::prose(&words[1..]),
        Some("golden") if words.len() == 1 => golden(),
        Some("release") => release::release(&words[1..]),
        Some("filesystems") => filesystems::filesystems(&words[1..]),
        Some("seeded") => seeded::seeded(&words[1..]),
        Some("campaign") => campaign::run(&words[1..]),
        _ => Err(HELP.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
