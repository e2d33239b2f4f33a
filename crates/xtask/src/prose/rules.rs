//! # Rules: violations of the language rules in a file
//!
//! Implements the rules of the section *Language* of the style guide that a program can check.

use std::fmt;

use crate::source::{self, Comment, CommentKind, SourceParts};

/// Words of the project's old dialect. Other projects use 0 to 2.3 of them in 1,000 words.
const DIALECT: [&str; 17] = [
    "what",
    "whatever",
    "who",
    "whoever",
    "whom",
    "whose",
    "nobody",
    "somebody",
    "anybody",
    "stand",
    "stands",
    "stood",
    "standing",
    "goes",
    "gone",
    "beside",
    "meanwhile",
];
/// Dialect phrases of several words.
const PHRASES: [[&str; 3]; 1] = [["in", "place", "of"]];
const PAIRS: [[&str; 2]; 4] = [["let", "go"], ["lets", "go"], ["letting", "go"], ["so", "manieth"]];
/// Maximum number of dialect words in 1,000 words of a new text.
const ALLOWED: usize = 3;
/// First words that a doc comment must not have.
const STARTS: [&str; 8] = ["What", "Whose", "Who", "Of", "It", "Its", "Those", "That"];
/// Longest comment line in columns.
const COLUMNS: usize = 100;
/// Longest module header in lines.
const HEADER_LINES: usize = 30;
/// Minimum number of words of a string that counts as prose.
const MESSAGE_WORDS: usize = 4;

/// Kind of a violation; the order is that of the columns of the ratchet file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProseRule {
    DialectWord,
    DocStart,
    WideLine,
    MissingErrors,
    LongHeader,
}

/// Violations of one file, by rule, and its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProseCounts {
    pub(super) words: usize,
    pub(super) by_rule: [usize; 5],
}

impl ProseCounts {
    pub(super) const HEADINGS: &str = "  words  dialect /1000  start   wide errors header";

    pub(super) fn add(&mut self, other: &ProseCounts) {
        self.words += other.words;
        self.by_rule.iter_mut().zip(other.by_rule).for_each(|(sum, more)| *sum += more);
    }
}

impl fmt::Display for ProseCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [dialect, start, wide, errors, header] = self.by_rule;
        let rate = dialect as f64 * 1000.0 / self.words.max(1) as f64;
        let words = self.words;
        write!(f, "{words:>7} {dialect:>8} {rate:>5.1} {start:>6} {wide:>6} {errors:>6} {header:>6}")
    }
}

/// Violations of one file with their lines.
#[derive(Debug, Default)]
pub(super) struct FileViolations {
    words: usize,
    rules: Vec<ProseRule>,
    pub(super) list: Vec<(usize, String)>,
}

impl FileViolations {
    pub(super) fn counts(&self) -> ProseCounts {
        let mut broken = [0; 5];
        self.rules.iter().for_each(|&rule| broken[rule as usize] += 1);
        ProseCounts { words: self.words, by_rule: broken }
    }

    fn add(&mut self, rule: ProseRule, line: usize, told: impl Into<String>) {
        self.rules.push(rule);
        self.list.push((line, told.into()));
    }

    /// Counts words and dialect words of a text.
    fn text(&mut self, line: usize, text: &str) {
        let words: Vec<String> = text
            .split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '_')
            .filter(|word| word.chars().any(char::is_alphabetic))
            .map(str::to_lowercase)
            .collect();
        self.words += words.len();
        let singles = words.iter().filter(|word| DIALECT.contains(&word.as_str()));
        let pairs = words.windows(2).filter(|pair| PAIRS.iter().any(|known| known == pair));
        let phrases = words.windows(3).filter(|three| PHRASES.iter().any(|known| known == three));
        let pairs = pairs.map(|pair| pair.join(" "));
        for found in singles.cloned().chain(pairs).chain(phrases.map(|three| three.join(" "))) {
            self.add(ProseRule::DialectWord, line, format!("dialect word: {found}"));
        }
    }
}

/// Returns the maximum number of dialect words in a new text of `words` words.
pub(super) fn allowed(words: usize) -> usize {
    words * ALLOWED / 1000
}

/// Returns the violations of a file.
pub(super) fn violations(path: &str, text: &str) -> FileViolations {
    let mut violations = FileViolations::default();
    if path.ends_with(".md") {
        markdown(text, &mut violations);
        return violations;
    }
    let source = source::read(text);
    for comment in &source.comments {
        violations.text(comment.line, prose_of(&comment.text));
        let width = text.lines().nth(comment.line - 1).map_or(0, |line| line.chars().count());
        if width > COLUMNS {
            let told = format!("comment line of {width} columns: at most {COLUMNS}");
            violations.add(ProseRule::WideLine, comment.line, told);
        }
    }
    for (line, string) in &source.strings {
        if string.split_whitespace().count() >= MESSAGE_WORDS {
            violations.text(*line, string);
        }
    }
    starts(&source, &mut violations);
    errors(&source, &mut violations);
    header(&source, &mut violations);
    violations
}

/// Returns the text of a comment; empty for a line that starts or ends a code block.
fn prose_of(text: &str) -> &str {
    if text.trim_start().starts_with("```") { "" } else { text }
}

fn markdown(text: &str, violations: &mut FileViolations) {
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            violations.text(number, line);
        }
    }
}

/// Finds doc comments that begin with a pronoun.
fn starts(source: &SourceParts, violations: &mut FileViolations) {
    for (first, _) in blocks(source, CommentKind::Doc) {
        let text = first.text.trim();
        let word: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
        if STARTS.contains(&word.as_str()) || text.starts_with("The same") {
            violations.add(ProseRule::DocStart, first.line, format!("doc comment starts with {text:.30}"));
        }
    }
}

/// Returns the blocks of consecutive comment lines of one kind: the first line, and all lines.
fn blocks(source: &SourceParts, kind: CommentKind) -> Vec<(&Comment, Vec<&Comment>)> {
    let mut blocks: Vec<(&Comment, Vec<&Comment>)> = Vec::new();
    for comment in source.comments.iter().filter(|comment| comment.kind == kind) {
        match blocks.last_mut() {
            Some((first, lines)) if first.line + lines.len() == comment.line => lines.push(comment),
            _ => blocks.push((comment, vec![comment])),
        }
    }
    blocks
}

/// Finds public functions that return `Result` and have no section `# Errors`.
fn errors(source: &SourceParts, violations: &mut FileViolations) {
    let docs = blocks(source, CommentKind::Doc);
    for (index, code) in source.code.iter().enumerate() {
        if !is_public_fn(code) || !returns_result(&source.code[index..]) {
            continue;
        }
        // There may be attributes between the doc comment and the function.
        let doc = docs.iter().rfind(|(first, _)| first.line <= index);
        let is_near = |first: &Comment, len: usize| {
            let between = &source.code[(first.line - 1 + len).min(index)..index];
            between.iter().all(|line| line.trim().is_empty() || line.trim().starts_with("#["))
        };
        let has_section = doc.is_some_and(|(first, lines)| {
            is_near(first, lines.len()) && lines.iter().any(|line| line.text.trim() == "# Errors")
        });
        if !has_section {
            violations.add(ProseRule::MissingErrors, index + 1, "public function without # Errors");
        }
    }
}

fn is_public_fn(code: &str) -> bool {
    let code = code.trim_start();
    ["pub fn ", "pub const fn ", "pub async fn ", "pub unsafe fn "]
        .iter()
        .any(|start| code.starts_with(start))
}

/// Returns whether the signature that begins with the first line returns a `Result`.
fn returns_result(code: &[String]) -> bool {
    let mut signature = String::new();
    for line in code {
        signature.push_str(line);
        signature.push(' ');
        if line.contains('{') || line.trim_end().ends_with(';') {
            break;
        }
    }
    let head = signature.split(" where ").next().unwrap_or_default();
    head.rsplit_once("->").is_some_and(|(_, result)| {
        let result = result.trim_start();
        let path = result.split('<').next().unwrap_or_default();
        path == "Result" || path.ends_with("::Result")
    })
}

fn header(source: &SourceParts, violations: &mut FileViolations) {
    for (first, lines) in blocks(source, CommentKind::Header) {
        if lines.len() > HEADER_LINES {
            let told = format!("header of {} lines: at most {HEADER_LINES}", lines.len());
            violations.add(ProseRule::LongHeader, first.line, told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how often the sample breaks each rule.
    fn broken(path: &str, text: &str) -> [usize; 5] {
        violations(path, text).counts().by_rule
    }

    #[test]
    fn a_plain_sample_breaks_no_rule() {
        assert_eq!(broken("plain.rs", include_str!("samples/plain.rs")), [0; 5]);
        assert_eq!(broken("plain.md", "Returns the value.\n\n```text\nwho goes there\n```\n"), [0; 5]);
    }

    #[test]
    fn every_sample_of_a_violation_is_found() {
        let dialect = broken("dialect.rs", include_str!("samples/dialect.rs"));
        assert_eq!(dialect, [8, 0, 0, 0, 0]);
        let starts = broken("starts.rs", include_str!("samples/starts.rs"));
        assert_eq!(starts, [3, 9, 0, 0, 0], "three of the nine words are dialect as well");
        let wide = broken("wide.rs", include_str!("samples/wide.rs"));
        assert_eq!(wide, [0, 0, 2, 0, 0]);
        let errors = broken("errors.rs", include_str!("samples/errors.rs"));
        assert_eq!(errors, [0, 0, 0, 3, 0]);
        let long: String = (0..=HEADER_LINES).map(|n| format!("//! Line {n}.\n")).collect();
        assert_eq!(broken("header.rs", &long), [0, 0, 0, 0, 1]);
        assert_eq!(broken("dialect.md", "Nobody stands in place of it.\n"), [3, 0, 0, 0, 0]);
    }
}
