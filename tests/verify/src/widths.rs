//! Lines of prose and of comments are at most so wide, in documents, settings, scripts and SQL as
//! in Rust. What cannot be broken may be wider: one word, a row of a table, a setting that is
//! commented out, a heading, code.

use std::path::Path;

use crate::house::{MAX_COMMENT_COLUMNS, files_of};

/// Made by programs, from text that is looked at where it is written.
const GENERATED: &[&str] = &[
    "docs/conditions.md",
    "docs/xid.md",
    "dashboards/README.md",
    "deploy/kubernetes/prometheus-rule.yml",
    "deploy/helm/stepwatch/files/prometheus-rule.yml",
];
/// Programs of others, run as they are.
const FOREIGN: &str = "tests/tests/writers";

/// The lines below `root` that are too wide.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    files_of(root, &["md", "yml", "toml", "sql", "sh", "py"], &mut files);
    files.iter().flat_map(|path| of_file(root, path)).collect()
}

fn of_file(root: &Path, path: &Path) -> Vec<String> {
    let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
    let kind = path.extension().and_then(|e| e.to_str());
    let is_rule = kind == Some("yml") && path.parent().is_some_and(|dir| dir == root.join("rules"));
    if is_rule || GENERATED.contains(&name.as_str()) || name.starts_with(FOREIGN) {
        return Vec::new();
    }
    let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
    let wide = match kind {
        Some("md") => in_prose(&text),
        Some("sql") => in_comments(&text, "--"),
        _ => in_comments(&text, "#"),
    };
    wide.into_iter()
        .map(|line| format!("{name}:{line}: prose and comments have at most {MAX_COMMENT_COLUMNS} columns"))
        .collect()
}

fn is_wide(line: &str) -> bool {
    line.chars().count() > MAX_COMMENT_COLUMNS
}

/// One word, where code between backquotes is part of a word.
fn is_one_word(text: &str) -> bool {
    let is_code_open = |at: usize| text[..at].matches('`').count() % 2 == 1;
    let text = text.trim();
    !text.match_indices(' ').any(|(at, _)| !is_code_open(at))
}

/// Lines of Markdown, numbered from 1.
fn in_prose(text: &str) -> Vec<usize> {
    let (mut fenced, mut wide) = (false, Vec::new());
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim_start_matches([' ', '>', '-', '*']);
        if trimmed.starts_with("```") || trimmed.starts_with("~~~") {
            fenced = !fenced;
        }
        let is_free = fenced
            || ["|", "<", "#", "```"].iter().any(|start| trimmed.starts_with(start))
            || trimmed.starts_with('[') && trimmed.contains("]: ")
            || is_one_word(trimmed);
        if !is_free && is_wide(line) {
            wide.push(at + 1);
        }
    }
    wide
}

/// Lines that are a comment, numbered from 1.
fn in_comments(text: &str, mark: &str) -> Vec<usize> {
    let is_too_wide = |line: &str| {
        let Some(comment) = line.trim_start().strip_prefix(mark) else { return false };
        let comment = comment.trim_start_matches(['#', ':', ' ']);
        let is_free = line.starts_with("#!") || comment.starts_with('|') || is_one_word(comment);
        !is_free && !is_setting(comment) && is_wide(line)
    };
    // What stands in a text of several lines is text of the program.
    let mut in_text = false;
    let mut wide = Vec::new();
    for (at, line) in text.lines().enumerate() {
        in_text ^= line.matches("\"\"\"").count() % 2 == 1;
        if !in_text && is_too_wide(line) {
            wide.push(at + 1);
        }
    }
    wide
}

/// Whether it is a setting that is commented out: `key: [value]`, `- {key: value}`, `key = value`.
fn is_setting(comment: &str) -> bool {
    let item = comment.strip_prefix("- ").unwrap_or(comment);
    let is_key =
        |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    let opens = |value: &str| value.starts_with(['[', '{', '"', '\'', '/']);
    let by_colon = item.split_once(": ").is_some_and(|(key, value)| is_key(key) && opens(value.trim_start()));
    let by_equals = item.split_once(" = ").is_some_and(|(key, _)| is_key(key));
    by_colon || by_equals || (item != comment && opens(item))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wide_and_what_cannot_be_broken_is_not() {
        let long = "word ".repeat(25);
        assert_eq!(in_prose(&format!("short\n{long}\n- {long}\n")), [2, 3]);
        let free = format!("| {long}|\n```\n{long}\n```\n# {long}\n[a]: {long}\n{}\n", "x".repeat(120));
        assert_eq!(in_prose(&free), [0usize; 0]);
        assert_eq!(in_prose(&format!("`{long}`\n")), [0usize; 0], "one piece of code");
    }

    #[test]
    fn comments_of_settings_are_wide_and_settings_are_not() {
        let long = "word ".repeat(25);
        assert_eq!(in_comments(&format!("key: value\n  # {long}\n## {long}\nkey: {long}\n"), "#"), [2, 3]);
        assert_eq!(in_comments(&format!("-- {long}\n"), "--"), [1]);
        let free = format!("#!/bin/{long}\n# key: [{long}]\n#  - {{a: {long}}}\n# name = {long}\n");
        assert_eq!(in_comments(&free, "#"), [0usize; 0]);
    }
}
