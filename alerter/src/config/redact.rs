//! The configuration as the API shows it, without credentials.
//!
//! Secrets are in files and variables, of which only the names are shown. Two cases remain:
//! addresses that are secrets themselves, and secrets in a wrong place. Both are recognised by
//! their form everywhere.

use serde_json::Value;

const HIDDEN: &str = "<secret>";

/// Keys whose addresses are public or contain no credentials.
const PUBLIC: &[&str] = &["external_url", "runbook_url", "api_url", "events_url", "href", "issuer"];

/// The configuration as JSON, which is also valid YAML. Comments are dropped, because they may
/// contain anything.
pub(super) fn shown(text: &str) -> String {
    let value = stepwatch_kit::config::parse::<Option<Value>>("", text);
    let mut value = value.ok().flatten().unwrap_or_default();
    hide("", &mut value);
    serde_json::to_string_pretty(&value).unwrap_or_default()
}

fn hide(key: &str, value: &mut Value) {
    match value {
        Value::Object(map) => map.iter_mut().for_each(|(key, value)| hide(key, value)),
        Value::Array(list) => list.iter_mut().for_each(|value| hide(key, value)),
        Value::String(text) if is_secret(key) => HIDDEN.clone_into(text),
        Value::String(text) if !PUBLIC.contains(&key) => {
            if let Some(short) = address(text) {
                *text = short;
            }
        }
        _ => {}
    }
}

fn is_secret(key: &str) -> bool {
    let place = key.ends_with("_file") || key.ends_with("_env");
    let kinds = ["token", "secret", "password", "routing_key", "webhook_url"];
    !place && kinds.iter().any(|kind| key.ends_with(kind))
}

/// The scheme and host of an address; the rest may be a secret.
fn address(text: &str) -> Option<String> {
    let url = url::Url::parse(text).ok().filter(|url| url.has_host())?;
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let bare = format!("{}://{}{port}", url.scheme(), url.host_str()?);
    let rest = text.strip_prefix(&bare).is_none_or(|rest| !matches!(rest, "" | "/"));
    Some(if rest { format!("{bare}/{HIDDEN}") } else { bare })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_opens_doors_is_not_shown() {
        let shown = shown(
            r#"
# canary
external_url: https://stepwatch.example.com/here
receivers:
  - {name: hook, webhook: {url: "https://hooks.example.com/canary?key=canary", secret_file: /etc/hook}}
  - {name: am, alertmanager: {urls: ["http://me:canary@am:9093", "http://am2:9093"]}}
  - {name: pd, pagerduty: {routing_key: canary, events_url: "https://events.eu.pagerduty.com"}}
schedules:
  - {name: p, ical: {url: "webcal://calendar.example.com/private-canary/x.ics"}}
watchdog: {url: "https://hc.example.com/canary", interval: 1m}
"#,
        );
        insta::assert_snapshot!(shown);
        assert!(!shown.contains("canary"));
    }

    #[test]
    fn nothing_is_shown_of_nothing() {
        assert_eq!((shown("").as_str(), shown("a: [").as_str()), ("{}", "null"));
    }

    proptest! {
        #[test]
        fn no_path_of_an_address_is_shown(path in "[a-z]{8,20}") {
            let text = format!("x: {{url: 'https://h.example.com/{path}', urls: ['http://a/{path}']}}");
            prop_assert!(!shown(&text).contains(&path));
        }
    }
}
