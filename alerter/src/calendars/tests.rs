use std::collections::VecDeque;
use std::sync::Mutex;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

const SHIFTS: &str = "BEGIN:VCALENDAR\r\nEND:VCALENDAR\r\n";

/// The answers of the server in order: status, `ETag`, body; and the received `If-None-Match`
/// headers.
type Script = Arc<Mutex<(VecDeque<(u16, &'static str, String)>, Vec<Option<String>>)>>;

async fn answer(State(script): State<Script>, headers: HeaderMap) -> Response {
    let mut script = script.lock().unwrap();
    script.1.push(headers.get(IF_NONE_MATCH).map(|v| v.to_str().unwrap().to_owned()));
    let (status, etag, body) = script.0.pop_front().unwrap();
    let status = StatusCode::from_u16(status).unwrap();
    let mut response = (status, body).into_response();
    if !etag.is_empty() {
        response.headers_mut().insert(ETAG, HeaderValue::from_static(etag));
    }
    response
}

fn said(news: &Result<News, String>) -> String {
    match news {
        Ok(News::Text(text)) => format!("text of {}", text.len()),
        Ok(News::Same) => "same".into(),
        Err(e) => e.clone(),
    }
}

#[tokio::test]
async fn a_url_is_asked_only_for_what_is_new() {
    let script: Script = Arc::default();
    script.lock().unwrap().0.extend([
        (200, "\"1\"", SHIFTS.to_owned()),
        (304, "", String::new()),
        (500, "", "out of order".into()),
        (200, "\"2\"", "x".repeat(MAX_BYTES + 1)),
        (302, "", String::new()),
        (200, "", SHIFTS.to_owned()),
        (304, "", String::new()),
    ]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/secret-path", listener.local_addr().unwrap());
    let router = Router::new().route("/secret-path", get(answer)).with_state(Arc::clone(&script));
    let server = tokio::spawn(async { axum::serve(listener, router).await });
    let mut reader = Reader::new(&Place::Url(Secret::new(url)));
    let mut heard = Vec::new();
    for _ in 0..7 {
        heard.push(said(&reader.read(MAX_BYTES).await));
    }
    assert_eq!(
        heard,
        [
            "text of 32",
            "same",
            "the calendar's server answers 500 Internal Server Error",
            "the calendar has more than 4194304 bytes",
            "the calendar's server answers 302 Found",
            "text of 32",
            // The request was unconditional.
            "the calendar's server answers 304 Not Modified",
        ]
    );
    let asked: Vec<Option<String>> = script.lock().unwrap().1.clone();
    let one = Some("\"1\"".to_owned());
    assert_eq!(asked, [None, one.clone(), one.clone(), one.clone(), one.clone(), one, None]);
    server.abort();
    let lost = said(&reader.read(MAX_BYTES).await);
    assert!(!lost.contains("secret-path") && !lost.starts_with("text"), "{lost}");
}

#[tokio::test]
async fn a_file_is_read_when_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shifts.ics");
    let mut reader = Reader::new(&Place::File(path.clone()));
    assert!(said(&reader.read(MAX_BYTES).await).starts_with("cannot read"));
    std::fs::write(&path, SHIFTS).unwrap();
    assert_eq!(said(&reader.read(MAX_BYTES).await), "text of 32");
    assert_eq!(said(&reader.read(MAX_BYTES).await), "same");
    std::fs::write(&path, format!("{SHIFTS}\r\n")).unwrap();
    assert_eq!(said(&reader.read(MAX_BYTES).await), "text of 34");
    std::fs::write(&path, b"\xff\xfe").unwrap();
    assert_eq!(said(&reader.read(MAX_BYTES).await), "the calendar is not UTF-8");
}

#[tokio::test]
async fn a_calendar_that_stays_unread_is_a_ticket_until_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shifts.ics");
    let (commands, mut heard) = tokio::sync::mpsc::channel(8);
    let runtime = RuntimeHandle {
        commands,
        alerts: tokio::sync::mpsc::channel(1).0,
        views: Arc::default(),
        read_model: Arc::default(),
        series: Arc::default(),
        events: Arc::default(),
        clock: crate::clock::Clock::default(),
        metrics: crate::metrics::RuntimeMetrics::default(),
    };
    let source = Source {
        schedule: "primary".into(),
        zone: Zone::default(),
        place: Place::File(path.clone()),
        refresh: Duration::from_millis(5),
        stale_after: Span::ZERO,
    };
    let mut calendars = Calendars::start(vec![source], runtime, CalendarMetrics::default());
    let mut next = async || {
        let command = tokio::time::timeout(crate::testing::DEADLINE, heard.recv()).await.unwrap().unwrap();
        match command {
            Command::Own { check, severity, fault } => {
                assert_eq!((check.as_str(), severity), ("calendar of primary", Severity::Ticket));
                fault.unwrap_or_else(|| "well".into())
            }
            Command::Calendar { schedule, text } => format!("{schedule}: {}", text.is_some()),
            other => panic!("{other:?}"),
        }
    };
    let fault = next().await;
    assert!(fault.starts_with("the calendar of schedule primary has not been read for "), "{fault}");
    assert!(fault.contains("there is no copy: cannot read"), "{fault}");
    std::fs::write(&path, SHIFTS).unwrap();
    assert_eq!((next().await.as_str(), next().await.as_str()), ("primary: true", "well"));
    // A schedule that is no longer configured is not a fault.
    std::fs::remove_file(&path).unwrap();
    let fault = loop {
        let said = next().await;
        if !said.starts_with("primary: ") {
            break said;
        }
    };
    assert!(fault.contains("pages go by the copy of then"), "{fault}");
    calendars.apply(Vec::new());
    assert_eq!(next().await, "well");
}

#[test]
fn addresses() {
    for good in ["https://a/b.ics", "http://a:1/", "webcal://calendar.example.com/x"] {
        assert_eq!(check_url(good), Ok(()), "{good}");
    }
    for bad in ["", "a", "file:///etc/passwd", "javascript:alert(1)", "https://"] {
        assert!(check_url(bad).is_err(), "{bad}");
    }
    assert_eq!(https("webcal://a/b"), "https://a/b");
}

#[test]
fn each_calendar_has_an_equal_share() {
    assert_eq!([0, 1, 4, 8, 64].map(share), [4 << 20, 4 << 20, 4 << 20, 2 << 20, 256 << 10]);
}

#[tokio::test]
async fn a_fifo_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("shifts.ics");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let read = Reader::new(&Place::File(fifo.clone())).read(MAX_BYTES).await;
    assert_eq!(said(&read), format!("cannot read {}: is not a regular file", fifo.display()));
}
