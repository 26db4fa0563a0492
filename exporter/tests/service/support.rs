//! Runs the real binary on free ports in a directory of its own, and uses it as trainers and
//! readers do.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;

/// Longer than anything that works takes, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The directory of other builds than the one beside this test.
const BUILD: &str = "STEPWATCH_BIN_DIR";

fn program() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_stepwatch-exporter"));
    std::env::var_os(BUILD).map_or(built, |dir| Path::new(&dir).join("stepwatch-exporter"))
}

/// Whether the exporter under test is built as users have it. What `cargo verify` passes is.
pub(crate) fn is_optimized() -> bool {
    std::env::var_os(BUILD).is_some() || !cfg!(debug_assertions)
}

pub(crate) fn binary() -> Command {
    let mut command = Command::new(program());
    command.env_remove("STEPWATCH_SOCKET").env_remove("RUST_LOG");
    command
}

/// Whether the test may act as other users. If not, `cargo verify` reports what was not tested: the
/// line goes past the capture of the test runner.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let _ = writeln!(std::io::stderr().lock(), "!!! NOT TESTED: other users: this needs root");
    }
    root
}

/// A user, and the capabilities that its program has.
pub(crate) struct Rights {
    pub(crate) user: u32,
    /// As systemd calls them: `CAP_SYSLOG`.
    pub(crate) capabilities: Vec<String>,
}

impl Rights {
    /// A program with these rights and no others, which root can start. It is given a name that its
    /// user may reach, in `dir`.
    fn command(&self, dir: &Path, program: &Path) -> Command {
        let reachable = dir.join("program");
        if std::fs::hard_link(program, &reachable).is_err() {
            std::fs::copy(program, &reachable).unwrap();
        }
        std::os::unix::fs::chown(dir, Some(self.user), Some(self.user)).unwrap();
        let given = self.capabilities.iter().map(|name| name.trim_start_matches("CAP_").to_lowercase());
        let set = given.fold("-all".to_owned(), |set, name| format!("{set},+{name}"));
        let mut command = Command::new("setpriv");
        command.args(["--clear-groups", "--no-new-privs"]);
        command.args([format!("--reuid={}", self.user), format!("--regid={}", self.user)]);
        command.args(["inh-caps", "ambient-caps", "bounding-set"].map(|of| format!("--{of}={set}")));
        command.arg(reachable);
        command
    }
}

/// A running exporter; killed when dropped.
pub(crate) struct Exporter {
    child: Child,
    pub(crate) addr: SocketAddr,
    pub(crate) dir: PathBuf,
    log: std::thread::JoinHandle<String>,
}

impl Exporter {
    /// `extra` is added to a configuration of the sockets and the state under `dir`.
    pub(crate) fn start(dir: &Path, extra: &str) -> Self {
        Self::start_with(binary(), dir, extra, &[])
    }

    /// As a user with these rights; only root can.
    pub(crate) fn start_as(dir: &Path, extra: &str, rights: &Rights) -> Self {
        std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        let mut command = rights.command(dir, &program());
        command.env_remove("STEPWATCH_SOCKET").env_remove("RUST_LOG").current_dir("/");
        Self::start_with(command, dir, extra, &[])
    }

    /// On the tree of files below `dir` in place of this machine's.
    pub(crate) fn start_on_tree(dir: &Path, extra: &str) -> Self {
        let root = |name: &str| dir.join(name).display().to_string();
        let (sys, proc, dev) = (root("sys"), root("proc"), root("dev"));
        Self::start_with(
            binary(),
            dir,
            extra,
            &["--path.sysfs", &sys, "--path.procfs", &proc, "--path.dev", &dev],
        )
    }

    fn start_with(mut program: Command, dir: &Path, extra: &str, arguments: &[&str]) -> Self {
        let config = dir.join("exporter.yml");
        let text = format!(
            "listen: '127.0.0.1:0'\nnode: n1\ningest: {{socket: '{0}/ingest.sock'}}\nstate_dir: '{0}/state'\n{extra}",
            dir.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut child = program
            .arg("--path.shm")
            .arg(dir.join("shm"))
            .arg("--config")
            .arg(&config)
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let (mut seen, mut addr) = (String::new(), None);
        while addr.is_none() {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended: {seen}");
            let said: Value = serde_json::from_str(&line).unwrap_or_default();
            if said["message"] == "listening" {
                addr = said["addr"].as_str().map(|a| a.parse().unwrap());
            }
            seen.push_str(&line);
        }
        // Someone must read, or the exporter's log would block it.
        let log = std::thread::spawn(move || {
            let _ = log.read_to_string(&mut seen);
            seen
        });
        Self { child, addr: addr.unwrap(), dir: dir.to_owned(), log }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("ingest.sock")
    }

    pub(crate) fn connect(&self) -> Packets {
        Packets::connect(&self.socket())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Asks it to stop, waits, and returns whether it went well and what it logged.
    pub(crate) fn stop(mut self) -> (bool, String) {
        self.signal(rustix::process::Signal::TERM);
        let ok = self.child.wait().unwrap().success();
        let log = std::mem::replace(&mut self.log, std::thread::spawn(String::new));
        (ok, log.join().unwrap())
    }

    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Answer {
        self.request_with(method, path, "", body)
    }

    pub(crate) fn request_with(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}");
        write!(stream, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
        let mut raw = Vec::new();
        stream.read_to_end(&mut raw).unwrap();
        let split = raw.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(raw[..split].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_ascii_lowercase(), body: raw[split + 4..].to_vec() }
    }

    pub(crate) fn post(&self, body: &str) -> Answer {
        self.request("POST", "/v1/events", body)
    }

    pub(crate) fn page(&self) -> Page {
        Page(self.request("GET", "/metrics", "").text())
    }

    /// Waits until the page shows a series with this value.
    pub(crate) fn wait_for(&self, series: &str, value: f64) {
        let last = std::cell::Cell::new(None);
        eventually(
            || format!("{series} is {:?}, want {value}", last.get()),
            || {
                last.set(self.page().get(series));
                last.get() == Some(value)
            },
        );
    }

    pub(crate) fn stream(&self, after: Option<&str>) -> Records {
        Records::open(self.addr, after)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

/// A page in text 0.0.4.
pub(crate) struct Page(pub String);

impl Page {
    /// The value of a series, written as on the page.
    pub(crate) fn get(&self, series: &str) -> Option<f64> {
        let line = self.0.lines().find_map(|l| l.strip_prefix(series)?.strip_prefix(' '));
        line.map(|v| v.parse().unwrap())
    }
}

/// A trainer's end of the packet socket.
pub(crate) struct Packets(OwnedFd);

impl Packets {
    pub(crate) fn connect(path: &Path) -> Self {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self(socket)
    }

    pub(crate) fn send(&self, packet: &str) {
        self.bytes(packet.as_bytes());
    }

    pub(crate) fn bytes(&self, packet: &[u8]) {
        rustix::net::send(&self.0, packet, SendFlags::NOSIGNAL).unwrap();
    }
}

/// A reader of the stream, over a plain socket: chunks are taken apart by hand.
pub(crate) struct Records {
    stream: BufReader<TcpStream>,
    chunk: usize,
}

impl Records {
    pub(crate) fn open(addr: SocketAddr, after: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let query = after.map(|c| format!("?after={c}")).unwrap_or_default();
        write!(stream, "GET /v1/stream{query} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        Self { stream, chunk: 0 }
    }

    /// The next record; `None` when the stream ended. A record may come in several chunks, and a
    /// chunk may hold many.
    pub(crate) fn next_record(&mut self) -> Option<Value> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            if self.chunk == 0 && !self.next_chunk() {
                return None;
            }
            let n = (&mut self.stream)
                .take(self.chunk as u64)
                .read_until(b'\n', &mut line)
                .ok()
                .filter(|n| *n > 0)?;
            self.chunk -= n;
            if self.chunk == 0 {
                self.stream.read_exact(&mut [0; 2]).ok()?;
            }
        }
        Some(serde_json::from_slice(&line).unwrap())
    }

    fn next_chunk(&mut self) -> bool {
        let mut size = String::new();
        if self.stream.read_line(&mut size).unwrap_or(0) == 0 {
            return false;
        }
        self.chunk = usize::from_str_radix(size.trim(), 16).unwrap();
        self.chunk > 0
    }

    /// The next record that satisfies the condition.
    pub(crate) fn find(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        loop {
            let record = self.next_record().expect("the stream ended");
            if wanted(&record) {
                return record;
            }
        }
    }
}

pub(crate) fn eventually(what: impl Fn() -> String, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{}", what());
        std::thread::yield_now();
    }
}
