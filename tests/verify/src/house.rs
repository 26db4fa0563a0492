//! The house limits: a file is short enough to keep in mind, a function fits on a screen, few files
//! import each other in a circle; findings are data; every fixture has its origin; and every
//! dependency is used.

use std::path::{Path, PathBuf};

use crate::circles;
use crate::dependencies;
use crate::facts;
use crate::fixtures;
use crate::report::Closing;
use crate::rust_source::functions;
use crate::shell::Workspace;
use crate::widths;

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 70;
/// Columns of a comment; rustfmt wraps none.
pub(crate) const MAX_COMMENT_COLUMNS: usize = 100;

/// Directories that hold no source of ours.
pub(crate) const SKIP: &[&str] = &["target", "venv", "node_modules", "__pycache__"];

pub(crate) fn check(w: &Workspace) -> Result<Closing, String> {
    let mut files = Vec::new();
    sources(&w.root, &mut files);
    let mut wrong = Vec::new();
    let (mut lines, mut longest) = (0, 0);
    for path in &files {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let shown = path.strip_prefix(&w.root).unwrap_or(path).display().to_string();
        let count = text.lines().count();
        (lines, longest) = (lines + count, longest.max(count));
        if count > MAX_FILE_LINES {
            wrong.push(format!("{shown}: {count} lines, the limit is {MAX_FILE_LINES}"));
        }
        let is_rust = path.extension().is_some_and(|e| e == "rs");
        if is_rust {
            wrong.extend(
                wide_comments(&text)
                    .map(|at| format!("{shown}:{at}: a comment has at most {MAX_COMMENT_COLUMNS} columns")),
            );
        }
        if is_rust && !is_test(path) {
            let long = functions(&text).into_iter().filter(|f| !f.in_test && f.lines > MAX_FUNCTION_LINES);
            wrong.extend(long.map(|f| {
                format!(
                    "{shown}:{}: fn {} has {} lines, the limit is {MAX_FUNCTION_LINES}",
                    f.at, f.name, f.lines
                )
            }));
        }
    }
    wrong.extend(widths::check(&w.root));
    let (modules, circles) = circles::check(&w.root)?;
    wrong.extend(circles);
    let (clauses, formatted) = facts::check(&w.root)?;
    wrong.extend(formatted);
    let (fixtures, unlisted) = fixtures::check(&w.root);
    wrong.extend(unlisted);
    let (dependencies, unused) = dependencies::check(&w.root)?;
    wrong.extend(unused);
    if wrong.is_empty() {
        Ok(vec![
            format!("{} files, {lines} lines, the longest has {longest}", files.len()),
            format!(
                "{modules} modules, in no large circle of imports, and no two rooms that import each other"
            ),
            format!("{clauses} clauses, with facts that are no text of ours"),
            format!("{fixtures} fixtures, each listed as captured or composed"),
            format!("{dependencies} dependencies, each used"),
        ])
    } else {
        Err(wrong.join("\n"))
    }
}

/// The lines of comments that are too long. What cannot be broken may be: an address, a row of a
/// table.
fn wide_comments(text: &str) -> impl Iterator<Item = usize> {
    let is_wide = |line: &str| {
        let comment = line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']));
        let breaks = |comment: &str| !comment.contains("://") && !comment.trim_start().starts_with('|');
        comment.is_some_and(breaks) && line.chars().count() > MAX_COMMENT_COLUMNS
    };
    text.lines().enumerate().filter(move |(_, line)| is_wide(line)).map(|(at, _)| at + 1)
}

/// Every Rust and Python file under `dir`.
pub(crate) fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    files_of(dir, &["rs", "py"], found);
}

/// Every file under `dir` with one of these extensions, in order.
pub(crate) fn files_of(dir: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            // A directory with a CACHEDIR.TAG is a build directory, whatever its name.
            let is_ours = !name.starts_with('.') || name == ".cargo";
            if is_ours && !SKIP.contains(&&*name) && !path.join("CACHEDIR.TAG").exists() {
                files_of(&path, extensions, found);
            }
        } else if path.extension().is_some_and(|e| extensions.iter().any(|kind| e == *kind)) {
            found.push(path);
        }
    }
}

/// Whether the file is an integration test or a bench of its package.
fn is_test(path: &Path) -> bool {
    let Some(package) = path.ancestors().skip(1).find(|d| d.join("Cargo.toml").exists()) else {
        return false;
    };
    path.strip_prefix(package).is_ok_and(|p| p.starts_with("tests") || p.starts_with("benches"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_wide_by_its_characters() {
        let word = |columns: usize| format!("{}\u{2265}", "x".repeat(columns - 1));
        let wide = |text: &str| wide_comments(text).collect::<Vec<_>>();
        assert_eq!(wide(&format!("code\n    //! {}\n", word(92))), [0usize; 0]);
        assert_eq!(wide(&format!("code\n    //! {}\n", word(93))), [2]);
        assert_eq!(wide(&format!("/// https://{0}\n// | {0}\n\"{0}\"", word(120))), [0usize; 0]);
    }

    #[test]
    fn integration_tests_are_tests_and_the_harness_is_not() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tests = here.parent().unwrap();
        assert!(is_test(&tests.join("tests/end_to_end.rs")));
        assert!(is_test(&tests.join("fakes/tests/fakes/slack.rs")));
        assert!(!is_test(&tests.join("src/lib.rs")));
        assert!(!is_test(&here.join("src/main.rs")));
    }
}
