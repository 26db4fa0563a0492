use serde_json::Value;

use crate::testing::{DEADLINE, TestApp, rank_dead, step};

/// A test client that reads a stream event by event.
struct Stream {
    response: reqwest::Response,
    text: String,
}

/// The name, id and data of an event.
type Read = (String, String, Value);

impl Stream {
    async fn open(app: &TestApp, after: Option<&str>, token: Option<&str>) -> Self {
        let mut request = reqwest::Client::new().get(format!("{}/api/v1/events", app.url));
        if let Some(id) = after {
            request = request.header("last-event-id", id);
        }
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Read> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| {
                    event.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_owned())
                };
                if let Some(data) = field("data:") {
                    return Some((field("event:")?, field("id:")?, serde_json::from_str(&data).unwrap()));
                }
            }
            let chunk = tokio::time::timeout(DEADLINE, self.response.chunk()).await.unwrap().ok()??;
            self.text += std::str::from_utf8(&chunk).unwrap();
        }
    }

    /// The next event of this name.
    async fn named(&mut self, name: &str) -> Read {
        loop {
            let event = self.next().await.unwrap();
            if event.0 == name {
                return event;
            }
        }
    }
}

#[tokio::test]
async fn incidents_and_steps_are_told_and_a_reader_that_comes_back_misses_nothing() {
    let app = TestApp::start().await;
    let mut live = Stream::open(&app, None, None).await;
    app.exporter.say(&(step(1, "llama", 41) + &rank_dead(2, "llama", 3))).await;
    let (_, opened, data) = live.named("incident").await;
    assert_eq!((&data["change"], &data["incident"]["run"]), (&"opened".into(), &"llama".into()));
    let (_, _, data) = live.named("step").await;
    assert_eq!(
        (&data["run"], &data["step"], &data["signals"][0]["value"]),
        (&"llama".into(), &41.into(), &2.5.into())
    );
    drop(live);

    // Events in between are delivered afterwards.
    let id = data_id(&app).await;
    let (status, _) =
        app.post(&format!("/api/v1/incidents/{id}/ack"), "application/json", r#"{"by":"ann"}"#).await;
    assert_eq!(status, 200);
    app.post(&format!("/api/v1/incidents/{id}/resolve"), "application/json", r#"{"by":"ann"}"#).await;
    let mut again = Stream::open(&app, Some(&opened), None).await;
    let mut changes = Vec::new();
    while changes.last().is_none_or(|last| last != "resolved") {
        let (_, _, data) = again.named("incident").await;
        changes.push(data["change"].as_str().unwrap().to_owned());
    }
    assert!(changes.len() >= 2 && changes[0] == "changed", "{changes:?}");
}

async fn data_id(app: &TestApp) -> String {
    let all = app.json("/api/v1/incidents?run=llama").await;
    all["incidents"][0]["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_reader_whose_place_is_not_known_reads_everything_anew() {
    let app = TestApp::start().await;
    let mut id = String::new();
    for unknown in ["0-17", "nonsense", "", "ffffffffffff-3"] {
        let mut stream = Stream::open(&app, Some(unknown), None).await;
        let (name, at, _) = stream.next().await.unwrap();
        assert_eq!(name, "reset", "{unknown}");
        id = at;
    }
    // The stream continues from there.
    app.page("llama").await;
    let mut stream = Stream::open(&app, Some(&id), None).await;
    assert_eq!(stream.named("incident").await.2["incident"]["run"], "llama");
    // A restarted alerter numbers its events differently.
    let app = app.restart().await;
    assert_eq!(Stream::open(&app, Some(&id), None).await.next().await.unwrap().0, "reset");
}

#[tokio::test]
async fn a_limited_token_hears_of_its_runs_alone() {
    let tokens = "api:\n  tokens:\n    - {name: mine, token_file: mine, scopes: [read], runs: [\"llama*\"]}\n    \
                  - {name: all, token_file: all, scopes: [read]}\n";
    let token = |name: &str| format!("0123456789abcdef-{name}");
    let files = ["mine", "all"].map(|name| (name, token(name)));
    let app = TestApp::start_with(tokens, &files).await;
    let mut mine = Stream::open(&app, None, Some(&token("mine"))).await;
    let mut all = Stream::open(&app, None, Some(&token("all"))).await;
    app.exporter.say(&(step(1, "secret", 1) + &rank_dead(2, "secret", 1))).await;
    assert_eq!(all.named("incident").await.2["incident"]["run"], "secret");
    app.exporter.say(&(step(3, "llama", 1) + &rank_dead(4, "llama", 1))).await;
    let (_, _, data) = mine.next().await.unwrap();
    let run = if data["incident"].is_object() { &data["incident"]["run"] } else { &data["run"] };
    assert_eq!(run, "llama");
    let url = format!("{}/api/v1/events", app.url);
    assert_eq!(reqwest::get(url).await.unwrap().status().as_u16(), 401);
}

#[tokio::test]
async fn a_stream_ends_when_the_alerter_stops() {
    let app = TestApp::start().await;
    let mut stream = Stream::open(&app, None, None).await;
    app.exporter.say(&step(1, "llama", 1)).await;
    stream.named("step").await;
    let began = tokio::time::Instant::now();
    tokio::join!(app.restart(), async { while stream.next().await.is_some() {} });
    assert!(began.elapsed() < DEADLINE);
}
