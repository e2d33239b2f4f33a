//! # Module file: the numbered invariants and the named asserts of a Rust file

use crate::source::{self, CommentKind, SourceParts, closing_brace, is_character};

/// Assert with a message that names an invariant.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedAssert {
    /// Number of the line, from 1.
    pub(super) line: usize,
    /// Module in the message, perhaps with its parents: `node::fingerprints`.
    pub(super) module: String,
    pub(super) number: u32,
}

/// File of a crate.
#[derive(Debug)]
pub(super) struct ModuleFile {
    pub(super) path: String,
    /// Directory of the crate.
    pub(super) home: String,
    /// Path of the module: the name of the crate, then the modules below it.
    modules: Vec<String>,
    /// Numbers of the invariants in the header.
    pub(super) numbers: Vec<u32>,
    pub(super) asserts: Vec<NamedAssert>,
    /// Paths without `.rs` of the modules that are built for tests only.
    test_modules: Vec<String>,
}

impl ModuleFile {
    /// Returns whether the path of the module ends with `name`.
    pub(super) fn is_named(&self, name: &str) -> bool {
        let name: Vec<&str> = name.split("::").collect();
        self.modules.len() >= name.len() && self.modules[self.modules.len() - name.len()..] == name[..]
    }

    /// Returns whether this file declares the file at `path`, or a parent of it, for tests only.
    pub(super) fn is_test_module(&self, path: &str) -> bool {
        let below = |module: &String| path.strip_prefix(&**module);
        self.test_modules.iter().filter_map(below).any(|rest| rest == ".rs" || rest.starts_with('/'))
    }
}

/// Returns whether a path is a source file of a crate, and not a file of tests.
pub(super) fn is_module(path: &str) -> bool {
    let is_of_tests = |part: &str| part == "tests" || part == "tests.rs";
    path.starts_with("crates/")
        && path.contains("/src/")
        && path.ends_with(".rs")
        && !path.split('/').any(is_of_tests)
}

/// Reads a file.
pub(super) fn read(path: &str, text: &str) -> ModuleFile {
    let source = source::read(text);
    let (home, below) = path.split_once("/src/").unwrap_or(("", path));
    let below = below.strip_suffix(".rs").unwrap_or(below);
    let mut modules: Vec<String> = home.rsplit('/').take(1).map(str::to_owned).collect();
    modules.extend(below.split('/').filter(|part| !["lib", "mod"].contains(part)).map(str::to_owned));
    let code = source.code.join("\n");
    let tests = TestCode::find(&code);
    let folder = match below.rsplit_once('/') {
        _ if ["lib", "main"].contains(&below) => format!("{home}/src"),
        Some((folder, "mod")) => format!("{home}/src/{folder}"),
        _ => format!("{home}/src/{below}"),
    };
    ModuleFile {
        path: path.to_owned(),
        home: home.to_owned(),
        modules,
        numbers: numbers(&source),
        asserts: asserts(&code, &source, &tests),
        test_modules: tests.modules.iter().map(|name| format!("{folder}/{name}")).collect(),
    }
}

/// Returns the numbers in the section *Invariants* of the header.
fn numbers(source: &SourceParts) -> Vec<u32> {
    let (mut numbers, mut is_inside) = (Vec::new(), false);
    for line in source.comments.iter().filter(|comment| comment.kind == CommentKind::Header) {
        if line.text.starts_with(" #") {
            is_inside = line.text.trim() == "## Invariants";
        } else if is_inside
            && let Some((number, _)) = line.text.strip_prefix(' ').and_then(|text| text.split_once(". "))
        {
            numbers.extend(number.parse::<u32>());
        }
    }
    numbers
}

/// Returns the asserts with messages that name an invariant. In `code`, each string is `""`.
fn asserts(code: &str, source: &SourceParts, tests: &TestCode) -> Vec<NamedAssert> {
    let mut asserts = Vec::new();
    let mut from = 0;
    for (line, string) in &source.strings {
        let Some(at) = code[from..].find("\"\"").map(|at| from + at) else { break };
        from = at + 2;
        if let Some((module, number)) = named_invariant(string)
            && !tests.contains(at)
            && let Some(begin) = enclosing_parenthesis(code, at)
            && ["assert!", "assert_eq!", "assert_ne!"].iter().any(|name| code[..begin].ends_with(name))
        {
            asserts.push(NamedAssert { line: *line, module: module.to_owned(), number });
        }
    }
    asserts
}

/// Returns the module and the number of a message such as `list (I3): keys ascend`.
fn named_invariant(message: &str) -> Option<(&str, u32)> {
    let (module, rest) = message.split_once(" (I")?;
    let (number, sentence) = rest.split_once("): ")?;
    let is_module = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ':';
    let is_named = !module.is_empty() && module.chars().all(is_module) && !sentence.is_empty();
    Some((module, number.parse().ok()?)).filter(|_| is_named)
}

/// Returns the position of the parenthesis that opens around position `at`.
fn enclosing_parenthesis(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for index in (0..at).rev() {
        match code.as_bytes()[index] {
            _ if is_character(code, index) => {}
            b')' | b']' | b'}' => depth += 1,
            b'(' | b'[' | b'{' if depth > 0 => depth -= 1,
            b'(' => return Some(index),
            b'[' | b'{' => return None,
            _ => {}
        }
    }
    None
}

/// Parts of a file that are built for tests only.
#[derive(Debug, Default)]
struct TestCode {
    ranges: Vec<(usize, usize)>,
    /// Names of modules in files of their own.
    modules: Vec<String>,
}

impl TestCode {
    fn find(code: &str) -> TestCode {
        let mut tests = TestCode::default();
        for (at, _) in code.match_indices("#[cfg(") {
            let Some(end) = code[at..].find(']').map(|end| at + end + 1) else { break };
            let condition = &code[at..end];
            if condition.contains("test") && !condition.contains("not(test") {
                tests.add_item(code, end);
            }
        }
        tests
    }

    /// Adds the item that follows position `at`.
    fn add_item(&mut self, code: &str, at: usize) {
        let mut depth = 0;
        let is_end = |c: char| {
            depth += i32::from("([".contains(c)) - i32::from(")]".contains(c));
            depth == 0 && ";{,}".contains(c) // a comma or a closing brace ends a field
        };
        let Some(end) = code[at..].find(is_end).map(|end| at + end) else { return };
        let item = &code[at..end];
        if code[end..].starts_with('{') {
            self.ranges.push((at, closing_brace(code, end)));
        } else if code[end..].starts_with(';')
            && let Some((_, name)) = item.rsplit_once("mod ")
        {
            self.modules.push(name.trim().to_owned());
        }
    }

    fn contains(&self, at: usize) -> bool {
        self.ranges.iter().any(|(begin, end)| (*begin..*end).contains(&at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_section_invariants_is_numbered() {
        let text = "//! # A\n//! 1. no\n//!\n//! ## Invariants\n//!\n//! 1. yes, up to\n//!    2. lines\n//! 12. yes\n\
                    //!\n//! ## Costs\n//!\n//! 3. no\n/// 4. no\n";
        assert_eq!(read("crates/log/src/a.rs", text).numbers, [1, 12]);
    }

    #[test]
    fn an_assert_is_found_with_its_line() {
        let text = "fn f() {\n    g(\"a (I1): no\");\n    let c = '(';\n    assert_eq!(\n        h(\"\", '\"'), [1],\n        \
                    \"a (I2): yes\"\n    );\n    x.expect(\"a (I3): no\");\n    debug_assert!(b, \"a::b (I4): yes\");\n}";
        let found = read("crates/log/src/a.rs", text).asserts;
        let named = |line, module: &str, number| NamedAssert { line, module: module.to_owned(), number };
        assert_eq!(found, [named(6, "a", 2), named(9, "a::b", 4)]);
    }

    #[test]
    fn a_message_names_a_module_and_a_number() {
        assert_eq!(named_invariant("node::list (I12): keys ascend"), Some(("node::list", 12)));
        for other in ["list (I1)", "(I1): a", "the list (I1): a", "list (J1): a", "list (Ia): a"] {
            assert_eq!(named_invariant(other), None, "{other}");
        }
    }

    #[test]
    fn a_module_is_named_by_the_end_of_its_path() {
        let names = |path: &str, name: &str| read(path, "").is_named(name);
        assert!(names("crates/engines/flat/src/tree/list.rs", "list"));
        assert!(names("crates/engines/flat/src/tree/list/mod.rs", "tree::list"));
        assert!(names("crates/engines/flat/src/lib.rs", "flat"));
        assert!(names("crates/cli/src/main.rs", "main"));
        assert!(!names("crates/engines/flat/src/tree/list.rs", "tree"));
        assert!(!names("crates/engines/flat/src/list.rs", "tree::list"));
    }

    #[test]
    fn files_of_tests_are_no_modules() {
        assert!(is_module("crates/log/src/list.rs"));
        for path in [
            "crates/log/src/list/tests.rs",
            "crates/log/tests/src/a.rs",
            "crates/log/benches/a.rs",
            "docs/a.md",
        ] {
            assert!(!is_module(path), "{path}");
        }
    }
}
