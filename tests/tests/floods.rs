//! What hostile senders do to the alerter, and what goes on meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use stepwatch_fakes::PagerDuty;
use stepwatch_tests::daemon::{self, Daemon};
use stepwatch_tests::http::{get, get_json};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::trainer::Rank;
use stepwatch_tests::{FakeLibc, Stack, StackOptions, bins, crowd, poll_until};

/// Connections that send nothing, and as few as a machine with low limits may have.
const IDLE: usize = 5_000;
const IDLE_AT_LEAST: usize = 2_000;
/// Files that a test needs besides.
const OTHER_FILES: u64 = 256;
/// The attacks of `tests/hostile` are a million.
const NAMES: usize = 100_000;
/// Of the alerter after that many names of runs (docs/security.md).
const MAX_MEMORY_KIB: u64 = 128 << 10;
/// How long a page by name may take while a flood lasts; a release build has two seconds
/// (`tests/hostile`).
const PAGE_WITHIN: Duration = Duration::from_secs(8);
/// How long it may take to read them, in a debug build on a busy machine.
const READ_WITHIN: Duration = Duration::from_mins(4);

async fn alerter(dir: &Path, sources: &str) -> (Daemon, SocketAddr) {
    let config = format!(
        "listen: \"127.0.0.1:0\"\nstorage: {{sqlite: alerter.db}}\nreceivers: [{{name: out, stdout: {{}}}}]\n{sources}"
    );
    std::fs::write(dir.join("alerter.yml"), config).unwrap();
    let mut command = daemon::command(bins::path(bins::ALERTER).unwrap());
    command.args(["--config", "alerter.yml"]).current_dir(dir);
    let mut daemon = Daemon::spawn("alerter", &mut command).unwrap();
    let addr = daemon.listening().await.unwrap();
    let ready = async || get(&format!("http://{addr}/-/ready")).await.ok();
    poll_until("a ready alerter", PATIENCE, ready).await.unwrap();
    (daemon, addr)
}

/// The status of an answer, over a connection of its own.
fn ask(addr: SocketAddr, method: &str, path: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_keep_nobody_out() {
    crowd::raise_file_limit().unwrap();
    let room = getrlimit(Resource::Nofile).current.map_or(IDLE, |n| n.saturating_sub(OTHER_FILES) as usize);
    let many = room.min(IDLE);
    assert!(many >= IDLE_AT_LEAST, "only {many} files may be open");
    let dir = tempfile::tempdir().unwrap();
    let (_alerter, addr) = alerter(dir.path(), "").await;
    let mut idle: Vec<_> = (0..many).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let alert = r#"[{"labels":{"alertname":"Watchdog","severity":"info"}}]"#;
    for round in 0..20 {
        for path in ["/-/healthy", "/-/ready", "/metrics", "/api/v1/incidents", "/api/v2/status"] {
            assert_eq!(ask(addr, "GET", path, ""), 200, "{path}, round {round}");
        }
        assert_eq!(ask(addr, "POST", "/api/v2/alerts", alert), 200, "round {round}");
        // They come back.
        for place in idle.iter_mut().skip(round * 100).take(100) {
            *place = TcpStream::connect(addr).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_invented_runs_hides_no_page_of_a_known_one() {
    let clock_dir = tempfile::tempdir().unwrap();
    let machine = FakeLibc::new(clock_dir.path()).unwrap();
    machine.set_clock(-660).unwrap();
    let exporter = "runs: {max_runs: 1000}\n".into();
    let options = StackOptions { libc: Some(machine.clone()), exporter, ..StackOptions::default() };
    let mut stack = Stack::start_with(options).await.unwrap();
    let genuine = stack.warm_run("genuine", 5).unwrap();
    let known = async || {
        let runs = get_json(&format!("{}/api/v1/runs", stack.alerter.url())).await.ok()?;
        runs["runs"].as_array()?.iter().any(|run| run["run"] == "genuine").then_some(())
    };
    poll_until("the genuine run", PATIENCE, known).await.unwrap();
    // Eleven minutes later: the clock that judges follows the wall's over a restart.
    stack.alerter.daemon.terminate().await.unwrap();
    machine.set_clock(0).unwrap();
    stack.alerter.restart(None).await.unwrap();
    stack.alerter.ready().await.unwrap();
    for i in 0..120 {
        let rank = Rank::join(&stack.ingest(), &format!("flood-{i}"), 0, 1).unwrap();
        rank.step(1, &[("loss", 2.5)]).unwrap();
        rank.step(2, &[("loss", f64::NAN)]).unwrap();
        rank.bye().unwrap();
    }
    let storm = |pd: &PagerDuty| pd.alerts.iter().any(|a| a.summary.contains("alert storm"));
    stack.pagerduty.wait_for(storm, PATIENCE).await.unwrap();
    genuine.step(6, &[("loss", f64::NAN), ("grad_norm", 0.2)]).unwrap();
    let by_name = |pd: &PagerDuty| {
        pd.alerts.iter().any(|a| a.source == "genuine" && a.summary.contains("NaN or infinity"))
    };
    let pd = stack.pagerduty.wait_for(by_name, PAGE_WITHIN).await.unwrap();
    let named = pd.alerts.iter().filter(|a| a.source.starts_with("flood")).count();
    let storms: Vec<_> = pd.alerts.iter().filter(|a| a.summary.contains("alert storm")).collect();
    assert!(named <= 10, "{named} of the flood by name");
    assert_eq!(storms.len(), 1, "{storms:#?}");
    let origin = format!("exporter {}", stack.exporter.addr);
    assert!(storms[0].summary.contains(&origin), "{} in {}", origin, storms[0].summary);
}

/// An exporter that reports as many runs as it likes, and then stays.
fn hostile(listener: &TcpListener) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n")?;
    for block in 0..NAMES / 1000 {
        let event = |i: usize| {
            let seq = block * 1000 + i;
            format!(
                "{{\"c\":\"f00d:{seq}\",\"k\":\"hello\",\"node\":\"evil\",\"run\":\"run-{seq}\",\"rank\":0}}\n"
            )
        };
        stream.write_all((1..=1000).map(event).collect::<String>().as_bytes())?;
    }
    // Until the alerter ends.
    while stream.read(&mut [0])? > 0 {}
    Ok(())
}

fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn names_without_end_take_little_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = listener.local_addr().unwrap();
    let attack = std::thread::spawn(move || hostile(&listener));
    let dir = tempfile::tempdir().unwrap();
    let (mut alerter, addr) =
        alerter(dir.path(), &format!("sources: [{{exporters: {{static: [\"{source}\"]}}}}]\n")).await;
    let read = async || {
        let sources = get_json(&format!("http://{addr}/api/v1/sources")).await.ok()?;
        let source = sources["sources"].get(0)?.clone();
        (source["records"].as_u64()? >= NAMES as u64 && source["refused_records"].as_u64()? > 0)
            .then_some(source)
    };
    let source = poll_until("all those records", READ_WITHIN, read).await.unwrap();
    assert_eq!(source["refused"], "it names too many runs");
    let peak = peak_kib(alerter.pid().unwrap());
    stepwatch_tests::say::figure(&format!("{NAMES} names of runs from one exporter: peak {peak} KiB"));
    assert!(peak < MAX_MEMORY_KIB, "the alerter took {peak} KiB");
    let metrics = get(&format!("http://{addr}/metrics")).await.unwrap();
    assert!(metrics.contains("stepwatch_alerter_source_refused_total{source="), "{metrics}");
    alerter.kill().await.unwrap();
    attack.join().unwrap().unwrap();
}
