//! `templates:`, the operator's own words, as the configuration has them.

use serde::{Deserialize, Serialize};

/// `templates:`, for all receivers or in one of them, where each key replaces the common one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TemplatesConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Lines after the built-in ones; one that renders to nothing is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<Vec<FactTemplate>>,
    /// Links after the built-in ones; one that renders to nothing is left out.
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
