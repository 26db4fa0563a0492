//! Large silences and alerts, each within the limit of one, sent to the alerter's API.

use anyhow::Context;
use serde_json::{Value, json};

use crate::attack::{Attack, Target, post};

pub(crate) const SILENCES: Attack = Attack::new("large-silences", silences);
pub(crate) const TEXTS: Attack = Attack::new("long-silences", texts);
pub(crate) const ALERTS: Attack = Attack::new("large-alerts", alerts);

const JSON: &str = "content-type: application/json\r\n";
/// The number of large matchers of a silence; one more names its runs.
const PATTERNS: usize = 31;
const SILENCES_SENT: usize = 270;
/// The number of large texts that are sent, of which the alerter keeps a few.
const TEXTS_SENT: usize = 1_500;
/// The longest matcher.
const TEXT: usize = 2048;
const ALERTS_SENT: usize = 6_000;
const AT_ONCE: usize = 10;

fn silences(target: &Target) -> anyhow::Result<()> {
    for n in 0..SILENCES_SENT {
        let mut matchers: Vec<String> =
            (0..PATTERNS).map(|p| format!("alertname=~\"([a-zA-Z]?){{1200}}{n}z{p}\"")).collect();
        matchers.push("run=~\"other-.*\"".to_owned());
        let body = json!({"matchers": matchers, "duration": "2h", "created_by": "mallory", "comment": "c"});
        // The alerter answers, whether it accepts or refuses.
        post(target.alerter, "/api/v1/silences", JSON, body.to_string().as_bytes())
            .context("the alerter does not answer")?;
    }
    Ok(())
}

/// Silences whose matchers need not be compiled.
fn texts(target: &Target) -> anyhow::Result<()> {
    for n in 0..TEXTS_SENT {
        let mut matchers: Vec<String> = (0..PATTERNS)
            .map(|p| format!("alertname!=\"{}\"", format!("{n}x{p}").repeat(TEXT / 8)))
            .collect();
        matchers.push("run=~\"other-.*\"".to_owned());
        let body = json!({"matchers": matchers, "duration": "2h", "created_by": "mallory", "comment": "c"});
        // The alerter answers, whether it accepts or refuses.
        post(target.alerter, "/api/v1/silences", JSON, body.to_string().as_bytes())
            .context("the alerter does not answer")?;
    }
    Ok(())
}

/// As many alerts as are kept, of 72 KiB each.
pub(crate) fn alerts(target: &Target) -> anyhow::Result<()> {
    let annotations: Value = (0..18).map(|a| (format!("a{a}"), json!("y".repeat(4000)))).collect();
    for first in (0..ALERTS_SENT).step_by(AT_ONCE) {
        let alert = |n: usize| {
            json!({"labels": {"alertname": format!("A{}", n % 50), "severity": "info", "n": n.to_string()},
                "annotations": annotations})
        };
        let body: Value = (first..first + AT_ONCE).map(alert).collect();
        // The alerter answers, whether it accepts or refuses.
        post(target.alerter, "/api/v2/alerts", JSON, body.to_string().as_bytes())
            .context("the alerter does not answer")?;
    }
    Ok(())
}
