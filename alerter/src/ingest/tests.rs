use super::*;
use crate::backoff::Backoff;
use crate::store::Store;
use crate::testing::{Answer, DEADLINE, FakeExporter, step, wait_for};
use stream::StreamLimits;

const MS: Duration = Duration::from_millis(1);

/// Limits short enough to wait for, and long enough for a healthy stream on a busy machine.
fn limits() -> IngestLimits {
    let backoff = Backoff { first: 5 * MS, longest: 20 * MS };
    let stream = StreamLimits { silence: DEADLINE, head: DEADLINE, backoff };
    IngestLimits { stream, file_poll: 10 * MS, loss_believed_after: Duration::ZERO }
}

struct Reading {
    ingest: Ingest,
    feeds: mpsc::Receiver<Feed>,
    commands: mpsc::Receiver<Command>,
    metrics: IngestMetrics,
}

impl Reading {
    fn start(exporters: &[Exporters], cursors: &[(&str, &str)], limits: IngestLimits) -> Self {
        Self::with_queue(exporters, cursors, limits, QUEUE_BATCHES)
    }

    /// Starts an alerter with the contents of its store.
    async fn with_store(exporters: &[Exporters], store: &Store, limits: IngestLimits) -> Self {
        let kept = KeptLists::load(store).await.unwrap();
        Self::begin(exporters, (BTreeMap::new(), kept), limits, QUEUE_BATCHES)
    }

    fn with_queue(
        exporters: &[Exporters],
        cursors: &[(&str, &str)],
        limits: IngestLimits,
        queue: usize,
    ) -> Self {
        let cursors = cursors.iter().map(|(s, c)| ((*s).to_owned(), c.parse().unwrap())).collect();
        Self::begin(exporters, (cursors, KeptLists::default()), limits, queue)
    }

    fn begin(
        exporters: &[Exporters],
        known: (BTreeMap<String, Cursor>, KeptLists),
        limits: IngestLimits,
        queue: usize,
    ) -> Self {
        let (out, feeds) = mpsc::channel(queue);
        let (own, commands) = mpsc::channel(64);
        let metrics = IngestMetrics::default();
        let plan = Plan::new(exporters).unwrap();
        let ingest = Ingest::with_limits(plan, known, (out, own), metrics.clone(), limits);
        Self { ingest, feeds, commands, metrics }
    }

    async fn next(&mut self) -> Feed {
        tokio::time::timeout(DEADLINE, self.feeds.recv()).await.expect("a feed in time").expect("a feed")
    }

    /// The next `n` items as words: `up`, `down`, `gone`, the step of a step, the kind of any other
    /// record.
    async fn words(&mut self, n: usize) -> Vec<String> {
        let mut words = Vec::new();
        while words.len() < n {
            match self.next().await.news {
                News::Up { .. } => words.push("up".into()),
                News::Down { .. } => words.push("down".into()),
                News::Gone => words.push("gone".into()),
                News::Events(events) => words
                    .extend(events.iter().map(|e| e.step.map_or(e.kind.as_str().into(), |s| s.to_string()))),
            }
        }
        words
    }

    /// The next check of a list, and its fault.
    async fn own(&mut self) -> (String, Option<String>) {
        own(tokio::time::timeout(DEADLINE, self.commands.recv()).await.unwrap().unwrap())
    }

    fn view(&self) -> SourceSnapshot {
        self.ingest.table().views().remove(0)
    }
}

fn own(command: Command) -> (String, Option<String>) {
    let Command::Own { check, severity, fault } = command else { panic!("{command:?}") };
    assert_eq!(severity, stepwatch_model::Severity::Ticket);
    (check, fault)
}

fn fixed(targets: &[&FakeExporter]) -> Exporters {
    Exporters { fixed: targets.iter().map(|t| t.name()).collect(), ..Exporters::default() }
}

#[tokio::test]
async fn goes_on_behind_the_last_record_after_every_break() {
    let first = Answer::Closed(vec![step(1, "r", 10), step(2, "r", 11)]);
    let second = Answer::Closed(vec![step(3, "r", 12)]);
    let exporter = FakeExporter::start([first, second]).await;
    let mut r = Reading::start(&[fixed(&[&exporter])], &[], limits());
    assert_eq!(r.words(6).await, ["up", "10", "11", "down", "up", "12"]);
    assert_eq!(r.words(2).await, ["down", "up"]);
    let queries: Vec<_> = exporter.requests().into_iter().map(|r| r.query).collect();
    assert_eq!(queries[..3], [None, Some("after=b1:2".into()), Some("after=b1:3".into())]);
    assert_eq!((r.metrics.connects.get(), r.metrics.disconnects.get()), (3, 2));
    let view = r.view();
    assert_eq!((view.up, view.records, view.cursor.unwrap().to_string()), (true, 3, "b1:3".into()));
}

#[tokio::test]
async fn a_stored_cursor_is_where_reading_starts() {
    let exporter = FakeExporter::start([]).await;
    let mut r = Reading::start(&[fixed(&[&exporter])], &[(&exporter.name(), "b0:77")], limits());
    assert_eq!(r.words(1).await, ["up"]);
    assert_eq!(exporter.requests()[0].query.as_deref(), Some("after=b0:77"));
}

#[tokio::test]
async fn gaps_are_counted_and_handed_on_and_what_does_not_parse_is_skipped() {
    let lines = [
        "{\"c\":\"b1:9\",\"k\":\"gap\",\"lost\":7}\n".to_owned(),
        "{\"k\":\"step\",\"run\":\"r\"}\n\n\r\nnot json\n".to_owned(),
        format!("{{\"k\":\"hb\",\"x\":\"{}\"}}\n", "y".repeat(40_000)),
        // A record that the network splits, with NaN as Python writes it.
        "{\"c\":\"b1:10\",\"k\":\"step\",\"run\":\"r\",\"st".to_owned(),
        "ep\":5,\"m\":{\"loss\":NaN}}\n".to_owned(),
    ];
    let exporter = FakeExporter::start([Answer::Open(lines.to_vec())]).await;
    let mut r = Reading::start(&[fixed(&[&exporter])], &[], limits());
    assert_eq!(r.words(3).await, ["up", "gap", "5"]);
    let malformed = |reason| r.metrics.malformed.get_or_create(&crate::metrics::ReasonLabel { reason }).get();
    use crate::metrics::Word;
    assert_eq!((malformed(Word("syntax")), malformed(Word("too_long"))), (2, 1));
    assert_eq!((r.metrics.gaps.get(), r.metrics.lost.get()), (1, 7));
    let view = wait_for("the cursor", async || Some(r.view()).filter(|v| v.records == 2)).await;
    assert_eq!((view.malformed, view.gaps, view.lost), (3, 1, 7));
    assert_eq!(view.cursor.unwrap().to_string(), "b1:10");
}

/// An exporter cleans its records, but another program in its place may not.
#[tokio::test]
async fn what_an_exporter_sends_is_cleaned() {
    let lines = [
        r#"{"c":"b1:1","k":"step","run":"a\u202eb\u001b[31m","node":"n\r\nx","step":1,"m":{"l\u0000r":1}}"#,
        r#"{"c":"b1:2","k":"event","run":"a","name":"o\u2066k","text":"one\u0007two","x\u200f":"y\u001b"}"#,
    ];
    let exporter = FakeExporter::start([Answer::Open(lines.map(|l| format!("{l}\n")).to_vec())]).await;
    let mut r = Reading::start(&[fixed(&[&exporter])], &[], limits());
    let mut events = Vec::new();
    while events.len() < lines.len() {
        if let News::Events(more) = r.next().await.news {
            events.extend(more);
        }
    }
    let text = format!("{events:?}");
    assert!(text.contains("31m") && text.contains("two"), "{text}");
    for escaped in ["\\u{202e}", "\\u{2066}", "\\u{200f}", "\\u{1b}", "\\u{7}", "\\0", "\\r", "\\n"] {
        assert!(!text.contains(escaped), "{escaped} in {text}");
    }
}

#[tokio::test]
async fn silence_is_death() {
    let exporter = FakeExporter::start([Answer::Open(vec![step(1, "r", 1)])]).await;
    let mut short = limits();
    short.stream.silence = 50 * MS;
    let mut r = Reading::start(&[fixed(&[&exporter])], &[], short);
    assert_eq!(r.words(2).await, ["up", "1"]);
    let News::Down { reason } = r.next().await.news else { panic!("expected down") };
    assert!(reason.contains("silent for 50ms"), "{reason}");
    assert_eq!(r.words(1).await, ["up"]);
}

#[tokio::test]
async fn a_peer_that_is_no_exporter_is_down_once_with_its_reason() {
    for (answer, part) in [
        (Answer::Status(503, "draining\nnow"), "answered 503 Service Unavailable: draining now"),
        (Answer::Html, "not a Stepwatch exporter"),
        (Answer::Mute, "no answer within"),
    ] {
        let exporter = FakeExporter::start([answer]).await;
        let mut short = limits();
        short.stream.head = 100 * MS;
        let mut r = Reading::start(&[fixed(&[&exporter])], &[], short);
        let News::Down { reason } = r.next().await.news else { panic!("expected down") };
        assert!(reason.contains(part), "{reason}");
        // The next attempt gets the default response: a working stream.
        assert_eq!(r.words(1).await, ["up"]);
    }
}

#[tokio::test]
async fn an_absent_exporter_is_reported_once_however_often_it_is_tried() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let free = listener.local_addr().unwrap().to_string();
    drop(listener);
    let e = Exporters { fixed: vec![free.clone()], ..Exporters::default() };
    let mut r = Reading::start(&[e], &[], limits());
    let News::Down { reason } = r.next().await.news else { panic!("expected down") };
    assert!(reason.contains("cannot connect"), "{reason}");
    // An exporter starts at this address: the first item after `down` is `up`.
    let listener = tokio::net::TcpListener::bind(&free).await.unwrap();
    let router = axum::Router::new().route(
        "/v1/stream",
        axum::routing::get(async || ([("content-type", "application/x-ndjson")], step(1, "r", 1))),
    );
    tokio::spawn(async move { axum::serve(listener, router).await });
    assert_eq!(r.words(2).await, ["up", "1"]);
}

#[tokio::test]
async fn a_full_queue_stops_the_reading_and_loses_nothing() {
    let lines: Vec<_> = (1..=50).map(|i| step(i, "r", i as i64)).collect();
    let exporter = FakeExporter::start([Answer::Open(Vec::new())]).await;
    let mut r = Reading::with_queue(&[fixed(&[&exporter])], &[], limits(), 1);
    for line in &lines {
        exporter.say(line).await;
    }
    wait_for("backpressure", async || (r.metrics.backpressure.get() > 0).then_some(())).await;
    let want: Vec<_> = (1..=50).map(|i: i64| i.to_string()).collect();
    assert_eq!(r.words(51).await[1..], want);
}

#[tokio::test]
async fn target_files_come_change_break_and_go() {
    let (a, b) = (FakeExporter::start([]).await, FakeExporter::start([]).await);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.json");
    let list = |targets: &[&FakeExporter]| list(dir.path(), targets);
    list(&[&a]);
    let glob = format!("{}/*.json", dir.path().display());
    let e = Exporters { file_sd: vec![glob], ..Exporters::default() };
    let mut r = Reading::start(&[e], &[], limits());
    let up = r.next().await;
    assert_eq!(
        (up.source.as_ref(), matches!(up.news, News::Up { many_nodes: false })),
        (a.name().as_str(), true)
    );

    list(&[&a, &b]);
    assert_eq!(r.next().await.source.as_ref(), b.name());

    std::fs::write(&file, "[{\"targets\": [\"half a").unwrap();
    let label = crate::metrics::MechanismLabel { mechanism: crate::metrics::Word("file_sd") };
    let failures = || r.metrics.discovery_failures.get_or_create(&label).get();
    wait_for("the failure to be counted", async || (failures() > 0).then_some(())).await;
    assert_eq!(r.ingest.table().views().len(), 2);

    list(&[&b]);
    let gone = r.next().await;
    assert_eq!((gone.source.as_ref(), matches!(gone.news, News::Gone)), (a.name().as_str(), true));
    assert_eq!(r.ingest.table().views().len(), 1);
    // The reader of the other exporter was not interrupted.
    assert_eq!(b.requests().len(), 1);
}

#[tokio::test]
async fn a_list_over_http_stays_in_force_while_its_server_fails() {
    use std::sync::atomic::{AtomicU8, Ordering};
    let a = FakeExporter::start([]).await;
    let mode = Arc::new(AtomicU8::new(0));
    let (answer_mode, name) = (Arc::clone(&mode), a.name());
    let answer = async move || match answer_mode.load(Ordering::Relaxed) {
        0 => (axum::http::StatusCode::OK, format!("[{{\"targets\":[\"{name}\"]}}]")),
        1 => (axum::http::StatusCode::INTERNAL_SERVER_ERROR, "no".into()),
        2 => (axum::http::StatusCode::OK, "{".into()),
        _ => (axum::http::StatusCode::OK, "[]".into()),
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/targets", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/targets", axum::routing::get(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let refresh = stepwatch_model::time::Span::secs(1);
    let e = Exporters { http_sd: vec![url], refresh, ..Exporters::default() };
    let mut r = Reading::start(&[e], &[], limits());
    assert_eq!(r.words(1).await, ["up"]);
    let label = crate::metrics::MechanismLabel { mechanism: crate::metrics::Word("http_sd") };
    for (failing, count) in [(1, 1), (2, 2)] {
        mode.store(failing, Ordering::Relaxed);
        let failures = || r.metrics.discovery_failures.get_or_create(&label).get();
        wait_for("the failure to be counted", async || (failures() >= count).then_some(())).await;
        assert!(r.view().up);
    }
    mode.store(3, Ordering::Relaxed);
    assert_eq!(r.words(1).await, ["gone"]);
}

/// Writes a target file by renaming it into place, as common tools do.
fn list(dir: &std::path::Path, targets: &[&FakeExporter]) {
    let names: Vec<_> = targets.iter().map(|t| format!("\"{}\"", t.name())).collect();
    let new = dir.join("new");
    std::fs::write(&new, format!("[{{\"targets\":[{}]}}]", names.join(","))).unwrap();
    std::fs::rename(&new, dir.join("t.json")).unwrap();
}

#[tokio::test]
async fn an_empty_list_ends_no_stream_before_people_hear_of_it() {
    let a = FakeExporter::start([]).await;
    let dir = tempfile::tempdir().unwrap();
    list(dir.path(), &[&a]);
    let glob = format!("{}/*.json", dir.path().display());
    let e = Exporters { file_sd: vec![glob.clone()], ..Exporters::default() };
    let mut r = Reading::start(core::slice::from_ref(&e), &[], limits());
    assert_eq!(r.words(1).await, ["up"]);
    let check = format!("targets of file_sd {glob}");
    assert_eq!(r.own().await, (check.clone(), None));

    list(dir.path(), &[]);
    assert_eq!(r.words(1).await, ["gone"]);
    let (of, fault) = r.commands.try_recv().map(own).unwrap();
    assert_eq!(of, check);
    let fault = fault.unwrap();
    assert!(fault.contains("leaves out 1 of its 1 targets, of which 1 still send"), "{fault}");
    list(dir.path(), &[&a]);
    assert_eq!(r.words(1).await, ["up"]);
    assert_eq!(r.own().await, (check.clone(), None));

    // A reload accepts the list as it is.
    let patient = IngestLimits { loss_believed_after: Duration::from_hours(1), ..limits() };
    let mut r = Reading::start(core::slice::from_ref(&e), &[], patient);
    assert_eq!((r.words(1).await, r.own().await), (vec!["up".into()], (check.clone(), None)));
    list(dir.path(), &[]);
    assert!(r.own().await.1.is_some());
    assert!(r.view().up);
    r.ingest.apply(Plan::new(&[e]).unwrap()).await;
    assert_eq!((r.own().await, r.words(1).await), ((check, None), vec!["gone".into()]));
}

/// A broken inventory may be the reason for the restart.
#[tokio::test]
async fn an_empty_list_after_a_restart_ends_no_stream_before_people_hear_of_it() {
    let a = FakeExporter::start([]).await;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("alerter.db")).await.unwrap();
    list(dir.path(), &[&a]);
    let glob = format!("{}/*.json", dir.path().display());
    let check = format!("targets of file_sd {glob}");
    let e = [Exporters { file_sd: vec![glob], ..Exporters::default() }];
    let mut r = Reading::with_store(&e, &store, limits()).await;
    assert_eq!((r.words(1).await, r.own().await), (vec!["up".into()], (check.clone(), None)));
    wait_for("the list to be kept", async || {
        Some(store.target_lists().await.unwrap()).filter(|lists| !lists.is_empty())
    })
    .await;
    r.ingest.stop().await;

    list(dir.path(), &[]);
    let patient = IngestLimits { loss_believed_after: Duration::from_hours(1), ..limits() };
    for _ in 0..2 {
        let mut r = Reading::with_store(&e, &store, patient).await;
        assert_eq!(r.words(1).await, ["up"]);
        let (of, fault) = r.own().await;
        assert_eq!(of, check);
        let fault = fault.unwrap();
        assert!(
            fault.contains("leaves out 1 of the 1 targets that it named before the alerter was"),
            "{fault}"
        );
        assert!(r.view().up);
        r.ingest.stop().await;
    }
    // The list is unreadable at first, and then as before.
    std::fs::write(dir.path().join("t.json"), "[").unwrap();
    let mut r = Reading::with_store(&e, &store, patient).await;
    assert_eq!(r.words(1).await, ["up"]);
    assert!(r.own().await.1.is_some());
    list(dir.path(), &[&a]);
    assert_eq!(r.own().await, (check, None));
    r.ingest.stop().await;

    // A list that is no longer configured is deleted.
    let r = Reading::with_store(&[fixed(&[&a])], &store, limits()).await;
    wait_for("the list to be forgotten", async || {
        Some(store.target_lists().await.unwrap()).filter(BTreeMap::is_empty)
    })
    .await;
    r.ingest.stop().await;
}

#[tokio::test]
async fn another_plan_keeps_what_stays_and_reports_what_went() {
    let (a, b) = (FakeExporter::start([]).await, FakeExporter::start([]).await);
    let mut r = Reading::start(&[fixed(&[&a])], &[("old-node:9765", "b9:1")], limits());
    // A source of an earlier process that is no longer a target.
    let mut first = [r.next().await, r.next().await];
    first.sort_by_key(|f| matches!(f.news, News::Up { .. }));
    assert_eq!((first[0].source.as_ref(), matches!(first[0].news, News::Gone)), ("old-node:9765", true));
    assert_eq!(first[1].source.as_ref(), a.name());

    r.ingest.apply(Plan::new(&[fixed(&[&a, &b])]).unwrap()).await;
    assert_eq!(r.next().await.source.as_ref(), b.name());
    a.say(&step(1, "r", 1)).await;
    assert_eq!(r.words(1).await, ["1"]);
    wait_for("the cursor", async || r.ingest.table().views().iter().any(|v| v.records == 1).then_some(()))
        .await;

    r.ingest.apply(Plan::new(&[fixed(&[&b])]).unwrap()).await;
    let gone = r.next().await;
    assert_eq!((gone.source.as_ref(), matches!(gone.news, News::Gone)), (a.name().as_str(), true));

    // The target returns and resumes where it stopped.
    r.ingest.apply(Plan::new(&[fixed(&[&a, &b])]).unwrap()).await;
    assert_eq!(r.words(1).await, ["up"]);
    let queries: Vec<_> = a.requests().into_iter().map(|r| r.query).collect();
    assert_eq!(queries, [None, Some("after=b1:1".into())]);
    r.ingest.stop().await;
}

#[tokio::test]
async fn credentials_are_sent_to_exporters() {
    let exporter = FakeExporter::start([]).await;
    let dir = tempfile::tempdir().unwrap();
    let password_file = dir.path().join("password");
    std::fs::write(&password_file, "open sesame\n").unwrap();
    let auth = BasicAuth { username: "stepwatch".into(), password_file };
    let e = Exporters { basic_auth: Some(auth), ..fixed(&[&exporter]) };
    let mut r = Reading::start(&[e], &[], limits());
    assert_eq!(r.words(1).await, ["up"]);
    // base64 of `stepwatch:open sesame`.
    let want = "Basic c3RlcHdhdGNoOm9wZW4gc2VzYW1l";
    assert_eq!(exporter.requests()[0].authorization.as_deref(), Some(want));
}
