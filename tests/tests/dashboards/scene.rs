//! A Prometheus that scrapes two clusters whose nodes have the same names, twice each; a node
//! without a label `cluster`; an alerter; and a node that is gone.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stepwatch_tests::families::{self, Family};
use stepwatch_tests::peers::{self, Prometheus, PrometheusOptions};
use stepwatch_tests::trainer::now;
use tempfile::TempDir;

/// Scrapes until a rate over [`WINDOW`] is known.
const SCRAPES: u32 = 12;
/// The window of rates.
pub(crate) const WINDOW: &str = "10s";

pub(crate) struct Scene {
    pub(crate) prometheus: Prometheus,
    _dir: TempDir,
}

/// What both pages have.
struct Pages {
    exporter: Vec<Family>,
    alerter: Vec<Family>,
    /// On the page of exporters; with 0, one that does not name itself.
    nodes: usize,
    scrapes: AtomicU64,
}

impl Scene {
    /// `None` where no Prometheus is installed.
    pub(crate) async fn start() -> Option<Self> {
        let settled = format!("count_over_time(train_step{{job=\"other\"}}[1m]) >= {SCRAPES}");
        Self::with(0, jobs, "1s", &settled).await
    }

    /// One job that scrapes as many nodes, and the alerter.
    pub(crate) async fn of_nodes(nodes: usize) -> Option<Self> {
        let more = |addr: SocketAddr| {
            format!(
                "  - job_name: nodes\n    honor_labels: true\n    scrape_timeout: 3s\n    static_configs: [{{targets: ['{addr}']}}]\n  \
                 - job_name: stepwatch-alerter\n    metrics_path: /alerter\n    static_configs: [{{targets: ['{addr}']}}]\n"
            )
        };
        Self::with(nodes, more, "3s", "count_over_time(train_step{job=\"nodes\"}[1m]) >= 4").await
    }

    async fn with(
        nodes: usize,
        jobs: impl Fn(SocketAddr) -> String,
        interval: &str,
        settled: &str,
    ) -> Option<Self> {
        let program = peers::prometheus()?;
        let alerter = families::alerter().iter().map(|name| super::page::of_alerter(name)).collect();
        let exporter = families::exporter().await.unwrap();
        let pages = Arc::new(Pages { exporter, alerter, nodes, scrapes: AtomicU64::new(0) });
        let addr = serve(&pages);
        let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
        let options = PrometheusOptions { more: jobs(addr), ..PrometheusOptions::default() };
        // Without the label `cluster`.
        let bare = if nodes == 0 { &[addr][..] } else { &[] };
        let prometheus = Prometheus::start_with(&program, dir.path(), bare, interval, options).await.unwrap();
        prometheus.wait_for(settled).await.unwrap();
        Some(Self { prometheus, _dir: dir })
    }
}

/// `localhost` and `127.0.0.1` are two targets at one address.
fn jobs(addr: SocketAddr) -> String {
    let job = |name: &str, path: &str| {
        let target = |host: &str, cluster: &str| {
            format!(
                "      - {{targets: ['{host}:{}'], labels: {{cluster: {cluster}, instance: 'n1:9765'}}}}\n",
                addr.port()
            )
        };
        format!(
            "  - job_name: {name}\n    honor_labels: true\n    metrics_path: {path}\n    static_configs:\n{}{}",
            target("127.0.0.1", "east"),
            target("localhost", "west")
        )
    };
    let gone = "  - job_name: gone\n    static_configs: [{targets: ['127.0.0.1:1']}]\n";
    [
        job("stepwatch-exporter", "/metrics").as_str(),
        job("other", "/metrics").as_str(),
        job("stepwatch-alerter", "/alerter").as_str(),
        gone,
    ]
    .concat()
}

fn serve(pages: &Arc<Pages>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let pages = Arc::clone(pages);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // A scrape that breaks off is Prometheus's to repeat.
            let _ = answer(connection, &pages);
        }
    });
    addr
}

fn answer(mut connection: TcpStream, pages: &Pages) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut part = [0; 4096];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match connection.read(&mut part)? {
            0 => return Ok(()),
            read => request.extend_from_slice(&part[..read]),
        }
    }
    let of_alerter = request.starts_with(b"GET /alerter");
    let families = if of_alerter { &pages.alerter } else { &pages.exporter };
    let scrape = pages.scrapes.fetch_add(1, Ordering::Relaxed);
    let mut body = super::page::render(families, scrape, now());
    if pages.nodes > 0 && !of_alerter {
        body = super::page::of_nodes(&body, pages.nodes);
    }
    write!(
        connection,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Names of labels in a legend, each `{{label}}`.
pub(crate) fn labels_of(legend: &str) -> impl Iterator<Item = &str> {
    legend.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0))
}

/// Labels that are empty where there is nothing to tell apart.
pub(crate) const MAY_BE_ABSENT: &[&str] = &["cluster"];
