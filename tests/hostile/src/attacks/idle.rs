//! Connections that send nothing or only a part of a request, and are reopened when they are
//! closed.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;

use crate::attack::{Attack, open, raise_open_files};

pub(crate) const EXPORTER: Attack = Attack::new("idle-exporter", |target| hold(target.exporter, 600, ""));
pub(crate) const ALERTER: Attack = Attack::new("idle-alerter", |target| hold(target.alerter, 5_000, ""));
pub(crate) const BUSY_EXPORTER: Attack = Attack::new("busy-exporter", |target| {
    let head = format!("POST /v1/events HTTP/1.1\r\nhost: {}\r\ncontent-length: 1\r\n\r\n", target.exporter);
    hold(target.exporter, 600, &head)
});
pub(crate) const BUSY_ALERTER: Attack = Attack::new("busy-alerter", |target| {
    let head =
        format!("POST /api/v2/alerts HTTP/1.1\r\nhost: {}\r\ncontent-length: 1\r\n\r\n", target.alerter);
    hold(target.alerter, 5_000, &head)
});

fn hold(addr: SocketAddr, connections: usize, said: &str) -> anyhow::Result<()> {
    raise_open_files()?;
    let begin = || {
        let mut connection = open(addr).ok()?;
        connection.write_all(said.as_bytes()).ok()?;
        Some(connection)
    };
    let mut held: Vec<_> = (0..connections).filter_map(|_| begin()).collect();
    loop {
        for place in &mut held {
            place.set_nonblocking(true)?;
            let closed = place.read(&mut [0; 64]).is_ok() || place.take_error()?.is_some();
            if closed && let Some(again) = begin() {
                *place = again;
            }
        }
    }
}
