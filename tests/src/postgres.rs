//! A real PostgreSQL that a test starts, kills and cuts off.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::peers;
use crate::poll::{PATIENCE, poll_until};
use crate::say;

/// The owner of the databases.
const OWNER: &str = "stepwatch";
/// PostgreSQL refuses to run as root. It runs as this user and group instead.
const UNPRIVILEGED: (&str, &str) = ("nobody", "nogroup");
/// The name of its socket, which contains the default port.
const SOCKET: &str = ".s.PGSQL.5432";
/// The line of `postmaster.pid` with the state of the server, from 0.
const STATUS_LINE: usize = 7;
/// What takes longer has failed.
const COMMAND_PATIENCE: Duration = Duration::from_mins(1);
/// The lines of the server's log that are shown when a test fails.
const SHOWN: usize = 30;
const BUFFER: usize = 16 * 1024;

/// A server with a cluster of its own, which listens on a socket in the cluster's directory.
/// Dropping it stops the server.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    dir: TempDir,
    /// The process, unless it was ended.
    server: Option<Child>,
}

impl Postgres {
    /// Starts a server; `None` if PostgreSQL is not installed.
    pub async fn start() -> anyhow::Result<Option<Self>> {
        Self::start_with("").await
    }

    /// Like [`Self::start`], with lines for `postgresql.conf`.
    pub async fn start_with(more: &str) -> anyhow::Result<Option<Self>> {
        let Some(programs) = peers::postgresql() else { return Ok(None) };
        let dir = tempfile::Builder::new().prefix("stepwatch-pg").tempdir().context("no directory")?;
        if geteuid().is_root() {
            let (user, group) = UNPRIVILEGED;
            let mut chown = Command::new("chown");
            run(chown.arg(format!("{user}:{group}")).arg(dir.path())).await?;
        }
        let mut server = Self { programs, dir, server: None };
        let mut initdb = server.program("initdb");
        initdb.args(["-A", "trust", "--no-locale", "-E", "UTF8", "-N", "-U", OWNER, "-D"]);
        run(initdb.arg(server.data())).await?;
        let settings = format!(
            "listen_addresses = ''\nunix_socket_directories = '{}'\nmax_connections = 500\n{more}",
            server.dir.path().display()
        );
        let file = server.data().join("postgresql.conf");
        let defaults = std::fs::read_to_string(&file)?;
        // Not replaced, so that it still belongs to the user of the server.
        std::fs::write(&file, defaults + &settings)?;
        server.run_again().await?;
        Ok(Some(server))
    }

    /// Starts the server after [`Self::kill`].
    pub async fn run_again(&mut self) -> anyhow::Result<()> {
        let started = poll_until("PostgreSQL to start", COMMAND_PATIENCE, async || {
            // Until the processes of a server that was killed have ended, no other one starts.
            if !self.is_running() {
                self.spawn().ok()?;
            }
            self.is_ready().then_some(())
        })
        .await;
        started.with_context(|| self.tail())
    }

    /// Stops the server at once and starts it, as `pg_ctl restart -m immediate` does: every
    /// transaction that is not committed is lost, and the log is replayed.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.end(Signal::QUIT).await?;
        self.run_again().await
    }

    /// Kills the server with `kill -9`.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.end(Signal::KILL).await
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut server = self.program("postgres");
        server.arg("-D").arg(self.data()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // It is a child of this process, and not of `pg_ctl`, which leaves it to `init`. Where that
        // is a program which does not wait for its children, the number of one that was killed
        // stays in use, and no other server starts.
        self.server = Some(server.spawn()?);
        Ok(())
    }

    fn is_running(&mut self) -> bool {
        self.server.as_mut().is_some_and(|server| matches!(server.try_wait(), Ok(None)))
    }

    /// Whether the process says that it accepts connections.
    fn is_ready(&self) -> bool {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let line = |n: usize| file.lines().nth(n).unwrap_or_default().trim();
        let own = self.server.as_ref().map(|server| server.id().to_string());
        own.as_deref() == Some(line(0)) && line(STATUS_LINE) == "ready"
    }

    async fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        let mut server = self.server.take().context("the server does not run")?;
        kill_process(Pid::from_child(&server), signal)?;
        let ended = async || server.try_wait().ok().flatten();
        poll_until("PostgreSQL to end", COMMAND_PATIENCE, ended).await.with_context(|| self.tail())?;
        Ok(())
    }

    pub async fn create(&self, database: &str) -> anyhow::Result<()> {
        self.query("postgres", &format!("CREATE DATABASE {database}")).await.map(drop)
    }

    /// The rows of a query, a line each, with the columns separated by `|`.
    pub async fn query(&self, database: &str, sql: &str) -> anyhow::Result<String> {
        let mut psql = self.program("psql");
        psql.args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", OWNER, "-d", database, "-h"]);
        printed(psql.arg(self.dir.path()).args(["-c", sql])).await
    }

    /// The URL of a database by the socket.
    pub fn url(&self, database: &str) -> String {
        format!("postgres:///{database}?host={}&user={OWNER}", self.dir.path().display())
    }

    /// A way to the server that can be cut.
    pub async fn proxy(&self) -> anyhow::Result<Proxy> {
        Proxy::start(self.dir.path().join(SOCKET)).await
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn tail(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(SHOWN)..].join("\n")
    }

    /// One of its programs, as a user that the server accepts.
    fn program(&self, name: &str) -> Command {
        let program = self.programs.join(name);
        let mut command = if geteuid().is_root() {
            let (user, group) = UNPRIVILEGED;
            let mut command = Command::new("setpriv");
            command.args(["--reuid", user, "--regid", group, "--clear-groups"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        // The directory of the test may not be readable for that user.
        command.current_dir(self.dir.path());
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say::line(&format!("---- log of PostgreSQL ----\n{}", self.tail()));
        }
        if let Some(mut server) = self.server.take() {
            let _ = kill_process(Pid::from_child(&server), Signal::QUIT);
            let _ = server.wait();
        }
    }
}

/// Runs a command whose output nobody needs.
async fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = format!("{command:?}");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| shown.clone())?;
    let ended = async || child.try_wait().ok().flatten();
    let status = poll_until(&shown, COMMAND_PATIENCE, ended).await?;
    anyhow::ensure!(status.success(), "{shown}: {status}");
    Ok(())
}

/// What a command prints.
async fn printed(command: &mut Command) -> anyhow::Result<String> {
    let mut command = tokio::process::Command::from(std::mem::replace(command, Command::new("true")));
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.context("it hangs")??;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// What a connection through a [`Proxy`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Passes,
    /// Nothing arrives, in both directions, and nothing ends: the network is cut.
    Hangs,
    /// Every connection ends, and new ones end at once.
    Cut,
}

/// What the connections do.
#[derive(Debug, Clone, Copy)]
struct Network {
    link: Link,
    /// The connections that were made so far.
    made: u64,
    /// Connections with lower numbers hang for ever.
    stranded: u64,
}

impl Network {
    fn link_of(&self, number: u64) -> Link {
        match self.link {
            Link::Passes if number < self.stranded => Link::Hangs,
            link => link,
        }
    }
}

/// A TCP port that leads to a Unix socket, as a network that can fail.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    network: watch::Sender<Network>,
    accepts: AbortHandle,
}

impl Proxy {
    /// Listens on a free port.
    pub async fn start(to: PathBuf) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let network = watch::Sender::new(Network { link: Link::Passes, made: 0, stranded: 0 });
        let numbers = network.clone();
        let accepts = tokio::spawn(async move {
            while let Ok((outer, _)) = listener.accept().await {
                let mut number = 0;
                numbers.send_modify(|network| {
                    number = network.made;
                    network.made += 1;
                });
                tokio::spawn(connect(outer, to.clone(), Way { number, network: numbers.subscribe() }));
            }
        });
        Ok(Self { addr, network, accepts: accepts.abort_handle() })
    }

    /// The URL of a database by this way.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{OWNER}@{}/{database}?sslmode=disable", self.addr)
    }

    /// From now on nothing is passed in any direction, and connections are accepted.
    pub fn hang(&self) {
        self.set(Link::Hangs);
    }

    /// Ends all connections, and those that are made later.
    pub fn cut(&self) {
        self.set(Link::Cut);
    }

    /// Passes everything again, also what waited.
    pub fn resume(&self) {
        self.set(Link::Passes);
    }

    /// Lets the present connections hang for ever, and passes new ones: the address has moved to
    /// another machine, and the old one answers nothing more.
    pub fn strand(&self) {
        self.network.send_modify(|network| network.stranded = network.made);
    }

    fn set(&self, link: Link) {
        self.network.send_modify(|network| network.link = link);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepts.abort();
    }
}

/// What a connection follows.
#[derive(Debug, Clone)]
struct Way {
    number: u64,
    network: watch::Receiver<Network>,
}

impl Way {
    /// Waits while the network hangs; whether it then passes anything.
    async fn passes(&mut self) -> bool {
        let number = self.number;
        let rests = self.network.wait_for(|network| network.link_of(number) != Link::Hangs).await;
        rests.is_ok_and(|network| network.link == Link::Passes)
    }

    async fn cut(&mut self) {
        // Without the proxy everything ends too.
        let _ = self.network.wait_for(|network| network.link == Link::Cut).await;
    }
}

/// Passes one connection on, both ways, until one way ends.
async fn connect(outer: TcpStream, to: PathBuf, mut way: Way) {
    if !way.passes().await {
        return;
    }
    // A server that is down refuses.
    let Ok(inner) = UnixStream::connect(to).await else { return };
    let ((from_outer, to_outer), (from_inner, to_inner)) = (outer.into_split(), inner.into_split());
    tokio::select! {
        () = pass_on(from_outer, to_inner, way.clone()) => {}
        () = pass_on(from_inner, to_outer, way) => {}
    }
}

/// Passes one direction on until it ends or is cut.
async fn pass_on(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut way: Way) {
    let mut buffer = vec![0; BUFFER];
    let mut cuts = way.clone();
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            () = cuts.cut() => return,
        };
        // The end of a connection does not arrive either while the network hangs.
        if !way.passes().await {
            return;
        }
        match read {
            Ok(length) if length > 0 => {
                if to.write_all(&buffer[..length]).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    async fn started(dir: &TempDir) -> (Proxy, UnixListener) {
        let socket = dir.path().join("socket");
        let server = UnixListener::bind(&socket).unwrap();
        (Proxy::start(socket).await.unwrap(), server)
    }

    /// The two ends of a connection.
    async fn connected(proxy: &Proxy, server: &UnixListener) -> (TcpStream, UnixStream) {
        let outer = TcpStream::connect(proxy.addr).await.unwrap();
        (outer, server.accept().await.unwrap().0)
    }

    async fn arrives(at: &mut UnixStream) -> bool {
        tokio::time::timeout(Duration::from_millis(100), at.read_u8()).await.is_ok()
    }

    #[tokio::test]
    async fn what_hangs_arrives_later_and_what_is_cut_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (proxy, server) = started(&dir).await;
        let (mut outer, mut inner) = connected(&proxy, &server).await;
        outer.write_all(b"a").await.unwrap();
        assert_eq!(inner.read_u8().await.unwrap(), b'a');
        proxy.hang();
        outer.write_all(b"b").await.unwrap();
        assert!(!arrives(&mut inner).await, "it arrives through a network that hangs");
        proxy.resume();
        assert_eq!(inner.read_u8().await.unwrap(), b'b');
        inner.write_all(b"c").await.unwrap();
        assert_eq!(outer.read_u8().await.unwrap(), b'c');
        proxy.cut();
        assert!(outer.read_u8().await.is_err() && inner.read_u8().await.is_err());
    }

    #[tokio::test]
    async fn old_connections_are_stranded_and_new_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let (proxy, server) = started(&dir).await;
        let (mut old, mut old_inner) = connected(&proxy, &server).await;
        old.write_all(b"a").await.unwrap();
        assert_eq!(old_inner.read_u8().await.unwrap(), b'a');
        proxy.strand();
        old.write_all(b"b").await.unwrap();
        assert!(!arrives(&mut old_inner).await);
        let (mut new, mut new_inner) = connected(&proxy, &server).await;
        new.write_all(b"c").await.unwrap();
        assert_eq!(new_inner.read_u8().await.unwrap(), b'c');
        assert!(!arrives(&mut old_inner).await);
        proxy.cut();
        assert!(old.read_u8().await.is_err());
    }
}
