//! Listening addresses and sockets.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::net::{TcpListener, TcpSocket, lookup_host};

/// The length of the accept queue; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: u32 = 4096;
/// The kernel's buffer of unread answers per connection, in bytes. The kernel doubles it. Its
/// default of up to 4 MiB would count against the memory of this service.
const SEND_BUFFER: u32 = 64 << 10;
/// The kernel's buffer of unread requests per connection, in bytes. The kernel doubles it. By
/// default it would hold up to 6 MiB of a client that sends without reading its answers.
const RECEIVE_BUFFER: u32 = 64 << 10;

/// An address to listen on: `:9765` (all interfaces), `127.0.0.1:0`, `[::1]:9765` or `host:9765`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ListenAddr {
    /// Empty for all interfaces; an IPv6 address without its brackets.
    host: String,
    port: u16,
}

impl ListenAddr {
    /// Listens on all interfaces, IPv4 and IPv6.
    pub const fn all(port: u16) -> Self {
        Self { host: String::new(), port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            |why: &str| format!("{why} in {text:?}; expected :9765, 127.0.0.1:9765, [::1]:9765 or host:9765");
        let (host, port) = text.rsplit_once(':').ok_or_else(|| bad("no port"))?;
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits).ok_or_else(|| bad("a bad port"))?;
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(ipv6) => {
                ipv6.parse::<Ipv6Addr>().map_err(|_| bad("a bad IPv6 address"))?;
                ipv6
            }
            None if host.contains([':', '[', ']', '/', ' ']) => return Err(bad("a bad host")),
            None => host,
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Serialize for ListenAddr {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ListenAddr {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Binds the first address of `addr` that this machine has. The error names `addr`.
pub async fn bind(addr: &ListenAddr) -> io::Result<TcpListener> {
    bind_any(addr).await.map_err(|err| io::Error::new(err.kind(), format!("cannot listen on {addr}: {err}")))
}

async fn bind_any(addr: &ListenAddr) -> io::Result<TcpListener> {
    if addr.host.is_empty() {
        return match listen_on((Ipv6Addr::UNSPECIFIED, addr.port).into()) {
            // Machines without IPv6 return one of these two errors.
            Err(err) if is_no_ipv6(&err) => listen_on((Ipv4Addr::UNSPECIFIED, addr.port).into()),
            bound => bound,
        };
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in lookup_host((addr.host.as_str(), addr.port)).await? {
        match listen_on(candidate) {
            Ok(listener) => return Ok(listener),
            Err(err) => last = err,
        }
    }
    Err(last)
}

fn is_no_ipv6(err: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = err.raw_os_error();
    [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].iter().any(|errno| code == Some(errno.raw_os_error()))
}

fn listen_on(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = match addr {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(v6) => {
            let socket = TcpSocket::new_v6()?;
            // `:port` means both families whatever the value of net.ipv6.bindv6only.
            rustix::net::sockopt::set_ipv6_v6only(&socket, !v6.ip().is_unspecified())?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit the sizes.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_and_prints() {
        for text in [":9765", "127.0.0.1:0", "[::1]:9", "host:9", "0.0.0.0:65535", "[::]:1"] {
            assert_eq!(text.parse::<ListenAddr>().unwrap().to_string(), text);
        }
        for bad in
            ["", "9765", "host", ":", ":x", ":65536", ":+1", "::1:9", "[::1]", "[x]:1", "a b:1", "http://h:1"]
        {
            assert!(bad.parse::<ListenAddr>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn all_interfaces_include_ipv4() {
        let listener = bind(&ListenAddr::all(0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    }

    #[tokio::test]
    async fn the_kernel_holds_little_of_what_is_not_read() {
        let listener = bind(&ListenAddr::all(0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let _client = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let buffer = rustix::net::sockopt::socket_send_buffer_size(&accepted).unwrap();
        assert_eq!(buffer, 2 * SEND_BUFFER as usize);
        let buffer = rustix::net::sockopt::socket_recv_buffer_size(&accepted).unwrap();
        assert_eq!(buffer, 2 * RECEIVE_BUFFER as usize);
    }

    #[tokio::test]
    async fn a_taken_port_is_named() {
        let first = bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = first.local_addr().unwrap().to_string();
        let err = bind(&addr.parse().unwrap()).await.unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::AddrInUse);
        assert!(err.to_string().contains(&addr), "{err}");
    }

    proptest! {
        #[test]
        fn never_panics(text in "[a-z0-9:\\[\\]. ]{0,20}|\\PC{0,20}") {
            if let Ok(addr) = text.parse::<ListenAddr>() {
                prop_assert_eq!(addr.to_string().parse(), Ok(addr));
            }
        }
    }
}
