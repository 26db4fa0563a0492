//! Stored state has no names of fields, so a type that changes makes a new version of all of it.
//! `alerter/engine/tests/stored_layout.txt` has the version and a fingerprint of every type that
//! may be stored.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "it reads the sources, not the engine")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stepwatch_model::Kind;
use stepwatch_model::stored::STATE_VERSION;

const FILE: &str = "tests/stored_layout.txt";
const ROOMS: [&str; 3] = ["model/src", "detect/src", "respond/src"];
const HOW: &str = "raise STATE_VERSION (alerter/model/src/stored.rs), then \
                   STEPWATCH_BLESS=1 cargo test -p stepwatch-engine stored_layout; \
                   if none of these is ever stored: STEPWATCH_BLESS=unstored";

/// By file and name.
type Layout = BTreeMap<String, String>;

/// FNV-1a, of 64 bits.
fn fingerprint(text: &str) -> String {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "tests" {
            files(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs")
            && !["tests.rs", "config.rs"].contains(&name)
        {
            found.push(path);
        }
    }
}

/// The types of a file that can be read back, each with its fields, without comments. Those that
/// refuse unknown keys are settings, which are not stored.
fn types(text: &str) -> Vec<(String, String)> {
    let product = text.find("#[cfg(test)]\nmod tests {").map_or(text, |at| &text[..at]);
    let mut found = Vec::new();
    let mut lines = product.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    while let Some(line) = lines.next() {
        if !(line.starts_with("#[derive(") && line.contains("Deserialize")) {
            continue;
        }
        let (mut item, mut depth, mut name) = (String::new(), 0_i32, None);
        for line in lines.by_ref() {
            let words =
                line.split([' ', '(', '<', '{', ';', ':']).skip_while(|w| !matches!(*w, "struct" | "enum"));
            name = name.or_else(|| words.clone().nth(1).map(str::to_owned));
            item.extend(line.split(" //").next().unwrap_or_default().chars().filter(|c| !c.is_whitespace()));
            depth += line
                .chars()
                .map(|c| i32::from(matches!(c, '{' | '(')) - i32::from(matches!(c, '}' | ')')))
                .sum::<i32>();
            if name.is_some() && depth == 0 && (line.ends_with('}') || line.ends_with(';')) {
                break;
            }
        }
        if !item.contains("deny_unknown_fields") {
            found.push((name.unwrap(), item));
        }
    }
    found
}

fn layout() -> Layout {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
    let mut layout = Layout::new();
    for room in ROOMS {
        let mut all = Vec::new();
        files(&root.join(room), &mut all);
        for path in all {
            let text = std::fs::read_to_string(&path).unwrap();
            let shown = path.strip_prefix(&root).unwrap().display();
            for (name, item) in types(&text) {
                layout.insert(format!("{shown} {name}"), fingerprint(&item));
            }
        }
    }
    // Of enums that a table makes, their rows in order.
    let kinds: String = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
    layout.insert("model/src/kind.rs Kind".into(), fingerprint(&kinds));
    let registry = std::fs::read_to_string(root.join("detect/src/detectors.rs")).unwrap();
    let rows = registry.lines().map(str::trim).filter(|line| line.contains("::") && line.ends_with(','));
    layout.insert("detect/src/detectors.rs detectors!".into(), fingerprint(&rows.collect::<String>()));
    layout
}

fn kept(text: &str) -> (u8, Layout) {
    let mut lines = text.lines();
    let version = lines.next().and_then(|line| line.strip_prefix("version ")?.parse().ok());
    let rows = lines.filter_map(|line| line.rsplit_once(' '));
    (version.unwrap_or(0), rows.map(|(name, hash)| (name.to_owned(), hash.to_owned())).collect())
}

#[test]
fn a_stored_type_that_changes_makes_a_new_version() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let (version, before) = kept(&std::fs::read_to_string(&path).unwrap_or_default());
    let now = layout();
    assert!(now.len() > 100, "{}", now.len());
    let names = before.keys().chain(now.keys());
    let mut changed: Vec<_> = names.filter(|name| before.get(*name) != now.get(*name)).collect();
    changed.sort();
    changed.dedup();
    let bless = std::env::var("STEPWATCH_BLESS").ok();
    let allowed = version != STATE_VERSION || bless.as_deref() == Some("unstored");
    if bless.is_some() && allowed {
        let rows = now.iter().map(|(name, hash)| format!("{name} {hash}"));
        let lines: Vec<_> = [format!("version {STATE_VERSION}")].into_iter().chain(rows).collect();
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        return;
    }
    assert!(changed.is_empty(), "{changed:#?} changed: {HOW}");
    assert_eq!(version, STATE_VERSION, "{HOW}");
}

#[test]
fn fields_make_a_type_and_comments_do_not() {
    let of = |text: &str| types(text);
    let one = "/// Words.\n#[derive(Debug, Serialize, Deserialize)]\npub struct A {\n    /// More.\n    b: u8, // why\n}\n";
    assert_eq!(of(one), [("A".to_owned(), "pubstructA{b:u8,}".to_owned())]);
    let two = "#[derive(Deserialize)]\n#[serde(skip)]\nstruct B(u8);\nstruct C;\n#[derive(Deserialize)]\nenum D { E { f: u8 }, G }";
    let names: Vec<_> = of(two).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["B", "D"]);
    assert!(of("#[derive(Deserialize)]\n#[serde(deny_unknown_fields)]\nstruct S {\n}\n").is_empty());
}
