//! 1,024 connections to the packet socket, held by one process.

use crate::attack::{Attack, Target, raise_open_files};

pub(crate) const ATTACK: Attack = Attack::new("packet-sockets", act);

const SOCKETS: usize = 1_024;

fn act(target: &Target) -> anyhow::Result<()> {
    raise_open_files()?;
    let mut held = Vec::new();
    loop {
        // Closed connections are opened again.
        held.retain(|socket: &crate::attack::Packets| socket.send("{}").is_ok());
        while held.len() < SOCKETS {
            held.push(target.packets()?);
        }
    }
}
