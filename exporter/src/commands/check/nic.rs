//! Ethernet interfaces that are meant to be up.

use super::Check;
use super::node::Node;
use super::report::Findings;
use crate::collectors::nic::{ADMIN_UP, UP};

pub(super) const CHECK: Check =
    Check { name: "nic", about: "Ethernet links that are meant to be up are up", needs: &["nic"], run };

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let unplugged =
        |device: &str| node.rows(&ADMIN_UP).any(|row| row.label("device") == device && row.value == 0.0);
    let mut up = Vec::new();
    for row in node.rows(&UP) {
        let device = row.label("device");
        if row.value != 0.0 {
            up.push(device);
        } else if !unplugged(device) {
            found
                .unhealthy(format!("{device} is meant to be up and is down"))
                .device(device)
                .action("check its cable and switch port, or set it down if it is not used");
        }
    }
    found.or_ok(|| {
        if up.is_empty() { "no interface tells its state".into() } else { format!("{} up", up.join(" ")) }
    })
}
