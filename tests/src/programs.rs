//! The two programs under test, with their files.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use crate::bins;
use crate::daemon::{Daemon, command};
use crate::http;
use crate::poll::{PATIENCE, poll_until};

const ANY_PORT: &str = "127.0.0.1:0";
/// The time limit for a program to start. A new store is synchronised to a disk that other
/// processes may be using.
const START_PATIENCE: Duration = Duration::from_mins(2);

/// The shared memory directory of the trainers that report to `ingest`.
pub fn shm(ingest: &Path) -> PathBuf {
    ingest.with_file_name("shm")
}

/// The machine that an exporter sees, if it is not the real one.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// Additional arguments: `--path.sysfs`, `--nvml-library` and the like.
    pub args: Vec<OsString>,
    pub env: Vec<(String, OsString)>,
}

/// A running `stepwatch-exporter`.
#[derive(Debug)]
pub struct Exporter {
    pub daemon: Daemon,
    pub addr: SocketAddr,
    dir: PathBuf,
    machine: Machine,
}

impl Exporter {
    /// Starts an exporter whose state is in `dir`; `extra` is appended to its configuration.
    pub async fn start(dir: &Path, extra: &str) -> anyhow::Result<Self> {
        Self::start_with(dir, "", extra).await
    }

    /// Like [`Self::start`]; `ingest` is appended to the `ingest` section.
    pub async fn start_with(dir: &Path, ingest: &str, extra: &str) -> anyhow::Result<Self> {
        Self::start_on(Machine::default(), dir, ingest, extra).await
    }

    /// Like [`Self::start_with`], on `machine`.
    pub async fn start_on(machine: Machine, dir: &Path, ingest: &str, extra: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        std::fs::create_dir_all(shm(&dir.join("ingest.sock")))?;
        let config = format!(
            "listen: \"{ANY_PORT}\"\ningest:\n  socket: {}\n  {ingest}\nstate_dir: {}\n{extra}",
            dir.join("ingest.sock").display(),
            dir.join("state").display(),
        );
        std::fs::write(dir.join("exporter.yml"), config)?;
        let (daemon, addr) = Self::launch(&machine, dir, ANY_PORT).await?;
        Ok(Self { daemon, addr, dir: dir.to_owned(), machine })
    }

    /// Restarts after a kill, with the same state and address.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        (self.daemon, self.addr) = Self::launch(&self.machine, &self.dir, &self.addr.to_string()).await?;
        Ok(())
    }

    async fn launch(machine: &Machine, dir: &Path, listen: &str) -> anyhow::Result<(Daemon, SocketAddr)> {
        let mut exporter = command(bins::path(bins::EXPORTER)?);
        exporter.arg("run").arg("--config").arg(dir.join("exporter.yml")).args(["--listen", listen]);
        // The machine's own directory has the shared memory of processes that other tests killed.
        if !machine.args.iter().any(|arg| arg == "--path.shm") {
            exporter.arg("--path.shm").arg(shm(&dir.join("ingest.sock")));
        }
        exporter.args(&machine.args).envs(machine.env.iter().map(|(name, value)| (name, value)));
        let mut daemon = Daemon::spawn(bins::EXPORTER, &mut exporter)?;
        let addr = daemon.listening().await?;
        ready(&mut daemon, addr).await?;
        Ok((daemon, addr))
    }

    /// The machine that the exporter sees.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The path of the SEQPACKET socket.
    pub fn ingest(&self) -> PathBuf {
        self.dir.join("ingest.sock")
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The metrics page, in the plain text format.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        http::get(&format!("{}/metrics", self.url())).await
    }
}

/// The options of an alerter.
#[derive(Debug, Clone, Default)]
pub struct AlerterOptions {
    pub exporters: Vec<SocketAddr>,
    pub slack_api: String,
    pub slack_token: String,
    pub pagerduty: String,
    pub routing_key: String,
    /// The address for people. Without one, the alerter uses a free port, and messages have no
    /// links.
    pub listen: Option<SocketAddr>,
    /// The address of a replica, which it takes again after a handover.
    pub at: Option<SocketAddr>,
    /// The `storage` section, in place of a database beside the configuration.
    pub storage: Option<String>,
    /// The URL and secret of a generic webhook.
    pub webhook: Option<(String, String)>,
    /// Keys of the Slack and PagerDuty receivers that name a file, and the file's content.
    pub slack_secrets: Vec<(String, String)>,
    pub pagerduty_secrets: Vec<(String, String)>,
    /// More keys of the Slack receiver, each after a comma.
    pub slack_keys: String,
    /// More keys of the PagerDuty receiver, and whether there is another receiver of its service,
    /// `twin`.
    pub pagerduty_keys: String,
    pub twin: bool,
    /// Whether PagerDuty gets changes of runs.
    pub pagerduty_changes: bool,
    /// More receivers as lines of YAML, and their names, which are notified at once.
    pub receivers: String,
    pub also: Vec<String>,
    /// The levels as lines of YAML, in place of the sample's levels.
    pub levels: Option<String>,
    /// Text that is appended to the configuration.
    pub extra: String,
    /// The environment of every start.
    pub env: Vec<(String, OsString)>,
}

/// A running `stepwatch-alerter`.
#[derive(Debug)]
pub struct Alerter {
    pub daemon: Daemon,
    pub addr: SocketAddr,
    config: PathBuf,
    env: Vec<(String, OsString)>,
}

impl Alerter {
    pub async fn start(
        dir: &Path,
        options: &AlerterOptions,
        crash_point: Option<&str>,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join("slack"), &options.slack_token)?;
        std::fs::write(dir.join("pd"), &options.routing_key)?;
        let config = dir.join("alerter.yml");
        std::fs::write(&config, Self::config(dir, options)?)?;
        let listen = options.at.or(options.listen).map_or_else(|| ANY_PORT.to_owned(), |a| a.to_string());
        let env = options.env.clone();
        let (daemon, addr) = Self::launch(&config, &listen, crash_point, &env).await?;
        Ok(Self { daemon, addr, config, env })
    }

    /// Starts another replica, with a configuration that is there.
    pub async fn start_replica(
        config: &Path,
        at: SocketAddr,
        env: Vec<(String, OsString)>,
    ) -> anyhow::Result<Self> {
        let (daemon, addr) = Self::launch(config, &at.to_string(), None, &env).await?;
        Ok(Self { daemon, addr, config: config.to_owned(), env })
    }

    fn config(dir: &Path, o: &AlerterOptions) -> anyhow::Result<String> {
        let file = |name: &str| dir.join(name).display().to_string();
        let exporters: Vec<_> = o.exporters.iter().map(|a| format!("\"{a}\"")).collect();
        let secrets = |of: &str, secrets: &[(String, String)]| -> anyhow::Result<String> {
            let mut keys = String::new();
            for (key, text) in secrets {
                let path = dir.join(format!("{of}-{key}"));
                std::fs::write(&path, text)?;
                write!(keys, ", {key}: {}", path.display())?;
            }
            Ok(keys)
        };
        let slack_keys = secrets("slack", &o.slack_secrets)? + &o.slack_keys;
        let mut pagerduty_keys = secrets("pd", &o.pagerduty_secrets)? + &o.pagerduty_keys;
        if o.pagerduty_changes {
            pagerduty_keys.push_str(", change_events: true");
        }
        let sources = match exporters.as_slice() {
            [] => String::new(),
            all => format!("sources:\n  - exporters: {{static: [{}]}}\n", all.join(", ")),
        };
        let storage = o.storage.clone().unwrap_or_else(|| format!("{{sqlite: {}}}", file("alerter.db")));
        let mut c = format!(
            "listen: \"{ANY_PORT}\"\nstorage: {storage}\ncost_per_gpu_hour: 2.50\n{sources}receivers:\n  - name: chat\n    slack: {{channel: \"#training\", token_file: {}, api_url: \"{}\"{slack_keys}}}\n  \
             - name: primary\n    pagerduty: {{routing_key_file: {}, events_url: \"{}\"{pagerduty_keys}}}\n",
            file("slack"),
            o.slack_api,
            file("pd"),
            o.pagerduty,
        );
        if o.twin {
            let (key, url, keys) = (file("pd"), &o.pagerduty, &o.pagerduty_keys);
            write!(
                c,
                "  - name: twin\n    pagerduty: {{routing_key_file: {key}, events_url: \"{url}\"{keys}}}\n"
            )?;
        }
        if let Some((url, secret)) = &o.webhook {
            std::fs::write(dir.join("secret"), secret)?;
            write!(c, "  - name: hook\n    webhook: {{url: \"{url}\", secret_file: {}}}\n", file("secret"))?;
        }
        c.push_str(&o.receivers);
        let hook = o.webhook.as_ref().map(|_| "hook".to_owned());
        let also = hook.iter().chain(&o.also).fold(String::new(), |all, name| all + ", " + name);
        let levels = o.levels.clone().unwrap_or_else(|| {
            let second = "{after: 300s, notify: [primary], repeat: 3}";
            format!("      - {{after: 0s, notify: [chat, primary{also}]}}\n      - {second}\n")
        });
        write!(
            c,
            "policies:\n  - name: default\n    levels:\n{levels}routes:\n  \
             - {{match: ['severity=\"page\"'], policy: default}}\n  - {{match: ['severity=\"ticket\"'], notify: [chat]}}\n",
        )?;
        if let Some(addr) = o.listen {
            writeln!(c, "external_url: \"http://{addr}\"")?;
        }
        c.push_str(&o.extra);
        Ok(c)
    }

    /// Restarts after a kill, with the same store and address.
    pub async fn restart(&mut self, crash_point: Option<&str>) -> anyhow::Result<()> {
        let listen = self.addr.to_string();
        (self.daemon, self.addr) = Self::launch(&self.config, &listen, crash_point, &self.env).await?;
        Ok(())
    }

    async fn launch(
        config: &Path,
        listen: &str,
        crash_point: Option<&str>,
        env: &[(String, OsString)],
    ) -> anyhow::Result<(Daemon, SocketAddr)> {
        let mut alerter = command(bins::path(bins::ALERTER)?);
        alerter.envs(env.iter().map(|(name, value)| (name, value)));
        alerter.arg("run").arg("--config").arg(config).args(["--listen", listen]);
        if let Some(point) = crash_point {
            alerter.env("STEPWATCH_CRASH_POINT", point);
        }
        let mut daemon = Daemon::spawn(bins::ALERTER, &mut alerter)?;
        let addr = daemon.listening().await?;
        Ok((daemon, addr))
    }

    pub async fn ready(&mut self) -> anyhow::Result<()> {
        ready(&mut self.daemon, self.addr).await
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn config_file(&self) -> PathBuf {
        self.config.clone()
    }

    pub async fn metrics(&self) -> anyhow::Result<String> {
        http::get(&format!("{}/metrics", self.url())).await
    }

    /// All incidents, as JSON of the alerter's API.
    pub async fn incidents(&self) -> anyhow::Result<Vec<Value>> {
        let reply = http::get_json(&format!("{}/api/v1/incidents", self.url())).await?;
        reply["incidents"].as_array().cloned().with_context(|| format!("not a list of incidents: {reply}"))
    }

    /// Acknowledges an incident with the command line.
    pub async fn ack(&self, incident: &str, by: &str) -> anyhow::Result<Output> {
        self.cli(&["incidents", "ack", incident, "--by", by]).await
    }

    /// Runs a subcommand against this alerter.
    pub async fn cli(&self, args: &[&str]) -> anyhow::Result<Output> {
        let mut cli = command(bins::path(bins::ALERTER)?);
        cli.args(args).args(["--url", &self.url()]).kill_on_drop(true);
        tokio::time::timeout(PATIENCE, cli.output())
            .await
            .context("the command line hangs")?
            .context("cannot run it")
    }
}

/// Waits for `/-/ready`; a process that ends first is an error with its log.
async fn ready(daemon: &mut Daemon, addr: SocketAddr) -> anyhow::Result<()> {
    let url = format!("http://{addr}/-/ready");
    let ended = poll_until("/-/ready", START_PATIENCE, async || {
        if let Some(status) = daemon.ended() {
            return Some(Some(status));
        }
        http::get(&url).await.ok().map(|_| None)
    })
    .await
    .with_context(|| daemon.log().join("\n"))?;
    match ended {
        None => Ok(()),
        Some(status) => anyhow::bail!("ended before it was ready: {status}\n{}", daemon.log().join("\n")),
    }
}
