//! An attack, and the data about its target.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rustix::net::sockopt::{Timeout, set_socket_reuseaddr, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, send, socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// Whether the attacker is a local user other than those of the exporter and the trainer;
    /// otherwise it is an operator, or on the network.
    pub(crate) neighbour: bool,
    /// Additional lines of the exporter's configuration; the directory is the attacker's.
    pub(crate) exporter: fn(&Path) -> String,
    /// Additional arguments of the exporter; the directory is the same.
    pub(crate) args: fn(&Path) -> Vec<OsString>,
    /// Runs the attack until its process is killed, or returns.
    pub(crate) act: fn(&Target) -> anyhow::Result<()>,
    /// How many incidents may page in addition to the genuine one.
    pub(crate) pages: usize,
    /// Whether nothing can be recorded during the attack, so that pages are sent from memory after
    /// ten seconds.
    pub(crate) unrecorded: bool,
    /// The most memory of the exporter in KiB.
    pub(crate) exporter_max_kib: u64,
    /// The most processor time of the exporter, as a share of one core.
    pub(crate) exporter_max_cpu: f64,
    /// The number of records of the attacker's own exporter that the alerter must read before the
    /// attack ends.
    pub(crate) records: u64,
}

/// The exporter's memory limit under one attack, from docs/security.md.
const EXPORTER_MAX_KIB: u64 = 64 << 10;

impl Attack {
    pub(crate) const fn new(name: &'static str, act: fn(&Target) -> anyhow::Result<()>) -> Self {
        Self {
            name,
            neighbour: true,
            exporter: |_| String::new(),
            args: |_| Vec::new(),
            act,
            pages: 0,
            unrecorded: false,
            exporter_max_kib: EXPORTER_MAX_KIB,
            exporter_max_cpu: f64::INFINITY,
            records: 0,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) exporter: SocketAddr,
    pub(crate) ingest: PathBuf,
    pub(crate) alerter: SocketAddr,
    pub(crate) database: PathBuf,
    /// The directory of the files that name exporters to the alerter.
    pub(crate) targets: PathBuf,
    /// The directory to which the attacker may write.
    pub(crate) dir: PathBuf,
    pub(crate) private: Private,
    /// The seconds by which the alerter's clock is ahead.
    pub(crate) ahead: i64,
}

/// A log that only the user of both programs may read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Private {
    pub(crate) log: PathBuf,
    /// The loss as it is written in the log.
    pub(crate) loss: String,
}

impl Target {
    /// A connection to the packet socket.
    pub(crate) fn packets(&self) -> anyhow::Result<Packets> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(&self.ingest)?).context("the packet socket")?;
        Ok(Packets(socket))
    }

    /// The datagram socket, to which each packet is sent individually.
    pub(crate) fn datagrams(&self) -> anyhow::Result<Packets> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let path = self.ingest.with_file_name("ingest.dgram");
        connect(&socket, &SocketAddrUnix::new(path)?).context("the datagram socket")?;
        Ok(Packets(socket))
    }
}

#[derive(Debug)]
pub(crate) struct Packets(pub(crate) OwnedFd);

impl Packets {
    pub(crate) fn send(&self, event: &str) -> anyhow::Result<()> {
        Ok(send(&self.0, event.as_bytes(), SendFlags::NOSIGNAL).map(|_| ())?)
    }
}

thread_local! {
    static SOURCE: Cell<Option<Ipv4Addr>> = const { Cell::new(None) };
}

/// Sets the source address of all further connections of this thread.
pub(crate) fn come_from(address: Ipv4Addr) {
    SOURCE.set(Some(address));
}

/// A socket that is not connected.
pub(crate) fn tcp() -> anyhow::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Some(source) = SOURCE.get() {
        // Allows the reuse of ports of connections that were just closed.
        set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddrV4::new(source, 0))?;
    }
    Ok(socket)
}

pub(crate) fn open(addr: SocketAddr) -> anyhow::Result<TcpStream> {
    let socket = tcp()?;
    // This limits the connect too.
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    connect(&socket, &addr)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a request and returns the status; `None` if the connection was closed first.
pub(crate) fn post(addr: SocketAddr, path: &str, headers: &str, body: &[u8]) -> Option<u16> {
    let headers = format!("host: {addr}\r\n{headers}");
    request(addr, "POST", path, &headers, body)?.split(' ').nth(1)?.parse().ok()
}

/// The body of a response.
pub(crate) fn get(addr: SocketAddr, path: &str) -> Option<String> {
    let answer = request(addr, "GET", path, &format!("host: {addr}\r\n"), b"")?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

/// The whole response to a request. `headers` lacks only the content length.
pub(crate) fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Option<String> {
    let mut stream = open(addr).ok()?;
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).ok()?;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// Raises the limit of open files to the maximum.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// Keeps a value until the process is killed.
pub(crate) fn hold<T>(held: T) -> ! {
    let _held = held;
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, TcpListener};

    use super::*;

    #[test]
    fn a_thread_comes_from_its_own_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let source = Ipv4Addr::new(127, 0, 0, 2);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                come_from(source);
                open(addr).unwrap();
            });
        });
        assert_eq!(listener.accept().unwrap().1.ip(), IpAddr::V4(source));
        open(addr).unwrap();
        assert_eq!(listener.accept().unwrap().1.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
}
