mod reports;
mod warnings;

use std::path::Path;

use insta::assert_snapshot;
use stepwatch_kit::config::ConfigError;
use stepwatch_model::time::Span;

use super::*;
use crate::notify::ReceiverConfig;
use stepwatch_engine::EngineConfig;

const SLACK_TOKEN: &str = stepwatch_fakes::Slack::TOKEN;
const PAGERDUTY_KEY: &str = stepwatch_fakes::PagerDuty::ROUTING_KEY;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("alerter.yml"), text)
}

/// The error message that a person sees.
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
    for (file, secret) in [("slack", SLACK_TOKEN), ("pd", PAGERDUTY_KEY)] {
        std::fs::write(dir.path().join(file), format!("{secret}\n")).unwrap();
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
    assert_eq!(c.engine.responder.receivers, ["chat", "primary"]);
    assert_eq!(c.receivers.keys().collect::<Vec<_>>(), ["chat", "primary"]);
    assert_eq!(c.engine.responder.policies[0].levels[1].repeat, 3);
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
    assert_eq!(c.engine.responder.external_url.as_deref(), Some("https://stepwatch.example.com"));
    assert_eq!(c.engine.responder.resolve_after, Span::secs(120));
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
fn mistakes_between_values_are_reported_all_at_once() {
    let text = r#"
cost_per_gpu_hour: -1
energy: {node_ratio: 0.5, pue: 1.2, carbon_g_per_kwh: -400}
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
fn a_loss_in_dollars_needs_a_price() {
    let limit = "detectors: {mfu_droop: {page_when_lost: 500}}";
    let text = parse(limit).unwrap_err().to_string();
    assert!(text.contains("page_when_lost: is in dollars, which need cost_per_gpu_hour"), "{text}");
    let c = parse(&format!("cost_per_gpu_hour: 2.5\n{limit}")).unwrap();
    assert_eq!(c.engine.detectors.cost_per_gpu_hour, Some(2.5));
}

#[test]
fn paths_begin_at_the_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("secrets")).unwrap();
    std::fs::write(dir.path().join("secrets/slack"), "xoxb-1").unwrap();
    let text = "storage: {sqlite: data/a.db}\n\
                receivers: [{name: chat, slack: {channel: \"#x\", token_file: secrets/slack}}]\n";
    let c = Config::parse(&dir.path().join("alerter.yml"), text).unwrap();
    assert_eq!(c.file.storage.sqlite(), dir.path().join("data/a.db"));
    assert!(c.receivers.contains_key("chat"));
}

proptest::proptest! {
    /// Any text gives either a configuration or an error.
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
    let errors = error(text);
    for part in [
        "batch_window: must be 0s to 1h, got 2h",
        "remind_every: must be 1m to 1d 0h, got 1s",
        "incidents.reopen_after: must be 1s to 1d, got 0s; what is to stay quiet for longer is silenced, not resolved",
        "storm.incidents: must be 1 to 10000, got 0",
        "inhibit_off[0]: there is no built-in rule \"nonsense\"; those that exist: hang-suppresses-slowness",
        "inhibit_rules[0].source_matchers: is empty",
        "inhibit_rules[0].target_matchers[0]: matcher \"kind=\\\"hangs\\\"\": no incident has the kind",
        "teams[0].policy: there is no policy \"nowhere\"",
        "policies[0].levels[0].if.burn_over: must be a number of dollars an hour",
        "routes[0].routes[0].match[0]: matcher",
        "routes[0].routes[0].notify[0]: there is no receiver \"nobody\"",
    ] {
        assert!(errors.contains(part), "{part}\n{errors}");
    }
}

#[test]
fn labels_that_no_incident_has_are_pointed_at() {
    let text = r#"
receivers: [{name: out, stdout: {}}]
teams: [{name: research, match: ['run_nam="a"'], notify: [out]}]
labels: [owner, owner, ""]
routes:
  - {match: ['sevrity="page"'], notify: [out]}
  - match: ['alertname="DiskFull"']
    routes: [{match: ['datacentre="b"'], notify: [out]}]
  - {match: ['owner="me"', 'clustre="a"'], notify: [out]}
inhibit_rules: [{source_matchers: ['kidn="hang"'], target_matchers: ['signal="loss"']}]
maintenance: [{name: m, reason: r, match: ['nod="gpu-1"', 'severity="critical"'], time_intervals: [{times: ['22:00-06:00']}]}]
"#;
    assert_snapshot!(error(text));
}

#[test]
fn names_that_are_probably_misspelt_are_a_warning() {
    let text = "receivers: [{name: out, stdout: {}}]\nteams: [{name: research, notify: [out]}, {name: infra}]\n\
                routes: [{match: ['team=\"reserch\"'], notify: [out]}]\ngroup_by: [rack]\n\
                inhibit_rules: [{source_matchers: ['kind=\"hang\"'], target_matchers: ['kind=\"stall\"'], equal: [ndoe]}]";
    let warns = |text: &str, part: &str| parse(text).unwrap().warnings.iter().any(|w| w.contains(part));
    for part in [
        "teams[0]: matches everything, so that no team after it is ever given",
        "routes[0].match[0]: `teams` has no \"reserch\", the nearest is \"research\"",
        "group_by: no incident has the label \"rack\"",
        "inhibit_rules[0].equal: no incident has the label \"ndoe\"",
    ] {
        assert!(warns(text, part), "{part}: {:?}", parse(text).unwrap().warnings);
    }
    assert!(!warns(&format!("{text}\nlabels: [rack]"), "\"rack\""));
}

#[test]
fn who_gets_what_by_team_and_severity() {
    let text = r#"
receivers:
  - {name: chat, stdout: {}}
  - {name: phone, stdout: {}}
  - {name: desk, stdout: {}}
users: [{name: alice, notify: [phone]}]
schedules:
  - {name: primary, time_zone: UTC, layers: [{users: [alice], start: 2026-01-05T09:00}], fallback: [desk]}
teams:
  - {name: research, match: ['run=~"llama-.*"'], notify: [chat]}
  - {name: infra, match: ['cause="hardware"'], policy: nights}
  - {name: idle, match: ['run="toy"']}
policies:
  - name: nights
    levels:
      - {after: 0s, notify: [chat], if: {severity: ticket}}
      - {after: 0s, notify: ['schedule:primary'], if: {severity: page}}
      - {after: 5m, notify: ['user:alice', desk], repeat: 2, if: {burn_over: 100}}
routes:
  - {match: ['run=~"scratch-.*"']}
  - {match: ['severity="page"', 'kind="hang"'], notify: [desk], continue: true}
  - match: ['team="research"']
    notify: [phone]
    routes: [{match: ['severity="page"', 'node=~"gpu.*"'], policy: nights}]
"#;
    let c = parse(text).unwrap();
    let table = c.sections().into_iter().find(|(heading, _)| *heading == "teams").unwrap().1;
    assert_snapshot!(table.join("\n"));
}

#[test]
fn what_a_receiver_says_of_a_key_stands_where_the_key_is() {
    let dir = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("token", SLACK_TOKEN),
        ("app", "xapp-1-canary"),
        ("key", PAGERDUTY_KEY),
        ("short", "canary0123456789"),
    ] {
        std::fs::write(dir.path().join(file), text).unwrap();
    }
    let text = r##"
receivers:
  - {name: a, slack: {channel: "#gpu alerts", token_file: token}}
  - name: b
    slack:
      channel: "#training"
      token_file: app
  - {name: c, slack: {channel: "#Training", token_file: token}}
  - name: d
    pagerduty:
      routing_key_file: short
  - {name: e, pagerduty: {routing_key_env: CARGO_PKG_NAME}}
  - {name: f, email: {to: [], from: a@example.org, smarthost: "localhost:25", tls: none}}
  - {name: g, pagerduty: {routing_key_file: key}}
"##;
    let errors = Config::parse(&dir.path().join("alerter.yml"), text).unwrap_err().to_string();
    assert!(!errors.contains("canary"), "{errors}");
    assert_snapshot!(errors.replace(&dir.path().display().to_string(), "DIR"));
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
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), SLACK_TOKEN).unwrap();
    let parse = |answers: &str, users: &str| {
        let slack = format!("channel: '#a', token_file: {}", dir.path().join("token").display());
        parse(&format!("receivers: [{{name: chat, slack: {{{slack}{answers}}}}}]\nusers: [{users}]\n"))
    };
    let warns = |answers: &str, users: &str| {
        let c = parse(answers, users).unwrap();
        c.warnings.iter().any(|w| w.starts_with("receivers[0].slack.answers: is known_users, and no entry"))
    };
    assert!(warns(", answers: known_users", "{name: ann, notify: [chat]}"));
    assert!(!warns(", answers: known_users", "{name: ann, slack_id: U012AB3CD}"));
    assert!(!warns("", ""));
    let wrong = parse(", answers: everybody", "").unwrap_err().to_string();
    assert!(wrong.contains("anyone") && wrong.contains("known_users") && wrong.contains('^'), "{wrong}");
}

const TWO_TEAMS: &str = r#"
receivers:
  - {name: chat, stdout: {}}
  - {name: a-pager, wakes: true, stdout: {}}
  - {name: b-pager, wakes: true, stdout: {}}
teams:
  - {name: a, match: ['run=~"a-.*"'], notify: [chat, a-pager], fallback: [user:ann]}
  - {name: b, match: ['run=~"b-.*"'], notify: [b-pager]}
users: [{name: ann, notify: [a-pager]}]
"#;

#[test]
fn who_is_notified_in_place_of_others_is_checked_and_described() {
    let c = parse(&format!("{TWO_TEAMS}fallback: [chat]\n")).unwrap();
    assert_eq!(
        (c.engine.responder.fallback, c.engine.responder.waking),
        (vec!["chat".into()], vec!["a-pager".into(), "b-pager".into()])
    );
    assert_eq!(c.engine.responder.teams[0].fallback, ["user:ann"]);
    assert_snapshot!(error(&format!(
        "{}fallback: [ops, chat, chat]\n",
        TWO_TEAMS.replace("user:ann", "user:bob")
    )));
    assert_snapshot!(error("fallback: {receiver: ops}\n"));
    assert_snapshot!(error("receivers: [{name: chat, wakes: loudly, stdout: {}}]\n"));
}

#[test]
fn pagerduty_wakes_and_the_others_do_unless_it_is_said() {
    let wakes = |yaml: &str| {
        let receiver: ReceiverConfig =
            stepwatch_kit::config::parse("a.yml", &format!("name: x\n{yaml}")).unwrap();
        receiver.wakes()
    };
    assert!(wakes("pagerduty: {}") && !wakes("pagerduty: {}\nwakes: false"));
    for kind in ["slack: {}", "email: {}", "webhook: {}", "alertmanager: {urls: []}", "stdout: {}"] {
        assert!(!wakes(kind), "{kind}");
    }
    assert!(wakes("webhook: {}\nwakes: true"));
}

#[test]
fn a_missing_heartbeat_and_a_team_of_nobody_are_warnings() {
    let warns = |text: &str, part: &str| parse(text).unwrap().warnings.iter().any(|w| w.contains(part));
    assert!(warns("", "watchdog: has no url, url_file or url_env"));
    assert!(!warns("watchdog: {url: \"https://hc.example.com/1\"}", "watchdog:"));
    assert!(warns(TWO_TEAMS, "one of them is notified of what is wrong with the alerter itself"));
    assert!(!warns(&format!("{TWO_TEAMS}fallback: [chat]\n"), "with the alerter itself"));
    let idle = TWO_TEAMS.replace(", notify: [b-pager]", "");
    assert!(warns(&idle, "teams[1]: has neither notify, policy nor fallback"));
    assert!(!warns(&format!("{idle}fallback: [chat]\n"), "teams[1]"));
    let pager = "receivers: [{name: chat, stdout: {}}, {name: pager, wakes: true, stdout: {}}]\n";
    assert!(!warns(pager, "with tickets too"));
    let routed = "routes: [{match: ['severity=\"ticket\"'], notify: [pager]}]\n";
    assert!(warns(&format!("{pager}{routed}"), "routes[0]: leads to pager with tickets too"));
}

/// The receivers of a team's pages if those that are notified do not accept them.
#[test]
fn the_fallback_of_a_team_and_of_all_is_shown_as_a_place_where_pages_go() {
    let lines = |text: &str| {
        let c = parse(text).unwrap();
        c.sections().into_iter().find(|(heading, _)| *heading == "teams").unwrap().1
    };
    let all = format!("{TWO_TEAMS}fallback: [chat, c-pager]\n")
        .replace("teams:", "  - {name: c-pager, wakes: true, stdout: {}}\nteams:")
        .replace("fallback: [user:ann]", "fallback: ['user:ann', 'user:bob']")
        .replace("users: [", "users: [{name: bob, notify: [chat, c-pager]}, ");
    assert_snapshot!(lines(&all).join("\n"));
    let routes =
        parse(&all).unwrap().sections().into_iter().find(|(heading, _)| *heading == "routes").unwrap().1;
    assert_eq!(
        routes,
        ["page and ticket -> whoever its team names, else chat, c-pager (pages); info -> nobody"]
    );
    // A schedule now leads to another person.
    let bob = "users: [{name: bob, notify: [b-pager]}, ";
    let turns = format!("{TWO_TEAMS}fallback: [chat]\n")
        .replace("notify: [chat, a-pager]", "notify: ['schedule:s']")
        .replace("users: [", &format!("schedules: [{{name: s, time_zone: UTC, layers: [{{users: [ann, bob], start: 2026-01-05T09:00}}]}}]\n{bob}"));
    assert_eq!(
        lines(&turns)[0],
        "a, page -> schedule:s (if nobody is on call: the others of the level, or whoever is nearest if it names no others); if that fails: user:ann (by a-pager), then chat"
    );
    let own = TWO_TEAMS.replace("notify: [chat, a-pager], fallback", "fallback");
    assert_snapshot!(lines(&format!("{own}fallback: [chat]\n")).join("\n"));
}

/// As in the engine, a page goes to the last level, and a ticket waits in the list.
#[test]
fn a_ticket_that_no_level_is_for_notifies_nobody() {
    let text = r#"
receivers: [{name: phone, stdout: {}}]
policies: [{name: p, levels: [{after: 0s, notify: [phone], if: {severity: page}}]}]
teams: [{name: a, match: ['run="a"'], policy: p}]
"#;
    let c = parse(text).unwrap();
    let table = c.sections().into_iter().find(|(heading, _)| *heading == "teams").unwrap().1;
    assert_eq!(
        table[..2],
        [
            "a, page -> policy p: at once phone",
            "a, ticket -> policy p: nobody, it waits in the list of incidents"
        ]
    );
}

#[test]
fn whatever_wakes_is_said_to_ring() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), PAGERDUTY_KEY).unwrap();
    let text = r#"
receivers:
  - {name: hook, wakes: true, webhook: {url: "https://example.org/ring"}}
  - {name: quiet, webhook: {url: "https://example.org/log"}}
  - {name: pager, pagerduty: {routing_key_file: key}}
  - {name: low, wakes: false, pagerduty: {routing_key_file: key}}
  - {name: once, pagerduty: {routing_key_file: key, repeats: service}}
users: [{name: ann, notify: [once]}]
policies: [{name: p, levels: [{after: 0s, notify: [pager]}, {after: 5m, notify: ["user:ann"], repeat: 3}]}]
teams: [{name: a, match: ['run="a"'], policy: p}]
routes: [{match: ['severity="page"'], policy: p}]
"#;
    let c = Config::parse(&dir.path().join("alerter.yml"), text).unwrap();
    let sections = c.sections();
    let lines = |heading: &str| sections.iter().find(|(h, _)| *h == heading).unwrap().1.join("\n");
    let said = "after 5m user:ann, 3 more times (but once once)";
    assert!(lines("routes").contains(said), "{}", lines("routes"));
    let said = "user:ann (by once), 3 more times (but once once)";
    assert!(lines("teams").contains(said), "{}", lines("teams"));
    let all = c.sections().into_iter().find(|(heading, _)| *heading == "receivers").unwrap().1;
    assert_eq!(
        all,
        [
            "hook: webhook, rings at each call",
            "quiet: webhook",
            "pager: pagerduty, rings at each call",
            "low: pagerduty",
            "once: pagerduty, notified once: PagerDuty's own escalation policy repeats",
        ]
    );
    assert_eq!(c.engine.responder.waking, ["hook", "pager", "once"]);
}

#[test]
fn a_team_that_leads_tickets_to_a_pager_is_a_warning() {
    let warnings_of = |text: &str, of: &str| {
        let all = parse(text).unwrap().warnings;
        all.iter().filter(|w| w.contains("with tickets too") && w.starts_with(of)).count()
    };
    let routed = "routes: [{match: ['team=\"\"'], notify: [chat]}]\n";
    assert_eq!(warnings_of(&format!("{TWO_TEAMS}{routed}"), ""), 2);
    assert_eq!(warnings_of(TWO_TEAMS, "teams[0]: leads to a-pager"), 1);
    assert_eq!(warnings_of(TWO_TEAMS, "teams[1]: leads to b-pager"), 1);
    // A route counts once, whatever teams it is for; a route for one team is found through that
    // team.
    let one = "routes: [{match: ['severity=\"ticket\"', 'team=~\"a|b\"'], notify: [b-pager]}]\n";
    assert_eq!(warnings_of(&format!("{TWO_TEAMS}{one}"), "routes[0]: leads to b-pager"), 1);
    assert_eq!(warnings_of(&format!("{TWO_TEAMS}{one}"), "teams"), 0);
    // A level with a severity condition wakes nobody with tickets, and neither does a fallback.
    let asked = TWO_TEAMS
        .replace("notify: [chat, a-pager]", "policy: p")
        .replace("notify: [b-pager]", "fallback: [b-pager]");
    let policy = "policies: [{name: p, levels: [{after: 0s, notify: [a-pager], if: {severity: page}}]}]\n";
    assert_eq!(warnings_of(&format!("{asked}{policy}"), "teams"), 0);
}

/// Teams that only routes name are teams too: their receivers get no other team's incidents, and
/// their incidents go only to receivers that the operator named.
#[test]
fn teams_that_only_routes_name_are_shown_and_warned_of() {
    let text = r#"
receivers: [{name: chat, stdout: {}}, {name: pager, wakes: true, stdout: {}}, {name: spare, wakes: true, stdout: {}}]
routes:
  - {match: ['team="a"'], notify: [pager]}
"#;
    let c = parse(text).unwrap();
    let all = c.sections();
    let lines = |heading: &str| all.iter().find(|(h, _)| *h == heading).unwrap().1.clone();
    assert_eq!(
        lines("teams"),
        ["a, page -> pager", "a, ticket -> pager", "no team, page -> chat; spare", "no team, ticket -> chat",]
    );
    assert_eq!(lines("routes")[1], "any other page and ticket -> chat, spare (pages); info -> nobody");
    let warns = |part: &str| c.warnings.iter().any(|w| w.contains(part));
    assert!(warns("routes[0]: leads to pager with tickets too"), "{:?}", c.warnings);
}
