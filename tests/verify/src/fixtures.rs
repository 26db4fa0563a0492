//! Where fixtures come from: every file of a `data`, `corpus` or `fixtures` directory stands in a
//! table of its `SOURCES.md`, or of one in a directory below that holds it, as captured (a program
//! wrote it in earnest) or as composed (it was made up for a test).

use std::collections::BTreeMap;
use std::path::Path;

use crate::house::SKIP;

const TABLE: &str = "SOURCES.md";
/// What directories of fixtures are called.
const NAMES: &[&str] = &["data", "corpus", "fixtures"];
const WORDS: &[&str] = &["captured", "composed"];

/// How many fixtures there are, and what is wrong with their tables.
pub(crate) fn check(root: &Path) -> (usize, Vec<String>) {
    let (mut count, mut wrong) = (0, Vec::new());
    search(root, root, false, &mut count, &mut wrong);
    (count, wrong)
}

fn search(root: &Path, dir: &Path, inside: bool, count: &mut usize, wrong: &mut Vec<String>) {
    for (name, path) in entries(dir) {
        let skipped = name.starts_with('.') || SKIP.contains(&&*name) || path.join("CACHEDIR.TAG").exists();
        if skipped || !path.is_dir() {
            continue;
        }
        let named = NAMES.contains(&&*name);
        if (named && has_files(&path)) || (inside && path.join(TABLE).exists()) {
            *count += table(root, &path, wrong);
        }
        search(root, &path, inside || named, count, wrong);
    }
}

/// Compares one directory with its table; how many fixtures it has.
fn table(root: &Path, dir: &Path, wrong: &mut Vec<String>) -> usize {
    let shown = dir.strip_prefix(root).unwrap_or(dir).join(TABLE).display().to_string();
    let Ok(text) = std::fs::read_to_string(dir.join(TABLE)) else {
        wrong.push(format!(
            "{shown}: is missing; it lists of each fixture whether it was captured or composed"
        ));
        return 0;
    };
    let rows = rows(&text);
    for (name, how) in rows.iter().filter(|(_, how)| !WORDS.contains(&how.as_str())) {
        wrong.push(format!("{shown}: {name}: captured or composed? its second column says {how:?}"));
    }
    let mut found = Vec::new();
    files(dir, "", &mut found);
    let covers = |row: &str, file: &str| row == file || (row.ends_with('/') && file.starts_with(row));
    let unlisted = found.iter().filter(|f| !rows.keys().any(|row| covers(row, f)));
    wrong.extend(unlisted.map(|f| format!("{shown}: {f} is in no table")));
    let stale = rows.keys().filter(|row| !found.iter().any(|f| covers(row, f)));
    wrong.extend(stale.map(|row| format!("{shown}: {row} is not there")));
    found.len()
}

/// The names in the first column of the tables, in backticks, and the text of the second.
fn rows(text: &str) -> BTreeMap<String, String> {
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|l| l.starts_with('|')) {
        let mut cells = line.split('|').skip(1).map(str::trim);
        let (Some(names), Some(how)) = (cells.next(), cells.next()) else { continue };
        for name in names.split(", ").filter_map(|n| n.strip_prefix('`')?.strip_suffix('`')) {
            rows.insert(name.to_owned(), how.to_owned());
        }
    }
    rows
}

/// The files below a directory, but for those of a directory that has a table of its own.
fn files(dir: &Path, prefix: &str, found: &mut Vec<String>) {
    for (name, path) in entries(dir) {
        if path.is_dir() {
            if !path.join(TABLE).exists() {
                files(&path, &format!("{prefix}{name}/"), found);
            }
        } else if name != TABLE {
            found.push(format!("{prefix}{name}"));
        }
    }
}

/// Directories of directories are no directory of fixtures, unless they are marked so.
fn has_files(dir: &Path) -> bool {
    entries(dir).iter().any(|(_, path)| path.is_file())
}

fn entries(dir: &Path) -> Vec<(String, std::path::PathBuf)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<_> =
        entries.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path())).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of files that is gone at the end of the test.
    struct Tree(std::path::PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("verify-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn ours_are_captured_or_composed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let (count, wrong) = check(root);
        assert_eq!(wrong, Vec::<String>::new());
        assert!(count > 100, "{count} fixtures");
    }

    #[test]
    fn what_is_said_and_what_is_there_must_agree() {
        let table = "| file | how | by |\n|---|---|---|\n| `a.log`, `b.log` | captured | us |\n| `dir/` | composed | us |\n\
                     | `c.log` | found | us |\n| `gone.log` | composed | us |\n";
        let tree = Tree::new(
            "tables",
            &[
                ("x/data/SOURCES.md", table),
                ("x/data/a.log", ""),
                ("x/data/b.log", ""),
                ("x/data/c.log", ""),
                ("x/data/dir/1", ""),
                ("x/data/new.log", ""),
                ("x/data/own/SOURCES.md", "| `1` | composed | us |\n"),
                ("x/data/own/1", ""),
                ("y/fixtures/1", ""),
                ("y/data/z/README", ""),
                ("target/data/1", ""),
            ],
        );
        let (count, wrong) = check(&tree.0);
        assert_eq!(
            wrong,
            [
                "x/data/SOURCES.md: c.log: captured or composed? its second column says \"found\"",
                "x/data/SOURCES.md: new.log is in no table",
                "x/data/SOURCES.md: gone.log is not there",
                "y/fixtures/SOURCES.md: is missing; it lists of each fixture whether it was captured or composed",
            ]
        );
        assert_eq!(count, 6);
    }
}
