//! The JSON of silences.

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Span;
use stepwatch_respond::matcher::{Labels, Matcher};
use stepwatch_respond::silence::Phase;
use utoipa::ToSchema;

use super::{IncidentView, When};
use crate::api::doc::{examples, schema};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SilenceList {
    pub silences: Vec<SilenceView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::silence))]
pub struct SilenceView {
    pub id: String,
    #[schema(value_type = schema::SilenceState)]
    pub state: Phase,
    /// Each as `label="value"`, `!=`, `=~` or `!~`.
    #[schema(value_type = Vec<schema::Matcher>)]
    pub matchers: Vec<Matcher>,
    pub starts_at: When,
    pub ends_at: When,
    pub created_by: String,
    pub comment: String,
    pub updated_at: When,
    /// It ends by itself when the last incident that it matches resolves.
    pub expire_on_resolve: bool,
    /// The run that announced a planned restart.
    pub planned_by: Option<String>,
    /// Open incidents that it suppresses.
    pub incidents: Vec<String>,
    /// In the answer to a new silence: warnings about labels that nothing has had yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A silence to create or change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(examples::wish))]
pub struct WishView {
    /// The id of the silence to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// All of them must hold, and at least one must not match an absent label.
    #[schema(value_type = Vec<schema::Matcher>, min_items = 1, max_items = 32)]
    pub matchers: Vec<Matcher>,
    /// Now unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<When>,
    /// Exactly one of this and `duration` is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<When>,
    /// Instead of `ends_at`: `30m`, `2h`, `1d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Duration>)]
    pub duration: Option<Span>,
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    pub created_by: String,
    /// The reason: people must not be kept from news without one.
    #[schema(min_length = 1, max_length = 2000, pattern = r"\S")]
    pub comment: String,
    #[serde(default)]
    pub expire_on_resolve: bool,
}

/// The incidents that a silence would suppress, and would have suppressed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PreviewView {
    pub open: Vec<IncidentView>,
    /// Resolved ones that opened within the last `days`.
    pub recent: Vec<IncidentView>,
    /// Labels of the alerts of other programs that fire and match.
    #[schema(value_type = Vec<schema::Labels>)]
    pub alerts: Vec<Labels>,
    pub days: u32,
    /// False if there were more incidents than were examined.
    pub complete: bool,
}
