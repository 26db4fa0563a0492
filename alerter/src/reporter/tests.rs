//! Tests when scheduled reports are stored, and that they arrive once.

mod kill;

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use stepwatch_detect::run::{Counts, HOUR, HourTotals, RunHour, TimeState, Totals};
use stepwatch_fakes::{Fake, FakeSlack, FakeWebhook, Slack, WebhookSink};
use stepwatch_model::time::Span;
use stepwatch_model::{Cause, Kind};
use stepwatch_respond::effect::{Action, Effect};
use stepwatch_respond::incident::State;

use super::*;
use crate::clock::wall;
use crate::notify::ScheduledReport;
use crate::notify::tests::page;
use crate::report::Period;
use crate::report::message::tests::schedule;
use crate::report::schedule::{Every, TimeOfDay};
use crate::store::tests::{incident, reopen};
use crate::store::{Commit, DeliveryState};
use crate::testing::{FakeExporter, TestApp, wait_for};

const DAY: Span = Span::secs(86_400);

async fn reporter(path: &Path) -> Reporter {
    Reporter { store: reopen(path).await, views: Arc::default() }
}

fn plan(schedules: Vec<Schedule>) -> Plan {
    Plan { schedules, external_url: Some("https://stepwatch.example.com/".into()) }
}

/// Monday, 23 November 2026, 09:00 in Berlin.
fn monday() -> Ts {
    schedule(None).next(Ts(1_795_227_416_000)).unwrap().at
}

/// A time of day that is half a day away, so that no test passes it.
fn far_time_of_day() -> String {
    let hour = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).hour();
    format!("{:02}:30", (hour + 12) % 24)
}

/// Stops the alerter before the last report of a daily schedule.
async fn away_for_days(path: &Path, name: &str) {
    let store = reopen(path).await;
    store.report_schedules(&[name], wall().earlier(Span(3 * DAY.0))).await.unwrap();
    store.close().await;
}

async fn sent(reporter: &Reporter, day: &str) -> Vec<(String, DeliveryState)> {
    let all = reporter.store.deliveries(&format!("report/weekly/{day}")).await.unwrap();
    all.into_iter().map(|d| (d.receiver, d.state)).collect()
}

#[tokio::test]
async fn a_report_is_stored_once_when_it_is_due() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("alerter.db");
    let r = reporter(&path).await;
    let both = Schedule { notify: vec!["chat".into(), "mail".into()], ..schedule(None) };
    let plan = plan(vec![both]);
    let (before, at) = (monday().earlier(Span::secs(60)), monday());
    assert_eq!(r.send_due(&plan, before).await.unwrap(), Some(at));
    assert_eq!(sent(&r, "2026-11-23").await, []);
    let next = at + Span(7 * DAY.0);
    assert_eq!(r.send_due(&plan, at).await.unwrap(), Some(next));
    let waiting = ["chat", "mail"].map(|name| (name.to_owned(), DeliveryState::Pending));
    assert_eq!(sent(&r, "2026-11-23").await, waiting);
    // Neither another check, nor a restart, nor another time on the same day creates another one.
    r.send_due(&plan, at + Span::secs(1)).await.unwrap();
    r.store.close().await;
    let r = reporter(&path).await;
    let later = Schedule { at: TimeOfDay::parse("10:00").unwrap(), ..plan.schedules[0].clone() };
    let later = self::plan(vec![later]);
    assert_eq!(r.send_due(&later, at + Span::secs(7200)).await.unwrap(), Some(next + Span::secs(3600)));
    assert_eq!(sent(&r, "2026-11-23").await, waiting);
    // The stored report is unchanged, whatever has happened since.
    let claim = r.store.claim("report/weekly/2026-11-23", "chat", false, at).await.unwrap().unwrap();
    let report: ScheduledReport = serde_json::from_str(&claim.report.unwrap()).unwrap();
    assert_eq!(report.title, "Weekly report, 2026-11-16 to 2026-11-22");
    assert_eq!(claim.notification.message.title, report.title);
}

#[tokio::test]
async fn of_what_was_missed_the_last_is_sent_within_a_day_and_a_new_schedule_begins_now() {
    let dir = tempfile::tempdir().unwrap();
    let r = reporter(&dir.path().join("alerter.db")).await;
    let weekly = plan(vec![schedule(None)]);
    let at = monday();
    // A new schedule, an hour after its time.
    r.send_due(&weekly, at + Span::secs(3600)).await.unwrap();
    assert_eq!(sent(&r, "2026-11-23").await, []);
    // Stopped for three weeks, until nearly a day after the last time.
    let back = at + Span(22 * DAY.0) + Span::secs(-60);
    r.send_due(&weekly, back).await.unwrap();
    for (day, count) in [("2026-11-30", 0), ("2026-12-07", 0), ("2026-12-14", 1)] {
        assert_eq!(sent(&r, day).await.len(), count, "{day}");
    }
    // Stopped until more than a day after the next time.
    r.send_due(&weekly, at + Span(29 * DAY.0) + Span::secs(60)).await.unwrap();
    assert_eq!(sent(&r, "2026-12-21").await, []);
    // A schedule that is removed and added again is new.
    r.send_due(&plan(Vec::new()), at + Span(30 * DAY.0)).await.unwrap();
    r.send_due(&weekly, at + Span(35 * DAY.0) + Span::secs(60)).await.unwrap();
    assert_eq!(sent(&r, "2026-12-28").await, []);
    // A clock that was years ahead blocks no report.
    r.send_due(&weekly, at + Span(700 * DAY.0) + Span::secs(60)).await.unwrap();
    r.send_due(&weekly, at + Span(41 * DAY.0)).await.unwrap();
    r.send_due(&weekly, at + Span(42 * DAY.0)).await.unwrap();
    assert_eq!(sent(&r, "2027-01-04").await.len(), 1);
}

#[tokio::test]
async fn a_budget_leaves_no_report_out_and_old_ones_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let r = reporter(&dir.path().join("alerter.db")).await;
    let weekly = plan(vec![schedule(None)]);
    let (id, at) = ("report/weekly/2026-11-23", monday());
    r.send_due(&weekly, at.earlier(DAY)).await.unwrap();
    r.send_due(&weekly, at).await.unwrap();
    assert!(!r.store.leave_out(id, "chat", at).await.unwrap());
    r.store.prune(at).await.unwrap();
    assert_eq!(sent(&r, "2026-11-23").await.len(), 1);
    r.store.prune(at + Span(1)).await.unwrap();
    assert_eq!(sent(&r, "2026-11-23").await, []);
    r.send_due(&weekly, at + Span::secs(60)).await.unwrap();
    assert_eq!(sent(&r, "2026-11-23").await, [], "it was sent");
}

#[tokio::test]
async fn other_schedules_are_looked_at_when_they_come() {
    let dir = tempfile::tempdir().unwrap();
    let r = reporter(&dir.path().join("alerter.db")).await;
    r.store.report_schedules(&["weekly"], monday().earlier(DAY)).await.unwrap();
    let (plans, taken) = watch::channel(Arc::new(plan(vec![schedule(None)])));
    let at = Arc::new(AtomicI64::new(monday().earlier(Span::secs(3600)).0));
    let clock = Arc::clone(&at);
    let clock = Arc::new(move || Ts(clock.load(Ordering::Relaxed)));
    let (stop, shutdown) = Shutdown::manual();
    let task = tokio::spawn(keep(r.clone(), taken, clock, shutdown));
    at.store(monday().0, Ordering::Relaxed);
    let two = Schedule { notify: vec!["chat".into(), "mail".into()], ..schedule(None) };
    plans.send_replace(Arc::new(plan(vec![two])));
    wait_for("the report", async || Some(sent(&r, "2026-11-23").await).filter(|sent| !sent.is_empty())).await;
    stop.fire();
    task.await.unwrap();
}

/// The whole alerter was stopped when the report was due; one receiver is down, and the alerter
/// restarts before that receiver recovers.
#[tokio::test]
async fn who_is_down_gets_the_report_later_and_nobody_gets_it_twice() {
    let (dir, chat, hook): (_, FakeSlack, _) =
        (tempfile::tempdir().unwrap(), Fake::start().await, FakeWebhook::start().await);
    std::fs::write(dir.path().join("secret"), WebhookSink::SECRET).unwrap();
    std::fs::write(dir.path().join("token"), Slack::TOKEN).unwrap();
    away_for_days(&dir.path().join("alerter.db"), "daily").await;
    let more = format!(
        "  - name: chat\n    slack: {{channel: \"#training\", token_file: token, api_url: \"{}/api\"}}\n\
         external_url: https://stepwatch.example.com\n\
         reports: [{{name: daily, notify: [chat, hook], every: day, at: \"{}\"}}]\n",
        chat.url(),
        far_time_of_day()
    );
    chat.script().always("chat.postMessage", stepwatch_fakes::Fault::Status(503));
    let app = TestApp::on(dir, FakeExporter::start([]).await, hook, &more).await;
    let attempts = || chat.with(|s| s.requests.len());
    let arrived = |app: &TestApp| app.hook.with(|s| s.deliveries.len());
    wait_for("the report", async || (arrived(&app) == 1 && attempts() > 0).then_some(())).await;
    app.hook.with(|s| {
        let body = &s.deliveries[0].body;
        assert_eq!((&body["type"], &body["schedule"]), (&"report".into(), &"daily".into()), "{body}");
        assert!(body["report"]["total"].is_object(), "{body}");
    });
    let app = app.restart_with(&more).await;
    chat.script().clear();
    let post = wait_for("Slack", async || chat.with(|s| s.top().next().cloned())).await;
    assert!(post.text.starts_with("📊 Daily report, "), "{}", post.text);
    let link = post.blocks.iter().find(|b| b["type"] == "actions").unwrap()["elements"][0]["url"].clone();
    let page = link.as_str().unwrap().strip_prefix("https://stepwatch.example.com").unwrap().to_owned();
    let (status, body) = app.get(&page).await;
    assert!(status == 200 && body.contains("No time of any run is accounted"), "{page}: {status} {body}");
    let metric = "stepwatch_alerter_notifications_sent_total{receiver=\"chat\",action=\"trigger\"} 1";
    wait_for("the mark", async || app.get("/metrics").await.1.contains(metric).then_some(())).await;
    let app = app.restart_with(&more).await;
    // The reporter has made its first check, and anything that it stored has been sent.
    let idle = "stepwatch_alerter_outbox_depth 0";
    wait_for("an empty outbox", async || app.get("/metrics").await.1.contains(idle).then_some(())).await;
    assert_eq!((arrived(&app), chat.with(|s| s.posts.len())), (1, 1));
    assert_eq!(app.json("/api/v1/incidents").await["incidents"], serde_json::json!([]));
}

const HOURS: i64 = 30 * 24;

/// Stores the hours of a month until `until`.
async fn fill_hours(store: &Store, runs: usize, until: Ts) {
    let states = [
        (TimeState::Productive, [3_400_123, 3_400_123 * 512], 902.17),
        (TimeState::Slowed, [88_123, 88_123 * 512], 21.3),
        (TimeState::Saving, [111_754, 111_754 * 512], 30.9),
    ];
    let totals = Totals::from_states(states, Counts { tokens: 3.4e9, ..Counts::default() });
    let last = until.0 / HOUR.0;
    for hour in last - HOURS..last {
        let of = |run| {
            let hour = HourTotals { hour, totals: totals.clone() };
            RunHour { run: format!("pretraining-{run}"), hour }
        };
        let hours = (0..runs).map(of).collect();
        store.commit(&Commit { hours, ..Commit::default() }).await.unwrap();
    }
}

/// Stores incidents of the month, each with two messages.
async fn fill_incidents(store: &Store, count: usize, until: Ts) {
    let all: Vec<usize> = (0..count).collect();
    for some in all.chunks(250) {
        let mut effects = Vec::new();
        for n in some {
            let mut record = incident(&format!("incident-{n:05}"), State::Resolved);
            record.run = format!("pretraining-{}", n % 20);
            (record.kind, record.cause) = (Kind::Hang, Cause::Progress);
            record.opened_at = until.earlier(Span(HOUR.0 * (2 + *n as i64 % (HOURS - 3))));
            record.resolved_at = Some(record.opened_at + Span::secs(60 + *n as i64 % 3000));
            for receiver in ["chat", "mail"] {
                let mut message = page(receiver, 1, Action::Trigger);
                message.idem_key = format!("{}/{receiver}/1", record.id);
                message.incident.clone_from(&record.id);
                message.message.incident.clone_from(&record.id);
                effects.push(Effect::Notify(Box::new(message)));
            }
            effects.insert(0, Effect::Incident(Box::new(record)));
        }
        store.commit(&Commit { effects, at: until, ..Commit::default() }).await.unwrap();
    }
}

#[tokio::test]
async fn messages_of_several_incidents_are_those_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let store = reopen(&dir.path().join("alerter.db")).await;
    fill_incidents(&store, 5, monday()).await;
    let ids = ["incident-00003", "incident-00001", "nobody", "incident-00004"];
    let all = store.deliveries_of(&ids).await.unwrap();
    assert_eq!(all.len(), 3, "{all:?}");
    for id in ids {
        let each = store.deliveries(id).await.unwrap();
        assert_eq!(format!("{:?}", all.get(id).map_or(&[][..], Vec::as_slice)), format!("{each:?}"));
    }
    assert_eq!(all["incident-00001"].len(), 2);
}

/// Of a thousand runs and as many incidents as are read, in a release build. A debug build is many
/// times as slow and has fewer; `STEPWATCH_LONG=1` gives it all of them.
#[tokio::test]
async fn a_report_of_a_month_takes_less_than_a_second() {
    let in_full = !cfg!(debug_assertions) || std::env::var_os("STEPWATCH_LONG").is_some();
    let (runs, incidents) = if in_full { (1_000, 5_000) } else { (20, 100) };
    let dir = tempfile::tempdir().unwrap();
    let store = reopen(&dir.path().join("alerter.db")).await;
    let until = monday();
    fill_hours(&store, runs, until).await;
    fill_incidents(&store, incidents, until).await;
    let period = Period { since: Ts((until.0 / HOUR.0 - HOURS) * HOUR.0), until };
    let began = std::time::Instant::now();
    let view = gather(&store, &Views::default(), period, None, |_| true, until).await.unwrap();
    let page = crate::report::html::render(&view);
    let took = began.elapsed();
    assert!(page.contains("pretraining-"), "{page}");
    assert_eq!((view.incidents, view.costliest.len()), (incidents, 10));
    let _ = writeln!(
        std::io::stderr(),
        "figure: a report of {HOURS} hours of {runs} runs with {incidents} incidents took {took:?}"
    );
    assert!(took.as_secs() < 1, "{took:?}");
}
