//! The kernel log since the boot, as far back as it goes: hardware errors that no reset of the GPU
//! has cured since.

use stepwatch_wire::conditions::Remedy;

use super::item::Check;
use super::node::Node;
use super::report::{Findings, Verdict};
use crate::collectors::gpu::{LAST_RESET, RECOVERY};
use crate::collectors::kernel::catalogue::{self, Level};
use crate::collectors::kernel::recovery_action;
use crate::collectors::kernel::{EVENTS, LAST_XID, LOGGED_RECOVERY, NONFATAL_XIDS, SXIDS, XIDS};
use crate::family::Family;
use crate::samples::Row;

pub(super) const CHECK: Check = Check {
    name: "kernel",
    about: "the kernel log has no hardware error since the boot that no reset has cured",
    needs: &["kernel"],
    run,
};

/// What makes a node unfit however long ago it was, while the kernel that saw it runs: label of the
/// event, and what it was.
const UNFIT: &[(&str, &str)] = &[
    ("gpu_fallen_off_bus", "a GPU fell off the bus"),
    ("mlx5_health", "the firmware of a network adapter stopped"),
    ("mlx5_unrecoverable", "a network adapter had an unrecoverable hardware error"),
    ("aer_fatal", "a fatal PCIe error"),
    ("amdgpu_uncorrected", "a GPU had an uncorrected memory error"),
    ("amdgpu_bad_pages", "a GPU has more bad pages than its driver accepts"),
    ("pcie_contained", "a PCIe port cut off the devices behind it"),
    ("edac_uncorrected", "an uncorrected memory error"),
    ("cper_fatal", "the firmware reported a fatal hardware error"),
    ("mce", "a CPU reported an uncorrected machine check"),
    ("nvme_disabled", "an NVMe disk was lost"),
    ("nvme_no_path", "an NVMe disk was lost"),
    ("hard_lockup", "a CPU stopped"),
    ("oops", "the kernel went on damaged"),
];
/// What is worth a look.
const WORTH_A_LOOK: &[(&str, &str)] = &[
    ("cper_recoverable", "the firmware reported a recoverable hardware error"),
    ("aer_nonfatal", "uncorrected PCIe errors, not fatal"),
    ("amdgpu_ring_timeout", "a queue of a GPU did not move any more"),
    ("pcie_slot_link_down", "the PCIe link of a slot went down"),
    ("mlx5_completion_error", "an RDMA request of the kernel itself failed"),
    ("efa_command_timeout", "an EFA device did not answer a command in time"),
    ("lnet_rdma_timeout", "an RDMA transfer of Lustre was not finished in time"),
    ("mlx5_slot_power", "a PCIe slot gives a network adapter too little power"),
    ("mlx5_module_hot", "a transceiver was too hot"),
    ("raid_disk_failure", "a disk of a RAID failed"),
    ("disk_io_error", "a disk failed to read or write"),
    ("filesystem_error", "a filesystem found an error in itself"),
    ("soft_lockup", "a CPU made no progress for a long time"),
    ("rcu_stall", "a CPU was stuck in the kernel"),
];
/// What the firmware kept over the boot, which may be why there was one.
const PREVIOUS_BOOT: &str = "cper_previous_boot";
/// The XID by which the driver asks for an action on a GPU.
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
    let count = |label: &str| node.set(&EVENTS).find(|row| row.label("event") == label).map(|row| row.value);
    for (list, verdict) in [(UNFIT, Verdict::Unhealthy), (WORTH_A_LOOK, Verdict::Warning)] {
        for (label, what) in list {
            if let Some(count) = count(label) {
                let times = if count > 1.0 { format!(" ({count:.0} times)") } else { String::new() };
                found
                    .add(verdict, format!("since the boot, {what}{times}"))
                    .device(*label)
                    .action("see the kernel log: journalctl -k");
            }
        }
    }
    if count(PREVIOUS_BOOT).is_some() {
        found
            .warning("before the last boot, the firmware recorded a hardware error that was not corrected")
            .device(PREVIOUS_BOOT)
            .action("see whether it was mended: the kernel log (journalctl -k), after `BERT`");
    }
    found.or_ok(|| "nothing since the boot that a job should not meet".into())
}

/// What the driver asked for last in the log. Where NVML was asked too, its answer is newer, and
/// the check `recovery` judges it.
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
