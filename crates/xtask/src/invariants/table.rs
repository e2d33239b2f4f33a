//! # Table: rows of `docs/invariants.md`

/// Reason why an invariant has no assert.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TableRow {
    /// Number of the line, from 1.
    pub(super) line: usize,
    pub(super) path: String,
    pub(super) number: u32,
}

/// Returns the rows of all tables in a document, and the lines that are no rows, with the reason.
pub(super) fn read(text: &str) -> (Vec<TableRow>, Vec<(usize, String)>) {
    let (mut rows, mut wrong) = (Vec::new(), Vec::new());
    for (line, row) in (1..).zip(text.lines()) {
        let Some(cells) = row.strip_prefix('|').and_then(|row| row.trim_end().strip_suffix('|')) else {
            continue;
        };
        let cells: Vec<&str> = cells.splitn(3, '|').map(str::trim).collect();
        let [path, number, reason] = cells[..] else {
            wrong.push((line, "a row has three cells: module, number, reason".to_owned()));
            continue;
        };
        if path == "module" || path.starts_with('-') {
            continue;
        }
        let Ok(number) = number.trim_start_matches('I').parse() else {
            wrong.push((line, format!("{number:?} is no number of an invariant")));
            continue;
        };
        if reason.is_empty() {
            wrong.push((line, "the reason is missing".to_owned()));
        }
        rows.push(TableRow { line, path: path.trim_matches('`').to_owned(), number });
    }
    (rows, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_wrong_lines_are_reported() {
        let text = "# T\n\n| module | number | why it is not asserted |\n|---|---:|---|\n\
                    | `a.rs` | 3 | holds `a \\| b` |\n| b.rs | I4 | x |\n| c.rs | x | y |\n| d.rs | 5 | |\n| e.rs |\n";
        let (rows, wrong) = read(text);
        let row = |line, path: &str, number| TableRow { line, path: path.to_owned(), number };
        assert_eq!(rows, [row(5, "a.rs", 3), row(6, "b.rs", 4), row(8, "d.rs", 5)]);
        assert_eq!(wrong.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [7, 8, 9]);
    }
}
