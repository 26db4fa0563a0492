//! Every grammar names what it follows: `upstream.toml` has it, and `upstream.py` reads it again in
//! a checkout.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What is read besides the formats: the sentences of `last_words.rs`, progress bars, and a table
/// that `backtest` reads.
const WORDS: &str = "last-words";
const OTHERS: &[&str] = &[WORDS, "bar", "wandb-csv"];
/// A kind of line, and the text of a grammar's code that emits it.
const KINDS: &[(&str, &[&str])] = &[
    ("step", &[".step(", "Kind::Step"]),
    ("eval", &[".eval(", "Kind::Eval"]),
    ("checkpoint", &[".checkpoint(", "Kind::Ckpt", ": Saving,"]),
    ("end", &[".done(", "Kind::Bye"]),
    ("hello", &["Kind::Hello"]),
];

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// An entry of the table: what stands behind its keys, a list one by one.
type Entry = BTreeMap<String, Vec<String>>;

/// The entries of the table. `upstream.py` reads the same, and reports mistakes in it.
fn entries() -> Vec<Entry> {
    let text = read(&crate_dir().join("upstream.toml"));
    let mut found: Vec<Entry> = Vec::new();
    let mut list = None;
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if line == "[[grammar]]" {
            found.push(Entry::new());
        } else if line == "]" {
            list = None;
        } else if let Some(key) = &list {
            let values: &mut Vec<String> = found.last_mut().unwrap().get_mut(key).unwrap();
            values.push(unquoted(line.trim_end_matches(',')));
        } else {
            let (key, value) = line.split_once(" = ").unwrap();
            let values = if value == "[" { Vec::new() } else { vec![unquoted(value)] };
            list = (value == "[").then(|| key.to_owned());
            found.last_mut().unwrap().insert(key.to_owned(), values);
        }
    }
    found
}

/// A string without its quotes. No name, and no row of the table of last words, has an escape.
fn unquoted(value: &str) -> String {
    let inner = ['"', '\''].iter().find_map(|q| value.strip_prefix(*q)?.strip_suffix(*q));
    inner.expect("a string in quotes").to_owned()
}

/// What all entries of a format have behind a key.
fn named<'a>(entries: &'a [Entry], format: &str, key: &str) -> BTreeSet<&'a str> {
    let of = entries.iter().filter(|e| e["format"] == [format]);
    of.filter_map(|e| e.get(key)).flatten().map(String::as_str).collect()
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a module and of those below it, without its tests.
fn code(module: &str) -> String {
    let src = crate_dir().join("src");
    let mut files = sources(&src.join(module));
    files.retain(|f| !f.ends_with("tests.rs") && !f.components().any(|c| c.as_os_str() == "tests"));
    files.push(src.join(format!("{module}.rs")));
    let code = files.iter().map(|f| read(f));
    code.map(|t| t.split("\nmod tests {").next().unwrap_or_default().to_owned()).collect()
}

/// The formats of lines and the modules that read them, in the one list of them.
fn line_formats() -> BTreeMap<String, String> {
    let text = read(&crate_dir().join("src/line_formats.rs"));
    let list = text.split("\nformats! {").nth(1).unwrap().split("\n}").next().unwrap();
    let entry = |line: &str| {
        let (name, path) = line.trim().strip_prefix('"')?.split_once("\": ")?;
        Some((name.to_owned(), path.split("::").next()?.to_owned()))
    };
    list.lines().filter_map(entry).collect()
}

/// The names of the formats of files that are not lines: there is no list of them but their code.
fn file_formats() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in sources(&crate_dir().join("src")) {
        let text = read(&path);
        let Some((_, body)) = text.split_once("\nimpl FileFormat for ") else { continue };
        let name = body.split("fn name(&self)").nth(1).and_then(|t| t.split('"').nth(1));
        found.insert(name.unwrap().to_owned());
    }
    found
}

/// The rows of the table of last words.
fn last_words() -> BTreeSet<String> {
    let text = read(&crate_dir().join("src/last_words.rs"));
    let table = text.split("\nconst TABLE: &[Words] = &[").nth(1).unwrap().split("\n];").next().unwrap();
    let rows = table.lines().filter(|l| !l.trim_start().starts_with("//"));
    let rows: Vec<_> = rows.filter_map(|l| l.split('"').nth(1)).map(str::to_owned).collect();
    let written = ["loss(\"", "gradient(\"", "monitored(\""]
        .map(|call| table.matches(call).count())
        .iter()
        .sum::<usize>();
    assert!(rows.len() == written && written >= 40, "{written} rows, read {rows:?}");
    rows.into_iter().collect()
}

#[test]
fn every_grammar_names_whom_it_follows() {
    let entries = entries();
    let named: BTreeSet<_> = entries.iter().flat_map(|e| &e["format"]).map(String::as_str).collect();
    let files = file_formats();
    assert!(files.len() >= 7 && files.contains("wandb"), "{files:?}");
    let known: BTreeSet<_> = stepwatch_formats::names()
        .into_iter()
        .filter(|n| *n != "auto")
        .chain(files.iter().map(String::as_str))
        .chain(OTHERS.iter().copied())
        .collect();
    let without: Vec<_> = known.difference(&named).collect();
    assert!(without.is_empty(), "upstream.toml has no entry of the formats {without:?}");
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "upstream.toml has entries of {unknown:?}, which nothing reads");
}

#[test]
fn every_kind_of_line_names_whom_it_follows() {
    let entries = entries();
    let formats = line_formats();
    let names: Vec<_> = stepwatch_formats::names().into_iter().filter(|n| *n != "auto").collect();
    assert_eq!(formats.len(), names.len(), "the list in line_formats.rs is read whole");
    for (name, module) in &formats {
        if !named(&entries, name, "none").is_empty() {
            continue;
        }
        let code = code(&format!("line_formats/{module}"));
        let reads = |marks: &[&str]| marks.iter().any(|m| code.contains(m));
        let reads: BTreeSet<_> = KINDS.iter().filter(|(_, marks)| reads(marks)).map(|(k, _)| *k).collect();
        let listed: BTreeSet<_> =
            named(&entries, name, "kinds").into_iter().flat_map(|t| t.split(',')).map(str::trim).collect();
        assert_eq!(reads, listed, "{name}: what {module}.rs reads, and what upstream.toml lists");
    }
}

#[test]
fn every_last_word_names_who_says_it() {
    let entries = entries();
    let named = named(&entries, WORDS, "words");
    let rows = last_words();
    let rows: BTreeSet<_> = rows.iter().map(String::as_str).collect();
    let without: Vec<_> = rows.difference(&named).collect();
    assert!(without.is_empty(), "no entry of upstream.toml is behind {without:?}");
    let unknown: Vec<_> = named.difference(&rows).collect();
    assert!(unknown.is_empty(), "upstream.toml has words that are no row of last_words.rs: {unknown:?}");
}
