//! Who is on call, asked of the real program: its check of a file, its answer while it runs, over a
//! restart, and a simulation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use stepwatch_tests::daemon::{self, Daemon};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{bins, poll_until};

const CONFIG: &str = r#"
listen: "127.0.0.1:0"
storage: {sqlite: alerter.db}
receivers:
  - {name: chat, stdout: {}}
  - {name: alice-phone, stdout: {}}
  - {name: bob-phone, stdout: {}}
users:
  - {name: alice, notify: [alice-phone]}
  - {name: bob, notify: [bob-phone], email: bob@example.org}
schedules:
  - name: primary
    time_zone: Europe/Berlin
    layers: [{name: weekly, users: [alice], start: 2026-01-05T09:00}]
    ical: {file: shifts.ics}
  - name: nights
    time_zone: America/New_York
    layers: [{users: [bob], start: 2026-01-05T21:00, restrictions: [{times: [{start_time: '00:00', end_time: '09:00'}]}]}]
    fallback: [chat]
policies:
  - name: default
    levels:
      - {after: 0s, notify: ['schedule:primary']}
      - {after: 5m, notify: ['user:alice', chat]}
routes:
  - {match: ['severity="page"'], policy: default}
"#;
/// Two days of every month, one of them through the night in which the clock is set forward.
const CALENDAR: &str = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTART;TZID=W. Europe Standard Time:20300128T090000\r\n\
     DTEND;TZID=W. Europe Standard Time:20300130T090000\r\nRRULE:FREQ=MONTHLY;BYMONTHDAY=30,-1\r\nSUMMARY:On call\r\n\
     ATTENDEE;CN=\"Bob: the builder\":mailto:bob@\r\n example.org\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n";

async fn alerter(dir: &Path, args: &[&str]) -> Output {
    let mut command = daemon::command(bins::path(bins::ALERTER).unwrap());
    command.args(args).current_dir(dir).kill_on_drop(true);
    tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

async fn start(dir: &Path) -> (Daemon, String) {
    let mut command = daemon::command(bins::path(bins::ALERTER).unwrap());
    command.args(["--config", "alerter.yml"]).current_dir(dir);
    let mut daemon = Daemon::spawn("alerter", &mut command).unwrap();
    let url = format!("http://{}", daemon.listening().await.unwrap());
    (daemon, url)
}

/// Who is on call by the running alerter, once it has read the calendar.
async fn asked(dir: &Path, url: &str) -> Value {
    poll_until("the calendar to be read", PATIENCE, async || {
        let words = [
            "oncall",
            "primary",
            "--at",
            "2030-03-31T04:00",
            "--days",
            "3",
            "--format",
            "json",
            "--url",
            url,
        ];
        let view: Value = serde_json::from_str(&text(&alerter(dir, &words).await)).unwrap();
        let schedule = view["schedules"][0].clone();
        (!schedule["calendar"]["read_at"].is_null()).then_some(schedule)
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_who_is_on_call_and_who_would_be_notified() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("alerter.yml"), CONFIG).unwrap();
    std::fs::write(dir.join("shifts.ics"), CALENDAR).unwrap();

    let check = text(&alerter(dir, &["config", "check", "alerter.yml"]).await);
    assert!(check.contains("schedule nights: nobody is on call from "), "{check}");
    assert!(!check.contains("schedule primary"), "{check}");

    let (mut daemon, url) = start(dir).await;
    let primary = asked(dir, &url).await;
    assert_eq!(
        (primary["on_call"][0]["user"].as_str(), primary["by"].as_str()),
        (Some("bob"), Some("calendar"))
    );
    let shifts: Vec<String> = primary["shifts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| format!("{} {}", s["from"], s["users"]))
        .collect();
    let want = ["\"2030-03-31T02:00:00.000Z\" [\"bob\"]", "\"2030-04-02T07:00:00.000Z\" [\"alice\"]"];
    assert_eq!(shifts, want);

    // The copy outlives the program and the file.
    daemon.kill().await.unwrap();
    std::fs::remove_file(dir.join("shifts.ics")).unwrap();
    let (mut daemon, url) = start(dir).await;
    assert_eq!(asked(dir, &url).await["on_call"][0]["user"], "bob");
    let table = text(
        &alerter(dir, &["oncall", "nights", "--at", "2026-12-01T08:00", "--days", "1", "--url", &url]).await,
    );
    assert!(table.contains("-- nobody --"), "{table}");
    daemon.terminate().await.unwrap();

    std::fs::write(dir.join("shifts.ics"), CALENDAR).unwrap();
    let words = [
        "simulate",
        "--config",
        "alerter.yml",
        "--at",
        "2030-03-31T04:00[Europe/Berlin]",
        "--ack-after",
        "7m",
        "--format",
        "json",
    ];
    let story: Value = serde_json::from_str(&text(&alerter(dir, &words).await)).unwrap();
    let notified: Vec<(f64, &str, &str)> = story["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["what"] == "notified" && e["action"] == "trigger")
        .map(|e| {
            (
                e["after_seconds"].as_f64().unwrap(),
                e["receiver"].as_str().unwrap(),
                e["channel"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        notified,
        [(0.0, "bob-phone", "stdout"), (300.0, "alice-phone", "stdout"), (300.0, "chat", "stdout")]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_is_made_in_a_shell_outlives_a_kill_and_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let config = CONFIG.replace("    ical: {file: shifts.ics}\n", "");
    std::fs::write(dir.join("alerter.yml"), config).unwrap();
    let (mut daemon, url) = start(dir).await;
    let until = (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(2)).to_string();
    let add =
        ["oncall", "override", "add", "primary", "--who", "bob", "--until", &until, "--note", "dentist"];
    let made = text(&alerter(dir, &[&add[..], &["--by", "ann", "--url", &url]].concat()).await);
    assert!(made.contains(" puts bob on call in primary from "), "{made}");
    let add = ["oncall", "override", "add", "primary", "--who", "zoe", "--until", &until, "--url", &url];
    let unknown = String::from_utf8(alerter(dir, &add).await.stderr).unwrap();
    assert!(unknown.contains("there is no user \"zoe\"; those that exist: alice, bob"), "{unknown}");

    // It was answered, so it is on disk.
    daemon.kill().await.unwrap();
    let (mut daemon, url) = start(dir).await;
    let now = text(&alerter(dir, &["oncall", "primary", "--url", &url]).await);
    assert!(now.contains("bob (bob-phone) by override by ann: dentist"), "{now}");
    let list = text(&alerter(dir, &["oncall", "override", "list", "--format", "json", "--url", &url]).await);
    let list: Value = serde_json::from_str(&list).unwrap();
    let id = list["overrides"][0]["id"].as_str().unwrap();
    let over = text(&alerter(dir, &["oncall", "override", "expire", &id[..8], "--url", &url]).await);
    assert_eq!(over, format!("{id} is over (schedule primary)\n"));
    let list = text(&alerter(dir, &["oncall", "override", "list", "--url", &url]).await);
    assert_eq!(list, "no overrides\n");
    let now = text(&alerter(dir, &["oncall", "primary", "--url", &url]).await);
    assert!(now.contains("alice (alice-phone) by layer weekly"), "{now}");
    daemon.terminate().await.unwrap();
}
