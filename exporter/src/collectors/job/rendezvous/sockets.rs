//! The connections of a run's ranks to the port where they meet, from the kernel's tables of TCP
//! sockets in the network namespace of a process. Nothing is sent, and no name is resolved.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::IpAddr;

use crate::identity::peer::ip_in_table;
use crate::roots::Roots;

/// The most bytes of one table: some hundred thousand sockets. More than a node that trains has.
const MAX_TABLE_BYTES: u64 = 32 << 20;
/// The most other hosts that are told apart.
const MAX_PEERS: usize = 65_536;
/// States of the kernel's table.
const ESTABLISHED: u8 = 0x01;
const SYN_SENT: u8 = 0x02;
const LISTEN: u8 = 0x0a;

/// Where ranks meet: the store of a process group, as the environment gives it. The host may be a
/// name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Master {
    pub(super) host: String,
    pub(super) port: u16,
}

/// The sockets of one user at the port of a master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sockets {
    /// A process of the user listens at the port.
    pub(super) listens: bool,
    /// Connections to the master, and attempts that it has not answered.
    pub(super) established: u64,
    pub(super) syn_sent: u64,
    /// Other hosts that are connected to this one, if it listens.
    pub(super) peers: BTreeSet<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    local: (IpAddr, u16),
    remote: (IpAddr, u16),
    state: u8,
    uid: u32,
}

impl Master {
    pub(super) fn label(&self) -> String {
        let (host, port) = (self.bare(), self.port);
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// The address; `None` for a name.
    fn ip(&self) -> Option<IpAddr> {
        self.bare().parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
    }

    /// The host without the brackets of an address.
    fn bare(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Whether the ranks meet within one host, so that no connection leaves it.
    pub(super) fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.ip().is_some_and(|ip| ip.is_loopback())
    }
}

impl Sockets {
    /// Reads the tables of the namespace that the process is in. `None` if they cannot be read as a
    /// whole: what is not found then may still be there.
    pub(super) fn read(roots: &Roots, pid: u32, uid: u32, master: &Master) -> Option<Self> {
        let (mut found, wanted) = (Self::default(), master.ip());
        let mut take = |line: &str| found.take(line, uid, master.port, wanted);
        read_table(roots, &format!("{pid}/net/tcp"), &mut take).ok()?;
        match read_table(roots, &format!("{pid}/net/tcp6"), &mut take) {
            Ok(()) => {}
            // The kernel was built or started without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
        // Another job of the user may listen at the same port of another address.
        let is_elsewhere = |ip| has_address(roots, pid, ip).is_ok_and(|is_here| !is_here);
        if found.listens && wanted.is_some_and(is_elsewhere) {
            (found.listens, found.peers) = (false, BTreeSet::new());
        }
        Some(found)
    }

    fn take(&mut self, line: &str, uid: u32, port: u16, wanted: Option<IpAddr>) {
        let Some(socket) = Socket::parse(line).filter(|socket| socket.uid == uid) else { return };
        let is_to_master = socket.remote.1 == port && wanted.is_none_or(|ip| ip == socket.remote.0);
        match socket.state {
            LISTEN => self.listens |= socket.local.1 == port,
            ESTABLISHED if socket.local.1 == port => {
                let peer = socket.remote.0;
                let is_other = peer != socket.local.0 && !peer.is_loopback();
                if is_other && self.peers.len() < MAX_PEERS {
                    self.peers.insert(peer);
                }
            }
            ESTABLISHED if is_to_master => self.established += 1,
            SYN_SENT if is_to_master => self.syn_sent += 1,
            _ => {}
        }
    }
}

impl Socket {
    /// Parses `sl local_address rem_address st … uid timeout inode`.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let end = |field: &str| {
            let (ip, port) = field.split_once(':')?;
            Some((ip_in_table(ip)?, u16::from_str_radix(port, 16).ok()?))
        };
        let (local, remote) = (end(fields.nth(1)?)?, end(fields.next()?)?);
        let state = u8::from_str_radix(fields.next()?, 16).ok()?;
        Some(Self { local, remote, state, uid: fields.nth(3)?.parse().ok()? })
    }
}

/// Whether the address is one of the network namespace that the process is in.
fn has_address(roots: &Roots, pid: u32, wanted: IpAddr) -> io::Result<bool> {
    let (mut leaf, mut found) = (None::<IpAddr>, false);
    match wanted {
        // A leaf of the trie of routes, and then its routes: `|-- 10.0.0.1`, `/32 host LOCAL`.
        IpAddr::V4(_) => read_table(roots, &format!("{pid}/net/fib_trie"), &mut |line: &str| {
            let line = line.trim();
            match line.strip_prefix("|-- ") {
                Some(ip) => leaf = ip.parse().ok(),
                None => found |= leaf == Some(wanted) && line.starts_with('/') && line.ends_with(" LOCAL"),
            }
        })?,
        IpAddr::V6(wanted) => read_table(roots, &format!("{pid}/net/if_inet6"), &mut |line: &str| {
            let ip = line.split_ascii_whitespace().next().map(|ip| u128::from_str_radix(ip, 16));
            found |= ip == Some(Ok(wanted.to_bits()));
        })?,
    }
    Ok(found)
}

fn read_table(roots: &Roots, path: &str, take: &mut impl FnMut(&str)) -> io::Result<()> {
    let mut lines = BufReader::new(File::open(roots.proc(path))?.take(MAX_TABLE_BYTES));
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        take(&line);
        line.clear();
    }
    if lines.get_ref().limit() == 0 {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(())
}

#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(bytes: &[u8]) {
    let mut found = Sockets::default();
    String::from_utf8_lossy(bytes).lines().for_each(|line| found.take(line, 0, 29500, None));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master(host: &str) -> Master {
        Master { host: host.into(), port: 29500 }
    }

    /// A line of the table of a machine whose words begin with the lowest byte. 733C is 29500.
    fn line(local: &str, remote: &str, state: &str, uid: u32) -> String {
        format!(
            "   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  {uid}        0 1 1 0 0\n"
        )
    }

    fn of(lines: &[String], wanted: Option<&str>) -> Sockets {
        let mut found = Sockets::default();
        let wanted = wanted.map(|ip| ip.parse().unwrap());
        lines.iter().for_each(|line| found.take(line, 1001, 29500, wanted));
        found
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_node_is_connected_or_waits_for_an_answer() {
        let to = |state, uid| line("0200000A:C001", "0100000A:733C", state, uid);
        let found = of(&[to("01", 1001), to("02", 1001), to("01", 1002)], Some("10.0.0.1"));
        assert_eq!((found.established, found.syn_sent, found.listens), (1, 1, false));
        assert_eq!(of(&[to("01", 1001)], Some("10.0.0.9")), Sockets::default(), "another host's port");
        assert_eq!(of(&[to("01", 1001)], None).established, 1, "the master is given by name");
        assert_eq!(of(&[to("06", 1001)], None), Sockets::default(), "it is closed");
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_master_sees_who_is_connected() {
        let mapped = "0000000000000000FFFF00000300000A";
        let own = "0000000000000000FFFF00000100000A";
        let found = of(
            &[
                line("00000000:733C", "00000000:0000", "0A", 1001),
                line("0100000A:733C", "0200000A:C001", "01", 1001),
                line("0100000A:733C", "0200000A:C002", "01", 1001),
                line(&format!("{own}:733C"), &format!("{mapped}:C001"), "01", 1001),
                line("0100000A:733C", "0100000A:C001", "01", 1001),
                line("0100007F:733C", "0100007F:C001", "01", 1001),
            ],
            None,
        );
        assert!(found.listens);
        assert_eq!(found.peers, ["10.0.0.2", "10.0.0.3"].map(|ip| ip.parse().unwrap()).into());
    }

    #[test]
    fn a_master_within_the_node() {
        assert!(
            ["localhost", "127.0.0.1", "::1", "[::1]"].into_iter().all(|host| master(host).is_loopback())
        );
        assert!(!["node-1", "10.0.0.1"].into_iter().any(|host| master(host).is_loopback()));
        assert_eq!(master("::1").label(), "[::1]:29500");
        assert_eq!(master("[fd00::1]").ip(), Some("fd00::1".parse().unwrap()));
    }

    /// The kernel's own table, whatever the order of its bytes.
    #[test]
    fn a_real_connection_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (uid, pid) = (rustix::process::getuid().as_raw(), std::process::id());
        let master = Master { host: "127.0.0.1".into(), port };
        let found = Sockets::read(&Roots::default(), pid, uid, &master).unwrap();
        assert!(found.listens && found.established == 1 && found.peers.is_empty(), "{found:?}");
        assert_eq!(Sockets::read(&Roots::default(), u32::MAX, uid, &master), None);
        drop(client);
    }

    #[test]
    fn who_listens_at_another_address_is_not_the_master() {
        let dir = tempfile::tempdir().unwrap();
        let net = dir.path().join("7/net");
        std::fs::create_dir_all(&net).unwrap();
        let listens = line("00000000:733C", "00000000:0000", "0A", 1001);
        let trie = "Local:\n  +-- 10.0.0.0/24 2 0 1\n     |-- 10.0.0.1\n        /32 link UNICAST\n";
        let trie = format!("{trie}     |-- 10.0.0.4\n        /32 host LOCAL\n");
        let loopback = "00000000000000000000000000000001 01 80 10 80       lo\n";
        let own = "fd000000000000000000000000000004 02 40 00 80     eth0\n";
        let six = [loopback, own].concat();
        for (file, text) in [("tcp", listens.as_str()), ("fib_trie", &trie), ("if_inet6", &six)] {
            std::fs::write(net.join(file), text).unwrap();
        }
        let roots = Roots { procfs: dir.path().into(), ..Roots::default() };
        let listens = |host: &str| Sockets::read(&roots, 7, 1001, &master(host)).unwrap().listens;
        assert!(["10.0.0.4", "fd00::4", "::ffff:10.0.0.4", "node-1"].into_iter().all(listens));
        assert!(!["10.0.0.1", "fd00::1", "::ffff:10.0.0.9"].into_iter().any(listens));
        std::fs::remove_file(net.join("fib_trie")).unwrap();
        assert!(listens("10.0.0.1"), "the addresses are unknown");
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_read(line in ".{0,160}") {
            let _ = Socket::parse(&line);
            fuzz(line.as_bytes());
        }
    }
}
