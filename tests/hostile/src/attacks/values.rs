//! Many small values: events, files and lists of alerts that have nothing else, and the series of a
//! thousand ranks with long names.

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::attack::{Attack, Target, post};

pub(crate) const EVENTS: Attack = Attack::new("event-values", events);
pub(crate) const FILES: Attack = Attack { exporter: follow, ..Attack::new("file-values", files) };
pub(crate) const ALERTS: Attack = Attack::new("alert-values", alerts);
pub(crate) const SERIES: Attack = Attack::new("otlp-series", series);

const JSON: &str = "content-type: application/json\r\n";
const REQUESTS: usize = 40;
/// The number of values of seven bytes each: just below the limit of a body.
const VALUES: usize = 149_000;
const VALUES_OF_A_FILE: usize = 590_000;
const FILES_OF_A_KIND: usize = 8;
const VALUES_OF_ALERTS: usize = 1_000_000;
/// The number of alerts of 21 bytes each.
const SMALL_ALERTS: usize = 330_000;
const RANKS: usize = 1024;
const RANKS_AT_ONCE: usize = 6;
const NAMES: usize = 510;
/// The number of four-byte characters in each name.
const WIDE: usize = 110;

fn events(target: &Target) -> anyhow::Result<()> {
    let body = format!("[{{\"\":0}},\n{}0]", "{\"\":0},".repeat(VALUES));
    for _ in 0..REQUESTS {
        post(target.exporter, "/v1/events", JSON, body.as_bytes()).context("the exporter does not answer")?;
    }
    Ok(())
}

fn follow(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "sources:\n  - tail: {{path: \"{dir}/*/error.json\"}}\n  - checkpoints: {{path: \"{dir}\", run: r}}\n"
    )
}

/// Error files of workers, and model configurations in checkpoints.
fn files(target: &Target) -> anyhow::Result<()> {
    let values = format!("[{}0]", "{\"\":0},".repeat(VALUES_OF_A_FILE));
    let error = format!("{{\"message\":\"x\",\"a\":{values}}}");
    let config = format!("{{\"model_type\":\"llama\",\"hidden_size\":64,\"a\":{values}}}");
    for n in 0..FILES_OF_A_KIND {
        let (worker, checkpoint) =
            (target.dir.join(format!("worker-{n}")), target.dir.join(format!("checkpoint-{n}")));
        fs::create_dir(&worker)?;
        fs::write(worker.join("error.json"), &error)?;
        fs::create_dir(&checkpoint)?;
        fs::write(checkpoint.join("config.json"), &config)?;
        fs::write(checkpoint.join("model.safetensors"), "x")?;
        fs::write(checkpoint.join("trainer_state.json"), format!("{{\"global_step\":{n}}}"))?;
    }
    Ok(())
}

fn alerts(target: &Target) -> anyhow::Result<()> {
    let values = format!("[{}0]", "{\"\":0},".repeat(VALUES_OF_ALERTS));
    let small = format!("[{}{{}}]", "{\"labels\":{\"a\":\"b\"}},".repeat(SMALL_ALERTS));
    for body in [&values, &small].repeat(REQUESTS / 4) {
        post(target.alerter, "/api/v2/alerts", JSON, body.as_bytes())
            .context("the alerter does not answer")?;
    }
    Ok(())
}

fn series(target: &Target) -> anyhow::Result<()> {
    let sum = |n: usize| {
        let name = format!("train.custom.{n:03}.{}", "\u{20000}".repeat(WIDE));
        format!(
            r#"{{"name":"{name}","sum":{{"isMonotonic":true,"aggregationTemporality":2,"dataPoints":[{{"asDouble":1}}]}}}}"#
        )
    };
    let sums = (0..NAMES).map(sum).collect::<Vec<_>>().join(",");
    let of = |rank: usize| {
        let run = r#"{"key":"stepwatch.run","value":{"stringValue":"wide"}}"#;
        let rank = format!(r#"{{"key":"rank","value":{{"intValue":"{rank}"}}}}"#);
        let loss = r#"{"name":"loss","gauge":{"dataPoints":[{"asDouble":2.5}]}}"#;
        format!(
            r#"{{"resource":{{"attributes":[{run},{rank}]}},"scopeMetrics":[{{"metrics":[{loss},{sums}]}}]}}"#
        )
    };
    for first in (0..RANKS).step_by(RANKS_AT_ONCE) {
        let ranks: Vec<_> = (first..RANKS.min(first + RANKS_AT_ONCE)).map(of).collect();
        let body = format!(r#"{{"resourceMetrics":[{}]}}"#, ranks.join(","));
        post(target.exporter, "/v1/metrics", JSON, body.as_bytes())
            .context("the exporter does not answer")?;
    }
    Ok(())
}
