//! # Source: comments, strings and signatures of a Rust file
//!
//! A minimal lexer that knows only comments, strings, characters and lifetimes.

/// Kind of a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommentKind {
    /// `//` or `/* */`.
    Plain,
    /// `///` or `/** */`.
    Doc,
    /// `//!` or `/*! */`.
    Header,
}

/// Line of a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Comment {
    /// Number of the line, from 1.
    pub(crate) line: usize,
    pub(crate) kind: CommentKind,
    /// Text behind the slashes.
    pub(crate) text: String,
}

/// Parts of a file.
#[derive(Debug, Default)]
pub(crate) struct SourceParts {
    pub(crate) comments: Vec<Comment>,
    /// Contents of string literals, with their lines.
    pub(crate) strings: Vec<(usize, String)>,
    /// Code of each line, without comments and the contents of strings.
    pub(crate) code: Vec<String>,
}

/// Position in a text.
struct SourceLexer<'a> {
    rest: &'a str,
    line: usize,
    source: SourceParts,
}

/// Splits a Rust file into its parts.
pub(crate) fn read(text: &str) -> SourceParts {
    let mut lexer = SourceLexer { rest: text, line: 1, source: SourceParts::default() };
    lexer.source.code = vec![String::new(); text.lines().count() + 1];
    while !lexer.rest.is_empty() {
        lexer.step();
    }
    lexer.source
}

impl SourceLexer<'_> {
    fn step(&mut self) {
        let rest = self.rest;
        if rest.starts_with("//") {
            self.line_comment();
        } else if rest.starts_with("/*") {
            self.block_comment();
        } else if let Some(hashes) = raw_string(rest) {
            let begin = rest.find('"').unwrap_or_default() + 1;
            let end = format!("\"{}", "#".repeat(hashes));
            let len = rest[begin..].find(&end).unwrap_or(rest.len() - begin);
            self.string(begin, len, end.len());
        } else if let Some(content) = rest.strip_prefix('"') {
            self.string(1, quoted(content), 1);
        } else if let Some(len) = character(rest) {
            self.code(len);
        } else {
            self.code(word(rest));
        }
    }

    /// Takes `len` bytes as code.
    fn code(&mut self, len: usize) {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        for part in taken.split_inclusive('\n') {
            self.source.code[self.line - 1].push_str(part.trim_end_matches('\n'));
            self.line += usize::from(part.ends_with('\n'));
        }
        self.rest = rest;
    }

    /// Takes a literal as a string. Its content has `len` bytes from `begin`, and its end has `end`
    /// bytes.
    fn string(&mut self, begin: usize, len: usize, end: usize) {
        let content = &self.rest[begin..begin + len];
        self.source.strings.push((self.line, content.to_owned()));
        self.source.code[self.line - 1].push_str("\"\"");
        self.line += content.matches('\n').count();
        self.rest = &self.rest[(begin + len + end).min(self.rest.len())..];
    }

    fn line_comment(&mut self) {
        let len = self.rest.find('\n').unwrap_or(self.rest.len());
        let (comment, rest) = self.rest.split_at(len);
        let kind = match comment.as_bytes() {
            [b'/', b'/', b'!', ..] => CommentKind::Header,
            [b'/', b'/', b'/', b'/', ..] => CommentKind::Plain,
            [b'/', b'/', b'/', ..] => CommentKind::Doc,
            _ => CommentKind::Plain,
        };
        let text = comment.trim_start_matches(['/', '!']).to_owned();
        self.source.comments.push(Comment { line: self.line, kind, text });
        self.rest = rest;
    }

    fn block_comment(&mut self) {
        let (mut depth, mut end) = (0, self.rest.len());
        let bytes = self.rest.as_bytes();
        for at in 0..bytes.len().saturating_sub(1) {
            depth += i32::from(&bytes[at..at + 2] == b"/*");
            depth -= i32::from(&bytes[at..at + 2] == b"*/");
            if depth == 0 {
                end = at + 2;
                break;
            }
        }
        let kind = match bytes.get(2) {
            Some(b'*') => CommentKind::Doc,
            Some(b'!') => CommentKind::Header,
            _ => CommentKind::Plain,
        };
        for text in self.rest[..end].lines() {
            let text = text.trim_matches(['/', '*', '!']).to_owned();
            self.source.comments.push(Comment { line: self.line, kind, text });
            self.line += 1;
        }
        self.line -= 1;
        self.rest = &self.rest[end..];
    }
}

/// Returns the number of `#` of a raw string that begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let rest = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].starts_with('"').then_some(hashes)
}

/// Returns the length of a string's content up to its closing quote.
fn quoted(rest: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at,
            _ => {}
        }
    }
    rest.len()
}

/// Returns the length of a character literal that begins here; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('\'')?;
    if let Some(escaped) = inner.strip_prefix('\\') {
        let first = escaped.chars().next()?.len_utf8();
        return Some(2 + first + escaped[first..].find('\'')? + 1);
    }
    let first = inner.chars().next()?.len_utf8();
    inner[first..].starts_with('\'').then_some(first + 2)
}

/// Returns the length of an identifier, or of one other character. Identifiers are taken as a
/// whole, so that an `r` or `b` in them does not begin a string.
fn word(rest: &str) -> usize {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    match rest.find(|c| !is_part(c)) {
        Some(0) => rest.chars().next().map_or(1, char::len_utf8),
        Some(len) => len,
        None => rest.len(),
    }
}

/// Returns whether the byte of `code` at `index` is a character literal, such as `'('`.
pub(crate) fn is_character(code: &str, index: usize) -> bool {
    let byte = |at: Option<usize>| at.and_then(|at| code.as_bytes().get(at));
    byte(index.checked_sub(1)) == Some(&b'\'') && byte(index.checked_add(1)) == Some(&b'\'')
}

/// Returns the position of the brace that closes the one at `begin`, or the length of the
/// code.
pub(crate) fn closing_brace(code: &str, begin: usize) -> usize {
    let mut depth = 0_usize;
    for (index, byte) in code.bytes().enumerate().skip(begin) {
        match byte {
            _ if is_character(code, index) => {}
            b'{' => depth += 1,
            b'}' if depth == 1 => return index,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_in_strings_and_quotes_in_comments_are_told_apart() {
        let text = "let a = \"// no\"; // yes \"one\"\nlet b = r#\"/* no */\"#; /* yes */ 'x'\n/// Doc";
        let source = read(text);
        let comments: Vec<_> = source.comments.iter().map(|c| (c.line, c.text.trim())).collect();
        assert_eq!(comments, [(1, "yes \"one\""), (2, "yes"), (3, "Doc")]);
        assert_eq!(source.strings, [(1, "// no".to_owned()), (2, "/* no */".to_owned())]);
        assert_eq!(source.code[0].trim(), "let a = \"\";");
    }

    #[test]
    fn a_lifetime_and_a_quote_as_a_character_begin_no_string() {
        let source = read("fn f<'a>(c: &'a str) { g('\"'); h('\\''); } // end");
        assert!(source.strings.is_empty());
        assert_eq!(source.comments.len(), 1);
    }
}
