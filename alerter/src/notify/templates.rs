//! The `templates` section, with which operators define their own text.

use serde::{Deserialize, Serialize};

/// The `templates` section, for all receivers or for one, where each key replaces the common one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TemplatesConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Lines after the built-in ones; a line that renders to nothing is omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<Vec<FactTemplate>>,
    /// Links after the built-in ones; a link that renders to nothing is omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<Vec<LinkTemplate>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FactTemplate {
    pub label: String,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkTemplate {
    pub text: String,
    pub href: String,
}
