//! Room on disks: for the next checkpoints, and for the state of this exporter.

use std::path::Path;

use rustix::fs::StatVfs;

use super::Check;
use super::node::Node;
use super::report::Findings;
use crate::collectors::disk::{CHECKPOINTS_LEFT, FREE, FREE_INODES, SIZE};

pub(super) const CHECK: Check = Check {
    name: "disk",
    about: "the next checkpoints fit, and local file systems have room",
    needs: &["disk"],
    run,
};

/// Less room than this for state and logs is trouble within the day.
const MIN_FREE_BYTES: u64 = 256 << 20;
/// Worth a word and no more: of a large file system it is room for months.
const MIN_FREE_SHARE: f64 = 0.02;
/// One is being written while the one before it is still needed.
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

fn checkpoints(node: &Node<'_>, found: &mut Findings) {
    for row in node.rows(&CHECKPOINTS_LEFT) {
        let (run, mount, left) = (row.label("run"), row.label("mount"), row.value);
        if left < 1.0 {
            found
                .unhealthy(format!("the next checkpoint of {run} does not fit on {mount}"))
                .device(mount)
                .action("delete old checkpoints");
        } else if left < FEW_CHECKPOINTS {
            found
                .warning(format!("{mount} has room for {left:.0} more checkpoints of {run}"))
                .device(mount)
                .action("delete old checkpoints");
        }
    }
    for directory in node.unsized_checkpoints() {
        found
            .unknown(format!("{directory} did not tell in time how large a checkpoint is"))
            .device(directory)
            .action("give it longer with --timeout");
    }
}

/// Of file systems that are full to the last, whatever is on them: a job that needs /tmp or /dev/shm dies there.
fn local(node: &Node<'_>, found: &mut Findings) {
    for row in node.rows(&FREE) {
        let mount = row.label("mount");
        let of =
            |family| node.rows(family).find(|other| other.label("mount") == mount).map(|other| other.value);
        let share = of(&SIZE).map_or(1.0, |size| row.value / size.max(1.0));
        if row.value == 0.0 {
            found.unhealthy(format!("{mount} is full")).device(mount).action("make room");
        } else if of(&FREE_INODES) == Some(0.0) {
            found
                .unhealthy(format!("{mount} has room, and none for another file: it is out of inodes"))
                .device(mount)
                .action("delete small files");
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
    let room = node.in_time(move || {
        // Before the first start the directory is not there yet; the file system it will be on is.
        let dir = state.ancestors().find(|d| d.exists()).unwrap_or(Path::new("/"));
        rustix::fs::statvfs(dir)
    });
    match room {
        None => {
            found.unknown(format!("the file system of {shown} did not answer in time"));
        }
        Some(Err(error)) => {
            found.unknown(format!("cannot tell the room of {shown}: {error}"));
        }
        Some(Ok(stat)) => {
            judge_state(&shown, &stat, found);
        }
    }
}

fn judge_state(shown: &str, stat: &StatVfs, found: &mut Findings) {
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < MIN_FREE_BYTES {
        found
            .unhealthy(format!("{} MiB free for {shown}", free >> 20))
            .action("make room, or move state_dir");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            judge_state("/state", &stat(free, total), &mut found);
            assert_eq!(found.named("disk").count(), usize::from(!fit), "{free} of {total}");
        }
    }
}
