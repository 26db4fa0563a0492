//! The JSON types of Alertmanager's API.

use core::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use stepwatch_model::time::Ts;
use stepwatch_respond::external::LabelSet;
use utoipa::ToSchema;

use crate::api::doc::{examples, schema};
use crate::api::view::{When, instant};

/// An optional time: Go writes the year 1 for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moment(pub(super) Option<Ts>);

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(examples(examples::postable_alert))]
pub(super) struct PostableAlert {
    #[schema(value_type = schema::LabelSet)]
    pub(super) labels: LabelSet,
    #[serde(default)]
    #[schema(value_type = Option<schema::Labels>)]
    pub(super) annotations: Option<LabelSet>,
    #[serde(default)]
    #[schema(value_type = Option<schema::TimeOrNone>)]
    pub(super) starts_at: Moment,
    #[serde(default)]
    #[schema(value_type = Option<schema::TimeOrNone>)]
    pub(super) ends_at: Moment,
    #[serde(default, rename = "generatorURL")]
    #[schema(value_type = Option<String>)]
    pub(super) generator_url: Option<Box<str>>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct GettableAlert {
    #[schema(value_type = schema::Labels)]
    pub(super) annotations: LabelSet,
    pub(super) ends_at: When,
    pub(super) fingerprint: String,
    pub(super) receivers: Vec<Name>,
    pub(super) starts_at: When,
    pub(super) status: AlertStatus,
    pub(super) updated_at: When,
    #[serde(rename = "generatorURL", skip_serializing_if = "str::is_empty")]
    #[schema(value_type = String)]
    pub(super) generator_url: Box<str>,
    #[schema(value_type = schema::Labels)]
    pub(super) labels: LabelSet,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AlertStatus {
    pub(super) inhibited_by: Vec<String>,
    /// Of Alertmanager 0.28 and later.
    pub(super) muted_by: Vec<String>,
    pub(super) silenced_by: Vec<String>,
    pub(super) state: AlertState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum AlertState {
    Active,
    Suppressed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Name {
    pub(super) name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MatcherView {
    /// Absent in requests of clients from before 0.22: positive.
    #[serde(default = "yes")]
    pub(super) is_equal: bool,
    pub(super) is_regex: bool,
    #[schema(value_type = schema::LabelName)]
    pub(super) name: String,
    #[schema(max_length = 2048)]
    pub(super) value: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(examples(examples::postable_silence))]
pub(super) struct PostableSilence {
    #[serde(default)]
    pub(super) id: String,
    #[schema(min_items = 1, max_items = 32)]
    pub(super) matchers: Vec<MatcherView>,
    #[schema(value_type = Option<schema::TimeOrNone>)]
    pub(super) starts_at: Moment,
    #[schema(value_type = When)]
    pub(super) ends_at: Moment,
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    pub(super) created_by: String,
    #[schema(min_length = 1, max_length = 2000, pattern = r"\S")]
    pub(super) comment: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct GettableSilence {
    pub(super) id: String,
    pub(super) status: SilenceStatus,
    pub(super) updated_at: When,
    pub(super) comment: String,
    pub(super) created_by: String,
    pub(super) ends_at: When,
    pub(super) matchers: Vec<MatcherView>,
    pub(super) starts_at: When,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SilenceStatus {
    #[schema(value_type = schema::SilenceState)]
    pub(super) state: stepwatch_respond::silence::Phase,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SilenceId {
    #[serde(rename = "silenceID")]
    pub(super) silence_id: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusView {
    pub(super) cluster: Cluster,
    pub(super) config: ConfigText,
    pub(super) uptime: When,
    pub(super) version_info: VersionInfo,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Cluster {
    pub(super) name: &'static str,
    pub(super) status: &'static str,
    pub(super) peers: Vec<Name>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ConfigText {
    pub(super) original: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct VersionInfo {
    pub(super) branch: &'static str,
    pub(super) build_date: &'static str,
    pub(super) build_user: &'static str,
    pub(super) go_version: &'static str,
    pub(super) revision: &'static str,
    pub(super) version: &'static str,
}

fn yes() -> bool {
    true
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Moment;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time in RFC 3339")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Moment, E> {
                if text.is_empty() {
                    return Ok(Moment(None));
                }
                let time = instant(text).map_err(E::custom)?;
                Ok(Moment(Some(Ts(time.as_millisecond())).filter(|ts| ts.0 > 0)))
            }

            fn visit_unit<E: serde::de::Error>(self) -> Result<Moment, E> {
                Ok(Moment(None))
            }
        }

        d.deserialize_any(Text)
    }
}
