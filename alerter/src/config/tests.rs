use std::path::Path;

use insta::assert_snapshot;
use stepwatch_kit::config::ConfigError;

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("alerter.yml"), text)
}

/// What a person sees.
fn error(text: &str) -> String {
    parse(text).expect_err("a mistake").to_string()
}

#[test]
fn an_empty_file_is_a_configuration() {
    let c = parse("").unwrap();
    assert_eq!(c.file, File::default());
    assert_eq!(c.engine, EngineConfig::default());
    assert_snapshot!(c);
}

#[test]
fn the_sample_of_the_documentation_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    for secret in ["slack", "pd"] {
        std::fs::write(dir.path().join(secret), "secret-token\n").unwrap();
    }
    let d = dir.path().display();
    let text = format!(
        r##"
listen: ":9766"
storage: {{sqlite: /var/lib/stepwatch/alerter.db}}
cost_per_gpu_hour: 2.50
sources:
  - exporters: {{static: ["node001:9765", "node002:9765"]}}
  - exporters: {{file_sd: ["targets/*.json"]}}
receivers:
  - name: chat
    slack: {{channel: "#training", token_file: {d}/slack, api_url: "https://slack.com/api"}}
  - name: primary
    pagerduty: {{routing_key_file: {d}/pd, events_url: "https://events.pagerduty.com"}}
policies:
  - name: default
    levels:
      - {{after: 0s, notify: [chat, primary]}}
      - {{after: 300s, notify: [primary], repeat: 3}}
routes:
  - {{match: ['severity="page"'], policy: default}}
  - {{match: ['severity="ticket"'], notify: [chat]}}
"##
    );
    let c = Config::parse(Path::new("/etc/stepwatch/alerter.yml"), &text).unwrap();
    assert_eq!(c.engine.receivers, ["chat", "primary"]);
    assert_eq!(c.receivers.keys().collect::<Vec<_>>(), ["chat", "primary"]);
    assert_eq!(c.engine.policies[0].levels[1].repeat, 3);
    assert_snapshot!(c);
}

#[test]
fn everything_can_be_set() {
    let c = parse(
        r#"
external_url: "https://stepwatch.example.com/"
runbook_url: "https://wiki.example.com/runbooks/"
resolve_after: 2m
storage: {sqlite: here.db, retention: 30d}
detectors: {hang: {enabled: false}}
sources:
  - exporters:
      static: [a]
      http_sd: ["http://sd.example.com/targets"]
      dns: ["exporters.training.svc:9765"]
      refresh: 1m
receivers:
  - {name: out, stdout: {}}
routes:
  - {match: ['run=~"scratch-.*"', 'severity!="page"']}
  - {notify: [out]}
  - {match: ['kind="hang"'], notify: [out]}
policies:
  - {name: spare, levels: [{after: 0s, notify: [out]}]}
"#,
    )
    .unwrap();
    assert_eq!(c.engine.external_url.as_deref(), Some("https://stepwatch.example.com"));
    assert_eq!(c.engine.resolve_after, Span::secs(120));
    assert!(!c.engine.detectors.hang.enabled);
    assert_snapshot!(c);
}

#[test]
fn mistakes_in_a_value_are_pointed_at() {
    let all = [
        "listen: 9766x\n",
        "sources:\n  - exporters: {statc: [a]}\n",
        "sources:\n  - prometheus: {}\n",
        "resolve_after: 5\n",
        "policies:\n  - name: p\n    levels:\n      - {after: 5 minutes, notify: []}\n",
        "receiver: []\n",
        "detectors: {hang: {enabled: maybe}}\n",
        "cost_per_gpu_hour: cheap\n",
    ];
    assert_snapshot!(all.map(error).join("\n\n"));
}

#[test]
fn mistakes_between_values_are_told_all_at_once() {
    let text = r#"
cost_per_gpu_hour: -1
external_url: "javascript:alert(1)"
storage: {retention: 1h}
sources:
  - exporters: {static: ["a:b"]}
  - exporters: {}
receivers:
  - {name: chat, stdout: {}}
  - {name: chat, stdout: {}}
  - {name: "a/b", stdout: {}}
  - {name: none}
policies:
  - {name: empty, levels: []}
  - {name: loop, levels: [{after: 0s, notify: [], repeat: 2}, {after: 1m, notify: [pager, chat, chat]}]}
routes:
  - {match: ['severity="page"'], policy: defualt}
  - {match: ['colour="red"', 'kind=~"("'], notify: [chatt]}
  - {policy: loop, notify: [chat]}
"#;
    assert_snapshot!(error(text));
}

#[test]
fn a_secret_that_cannot_be_read_is_found_now() {
    let text = "receivers:\n  - {name: chat, slack: {channel: \"#x\", token_file: /nonexistent/token}}\n";
    assert_snapshot!(error(text));
}

#[test]
fn durations_are_printed_as_they_are_written() {
    let text =
        parse("detectors: {ckpt_stale: {floor: 90s}, source_lost: {page_after: 600s}}").unwrap().to_string();
    for want in ["ckpt_stale.floor: 90s (default 5m)", "source_lost.page_after: 10m (default 5m)"] {
        assert!(text.contains(want), "{text}");
    }
}

#[test]
fn paths_begin_at_the_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("secrets")).unwrap();
    std::fs::write(dir.path().join("secrets/slack"), "xoxb-1").unwrap();
    let text = "storage: {sqlite: data/a.db}\n\
                receivers: [{name: chat, slack: {channel: \"#x\", token_file: secrets/slack}}]\n";
    let c = Config::parse(&dir.path().join("alerter.yml"), text).unwrap();
    assert_eq!(c.file.storage.sqlite, dir.path().join("data/a.db"));
    assert!(c.receivers.contains_key("chat"));
}

proptest::proptest! {
    /// Whatever stands in the file, the answer is a configuration or a message.
    #[test]
    fn never_panics(text in "(listen|sources|receivers|policies|routes|detectors|[a-z]{1,5}): ?[\\PC\n ]{0,60}") {
        let _ = parse(&text);
    }
}

#[test]
fn mistakes_in_routes_and_timing_name_their_place() {
    let text = r#"
batch_window: 2h
remind_every: 1s
storm: {incidents: 0}
incidents: {reopen_after: 0s}
inhibit_off: [nonsense]
inhibit_rules:
  - {source_matchers: [], target_matchers: ['kind="hangs"']}
teams:
  - {name: infra, match: ['cause='], policy: nowhere}
receivers: [{name: out, stdout: {}}]
policies:
  - {name: p, levels: [{after: 0s, notify: [out], if: {burn_over: -1.0}}]}
routes:
  - match: ['severity="page"']
    policy: p
    routes:
      - {match: ['kind="hangs"'], notify: [nobody]}
"#;
    let told = error(text);
    for part in [
        "batch_window: must be 0s to 1h, got 2h",
        "remind_every: must be 1m to 1d 0h, got 1s",
        "incidents.reopen_after: must be 1s to 1d, got 0s; what is to stay quiet for longer is silenced, not resolved",
        "storm.incidents: must be 1 to 10000, got 0",
        "inhibit_off[0]: there is no built-in rule \"nonsense\"; those that exist: hang-hides-slowness",
        "inhibit_rules[0].source_matchers: is empty",
        "inhibit_rules[0].target_matchers[0]: matcher \"kind=\\\"hangs\\\"\": no incident has the kind",
        "teams[0].policy: there is no policy \"nowhere\"",
        "policies[0].levels[0].if.burn_over: must be a number of dollars an hour",
        "routes[0].routes[0].match[0]: matcher",
        "routes[0].routes[0].notify[0]: there is no receiver \"nobody\"",
    ] {
        assert!(told.contains(part), "{part}\n{told}");
    }
}

#[test]
fn labels_that_only_some_runs_have_are_a_warning() {
    let c = parse("receivers: [{name: out, stdout: {}}]\nroutes: [{match: ['clustre=\"a\"'], notify: [out]}]\ngroup_by: [rack]")
        .unwrap();
    for part in [
        "routes[0].match[0]: no incident has the label \"clustre\"",
        "group_by: no incident has the label \"rack\"",
    ] {
        assert!(c.warnings.iter().any(|w| w.contains(part)), "{part}: {:?}", c.warnings);
    }
}

#[test]
fn mistakes_in_templates_are_pointed_at() {
    let text = r#"
templates:
  title: "{{ incident.severity|upper }} {{ run.nmae }}"
  links:
  - {text: Dashboard, href: "https://grafana.example.com/{{ run.name"}
receivers:
  - name: out
    templates:
      summary: |
        {{ summary }}
        {% if cost %}
        {{ cost.per_hour|dolars }}
        {% endif %}
    stdout: {}
"#;
    assert_snapshot!(error(text));
}

#[test]
fn a_slack_where_nobody_may_answer_is_a_warning() {
    let parse = |answers: &str, users: &str| {
        let slack = "channel: '#a', token_env: CARGO_MANIFEST_DIR";
        parse(&format!("receivers: [{{name: chat, slack: {{{slack}{answers}}}}}]\nusers: [{users}]\n"))
    };
    let told = |answers: &str, users: &str| {
        let c = parse(answers, users).unwrap();
        c.warnings.iter().any(|w| w.starts_with("receivers[0].slack.answers: is known_users, and no entry"))
    };
    assert!(told(", answers: known_users", "{name: ann, notify: [chat]}"));
    assert!(!told(", answers: known_users", "{name: ann, slack_id: U012AB3CD}"));
    assert!(!told("", ""));
    let wrong = parse(", answers: everybody", "").unwrap_err().to_string();
    assert!(wrong.contains("anyone") && wrong.contains("known_users") && wrong.contains('^'), "{wrong}");
}
