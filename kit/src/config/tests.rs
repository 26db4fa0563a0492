use proptest::prelude::*;
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

/// Errors between values are shown at their places, all in one text.
#[test]
fn mistakes_between_values_are_shown_where_they_are() {
    let text = "a:\n  - b: [x, yy]\nc: 1\n";
    let shown = |messages: &[&str]| {
        ConfigError::at_paths("a.yml", text, messages.iter().map(|m| (*m).to_owned()).collect()).to_string()
    };
    assert_eq!(
        shown(&["a[0].b[1]: bad"]),
        "a.yml:2:12: a[0].b[1]: bad\n  |\n2 |   - b: [x, yy]\n  |            ^^"
    );
    // A missing key is shown where it belongs; an unknown path is shown without a place.
    assert!(shown(&["a[0].d: is missing"]).starts_with("a.yml:2:5: "), "{}", shown(&["a[0].d: is missing"]));
    assert_eq!(shown(&["z: bad", "no path"]), "a.yml: z: bad\na.yml: no path");
}

#[test]
fn mistakes_are_pointed_at() {
    let mistakes = [
        "listn: x\n",
        "listen: x\nsources:\n  - tail: {path: /a, format: atuo}\n",
        "sources:\n  - tial: {path: /a}\n",
        "sources:\n  - tail: {path: /a}\n",
        "sources:\n  - socket: {paht: x}\n",
        "sources: {tail: 1}\n",
        "every: 5\n",
        "every: 5 minutes # why not\n",
        "enabled: yes\n",
        "ingest:\n  queue: -3\n",
        "ingest: 5\n",
        "listen: a\nlisten: b\n",
        "listen: {a: 1}\n",
        "listen: [a\n",
        "listen:\n\t- a\n",
        "listen: \"abc\n",
        "- a\n",
        "&a listen: *b\n",
        "listen: \u{fc}\n\u{fc}x: 1\n",
    ];
    insta::assert_snapshot!(mistakes.map(message).join("\n\n"));
}

#[test]
fn a_secret_beside_the_mistake_is_not_shown() {
    for line in [
        "{token: hunter2, listn: x}",
        "{token: 'hunter2, }', listn: x}",
        "{\"api_secret\" : \"hunter2\", listn: x}",
        "{listn: x, slack_token: hunter2}",
    ] {
        let shown = message(line);
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("listn: x"), "{shown}");
    }
    let shown = message("{token_file: /etc/token, listn: x}");
    assert!(shown.contains("/etc/token"), "{shown}");
}

#[test]
fn an_address_is_shown_without_its_password_and_question() {
    for (text, want) in [
        (
            r#"{url: "http://me:hunter2@x.org/a?key=hunter2#b", c: 1}"#,
            r#"{url: "http://**********@x.org/a?*************", c: 1}"#,
        ),
        ("urls: [http://hunter,2@x:1, https://y/a@b]", "urls: [http://********@x:1, https://y/a@b]"),
        ("url: 'http://x/a?b' # ://hunter2@", "url: 'http://x/a?*' # ://*******@"),
        ("{url: hunter2, c: 1}", "{url: *******, c: 1}"),
    ] {
        let shown = ConfigError::at_paths("a.yml", text, vec!["url: bad".into()]).to_string();
        let shown = shown.lines().nth(2).unwrap_or_default().trim_start_matches("1 | ").to_owned();
        assert!(text.starts_with("urls:") || shown == want, "{shown}");
        assert!(!shown.contains("hunter"), "{shown}");
    }
}

#[test]
fn blank_files_are_configurations_of_defaults() {
    for text in ["", "\n\n", "# nothing\n", "---\n"] {
        assert_eq!(parse::<Sample>("sample.yml", text).unwrap(), Sample::default(), "{text:?}");
    }
}

#[test]
fn a_whole_file_is_read() {
    let text =
        "listen: ':9'\nevery: 5m\nenabled: true\ntoken: abc\nsources:\n  - tail: {path: /a, format: auto}\n";
    let sample: Sample = parse("sample.yml", text).unwrap();
    assert_eq!(sample.every, Some(Period::secs(300)));
    assert_eq!(sample.token.unwrap().expose(), "abc");
    assert_eq!(sample.sources, [Source::Tail(Tail { path: "/a".into(), format: Format::Auto })]);
}

#[test]
fn a_missing_file_is_named() {
    let err = load::<Sample>(Path::new("/nonexistent/sample.yml")).unwrap_err().to_string();
    assert!(err.starts_with("/nonexistent/sample.yml: cannot read the file"), "{err}");
}

#[test]
fn all_cross_field_errors_are_reported() {
    let err = ConfigError::many("a.yml", vec!["routes[0]: no receiver \"x\"".into(), "no sources".into()]);
    assert_eq!(err.to_string(), "a.yml: routes[0]: no receiver \"x\"\na.yml: no sources");
}

proptest! {
    #[test]
    fn never_panics(text in "([a-z]{1,8}|: |- |\n|  |\"|'|[{}\\[\\],&*|>!#%@`\t]|\\PC){0,40}") {
        let _ = ConfigError::at_paths("sample.yml", &text, vec!["a[0].b: bad".into()]).to_string();
        if let Err(err) = parse::<Sample>("sample.yml", &text) {
            let _ = err.to_string();
            let _ = err.without_values().to_string();
        }
    }

    #[test]
    fn a_mutated_file_never_panics(at in 0usize..100, with in any::<char>()) {
        let text = "listen: ':9'\nsources:\n  - tail: {path: /a, format: auto}\ntoken: 'abc'\n";
        let mut chars: Vec<char> = text.chars().collect();
        let at = at % chars.len();
        chars[at] = with;
        if let Err(err) = parse::<Sample>("sample.yml", &chars.into_iter().collect::<String>()) {
            let _ = err.to_string();
        }
    }
}
