//! Counters of the NFS client for each mount and kind of request, from `/proc/self/mountstats`.
//!
//! Retransmissions and timeouts show that the network or the server loses requests long before a
//! mount is stuck, and the round-trip time shows its present latency.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use crate::family::Family;
use crate::roots::Roots;
use crate::samples::Samples;

const OPERATION: &[&str] = &["mount", "operation"];

macro_rules! nfs_counters {
    ($($id:ident $field:ident $scale:literal $name:literal $unit:literal $help:literal;)*) => {
        $(pub(super) static $id: Family = Family::counter($name, $unit, OPERATION, $help);)*
        /// Families, and how each is computed for an operation.
        static COUNTERS: &[(&Family, fn(&Counts) -> f64)] = &[$((&$id, |c| c.$field as f64 * $scale)),*];
    };
}

nfs_counters! {
    REQUESTS requests 1.0 "nfs_requests_total" "" "Requests to the server of an NFS mount";
    RETRANSMISSIONS retransmissions 1.0 "nfs_retransmissions_total" "" "Requests that were sent again";
    TIMEOUTS timeouts 1.0 "nfs_timeouts_total" "" "Requests that were not answered in time";
    ERRORS errors 1.0 "nfs_errors_total" "" "Requests that were answered with an error; absent on kernels before 5.2";
    SENT sent 1.0 "nfs_transmit_bytes_total" "bytes" "Bytes of requests, headers included";
    RECEIVED received 1.0 "nfs_receive_bytes_total" "bytes" "Bytes of replies, headers included";
    QUEUED queued 1e-3 "nfs_queue_seconds_total" "seconds" "Time that requests waited in this node before they were sent";
    RESPONDED responded 1e-3 "nfs_response_seconds_total" "seconds" "Time from sending requests until their replies";
    EXECUTED executed 1e-3 "nfs_execute_seconds_total" "seconds" "Time from making requests until they were done";
}

pub(super) static RESPONSE_TIME: Family = Family::gauge(
    "nfs_response_time_seconds",
    "seconds",
    &["mount", "operation"],
    "Average time from sending a request until its reply since the last look; absent when there was none",
);

/// The most bytes of the file: a busy container host has thousands of mounts.
const MAX_BYTES: u64 = 8 << 20;
const MAX_MOUNTS: usize = 64;
/// Operations with series of their own. The rest is one sum, so that a mount has a bounded number
/// of series.
const SHOWN: &[&str] = &["READ", "WRITE", "COMMIT", "OPEN", "LOOKUP", "GETATTR"];
const OTHER: &str = "other";

/// The client's counters of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    requests: u64,
    retransmissions: u64,
    timeouts: u64,
    sent: u64,
    received: u64,
    /// The time spent queued, in milliseconds.
    queued: u64,
    responded: u64,
    executed: u64,
    errors: u64,
    /// Whether the kernel counts errors, which old ones do not.
    counts_errors: bool,
}

type Mounts = BTreeMap<String, BTreeMap<&'static str, Counts>>;

#[derive(Debug, Default)]
pub(super) struct Nfs {
    last: Mounts,
}

impl Nfs {
    /// Writes the counters of the `wanted` mounts; the file also contains those bound elsewhere.
    pub(super) fn collect(&mut self, roots: &Roots, wanted: &BTreeSet<String>, out: &mut Samples) {
        let mut text = Vec::new();
        let read = std::fs::File::open(roots.proc("self/mountstats"))
            .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut text));
        if read.is_err() {
            self.last.clear();
            return;
        }
        let mounts = parse(&String::from_utf8_lossy(&text), |mount| wanted.contains(mount));
        for (mount, operations) in &mounts {
            for (operation, counts) in operations {
                let labels: &[&str] = &[mount, operation];
                for (family, value) in COUNTERS {
                    if counts.counts_errors || family.name != ERRORS.name {
                        out.set(family, labels, value(counts));
                    }
                }
                let before = self.last.get(mount).and_then(|m| m.get(operation));
                out.maybe(&RESPONSE_TIME, labels, before.and_then(|before| counts.response_time(before)));
            }
        }
        self.last = mounts;
    }
}

impl Counts {
    fn response_time(&self, before: &Self) -> Option<f64> {
        let requests = self.requests.checked_sub(before.requests).filter(|n| *n > 0)?;
        let milliseconds = self.responded.checked_sub(before.responded)?;
        Some(milliseconds as f64 * 1e-3 / requests as f64)
    }

    fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.requests, other.requests),
            (&mut self.retransmissions, other.retransmissions),
            (&mut self.timeouts, other.timeouts),
            (&mut self.sent, other.sent),
            (&mut self.received, other.received),
            (&mut self.queued, other.queued),
            (&mut self.responded, other.responded),
            (&mut self.executed, other.executed),
            (&mut self.errors, other.errors),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.counts_errors |= other.counts_errors;
    }
}

fn parse(text: &str, wanted: impl Fn(&str) -> bool) -> Mounts {
    let mut mounts = Mounts::new();
    let mut within: Option<&mut BTreeMap<&'static str, Counts>> = None;
    let mut operations = false;
    for line in text.lines() {
        if line.starts_with("device ") {
            operations = false;
            let room = mounts.len() < MAX_MOUNTS;
            let counts = |m: &String| wanted(m) && (room || mounts.contains_key(m));
            within = nfs_mount(line).filter(counts).map(|m| {
                let mount = mounts.entry(m).or_default();
                // If mounts are stacked, only the top one counts.
                mount.clear();
                mount
            });
        } else if line.trim() == "per-op statistics" {
            operations = true;
        } else if let (true, Some(mount)) = (operations, within.as_mut()) {
            if let Some((name, counts)) = operation(line) {
                mount.entry(name).or_default().add(&counts);
            }
        }
    }
    mounts
}

/// Parses `device server:/export mounted on /mnt with fstype nfs4 statvers=1.1`.
fn nfs_mount(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(" mounted on ")?;
    let (mount, kind) = rest.rsplit_once(" with fstype ")?;
    let kind = kind.split_whitespace().next()?;
    matches!(kind, "nfs" | "nfs4").then(|| super::table::plain(mount))
}

/// Parses `READ: requests transmissions timeouts sent received queue_ms response_ms execute_ms
/// [errors]`.
fn operation(line: &str) -> Option<(&'static str, Counts)> {
    let (name, numbers) = line.trim().split_once(':')?;
    let numbers: Vec<u64> = numbers.split_whitespace().map_while(|n| n.parse().ok()).collect();
    let [requests, transmissions, timeouts, sent, received, queued, responded, executed, ref more @ ..] =
        numbers[..]
    else {
        return None;
    };
    let counts = Counts {
        requests,
        retransmissions: transmissions.saturating_sub(requests),
        timeouts,
        sent,
        received,
        queued,
        responded,
        executed,
        errors: more.first().copied().unwrap_or_default(),
        counts_errors: !more.is_empty(),
    };
    Some((SHOWN.iter().find(|shown| **shown == name).copied().unwrap_or(OTHER), counts))
}

#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(text: &str) {
    assert!(parse(text, |_| true).values().all(|m| m.len() <= SHOWN.len() + 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(reads: u64, milliseconds: u64) -> String {
        format!(
            "device rootfs mounted on / with fstype rootfs\n\
             device 10.0.0.1:/vol mounted on /mnt/my\\040data with fstype nfs4 statvers=1.1\n\
             \topts:\trw,vers=4.2\n\tage:\t900\n\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n\
             \txprt:\ttcp 0 0 1 0 5 10 10 0 10 0 2 0 0\n\tper-op statistics\n\
             \t        NULL: 1 1 0 44 24 3 0 4 0\n\
             \t        READ: {reads} {} 2 5000 700000 30 {milliseconds} 900 1\n\
             \t       WRITE: 4 4 0 9000 800 10 20 40 0\n\
             \t      ACCESS: 2 2 0 10 20 1 2 3 0\n\
             \t       BROKEN: 2 2 x\n\n\
             device tmpfs mounted on /run with fstype tmpfs\n",
            reads + 5
        )
    }

    #[test]
    fn requests_of_a_mount_and_how_long_they_take() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { procfs: dir.path().into(), ..Roots::default() };
        std::fs::create_dir(dir.path().join("self")).unwrap();
        let wanted = BTreeSet::from(["/mnt/my data".to_owned()]);
        let mut nfs = Nfs::default();
        let mut page = |text: &str| {
            std::fs::write(dir.path().join("self/mountstats"), text).unwrap();
            let mut out = Samples::default();
            nfs.collect(&roots, &wanted, &mut out);
            out
        };
        let first = page(&stats(100, 600));
        let read: &[&str] = &["/mnt/my data", "READ"];
        assert_eq!(first.get(&REQUESTS, read), Some(100.0));
        assert_eq!((first.get(&RETRANSMISSIONS, read), first.get(&TIMEOUTS, read)), (Some(5.0), Some(2.0)));
        assert_eq!((first.get(&RESPONDED, read), first.get(&ERRORS, read)), (Some(0.6), Some(1.0)));
        assert_eq!(first.get(&REQUESTS, &["/mnt/my data", OTHER]), Some(3.0), "NULL and ACCESS");
        assert_eq!(first.get(&RESPONSE_TIME, read), None, "nothing to compare with");
        let second = page(&stats(110, 700));
        assert_eq!(second.get(&RESPONSE_TIME, read), Some(0.01));
        assert_eq!(second.get(&RESPONSE_TIME, &["/mnt/my data", "WRITE"]), None, "none was made");
        let anew = page(&stats(1, 1));
        assert_eq!(anew.get(&RESPONSE_TIME, read), None, "mounted anew");
        assert!(page("").is_empty());
    }

    #[test]
    fn home_directories_leave_room_for_the_mount_that_is_wanted() {
        let home = |n| format!("device srv:/home/{n} mounted on /home/{n} with fstype nfs4 statvers=1.1\n");
        let homes = (0..70).map(home).collect::<Vec<_>>().concat();
        let mounts = parse(&(homes + &stats(7, 7)), |mount| mount == "/mnt/my data");
        assert_eq!(mounts.into_keys().collect::<Vec<_>>(), ["/mnt/my data"]);
    }

    #[test]
    fn an_old_kernel_counts_no_errors() {
        let (name, counts) = operation("\tREAD: 1 1 0 2 3 4 5 6").unwrap();
        assert_eq!((name, counts.counts_errors, counts.executed), ("READ", false, 6));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String, at in 0usize..700, with: char) {
            let _ = parse(&text, |_| true);
            let good = stats(7, 7);
            let mutated: String = good.chars().enumerate().map(|(i, c)| if i == at { with } else { c }).collect();
            proptest::prop_assert!(parse(&mutated, |_| true).values().all(|m| m.len() <= SHOWN.len() + 1));
        }
    }
}
