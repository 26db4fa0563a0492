//! The metric families of the two programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{bins, daemon};

/// A family of the exporter, as in its reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    pub name: String,
    /// The type: `gauge`, `counter` or `histogram`.
    pub kind: String,
    pub labels: Vec<String>,
}

/// The output of `stepwatch-exporter metrics` in this format.
pub async fn exporter_reference(format: &str) -> anyhow::Result<String> {
    let mut metrics = daemon::command(bins::path(bins::EXPORTER)?);
    let out = metrics.args(["metrics", "--format", format]).output().await?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(String::from_utf8(out.stdout)?)
}

/// All families of the exporter.
pub async fn exporter() -> anyhow::Result<Vec<Family>> {
    let reference: Vec<Value> = serde_json::from_str(&exporter_reference("json").await?)?;
    let text = |family: &Value, key: &str| Some(family[key].as_str()?.to_owned());
    let labels = |family: &Value| family["labels"].as_array().cloned().unwrap_or_default();
    let read = |family: &Value| {
        let names = labels(family).iter().filter_map(|label| Some(label.as_str()?.to_owned())).collect();
        Some(Family { name: text(family, "name")?, kind: text(family, "kind")?, labels: names })
    };
    reference.iter().map(|family| read(family).context("a family of the reference")).collect()
}

/// The families that the alerter's code registers. It has no reference, and a page shows only
/// families with a sample. Counters are registered without `_total`.
pub fn alerter() -> BTreeSet<String> {
    let mut found = BTreeSet::from(["stepwatch_alerter_build_info".to_owned()]);
    for path in [files("alerter/src", "rs"), files("kit/src", "rs")].concat() {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // Families that tests register are not those of the program.
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let calls = text.split("register(").skip(1).map(str::trim_start);
        let calls =
            calls.filter_map(|c| c.strip_prefix("format!(\"{program}_").or_else(|| c.strip_prefix('"')));
        let names = calls.filter_map(|c| c.split('"').next()).filter(|name| !name.contains('{'));
        found.extend(encoded(text));
        found.extend(
            names.map(|n| format!("stepwatch_alerter_{}", n.trim_start_matches("stepwatch_alerter_"))),
        );
    }
    found
}

/// The families that a collector encodes itself and does not register.
fn encoded(text: &str) -> Vec<String> {
    if !text.contains("encode_descriptor(") {
        return Vec::new();
    }
    let words = text.split('"').skip(1).step_by(2);
    let ours = |word: &&str| {
        let name = word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        name && (word.starts_with("train_") || word.starts_with("stepwatch_alerter_"))
    };
    words.filter(ours).map(str::to_owned).collect()
}

/// The files below a directory of this repository with this extension, except tests.
fn files(dir: &str, extension: &str) -> Vec<PathBuf> {
    fn walk(dir: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, extension, found);
            } else if path.extension().is_some_and(|e| e == extension) && !path.ends_with("tests.rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&bins::root().join(dir), extension, &mut found);
    found
}
