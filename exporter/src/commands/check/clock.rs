//! The clock: steps of different nodes are compared by it, and every step reads it many times.

use super::item::Check;
use super::node::Node;
use super::report::Findings;
use crate::clock::unix_now;
use crate::collectors::host::clock::{MAX_ERROR, OFFSET, SOURCE, SYNCED, is_tended};

pub(super) const CHECK: Check = Check {
    name: "clock",
    about: "the clock is plausible, disciplined and cheap to read",
    needs: &["clock"],
    run,
};

/// The Unix time when this was written: a correct clock is never earlier.
const EARLIEST: f64 = 1_767_225_600.0;
const LATEST: f64 = 4_102_444_800.0;
/// Tickets and certificates of a cluster tolerate less than this, and logs cannot be put in order.
const FAR_SECONDS: f64 = 1.0;
/// Offsets up to this are corrected by a time daemon as usual.
const NEAR_SECONDS: f64 = 0.1;
/// Clock sources that can be read without a system call.
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
    if !(EARLIEST..=LATEST).contains(&now) {
        let which = if now < EARLIEST { "behind the date of this program" } else { "in another century" };
        found
            .unhealthy(format!("the clock is {which}"))
            .action("set it, and see why the time daemon did not");
    }
    // If the kernel stops trusting the processor's counter, each reading takes a hundred times as
    // long, which slows every step.
    for row in node.rows(&SOURCE).filter(|row| !FAST_CLOCKS.contains(&row.label("source"))) {
        let source = row.label("source");
        found
            .unhealthy(format!(
                "clock source {source} is slow: the kernel found the processor's counter unstable"
            ))
            .action("reboot the node; if it comes back, have its firmware and board looked at");
    }
    discipline(node, &mut found);
    let offset = node.rows(&OFFSET).next().map_or(0.0, |row| row.value.abs());
    let unsaid = node.rows(&SYNCED).any(|row| row.value == 0.0);
    let but = if unsaid { "; the kernel reports that it is not: chrony without rtcsync?" } else { "" };
    found.or_ok(|| format!("disciplined, {:.1} ms off{but}", offset * 1e3))
}

fn discipline(node: &Node<'_>, found: &mut Findings) {
    let value = |family| node.rows(family).next().map(|row| row.value);
    // One reading cannot show whether the bound is set repeatedly; a low bound shows that it was
    // set within the hour.
    let tended = value(&MAX_ERROR).is_some_and(is_tended);
    let offset = value(&OFFSET).unwrap_or(0.0).abs();
    if offset > FAR_SECONDS {
        found
            .unhealthy(format!("the clock is {offset:.1} s off"))
            .action("see why the time daemon does not correct it: chronyc tracking");
    } else if value(&SYNCED) == Some(0.0) && !tended {
        let bound = value(&MAX_ERROR).map(|e| format!("; it may be {e:.0} s off by now")).unwrap_or_default();
        found
            .warning(format!("nothing disciplines the clock{bound}"))
            .action("start chronyd, ntpd or systemd-timesyncd");
    } else if offset > NEAR_SECONDS {
        found.warning(format!("the clock is {:.0} ms off", offset * 1e3)).action("see chronyc tracking");
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::output;
    use super::*;
    use crate::samples::Samples;

    fn says(synced: bool, max_error: f64) -> String {
        let mut page = Samples::default();
        page.set(&SYNCED, &[], synced);
        page.set(&MAX_ERROR, &[], max_error);
        page.set(&OFFSET, &[], 0.000_02);
        output(&CHECK, page)
    }

    #[test]
    fn chrony_without_rtcsync_is_not_undisciplined() {
        assert_eq!(says(true, 0.01).trim_end(), "ok        clock disciplined, 0.0 ms off");
        let unsaid = "ok        clock disciplined, 0.0 ms off; the kernel reports that it is not: chrony without rtcsync?";
        assert_eq!(says(false, 0.02).trim_end(), unsaid);
        let free = says(false, 16.0);
        assert!(
            free.starts_with("warning   clock nothing disciplines the clock; it may be 16 s off by now"),
            "{free}"
        );
    }
}
