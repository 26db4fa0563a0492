//! Network file systems that a job would wait for.

use super::item::Check;
use super::node::Node;
use super::report::Findings;
use crate::collectors::storage::mounts::{INFO, RESPONSIVE, UNWATCHED};

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
    // The queried mounts answer, or are listed above. A node with more mounts than are queried
    // stays so, and must not fail because of that.
    if let Some(row) = node.set(&UNWATCHED).next() {
        let text = format!("{} more network file systems are not asked: they are too many", row.value);
        found.warning(text).action("name those that no job needs in collectors.mounts.exclude");
    }
    found.or_ok(|| if well.is_empty() { "none".into() } else { format!("{} answer", well.join(" ")) })
}
