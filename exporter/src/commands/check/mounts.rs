//! Network file systems that a job would wait for.

use super::Check;
use super::node::Node;
use super::report::Findings;
use crate::collectors::mounts::{INFO, RESPONSIVE};

pub(super) const CHECK: Check =
    Check { name: "mounts", about: "network file systems answer", needs: &["mounts"], run };

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let mut well = Vec::new();
    for row in node.rows(&INFO) {
        let mount = row.label("mount");
        let what = format!("{mount} ({} from {})", row.label("fstype"), row.label("source"));
        match node.rows(&RESPONSIVE).find(|answer| answer.label("mount") == mount).map(|answer| answer.value)
        {
            Some(0.0) => {
                found
                    .unhealthy(format!("{what} does not answer"))
                    .device(mount)
                    .action("see whether its server is up; what touches it waits in the kernel");
            }
            Some(_) => well.push(mount),
            None => {
                found.unknown(format!("{what} has not answered yet")).device(mount);
            }
        }
    }
    found.or_ok(|| if well.is_empty() { "none".into() } else { format!("{} answer", well.join(" ")) })
}
