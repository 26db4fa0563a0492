//! Tests of taking over a shift, from the form to the list.

use super::Browser;
use crate::testing::{TestApp, step, wait_for};

const SCHEDULES: &str = r#"
users: [{name: alice, notify: [hook]}, {name: bob, notify: [hook]}, {name: carol, notify: []}]
schedules:
  - name: primary
    time_zone: Asia/Kolkata
    layers: [{name: weekly, users: [alice], start: 2026-01-05T09:00, rotation: weekly}]
policies: [{name: climb, levels: [{after: 0s, notify: ["schedule:primary"]}]}]
routes: [{policy: climb}]
"#;

/// A time so many hours from now, as a browser sends it, on the clock of the schedule.
fn hours(n: i64) -> String {
    let at = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(n);
    at.in_tz("Asia/Kolkata").unwrap().strftime("%Y-%m-%dT%H:%M").to_string()
}

#[tokio::test]
async fn somebody_takes_over_and_gives_it_back() {
    let app = TestApp::start_with(SCHEDULES, &[]).await;
    let browser = Browser::of(&app);
    let seen = browser.get("/oncall").await;
    assert!(seen.has("<b>alice</b>") && seen.has("<summary>Take over</summary>"), "{}", seen.html);
    // Nobody is chosen until somebody chooses.
    assert!(seen.has("required><option value=\"\">choose</option><option>alice</option>"), "{}", seen.html);
    assert!(seen.has("<option>bob</option>") && !seen.has("<option>carol</option>"), "{}", seen.html);
    assert!(!seen.has("<h3>Overrides</h3>"), "{}", seen.html);

    // A mistake is reported, and what was typed stays.
    let until = hours(3);
    for (fields, part) in [
        (vec![("schedule", "primary"), ("user", "bob"), ("until", "soon")], "until: "),
        (vec![("schedule", "primary"), ("user", "carol"), ("until", &*until)], "no receiver reaches"),
        (vec![("schedule", "primary"), ("user", "alice"), ("until", &*until)], "alice is on call already"),
        (vec![("schedule", "primary"), ("user", ""), ("until", &*until)], "there is no user"),
        (
            vec![("schedule", "primary"), ("user", "bob"), ("until", "2026-01-01T00:00")],
            "the end must be after",
        ),
    ] {
        let fields = [fields, vec![("note", "dentist <b>now</b>")]].concat();
        let seen = browser.post("/oncall/overrides", &fields).await;
        assert!(seen.status == 400 && seen.has(part), "{part}: {}", seen.html);
        assert!(seen.has("<details open>") && seen.has("dentist &lt;b"), "{}", seen.html);
    }
    let fields = [
        ("schedule", "primary"),
        ("user", "bob"),
        ("from", ""),
        ("until", until.as_str()),
        ("note", "<b>dentist</b>"),
        ("by", "ann"),
    ];
    let seen = browser.post("/oncall/overrides", &fields).await;
    assert_eq!((seen.status, seen.to.as_deref()), (303, Some("/oncall")), "{}", seen.html);
    assert!(seen.cookie.is_some_and(|cookie| cookie.contains("ann")), "the name is remembered");

    // The page to which the browser is sent shows it: the people, the frame, the list, the shifts.
    let seen = browser.get("/oncall").await;
    assert_eq!(seen.html.matches("<b>bob</b>").count(), 3, "{}", seen.html);
    for part in ["<h3>Overrides</h3>", ">ann<", "&lt;b&gt;dentist", "tag active", ">Remove</button>"] {
        assert!(seen.has(part), "{part}: {}", seen.html);
    }
    assert!(!seen.has("<b>dentist"), "{}", seen.html);
    // So does the simulation, and the page of an incident.
    let seen = browser.get("/oncall?severity=page&kind=hang&run=llama").await;
    assert!(seen.has("<b>hook for bob</b>"), "{}", seen.html);

    let id = app.json("/api/v1/oncall/overrides").await["overrides"][0]["id"].as_str().unwrap().to_owned();
    let seen = browser.post(&format!("/oncall/overrides/{id}/remove"), &[("by", "cem")]).await;
    assert_eq!((seen.status, seen.to.as_deref()), (303, Some("/oncall")), "{}", seen.html);
    let seen = browser.get("/oncall").await;
    assert!(seen.has("<b>alice</b>") && !seen.has("<h3>Overrides</h3>"), "{}", seen.html);
    let list = app.json("/api/v1/oncall/overrides?state=over").await;
    assert_eq!(list["overrides"][0]["removed_by"], "cem");
    assert_eq!(browser.post("/oncall/overrides/nonsense/remove", &[]).await.status, 404);
}

/// Whom a page of a run rings depends on what the run declared.
#[tokio::test]
async fn the_simulation_of_a_run_goes_by_what_the_run_declared() {
    let routes = "routes: [{match: ['owner=\"ann\"'], notify: [hook]}, {policy: climb}]\nlabels: [owner]";
    let app = TestApp::start_with(&SCHEDULES.replace("routes: [{policy: climb}]", routes), &[]).await;
    let browser = Browser::of(&app);
    let simulated = "/oncall?severity=page&kind=hang&run=llama";
    let seen = browser.get(simulated).await;
    assert!(seen.has("<b>hook for alice</b>"), "{}", seen.html);
    let hello = r#"{"c":"b1:1","k":"hello","run":"llama","rank":0,"world":8,"owner":"ann"}"#;
    app.exporter.say(&format!("{hello}\n{}", step(2, "llama", 41))).await;
    wait_for("the run", async || {
        let seen = browser.get(simulated).await;
        (seen.has("<b>hook</b>") && !seen.has("hook for alice")).then_some(())
    })
    .await;
    // A fault of a node has no labels of a run.
    let seen = browser.get("/oncall?severity=page&kind=gpu_fault&run=llama&node=gpu-042").await;
    assert!(seen.has("<b>hook for alice</b>"), "{}", seen.html);
}

/// A simulation shows routes, receivers and people.
#[tokio::test]
async fn a_limited_token_simulates_only_what_it_may_see() {
    let tokens = "\napi: {tokens: [{name: llama, token_file: llama, scopes: [read], runs: ['llama-*']}]}";
    let secret = "0123456789abcdef-llama".to_owned();
    let app = TestApp::start_with(&format!("{tokens}{SCHEDULES}"), &[("llama", secret.clone())]).await;
    let get = async |run: &str| {
        let url = format!("{}/oncall?severity=page&run={run}", app.url);
        let answer = reqwest::Client::new().get(url).bearer_auth(&secret).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let (status, page) = get("llama-70b").await;
    assert!(status == 200 && page.contains("<b>hook for alice</b>"), "{page}");
    for other in ["", "mistral"] {
        let (status, page) = get(other).await;
        assert!(status == 403 && page.contains("limited to runs llama-*"), "{other}: {page}");
        assert!(!page.contains("<b>hook for alice</b>"), "{other}: {page}");
    }
}
