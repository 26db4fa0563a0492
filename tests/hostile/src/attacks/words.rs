//! Names of runs, metrics and alerts with terminal codes, bidirectional control characters, and
//! Slack markup.

use std::time::Duration;

use serde_json::json;

use crate::attack::{Attack, Target, get, post};

pub(crate) const ATTACK: Attack = Attack { pages: 1, ..Attack::new("steering-words", act) };

const STEERING: [char; 4] = ['\u{1b}', '\r', '\u{202e}', '\u{200b}'];
const JSON: &str = "content-type: application/json\r\n";
const PAUSE: Duration = Duration::from_millis(50);

fn act(target: &Target) -> anyhow::Result<()> {
    let words: String = STEERING.iter().collect();
    let text = format!("<!channel> *bold* <https://evil.example|here>{words}[31m");
    let alert = json!([{"labels": {"alertname": text, "severity": "page", "node": text},
                        "annotations": {"summary": text, "description": text}}]);
    let mut packets = target.packets()?;
    for step in 1.. {
        let event =
            json!({"v": 1, "k": "step", "run": text, "step": step, "m": {"loss": 2.0, text.as_str(): 1}});
        if packets.send(&event.to_string()).is_err() {
            packets = target.packets()?;
        }
        post(target.alerter, "/api/v2/alerts", JSON, alert.to_string().as_bytes());
        for (addr, path) in [
            (target.exporter, "/metrics"),
            (target.alerter, "/metrics"),
            (target.alerter, "/api/v1/incidents"),
            (target.alerter, "/"),
        ] {
            let body = get(addr, path).unwrap_or_default();
            let found = STEERING.iter().find(|c| body.contains(**c));
            anyhow::ensure!(found.is_none(), "{path} of {addr} shows {found:?}");
        }
        std::thread::park_timeout(PAUSE);
    }
    Ok(())
}
