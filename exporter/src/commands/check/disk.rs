//! Free space on disks: for the next checkpoints, and for the state of this exporter.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfs;

use super::item::Check;
use super::node::Node;
use super::report::{Findings, Verdict};
use crate::collectors::storage::disk::{CHECKPOINTS_LEFT, FREE, FREE_INODES, READ_ONLY, SIZE};
use crate::collectors::storage::mounts::table::Mount;

pub(super) const CHECK: Check = Check {
    name: "disk",
    about: "the next checkpoints fit, and local file systems have room",
    needs: &["disk"],
    run,
};

/// Less free space than this for state and logs causes trouble within the day.
const MIN_FREE_BYTES: u64 = 256 << 20;
/// A smaller share is only a warning, because on a large file system it lasts for months.
const MIN_FREE_SHARE: f64 = 0.02;
/// The previous checkpoint is still needed while one is being written.
const FEW_CHECKPOINTS: f64 = 3.0;

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    state_room(node, &mut found);
    checkpoints(node, &mut found);
    local(node, &mut found);
    found.or_ok(|| {
        let left = node.rows(&CHECKPOINTS_LEFT).map(|row| row.value).min_by(f64::total_cmp);
        left.map_or_else(|| "there is room".into(), |left| format!("room for {left:.0} checkpoints"))
    })
}

/// The verdict on a full file system. A network one is full for all nodes, so taking this one out
/// of service does not help.
fn full(shared: bool) -> Verdict {
    if shared { Verdict::Warning } else { Verdict::Unhealthy }
}

fn checkpoints(node: &Node<'_>, found: &mut Findings) {
    for row in node.rows(&CHECKPOINTS_LEFT) {
        let (run, mount, left) = (row.label("run"), row.label("mount"), row.value);
        if left < 1.0 {
            let text = format!("the next checkpoint of {run} does not fit on {mount}");
            found.add(full(node.is_shared(mount)), text).device(mount).action("delete old checkpoints");
        } else if left < FEW_CHECKPOINTS {
            found
                .warning(format!("{mount} has room for {left:.0} more checkpoints of {run}"))
                .device(mount)
                .action("delete old checkpoints");
        }
    }
    for directory in node.unsized_checkpoints() {
        found
            .unknown(format!("{directory} did not answer in time, so the size of a checkpoint is not known"))
            .device(directory)
            .action("give it longer with --timeout");
    }
}

/// Reports completely full file systems of any use: a job that needs /tmp or /dev/shm fails there.
/// A read-only one is an image and always full; one that should be writable is reported by its
/// collector.
fn local(node: &Node<'_>, found: &mut Findings) {
    for row in node.rows(&FREE) {
        let mount = row.label("mount");
        let of =
            |family| node.rows(family).find(|other| other.label("mount") == mount).map(|other| other.value);
        if of(&READ_ONLY) == Some(1.0) {
            continue;
        }
        let verdict = full(node.is_shared(mount));
        let share = of(&SIZE).map_or(1.0, |size| row.value / size.max(1.0));
        if row.value == 0.0 {
            found.add(verdict, format!("{mount} is full")).device(mount).action("make room");
        } else if of(&FREE_INODES) == Some(0.0) {
            let text = format!("{mount} has room, and none for another file: it is out of inodes");
            found.add(verdict, text).device(mount).action("delete small files");
        } else if share < MIN_FREE_SHARE {
            found
                .warning(format!("{mount} is {:.1} % full", (1.0 - share) * 100.0))
                .device(mount)
                .action("make room");
        }
    }
}

fn state_room(node: &Node<'_>, found: &mut Findings) {
    let state = node.config.state_dir.clone();
    let shown = state.display().to_string();
    let room = node.in_time(move || -> io::Result<(PathBuf, StatVfs)> {
        // Before the first start the directory may not exist, but its file system does.
        let dir = state.ancestors().find(|d| d.exists()).unwrap_or(Path::new("/"));
        let real = std::fs::canonicalize(dir)?;
        let room = rustix::fs::statvfs(&real)?;
        Ok((real, room))
    });
    match room {
        None => {
            found.unknown(format!("the file system of {shown} did not answer in time"));
        }
        Some(Err(error)) => {
            found.unknown(format!("cannot read the free space of {shown}: {error}"));
        }
        Some(Ok((real, stat))) => {
            let mount = node.mount_of(&real);
            // Nothing can be stored there, however much space is free.
            if mount.is_some_and(Mount::read_only) {
                return;
            }
            let shared = mount.is_some_and(|m| node.config.collectors.mounts.is_network(&m.fstype));
            judge_state(&shown, &stat, full(shared), found);
        }
    }
}

fn judge_state(shown: &str, stat: &StatVfs, verdict: Verdict, found: &mut Findings) {
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < MIN_FREE_BYTES {
        let text = format!("{} MiB free for {shown}", free >> 20);
        found.add(verdict, text).action("make room, or move state_dir");
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Tree, output};
    use super::*;
    use crate::collectors::storage::disk::INFO;
    use crate::samples::Samples;

    #[test]
    fn a_node_is_unfit_for_want_of_bytes_and_not_of_percents() {
        let stat = |free: u64, total: u64| StatVfs {
            f_bsize: 4096,
            f_frsize: 4096,
            f_blocks: total / 4096,
            f_bfree: free / 4096,
            f_bavail: free / 4096,
            f_files: 1,
            f_ffree: 1,
            f_favail: 1,
            f_fsid: 0,
            f_flag: rustix::fs::StatVfsMountFlags::empty(),
            f_namemax: 255,
        };
        for (free, total, fit) in
            [(150 << 30, 7600 << 30, true), (300 << 20, 1 << 40, true), (200 << 20, 1 << 30, false)]
        {
            let mut found = Findings::default();
            judge_state("/state", &stat(free, total), full(false), &mut found);
            assert_eq!(found.named("disk").count(), usize::from(!fit), "{free} of {total}");
        }
    }

    #[test]
    fn a_state_directory_on_an_image_or_on_a_server_takes_no_node_away() {
        let mut tree = Tree::new(&[]).only(&["disk"]);
        // This directory has no free space on any machine.
        tree.config.state_dir = "/proc/stepwatch".into();
        let says = |mount: &str| {
            tree.write("proc/self/mountinfo", &format!("22 1 0:21 / /proc {mount}"));
            let report = tree.check();
            report.findings.into_iter().find(|f| f.text.contains("/proc/stepwatch")).map(|f| f.verdict)
        };
        assert_eq!(says("rw - ext4 /dev/sda1 rw"), Some(Verdict::Unhealthy));
        assert_eq!(says("ro - ext4 /dev/sda1 rw"), Some(Verdict::Unhealthy), "for this process alone");
        assert_eq!(says("rw - squashfs /dev/loop0 ro"), None);
        assert_eq!(says("rw - nfs4 srv:/root rw"), Some(Verdict::Warning));
    }

    #[test]
    fn what_is_full_for_all_nodes_and_what_is_always_full() {
        let says = |fstype: &str, read_only: bool, inodes: bool| {
            let mut samples = Samples::default();
            samples.set(&INFO, &["/ckpt", fstype, "source"], 1u64);
            samples.set(&READ_ONLY, &["/ckpt"], read_only);
            samples.set(&CHECKPOINTS_LEFT, &["llama", "/ckpt"], u64::from(read_only));
            samples.set(&SIZE, &["/ckpt"], 1000u64);
            samples.set(&FREE, &["/ckpt"], if inodes { 900u64 } else { 0 });
            samples.set(&FREE_INODES, &["/ckpt"], 0u64);
            output(&CHECK, samples)
        };
        insta::assert_snapshot!(says("nfs4", false, false), @r"
        warning   disk the next checkpoint of llama does not fit on /ckpt; delete old checkpoints
        warning   disk /ckpt is full; make room
        ");
        insta::assert_snapshot!(says("lustre", false, true), @r"
        warning   disk the next checkpoint of llama does not fit on /ckpt; delete old checkpoints
        warning   disk /ckpt has room, and none for another file: it is out of inodes; delete small files
        ");
        insta::assert_snapshot!(says("xfs", false, false), @r"
        unhealthy disk the next checkpoint of llama does not fit on /ckpt; delete old checkpoints
        unhealthy disk /ckpt is full; make room
        ");
        insta::assert_snapshot!(says("squashfs", true, false), @"warning   disk /ckpt has room for 1 more checkpoints of llama; delete old checkpoints");
    }
}
