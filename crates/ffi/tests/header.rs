//! # Header: `include/sheaf.h` is the one that cbindgen generates from this crate
//!
//! With the variable `SHEAF_UPDATE_HEADER` the test writes the header.

// A test of files of the project.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the header for the present state of the crate.
fn generated() -> String {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_config(config).with_crate(root()).generate().unwrap();
    let mut text = Vec::new();
    bindings.write(&mut text);
    // The crate takes handles as shared references and locks them itself. C knows only handles.
    let text = String::from_utf8(text).unwrap();
    ["db", "options", "keyspace", "keyspace_options", "batch", "ticket", "snapshot", "iter", "reader"]
        .into_iter()
        .chain(["writer", "loader", "loader_options", "owner", "new_value", "value", "error"])
        .chain(["transaction", "changes", "change_cursor"])
        .fold(text, |text, handle| {
            text.replace(&format!("const sheaf_{handle} *"), &format!("sheaf_{handle} *"))
        })
}

/// Returns the files of a directory and of those below it.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn committed_header_is_the_generated_one() {
    let path: PathBuf = root().join("include/sheaf.h");
    let text = generated();
    if std::env::var_os("SHEAF_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let line = text.lines().zip(committed.lines()).position(|(new, old)| new != old);
    assert!(
        text == committed,
        "sheaf.h differs from the generated header at line {:?}: run `cargo xtask bindings --update`",
        line.map(|line| line + 1)
    );
}

#[test]
fn every_function_is_in_the_header_and_states_its_thread_rules() {
    let header = generated();
    let mut functions = 0;
    for path in sources(&root().join("src")) {
        let source = std::fs::read_to_string(&path).unwrap();
        for part in source.split("#[unsafe(no_mangle)]\n").skip(1) {
            let name = part.split("fn ").nth(1).and_then(|rest| rest.split(['(', '<']).next()).unwrap();
            assert!(header.contains(&format!("{name}(")), "{name} is missing in the header");
            functions += 1;
        }
        let documented = source.matches("/// Threads:").count();
        let exported = source.matches("#[unsafe(no_mangle)]\n").count();
        assert_eq!(documented, exported, "functions without thread rules in {}", path.display());
    }
    assert!(functions > 100, "{functions} functions");
}
