//! The configuration of files to follow, and its checks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stepwatch_formats::{LogReader, MAX_KEYS, Rule, RuleError};
use stepwatch_kit::config::Period;
use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, Value};

use super::find::is_pattern;
use crate::reach::{Reach, View};
use crate::training::mfu::Model;
use crate::training::peaks;

/// The most dimensions of a model in one entry.
const MAX_DIMENSIONS: usize = 128;

/// Where to begin in a file that is seen for the first time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// At its start, unless it was not written to for a day. Then it is the log of a finished job,
    /// and only appended text counts.
    #[default]
    Auto,
    Start,
    End,
}

/// `tail: {path: /logs/run.log, format: auto, run: llama-70b}`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TailConfig {
    /// A file, a pattern with `*`, `?`, `[…]` and `**`, or a directory that is searched; relative
    /// to the working directory.
    pub path: String,
    /// A name of `stepwatch-formats`; `auto` detects it by the name and the contents of the file.
    #[serde(default = "auto")]
    pub format: String,
    /// The run it belongs to; otherwise the run that the lines give, or else the name of the file
    /// or its directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The run of the process with which discovery found the file.
    #[serde(skip)]
    pub found: Option<String>,
    /// The process whose rights limit the path; `None` if the operator configured the path.
    #[serde(skip)]
    pub(crate) view: Option<Arc<View>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The host that the file reports, if it is not this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// For JSON lines: from our name for a value (`step`, `ts`, `loss`, …) to its key, with dots
    /// for nested objects.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<String, String>,
    /// A rule for lines of a custom format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    /// Several rules, if steps and evaluations are printed in different ways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    #[serde(default)]
    pub from: From,
    #[serde(default = "poll_interval")]
    pub poll_interval: Period,
    /// The number of processes, one a GPU. A log contains neither this nor the following, but MFU
    /// needs it. A trainer with the client reports it itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world: Option<u32>,
    /// Dimensions of the model, under our names or those of Hugging Face's `config.json`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub model: BTreeMap<String, Dimension>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
}

/// One entry of `model`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dimension {
    Flag(bool),
    Number(f64),
    Text(String),
    /// A null, as GPT-2 has it for `n_inner`.
    Null,
}

fn auto() -> String {
    "auto".into()
}

fn poll_interval() -> Period {
    Period::millis(250)
}

impl TailConfig {
    /// The configuration of the file at `path`, with all defaults.
    pub(in crate::sources) fn for_path(path: &Path) -> Self {
        Self {
            path: glob::Pattern::escape(&path.to_string_lossy()),
            format: auto(),
            run: None,
            found: None,
            view: None,
            rank: None,
            node: None,
            keys: BTreeMap::new(),
            rule: None,
            rules: Vec::new(),
            from: From::default(),
            poll_interval: poll_interval(),
            world: None,
            model: BTreeMap::new(),
            dtype: None,
            gpu: None,
            framework: None,
        }
    }

    /// The errors of the configuration, each as `key: reason`.
    pub(in crate::sources) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.path.is_empty() {
            wrong.push("path: must not be empty".into());
        }
        if let Err(err) = glob::Pattern::new(&self.path) {
            wrong.push(format!("path: {err}"));
        }
        if let Err(err) = LogReader::new(Some(&self.format)) {
            wrong.push(format!("format: {err}"));
        }
        if self.keys.len() > MAX_KEYS {
            wrong.push(format!("keys: {} entries, the limit is {MAX_KEYS}", self.keys.len()));
        }
        if !self.keys.is_empty() && !self.keys.contains_key("step") {
            wrong.push("keys: must give the key of the step (step: ...)".into());
        }
        if !self.keys.is_empty() && !matches!(self.format.as_str(), "auto" | "jsonl") {
            wrong.push(format!("keys: are for JSON lines, but the format is {}", self.format));
        }
        wrong.extend(self.check_rules());
        if self.poll_interval < Period::millis(10) {
            wrong.push("poll_interval: must be at least 10ms".into());
        }
        wrong.extend(self.check_about());
        wrong
    }

    pub(super) fn reader(&self) -> LogReader {
        // The rules and the name were checked when the configuration was read.
        let rules = self.all_rules();
        let made = if !self.keys.is_empty() {
            None
        } else if rules.is_empty() {
            LogReader::new(Some(&self.format)).or_else(|_| LogReader::new(None)).ok()
        } else {
            LogReader::with_rules(&rules).ok()
        };
        let keys = || self.keys.iter().map(|(ours, theirs)| (ours.as_str(), theirs.as_str()));
        made.unwrap_or_else(|| LogReader::with_keys(keys()))
    }

    /// Whether formats are detected; otherwise all files are lines of the configured one.
    pub(super) fn recognises(&self) -> bool {
        self.format == "auto" && self.keys.is_empty() && self.all_rules().is_empty()
    }

    /// Whether the path may match several files, some of which may be gone.
    pub(super) fn is_pattern(&self) -> bool {
        is_pattern(&self.path)
    }

    /// The limits on where its paths may lead.
    pub(super) fn reach(&self) -> Reach {
        match &self.view {
            Some(view) => Reach::Of(Arc::clone(view)),
            None if self.is_pattern() => Reach::of_pattern(&self.path),
            None => Reach::Below(PathBuf::from(&self.path)),
        }
    }

    fn check_rules(&self) -> Vec<String> {
        let numbered = self.rules.iter().enumerate().map(|(i, rule)| (format!("rules[{i}]"), rule));
        let named = self.rule.iter().map(|rule| ("rule".to_owned(), rule)).chain(numbered);
        let mut wrong: Vec<String> = named
            .filter_map(|(key, rule)| {
                let RuleError { field, reason } = LogReader::with_rule(rule).err()?;
                // If an error has several lines, as those of expressions do, the last one has the
                // reason.
                let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
                Some(if field == "rule" {
                    format!("{key}: {reason}")
                } else {
                    format!("{key}.{field}: {reason}")
                })
            })
            .collect();
        let key = if self.rules.is_empty() { "rule" } else { "rules" };
        let all = self.all_rules();
        if wrong.is_empty() && !all.is_empty() {
            wrong.extend(LogReader::with_rules(&all).err().map(|err| format!("{key}: {}", err.reason)));
        }
        if !all.is_empty() && (!self.keys.is_empty() || self.format != "auto") {
            wrong.push(format!("{key}: takes the place of format and keys, so set only one of them"));
        }
        wrong
    }

    fn all_rules(&self) -> Vec<Rule> {
        self.rule.iter().chain(&self.rules).cloned().collect()
    }

    fn check_about(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.world == Some(0) {
            wrong.push("world: must be at least 1".into());
        }
        if self.model.len() > MAX_DIMENSIONS {
            wrong.push(format!("model: {} entries, the limit is {MAX_DIMENSIONS}", self.model.len()));
        }
        if let (false, Some(hello)) = (self.model.is_empty(), self.hello()) {
            let model = Model::from_hello(&hello.extra);
            if let Some(why) = model.refused() {
                wrong.push(format!("model: has no formula: {why}"));
            }
            if !model.is_known() && model.name.is_none() {
                wrong.push(
                    "model: has nothing that FLOPs could be counted from: n_params, or layers, hidden_size and the like"
                        .into(),
                );
            }
        }
        for (key, value) in self.labels() {
            if value == Some("") {
                wrong.push(format!("{key}: must not be empty"));
            }
        }
        let named = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
        if let Some(err) = named(&self.dtype).and_then(|t| peaks::check_dtype(&t)) {
            wrong.push(format!("dtype: {err}"));
        }
        if let Some(err) = named(&self.gpu).and_then(|name| peaks::check_name(&name)) {
            wrong.push(format!("gpu: {err}"));
        }
        wrong
    }

    fn labels(&self) -> [(&'static str, Option<&str>); 3] {
        let of = Option::<String>::as_deref;
        [("dtype", of(&self.dtype)), ("gpu", of(&self.gpu)), ("framework", of(&self.framework))]
    }

    /// The `hello` that a trainer with the client would have sent at its start; `None` if it would
    /// be empty. Its `source` shows that no process sent it.
    pub(super) fn hello(&self) -> Option<Event> {
        let labels = self.labels().into_iter().filter_map(|(key, value)| Some((key, value?)));
        if self.world.is_none() && self.model.is_empty() && labels.clone().next().is_none() {
            return None;
        }
        let mut hello = Event { world: self.world, ..Event::new(Kind::Hello) };
        hello.extra.insert(hello::SOURCE.into(), Value::Text(hello::CONFIGURED.into()));
        for (key, value) in labels {
            hello.extra.insert(key.into(), Value::Text(value.into()));
        }
        if !self.model.is_empty() {
            let model = self.model.iter().map(|(name, value)| (name.clone(), value.to_wire())).collect();
            hello.extra.insert("model".into(), Value::Map(model));
        }
        Some(hello)
    }
}

impl Dimension {
    fn to_wire(&self) -> Value {
        match self {
            Self::Flag(flag) => Value::Bool(*flag),
            Self::Number(number) => Value::Number(*number),
            Self::Text(text) => Value::Text(text.clone()),
            Self::Null => Value::Null,
        }
    }
}
