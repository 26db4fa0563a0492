//! Which process of this host is at the other end of a TCP connection, and which user.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use crate::roots::{self, Roots};
use crate::voice::Voice;

/// Processes looked at in one search.
const MAX_PROCESSES: usize = 32_768;
/// Descriptors looked at in one search.
const MAX_DESCRIPTORS: usize = 262_144;

/// Who is at the other end. Whoever has closed it again is not known.
pub(crate) async fn voice_of(roots: &Arc<Roots>, peer: Option<SocketAddr>) -> Voice {
    let Some(peer) = peer.filter(|peer| is_here(peer.ip())) else { return Voice::Unknown };
    let roots = Arc::clone(roots);
    // A node may have many connections, and each has a line.
    let asked = tokio::task::spawn_blocking(move || uid_of(&roots, peer)).await;
    Voice::of(asked.ok().flatten())
}

/// The same of a connection to the port of this program: of the network that it listens in, whatever
/// `--path.procfs` says.
pub(crate) async fn voice_at_our_port(peer: Option<SocketAddr>) -> Voice {
    voice_of(&Arc::new(Roots::default()), peer).await
}

/// The user of the socket whose own address is `peer`, where all such sockets are of one.
pub(crate) fn uid_of(roots: &Roots, peer: SocketAddr) -> Option<u32> {
    if !is_here(peer.ip()) {
        return None;
    }
    uid_in(roots, ["net/tcp", "net/tcp6"], |line| socket_of(line, peer))
}

/// The same of datagrams, whose socket may be bound to any address.
pub(crate) fn uid_of_datagram(roots: &Roots, peer: SocketAddr) -> Option<u32> {
    if !is_here(peer.ip()) {
        return None;
    }
    let any = [IpAddr::from([0; 4]), IpAddr::from([0; 16])].map(|ip| SocketAddr::new(ip, peer.port()));
    let socket = |line: &str| [peer, any[0], any[1]].into_iter().find_map(|at| socket_of(line, at));
    uid_in(roots, ["net/udp", "net/udp6"], socket)
}

fn uid_in(roots: &Roots, tables: [&str; 2], socket: impl Fn(&str) -> Option<(u32, u64)>) -> Option<u32> {
    let tables = tables.into_iter().filter_map(|table| roots::read(&roots.proc(table)));
    let mut found = None;
    for table in tables {
        for (uid, _) in table.lines().skip(1).filter_map(&socket) {
            if found.is_some_and(|found| found != uid) {
                return None;
            }
            found = Some(uid);
        }
    }
    found
}

/// Whether it is an address of this host: nothing can be bound to others.
fn is_here(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// The process that has the socket whose own address is `peer`; `None` where that is of another
/// host, or not ours to see.
pub(crate) fn pid_of(roots: &Roots, peer: SocketAddr) -> Option<u32> {
    let inode = ["net/tcp", "net/tcp6"].iter().find_map(|table| {
        let text = roots::read(&roots.proc(table))?;
        text.lines().skip(1).find_map(|line| socket_of(line, peer)).map(|(_, inode)| inode)
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

/// `sl local_address rem_address st … uid timeout inode`: the uid and the inode, where the local
/// address is this one. A socket that nobody has any more has neither.
fn socket_of(line: &str, peer: SocketAddr) -> Option<(u32, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != peer.port() || parse(address)? != peer.ip().to_canonical() {
        return None;
    }
    let uid = fields.nth(5)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok().filter(|inode| *inode != 0)?;
    Some((uid, inode))
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
            let own = rustix::process::getuid().as_raw();
            assert_eq!(uid_of(&Roots::default(), peer), Some(own));
            drop(client);
        }
        let line = "0: 0100007F:0009 0100007F:2625 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0";
        assert_eq!(socket_of(line, "127.0.0.1:9".parse().unwrap()), Some((1000, 4711)));
        assert_eq!(uid_of(&Roots::default(), "192.0.2.1:9".parse().unwrap()), None);
        assert_eq!(pid_of(&Roots::default(), "192.0.2.1:9".parse().unwrap()), None);
    }

    #[test]
    fn the_user_of_a_datagram_is_found() {
        let (ours, theirs) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("0.0.0.0:0").unwrap());
        theirs.send_to(b"x", ours.local_addr().unwrap()).unwrap();
        let (_, from) = ours.recv_from(&mut [0]).unwrap();
        let own = rustix::process::getuid().as_raw();
        assert_eq!(uid_of_datagram(&Roots::default(), from), Some(own));
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_read(line in ".{0,120}") {
            let _ = socket_of(&line, "127.0.0.1:9".parse().unwrap());
        }
    }
}
