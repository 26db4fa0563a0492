//! Runs the tools. Each has a process group and an environment of its own, and is found on PATH or
//! where the configuration says; no shell is involved. When its time is over, or a job begins, it
//! and all that it started are killed. The check may run as root: it then runs no tool that it
//! found where another user could have put it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, kill_process_group, pidfd_open, pidfd_send_signal};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::guard::guarded;
use crate::lock::Locked as _;
use crate::node_tests::{ActiveConfig, MARK};
use crate::processes;
use crate::roots::Roots;

/// Where tools are looked for after PATH: Slurm gives its programs none.
const PLACES: &[&str] = &[
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/cuda/bin",
    "/opt/nccl-tests/build",
];
/// The variables that a tool gets of this process. Those of a job would change what it tests: the
/// GPUs that it sees, how NCCL connects, the launcher that it believes to run under.
const KEPT: &[&str] = &["HOME", "LD_LIBRARY_PATH", "TMPDIR"];
/// The most bytes that are kept of each output; the rest is read and dropped.
const MAX_OUTPUT: usize = 1 << 20;
/// The most characters of its last line.
const MAX_SAID: usize = 200;
/// The time that a tool has to end itself after SIGTERM: dcgmi then stops the test that runs in
/// the service behind it.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// The time for the rest of the output of a tool that has ended.
const REST: Duration = Duration::from_millis(500);
/// The time between two looks for a job while a tool runs. What two looks in a row saw, or could
/// not see, ends the tool: one may be late under load.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often the processes of a tool are looked for, because they may start others meanwhile.
const PASSES: usize = 3;

/// How the run of a tool ended.
#[derive(Debug)]
pub(super) enum End {
    Exited(Output),
    /// It did not end in this time.
    Late(Duration),
    /// This process was told to stop.
    Interrupted,
    /// A job began beside it.
    Occupied(String),
    NotStarted(io::Error),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Output {
    /// How it ended, unless with 0: `exit status: 226`, `signal: 9 (SIGKILL)`.
    pub(super) failure: Option<String>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Whether there was more than is kept.
    pub(super) cut: bool,
}

#[derive(Debug)]
pub(super) struct Runner {
    tools: Vec<(String, PathBuf)>,
    places: Vec<PathBuf>,
    grace: Duration,
    /// When the time for all tools is over.
    end: Instant,
    interrupts: Option<Interrupts>,
    interrupted: bool,
    watch: Option<Watch>,
    look_every: Duration,
    /// Why no further tool may run beside the job that began.
    occupied: Option<String>,
    count: u64,
}

/// Looks whether a job began: why the node is no longer idle.
#[derive(Clone)]
pub(super) struct Watch(Arc<dyn Fn() -> Option<String> + Send + Sync>);

impl Watch {
    pub(super) fn new(look: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look))
    }

    /// Waits until a job began.
    async fn seen(watch: Option<Self>, every: Duration) -> String {
        let Some(watch) = watch else { return std::future::pending().await };
        let mut before = false;
        loop {
            sleep(every).await;
            let look = Arc::clone(&watch.0);
            let Ok(seen) = spawn_blocking(move || look()).await else { continue };
            match seen {
                Some(why) if before => return why,
                Some(_) => before = true,
                None => before = false,
            }
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// The signals that end the tests.
#[derive(Debug)]
struct Interrupts {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hang_up: unix::Signal,
}

/// A tool that runs.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    group: Option<Pid>,
    mark: String,
    began: Instant,
    stdout: Arc<Mutex<Kept>>,
    stderr: Arc<Mutex<Kept>>,
    readers: Vec<JoinHandle<()>>,
}

/// The beginning of an output.
#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    cut: bool,
}

impl Output {
    /// How it ended and the last line that it wrote, for a result that could not be read.
    pub(super) fn why(&self) -> String {
        let last = |text: &str| -> Option<String> {
            let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
            Some(line.chars().take(MAX_SAID).collect())
        };
        let said = last(&self.stderr).or_else(|| last(&self.stdout));
        let ended = self.failure.clone().unwrap_or_else(|| "it ended without an error".into());
        let cut = if self.cut { ", with more output than is read" } else { "" };
        match said {
            Some(said) => format!("{ended}{cut}: {said}"),
            None => format!("{ended}{cut}"),
        }
    }

    /// The JSON document within the output, which may stand between messages.
    pub(super) fn json(&self) -> Option<serde_json::Value> {
        let (begin, end) = (self.stdout.find('{')?, self.stdout.rfind('}')?);
        serde_json::from_str(self.stdout.get(begin..=end)?).ok()
    }
}

impl Interrupts {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            hang_up: unix::signal(SignalKind::hangup())?,
        })
    }

    async fn next(interrupts: Option<&mut Self>) {
        let Some(of) = interrupts else { return std::future::pending().await };
        tokio::select! {
            _ = of.terminate.recv() => {}
            _ = of.interrupt.recv() => {}
            _ = of.hang_up.recv() => {}
        }
    }
}

impl Runner {
    /// A runner whose tools end within `budget`, together.
    pub(super) fn new(config: &ActiveConfig, budget: Duration) -> Self {
        Self { interrupts: Interrupts::new().ok(), ..Self::with(config, places(), budget, GRACE) }
    }

    /// A runner that looks for tools in these places, and that no signal stops.
    pub(super) fn with(
        config: &ActiveConfig,
        places: Vec<PathBuf>,
        budget: Duration,
        grace: Duration,
    ) -> Self {
        Self {
            tools: config.tools.iter().map(|(name, path)| (name.clone(), path.clone())).collect(),
            places,
            grace,
            // What does not end by itself is ended within the budget too.
            end: Instant::now() + budget.saturating_sub(grace),
            interrupts: None,
            interrupted: false,
            watch: None,
            look_every: LOOK_EVERY,
            occupied: None,
            count: 0,
        }
    }

    /// Looks for jobs while a tool runs.
    pub(super) fn watched(self, watch: Watch) -> Self {
        Self { watch: Some(watch), ..self }
    }

    #[cfg(test)]
    pub(super) fn looking_every(self, look_every: Duration) -> Self {
        Self { look_every, ..self }
    }

    /// Why no further tool may run: a job began.
    pub(super) fn occupied(&self) -> Option<&str> {
        self.occupied.as_deref()
    }

    /// The time that is left for tools.
    pub(super) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// The path of a tool; why there is none that may be run.
    pub(super) fn find(&self, tool: &str) -> Result<PathBuf, String> {
        self.found(tool, geteuid().is_root())
    }

    /// The path of a tool, as root or as another user finds it. What the configuration names was
    /// chosen by who owns the node.
    pub(super) fn found(&self, tool: &str, root: bool) -> Result<PathBuf, String> {
        let missing = || format!("{tool} is not installed: it is neither on PATH nor in check.active.tools");
        if let Some((_, path)) = self.tools.iter().find(|(name, _)| name == tool) {
            return is_program(path).then(|| path.clone()).ok_or_else(missing);
        }
        let mut refused = None;
        for path in self.places.iter().map(|place| place.join(tool)).filter(|path| is_program(path)) {
            if !root {
                return Ok(path);
            }
            // Another place may have one that only root can change.
            match guarded_program(&path) {
                Ok(real) => return Ok(real),
                Err(why) => refused = refused.or(Some((path, why))),
            }
        }
        let (path, why) = refused.ok_or_else(missing)?;
        let path = path.display();
        Err(format!("root does not run {path}: {why}; if that is right, set check.active.tools.{tool} to it"))
    }

    /// Runs a tool until it ends, or its time is over.
    pub(super) async fn run(&mut self, program: &Path, args: &[&OsStr], dir: Option<&Path>) -> End {
        match self.start(program, args, dir) {
            Ok(running) => self.wait(running).await,
            Err(error) => {
                if self.interrupted {
                    End::Interrupted
                } else if let Some(why) = &self.occupied {
                    End::Occupied(why.clone())
                } else {
                    End::NotStarted(error)
                }
            }
        }
    }

    pub(super) fn start(
        &mut self,
        program: &Path,
        args: &[&OsStr],
        dir: Option<&Path>,
    ) -> io::Result<Running> {
        if self.interrupted {
            return Err(io::Error::other("the check was told to stop"));
        }
        if let Some(why) = &self.occupied {
            return Err(io::Error::other(why.clone()));
        }
        if self.left().is_zero() {
            return Err(io::Error::other("the budget of time is used up"));
        }
        self.count += 1;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let mark = format!("{}-{}-{}", std::process::id(), self.count, hex::encode(random));
        let mut command = Command::new(program);
        command.args(args).env_clear().env("LC_ALL", "C").env(MARK, &mark);
        command.env(
            "PATH",
            std::env::join_paths(&self.places).unwrap_or_else(|_| OsString::from("/usr/bin:/bin")),
        );
        for name in KEPT {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.current_dir(dir.unwrap_or(Path::new("/"))).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // dcgmi ends the test in its service when it is told to, and not when it is killed.
        stepwatch_sys::death::with_parent(command.as_std_mut(), Signal::TERM);
        let mut child = command.spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let (stdout, stderr): (Arc<Mutex<Kept>>, Arc<Mutex<Kept>>) = Default::default();
        let mut readers = Vec::new();
        readers.extend(child.stdout.take().map(|pipe| tokio::spawn(keep(pipe, Arc::clone(&stdout)))));
        readers.extend(child.stderr.take().map(|pipe| tokio::spawn(keep(pipe, Arc::clone(&stderr)))));
        Ok(Running { child, group, mark, began: Instant::now(), stdout, stderr, readers })
    }

    /// Waits until a tool ends, or its time is over.
    pub(super) async fn wait(&mut self, mut running: Running) -> End {
        let status = tokio::select! {
            status = running.child.wait() => Some(status),
            () = sleep_until(self.end) => None,
            () = Interrupts::next(self.interrupts.as_mut()) => {
                self.interrupted = true;
                None
            }
            why = Watch::seen(self.watch.clone(), self.look_every) => {
                self.occupied = Some(why);
                None
            }
        };
        let spent = running.began.elapsed();
        match status {
            Some(Ok(status)) => End::Exited(running.output(status).await),
            Some(Err(error)) => {
                self.stop(running).await;
                End::NotStarted(error)
            }
            None => {
                self.stop(running).await;
                match &self.occupied {
                    _ if self.interrupted => End::Interrupted,
                    Some(why) => End::Occupied(why.clone()),
                    None => End::Late(spent),
                }
            }
        }
    }

    /// Ends a tool, and all that it has started.
    pub(super) async fn stop(&self, mut running: Running) {
        running.signal(Signal::TERM);
        if timeout(self.grace, running.child.wait()).await.is_err() {
            running.signal(Signal::KILL);
            // One that waits in the kernel does not end, and nobody waits for it.
            let _ = timeout(REST, running.child.wait()).await;
        }
        running.end_all();
    }
}

impl Running {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // It may have ended.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Kills what the tool has started: its group, and by the mark in their environment those that
    /// left the group.
    fn end_all(&self) {
        self.signal(Signal::KILL);
        let mark = format!("{MARK}={}", self.mark);
        kill_all(&mark);
    }

    async fn output(self, status: ExitStatus) -> Output {
        self.end_all();
        let Self { stdout, stderr, readers, .. } = self;
        // A process that cannot be killed may hold the pipes open.
        let all = async {
            for reader in readers {
                let _ = reader.await;
            }
        };
        let _ = timeout(REST, all).await;
        let (stdout, stderr) = (std::mem::take(&mut *stdout.locked()), std::mem::take(&mut *stderr.locked()));
        Output {
            failure: (!status.success()).then(|| status.to_string()),
            stdout: String::from_utf8_lossy(&stdout.bytes).into_owned(),
            stderr: String::from_utf8_lossy(&stderr.bytes).into_owned(),
            cut: stdout.cut || stderr.cut,
        }
    }
}

/// Where tools are looked for.
pub(super) fn places() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_path = std::env::split_paths(&path).filter(|place| place.is_absolute());
    of_path.chain(PLACES.iter().map(PathBuf::from)).collect()
}

/// Reads an output to its end, and keeps its beginning: a tool whose output nobody reads stops.
async fn keep(mut pipe: impl AsyncRead + Unpin, kept: Arc<Mutex<Kept>>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        let mut kept = kept.locked();
        let room = MAX_OUTPUT.saturating_sub(kept.bytes.len());
        kept.cut |= read > room;
        kept.bytes.extend_from_slice(buffer.get(..read.min(room)).unwrap_or_default());
    }
}

/// Ends what the tools of a process that tested have started.
pub(in crate::commands::check) fn end_tools(tester: u32) {
    let mark = format!("{MARK}={tester}-");
    let began = std::time::Instant::now();
    for held in signal_marked(mark.as_bytes(), Signal::TERM) {
        let Ok(left) = Timespec::try_from(GRACE.saturating_sub(began.elapsed())) else { break };
        // It can be read once the process has ended.
        let _ = poll(&mut [PollFd::new(&held, PollFlags::IN)], Some(&left));
    }
    kill_all(&mark);
}

/// Passes the signals that end the tests on to the process that makes them. It ends its tools, and
/// answers. If it is still there after this time, because it waits in the kernel, `give_up` is
/// called.
pub(in crate::commands::check) fn pass_signals_to(
    process: u32,
    time: Duration,
    give_up: impl FnOnce() + Send + 'static,
) {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let Some(held) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return };
    let pass = move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let Ok(mut interrupts) = Interrupts::new() else { return };
            Interrupts::next(Some(&mut interrupts)).await;
            let all = async {
                loop {
                    let _ = pidfd_send_signal(&held, Signal::TERM);
                    Interrupts::next(Some(&mut interrupts)).await;
                }
            };
            let _: Result<(), _> = timeout(time, all).await;
            give_up();
        });
    };
    // Without the thread a signal ends this process, and the kernel tells the other one.
    let _ = std::thread::Builder::new().name("signals".into()).spawn(pass);
}

fn kill_all(mark: &str) {
    let _ = (0..PASSES).find(|_| signal_marked(mark.as_bytes(), Signal::KILL).is_empty());
}

/// Sends a signal to all processes of this user with a variable that begins so.
fn signal_marked(mark: &[u8], signal: Signal) -> Vec<OwnedFd> {
    let (roots, own) = (Roots::default(), geteuid().as_raw());
    let mut reached = Vec::new();
    for entry in fs::read_dir(&roots.procfs).into_iter().flatten().flatten() {
        let pid =
            entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { continue };
        if !entry.metadata().is_ok_and(|meta| meta.uid() == own) {
            continue;
        }
        // It is held before it is looked at, so that the signal reaches no other process.
        let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let number = pid.as_raw_nonzero().get().unsigned_abs();
        let environ = processes::environ(&roots, number).unwrap_or_default();
        if environ.split(|byte| *byte == 0).any(|variable| variable.starts_with(mark)) {
            if pidfd_send_signal(&held, signal).is_ok() {
                reached.push(held);
            }
        }
    }
    reached
}

/// The file of a program, if only root can change it.
fn guarded_program(path: &Path) -> Result<PathBuf, String> {
    let real = fs::canonicalize(path).map_err(|error| error.to_string())?;
    guarded(&real).map(|()| real)
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
