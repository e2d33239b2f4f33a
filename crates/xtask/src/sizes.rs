//! # Sizes gate: files, functions and folders that a reader can survey
//!
//! Measures all Rust files that git tracks, tests included, and compares them with fixed limits.
//!
//! ## Invariants
//!
//! 1. A file has at most [`FILE_LINES`] lines.
//! 2. A function has at most [`FUNCTION_LINES`] lines, and 99 of 100 functions have at most
//!    [`USUAL_FUNCTION_LINES`]. Its lines are those from the word `fn` to the closing brace.
//! 3. A folder has at most [`FOLDER_FILES`] Rust files, without those in folders below it.
//!
//! ## Blind spots
//!
//! Folders of other files are not limited: docs/decisions is a numbered list.

use std::collections::BTreeMap;

use crate::prose;
use crate::source::{self, closing_brace, is_character};

/// Maximum number of lines of a file.
const FILE_LINES: usize = 720;
/// Maximum number of lines of a function.
const FUNCTION_LINES: usize = 80;
/// Maximum number of lines of 99 of 100 functions.
const USUAL_FUNCTION_LINES: usize = 50;
/// Maximum number of Rust files in a folder.
const FOLDER_FILES: usize = 20;
/// Number of the largest files and functions that `--totals` prints.
const LISTED: usize = 10;

/// Size in lines, and the place in the form `path` or `path:line name`.
type Measured = (usize, String);

/// Sizes of all files.
#[derive(Debug, Default)]
struct SourceSizes {
    files: Vec<Measured>,
    functions: Vec<Measured>,
    /// Number of files in each folder.
    folders: BTreeMap<String, usize>,
}

/// Checks the sizes of all files. `--totals` prints the largest ones.
///
/// # Errors
///
/// Returns a list of the sizes above a limit, or an unknown argument.
pub(crate) fn sizes(words: &[String]) -> Result<(), String> {
    let is_list = match words {
        [] => false,
        [word] if word == "--totals" => true,
        _ => return Err("usage: cargo xtask sizes [--totals]".to_owned()),
    };
    let mut sizes = SourceSizes::default();
    for (path, text) in prose::rust_files(|_| true)? {
        sizes.add(&path, &text);
    }
    if is_list {
        sizes.print();
    }
    let problems = sizes.problems();
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!("{}\n{} sizes above a limit", problems.join("\n"), problems.len()))
}

impl SourceSizes {
    /// Measures a file.
    fn add(&mut self, path: &str, text: &str) {
        self.files.push((text.lines().count(), path.to_owned()));
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *self.folders.entry(folder.to_owned()).or_default() += 1;
        let functions = functions(&source::read(text).code.join("\n"));
        let told = functions.into_iter().map(|(line, lines, name)| (lines, format!("{path}:{line} {name}")));
        self.functions.extend(told);
    }

    /// Returns the number of lines that 99 of 100 functions do not exceed.
    fn usual_function_lines(&self) -> usize {
        let mut lines: Vec<usize> = self.functions.iter().map(|(lines, _)| *lines).collect();
        lines.sort_unstable();
        lines.get((lines.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0)
    }

    fn problems(&self) -> Vec<String> {
        let above = |sizes: &[Measured], limit: usize| {
            let told = |(lines, place): &Measured| format!("{place}: {lines} lines, at most {limit}");
            sizes.iter().filter(|(lines, _)| *lines > limit).map(told).collect::<Vec<_>>()
        };
        let mut problems = above(&self.files, FILE_LINES);
        problems.extend(above(&self.functions, FUNCTION_LINES));
        let usual = self.usual_function_lines();
        if usual > USUAL_FUNCTION_LINES {
            problems.push(format!(
                "99 of 100 functions have up to {usual} lines, at most {USUAL_FUNCTION_LINES}"
            ));
        }
        for (folder, count) in self.folders.iter().filter(|(_, count)| **count > FOLDER_FILES) {
            problems.push(format!("{folder}: {count} files, at most {FOLDER_FILES}"));
        }
        problems
    }

    fn print(&self) {
        let folders: Vec<Measured> =
            self.folders.iter().map(|(folder, count)| (*count, folder.clone())).collect();
        for (title, sizes) in [("files", &self.files), ("functions", &self.functions), ("folders", &folders)]
        {
            println!("{} {title}, the largest:", sizes.len());
            let mut largest: Vec<&Measured> = sizes.iter().collect();
            largest.sort_unstable_by(|a, b| b.cmp(a));
            largest.iter().take(LISTED).for_each(|(size, place)| println!("{size:>8} {place}"));
        }
        println!("99 of 100 functions have at most {} lines", self.usual_function_lines());
    }
}

/// Returns the functions with a body in code without comments and strings: the line of each, its
/// number of lines and its name.
fn functions(code: &str) -> Vec<(usize, usize, String)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut functions = Vec::new();
    for (at, _) in code.match_indices("fn ").filter(|(at, _)| !code[..*at].ends_with(is_part)) {
        let behind = code[at + 3..].trim_start();
        let name = &behind[..behind.find(|c| !is_part(c)).unwrap_or(behind.len())];
        if let (false, Some(begin)) = (name.is_empty(), body(code, at)) {
            let line = 1 + code[..at].matches('\n').count();
            let lines = 1 + code[at..closing_brace(code, begin)].matches('\n').count();
            functions.push((line, lines, name.to_owned()));
        }
    }
    functions
}

/// Returns the position of the brace that begins the body of the function at `at`; `None` if it
/// has no body.
fn body(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (index, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            _ if is_character(code, index) => {}
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(index),
            b';' | b'}' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(String, String)]) -> Vec<String> {
        let mut sizes = SourceSizes::default();
        files.iter().for_each(|(path, text)| sizes.add(path, text));
        sizes.problems()
    }

    /// Returns a function of `lines` lines.
    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_is_measured_from_its_name_to_its_closing_brace() {
        let code = "trait A {\n    fn a(b: [u8; 4]);\n}\nconst fn b<F: Fn(u8)>(c: fn(u8)) -> [u8; 2]\n\
                    where\n    F: B,\n{\n    '}';\n    fn d() {}\n}\nlet fn_e = 1;\n";
        let told = functions(code);
        assert_eq!(told, [(4, 7, "b".to_owned()), (9, 1, "d".to_owned())]);
    }

    #[test]
    fn a_file_or_function_above_its_limit_is_a_problem() {
        let file = |text: String| [("crates/a.rs".to_owned(), text)];
        let usual = function("a", 3).repeat(100);
        assert_eq!(problems(&file("\n".repeat(FILE_LINES))), [""; 0]);
        let found = problems(&file("\n".repeat(FILE_LINES + 1)));
        assert_eq!(found, ["crates/a.rs: 721 lines, at most 720"]);
        assert_eq!(problems(&file(format!("{usual}{}", function("b", FUNCTION_LINES)))), [""; 0]);
        let found = problems(&file(format!("{usual}{}", function("b", FUNCTION_LINES + 1))));
        assert_eq!(found, ["crates/a.rs:301 b: 81 lines, at most 80"]);
    }

    #[test]
    fn two_of_a_hundred_functions_above_the_usual_limit_are_a_problem() {
        let (usual, long) = (function("a", 3), function("b", USUAL_FUNCTION_LINES + 1));
        let file = |longer: usize| {
            let text = format!("{}{}", usual.repeat(100 - longer), long.repeat(longer));
            [("crates/a.rs".to_owned(), text)]
        };
        assert_eq!(problems(&file(1)), [""; 0]);
        assert_eq!(problems(&file(2)), ["99 of 100 functions have up to 51 lines, at most 50"]);
    }

    #[test]
    fn a_folder_above_its_limit_is_a_problem() {
        let files = |count: usize, folder: &str| -> Vec<(String, String)> {
            (0..count).map(|number| (format!("{folder}/{number}.rs"), String::new())).collect()
        };
        let both = [files(FOLDER_FILES, "crates/a"), files(FOLDER_FILES, "crates/a/b")].concat();
        assert_eq!(problems(&both), [""; 0]);
        let found = problems(&files(FOLDER_FILES + 1, "crates/a"));
        assert_eq!(found, ["crates/a: 21 files, at most 20"]);
    }
}
