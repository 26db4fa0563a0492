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

/// A fault that an exporter reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub topic: Topic,
    /// The name, such as `xid`, `mlx5_0/1` or `gpu_lost`.
    pub name: String,
    /// The number of an XID; 0 for other faults.
    pub number: i64,
    /// The state of a link: `down`, `drop`, `flap`, `errors` or `degraded`. Empty for other faults.
    pub state: String,
    pub said: Said,
}

/// The exporter's explanation of a fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    Nothing,
    /// The name of the fault in the vendor's catalogue, and the catalogue's advice.
    Named {
        name: String,
        hint: Option<String>,
    },
    /// The exporter's own sentence, which names the fault.
    Sentence {
        text: String,
    },
}

impl Fault {
    pub fn new(topic: Topic, name: &str, number: i64, state: &str) -> Self {
        Self { topic, name: name.into(), number, state: state.into(), said: Said::Nothing }
    }

    /// Adds a sentence of the exporter, unless it is empty.
    pub fn with_sentence(mut self, text: &str) -> Self {
        let text = sentence(text);
        if !text.is_empty() {
            self.said = Said::Sentence { text: text.to_owned() };
        }
        self
    }

    /// Adds the name in the vendor's catalogue, and the catalogue's advice unless it is empty.
    pub fn with_name(self, name: &str, hint: &str) -> Self {
        let hint = Some(sentence(hint)).filter(|hint| !hint.is_empty()).map(str::to_owned);
        Self { said: Said::Named { name: name.to_owned(), hint }, ..self }
    }

    /// The title for messages, such as `XID 79`, `GPU lost` or `link down`.
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

/// Trims the full stop, because more text may follow.
fn sentence(text: &str) -> &str {
    text.trim().trim_end_matches('.')
}
