//! Passes the commit of the sources to `sheaf --version`: from git, or from the file that
//! `cargo package` adds. Unknown in other copies of the sources.

#![allow(clippy::disallowed_methods, reason = "a build script reads files and runs git")]

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let commit = packaged().or_else(from_git).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=SHEAF_COMMIT={commit}");
}

fn packaged() -> Option<String> {
    let path = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR")?).join(".cargo_vcs_info.json");
    let info = std::fs::read_to_string(path).ok()?;
    let commit = info.split("\"sha1\": \"").nth(1)?.get(..12)?;
    Some(commit.to_owned())
}

fn from_git() -> Option<String> {
    // The log of HEAD changes with each commit and checkout.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).is_file() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
