//! The commented sample configuration is complete, and every default in it is right.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use stepwatch_alerter::config::File;
use stepwatch_kit::config::{keys, parse};

const SAMPLE: &str = include_str!("../../../deploy/alerter.yml");

/// The sample with its examples: one # at the beginning of a line is removed, prose has two. Of two
/// keys that exclude each other the second stands behind another #.
fn with_examples() -> String {
    SAMPLE.lines().map(|line| line.strip_prefix('#').unwrap_or(line).to_owned() + "\n").collect()
}

#[test]
fn values_are_the_defaults() {
    let mut expected = File::default();
    // One of two stores has to be named.
    expected.storage.sqlite = Some("/var/lib/stepwatch/alerter.db".into());
    assert_eq!(parse::<File>("alerter.yml", SAMPLE).unwrap(), expected);
}

#[test]
fn examples_are_accepted() {
    let config: File = parse("alerter.yml", &with_examples()).unwrap_or_else(|err| panic!("{err}"));
    assert_ne!(config, File::default());
}

#[test]
fn every_key_is_shown() {
    let accepted = keys::accepted::<File>();
    assert!(accepted.len() > 30, "{accepted:?}");
    // In a mapping of its own line, or within braces.
    let shown = |key: &str| {
        let (line, brace, next) = (format!(" {key}:"), format!("{{{key}:"), format!("#{key}:"));
        SAMPLE.lines().any(|text| {
            let text = format!(" {text}");
            text.contains(&line) || text.contains(&brace) || text.contains(&next)
        })
    };
    let leaf = |path: &str| path.rsplit(['.', ']']).next().unwrap_or(path).to_owned();
    let missing: Vec<_> = accepted.iter().filter(|path| !shown(&leaf(path))).collect();
    assert!(missing.is_empty(), "not in deploy/alerter.yml: {missing:?}");
}
