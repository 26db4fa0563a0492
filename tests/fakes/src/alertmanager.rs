//! A fake of Alertmanager's API v2 for posted alerts. The labels identify an alert, so that posting
//! it again changes nothing.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::server::{Received, Reply, Service};

#[derive(Debug, Clone, Default)]
pub struct AlertmanagerApi {
    /// The last version of each alert, by its labels.
    pub alerts: BTreeMap<String, Value>,
    pub requests: Vec<Received>,
}

impl AlertmanagerApi {
    /// The token that posting requires.
    pub const TOKEN: &str = "canary-of-the-fake-alertmanager";
    pub const PATH: &str = "/api/v2/alerts";

    fn take(&mut self, alert: &Value) -> Result<(), String> {
        let labels = alert["labels"].as_object().filter(|l| l.contains_key("alertname"));
        let labels = labels.ok_or("an alert without a name")?;
        if let Some((name, _)) = labels.iter().find(|(_, v)| v.as_str().is_none_or(str::is_empty)) {
            return Err(format!("the label {name:?} has no value"));
        }
        for key in ["startsAt", "endsAt"] {
            let time = alert[key].as_str().unwrap_or_default();
            time.parse::<jiff::Timestamp>().map_err(|_| format!("{key} is no time: {time:?}"))?;
        }
        let id = serde_json::to_string(labels).unwrap_or_default();
        self.alerts.insert(id, alert.clone());
        Ok(())
    }
}

impl Service for AlertmanagerApi {
    fn endpoint(request: &Received) -> Option<String> {
        (request.path == Self::PATH).then(|| "alerts".to_owned())
    }

    fn serve(&mut self, req: &Received) -> Reply {
        if req.path != Self::PATH || req.method != "POST" {
            return Reply::text(404, "not found");
        }
        if req.header("authorization") != Some(format!("Bearer {}", Self::TOKEN).as_str()) {
            return Reply::text(401, "Unauthorized");
        }
        let Value::Array(alerts) = req.json() else { return Reply::text(400, "expected a list of alerts") };
        // As in Alertmanager, valid alerts are accepted even if others are invalid.
        let bad = alerts.iter().filter_map(|alert| self.take(alert).err()).next_back();
        match bad {
            Some(why) => Reply::text(400, &why),
            None => Reply::text(200, ""),
        }
    }

    fn refuse(status: u16, error: &str) -> Reply {
        Reply::text(status, error)
    }

    fn received(&mut self) -> &mut Vec<Received> {
        &mut self.requests
    }
}
