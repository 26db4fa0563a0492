//! Polls training processes with a network of their own, as in most containers: RAS listens at the
//! loopback address of their network namespace, which only a thread in that namespace can reach.
//!
//! A dedicated thread enters the namespace, polls and ends (setns(2); it needs CAP_SYS_ADMIN, and
//! CAP_SYS_PTRACE to find the namespace of another user's process). If that is refused, the runs
//! are exported and logged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::client::{self, Answer, PollError};
use super::places;
use crate::collector::Context;
use crate::principal::Principal;
use crate::roots::Roots;

/// The most namespaces of one node that are polled, and the most addresses in one of them.
const MAX_NAMESPACES: usize = 16;
const MAX_ADDRESSES: usize = 4;

/// A foreign network namespace, with the runs in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Namespace {
    /// The inode that identifies it, as in `net:[4026532881]`.
    inode: u64,
    /// A process in the namespace.
    pid: u32,
    /// The user of that process. Any process in the namespace may answer, and all of them are in
    /// one container.
    uid: Option<u32>,
    pub(super) addresses: BTreeSet<String>,
    /// The runs in it. An answer is only about these.
    pub(super) runs: BTreeSet<String>,
}

impl Namespace {
    /// The namespaces of all training processes, with the addresses to poll: the `configured` ones
    /// and those in their environment.
    pub(super) fn all(cx: &Context<'_>, configured: &[String]) -> Vec<Self> {
        let Some(own) = inode(cx.roots, "self") else { return Vec::new() };
        let mut all = BTreeMap::<u64, Self>::new();
        for process in cx.hub.processes(cx.roots) {
            let Some(inode) = inode(cx.roots, &process.pid.to_string()).filter(|inode| *inode != own) else {
                continue;
            };
            if all.len() >= MAX_NAMESPACES && !all.contains_key(&inode) {
                continue;
            }
            let namespace = all.entry(inode).or_insert_with(|| {
                let (uid, addresses) = (Some(process.uid), configured.iter().cloned().collect());
                Self { inode, pid: process.pid, uid, addresses, runs: BTreeSet::new() }
            });
            namespace.runs.insert(process.run.clone());
            if namespace.addresses.len() < MAX_ADDRESSES.max(configured.len()) {
                namespace.addresses.extend(places::of_process(cx.roots, process.pid));
            }
        }
        all.into_values().collect()
    }

    /// The label of the address, which is unique although several namespaces have the same address.
    pub(super) fn label(&self, address: &str) -> String {
        format!("{address}@net:{}", self.inode)
    }

    /// Polls once from within the namespace.
    pub(super) fn poll(&self, roots: &Roots, address: &str, timeout: Duration) -> Result<Answer, PollError> {
        let link = File::open(roots.proc(format!("{}/ns/net", self.pid))).map_err(denied)?;
        if link.metadata()?.ino() != self.inode {
            // The pid belongs to another process now.
            return Err(PollError::Refused);
        }
        let ask = || {
            move_into_link_name_space(link.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| denied(error.into()))?;
            if !places::ours(address) {
                return Err(PollError::Refused);
            }
            client::poll(roots, &places::resolve(address), timeout, Some(Principal::from_uid(self.uid)))
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("ras-namespace".to_owned());
            let asked = thread.spawn_scoped(scope, ask)?.join();
            asked.unwrap_or_else(|_| Err(PollError::Io(io::Error::other("the thread that asks panicked"))))
        })
    }
}

/// The inode of a process's network namespace, if this program may read it.
fn inode(roots: &Roots, process: &str) -> Option<u64> {
    fs::metadata(roots.proc(process).join("ns/net")).ok().map(|link| link.ino())
}

fn denied(error: io::Error) -> PollError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => PollError::Denied,
        io::ErrorKind::NotFound => PollError::Refused,
        _ => PollError::Io(error),
    }
}
