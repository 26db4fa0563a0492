use std::path::Path;

use insta::assert_snapshot;
use stepwatch_kit::config::ConfigError;

use super::*;
use crate::config::Config;

const RECEIVERS: &str = "
receivers:
  - {name: chat, stdout: {}}
  - {name: alice-phone, stdout: {}}
  - {name: bob-phone, stdout: {}}
users:
  - {name: alice, email: alice@example.com, notify: [alice-phone]}
  - {name: bob, slack_id: U012AB3CD, aliases: [Robert], notify: [bob-phone, chat]}
  - {name: carol}
";

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("/etc/stepwatch/alerter.yml"), &format!("{RECEIVERS}{text}"))
}

fn at(text: &str) -> Ts {
    Ts(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
}

#[test]
fn everything_can_be_set() {
    let c = parse(
        r#"
time_intervals:
  - name: business-hours
    time_intervals:
      - times: [{start_time: '09:00', end_time: '17:00'}]
        weekdays: ['monday:friday']
        days_of_month: ['1:-1']
        months: ['january:november', 12]
        years: [2026, '2027:2030']
        location: Europe/Berlin
      - {times: ['22:00-06:00'], weekdays: [friday]}
schedules:
  - name: primary
    time_zone: Europe/Berlin
    layers:
      - {name: weekly, users: [alice, [bob, alice]], start: 2026-01-05T09:00, rotation: weekly}
      - name: day
        users: [bob]
        start: 2026-01-05
        until: 2027-01-05T09:00
        rotation: 12h
        restrictions: [{weekdays: ['monday:friday'], times: ['22:00-06:00']}]
    overrides:
      - {from: 2026-12-24T00:00, to: 2026-12-27T00:00, users: bob, reason: holidays}
      - {from: '2026-12-28T08:00:00Z', to: '2026-12-29T09:00[Europe/Berlin]', users: [alice], replaces: bob}
    fallback: [chat, 'user:bob']
  - name: secondary
    time_zone: UTC
    ical: {file: shifts.ics, refresh: 1m, stale_after: 2h}
  - name: third
    time_zone: UTC
    ical: {url: 'webcal://calendar.example.com/private.ics'}
policies:
  - name: default
    levels:
      - {after: 0s, notify: ['schedule:primary']}
      - {after: 5m, notify: ['user:bob', chat], if: {outside: business-hours}}
routes:
  - {match: ['severity="page"'], policy: default}
"#,
    )
    .unwrap();
    let oncall = &c.engine.responder.oncall;
    assert_eq!((oncall.users.len(), oncall.schedules.len(), oncall.time_intervals.len()), (3, 3, 1));
    assert_eq!(oncall.schedules[1].calendar, Some(Span::secs(7200)));
    assert_eq!(c.calendars.len(), 2);
    assert_eq!(c.calendars[0].place, Place::File("/etc/stepwatch/shifts.ics".into()));
    assert!(!format!("{:?}", c.calendars).contains("private"), "the address of a calendar is a secret");
}

#[test]
fn mistakes_in_a_value_are_pointed_at() {
    let schedule = |rest: &str| format!("schedules:\n  - name: p\n    time_zone: UTC\n{rest}\n");
    let all = [
        "schedules:\n  - {name: p, time_zone: Europe/Berlim}\n".to_owned(),
        "schedules:\n  - {name: p}\n".to_owned(),
        schedule("    layers: [{users: [alice], start: monday}]"),
        schedule("    layers: [{users: [alice], start: 2026-01-05, rotation: monthly}]"),
        schedule("    layers: [{users: {alice: 1}, start: 2026-01-05}]"),
        schedule("    overrides: [{from: tomorrow, to: 2026-01-05, users: alice}]"),
        schedule("    layers:\n      - users: [alice]\n        start: 2026-01-05\n        restrictions: [{weekdays: [funday]}]"),
        "time_intervals:\n  - name: x\n    time_intervals: [{times: [{start_time: '9', end_time: '17:00'}]}]\n".to_owned(),
        "time_intervals:\n  - name: x\n    time_intervals: [{days_of_month: ['5:1']}]\n".to_owned(),
        "time_intervals:\n  - name: x\n    time_intervals: [{days: ['monday']}]\n".to_owned(),
    ];
    let error = |text: String| parse(&text).expect_err("a mistake").to_string();
    assert_snapshot!(all.map(error).join("\n\n"));
}

#[test]
fn mistakes_between_values_are_reported_all_at_once() {
    let text = r#"
time_intervals:
  - {name: empty}
schedules:
  - name: primary
    time_zone: Europe/Berlin
    layers:
      - {users: [alice, mallory, carol], start: 2026-01-05}
      - {users: [], start: 2026-01-05}
      - {users: [bob], start: 2026-01-05, until: 2026-01-05}
    overrides:
      - {from: 2026-12-24T00:00, to: 2026-12-27T00:00, users: bob}
      - {from: 2026-12-26T23:00, to: 2026-12-28T00:00, users: alice}
      - {from: 2026-12-30T00:00, to: 2026-12-29T00:00, users: [], replaces: zoe}
    fallback: [pager, 'user:dave', 'schedule:primary']
  - {name: primary, time_zone: UTC}
  - {name: calendar, time_zone: UTC, ical: {file: a.ics, url: 'ftp://example.com', refresh: 1s, stale_after: 500ms}}
policies:
  - {name: p, levels: [{after: 0s, notify: ['schedule:secondary', 'user:alice'], if: {during: nights}}]}
"#;
    assert_snapshot!(parse(text).expect_err("mistakes").to_string());
}

#[test]
fn a_time_interval_that_is_over_is_reported() {
    let text = "time_intervals:\n\
                - {name: move, time_intervals: [{years: ['2024', '2025']}]}\n\
                - {name: nights, time_intervals: [{years: ['2025']}, {times: ['20:00-08:00']}]}\n";
    let c = parse(text).unwrap();
    let over = "time interval move: ended with 2025, so that it never holds again";
    assert_eq!(c.file.gaps(at("2026-11-21T12:00:00Z")), [over]);
    assert_eq!(c.file.gaps(at("2025-12-31T12:00:00Z")), [""; 0]);
}

#[test]
fn hours_in_which_nobody_is_on_call_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("shifts.ics"),
        "BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:1\nDTSTART:20261123T090000\nDTEND:20261218T170000\nSUMMARY:alice\nEND:VEVENT\n\
         BEGIN:VEVENT\nUID:2\nDTSTART:20261218T170000\nDTEND:20261231T170000\nSUMMARY:Somebody else\nEND:VEVENT\n\
         BEGIN:VEVENT\nUID:3\nDTSTART:20261218T170000\nSUMMARY:endless\nEND:VEVENT\nEND:VCALENDAR\n",
    )
    .unwrap();
    let text = format!(
        "{RECEIVERS}
schedules:
  - name: office
    time_zone: Europe/Berlin
    layers:
      - users: [alice, bob]
        start: 2026-01-05T09:00
        restrictions: [{{weekdays: ['monday:friday'], times: [{{start_time: '09:00', end_time: '17:00'}}]}}]
    fallback: [chat]
  - {{name: always, time_zone: UTC, layers: [{{users: [alice, bob], start: 2026-01-05T09:00}}]}}
  - {{name: calendar, time_zone: Europe/Berlin, ical: {{file: shifts.ics}}}}
  - {{name: missing, time_zone: UTC, ical: {{file: /nonexistent/shifts.ics}}}}
  - {{name: elsewhere, time_zone: UTC, ical: {{url: 'https://example.com/a.ics'}}}}
"
    );
    let c = Config::parse(&dir.path().join("alerter.yml"), &text).unwrap();
    assert_snapshot!(c.file.gaps(at("2026-11-21T12:00:00Z")).join("\n"));
}
