//! Trainers: a fast one in Rust that writes to the ingest socket, and the real Python client in a
//! real process.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use stepwatch_wire::{Event, Kind};
use tokio::process::Command;

use crate::bins;
use crate::daemon::command;
use crate::programs::shm;
use crate::random::Random;

/// One rank of a run with its own connection, like a separate process.
#[derive(Debug)]
pub struct Rank {
    socket: OwnedFd,
    run: String,
    rank: u32,
    world: u32,
}

impl Rank {
    /// Connects and sends a hello.
    pub fn join(ingest: &Path, run: &str, rank: u32, world: u32) -> anyhow::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(ingest)?).with_context(|| ingest.display().to_string())?;
        let rank = Self { socket, run: run.to_owned(), rank, world };
        rank.send(&rank.event(Kind::Hello))?;
        Ok(rank)
    }

    /// An event of this rank at the present time.
    pub fn event(&self, kind: Kind) -> Event {
        let mut event = Event::new(kind);
        event.ts = Some(now());
        event.run = Some(self.run.clone());
        event.rank = Some(self.rank);
        event.world = Some(self.world);
        event
    }

    pub fn step(&self, step: i64, metrics: &[(&str, f64)]) -> anyhow::Result<()> {
        let mut event = self.event(Kind::Step);
        event.step = Some(step);
        event.m = metrics.iter().copied().collect();
        self.send(&event)
    }

    pub fn send(&self, event: &Event) -> anyhow::Result<()> {
        self.send_raw(event.to_json().as_bytes())
    }

    /// Sends one packet with any content.
    pub fn send_raw(&self, packet: &[u8]) -> anyhow::Result<()> {
        send(&self.socket, packet, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Ends like a process that was not killed.
    pub fn bye(self) -> anyhow::Result<()> {
        let mut event = self.event(Kind::Bye);
        event.code = Some(0);
        self.send(&event)
    }
}

/// The present time in Unix seconds.
pub fn now() -> f64 {
    jiff::Timestamp::now().as_microsecond() as f64 / 1e6
}

/// The loss and gradient norm of a healthy step: falling slowly, with noise that is the same in
/// every test run.
pub fn healthy(step: i64) -> (f64, f64) {
    let mut random = Random::new(step as u64);
    let (a, b) = (random.unit() - 0.5, random.unit() - 0.5);
    let loss = 2.2 + 0.3 * (-(step as f64) / 400.0).exp() + 0.02 * a;
    let grad_norm = 0.24 * (0.2 * b).exp();
    (loss, grad_norm)
}

/// The Python interpreter: the private environment of `cargo verify` or the demo, or else the
/// machine's.
pub fn python() -> PathBuf {
    std::env::var_os("STEPWATCH_PYTHON").map_or_else(|| "python3".into(), PathBuf::from)
}

/// The interpreter that can import PyTorch and the packages that need it, where `cargo verify
/// --full` has made one; else the same.
pub fn torch_python() -> PathBuf {
    std::env::var_os("STEPWATCH_TORCH_PYTHON").map_or_else(python, PathBuf::from)
}

/// A Python process that can `import stepwatch` and reports to `ingest`.
pub fn python_client(ingest: &Path) -> Command {
    python_client_with(&python(), ingest)
}

/// Like [`python_client`], with a given interpreter.
pub fn python_client_with(interpreter: &Path, ingest: &Path) -> Command {
    let mut python = command(interpreter);
    python
        .env("PYTHONPATH", bins::root().join("clients/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("STEPWATCH_SOCKET", ingest)
        .env("STEPWATCH_SHM", shm(ingest).join("stepwatch"));
    python
}

/// A run of one rank that has made `steps` healthy steps, as fast as they can be sent.
pub fn warm_run(ingest: &Path, name: &str, steps: i64) -> anyhow::Result<Rank> {
    let rank = Rank::join(ingest, name, 0, 1)?;
    for step in 1..=steps {
        let (loss, grad_norm) = healthy(step);
        rank.step(step, &[("loss", loss), ("grad_norm", grad_norm), ("lr", 3e-4)])?;
    }
    Ok(rank)
}
