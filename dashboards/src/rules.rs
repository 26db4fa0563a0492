//! Prometheus rules, made of `rules/source/` and one file of parameters: plain YAML for a
//! Prometheus, and a `PrometheusRule` for its operator.
//!
//! The sources are YAML that says nothing of clusters. Here the label of the cluster is added to
//! every `by` and `on`, so that no rule can forget it, and `<name>` is replaced by a parameter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Where the sources and the parameters are, from the root of the repository.
const SOURCE: &str = "rules/source";
const PARAMETERS: &str = "parameters.yml";
/// The files, in the order in which they are evaluated: records before what reads them.
const FILES: &[&str] = &["recording.yml", "training.yml", "exporter.yml", "node.yml", "alerter-self.yml"];
/// Where the manifest is, from the root.
const MANIFEST: &str = "deploy/kubernetes/prometheus-rule.yml";
/// Where the links of the sources lead.
pub const RUNBOOKS: &str = "https://github.com/stepwatch/stepwatch/blob/main/docs/runbooks";
/// How the title of an alert asks for the index of a GPU, and what it asks with.
const LOOK_UP: &str = r#"gpu_info{instance='%s',"#;
const LOOKED_UP_WITH: &str = r#"\" $labels.instance $labels.gpu | query"#;

/// What differs from one site to the next; `rules/source/parameters.yml` describes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    pub cluster_label: String,
    pub runbooks: String,
    pub selectors: BTreeMap<String, String>,
    pub thresholds: BTreeMap<String, f64>,
    pub manifest: Manifest,
}

/// What the manifest is called.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug)]
pub enum RulesError {
    Read(PathBuf, std::io::Error),
    /// The file of parameters is not as it should be.
    Parameters(PathBuf, String),
    /// A `<name>` of a source that is no parameter.
    Unknown {
        file: &'static str,
        name: String,
    },
    /// Parameters that no source names: a misspelt one would have no effect.
    Unused(Vec<String>),
}

impl std::fmt::Display for RulesError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Parameters(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Unknown { file, name } => write!(f, "{SOURCE}/{file}: <{name}> is no parameter"),
            Self::Unused(names) => write!(f, "no rule uses these parameters: {}", names.join(", ")),
        }
    }
}

impl std::error::Error for RulesError {}

impl Parameters {
    /// Those that the committed rules are made with, or those of a file.
    pub fn read(file: Option<&Path>) -> Result<Self, RulesError> {
        let path = file.map_or_else(|| crate::root().join(SOURCE).join(PARAMETERS), Path::to_path_buf);
        let text = read(&path)?;
        serde_saphyr::from_str(&text).map_err(|why| RulesError::Parameters(path, why.to_string()))
    }

    fn value(&self, name: &str) -> Option<String> {
        let threshold = || self.thresholds.get(name).map(f64::to_string);
        self.selectors.get(name).cloned().or_else(threshold)
    }
}

fn read(path: &Path) -> Result<String, RulesError> {
    std::fs::read_to_string(path).map_err(|why| RulesError::Read(path.to_owned(), why))
}

/// All that is made of the sources: paths from the root of the repository, and contents.
pub fn generated(parameters: &Parameters) -> Result<Vec<(PathBuf, String)>, RulesError> {
    let mut used = BTreeSet::new();
    let (mut files, mut groups) = (Vec::new(), String::new());
    for file in FILES {
        let source = read(&crate::root().join(SOURCE).join(file))?;
        let rules = rendered(file, &source, parameters, &mut used)?;
        groups.push_str(rules.split_once("groups:\n").map_or("", |(_, groups)| groups));
        let head = format!(
            "# Made of {SOURCE}/{file} and {SOURCE}/{PARAMETERS} by `cargo run -p stepwatch-dashboards`.\n"
        );
        files.push((Path::new("rules").join(file), head + &rules));
    }
    let known = parameters.selectors.keys().chain(parameters.thresholds.keys());
    let unused: Vec<_> = known.filter(|name| !used.contains(*name)).cloned().collect();
    if !unused.is_empty() {
        return Err(RulesError::Unused(unused));
    }
    files.push((MANIFEST.into(), manifest(&parameters.manifest, &groups)));
    Ok(files)
}

fn rendered(
    file: &'static str,
    source: &str,
    parameters: &Parameters,
    used: &mut BTreeSet<String>,
) -> Result<String, RulesError> {
    let text = filled_in(file, source, parameters, used)?;
    let text = text.replace(RUNBOOKS, &parameters.runbooks);
    let label = parameters.cluster_label.as_str();
    if label.is_empty() {
        return Ok(text);
    }
    let text = text.replace(LOOK_UP, &format!("gpu_info{{{label}='%s',instance='%s',"));
    let with = format!(r#"\" $labels.{label} $labels.instance $labels.gpu | query"#);
    Ok(with_label(&text.replace(LOOKED_UP_WITH, &with), label))
}

/// With `<name>` replaced by parameters.
fn filled_in(
    file: &'static str,
    source: &str,
    parameters: &Parameters,
    used: &mut BTreeSet<String>,
) -> Result<String, RulesError> {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('<') {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let end = after[1..].find(|c| !is_name(c)).map_or(after.len(), |end| end + 1);
        if end == 1 || !after[end..].starts_with('>') {
            out.push('<');
            rest = &after[1..];
            continue;
        }
        let name = &after[1..end];
        let value =
            parameters.value(name).ok_or_else(|| RulesError::Unknown { file, name: name.to_owned() })?;
        out.push_str(&value);
        used.insert(name.to_owned());
        rest = &after[end + 1..];
    }
    Ok(out + rest)
}

/// With a label more in every list of labels behind `by` and `on`, comments left alone.
fn with_label(text: &str, label: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    let mut word = String::new();
    // Whether what was read last is `by` or `on`, and perhaps space.
    let mut behind_keyword = false;
    let mut rest = text.chars().peekable();
    let (mut in_comment, mut line_begins) = (false, true);
    while let Some(c) = rest.next() {
        if c == '\n' {
            (in_comment, line_begins) = (false, true);
        } else if line_begins && !c.is_whitespace() {
            (in_comment, line_begins) = (c == '#', false);
        }
        out.push(c);
        if in_comment {
            continue;
        }
        if c == '(' && (behind_keyword || is_keyword(&word)) {
            let is_last = rest.peek() == Some(&')');
            let _ = write!(out, "{label}{}", if is_last { "" } else { ", " });
        }
        if c.is_whitespace() {
            behind_keyword |= is_keyword(&word);
        } else {
            behind_keyword = false;
        }
        if c.is_ascii_alphanumeric() || matches!(c, '_' | ':') {
            word.push(c);
        } else {
            word.clear();
        }
    }
    out
}

fn is_keyword(word: &str) -> bool {
    matches!(word, "by" | "on")
}

/// A `PrometheusRule` of all groups, which are indented by two more.
fn manifest(of: &Manifest, groups: &str) -> String {
    let labels: Vec<_> = of.labels.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let mut out = format!(
        "# For the Prometheus operator; the same as the files of rules/ for a Prometheus without one. A Prometheus may ask for further\n\
         # labels (its ruleSelector; with kube-prometheus-stack the label release).\n\
         # Made of {SOURCE}/ by `cargo run -p stepwatch-dashboards`.\n\
         apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: {}\n  labels: {{{}}}\nspec:\n  groups:\n",
        of.name,
        labels.join(", ")
    );
    for line in groups.lines() {
        let indent = if line.is_empty() { "" } else { "  " };
        // Writing to a String does not fail.
        let _ = writeln!(out, "{indent}{line}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_is_in_every_list() {
        let text =
            "sum by (run) (x) and on\n  (instance) y and on () z # on (a)\n# by (run)\n  none(by_x) upon (z)";
        let want = "sum by (cluster, run) (x) and on\n  (cluster, instance) y and on (cluster) z # on (cluster, a)\n# by (run)\n  none(by_x) upon (z)";
        assert_eq!(with_label(text, "cluster"), want);
    }

    #[test]
    fn parameters_are_known_and_used() {
        let mut parameters = Parameters::read(None).unwrap();
        let mut used = BTreeSet::new();
        let filled = filled_in("node.yml", "a < 3 and b > <restarts>", &parameters, &mut used).unwrap();
        assert_eq!(filled, "a < 3 and b > 3");
        let unknown = filled_in("node.yml", "<nonsense>", &parameters, &mut used).unwrap_err();
        assert_eq!(unknown.to_string(), "rules/source/node.yml: <nonsense> is no parameter");
        parameters.thresholds.insert("nonsense".to_owned(), 1.0);
        let unused = generated(&parameters).unwrap_err();
        assert_eq!(unused.to_string(), "no rule uses these parameters: nonsense");
    }

    #[test]
    fn a_site_has_its_own_label_selectors_and_runbooks() {
        let mut parameters = Parameters::read(None).unwrap();
        parameters.cluster_label = "k8s_cluster".to_owned();
        parameters.runbooks = "https://runbooks.example.com".to_owned();
        parameters.selectors.insert("exporter".to_owned(), r#"job="gpu-nodes""#.to_owned());
        let files = generated(&parameters).unwrap();
        let all: String = files.into_iter().map(|(_, text)| text).collect();
        for part in [
            "by (k8s_cluster, instance, gpu)",
            "gpu_info{k8s_cluster='%s',instance='%s',gpu='%s',index!=''}\\\" $labels.k8s_cluster $labels.instance",
            "runbook_url: https://runbooks.example.com/gpu_fault.md",
            r#"up{job="gpu-nodes"}"#,
        ] {
            assert!(all.contains(part), "{part}");
        }
        assert!(!all.contains("github.com") && !all.contains(r#"job="stepwatch-exporter""#));
        parameters.cluster_label.clear();
        let files = generated(&parameters).unwrap();
        assert!(files.iter().all(|(_, text)| !text.contains("cluster,")), "a label that nobody wants");
    }
}
