use clap::Parser;
use insta::assert_snapshot;

use super::*;
use crate::cli::oncall::tests::SAMPLE;
use crate::cli::tests::stripped;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: SimulateArgs,
}

fn simulate(words: &[&str]) -> Result<String, String> {
    simulate_with(SAMPLE, words)
}

fn simulate_with(config: &str, words: &[&str]) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("alerter.yml");
    std::fs::write(&path, config).unwrap();
    let path = path.display().to_string();
    let line = ["simulate", "--config", &path].into_iter().chain(words.iter().copied());
    let mut out = Vec::new();
    run(Line::try_parse_from(line).map_err(|e| e.to_string())?.args, &mut out).map_err(|e| e.to_string())?;
    Ok(stripped(out))
}

#[test]
fn a_night_in_which_nobody_answers() {
    assert_snapshot!(
        simulate(&["--policy", "default", "--at", "2026-10-25T03:30[Europe/Berlin]", "--node", "gpu-042"])
            .unwrap()
    );
}

#[test]
fn somebody_answers() {
    let words =
        ["--at", "2026-10-26T15:00:00Z", "--ack-after", "7m", "--kind", "grad_spike", "--burn", "1280"];
    assert_snapshot!(simulate(&words).unwrap());
}

#[test]
fn a_service_that_repeats_calls_by_itself_is_called_once() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "R0123456789012345678901234567890").unwrap();
    let config = format!(
        "receivers: [{{name: svc, pagerduty: {{routing_key_file: '{}', repeats: service}}}}]\n\
         policies: [{{name: p, levels: [{{after: 0s, notify: [svc]}}, {{after: 60s, notify: [svc], repeat: 2}}]}}]\n\
         routes: [{{match: ['severity=page'], policy: p}}]\n",
        key.display()
    );
    let told = simulate_with(&config, &["--at", "2026-10-26T15:00:00Z"]).unwrap();
    let once = "svc rings 1 time, and then PagerDuty's own escalation policy repeats";
    assert!(told.contains(once), "{told}");
}

#[test]
fn a_ticket_by_its_route_as_json() {
    let words = ["--severity", "ticket", "--at", "2026-10-26T15:00:00Z", "--format", "json"];
    let story: serde_json::Value = serde_json::from_str(&simulate(&words).unwrap()).unwrap();
    let receivers: Vec<&str> =
        story["entries"].as_array().unwrap().iter().filter_map(|e| e["receiver"].as_str()).collect();
    assert_eq!(receivers, ["chat"]);
}

/// If the store refuses writes, every receiver that wakes is notified, regardless of the routes.
#[test]
fn a_fault_of_the_alerter_shows_whom_one_of_the_store_notifies() {
    let words = ["--kind", "alerter_fault", "--at", "2026-10-26T15:00:00Z", "--for", "5m"];
    let as_json = |config: &str| -> serde_json::Value {
        let words = [&words[..], &["--format", "json"]].concat();
        let mut story =
            serde_json::from_str::<serde_json::Value>(&simulate_with(config, &words).unwrap()).unwrap();
        story["of_the_store"].take()
    };
    let waking = SAMPLE.replace("-phone, stdout", "-phone, wakes: true, stdout");
    assert_snapshot!(simulate_with(&waking, &words).unwrap());
    let all =
        serde_json::json!([{"route": "every receiver that wakes", "notify": ["alice-phone", "bob-phone"]}]);
    assert_eq!(as_json(&waking), all);
    // If no receiver wakes, it is routed like any other fault.
    let policy = serde_json::json!([{"route": "routes[0]", "notify": [
        "schedule:primary", "schedule:office", "user:alice", "user:bob", "chat"
    ]}]);
    assert_eq!(as_json(SAMPLE), policy);
    assert!(!simulate(&["--kind", "hang"]).unwrap().contains("database"));
}

#[test]
fn mistakes() {
    let error = simulate(&["--policy", "spare"]).unwrap_err();
    assert_eq!(error, "--policy: there is no policy \"spare\"; those that exist: default");
    for (words, part) in [
        (["--at", "soon"], "is not a time"),
        (["--at", "2026-10-25T03:30[Mars]"], "not a time zone"),
        (["--kind", "sadness"], "unknown variant"),
        (["--severity", "loud"], "unknown variant"),
        (["--ack-after", "7"], "a duration is"),
    ] {
        let error = simulate(&words).unwrap_err();
        assert!(error.contains(part), "{words:?}: {error}");
    }
}
