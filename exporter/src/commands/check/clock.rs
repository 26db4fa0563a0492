//! Clocks: what steps of different nodes are compared by, and what every step reads many times.

use super::Check;
use super::node::Node;
use super::report::Findings;
use crate::hub::unix_now;
use crate::roots;

pub(super) const CHECK: Check =
    Check { name: "clock", about: "the clock is plausible and cheap to read", needs: &[], run };

/// No clock that is right says less: it is when this was written.
const EARLIEST: f64 = 1_767_225_600.0;
const LATEST: f64 = 4_102_444_800.0;
/// Clock sources that a read of the time can use without entering the kernel.
const FAST_CLOCKS: &[&str] = &[
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "hyperv_clocksource",
    "arch_sys_counter",
    "xen",
    "timebase",
];

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let now = unix_now();
    if now < EARLIEST {
        found
            .unhealthy("the clock is behind the date of this program")
            .action("set it, and see why NTP did not");
    } else if now > LATEST {
        found.unhealthy("the clock is in another century").action("set it, and see why NTP did not");
    }
    source(node, &mut found);
    found.or_ok(|| "the clock is plausible and cheap to read".into())
}

/// A kernel that lost faith in the processor's counter reads the time a hundred times slower, and every step with it.
fn source(node: &Node<'_>, found: &mut Findings) {
    let path = node.roots.sys("devices/system/clocksource/clocksource0/current_clocksource");
    let source = roots::read(&path).filter(|source| !FAST_CLOCKS.contains(&source.as_str()));
    if let Some(source) = source {
        found
            .unhealthy(format!(
                "clock source {source} is slow: the kernel found the processor's counter unstable"
            ))
            .action("reboot the node; if it comes back, have its firmware and board looked at");
    }
}
