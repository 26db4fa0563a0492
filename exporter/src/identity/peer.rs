//! Finds the user and the process at the other end of a TCP connection from this host.
//!
//! The kernel is asked for this one socket (`sock_diag`). If it does not answer, its table of all
//! sockets is searched line by line. Any user can make that table long.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use stepwatch_kit::serve::{Client, Ends};
use tokio::sync::Semaphore;

use super::sock_diag;
use crate::principal::Principal;
use crate::roots::Roots;

/// The most processes inspected in one search.
const MAX_PROCESSES: usize = 32_768;
/// The most descriptors inspected in one search.
const MAX_DESCRIPTORS: usize = 262_144;
/// The most bytes read of a table of sockets.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// One search of the table at a time.
static SEARCHES: Semaphore = Semaphore::const_new(1);

/// The owner of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) uid: u32,
    pub(super) inode: u64,
}

/// The principal at the other end. A peer without a socket here is identified by its address,
/// unless the address is one of this host: then the peer has merely closed its end already.
fn principal(user: Option<u32>, ends: Option<Ends>) -> Principal {
    let known = Principal::from_uid(user);
    let Some(ends) = ends.filter(|_| known == Principal::Unknown) else { return known };
    let client = Client::from_addresses(ends.peer.ip(), ends.local.ip());
    client.elsewhere().map_or(Principal::Unknown, Principal::Address)
}

/// The user at the other end, or the address if it is another host.
pub(crate) async fn voice_of(roots: &Arc<Roots>, ends: Option<Ends>) -> Principal {
    let Some(ends) = ends else { return Principal::Unknown };
    // If the kernel answers, it did so when the connection was accepted. A later answer could be
    // about the next connection from the same port.
    if ends.user.is_some() || sock_diag::holder_of(ends).is_ok() || !is_here(ends.peer.ip()) {
        return principal(ends.user, Some(ends));
    }
    // The turn moves into the search, which goes on after the request is aborted.
    let turn = SEARCHES.acquire().await;
    let roots = Arc::clone(roots);
    let searched = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        search(&roots, ends.peer)
    });
    principal(searched.await.ok().flatten().map(|holder| holder.uid), Some(ends))
}

/// As [`voice_of`], for a connection to the port of this program. It looks into the network
/// namespace that the port is in, whatever `--path.procfs` is.
pub(crate) async fn voice_at_our_port(ends: Option<Ends>) -> Principal {
    voice_of(&Arc::new(Roots::default()), ends).await
}

/// The user at the other end of a connection to the port of this program, if the kernel answers
/// directly. It never searches the table.
pub(crate) fn user_of_connection(ends: Ends) -> Option<u32> {
    sock_diag::holder_of(ends).ok().flatten().map(|holder| holder.uid)
}

/// The user at the other end of a connection to this program, or its address, and the socket there
/// if the user still has it. It may search the table, which blocks.
pub(crate) fn sender(roots: &Roots, ends: Ends) -> (Principal, Option<Holder>) {
    if let Ok(holder) = sock_diag::holder_of(ends) {
        let holder = holder.filter(|holder| Some(holder.uid) == ends.user);
        return (principal(ends.user, Some(ends)), holder);
    }
    let holder = is_here(ends.peer.ip()).then(|| search(roots, ends.peer)).flatten();
    (principal(holder.map(|holder| holder.uid), Some(ends)), holder)
}

/// The holder of the socket at the other end. It may search the table, which blocks.
pub(crate) fn holder_of(roots: &Roots, ends: Ends) -> Option<Holder> {
    sock_diag::holder_of(ends)
        .unwrap_or_else(|_| is_here(ends.peer.ip()).then(|| search(roots, ends.peer)).flatten())
}

/// The holder of the socket whose own address is `peer`, if all such sockets belong to one user.
fn search(roots: &Roots, peer: SocketAddr) -> Option<Holder> {
    search_in(roots, ["net/tcp", "net/tcp6"], |line| socket_of(line, peer))
}

/// The user of the socket that sent a datagram, if the kernel answers directly.
pub(crate) fn uid_of_datagram(ends: Ends) -> Option<u32> {
    // A socket that listens on every address does not show the address that a datagram was sent to.
    // Senders of this host use their own address.
    let to = if ends.local.ip().is_unspecified() { ends.peer.ip() } else { ends.local.ip() };
    let ends = Ends { local: SocketAddr::new(to, ends.local.port()), ..ends };
    sock_diag::holder_of_datagram(ends).ok().flatten().map(|holder| holder.uid)
}

/// As [`uid_of_datagram`], but from the table of all sockets, which takes longer the more there
/// are. The socket may be bound to any address.
pub(crate) fn search_uid_of_datagram(roots: &Roots, peer: SocketAddr) -> Option<u32> {
    if !is_here(peer.ip()) {
        return None;
    }
    let any = [IpAddr::from([0; 4]), IpAddr::from([0; 16])].map(|ip| SocketAddr::new(ip, peer.port()));
    let socket = |line: &str| [peer, any[0], any[1]].into_iter().find_map(|at| socket_of(line, at));
    search_in(roots, ["net/udp", "net/udp6"], socket).map(|holder| holder.uid)
}

fn search_in(roots: &Roots, tables: [&str; 2], socket: impl Fn(&str) -> Option<Holder>) -> Option<Holder> {
    let mut found = None::<Holder>;
    for table in tables {
        let Ok(file) = File::open(roots.proc(table)) else { continue };
        let mut lines = BufReader::new(file.take(MAX_TABLE_BYTES));
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
            let holder = socket(&line);
            if let (Some(found), Some(holder)) = (found, holder)
                && found.uid != holder.uid
            {
                return None;
            }
            found = found.or(holder);
            line.clear();
        }
    }
    found
}

/// Whether the address belongs to this host: a socket can only be bound to such an address.
pub(crate) fn is_here(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// The process that has the socket; `None` if it may not be inspected. Only processes of the
/// socket's user are searched.
pub(crate) fn pid_of(roots: &Roots, holder: Holder) -> Option<u32> {
    let wanted = format!("socket:[{}]", holder.inode);
    let mut descriptors = 0;
    let pids = fs::read_dir(&roots.procfs).ok()?.flatten();
    let pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids.take(MAX_PROCESSES) {
        let process = roots.proc(pid.to_string());
        if !fs::metadata(&process).is_ok_and(|meta| meta.uid() == holder.uid) {
            continue;
        }
        for entry in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
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

/// Parses `sl local_address rem_address st … uid timeout inode`. Returns the uid and the inode if
/// the local address is `peer`. A closed socket has neither.
fn socket_of(line: &str, peer: SocketAddr) -> Option<Holder> {
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != peer.port() || ip_in_table(address)? != peer.ip().to_canonical()
    {
        return None;
    }
    let uid = fields.nth(5)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok().filter(|inode| *inode != 0)?;
    Some(Holder { uid, inode })
}

/// Parses an address of the kernel's tables of sockets: 32-bit words, each in the byte order of the
/// machine.
pub(crate) fn ip_in_table(address: &str) -> Option<IpAddr> {
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
            let (server, peer) = listener.accept().unwrap();
            let ends = Ends::new(peer, server.local_addr().unwrap());
            let own = rustix::process::getuid().as_raw();
            let holder = holder_of(&Roots::default(), ends).unwrap();
            assert_eq!(holder.uid, own);
            assert_eq!(search(&Roots::default(), peer), Some(holder), "the table says the same");
            assert_eq!(pid_of(&Roots::default(), holder), Some(std::process::id()));
            drop(client);
        }
        let line = "0: 0100007F:0009 0100007F:2625 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0";
        let holder = Some(Holder { uid: 1000, inode: 4711 });
        assert_eq!(socket_of(line, "127.0.0.1:9".parse().unwrap()), holder);
        assert_eq!(search(&Roots::default(), "192.0.2.1:9".parse().unwrap()), None);
    }

    #[test]
    fn who_has_no_socket_here_is_known_by_its_address() {
        let whose = |peer: &str, local: &str, user| {
            let ends = Ends::new(peer.parse().unwrap(), local.parse().unwrap());
            principal(user, Some(ends))
        };
        let pod = Principal::Address([192, 0, 2, 7].into());
        assert_eq!(whose("192.0.2.7:1", "192.0.2.1:2", None), pod);
        assert_eq!(whose("[::ffff:192.0.2.7]:1", "[::ffff:192.0.2.1]:2", None), pod);
        let [one, same, other] = ["2001:db8::7", "2001:db8::8", "2001:db8:0:1::7"]
            .map(|ip| whose(&format!("[{ip}]:1"), "[::1]:2", None));
        assert!(one == same && one != other);
        assert_eq!(whose("127.0.0.1:1", "127.0.0.1:2", None), Principal::Unknown);
        assert_eq!(whose("192.0.2.1:1", "192.0.2.1:2", None), Principal::Unknown, "its end is closed");
        assert_eq!(whose("127.0.0.1:1", "127.0.0.1:2", Some(7)), Principal::User(7));
        assert_eq!(principal(None, None), Principal::Unknown);
    }

    #[test]
    fn the_user_of_a_datagram_is_found() {
        let (ours, theirs) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("0.0.0.0:0").unwrap());
        theirs.send_to(b"x", ours.local_addr().unwrap()).unwrap();
        let (_, from) = ours.recv_from(&mut [0]).unwrap();
        let own = rustix::process::getuid().as_raw();
        assert_eq!(search_uid_of_datagram(&Roots::default(), from), Some(own));
        let all = SocketAddr::new([0; 4].into(), ours.local_addr().unwrap().port());
        for local in [ours.local_addr().unwrap(), all] {
            assert_eq!(uid_of_datagram(Ends::new(from, local)), Some(own), "{local}");
            theirs.connect(ours.local_addr().unwrap()).unwrap();
        }
        let nobody = Ends::new("127.0.0.1:9".parse().unwrap(), all);
        assert_eq!(uid_of_datagram(nobody), None);
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_read(line in ".{0,120}") {
            let _ = socket_of(&line, "127.0.0.1:9".parse().unwrap());
        }
    }
}
