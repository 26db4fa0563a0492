//! One incident with all that is known of it.

use serde::{Deserialize, Serialize};
use stepwatch_model::Plan;
use stepwatch_respond::effect::TimelineEntry;
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_respond::message::Link;
use utoipa::ToSchema;

use super::{DeliveryView, IncidentView, LinkView, TimelineView};
use crate::api::doc::schema;
use crate::postmortem::Cost;
use crate::store::Delivery;

/// An incident with its history and the messages about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IncidentDetail {
    #[serde(flatten)]
    pub incident: IncidentView,
    /// The description in the rule of another program's alert.
    #[serde(default)]
    pub description: Option<String>,
    /// Links to further information: the runbook first.
    #[serde(default)]
    pub links: Vec<LinkView>,
    /// What to do, as the message said that was sent last while it fired.
    #[serde(default)]
    pub advice: Option<String>,
    /// The same as data.
    #[serde(default)]
    #[schema(value_type = Option<schema::Plan>)]
    pub plan: Option<Plan>,
    #[serde(default)]
    pub cost: Option<Cost>,
    pub timeline: Vec<TimelineView>,
    pub deliveries: Vec<DeliveryView>,
}

/// The content of the last message while the incident fired, or of a message sent now.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastSent {
    pub(crate) description: Option<String>,
    pub(crate) links: Vec<Link>,
    pub(crate) advice: Option<String>,
    pub(crate) plan: Option<Plan>,
}

impl IncidentDetail {
    pub(in crate::api) fn from_record(
        record: IncidentRecord,
        sent: LastSent,
        cost: Option<Cost>,
        (timeline, deliveries): (Vec<TimelineEntry>, Vec<Delivery>),
    ) -> Self {
        let link = |Link { text, href, .. }| LinkView { text, href };
        Self {
            incident: record.into(),
            description: sent.description,
            links: sent.links.into_iter().map(link).collect(),
            advice: sent.advice,
            plan: sent.plan,
            cost,
            timeline: timeline.into_iter().map(Into::into).collect(),
            deliveries: deliveries.into_iter().map(Into::into).collect(),
        }
    }
}
