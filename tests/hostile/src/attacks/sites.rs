//! Pages of another site, open in the browser of a person who can reach both programs: they submit
//! forms without consent, and read under a host name of their own that resolves to this machine.

use std::net::SocketAddr;

use crate::attack::{Attack, Target, post, request};
use crate::stage::GENUINE;

/// The browser belongs to the exporter's own user, who may do what the pages try.
pub(crate) const ATTACK: Attack = Attack { neighbour: false, ..Attack::new("foreign-sites", act) };

const FORM: &str =
    "origin: https://evil.example\r\nsec-fetch-site: cross-site\r\ncontent-type: text/plain\r\n";
const REBOUND: &str = "host: evil.example\r\nuser-agent: Mozilla/5.0\r\n";

fn act(target: &Target) -> anyhow::Result<()> {
    let nan = format!(r#"{{"v":1,"k":"step","run":"{GENUINE}","rank":0,"step":1000000,"m":{{"loss":NaN}}}}"#);
    let silence = r#"{"matchers":["severity=\"page\""],"duration":"1h","created_by":"x","comment":"x"}"#;
    let alert = r#"[{"labels":{"alertname":"Forged","severity":"page"}}]"#;
    let sent: &[(SocketAddr, &str, &str)] = &[
        (target.exporter, "/v1/events", &nan),
        (target.exporter, "/-/reload", ""),
        (target.exporter, "/-/nvml/release", ""),
        (target.alerter, "/api/v1/silences", silence),
        (target.alerter, "/api/v2/alerts", alert),
        (target.alerter, "/-/reload", ""),
    ];
    let read = [(target.exporter, "/metrics"), (target.alerter, "/api/v1/incidents")];
    loop {
        for (addr, path, body) in sent {
            let status = post(*addr, path, FORM, body.as_bytes());
            anyhow::ensure!(status == Some(403), "{path} answers a form of another site {status:?}");
        }
        for (addr, path) in read {
            let answer = request(addr, "GET", path, REBOUND, b"").unwrap_or_default();
            let refused = answer.starts_with("HTTP/1.1 403");
            anyhow::ensure!(refused, "{path} answers under a foreign name: {answer}");
        }
    }
}
