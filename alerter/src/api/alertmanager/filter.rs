//! The query of `GET /api/v2/alerts` and similar lists.

use stepwatch_respond::matcher::{Labels, Matcher, Op, all_hold};

use super::errors::{Refused, Result};
use crate::api::doc::schema;

/// The query, for the document. The parser below also ignores parameters of other versions of
/// Alertmanager.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it is only described")]
pub(super) struct AlertsQuery {
    /// Also what is neither silenced nor inhibited.
    #[param(default = true)]
    active: Option<bool>,
    /// Also what is silenced.
    #[param(default = true)]
    silenced: Option<bool>,
    /// Also what is inhibited.
    #[param(default = true)]
    inhibited: Option<bool>,
    /// Nothing is unprocessed here.
    #[param(default = true)]
    unprocessed: Option<bool>,
    /// Matchers that all must hold.
    #[param(value_type = Option<Vec<schema::Matcher>>, inline)]
    filter: Option<Vec<String>>,
    /// A regular expression that the name of a receiver matches.
    #[param(example = "slack-.*")]
    receiver: Option<String>,
}

#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it is only described")]
pub(super) struct SilencesQuery {
    /// Matchers that a silence must have, compared as text.
    #[param(value_type = Option<Vec<schema::Matcher>>, inline)]
    filter: Option<Vec<String>>,
}

/// A parsed query; the default selects everything.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    pub(super) active: bool,
    pub(super) silenced: bool,
    pub(super) inhibited: bool,
    pub(super) unprocessed: bool,
    pub(super) matchers: Vec<Matcher>,
    receiver: Option<Matcher>,
}

impl Filter {
    pub(super) fn parse(query: &str) -> Result<Self> {
        let mut filter = Self {
            active: true,
            silenced: true,
            inhibited: true,
            unprocessed: true,
            matchers: Vec::new(),
            receiver: None,
        };
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match &*key {
                "active" => filter.active = flag(&key, &value)?,
                "silenced" => filter.silenced = flag(&key, &value)?,
                "inhibited" => filter.inhibited = flag(&key, &value)?,
                "unprocessed" => filter.unprocessed = flag(&key, &value)?,
                "filter" => filter.matchers.extend(
                    Matcher::parse_list(&value)
                        .map_err(|e| Refused::bad(format!("bad matcher format: {e}")))?,
                ),
                "receiver" if !value.is_empty() => {
                    let regex = Matcher::new("receiver", Op::Regex, value);
                    let bad = |e| Refused::bad(format!("failed to parse receiver param: {e}"));
                    filter.receiver = Some(regex.map_err(bad)?);
                }
                // Parameters of other versions of Alertmanager are ignored.
                _ => {}
            }
        }
        Ok(filter)
    }

    pub(super) fn wants_receivers(&self, receivers: &[String]) -> bool {
        receivers.iter().any(|name| self.wants_receiver(name))
            || receivers.is_empty() && self.receiver.is_none()
    }

    pub(super) fn wants_receiver(&self, receiver: &str) -> bool {
        self.receiver.as_ref().is_none_or(|r| r.holds_of(receiver))
    }

    pub(super) fn wants(&self, labels: &Labels, silenced: bool, inhibited: bool) -> bool {
        if !silenced && !inhibited && !self.active {
            return false;
        }
        if silenced && !self.silenced || inhibited && !self.inhibited {
            return false;
        }
        all_hold(&self.matchers, labels)
    }
}

fn flag(key: &str, value: &str) -> Result<bool> {
    match value {
        "true" | "1" | "t" | "T" | "TRUE" | "True" => Ok(true),
        "false" | "0" | "f" | "F" | "FALSE" | "False" => Ok(false),
        _ => Err(Refused::bad(format!("{key} in query must be of type boolean: {value:?}"))),
    }
}
