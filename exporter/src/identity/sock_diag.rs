//! The owner of the socket at the other end of a TCP connection on this host, or of the one that a
//! datagram came from. It takes one query of the kernel (sock_diag(7)), whose cost does not grow
//! with the number of sockets.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use stepwatch_kit::serve::Ends;

use super::peer::Holder;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Offset of the ports in the answer, after the header, family, state and timer.
const PORTS_AT: usize = HEADER_BYTES + 4;
const UID_AT: usize = HEADER_BYTES + 64;
const INODE_AT: usize = HEADER_BYTES + 68;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tcp = 6,
    Udp = 17,
}

/// Whether the kernel ever found a socket. Without its module for the protocol it reports every
/// socket as missing.
static ANSWERS_TCP: AtomicBool = AtomicBool::new(false);
static ANSWERS_UDP: AtomicBool = AtomicBool::new(false);

/// `None` if the peer's end is not on this host, or is closed; an error if the kernel does not
/// answer.
pub(super) fn holder_of(ends: Ends) -> io::Result<Option<Holder>> {
    ask(Protocol::Tcp, ends)
}

/// The holder of the socket that would get an answer from `ends.local` to `ends.peer`. Several
/// sockets may be bound to one address if all of them allow it; this is the one that the kernel
/// would choose.
pub(super) fn holder_of_datagram(ends: Ends) -> io::Result<Option<Holder>> {
    ask(Protocol::Udp, ends)
}

fn ask(protocol: Protocol, ends: Ends) -> io::Result<Option<Holder>> {
    let answers = match protocol {
        Protocol::Tcp => &ANSWERS_TCP,
        Protocol::Udp => &ANSWERS_UDP,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(SOCK_DIAG))?;
    let mut socket = File::from(socket);
    socket.write_all(&request(protocol, ends))?;
    let mut answer = [0; 512];
    let n = socket.read(&mut answer)?;
    let found = read(protocol, answer.get(..n).unwrap_or_default(), ends)?;
    match found {
        Some(_) => answers.store(true, Ordering::Relaxed),
        None if !answers.load(Ordering::Relaxed) => return Err(io::ErrorKind::NotFound.into()),
        None => {}
    }
    Ok(found)
}

/// `struct inet_diag_req_v2` for the socket with the address `ends.peer`, connected with
/// `ends.local`. For datagrams the kernel expects the two in the opposite order.
fn request(protocol: Protocol, ends: Ends) -> [u8; REQUEST_BYTES] {
    let (own, other) = match protocol {
        Protocol::Tcp => (ends.peer, ends.local),
        Protocol::Udp => (ends.local, ends.peer),
    };
    let mut out = [0; REQUEST_BYTES];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        if let Some(place) = out.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        at += bytes.len();
    };
    put(&(REQUEST_BYTES as u32).to_ne_bytes());
    put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&NLM_F_REQUEST.to_ne_bytes());
    put(&[0; 8]);
    let (own, other) = ((own.ip().to_canonical(), own.port()), (other.ip().to_canonical(), other.port()));
    let family = if own.0.is_ipv4() { AF_INET } else { AF_INET6 };
    put(&[family, protocol as u8, 0, 0]);
    // All states.
    put(&u32::MAX.to_ne_bytes());
    put(&own.1.to_be_bytes());
    put(&other.1.to_be_bytes());
    put(&sixteen(own.0));
    put(&sixteen(other.0));
    // Any interface and any cookie.
    put(&[0; 4]);
    put(&[u8::MAX; 8]);
    out
}

fn sixteen(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => {
            let mut out = [0; 16];
            out[..4].copy_from_slice(&v4.octets());
            out
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn read(protocol: Protocol, answer: &[u8], ends: Ends) -> io::Result<Option<Holder>> {
    let four = |at: usize| answer.get(at..at + 4).and_then(|b| b.try_into().ok());
    let number = |at: usize| four(at).map(u32::from_ne_bytes);
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = number(4).ok_or_else(malformed)?.to_ne_bytes();
    match u16::from_ne_bytes([kind[0], kind[1]]) {
        SOCK_DIAG_BY_FAMILY => {}
        NLMSG_ERROR => {
            let code = number(HEADER_BYTES).ok_or_else(malformed)?.cast_signed();
            return match rustix::io::Errno::from_raw_os_error(-code) {
                rustix::io::Errno::NOENT => Ok(None),
                other => Err(other.into()),
            };
        }
        _ => return Err(malformed()),
    }
    let (uid, inode) = (number(UID_AT).ok_or_else(malformed)?, number(INODE_AT).ok_or_else(malformed)?);
    let [a, b, c, d] = four(PORTS_AT).ok_or_else(malformed)?;
    let ports = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
    // Without such a connection, the answer is about the listener on the port. A socket for
    // datagrams need not be connected. A closed socket has neither user nor inode.
    let connected = ports[1] == ends.local.port() || (protocol == Protocol::Udp && ports[1] == 0);
    let is_it = ports[0] == ends.peer.port() && connected && inode != 0;
    Ok(is_it.then_some(Holder { uid, inode: inode.into() }))
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_that_is_not_there_is_nobodys_and_a_listener_is_not_taken_for_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let ends = Ends::new(peer, server.local_addr().unwrap());
        let own = rustix::process::getuid().as_raw();
        assert_eq!(holder_of(ends).unwrap().unwrap().uid, own);
        let mapped = |a: SocketAddr| match a.ip() {
            IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), a.port()),
            IpAddr::V6(_) => a,
        };
        let mapped = Ends::new(mapped(ends.peer), mapped(ends.local));
        assert_eq!(holder_of(mapped).unwrap(), holder_of(ends).unwrap(), "of a listener for both families");
        let listening = Ends::new(ends.local, "127.0.0.1:1".parse().unwrap());
        assert_eq!(holder_of(listening).unwrap(), None);
        drop(client);
        drop(server);
        assert_eq!(holder_of(ends).unwrap(), None, "closed");
    }

    proptest::proptest! {
        #[test]
        fn any_answer_is_read(answer in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let ends = Ends::new("127.0.0.1:9".parse().unwrap(), "127.0.0.1:10".parse().unwrap());
            let _ = read(Protocol::Tcp, &answer, ends);
            let _ = read(Protocol::Udp, &answer, ends);
        }
    }
}
