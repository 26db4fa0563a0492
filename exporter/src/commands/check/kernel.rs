//! The kernel log since boot, as far as it is kept: hardware errors that no later reset of the GPU
//! has cured.

use stepwatch_wire::conditions::Remedy;

use super::item::Check;
use super::node::Node;
use super::report::{Findings, Verdict};
use crate::collectors::gpu::{LAST_RESET, RECOVERY};
use crate::collectors::kernel::catalogue::{self, Level};
use crate::collectors::kernel::recovery_action;
use crate::collectors::kernel::{
    EVENTS, Fitness, LAST_XID, LOGGED_RECOVERY, NONFATAL_XIDS, Pattern, SXIDS, XIDS,
};
use crate::family::Family;
use crate::samples::Row;

pub(super) const CHECK: Check = Check {
    name: "kernel",
    about: "the kernel log has no hardware error since the boot that no reset has cured",
    needs: &["kernel"],
    run,
};

/// The XID with which the driver requests a recovery action.
const XID_RECOVERY: &str = "154";

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    xids(node, &mut found);
    recovery(node, &mut found);
    for row in node.set(&SXIDS).filter(|row| row.label("severity") == "fatal") {
        let (switch, code) = (row.label("nvswitch"), row.label("sxid"));
        found
            .unhealthy(format!("NVSwitch {switch} had fatal SXID {code}"))
            .device(switch)
            .action("reboot the node: GPUs that are reset one by one leave their switches as they are");
    }
    for row in node.set(&SXIDS).filter(|row| row.label("severity") == "unknown") {
        let (switch, code) = (row.label("nvswitch"), row.label("sxid"));
        let known = catalogue::sxid(code.parse().unwrap_or_default());
        let verdict = match known.level {
            Level::Error if known.action == Remedy::RebootNode => Verdict::Unhealthy,
            Level::Error | Level::Warn => Verdict::Warning,
            Level::Info => continue,
        };
        found
            .add(verdict, format!("NVSwitch {switch} had SXID {code} ({})", known.name))
            .device(switch)
            .action(known.hint);
    }
    events(node, &mut found);
    found.or_ok(|| "nothing since the boot that a job should not meet".into())
}

/// Reports the patterns of the log by their verdicts.
fn events(node: &Node<'_>, found: &mut Findings) {
    let count = |pattern: Pattern| {
        node.set(&EVENTS).find(|row| row.label("event") == pattern.as_str()).map(|row| row.value)
    };
    for pattern in Pattern::ALL {
        let (verdict, what) = match pattern.fitness() {
            Fitness::Unfit(what) => (Verdict::Unhealthy, what),
            Fitness::WorthALook(what) => (Verdict::Warning, what),
            Fitness::Unjudged => continue,
        };
        if let Some(count) = count(*pattern) {
            let times = if count > 1.0 { format!(" ({count:.0} times)") } else { String::new() };
            found
                .add(verdict, format!("since the boot, {what}{times}"))
                .device(pattern.as_str())
                .action("see the kernel log: journalctl -k");
        }
    }
    // The firmware kept it over the boot, and it may be the reason for the boot.
    if count(Pattern::CperPreviousBoot).is_some() {
        found
            .warning("before the last boot, the firmware recorded a hardware error that was not corrected")
            .device(Pattern::CperPreviousBoot.as_str())
            .action("see whether it was mended: the kernel log (journalctl -k), after `BERT`");
    }
}

/// Reports the last action that the driver requested in the log. If NVML was queried too, its
/// answer is newer, and the check `recovery` evaluates it.
fn recovery(node: &Node<'_>, found: &mut Findings) {
    for row in node.set(&LOGGED_RECOVERY) {
        let (gpu, wanted) = (row.label("gpu"), row.label("action"));
        if node.rows(&RECOVERY).any(|of| of.label("gpu") == gpu) {
            continue;
        }
        let action = recovery_action::by_name(wanted);
        let asked = node.rows(&LAST_XID).find(|of| of.label("gpu") == gpu && of.label("xid") == XID_RECOVERY);
        let reset = node.rows(&LAST_RESET).find(|of| of.label("gpu") == gpu).map(|of| of.value);
        let is_over = asked.zip(reset).is_some_and(|(asked, reset)| asked.value < reset);
        if is_over && action.remedy.is_reset() {
            continue;
        }
        found
            .unhealthy(format!("the kernel log asks for something to be done to {}: {wanted}", node.gpu(gpu)))
            .device(gpu)
            .action(action.advice);
    }
}

fn xids(node: &Node<'_>, found: &mut Findings) {
    for row in node.set(&XIDS) {
        let Ok(code) = row.label("xid").parse::<u32>() else { continue };
        let xid = catalogue::find(code);
        let gpu = row.label("gpu");
        let same = |of: &Row<'_>| of.label("gpu") == gpu && of.label("xid") == row.label("xid");
        let of_same = |family: &'static Family| node.rows(family).find(same).map(|of| of.value);
        let reset = node.rows(&LAST_RESET).find(|of| of.label("gpu") == gpu).map(|of| of.value);
        let is_over = of_same(&LAST_XID).zip(reset).is_some_and(|(last, reset)| last < reset);
        let cured = is_over && xid.action.is_reset();
        let only_nonfatal = of_same(&NONFATAL_XIDS).is_some_and(|nonfatal| nonfatal >= row.value);
        let verdict = match xid.level {
            Level::Error if !cured && !only_nonfatal => Verdict::Unhealthy,
            Level::Error | Level::Warn => Verdict::Warning,
            Level::Info => continue,
        };
        let mut times = if row.value > 1.0 { format!(" {:.0} times", row.value) } else { String::new() };
        let mut action = xid.hint;
        if cured || only_nonfatal {
            times += if cured { "; it was reset since" } else { ", not fatal" };
            action = "nothing to do unless it returns";
        }
        found
            .add(verdict, format!("{} had XID {code} ({}){times}", node.gpu(gpu), xid.name))
            .device(gpu)
            .action(action);
    }
}
