//! Commands that follow a running alerter: `incidents watch` and `top`.

use tokio::sync::mpsc;

use super::*;
use crate::api::nodes::NodeView;
use crate::cli::top::{Fleet, lines};

/// More lines than any test has.
const LINES: usize = 1_000;

/// A writer that passes on complete lines.
struct Lines {
    begun: Vec<u8>,
    whole: mpsc::Sender<String>,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            if *byte == b'\n' {
                let line = stripped(core::mem::take(&mut self.begun));
                self.whole.try_send(line).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            } else {
                self.begun.push(*byte);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines of a command that does not end.
fn follow(args: &[&str]) -> mpsc::Receiver<String> {
    let cli = Cli::try_parse_from(["stepwatch-alerter"].iter().chain(args)).unwrap();
    let (whole, lines) = mpsc::channel(LINES);
    // A command's output belongs to one thread.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut out = Lines { begun: Vec::new(), whole };
        runtime.block_on(cli.run_with(LogControl::detached, &mut out, &mut io::sink()))
    });
    lines
}

async fn next(lines: &mut mpsc::Receiver<String>) -> String {
    tokio::time::timeout(DEADLINE, lines.recv()).await.unwrap().unwrap()
}

async fn until(lines: &mut mpsc::Receiver<String>, wanted: impl Fn(&str) -> bool) {
    while !wanted(&next(lines).await) {}
}

#[tokio::test]
async fn incidents_are_followed_as_lines() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    let url = ["--url", app.url.as_str()];
    let mut text = follow(&[&["incidents", "watch"], &url[..]].concat());
    let mut json = follow(&[&["incidents", "watch", "--format", "json"], &url[..]].concat());
    let mut other = follow(&[&["incidents", "watch", "--run", "gpt"], &url[..]].concat());

    // First the open incidents, and then each change.
    let line = next(&mut text).await;
    assert!(line.contains("opened    page") && line.contains(&id) && line.contains("llama"), "{line}");
    let first: serde_json::Value = serde_json::from_str(&next(&mut json).await).unwrap();
    assert_eq!((&first["change"], &first["incident"]["id"]), (&"opened".into(), &id.clone().into()));
    assert_eq!(cli(&[&["incidents", "ack", &id, "--by", "ann"], &url[..]].concat()).await.0, 0);
    until(&mut text, |line| line.contains("changed") && line.contains("acknowledged")).await;
    assert_eq!(cli(&[&["incidents", "resolve", &id], &url[..]].concat()).await.0, 0);
    until(&mut text, |line| line.contains("resolved  page") && line.contains(&id)).await;
    until(&mut json, |line| line.contains(r#"{"change":"resolved""#) && line.contains(&id)).await;
    // A change of another run is filtered out.
    let next_id = app.page("gpt").await;
    let line = next(&mut other).await;
    assert!(line.contains(&next_id) && !line.contains(&id), "{line}");

    let (status, _, err) = cli(&["incidents", "watch", "--url", "http://127.0.0.1:1"]).await;
    assert!(status == 1 && err.contains("cannot reach the alerter"), "{err}");
}

#[tokio::test]
async fn the_fleet_is_printed_once_where_there_is_no_terminal() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    let url = ["--url", app.url.as_str()];
    let shown = wait_for("the run", async || {
        let (status, out, err) = cli(&[&["top"], &url[..]].concat()).await;
        assert_eq!((status, err.as_str()), (0, ""));
        (out.contains("STEP TIME") && out.contains("1 of 1 sources up")).then_some(out)
    })
    .await;
    assert!(shown.contains(&id) && shown.contains("llama") && shown.contains("NODE"), "{shown}");
    let (status, out, _) = cli(&[&["top", "--format", "json"], &url[..]].concat()).await;
    let fleet: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (status, &fleet["runs"][0]["run"], &fleet["incidents"][0]["id"]),
        (0, &"llama".into(), &id.into())
    );
    assert!(fleet["nodes"].is_array() && fleet["status"]["version"].is_string(), "{fleet}");
}

#[test]
fn a_fleet_fits_its_terminal() {
    let run: RunView = serde_json::from_value(examples::run()).unwrap();
    let node: NodeView = serde_json::from_value(examples::node()).unwrap();
    let many = |n: usize| (0..n).map(|i| RunView { run: format!("run-{i:03}"), ..run.clone() }).collect();
    let nodes = (0..500).map(|i| NodeView { node: format!("gpu-{i:03}"), ..node.clone() }).collect();
    let mut fleet = Fleet {
        status: serde_json::from_value(examples::status()).unwrap(),
        incidents: vec![IncidentView { run: "run-007".into(), ..incident() }],
        runs: many(40),
        nodes,
    };
    let plain = |fleet: &Fleet, columns, rows| -> Vec<String> {
        let lines = lines(fleet, None, Ts(OPENED), columns, rows);
        lines.iter().map(|l| anstream::adapter::strip_str(l).to_string()).collect()
    };
    let shown = plain(&fleet, 100, 40);
    assert!(shown.len() <= 40 && shown.iter().all(|l| l.chars().count() <= 100), "{shown:#?}");
    // The run with an incident comes first, and every part has room.
    let at = |word: &str| shown.iter().position(|l| l.starts_with(word)).unwrap();
    assert!(at("RUN") > at("ID") && at("NODE") > at("RUN"), "{shown:#?}");
    assert!(shown[at("RUN") + 1].starts_with("run-007"), "{shown:#?}");
    assert_eq!(shown.iter().filter(|l| l.starts_with("and ")).count(), 2, "{shown:#?}");
    assert!(shown.iter().filter(|l| l.starts_with("gpu-")).count() >= 10, "{shown:#?}");
    // Without a terminal nothing is truncated.
    assert_eq!(plain(&fleet, usize::MAX, usize::MAX).len(), 1 + 3 + 42 + 502);
    for rows in 1..12 {
        assert!(plain(&fleet, 20, rows).len() <= rows);
    }
    fleet.incidents.clear();
    fleet.runs.clear();
    assert!(plain(&fleet, 80, 10)[2].starts_with("NODE"));
}
