//! A fault that an exporter reports of its node.

use serde::{Deserialize, Serialize};

/// The kind of event that reports a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    Xid,
    Link,
    Hw,
}

/// One reported fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub topic: Topic,
    /// `xid`, `mlx5_0/1`, `gpu_lost`.
    pub name: String,
    /// Number of an XID, else 0.
    pub number: i64,
    /// Of a link: `down`, `drop`, `flap`, `errors`, `degraded`.
    pub state: String,
    pub said: Said,
}

/// How the exporter explained it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    Nothing,
    /// The name of the fault in the vendor's catalogue, and the catalogue's advice.
    Named {
        name: String,
        hint: Option<String>,
    },
    /// A sentence of its own. `titled`: it begins with the title of the fault.
    Sentence {
        text: String,
        titled: bool,
    },
}

impl Fault {
    pub fn new(topic: Topic, name: &str, number: i64, state: &str) -> Self {
        Self { topic, name: name.into(), number, state: state.into(), said: Said::Nothing }
    }

    /// The same with a sentence of the exporter, unless that is empty.
    pub fn with_sentence(mut self, text: &str) -> Self {
        let text = sentence(text);
        if !text.is_empty() {
            self.said = Said::Sentence { titled: text.starts_with(&self.title()), text: text.to_owned() };
        }
        self
    }

    /// The same with its name in the vendor's catalogue, and the catalogue's advice, which may be
    /// empty.
    pub fn with_name(self, name: &str, hint: &str) -> Self {
        let hint = Some(sentence(hint)).filter(|hint| !hint.is_empty()).map(str::to_owned);
        Self { said: Said::Named { name: name.to_owned(), hint }, ..self }
    }

    /// `XID 79`, `GPU lost`, `link down`.
    pub fn title(&self) -> String {
        match (self.topic, self.state.as_str()) {
            (Topic::Xid, _) => format!("{} {}", self.name.to_ascii_uppercase(), self.number),
            (Topic::Link, "drop") => "link down".into(),
            (Topic::Link, "flap") => "link flapping".into(),
            (Topic::Link, "errors") => "link errors".into(),
            (Topic::Link, state) => format!("link {state}"),
            (Topic::Hw, _) => {
                let words = self.name.replace('_', " ");
                match words.split_once(' ') {
                    Some((
                        word @ ("gpu" | "nvml" | "ecc" | "nfs" | "aer" | "oom" | "ras" | "sram"),
                        rest,
                    )) => {
                        format!("{} {rest}", word.to_ascii_uppercase())
                    }
                    _ => words,
                }
            }
        }
    }

    /// The name of the fault in the vendor's catalogue.
    pub fn known_as(&self) -> Option<&str> {
        match &self.said {
            Said::Named { name, .. } => Some(name),
            Said::Nothing | Said::Sentence { .. } => None,
        }
    }
}

/// Without the full stop, because more may follow.
fn sentence(text: &str) -> &str {
    text.trim().trim_end_matches('.')
}
