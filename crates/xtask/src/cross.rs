//! # Cross checks: the library and the command for other targets, by the compiler only

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::shell::{cargo, step, target};

/// Targets of the support table of the README besides the host. Each needs no C compiler and no
/// linker, because nothing is linked.
pub(crate) const TARGETS: [&str; 7] = [
    "x86_64-unknown-linux-musl",
    "i686-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "s390x-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-unknown-freebsd",
    "x86_64-pc-windows-gnu",
];

/// Checks the library and the command for the targets, or for those in `words`. `--install`
/// installs the missing ones first.
///
/// # Errors
///
/// Returns a text if a target is unknown or not installed, or if a check fails.
pub(crate) fn cross(words: &[String]) -> Result<(), String> {
    let (flags, named): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| word.starts_with("--"));
    let mut chosen = Vec::new();
    for name in &named {
        let known = TARGETS.iter().find(|target| target == name);
        chosen.push(*known.ok_or_else(|| format!("no target {name}: {}", TARGETS.join(", ")))?);
    }
    if chosen.is_empty() {
        chosen = TARGETS.to_vec();
    }
    match flags.as_slice() {
        [] => {}
        [install] if *install == "--install" => install_missing(&chosen),
        other => return Err(format!("cross has no flag {other:?}; it has --install")),
    }
    let missing: Vec<&str> = chosen.iter().copied().filter(|target| !is_installed(target)).collect();
    match missing.is_empty() {
        true => check(&chosen),
        false => Err(not_installed(&missing)),
    }
}

/// Targets that `cargo xtask ci` checks: those with code of their own. `cargo xtask cross` checks
/// all.
const CI_TARGETS: [&str; 5] = [
    "i686-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-unknown-freebsd",
    "x86_64-pc-windows-gnu",
];

/// Installs missing targets of CI and checks the installed ones. A machine without rustup, or
/// without a network, checks fewer of them and prints their names.
///
/// # Errors
///
/// Returns a text if a check fails.
pub(crate) fn cross_in_ci() -> Result<(), String> {
    install_missing(&CI_TARGETS);
    let (installed, missing): (Vec<&str>, Vec<&str>) =
        CI_TARGETS.iter().partition(|target| is_installed(target));
    if !missing.is_empty() {
        println!("\n== cross: NOT CHECKED\n{}", not_installed(&missing));
    }
    if installed.is_empty() { Ok(()) } else { check(&installed) }
}

fn not_installed(missing: &[&str]) -> String {
    let all = missing.join(" ");
    format!("these targets are not installed: {all}\ninstall them by `rustup target add {all}`")
}

/// Runs clippy, which is a check with more warnings, for all targets in one command: the build
/// scripts and macros are then built once. Its target directory is its own.
fn check(targets: &[&str]) -> Result<(), String> {
    let mut words = vec!["clippy", "--locked", "-p", "sheaf-db", "-p", "sheaf-cli"];
    targets.iter().for_each(|target| words.extend(["--target", target]));
    words.extend(["--", "-D", "warnings"]);
    let mut command = cargo(&words);
    command.env("CARGO_TARGET_DIR", target("cross")).env("CARGO_INCREMENTAL", "0");
    step(command)
}

/// Asks rustup for the targets that are missing. Its failure shows in the check that follows.
fn install_missing(targets: &[&str]) {
    let missing: Vec<&str> = targets.iter().copied().filter(|target| !is_installed(target)).collect();
    if missing.is_empty() {
        return;
    }
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add"]).args(missing);
    if let Err(failure) = step(rustup) {
        println!("{failure}");
    }
}

/// Returns whether the compiler has the standard library of a target.
fn is_installed(target: &str) -> bool {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", target]).stderr(Stdio::null());
    let printed = command.output().ok().and_then(|output| String::from_utf8(output.stdout).ok());
    printed.is_some_and(|dir| PathBuf::from(dir.trim()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_target_is_named_with_the_command_that_installs_it() {
        assert!(!is_installed("no-such-target"));
        let text = not_installed(&["a", "b"]);
        assert!(text.contains("not installed: a b") && text.contains("rustup target add a b"), "{text}");
        let refused = cross(&["no-such-target".to_owned()]).unwrap_err();
        assert!(refused.contains("no target no-such-target"), "{refused}");
    }
}
