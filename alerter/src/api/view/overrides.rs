//! The JSON of overrides of on-call schedules.

use serde::{Deserialize, Serialize};
use stepwatch_respond::oncall::OverridePhase;
use utoipa::ToSchema;

use super::When;
use crate::api::doc::{examples, schema};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OverrideList {
    pub overrides: Vec<OverrideView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::oncall_override))]
pub struct OverrideView {
    pub id: String,
    #[schema(value_type = schema::OverrideState)]
    pub state: OverridePhase,
    /// False if the configuration lacks the schedule, or a person or that person's receivers:
    /// whoever is on call without it is notified.
    pub effective: bool,
    /// False while it decides who is notified and is not yet on disk.
    pub stored: bool,
    pub schedule: String,
    /// Who is on call instead, and when: one, or the two of a swap.
    pub covers: Vec<CoverView>,
    pub created_by: String,
    /// The reason; may be empty.
    pub note: String,
    pub created_at: When,
    /// Who ended it before its time, and when.
    pub removed_by: Option<String>,
    pub removed_at: Option<When>,
    /// In the answer to a new one: the ids of those made before that overlap it. Where they do, the
    /// new one decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlaps: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CoverView {
    pub user: String,
    /// The user who is replaced; null if it is everybody.
    pub replaces: Option<String>,
    pub from: When,
    pub until: When,
}

/// An override to make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(examples::override_wish))]
pub struct OverrideWish {
    pub schedule: String,
    /// The user of the configuration who takes over.
    pub user: String,
    /// The user who is replaced, and must be on call in that time; everybody unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// Now unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Moment>)]
    pub from: Option<String>,
    /// At most 31 days later.
    #[schema(value_type = schema::Moment)]
    pub until: String,
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    pub created_by: String,
    #[serde(default)]
    #[schema(max_length = 200)]
    pub note: String,
}

/// A swap to make: each of the two takes the shift of the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(examples::swap_wish))]
pub struct SwapWish {
    pub schedule: String,
    pub first: TurnWish,
    pub second: TurnWish,
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    pub created_by: String,
    #[serde(default)]
    #[schema(max_length = 200)]
    pub note: String,
}

/// A person, and a time in which that person is on call without the swap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TurnWish {
    pub user: String,
    /// Now unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Moment>)]
    pub from: Option<String>,
    #[schema(value_type = schema::Moment)]
    pub until: String,
}
