use serde::Deserialize;

use super::*;

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct Sample {
    listen: String,
    ingest: Ingest,
    sources: Vec<Source>,
    every: Option<Period>,
    enabled: bool,
    token: Option<Secret>,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
struct Ingest {
    queue: u32,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Source {
    Tail(Tail),
    Socket { path: String },
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Tail {
    path: String,
    format: Format,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Format {
    Auto,
    Jsonl,
}

fn message(text: &str) -> String {
    parse::<Sample>("sample.yml", text).unwrap_err().to_string()
}

#[test]
fn dump() {
    for t in [
        "listn: x\n",
        "listen: x\nsources:\n  - tail: {path: /a, format: atuo}\n",
        "sources:\n  - tial: {path: /a}\n",
        "sources:\n  - tail: {path: /a}\n",
        "every: 5\n",
        "every: 5 minutes # c\n",
        "enabled: yes\n",
        "ingest:\n  queue: -3\n",
        "ingest: {queue: many}\n",
        "listen: a\nlisten: b\n",
        "listen: [a\n",
        "listen:\n\t- a\n",
        "- a\n",
        "ingest: 5\n",
        "listen: {a: 1}\n",
        "listen: \"abc\n",
        "sources: {tail: 1}\n",
        "listen: ü\n\u{fc}x: 1\n",
        "sources:\n  - socket: {paht: x}\n",
        "&a listen: *b",
    ] {
        println!("{}\n", message(t));
    }
}
