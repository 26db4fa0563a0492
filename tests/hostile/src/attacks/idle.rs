//! Connections that say nothing, opened again when they are closed.

use std::io::Read as _;
use std::net::SocketAddr;

use crate::attack::{Attack, open, raise_open_files};

pub(crate) const EXPORTER: Attack = Attack::new("idle-exporter", |target| idle(target.exporter, 600));
pub(crate) const ALERTER: Attack = Attack::new("idle-alerter", |target| idle(target.alerter, 5_000));

fn idle(addr: SocketAddr, connections: usize) -> anyhow::Result<()> {
    raise_open_files()?;
    let mut held: Vec<_> = (0..connections).filter_map(|_| open(addr).ok()).collect();
    loop {
        for place in &mut held {
            place.set_nonblocking(true)?;
            let closed = place.read(&mut [0; 64]).is_ok() || place.take_error()?.is_some();
            if closed && let Ok(again) = open(addr) {
                *place = again;
            }
        }
    }
}
