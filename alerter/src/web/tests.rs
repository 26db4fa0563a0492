//! Tests of the pages in a browser without scripts, with the whole service.

mod browser;
mod oidc;
mod oncall;
mod others;
mod report;
mod runs;
mod session;
mod silences;

use reqwest::header::{
    ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, LOCATION, REFERRER_POLICY, SET_COOKIE,
};
use reqwest::redirect::Policy;

use crate::testing::{TestApp, wait_for};

/// A browser without scripts. It does not follow redirects, so that tests see them.
struct Browser<'a> {
    app: &'a TestApp,
    client: reqwest::Client,
    /// The name and value of its session cookie.
    session: Option<String>,
}

#[derive(Debug)]
struct Seen {
    status: u16,
    to: Option<String>,
    cookie: Option<String>,
    html: String,
}

impl<'a> Browser<'a> {
    fn of(app: &'a TestApp) -> Self {
        let client = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
        Self { app, client, session: None }
    }

    async fn get(&self, path: &str) -> Seen {
        self.send(self.client.get(format!("{}{path}", self.app.url)).header(ACCEPT, "text/html")).await
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Seen {
        let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.client.post(format!("{}{path}", self.app.url)).body(form);
        self.send(request.header(CONTENT_TYPE, "application/x-www-form-urlencoded")).await
    }

    async fn send(&self, mut request: reqwest::RequestBuilder) -> Seen {
        if let Some(session) = &self.session {
            request = request.header(COOKIE, session);
        }
        let response = request.send().await.unwrap();
        let text = |name| Some(response.headers().get(name)?.to_str().unwrap().to_owned());
        let (to, cookie) = (text(LOCATION), text(SET_COOKIE));
        Seen { status: response.status().as_u16(), to, cookie, html: response.text().await.unwrap() }
    }
}

impl Seen {
    fn has(&self, text: &str) -> bool {
        self.html.contains(text)
    }
}

#[tokio::test]
async fn pages_carry_no_markup_from_outside_and_allow_no_other_script() {
    let app = TestApp::start().await;
    let id = app.page("<script>alert(1)</script>").await;
    for path in ["/".to_owned(), format!("/incidents/{id}")] {
        let response = reqwest::get(format!("{}{path}", app.url)).await.unwrap();
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(response.headers()[REFERRER_POLICY], "same-origin");
        let page = response.text().await.unwrap();
        assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script>"), "{page}");
        assert!(!page.contains(" style=") && !page.contains(" onclick="), "nothing inline: {page}");
        assert!(page.contains(&id) && page.contains("NOBODY"), "{page}");
        assert!(page.contains("<title>(1) "), "the number of unacknowledged is in the title: {page}");
    }
}

#[tokio::test]
async fn every_file_that_a_page_names_is_there() {
    let app = TestApp::start().await;
    let page = app.get("/").await.1;
    let named: Vec<_> = page.split('"').filter(|part| part.starts_with("/assets/")).collect();
    assert!(named.len() >= 4, "{page}");
    for path in named {
        assert_eq!(app.get(path).await.0, 200, "{path}");
    }
    assert_eq!(app.get("/assets/0000000000000000/app.js").await.0, 404);
}

#[tokio::test]
async fn an_empty_list_says_what_is_followed() {
    let app = TestApp::start().await;
    let (_, page) = app.get("/").await;
    assert!(page.contains("<b>No incident.</b>") && page.contains("No run has been seen yet"), "{page}");
    app.exporter.say(&crate::testing::step(1, "llama", 41)).await;
    wait_for("the run", async || {
        let page = app.get("/").await.1;
        page.contains("1 run followed, last seen ").then_some(())
    })
    .await;
    let (_, page) = app.get("/?run=other").await;
    assert!(page.contains("No incident matches these filters"), "{page}");
}

#[tokio::test]
async fn filters_are_in_the_url_and_wrong_ones_are_refused_with_a_page() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    let browser = Browser::of(&app);
    for (query, shown) in [
        ("", true),
        ("?state=open&severity=page&run=llama", true),
        ("?state=all&severity=&run=&node=&mine=", true),
        ("?state=acknowledged", false),
        ("?severity=ticket", false),
        ("?run=other", false),
        ("?page=2", false),
    ] {
        let seen = browser.get(&format!("/{query}")).await;
        assert_eq!((seen.status, seen.has(&id)), (200, shown), "{query}: {}", seen.html);
    }
    for (query, part) in [
        ("?severity=high", "must be page, ticket or info"),
        ("?state=burning", "state: unknown variant"),
        ("?page=0", "page: must be a number"),
        ("?colour=red", "colour"),
    ] {
        let seen = browser.get(&format!("/{query}")).await;
        assert!(
            seen.status == 400 && seen.has(part) && seen.has("<!doctype html>"),
            "{query}: {}",
            seen.html
        );
    }
    let seen = browser.get("/incidents/nonsense").await;
    assert!(
        seen.status == 404 && seen.has("there is no incident") && seen.has("class=\"banner\""),
        "{}",
        seen.html
    );
}

#[tokio::test]
async fn every_button_does_what_it_says_and_shows_the_new_state() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    let (browser, page) = (Browser::of(&app), format!("/incidents/{id}"));
    let seen = browser.get(&page).await;
    for button in ["Acknowledge", "Escalate", "Resolve", "Silence", "Note"] {
        assert!(seen.has(&format!(">{button}</button>")), "{button}: {}", seen.html);
    }
    for (action, fields, shows) in [
        ("notes", &[("note", "the fan is loud"), ("by", "ann")][..], "the fan is loud"),
        ("escalate", &[("by", "ann")], "NOBODY has it"),
        ("ack", &[("by", "ann")], "<b>ann</b> has it"),
        ("unack", &[("by", "ann")], "NOBODY has it"),
        ("resolve", &[("as", "noise")], "by web as noise."),
    ] {
        let seen = browser.post(&format!("{page}/{action}"), fields).await;
        assert_eq!((seen.status, seen.to.as_deref()), (303, Some(page.as_str())), "{action}: {}", seen.html);
        let seen = browser.get(&page).await;
        assert!(seen.has(shows), "{action}: {}", seen.html);
    }
    let detail = app.json(&format!("/api/v1{page}")).await;
    let end = ["state", "resolved_by", "resolved_as"].map(|key| detail[key].as_str().unwrap_or_default());
    assert_eq!(end, ["resolved", "web", "noise"]);
    assert_eq!(browser.post(&format!("{page}/resolve"), &[("as", "x")]).await.status, 400);

    // An impossible action is reported above the incident, with the status of the API.
    for (action, fields, status, part) in [
        ("ack", &[][..], 409, "was resolved at 2"),
        ("notes", &[("note", " ")], 400, "note: must be a line"),
        ("explode", &[], 404, "has no button"),
    ] {
        let seen = browser.post(&format!("{page}/{action}"), fields).await;
        assert_eq!(seen.status, status, "{action}");
        assert!(seen.has(part) && seen.has("What happened"), "{action}: {}", seen.html);
    }
    assert_eq!(browser.post("/incidents/nonsense/ack", &[]).await.status, 404);
}

#[tokio::test]
async fn several_are_acknowledged_at_once() {
    let app = TestApp::start().await;
    let first = app.page("llama").await;
    app.exporter.say(&(crate::testing::step(3, "gpt", 7) + &crate::testing::rank_dead(4, "gpt", 1))).await;
    let second = wait_for("the second incident", async || {
        let list = app.json("/api/v1/incidents?run=gpt&state=open").await;
        list["incidents"][0]["id"].as_str().map(str::to_owned)
    })
    .await;
    let browser = Browser::of(&app);
    let seen = browser.post("/incidents/ack", &[]).await;
    assert!(seen.status == 400 && seen.has("choose at least one") && seen.has(&first), "{}", seen.html);
    let chosen = [("id", first.as_str()), ("id", &second), ("by", "ann"), ("back", "/?severity=page")];
    let seen = browser.post("/incidents/ack", &chosen).await;
    assert_eq!((seen.status, seen.to.as_deref()), (303, Some("/?severity=page")));
    let seen = browser.get("/?state=acknowledged").await;
    assert!(seen.has(&first) && seen.has(&second) && seen.has("ann"), "{}", seen.html);
    assert!(browser.get("/").await.has("<title>Incidents"), "nothing is unacknowledged");
    // A form never redirects to another site.
    let elsewhere = [("one", first.as_str()), ("back", "//evil.example")];
    assert_eq!(browser.post("/incidents/ack", &elsewhere).await.to.as_deref(), Some("/"));
}

#[tokio::test]
async fn a_form_of_another_kind_or_size_is_refused() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    let path = format!("/incidents/{id}/ack");
    let (status, page) = app.post(&path, "text/plain", "by=ann").await;
    assert!(status == 415 && page.contains("send a form"), "{page}");
    let long = format!("by={}", "x".repeat(crate::api::auth::MAX_FORM));
    let (status, _) = app.post(&path, "application/x-www-form-urlencoded", &long).await;
    assert_eq!(status, 413);
}

#[tokio::test]
async fn a_run_and_its_node_have_pages() {
    let app = TestApp::start().await;
    assert!(app.get("/runs").await.1.contains("No run has been seen."));
    assert!(app.get("/nodes").await.1.contains("No node has been heard."));
    let name = "team/<i>llama</i>";
    let line = |seq: usize, rest: String| format!("{{\"c\":\"b1:{seq}\",\"node\":\"gpu-042\",{rest}}}\n");
    let step = |step: usize| {
        line(
            step + 1,
            format!(
                "\"k\":\"step\",\"run\":\"{name}\",\"rank\":0,\"world\":1,\"step\":{step},\
                 \"m\":{{\"loss\":2.5,\"grad_norm\":0.5,\"step_time\":4}}"
            ),
        )
    };
    let lost = "\"k\":\"hw\",\"name\":\"gpu_lost\",\"code\":1,\"level\":\"error\",\"gpu\":\"GPU-7\",\"text\":\"GPU 3 is lost\"";
    let records = (0..60).map(step).collect::<String>() + &line(61, lost.to_owned());
    app.exporter.say(&records).await;
    let path = "/runs/team%2F%3Ci%3Ellama%3C%2Fi%3E";
    let runs = wait_for("the run", async || {
        let page = app.get("/runs").await.1;
        (page.contains(&format!("href=\"{path}\""))
            && page.contains("<td class=\"num\" data-label=\"Step\">59</td>"))
        .then_some(page)
    })
    .await;
    assert!(runs.contains("class=\"spark\"") && runs.contains("4 s</td>") && !runs.contains("<i>"), "{runs}");
    let (status, run) = app.get(&format!("{path}?from=10&to=30&x=time&log=yes")).await;
    assert_eq!(status, 200, "{run}");
    for part in [
        "data-signal=\"loss\"",
        "data-api=\"/api/v1/runs/team%2F%3Ci%3Ellama%3C%2Fi%3E\"",
        "<svg xmlns=",
        "Gradient norm",
        "name=\"from\" inputmode=\"numeric\" size=\"9\" value=\"10\"",
        "<a href=\"/nodes/gpu-042\">gpu-042</a>",
    ] {
        assert!(run.contains(part), "{part}: {run}");
    }
    assert!(!run.contains("<i>llama") && !run.contains(" style="), "{run}");
    let browser = Browser::of(&app);
    // A form without a script sends its empty fields too.
    assert_eq!(browser.get(&format!("{path}?from=&to=")).await.status, 200);
    let seen = browser.get(&format!("{path}?from=x")).await;
    assert!(seen.status == 400 && seen.has("from: must be the number of a step"), "{}", seen.html);
    let seen = browser.get("/runs/nobody").await;
    assert!(
        seen.status == 404 && seen.has("there is no run") && seen.has("class=\"banner\""),
        "{}",
        seen.html
    );

    let nodes = wait_for("the node", async || {
        let page = app.get("/nodes").await.1;
        page.contains("1 faulty").then_some(page)
    })
    .await;
    assert!(
        nodes.contains("GPU 3 is lost") && nodes.contains("class=\"node-faulty\" href=\"/nodes/gpu-042\"")
    );
    let node = app.get("/nodes/gpu-042").await.1;
    assert!(node.contains("gpu lost") && node.contains(&format!("<a href=\"{path}\">")), "{node}");
    assert_eq!(browser.get("/nodes/gpu-43").await.status, 404);
}
