//! Ethernet interfaces that should be up: those that were up before. Network managers enable every
//! port to find out whether it is cabled.

use super::item::Check;
use super::node::Node;
use super::report::Findings;
use crate::collectors::network::nic::{ADMIN_UP, CONDITION, UP};

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
            // A link that was never up is only a warning.
            let finding = if node.rows(&CONDITION).any(|row| row.label("device") == device) {
                found.unhealthy(format!("{device} was up and is down"))
            } else {
                found.warning(format!("{device} is set up and has no carrier, as far as is known since ever"))
            };
            finding
                .device(device)
                .action("check its cable and switch port, or set it down if it is not used");
        }
    }
    found.or_ok(|| {
        if up.is_empty() { "no interface reports its state".into() } else { format!("{} up", up.join(" ")) }
    })
}
