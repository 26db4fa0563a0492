//! Finds the addresses of RAS, and decides which node of a job polls it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::time::Duration;

use super::status::Status;
use crate::collector::Context;
use crate::processes;
use crate::roots::Roots;

/// The most addresses that are polled: jobs on one node.
const MAX_ADDRESSES: usize = 8;
/// The most processes of a user whose environment is read.
const MAX_PROCESSES: usize = 16;
/// The most addresses that the processes of a user may name.
const MAX_PER_USER: usize = 4;
const VARIABLE: &[u8] = b"NCCL_RAS_ADDR=";
const MAX_FAMILIES: usize = 4;
const CONNECT: Duration = Duration::from_millis(500);

/// The configured addresses, and those of training processes. A name that resolves to several
/// addresses gives all of them, because another user may listen at one. Users alternate, so that a
/// user who names many does not displace those of others.
pub(super) fn addresses(cx: &Context<'_>, configured: &[String]) -> Vec<String> {
    let mut users = BTreeMap::<u32, (usize, BTreeSet<String>)>::new();
    for process in cx.hub.processes(cx.roots) {
        let (looked, named) = users.entry(process.uid).or_default();
        *looked += 1;
        if *looked <= MAX_PROCESSES && named.len() < MAX_PER_USER {
            named.extend(of_process(cx.roots, process.pid));
        }
    }
    let mut all = configured.to_vec();
    for turn in 0..MAX_PER_USER {
        for (_, named) in users.values() {
            all.extend(named.iter().nth(turn).cloned());
        }
    }
    let mut seen = BTreeSet::new();
    let each = all.iter().flat_map(|address| each(address)).filter(|address| seen.insert(address.clone()));
    each.take(MAX_ADDRESSES.max(configured.len())).collect()
}

/// The addresses of a name, each in the form that it is polled in.
fn each(address: &str) -> Vec<String> {
    let found = resolve(address);
    if found.len() < 2 {
        return vec![address.to_owned()];
    }
    found.iter().map(ToString::to_string).collect()
}

pub(super) fn of_process(roots: &Roots, pid: u32) -> Option<String> {
    let environ = processes::environ(roots, pid).ok()?;
    let value = environ.split(|b| *b == 0).find_map(|v| v.strip_prefix(VARIABLE))?;
    let value = std::str::from_utf8(value).ok()?.trim();
    ours(value).then(|| value.to_owned())
}

/// Whether the address is on this node, or in the network namespace of this thread. Whatever a user
/// writes into an environment, this program connects only to this node, and resolves no names.
pub(super) fn ours(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let local = host == "localhost" || host.parse().is_ok_and(is_local);
    local && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Only an address of this node can be bound.
fn is_local(host: IpAddr) -> bool {
    UdpSocket::bind((host, 0)).is_ok()
}

/// Resolves an address. `localhost` gives both families, because NCCL uses one of them. A server on
/// the unspecified address answers at the loopback address.
pub(super) fn resolve(address: &str) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> =
        address.to_socket_addrs().into_iter().flatten().take(MAX_FAMILIES).collect();
    for address in found.iter_mut().filter(|a| a.ip().is_unspecified()) {
        let home = if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        address.set_ip(home);
    }
    found
}

pub(super) fn listens(address: &str) -> bool {
    resolve(address).iter().any(|a| TcpStream::connect_timeout(a, CONNECT).is_ok())
}

/// Whether the lowest rank that answers is on this node; `None` if unknown.
pub(super) fn first_is_here(status: &Status) -> Option<bool> {
    status.first_host.as_ref().and_then(|host| host.parse().ok()).map(is_local)
}

/// Whether this node polls for the job: it has the lowest rank that answers. If that rank is
/// unknown, every node polls, except those that are known to have only other ranks.
pub(super) fn leads(cx: &Context<'_>, first_is_here: Option<bool>) -> bool {
    first_is_here.unwrap_or_else(|| {
        let processes = cx.hub.processes(cx.roots);
        processes.is_empty() || processes.iter().any(|p| p.rank == "0")
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::origin::{Origin, Peer};
    use crate::testing;
    use stepwatch_wire::Event;

    #[test]
    fn only_this_node_is_ever_asked_for_a_process() {
        for (address, want) in [
            ("localhost:28028", true),
            ("127.0.0.1:1", true),
            ("0.0.0.0:28029", true),
            ("192.0.2.1:28028", false),
            ("metadata.internal:80", false),
            ("localhost:0", false),
            ("localhost", false),
            ("", false),
        ] {
            assert_eq!(ours(address), want, "{address}");
        }
        assert_eq!(resolve("0.0.0.0:9"), ["127.0.0.1:9".parse().unwrap()]);
    }

    #[test]
    fn one_user_names_few_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let bench = testing::Bench::new(Roots { procfs: dir.path().into(), ..Roots::default() });
        for pid in 1..=40 {
            fs::create_dir(dir.path().join(pid.to_string())).unwrap();
            let environ = format!("NCCL_RAS_ADDR=127.0.0.1:{}\0", 30_000 + pid);
            fs::write(dir.path().join(format!("{pid}/environ")), environ).unwrap();
            let origin = Origin::Peer(Peer { connection: u64::from(pid), pid: Some(pid), uid: 0 });
            bench.hub.publish(origin, Event { rank: Some(pid), ..Event::step("r", 1) });
        }
        let found = addresses(&bench.context(), &["127.0.0.1:28028".into()]);
        assert_eq!(found.len(), 1 + MAX_PER_USER, "{found:?}");
    }

    #[test]
    fn addresses_of_training_processes() {
        let dir = tempfile::tempdir().unwrap();
        let bench = testing::Bench::new(Roots { procfs: dir.path().into(), ..Roots::default() });
        for (pid, value) in [(10, "127.0.0.1:30001"), (11, "127.0.0.1:30001"), (12, "192.0.2.1:80")] {
            fs::create_dir(dir.path().join(pid.to_string())).unwrap();
            let environ = format!("PATH=/bin\0NCCL_RAS_ADDR={value}\0XNCCL_RAS_ADDR=no\0");
            fs::write(dir.path().join(format!("{pid}/environ")), environ).unwrap();
            let origin = Origin::Peer(Peer { connection: u64::from(pid), pid: Some(pid), uid: 0 });
            bench.hub.publish(origin, Event { rank: Some(pid), ..Event::step("r", 1) });
        }
        let found = addresses(&bench.context(), &["127.0.0.1:28028".into()]);
        assert_eq!(found, ["127.0.0.1:28028", "127.0.0.1:30001"]);
        for found in addresses(&bench.context(), &["localhost:28028".into()]).iter().take(1) {
            assert!(
                ["localhost:28028", "127.0.0.1:28028", "[::1]:28028"].contains(&found.as_str()),
                "{found}"
            );
        }
    }
}
