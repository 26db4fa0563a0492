//! Which process of this host is at the other end of a TCP connection.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use crate::roots::{self, Roots};

/// Processes looked at in one search.
const MAX_PROCESSES: usize = 32_768;
/// Descriptors looked at in one search.
const MAX_DESCRIPTORS: usize = 262_144;

/// The process that has the socket whose own address is `peer`; `None` where that is of another host, or not ours to see.
pub(crate) fn pid_of(roots: &Roots, peer: SocketAddr) -> Option<u32> {
    let inode = ["net/tcp", "net/tcp6"].iter().find_map(|table| {
        let text = roots::read(&roots.proc(table))?;
        text.lines().skip(1).find_map(|line| inode_of(line, peer))
    })?;
    let wanted = format!("socket:[{inode}]");
    let mut descriptors = 0;
    let pids = fs::read_dir(&roots.procfs).ok()?.flatten();
    let pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids.take(MAX_PROCESSES) {
        for entry in fs::read_dir(roots.proc(pid.to_string()).join("fd")).into_iter().flatten().flatten() {
            descriptors += 1;
            if descriptors > MAX_DESCRIPTORS {
                return None;
            }
            if fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()) {
                return Some(pid);
            }
        }
    }
    None
}

/// `sl local_address rem_address st … uid timeout inode`: the inode, where the local address is this one.
fn inode_of(line: &str, peer: SocketAddr) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != peer.port() || parse(address)? != peer.ip().to_canonical() {
        return None;
    }
    fields.nth(7)?.parse().ok().filter(|inode| *inode != 0)
}

/// Words of 32 bits, each as it lies in memory.
fn parse(address: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    let ip = match address.len() {
        8 => IpAddr::from(word(0)?.to_ne_bytes()),
        32 => {
            let mut bytes = [0; 16];
            for (i, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(8 * i)?.to_ne_bytes());
            }
            IpAddr::from(bytes)
        }
        _ => return None,
    };
    Some(ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_at_the_other_end_is_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (_server, peer) = listener.accept().unwrap();
            assert_eq!(pid_of(&Roots::default(), peer), Some(std::process::id()));
            drop(client);
        }
        assert_eq!(pid_of(&Roots::default(), "192.0.2.1:9".parse().unwrap()), None);
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_read(line in ".{0,120}") {
            let _ = inode_of(&line, "127.0.0.1:9".parse().unwrap());
        }
    }
}
