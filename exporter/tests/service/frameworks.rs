//! `docs/frameworks.md` promises what each framework gives: every row names tests that exist, and
//! every format has a row.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const COLUMNS: usize = 6;

/// Rows of every table with the columns of a promise, as cells.
fn rows() -> Vec<Vec<String>> {
    let text = fs::read_to_string(Path::new(ROOT).join("docs/frameworks.md")).unwrap();
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect::<Vec<_>>();
    let (mut rows, mut within) = (Vec::new(), false);
    for line in text.lines() {
        let header = line.starts_with("| framework");
        within = header || within && line.starts_with('|');
        if within && !header && !line.starts_with("|--") {
            rows.push(cells(line));
        }
    }
    rows
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_row_is_whole_and_names_tests_that_exist() {
    let rows = rows();
    assert!(rows.len() >= 40, "{} rows", rows.len());
    for row in &rows {
        assert_eq!(row.len(), COLUMNS, "{row:?}");
        assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
        let tests: Vec<_> = quoted(&row[COLUMNS - 1]).collect();
        assert!(!tests.is_empty(), "no test of {}", row[0]);
        for test in tests {
            let (file, name) = test.split_once("::").unwrap_or_else(|| panic!("{test}: must be path::test"));
            let text =
                fs::read_to_string(Path::new(ROOT).join(file)).unwrap_or_else(|e| panic!("{test}: {e}"));
            let defined = [format!("fn {name}("), format!("def {name}(")].iter().any(|d| text.contains(d));
            assert!(defined, "{}: {file} has no test {name}", row[0]);
        }
    }
}

#[test]
fn every_format_has_a_row() {
    let named: BTreeSet<String> =
        rows().iter().flat_map(|r| quoted(&r[1]).map(str::to_owned).collect::<Vec<_>>()).collect();
    let missing: Vec<_> =
        stepwatch_formats::names().into_iter().filter(|n| *n != "auto" && !named.contains(*n)).collect();
    assert!(missing.is_empty(), "formats without a row that names them: {missing:?}");
}
