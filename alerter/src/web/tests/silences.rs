//! Tests of silences, from the form to the list.

use super::Browser;
use crate::testing::TestApp;

#[tokio::test]
async fn the_form_says_what_it_would_suppress_and_then_does() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    let browser = Browser::of(&app);
    let seen = browser.get(&format!("/silences/new?incident={id}")).await;
    assert!(seen.has("kind=&#34;rank_dead&#34;") || seen.has("kind=&quot;rank_dead&quot;"), "{}", seen.html);
    assert!(seen.has("<b>1</b> of 1 open incidents"), "{}", seen.html);
    let preview = async |matchers: &str| browser.post("/silences/preview", &[("matchers", matchers)]).await;
    assert!(preview("run=nobody").await.has("It matches nothing"));
    let seen = preview("run=\"llama\nkind").await;
    assert!(seen.status == 200 && seen.has("the quotes do not close"), "{}", seen.html);

    // Missing fields are reported, and the other fields keep their values.
    for (fields, part) in [
        (vec![("matchers", "run=llama"), ("duration", "soon"), ("comment", "maintenance")], "duration: "),
        (vec![("matchers", "run=llama"), ("duration", "2h")], "comment"),
        (vec![("matchers", "run"), ("duration", "2h"), ("comment", "x")], "expected label"),
    ] {
        let seen = browser.post("/silences", &fields).await;
        assert!(seen.status == 400 && seen.has(part) && seen.has(fields[0].1), "{fields:?}: {}", seen.html);
    }
    let fields = [
        ("matchers", "run=llama\nkind=rank_dead"),
        ("duration", "2h"),
        ("comment", "<b>maintenance</b>"),
        ("by", "ann"),
        ("incident", id.as_str()),
    ];
    let seen = browser.post("/silences", &fields).await;
    assert_eq!((seen.status, seen.to), (303, Some(format!("/incidents/{id}"))), "{}", seen.html);
    assert!(browser.get(&format!("/incidents/{id}")).await.has("tag suppressed"));
    let seen = browser.get("/silences").await;
    for part in ["&lt;b&gt;maintenance", ">ann<", "in 1h 59m", &format!("/incidents/{id}\"")] {
        assert!(seen.has(part), "{part}: {}", seen.html);
    }

    let silence = app.json("/api/v1/silences").await["silences"][0]["id"].as_str().unwrap().to_owned();
    let seen = browser.post(&format!("/silences/{silence}/extend"), &[("duration", "4h")]).await;
    assert_eq!(seen.to.as_deref(), Some("/silences"), "{}", seen.html);
    assert!(browser.get("/silences").await.has("in 5h 59m"));
    let silence = app.json("/api/v1/silences").await["silences"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(browser.post(&format!("/silences/{silence}/expire"), &[]).await.status, 303);
    let seen = browser.get("/silences").await;
    assert!(seen.has("No silence is in force") && seen.has("Ended in the last 24 hours"), "{}", seen.html);
    assert!(seen.has("/silences/new?matchers=run"), "the same again: {}", seen.html);
    assert_eq!(browser.post("/silences/nonsense/expire", &[]).await.status, 404);
    assert_eq!(browser.post(&format!("/silences/{silence}/explode"), &[]).await.status, 404);
}
