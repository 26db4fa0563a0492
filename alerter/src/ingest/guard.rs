//! Addresses that discovery must not use.
//!
//! Target files, HTTP lists and the DNS name the exporters, and requests to them carry a password.
//! Exporters are in private networks and on this machine, so those addresses must be allowed. The
//! refused addresses never belong to an exporter: link-local addresses, the metadata services of
//! clouds, which give credentials to any caller, and addresses that belong to no host.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// The metadata services that are not on a link-local address: AWS over IPv6, Alibaba and Azure.
const METADATA: [IpAddr; 3] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
];

/// The reason why an address is refused; `None` if it is allowed.
pub(super) fn objection(ip: IpAddr) -> Option<&'static str> {
    // An IPv4 address may be written as an IPv6 one.
    let ip = ip.to_canonical();
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    match ip {
        ip if METADATA.contains(&ip) => Some("an address of a cloud's metadata service"),
        _ if link_local => Some("a link-local address"),
        ip if ip.is_unspecified() || ip.is_multicast() => Some("nobody's address"),
        _ => None,
    }
}

/// The reason why a target's host is refused, if it is a refused address.
pub(super) fn refused(host: &str) -> Option<&'static str> {
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    objection(host.parse().ok()?)
}

/// The system's resolver without the refused addresses. It is used for every connection, so that a
/// name that changes after the check has no effect.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guarded;

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(allowed(name.as_str(), found)?)
        })
    }
}

fn allowed(name: &str, mut found: Vec<SocketAddr>) -> Result<Addrs, String> {
    let first = found.iter().find_map(|addr| objection(addr.ip()));
    found.retain(|addr| objection(addr.ip()).is_none());
    match first {
        Some(why) if found.is_empty() => Err(format!("{name} is {why}: refused")),
        _ => Ok(Box::new(found.into_iter())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_never_an_exporter_is_refused() {
        for bad in [
            "169.254.169.254",
            "169.254.0.1",
            "[fe80::1]",
            "[fd00:ec2::254]",
            "[::ffff:169.254.169.254]",
            "[::ffff:a9fe:a9fe]",
            "100.100.100.200",
            "168.63.129.16",
            "0.0.0.0",
            "[::]",
            "224.0.0.1",
            "[ff02::1]",
            "255.255.255.255",
        ] {
            assert!(refused(bad).is_some(), "{bad}");
        }
        for good in [
            "10.0.0.7",
            "192.168.1.1",
            "127.0.0.1",
            "[::1]",
            "[fd12::1]",
            "203.0.113.7",
            "node001",
            "169.254.x",
        ] {
            assert_eq!(refused(good), None, "{good}");
        }
    }

    #[test]
    fn a_name_leads_only_where_it_may() {
        let of = |list: &[&str]| {
            let found = list.iter().map(|a| a.parse().unwrap()).collect();
            allowed("node001", found).map(|all| all.map(|a| a.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["10.0.0.7:0", "169.254.169.254:0"]).unwrap(), ["10.0.0.7:0"]);
        assert_eq!(of(&["169.254.169.254:0"]).unwrap_err(), "node001 is a link-local address: refused");
        assert!(of(&[]).unwrap().is_empty(), "the caller says that there is none");
    }

    #[tokio::test]
    async fn the_systems_resolver_is_asked() {
        let name: Name = "localhost".parse().unwrap();
        let found: Vec<_> = Guarded.resolve(name).await.unwrap().collect();
        assert!(found.iter().all(|addr| addr.ip().is_loopback()) && !found.is_empty(), "{found:?}");
    }
}
