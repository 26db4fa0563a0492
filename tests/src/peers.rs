//! Programs of other projects that Stepwatch must work with. Tests that need one print a clear
//! message if it is absent, and fail if `STEPWATCH_REQUIRE_PEERS=1` is set, as `cargo verify` does.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

use crate::bins;
use crate::daemon::{Daemon, command};
use crate::http;
use crate::poll::{PATIENCE, poll_until};
use crate::say;

/// Finds a program by any of its names.
pub fn find(names: &[&str]) -> Option<PathBuf> {
    find_also_in(None, names)
}

/// Like [`find`], in this directory before those of `PATH`.
fn find_also_in(dir: Option<PathBuf>, names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = dir.into_iter().chain(std::env::split_paths(&path));
    let found = dirs.flat_map(|d| names.iter().map(move |n| d.join(n))).find(|p| p.is_file());
    if found.is_none() {
        let required = std::env::var_os("STEPWATCH_REQUIRE_PEERS").is_some_and(|v| v == "1");
        assert!(!required, "{} is not installed, and STEPWATCH_REQUIRE_PEERS=1", names[0]);
        say::loud(&format!("NOT TESTED: {} is not installed (cargo verify installs it)", names[0]));
    }
    found
}

pub fn prometheus() -> Option<PathBuf> {
    find(&["prometheus"])
}

pub fn promtool() -> Option<PathBuf> {
    find(&["promtool"])
}

pub fn alertmanager() -> Option<PathBuf> {
    find(&["alertmanager", "prometheus-alertmanager"])
}

pub fn amtool() -> Option<PathBuf> {
    find(&["amtool"])
}

pub fn vmagent() -> Option<PathBuf> {
    find(&["vmagent"])
}

pub fn victoria_metrics() -> Option<PathBuf> {
    find(&["victoria-metrics"])
}

pub fn node_exporter() -> Option<PathBuf> {
    find(&["prometheus-node-exporter", "node_exporter"])
}

/// The directory of the programs of PostgreSQL.
pub fn postgresql() -> Option<PathBuf> {
    let program = find_also_in(debian_postgresql(), &["initdb"])?;
    // A link in `PATH` leads to the directory that has all of them.
    let program = program.canonicalize().unwrap_or(program);
    program.parent().map(Path::to_owned)
}

/// The newest directory of server programs that Debian installs outside `PATH`.
fn debian_postgresql() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path());
    // The client alone has such a directory too.
    let servers = versions.filter(|version| version.join("bin/initdb").is_file());
    let newest = servers.max_by_key(|version| version.file_name()?.to_str()?.parse::<u32>().ok())?;
    Some(newest.join("bin"))
}

/// The directory with the package of an OpenID provider.
pub fn openid_provider() -> Option<PathBuf> {
    let modules = std::env::var_os("STEPWATCH_OPENID_PROVIDER").map(PathBuf::from);
    let found = modules.filter(|modules| modules.join("oidc-provider").is_dir());
    if found.is_none() {
        let required = std::env::var_os("STEPWATCH_REQUIRE_PEERS").is_some_and(|v| v == "1");
        assert!(!required, "oidc-provider is not installed, and STEPWATCH_REQUIRE_PEERS=1");
        say::loud("NOT TESTED: oidc-provider is not installed (cargo verify installs it)");
    }
    found
}

/// The options of a [`Prometheus`] in addition to its targets.
#[derive(Debug, Clone, Default)]
pub struct PrometheusOptions {
    /// Whether to evaluate the rules of this project.
    pub rules: bool,
    pub alertmanager: Option<SocketAddr>,
    /// A file with the token that the Alertmanager requires.
    pub credentials: Option<PathBuf>,
    /// Text that is appended to its configuration.
    pub more: String,
}

/// A real Prometheus that scrapes `targets`.
#[derive(Debug)]
pub struct Prometheus {
    pub url: String,
    _daemon: Daemon,
}

impl Prometheus {
    pub async fn start(
        program: &Path,
        dir: &Path,
        targets: &[SocketAddr],
        interval: &str,
    ) -> anyhow::Result<Self> {
        Self::start_with(program, dir, targets, interval, PrometheusOptions::default()).await
    }

    pub async fn start_with(
        program: &Path,
        dir: &Path,
        targets: &[SocketAddr],
        interval: &str,
        options: PrometheusOptions,
    ) -> anyhow::Result<Self> {
        let list: Vec<_> = targets.iter().map(|t| format!("'{t}'")).collect();
        let mut config = format!(
            "global:\n  scrape_interval: {interval}\n  scrape_timeout: 1s\n  evaluation_interval: 1s\nscrape_configs:\n  \
             - job_name: stepwatch\n    static_configs:\n      - targets: [{}]\n",
            list.join(", ")
        );
        if options.rules {
            writeln!(config, "rule_files: ['{}/rules/*.yml']", bins::root().display())?;
        }
        if let Some(addr) = options.alertmanager {
            writeln!(
                config,
                "alerting:\n  alertmanagers:\n    - static_configs:\n        - targets: ['{addr}']"
            )?;
            if let Some(file) = &options.credentials {
                writeln!(config, "      authorization: {{credentials_file: '{}'}}", file.display())?;
            }
        }
        config.push_str(&options.more);
        let file = dir.join("prometheus.yml");
        std::fs::write(&file, config)?;
        let mut prometheus = command(program);
        prometheus
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("tsdb").display()))
            .args(["--web.listen-address=127.0.0.1:0", "--log.format=json"]);
        if options.alertmanager.is_some() {
            // The default is a minute, and repeated notifications are tested.
            prometheus.arg("--rules.alert.resend-delay=1s");
        }
        let mut daemon = Daemon::spawn("prometheus", &mut prometheus)?;
        let url = ready(&mut daemon).await?;
        Ok(Self { url, _daemon: daemon })
    }

    /// The result of an instant query.
    pub async fn query(&self, expression: &str) -> anyhow::Result<Vec<Value>> {
        let url =
            reqwest::Url::parse_with_params(&format!("{}/api/v1/query", self.url), [("query", expression)])?;
        let reply = http::get_json(url.as_str()).await?;
        anyhow::ensure!(reply["status"] == "success", "{expression}: {reply}");
        Ok(reply["data"]["result"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until a query returns a result.
    pub async fn wait_for(&self, expression: &str) -> anyhow::Result<Vec<Value>> {
        poll_until(expression, PATIENCE, async || self.query(expression).await.ok().filter(|r| !r.is_empty()))
            .await
    }
}

/// A real vmagent that scrapes `target` each second and writes to `url`.
pub fn start_vmagent(program: &Path, dir: &Path, target: SocketAddr, url: &str) -> anyhow::Result<Daemon> {
    let scrapes = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: stepwatch\n    static_configs:\n      \
         - targets: ['{target}']\n"
    );
    let file = dir.join("vmagent.yml");
    std::fs::write(&file, scrapes)?;
    let mut vmagent = command(program);
    vmagent
        .arg(format!("-promscrape.config={}", file.display()))
        .arg(format!("-remoteWrite.url={url}"))
        .arg(format!("-remoteWrite.tmpDataPath={}", dir.join("vmagent").display()))
        .args(["-httpListenAddr=127.0.0.1:0", "-remoteWrite.flushInterval=200ms"]);
    Daemon::spawn("vmagent", &mut vmagent)
}

/// A real Alertmanager.
#[derive(Debug)]
pub struct Alertmanager {
    pub addr: SocketAddr,
    program: PathBuf,
    dir: PathBuf,
    daemon: Daemon,
}

impl Alertmanager {
    /// Starts an Alertmanager that notifies nobody.
    pub async fn start(program: &Path, dir: &Path) -> anyhow::Result<Self> {
        Self::start_with(program, dir, "route: {receiver: none}\nreceivers:\n  - name: none\n").await
    }

    /// Starts one with a configuration; its files are in `dir`.
    pub async fn start_with(program: &Path, dir: &Path, config: &str) -> anyhow::Result<Self> {
        std::fs::write(dir.join("alertmanager.yml"), config)?;
        let (addr, daemon) = Self::launch(program, dir).await?;
        Ok(Self { addr, program: program.to_owned(), dir: dir.to_owned(), daemon })
    }

    async fn launch(program: &Path, dir: &Path) -> anyhow::Result<(SocketAddr, Daemon)> {
        let mut alertmanager = command(program);
        alertmanager
            .arg(format!("--config.file={}", dir.join("alertmanager.yml").display()))
            .arg(format!("--storage.path={}", dir.join("alertmanager").display()))
            .args(["--web.listen-address=127.0.0.1:0", "--cluster.listen-address="]);
        let mut daemon = Daemon::spawn("alertmanager", &mut alertmanager)?;
        let url = ready(&mut daemon).await?;
        Ok((url.trim_start_matches("http://").parse()?, daemon))
    }

    /// Kills the process with `kill -9` and restarts it with its stored state; its address changes.
    pub async fn kill_and_restart(&mut self) -> anyhow::Result<()> {
        self.daemon.kill().await?;
        (self.addr, self.daemon) = Self::launch(&self.program, &self.dir).await?;
        Ok(())
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn alerts_url(&self) -> String {
        format!("{}/api/v2/alerts", self.url())
    }

    pub fn pid(&self) -> Option<u32> {
        self.daemon.pid()
    }
}

/// A real node_exporter with its default collectors.
#[derive(Debug)]
pub struct NodeExporter {
    pub addr: SocketAddr,
    pub daemon: Daemon,
}

impl NodeExporter {
    pub async fn start(program: &Path) -> anyhow::Result<Self> {
        let mut exporter = command(program);
        exporter.arg("--web.listen-address=127.0.0.1:0");
        let daemon = Daemon::spawn("node_exporter", &mut exporter)?;
        let pid = daemon.pid().context("the peer runs")?;
        let addr = poll_until("node_exporter to listen", PATIENCE, async || listening_socket(pid)).await?;
        Ok(Self { addr, daemon })
    }
}

/// Waits until a peer that was started on port 0 serves; returns its base URL.
async fn ready(daemon: &mut Daemon) -> anyhow::Result<String> {
    // The peer does not log its port, so it is read from the kernel.
    let pid = daemon.pid().context("the peer runs")?;
    let addr = poll_until("a peer to listen", PATIENCE, async || listening_socket(pid)).await?;
    let url = format!("http://{addr}");
    let page = format!("{url}/-/ready");
    poll_until("a peer to be ready", PATIENCE, async || http::get(&page).await.ok()).await?;
    Ok(url)
}

/// The loopback TCP address on which a process listens, from procfs.
fn listening_socket(pid: u32) -> Option<SocketAddr> {
    let mut inodes = Vec::new();
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
        let link = std::fs::read_link(fd.path()).unwrap_or_default().to_string_lossy().into_owned();
        inodes.extend(link.strip_prefix("socket:[").and_then(|l| l.strip_suffix(']')).map(str::to_owned));
    }
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok()?;
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let (local, state, inode) = (columns.get(1)?, columns.get(3)?, columns.get(9)?);
        let listening = *state == "0A" && inodes.iter().any(|i| i == inode);
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        listening.then(|| SocketAddr::from(([127, 0, 0, 1], port)))
    })
}
