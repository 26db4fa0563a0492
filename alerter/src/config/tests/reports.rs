use insta::assert_snapshot;

use super::{error, parse};
use crate::config::{Every, TimeOfDay, Weekday};

const RECEIVERS: &str = "receivers: [{name: chat, stdout: {}}, {name: siren, stdout: {}, wakes: true}, \
                         {name: am, alertmanager: {urls: ['http://am:9093']}}]\n";

#[test]
fn reports_have_defaults_and_are_described() {
    let text = format!(
        "{RECEIVERS}reports:\n- {{name: plain, notify: [chat]}}\n\
         - {{name: mine, notify: [chat], every: week, on: friday, at: \"17:30\", time_zone: Europe/Berlin, run: llama}}\n\
         - {{name: bill, notify: [chat], every: month, at: 00:00}}\n- {{name: today, notify: [chat], every: day}}\n"
    );
    let c = parse(&text).unwrap();
    let plain = &c.file.reports[0];
    assert_eq!((plain.every, plain.on, plain.at), (Every::Week, None, TimeOfDay::default()));
    assert_eq!((plain.time_zone.name(), plain.run.as_deref()), ("UTC", None));
    assert_eq!(c.file.reports[1].on, Some(Weekday::Friday));
    let (_, lines) = c.sections().into_iter().find(|(heading, _)| *heading == "reports").unwrap();
    assert_eq!(
        lines,
        [
            "plain: every week on monday at 09:00 UTC -> chat",
            "mine: run llama, every week on friday at 17:30 Europe/Berlin -> chat",
            "bill: every month on its first day at 00:00 UTC -> chat",
            "today: every day at 09:00 UTC -> chat",
        ]
    );
}

#[test]
fn mistakes_in_a_report_are_pointed_at() {
    let one = |keys: &str| error(&format!("{RECEIVERS}reports:\n  - {{name: weekly, {keys}}}\n"));
    let all = [
        "notify: [chat], every: fortnight",
        "notify: [chat], on: mondays",
        "notify: [chat], at: 9am",
        "notify: [chat], at: \"24:00\"",
        "notify: [chat], time_zone: Mars/Olympus",
        "notify: [chat], to: [chat]",
        "every: week",
    ];
    assert_snapshot!(all.map(one).join("\n\n"));
}

#[test]
fn reports_that_nobody_would_read_are_refused() {
    let text = format!(
        "{RECEIVERS}reports:\n\
         - {{name: weekly, notify: []}}\n\
         - {{name: weekly, notify: [chatt, chat, chat, siren, am]}}\n\
         - {{name: \"a b\", notify: [chat], every: month, on: monday, run: \"\"}}\n"
    );
    assert_snapshot!(error(&text));
}

#[test]
fn a_pager_gets_no_reports() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), super::PAGERDUTY_KEY).unwrap();
    let text = format!(
        "receivers: [{{name: pager, wakes: false, pagerduty: {{routing_key_file: {}/key}}}}]\n\
         reports: [{{name: weekly, notify: [pager]}}]\n",
        dir.path().display()
    );
    let said = error(&text);
    assert!(
        said.contains("reports[0].notify[0]: \"pager\" gets no reports: PagerDuty calls people;"),
        "{said}"
    );
}
