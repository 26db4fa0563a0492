//! Every grammar says whom it follows: `upstream.toml` has it, and `upstream.py` reads it again in a checkout.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What `key = "…"` says, in each line that says it.
fn values<'a>(text: &'a str, key: &str) -> BTreeSet<&'a str> {
    let said = |l: &'a str| Some(l.strip_prefix(key)?.strip_prefix(" = \"")?.trim_end_matches('"'));
    text.lines().filter_map(said).collect()
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}

/// The names of the formats of files that are not lines: there is no list of them but their code.
fn file_formats() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in sources(&crate_dir().join("src")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let Some((_, body)) = text.split_once("\nimpl FileFormat for ") else { continue };
        let name = body.split("fn name(&self)").nth(1).and_then(|t| t.split('"').nth(1));
        found.insert(name.unwrap().to_owned());
    }
    found
}

#[test]
fn every_grammar_names_whom_it_follows() {
    let table = std::fs::read_to_string(crate_dir().join("upstream.toml")).unwrap();
    let told = values(&table, "format");
    for name in stepwatch_formats::names().into_iter().filter(|n| *n != "auto") {
        assert!(told.contains(name), "upstream.toml has no entry of the format {name}");
    }
    let files = file_formats();
    assert!(files.len() >= 7 && files.contains("wandb"), "{files:?}");
    for name in &files {
        assert!(told.contains(name.as_str()), "upstream.toml has no entry of the file format {name}");
    }
}
