//! # Safety gate: each unsafe item states in a few lines why it is sound
//!
//! Clippy requires notes only in the code of the present target, and none for the methods of an
//! unsafe trait or for foreign declarations. This gate reads all files, those for other systems and
//! for the scheduler of shuttle included.
//!
//! ## Invariants
//!
//! 1. A block, an `impl`, a foreign declaration and a function that is unsafe has a comment
//!    `// SAFETY:` or a section `# Safety` before its statement.
//! 2. A comment `// SAFETY:` has at most [`NOTE_LINES`] lines: a longer proof belongs into the
//!    invariants of the module, to which the comment refers.
//!
//! ## Blind spots
//!
//! Does not see whether a note is true.

use crate::prose;
use crate::source::{self, CommentKind, SourceParts};

/// Maximum number of lines of a `// SAFETY:` comment.
const NOTE_LINES: usize = 3;
/// Maximum number of lines between the begin of a statement and the word `unsafe` in it.
const STATEMENT_LINES: usize = 12;

/// Checks the notes of all files.
///
/// # Errors
///
/// Returns a list of the missing and of the long notes, or an unknown argument.
pub(crate) fn safety(words: &[String]) -> Result<(), String> {
    if !words.is_empty() {
        return Err("usage: cargo xtask safety".to_owned());
    }
    let mut problems = Vec::new();
    for (path, text) in prose::rust_files(|_| true)? {
        problems.extend(check(&text).into_iter().map(|(line, why)| format!("{path}:{line}: {why}")));
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!("{}\n{} problems with notes of unsafe code", problems.join("\n"), problems.len()))
}

/// Returns the lines of a file with a problem, each with the reason.
fn check(text: &str) -> Vec<(usize, String)> {
    let source = source::read(text);
    let is_code = |line: usize| source.code.get(line - 1).is_some_and(|code| !code.trim().is_empty());
    let mut problems = Vec::new();
    for index in 0..source.code.len() {
        let has_unsafe = unsafe_items(&source.code[index]).next().is_some();
        if has_unsafe && !has_note(&source, index) {
            problems.push((index + 1, "unsafe code without a note".to_owned()));
        }
    }
    let plain: Vec<_> = source.comments.iter().filter(|one| one.kind == CommentKind::Plain).collect();
    for (first, note) in plain.iter().enumerate().filter(|(_, note)| is_note(&note.text)) {
        let follows = |(more, next): (usize, &&&source::Comment)| {
            next.line == note.line + more && !is_code(next.line) && (more == 0 || !is_note(&next.text))
        };
        let lines =
            plain[first..].iter().enumerate().take_while(|(more, next)| follows((*more, next))).count();
        if lines > NOTE_LINES {
            problems.push((note.line, format!("a note of {lines} lines: at most {NOTE_LINES}")));
        }
    }
    problems.sort();
    problems
}

fn is_note(comment: &str) -> bool {
    comment.trim_start().starts_with("SAFETY:")
}

/// Returns the unsafe items that begin in a line of code. The types of unsafe functions and unsafe
/// attributes are none.
fn unsafe_items(code: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices("unsafe").filter_map(move |(at, word)| {
        let behind = &code[at + word.len()..];
        let is_word = !code[..at].ends_with(is_part) && !behind.starts_with(is_part);
        let item = behind.trim_start();
        let item =
            item.strip_prefix("extern").map_or(item, |rest| rest.trim_start().trim_start_matches("\"\""));
        let item = item.trim_start();
        let is_type = item.starts_with("fn(");
        (is_word && !is_type && !item.starts_with('(')).then_some(item)
    })
}

/// Returns whether a note precedes the statement with the line `index`.
fn has_note(source: &SourceParts, index: usize) -> bool {
    let mut at = index;
    for _ in 0..STATEMENT_LINES {
        if is_noted(source, at) {
            return true;
        }
        let Some(before) = at.checked_sub(1) else { return false };
        let code = source.code[before].trim_end();
        if code.is_empty() || code.ends_with([';', '{', '}']) {
            return false;
        }
        at = before;
    }
    false
}

/// Returns whether the comments and attributes directly above the line `index` have a note.
fn is_noted(source: &SourceParts, index: usize) -> bool {
    let comment_of = |index: usize| source.comments.iter().find(|comment| comment.line == index + 1);
    let is_attribute = |index: usize| source.code[index].trim_start().starts_with("#[");
    let above = (0..index).rev().take_while(|above| {
        is_attribute(*above) || comment_of(*above).is_some() && source.code[*above].trim().is_empty()
    });
    above.filter_map(comment_of).any(|comment| is_note(&comment.text) || comment.text.trim() == "# Safety")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<usize> {
        check(text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn each_unsafe_item_needs_a_note() {
        for item in [
            "    unsafe { f() };",
            "unsafe impl Send for A {}",
            "    unsafe fn mapped(&self) {}",
            "unsafe extern \"C\" {}",
            "#[cfg(windows)]\n    let a = g(\n        unsafe { f() },\n    );",
        ] {
            let line = item.lines().position(|line| line.contains("unsafe")).unwrap() + 1;
            assert_eq!(problems(&format!("{item}\n")), [line], "{item}");
            assert_eq!(
                problems(&format!("fn f() {{\n// SAFETY: of another item.\n}}\n{item}\n")),
                [line + 3]
            );
            assert_eq!(problems(&format!("// SAFETY: it is.\n{item}\n")), [0; 0], "{item}");
        }
        let documented =
            "/// Reads.\n///\n/// # Safety\n///\n/// * It is.\n#[inline]\npub unsafe fn read() {}\n";
        assert_eq!(problems(documented), [0; 0]);
    }

    #[test]
    fn types_attributes_and_texts_need_none() {
        let text = "#[unsafe(no_mangle)]\npub extern \"C\" fn f(call: unsafe extern \"C\" fn(u8), g: unsafe fn()) {}\n\
                    let unsafely = \"unsafe { }\"; // unsafe { }\n";
        assert_eq!(problems(text), [0; 0]);
    }

    #[test]
    fn a_note_is_short() {
        let note = |lines: usize| format!("// SAFETY:\n{}unsafe {{ f() }};\n", "// * One.\n".repeat(lines));
        assert_eq!((problems(&note(2)), problems(&note(3))), (vec![], vec![1]));
        assert_eq!(problems("// SAFETY: a\n// b\n// c\nunsafe { f() };\n// d\n"), [0; 0]);
    }
}
