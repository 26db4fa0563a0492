//! Room on disks.

use std::path::Path;

use super::Check;
use super::node::Node;
use super::report::Findings;

pub(super) const CHECK: Check =
    Check { name: "disk", about: "room for checkpoints and for the state of this exporter", needs: &[], run };

/// Less room than this for state and logs is trouble within the day.
const MIN_FREE_BYTES: u64 = 256 << 20;
const MIN_FREE_SHARE: f64 = 0.02;

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let free = state_room(node, &mut found);
    found.or_ok(|| format!("{} MiB free for {}", free >> 20, node.config.state_dir.display()))
}

fn state_room(node: &Node<'_>, found: &mut Findings) -> u64 {
    let state = node.config.state_dir.clone();
    let shown = state.display().to_string();
    let room = node.in_time(move || {
        // Before the first start the directory is not there yet; the file system it will be on is.
        let dir = state.ancestors().find(|d| d.exists()).unwrap_or(Path::new("/"));
        rustix::fs::statvfs(dir)
    });
    match room {
        None => drop(found.unknown(format!("the file system of {shown} did not answer in time"))),
        Some(Err(error)) => drop(found.unknown(format!("cannot tell the room of {shown}: {error}"))),
        Some(Ok(stat)) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let total = stat.f_blocks.saturating_mul(stat.f_frsize);
            if free < MIN_FREE_BYTES || free as f64 / (total.max(1) as f64) < MIN_FREE_SHARE {
                found
                    .unhealthy(format!("{} MiB free for {shown}", free >> 20))
                    .action("make room, or move state_dir");
            }
            return free;
        }
    }
    0
}
