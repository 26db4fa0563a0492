//! Processes whose memory is laid out to be expensive for whoever reads it: a command line that
//! wraps itself, a long environment, and mappings without end.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::bail;

use crate::attack::{Attack, Target};

pub(crate) const WRAPPED: Attack = Attack::new("wrapped-process", wrapped);
pub(crate) const MAPPED: Attack =
    Attack { exporter: |_| CONFIG_DRIFT.to_owned(), ..Attack::new("many-mappings", mapped) };
pub(crate) const EVICTED: Attack = Attack::new("evicted-hellos", evicted);

const CONFIG_DRIFT: &str = "collectors: {config_drift: {interval: 1s}}\n";
/// The kernel allows 128 KiB for one variable.
const LONG: usize = 120_000;
const LEVELS: usize = 120;
const MAPPINGS: usize = 60_000;
const VARIABLES: usize = 60_000;

/// Posts measurements of ever new services, whose run only their process names.
const POST: &str = r#"import json, sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
service = 0
while True:
    service += 1
    attributes = [{"key": "service.name", "value": {"stringValue": "fat-%d" % (service % 50)}}]
    metrics = [{"name": "loss", "gauge": {"dataPoints": [{"asDouble": 2.5}]}}]
    body = {"resourceMetrics": [{"resource": {"attributes": attributes}, "scopeMetrics": [{"metrics": metrics}]}]}
    request = urllib.request.Request(
        sys.argv[-1] + "/v1/metrics", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        opener.open(request).read()
    except OSError:
        pass
"#;

/// Maps a file at every other page, so that the mappings do not merge, and trains.
const MAP: &str = r#"import ctypes, mmap, os, socket, sys, time
directory = os.path.join(os.fsencode(sys.argv[2]), b"\xff" * 250, b"\xff" * 250)
os.makedirs(directory)
file = open(os.path.join(directory, b"\xff" * 250), "w+b")
file.truncate(2 * mmap.PAGESIZE)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
for n in range(int(sys.argv[3])):
    libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), n % 2 * mmap.PAGESIZE)
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
for step in range(1 << 30):
    s.send(b'{"k":"step","run":"mapped","step":%d,"m":{"loss":2.5}}' % step)
    time.sleep(1)
"#;

/// Two processes take each other's connections. Each connection says `hello` for a rank that others
/// hold, so that their processes are compared.
const EVICT: &str = r#"import os, socket, sys
parent = os.getpid()
is_child = os.fork() == 0
held = []
while not is_child or os.getppid() == parent:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        s.connect(sys.argv[1])
        s.send(b'{"k":"hello","run":"contested","run_by":"job","rank":%d}' % (len(held) % 8))
    except OSError:
        continue
    held.append(s)
    if len(held) > 900:
        held.clear()
"#;

fn wrapped(target: &Target) -> anyhow::Result<()> {
    let script = target.dir.join("stepwatch");
    std::fs::write(&script, POST)?;
    let mut command = Command::new("python3");
    command.arg(script).args(["run", "stepwatch"].repeat(LEVELS)).args(["run", "train.py"]);
    for variable in ["WANDB_NAME", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_NAME"] {
        command.env(variable, "x".repeat(LONG));
    }
    instead(command.arg(format!("http://{}", target.exporter)))
}

fn mapped(target: &Target) -> anyhow::Result<()> {
    let mut command = Command::new("python3");
    instead(command.args(["-c", MAP]).args([&target.ingest, &target.dir]).arg(MAPPINGS.to_string()))
}

fn evicted(target: &Target) -> anyhow::Result<()> {
    let mut command = Command::new("python3");
    command.envs((0..VARIABLES).map(|n| (format!("a{n}"), "")));
    instead(command.args(["-c", EVICT]).arg(&target.ingest))
}

/// Becomes this command.
fn instead(command: &mut Command) -> anyhow::Result<()> {
    bail!("cannot run {command:?}: {}", command.exec())
}
