//! # Names gate: a type name has one meaning for a reader of neighbouring crates
//!
//! A reader of a crate also reads the crates that it depends on. A name that two of them define
//! leaves open which of the two a sentence is about.
//!
//! ## Invariants
//!
//! 1. No two types of a crate, or of a crate and one of its dependencies, share a name.
//! 2. No two public types of the workspace share a name.
//!
//! [`SHARED`] has the names that may be shared: conventions of Rust, and types with one
//! implementation for each operating system.
//!
//! ## Blind spots
//!
//! Types of tests, types that a macro defines, and associated types.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::prose;
use crate::shell::project_root;
use crate::source;

/// Names that several types may have.
const SHARED: [&str; 9] = [
    "AtomicWide",    // one implementation for the scheduler of the interleaving tests
    "Error",         // convention: each library crate has one
    "FileLockGuard", // an implementation for each system
    "Futex",         // as `AtomicWide`
    "Guide",         // holder of a page of the guide whose examples are tested
    "IpcServer",     // an implementation for each system
    "RealDisk",      // an implementation for each system
    "Result",        // convention: each error type has one
    "Sealed",        // convention: a trait that other crates cannot implement
];
/// Words that define a type.
const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "union", "type"];

/// A type of the workspace.
#[derive(Debug)]
struct TypeDefinition {
    name: String,
    /// Index of its crate.
    owner: usize,
    is_public: bool,
    /// File and line.
    location: String,
}

/// A crate of the workspace.
#[derive(Debug)]
struct WorkspaceCrate {
    /// Folder, relative to the root, with a slash at the end.
    folder: String,
    package: String,
    dependencies: BTreeSet<String>,
}

/// Checks the names of all types.
///
/// # Errors
///
/// Returns the shared names with the locations of their types, or an unknown argument.
pub(crate) fn names(words: &[String]) -> Result<(), String> {
    if !words.is_empty() {
        return Err("usage: cargo xtask names".to_owned());
    }
    let crates = workspace_crates()?;
    let mut types = Vec::new();
    for (path, text) in prose::rust_files(|path| path.contains("/src/") && !is_test(path))? {
        let owner = crates.iter().position(|one| path.starts_with(&format!("{}src/", one.folder)));
        let Some(owner) = owner else { continue };
        types.extend(defined_types(&text).into_iter().map(|(name, is_public, line)| TypeDefinition {
            name,
            owner,
            is_public,
            location: format!("{path}:{line}"),
        }));
    }
    let problems = shared_names(&crates, &types);
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!("{}\n{} names have several types", problems.join("\n"), problems.len()))
}

/// Returns whether a file only has tests.
fn is_test(path: &str) -> bool {
    let stem = path.trim_end_matches(".rs");
    stem.split('/').any(|part| part == "tests" || part == "interleavings")
}

/// Returns the crates below `crates/` and `bindings/`.
fn workspace_crates() -> Result<Vec<WorkspaceCrate>, String> {
    let sources = prose::files()?.into_iter().filter(|path| path.contains("/src/"));
    let folders: BTreeSet<String> =
        sources.filter_map(|path| path.find("/src/").map(|end| path[..=end].to_owned())).collect();
    let mut crates = Vec::new();
    for folder in folders {
        let path = project_root().join(&folder).join("Cargo.toml");
        let Ok(manifest) = fs::read_to_string(&path) else { continue };
        let (package, dependencies) = parse_manifest(&manifest);
        crates.push(WorkspaceCrate { folder, package, dependencies });
    }
    Ok(crates)
}

/// Returns the name of a package and the names of its dependencies, those for tests excluded.
fn parse_manifest(manifest: &str) -> (String, BTreeSet<String>) {
    let (mut section, mut package, mut dependencies) = ("", String::new(), BTreeSet::new());
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.trim();
        if section == "package" && key == "name" {
            package = value.trim().trim_matches('"').to_owned();
        } else if section == "dependencies" || section.ends_with(".dependencies") {
            dependencies.insert(key.trim_end_matches(".workspace").to_owned());
        }
    }
    (package, dependencies)
}

/// Returns the types that a file defines outside of modules for tests: name, whether it is public,
/// and line.
fn defined_types(text: &str) -> Vec<(String, bool, usize)> {
    let code = source::read(text).code;
    let tests = code.windows(2).position(|pair| {
        pair[0].trim() == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].trim_end().ends_with('{')
    });
    let end = tests.unwrap_or(code.len());
    let found = code[..end].iter().enumerate().filter_map(|(index, line)| {
        let (name, is_public) = type_name(line)?;
        Some((name.to_owned(), is_public, index + 1))
    });
    found.collect()
}

/// Returns the name of the type that a line defines, and whether it is public.
fn type_name(line: &str) -> Option<(&str, bool)> {
    let mut words = line.split_whitespace().peekable();
    let is_public = words.peek() == Some(&"pub");
    while words.next_if(|word| word.starts_with("pub") || *word == "unsafe" || word.ends_with(')')).is_some()
    {
    }
    let keyword = words.next().filter(|word| KEYWORDS.contains(word))?;
    if keyword == "type" && line.starts_with(' ') {
        return None; // an associated type
    }
    let name = words.next()?.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    name.starts_with(char::is_uppercase).then_some((name, is_public))
}

/// Returns the names that break an invariant, with the locations of their types.
fn shared_names(crates: &[WorkspaceCrate], types: &[TypeDefinition]) -> Vec<String> {
    let mut by_name: BTreeMap<&str, Vec<&TypeDefinition>> = BTreeMap::new();
    for one in types.iter().filter(|one| !SHARED.contains(&one.name.as_str())) {
        by_name.entry(&one.name).or_default().push(one);
    }
    let depends = |a: usize, b: usize| crates[a].dependencies.contains(&crates[b].package);
    let is_shared = |a: &TypeDefinition, b: &TypeDefinition| {
        let is_near = a.owner == b.owner || depends(a.owner, b.owner) || depends(b.owner, a.owner);
        is_near || (a.is_public && b.is_public)
    };
    let mut problems = Vec::new();
    for (name, group) in by_name {
        let is_problem = group
            .iter()
            .enumerate()
            .any(|(at, one)| group[at + 1..].iter().any(|other| is_shared(one, other)));
        if is_problem {
            let locations: Vec<&str> = group.iter().map(|one| one.location.as_str()).collect();
            problems.push(format!("{name}: {}", locations.join(", ")));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFESTS: [&str; 3] = [
        "[package]\nname = \"low\"\n",
        "[package]\nname = \"high\"\n[dependencies]\nlow.workspace = true\n[dev-dependencies]\nother = \"1\"\n",
        "[package]\nname = \"other\"\n[target.'cfg(unix)'.dependencies]\n",
    ];

    fn problems(sources: [&str; 3]) -> Vec<String> {
        let crates: Vec<WorkspaceCrate> = MANIFESTS
            .map(|manifest| {
                let (package, dependencies) = parse_manifest(manifest);
                WorkspaceCrate { folder: String::new(), package, dependencies }
            })
            .into();
        let types = sources.iter().enumerate().flat_map(|(owner, text)| {
            defined_types(text).into_iter().map(move |(name, is_public, line)| TypeDefinition {
                name,
                owner,
                is_public,
                location: format!("{owner}:{line}"),
            })
        });
        shared_names(&crates, &types.collect::<Vec<_>>())
    }

    #[test]
    fn a_name_of_a_dependency_is_a_problem() {
        assert_eq!(problems(["struct Page;", "\npub(crate) enum Page {}", ""]), ["Page: 0:1, 1:2"]);
        assert_eq!(problems(["struct Page;", "", "trait Page {}"]), [""; 0], "no dependency");
    }

    #[test]
    fn two_types_of_a_crate_and_two_public_types_are_problems() {
        assert_eq!(problems(["struct A;\ntype A = u8;", "", ""]), ["A: 0:1, 0:2"]);
        assert_eq!(problems(["pub struct A;", "", "pub union A {}"]), ["A: 0:1, 2:1"]);
    }

    #[test]
    fn names_in_tests_and_shared_names_are_no_problems() {
        let tests = "struct A;\n#[cfg(test)]\nmod tests {\n    struct A;\n}";
        assert_eq!(problems([tests, "", ""]), [""; 0]);
        assert_eq!(problems(["pub enum Error {}", "pub enum Error {}", ""]), [""; 0]);
        assert_eq!(problems(["struct A;\nimpl B {\n    type A = u8;\n}", "", ""]), [""; 0]);
    }
}
