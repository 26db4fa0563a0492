//! Trainers that do not use the packet socket: they report by `POST /v1/events` and by
//! OpenTelemetry.

use std::time::Duration;

use serde_json::{Value, json};
use stepwatch_tests::{http, poll_until};

const PATIENCE: Duration = Duration::from_mins(1);

/// The interface by which a trainer reports.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    Events,
    Telemetry,
}

impl Way {
    pub(crate) const ALL: [Self; 2] = [Self::Events, Self::Telemetry];

    pub(crate) fn run(self) -> &'static str {
        match self {
            Self::Events => "by-events",
            Self::Telemetry => "by-telemetry",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Events => "/v1/events",
            Self::Telemetry => "/v1/metrics",
        }
    }

    fn body(self, step: i64, loss: f64) -> Value {
        let run = self.run();
        match self {
            Self::Events => {
                json!({"v": 1, "k": "step", "run": run, "rank": 0, "step": step, "m": {"loss": loss}})
            }
            Self::Telemetry => {
                let attribute = |key: &str, value: Value| json!({"key": key, "value": value});
                let attributes = [
                    attribute("stepwatch.run", json!({"stringValue": run})),
                    attribute("dl.rank", json!({"intValue": "0"})),
                ];
                let step = attribute("step", json!({"intValue": step.to_string()}));
                let point = json!({"asDouble": loss, "attributes": [step]});
                let metric = json!({"name": "loss", "gauge": {"dataPoints": [point]}});
                json!({"resourceMetrics": [{
                    "resource": {"attributes": attributes},
                    "scopeMetrics": [{"scope": {}, "metrics": [metric]}],
                }]})
            }
        }
    }

    /// Reports a step, and repeats it while it is refused, as senders do.
    pub(crate) async fn report(self, exporter: &str, step: i64, loss: f64) -> anyhow::Result<()> {
        let (url, body) = (format!("{exporter}{}", self.path()), self.body(step, loss));
        let sent = async || {
            let answer = http::client().post(&url).json(&body).send().await.ok()?;
            answer.status().is_success().then_some(())
        };
        poll_until("a genuine step to be taken", PATIENCE, sent).await
    }
}
