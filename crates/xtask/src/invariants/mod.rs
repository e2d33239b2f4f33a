//! # Invariants gate: each numbered invariant has an assert or a reason
//!
//! A module header numbers its invariants. An assert that checks one names it in its message. The
//! table `docs/invariants.md` states for each other one why it has no assert.
//!
//! ## Picture
//!
//! ```text
//! files ─ source::read ─ module_file::read ─┬─ numbers of the header ──────┐
//!                                           └─ "MODULE (I3): .." in asserts ┼─ check ─> problems
//! docs/invariants.md ─ table::read ─────────── rows ────────────────────────┘
//! ```
//!
//! ## Invariants
//!
//! 1. Each invariant of a library crate has an assert or a row, and never both.
//! 2. Each assert and each row names an invariant that exists.
//!
//! ## Blind spots
//!
//! Does not see whether an assert checks the property that it names.

mod module_file;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::prose;
use crate::shell::project_root;
use module_file::ModuleFile;

/// Path of the table below the root.
const TABLE: &str = "docs/invariants.md";
/// Crates in which each invariant needs an assert or a row: directories below `crates/`.
const LIBRARY: [&str; 15] = [
    "platform",
    "log",
    "engine",
    "store",
    "flexspace",
    "engines/flat",
    "engines/flex",
    "engines/cedrus",
    "engines/kreon",
    "engines/delsm",
    "flatrpc",
    "sheaf",
    "client",
    "server",
    "cli",
];

/// Invariant: the path of its file, and its number.
type InvariantId<'a> = (&'a str, u32);

/// Compares the invariants of all files with the asserts and the table.
///
/// # Errors
///
/// Returns a list of the differences, or an unknown argument.
pub(crate) fn invariants(words: &[String]) -> Result<(), String> {
    if !words.is_empty() {
        return Err("usage: cargo xtask invariants".to_owned());
    }
    let files = prose::rust_files(module_file::is_module)?;
    let table = fs::read_to_string(project_root().join(TABLE)).map_err(|e| format!("{TABLE}: {e}"))?;
    let problems = check(&files, &table);
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!("{}\n{} problems with invariants", problems.join("\n"), problems.len()))
}

/// Returns the differences between the files, as paths and texts, and the table.
fn check(files: &[(String, String)], table: &str) -> Vec<String> {
    let files: Vec<ModuleFile> = files.iter().map(|(path, text)| module_file::read(path, text)).collect();
    let is_test = |file: &ModuleFile| files.iter().any(|other| other.is_test_module(&file.path));
    let files: Vec<&ModuleFile> = files.iter().filter(|file| !is_test(file)).collect();
    let mut problems = Vec::new();
    let mut known = BTreeSet::new();
    for file in &files {
        for number in &file.numbers {
            if !known.insert((&*file.path, *number)) {
                problems.push(format!("{}: two invariants have the number {number}", file.path));
            }
        }
    }
    let asserted = resolve_asserts(&files, &mut problems);
    let (rows, wrong) = table::read(table);
    problems.extend(wrong.into_iter().map(|(line, why)| format!("{TABLE}:{line}: {why}")));
    let mut reasons: BTreeMap<InvariantId<'_>, usize> = BTreeMap::new();
    for row in &rows {
        let id = (&*row.path, row.number);
        let why = match reasons.insert(id, row.line) {
            Some(first) => format!("repeats line {first}"),
            None if asserted.contains(&id) => "is asserted: remove the row".to_owned(),
            None if !known.contains(&id) => "does not exist".to_owned(),
            None => continue,
        };
        problems.push(format!("{TABLE}:{}: I{} of {} {why}", row.line, row.number, row.path));
    }
    for (path, number) in &known {
        let id = (*path, *number);
        if is_library(path) && !asserted.contains(&id) && !reasons.contains_key(&id) {
            problems.push(format!("{path}: I{number} has no assert and no row in {TABLE}"));
        }
    }
    problems
}

/// Returns the invariants that asserts name. An assert belongs to the invariant of its own file, or
/// else to every module of its crate with a path that ends with the name.
fn resolve_asserts<'a>(files: &[&'a ModuleFile], problems: &mut Vec<String>) -> BTreeSet<InvariantId<'a>> {
    let mut asserted = BTreeSet::new();
    for file in files {
        for named in &file.asserts {
            let is_meant = |other: &&&ModuleFile| {
                other.home == file.home
                    && other.is_named(&named.module)
                    && other.numbers.contains(&named.number)
            };
            let mut meant: Vec<&ModuleFile> = files.iter().filter(is_meant).copied().collect();
            if meant.iter().any(|other| other.path == file.path) {
                meant.retain(|other| other.path == file.path);
            }
            if meant.is_empty() && is_library(&file.path) {
                let (path, line) = (&file.path, named.line);
                problems.push(format!("{path}:{line}: {} has no I{}", named.module, named.number));
            }
            asserted.extend(meant.iter().map(|other| (&*other.path, named.number)));
        }
    }
    asserted
}

/// Returns whether a file belongs to a library crate.
fn is_library(path: &str) -> bool {
    let below = path.strip_prefix("crates/").unwrap_or_default();
    LIBRARY.iter().any(|dir| below.strip_prefix(dir).is_some_and(|rest| rest.starts_with("/src/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "//! # A\n//!\n//! ## Invariants\n//!\n//! 1. One is\n//!    one.\n//! 2. Two.\n\n";

    fn problems(files: &[(&str, &str)], rows: &str) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        check(&files, &format!("| module | number | why it is not asserted |\n|---|---|---|\n{rows}"))
    }

    #[test]
    fn each_invariant_needs_an_assert_or_a_row() {
        let one = format!("{HEADER}fn f() {{ assert!(a(b), \"list (I1): x\"); }}");
        let path = "crates/log/src/list.rs";
        let row = "| `crates/log/src/list.rs` | 2 | needs a walk |\n";
        assert_eq!(problems(&[(path, &one)], row), [""; 0]);
        let missing = problems(&[(path, &one)], "");
        assert_eq!(missing, ["crates/log/src/list.rs: I2 has no assert and no row in docs/invariants.md"]);
        assert_eq!(problems(&[("crates/bench/src/list.rs", HEADER)], ""), [""; 0], "a tool");
    }

    #[test]
    fn a_row_that_is_not_needed_is_a_problem() {
        let all =
            format!("{HEADER}fn f() {{ assert!(a, \"list (I1): x\"); assert_eq!(a, b, \"list (I2): y\") }}");
        let found = problems(
            &[("crates/log/src/list.rs", &all)],
            "| crates/log/src/list.rs | 2 | a |\n| crates/log/src/list.rs | 3 | b |\n| crates/log/src/list.rs | 3 | c |\n",
        );
        let told = ["3: I2 of crates/log/src/list.rs is asserted: remove the row"]
            .into_iter()
            .chain(["4: I3 of crates/log/src/list.rs does not exist"])
            .chain(["5: I3 of crates/log/src/list.rs repeats line 4"]);
        assert_eq!(found, told.map(|told| format!("docs/invariants.md:{told}")).collect::<Vec<_>>());
    }

    #[test]
    fn an_assert_may_be_in_another_file_of_the_crate_but_must_name_an_invariant() {
        let other = "fn f() {\n    debug_assert!(\n        a,\n        \"tree::list (I1): x\"\n    );\n}\n";
        let files =
            [("crates/engines/flat/src/tree/list/mod.rs", HEADER), ("crates/engines/flat/src/a.rs", other)];
        let row = "| crates/engines/flat/src/tree/list/mod.rs | 2 | needs a walk |\n";
        assert_eq!(problems(&files, row), [""; 0]);
        let unknown = other.replace("I1", "I9");
        let files = [files[0], ("crates/engines/flat/src/a.rs", &unknown)];
        let found = problems(&files, row);
        assert!(
            found.iter().any(|told| told == "crates/engines/flat/src/a.rs:4: tree::list has no I9"),
            "{found:?}"
        );
        let files = [files[0], ("crates/log/src/a.rs", other)];
        assert!(problems(&files, row).len() == 2, "the assert of another crate does not count");
    }

    #[test]
    fn asserts_of_tests_do_not_count() {
        let inline =
            format!("{HEADER}#[cfg(test)]\nmod tests {{ fn f() {{ assert!(a, \"list (I1): x\"); }} }}\n");
        let row = "| crates/log/src/list.rs | 2 | needs a walk |\n";
        assert_eq!(problems(&[("crates/log/src/list.rs", &inline)], row).len(), 1);
        let parent = format!("{HEADER}#[cfg(all(test, shuttle))]\nmod model;\n");
        let model = "//! ## Invariants\n//! 1. Of a model.\nfn f() { assert!(a, \"list (I1): x\"); }";
        let files = [("crates/log/src/list.rs", &*parent), ("crates/log/src/list/model.rs", model)];
        assert_eq!(problems(&files, row).len(), 1);
    }

    #[test]
    fn a_number_is_used_once() {
        let twice = HEADER.replace("2. Two", "1. Two");
        let found = problems(&[("crates/bench/src/list.rs", &twice)], "");
        assert_eq!(found, ["crates/bench/src/list.rs: two invariants have the number 1"]);
    }
}
