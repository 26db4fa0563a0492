//! Tests of the pages about on-call schedules, receivers and runbooks.

use super::Browser;
use crate::testing::{DEADLINE, TestApp, wait_for};

const SCHEDULES: &str = r#"
  - name: broken
    webhook: {url: "http://127.0.0.1:9/hook"}
users: [{name: alice, notify: [hook]}, {name: bob, notify: [hook]}]
schedules:
  - name: primary
    time_zone: Europe/Berlin
    layers: [{name: weekly, users: [alice, bob], start: 2026-01-05T09:00, rotation: weekly}]
policies:
  - name: default
    levels:
      - {after: 0s, notify: [hook]}
      - {after: 5m, notify: ["schedule:primary"]}
routes: [{policy: default}]
"#;

#[tokio::test]
async fn who_is_on_call_and_who_would_be_notified() {
    let app = TestApp::start_with(SCHEDULES, &[]).await;
    let browser = Browser::of(&app);
    let seen = browser.get("/oncall").await;
    assert!(seen.has(">primary <") && (seen.has("<b>alice</b>") || seen.has("<b>bob</b>")), "{}", seen.html);
    let seen = browser.get("/oncall?severity=page&kind=hang&run=llama&node=&at=2026-12-24T03:00").await;
    assert!(seen.has("5m</td>") && seen.has("<b>hook for "), "{}", seen.html);
    for (query, part) in [
        ("severity=info", "severity: must be page or ticket"),
        ("severity=page&kind=fire", "kind: there is no kind"),
        ("severity=page&at=soon", "at: "),
    ] {
        let seen = browser.get(&format!("/oncall?{query}")).await;
        assert!(seen.status == 400 && seen.has(part), "{query}: {}", seen.html);
    }
    // The page of an incident names the next people.
    let id = app.page("llama").await;
    let seen = browser.get(&format!("/incidents/{id}")).await;
    let next = seen.html.split("Next escalation").nth(1).unwrap().split("</tr>").next().unwrap();
    assert!(
        next.contains("in 4m") && (next.contains("alice by hook") || next.contains("bob by hook")),
        "{next}"
    );
}

#[tokio::test]
async fn receivers_say_what_arrived_and_take_a_test() {
    let app = TestApp::start_with(SCHEDULES, &[]).await;
    let browser = Browser::of(&app);
    let seen = browser.get("/receivers").await;
    assert!(seen.has("<b>hook</b>") && seen.has("<b>broken</b>") && seen.has("never"), "{}", seen.html);
    let seen = browser.post("/receivers/hook/test", &[]).await;
    assert!(seen.status == 200 && seen.has("the test was delivered"), "{}", seen.html);
    app.hook.wait_for(|s| s.deliveries.len() == 2, DEADLINE).await.unwrap();
    let seen = browser.post("/receivers/broken/test", &[]).await;
    assert!(seen.status == 502 && seen.has("broken: the test failed"), "{}", seen.html);
    assert_eq!(browser.post("/receivers/nonsense/test", &[]).await.status, 404);
    app.page("llama").await;
    app.hook.wait_for(|s| s.deliveries.len() == 3, DEADLINE).await.unwrap();
    wait_for("the delivery", async || {
        let seen = browser.get("/receivers").await;
        (seen.html.matches("never").count() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn runbooks_are_served_and_messages_link_to_them() {
    let app = TestApp::start_with("external_url: https://stepwatch.example.org/\n", &[]).await;
    let browser = Browser::of(&app);
    let seen = browser.get("/runbooks").await;
    assert!(seen.status == 200 && seen.has("href=\"/runbooks/hang\""), "{}", seen.html);
    for path in ["/runbooks/rank_dead", "/runbooks/rank_dead.md"] {
        let seen = browser.get(path).await;
        assert!(seen.status == 200 && seen.has("<h2>Look first</h2>"), "{path}: {}", seen.html);
    }
    for path in ["/runbooks/nonsense", "/runbooks/..%2Fsecurity"] {
        assert_eq!(browser.get(path).await.status, 404, "{path}");
    }
    let id = app.page("llama").await;
    let detail = app.json(&format!("/api/v1/incidents/{id}")).await;
    assert_eq!(detail["links"][0]["href"], "https://stepwatch.example.org/runbooks/rank_dead.md");
}

#[tokio::test]
async fn detectors_are_judged_by_what_people_said() {
    let app = TestApp::start().await;
    let (status, page) = app.get("/detectors").await;
    assert!(status == 200 && page.contains("No incident in 30 days."), "{page}");
    let id = app.page("llama").await;
    let page = app.get("/detectors?days=7").await.1;
    assert!(page.contains("Nobody has said yet"), "{page}");
    assert!(page.contains("<a href=\"/runbooks/rank_dead\">dead rank</a>"), "{page}");
    let answer = r#"{"by":"ann","as":"false"}"#;
    let path = format!("/api/v1/incidents/{id}/resolve");
    assert_eq!(app.post(&path, "application/json", answer).await.0, 200);
    assert_eq!(app.post(&path, "application/json", answer).await.0, 200, "once more is no mistake");
    let (status, late) = app.post(&path, "application/json", r#"{"by":"bob","as":"real"}"#).await;
    assert!(status == 409 && late.contains("what it was can be said"), "{late}");
    let page = wait_for("the answer", async || {
        let page = app.get("/detectors").await.1;
        page.contains("0 % were real").then_some(page)
    })
    .await;
    assert!(page.contains("data-label=\"False\">1</td>"), "{page}");
}
