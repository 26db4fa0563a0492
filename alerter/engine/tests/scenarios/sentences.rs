//! No code reads a sentence back: what was found is asked of its type, and words are made for
//! people.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use regex_lite::Regex;

/// Where sentences are made or handed on.
const ROOMS: [&str; 6] =
    ["src", "../model/src", "../detect/src", "../respond/src", "../src", "../../tests/src/fleet"];
/// How a text is taken to pieces, or looked at.
const READS: &str = concat!(
    r"(contains|starts_with|ends_with|r?split|r?split_once|splitn|split_terminator|strip_prefix",
    r"|strip_suffix|r?find|matches|match_indices|replacen?|trim_(start|end)_matches",
    r"|to_(ascii_)?lowercase)\(",
);
/// What is a sentence: words of a suspect, of a finding, of an incident and of the way that it
/// takes. Another `why` is an enum.
const SENTENCE: &str = concat!(
    r"((target|place|observation|fault)\.to_string\(\)|(what|why)\(\)",
    r"|\b(v|finding|findings\[\d+\])\.why|\b(record|r|i|m|message)\.summary",
    r"|\b(path|due|way)\.(route|because|matched))",
);

/// What no sentence is without.
const MARKS: [&str; 8] =
    [".to_string()", "what()", "why()", ".why", ".summary", ".route", ".because", ".matched"];

fn patterns() -> Vec<Regex> {
    let after =
        |tail: &str| Regex::new(&format!(r"{SENTENCE}(\s*\.(as_str|as_ref|what)\(\))?\s*{tail}")).unwrap();
    let before = |head: &str| Regex::new(&format!(r"{head}\s*[&(]*(\w+(\[\w+\])?\.)*{SENTENCE}")).unwrap();
    vec![after(&format!(r"\.{READS}")), after("(==|!=)"), before("(==|!=)"), before(&format!(r"\.{READS}"))]
}

/// Without its tests.
fn product(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod tests {").map_or(text, |at| &text[..at])
}

fn reads(text: &str, patterns: &[Regex]) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let names_one = |line: &&str| MARKS.iter().any(|mark| line.contains(mark));
    // A call may stand on the line after, and what it is compared with on the line before.
    let near = (0..lines.len()).filter(|n| lines.get(*n).is_some_and(names_one));
    let near = near.map(|n| lines[n.saturating_sub(1)..lines.len().min(n + 2)].join("\n"));
    near.flat_map(|near| {
        let found = patterns.iter().filter_map(|p| p.find(&near));
        found.map(|found| found.as_str().to_owned()).collect::<Vec<_>>()
    })
    .collect()
}

#[expect(clippy::disallowed_methods, reason = "it reads the sources, not the engine")]
fn sources(dir: &Path, out: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "tests" {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs")
            && !["tests.rs", "testing.rs", "conformance.rs"].contains(&name)
        {
            let text = std::fs::read_to_string(&path).unwrap();
            out.push((path, text));
        }
    }
}

#[test]
fn no_sentence_is_read_back() {
    let (mut all, patterns) = (Vec::new(), patterns());
    ROOMS.iter().for_each(|room| sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(room), &mut all));
    assert!(all.len() > 200, "{} files", all.len());
    let found: Vec<String> = all
        .iter()
        .flat_map(|(path, text)| {
            reads(product(text), &patterns).into_iter().map(|read| format!("{}: {read}", path.display()))
        })
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// An open incident that is not notified is suppressed, and has no second word.
#[test]
fn what_is_not_notified_is_suppressed_and_nothing_else() {
    let (other, literal) = (
        Regex::new(r"(?i)(\b|_)(hid|hides?|hidden|hiding|hush|hushe[sd]|mute[sd]?|quiet)(\b|_)").unwrap(),
        Regex::new(r#""([^"\\]|\\.)*""#).unwrap(),
    );
    let mut all = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../respond/src"), &mut all);
    let words = all.iter().flat_map(|(path, text)| {
        let lines = text.lines().map(|line| literal.replace_all(line, ""));
        lines.filter(|line| other.is_match(line)).map(|line| format!("{}: {line}", path.display()))
    });
    assert_eq!(words.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn what_reads_one_back_is_found() {
    let patterns = patterns();
    for text in [
        r#"s.what().starts_with("no single")"#,
        r#"r.summary.split_once("; ")"#,
        "v.why.contains(&s.what())",
        r#"v.why.split("; ").next()"#,
        "self.record.summary\n            .strip_prefix(LEFT)",
        "suspects.iter().any(|s| s.what() == had.what())",
        "had.why().contains(&s.why())",
        "if first.target.to_string() == words::SWITCH",
        "known.contains(&first.what())",
    ] {
        assert!(!reads(text, &patterns).is_empty(), "{text}");
    }
    for text in [
        "suppression.why == SuppressionReason::RolledUp",
        "s.target == had.target",
        "had.why().len() > MAX_WHY",
    ] {
        assert!(reads(text, &patterns).is_empty(), "{text}");
    }
}
