//! The patterns in the kernel log: the name of each, the events besides the count, and the verdict
//! of `check` on a node with such a line.

use stepwatch_wire::conditions::NodeCondition;

use super::catalogue::Level;

/// The event that is streamed for a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// Only counts the line, because another collector or another line reports the fault.
    Count,
    /// An event of a single moment.
    Once { condition: NodeCondition, level: Level, phrase: &'static str },
    /// The beginning of a condition, which holds until the pattern that ends it.
    Begin { condition: NodeCondition, level: Level, phrase: &'static str },
    /// The end of a condition.
    End { condition: NodeCondition, phrase: &'static str },
    /// An event of a link. Whether the link is down or slow is reported by the collectors that know
    /// the expected and excluded ports and the width of slots: a driver logs the same for a cage
    /// that was never cabled, and never logs an end.
    Link { medium: &'static str, state: &'static str, level: Level, phrase: &'static str },
}

/// The verdict of `check` on a node with such a line since boot, however old. The text describes
/// the fault for the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fitness {
    Unfit(&'static str),
    WorthALook(&'static str),
    /// The pattern alone does not decide it.
    Unjudged,
}

macro_rules! patterns {
    ($($pattern:ident $label:literal $report:expr, $fitness:expr;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Pattern { $($pattern,)* }

        impl Pattern {
            pub(crate) const ALL: &[Self] = &[$(Self::$pattern,)*];

            /// The value of the label `event`.
            pub(crate) fn as_str(self) -> &'static str {
                match self { $(Self::$pattern => $label,)* }
            }

            pub(crate) fn fitness(self) -> Fitness {
                match self { $(Self::$pattern => $fitness,)* }
            }

            pub(super) fn report(self) -> Report {
                match self { $(Self::$pattern => $report,)* }
            }
        }
    };
}

const fn once(condition: NodeCondition, level: Level, phrase: &'static str) -> Report {
    Report::Once { condition, level, phrase }
}

const fn begin(condition: NodeCondition, level: Level, phrase: &'static str) -> Report {
    Report::Begin { condition, level, phrase }
}

const fn end(condition: NodeCondition, phrase: &'static str) -> Report {
    Report::End { condition, phrase }
}

const fn link(medium: &'static str, state: &'static str, level: Level, phrase: &'static str) -> Report {
    Report::Link { medium, state, level, phrase }
}

use Fitness::{Unfit, Unjudged, WorthALook};
use Level::{Error, Info, Warn};
use NodeCondition as C;
use Report::Count;

patterns! {
    // These make a node unfit. `check` reports in the order of the rows.
    GpuFallenOff "gpu_fallen_off_bus" once(C::GpuLost, Error, "the GPU has fallen off the bus"), Unfit("a GPU fell off the bus");
    Mlx5Health "mlx5_health" once(C::NicFirmware, Error, "the network adapter's firmware stopped"), Unfit("the firmware of a network adapter stopped");
    Mlx5Unrecoverable "mlx5_unrecoverable" once(C::NicFirmware, Error, "the network adapter has an unrecoverable hardware error"), Unfit("a network adapter had an unrecoverable hardware error");
    AerFatal "aer_fatal" once(C::AerFatal, Error, "fatal PCIe error"), Unfit("a fatal PCIe error");
    AmdgpuUncorrected "amdgpu_uncorrected" once(C::EccUncorrected, Error, "the GPU has an uncorrected memory error"), Unfit("a GPU had an uncorrected memory error");
    AmdgpuBadPages "amdgpu_bad_pages" once(C::RowRemapFailed, Error, "the GPU has more bad pages than its driver accepts: replace it"), Unfit("a GPU has more bad pages than its driver accepts");
    PcieContained "pcie_contained" once(C::PcieContained, Error, "the PCIe port cut off the devices behind it after an uncorrected error"), Unfit("a PCIe port cut off the devices behind it");
    // The collector `edac` counts the same error, where its driver has the file.
    EdacUncorrected "edac_uncorrected" once(C::Mce, Error, "an uncorrected memory error"), Unfit("an uncorrected memory error");
    CperFatal "cper_fatal" once(C::Mce, Error, "the firmware reports a fatal hardware error"), Unfit("the firmware reported a fatal hardware error");
    Mce "mce" once(C::Mce, Error, "the CPU reports an uncorrected machine check"), Unfit("a CPU reported an uncorrected machine check");
    NvmeDisabled "nvme_disabled" once(C::NvmeError, Error, "the disk is lost: it was disabled after a reset that failed"), Unfit("an NVMe disk was lost");
    NvmeNoPath "nvme_no_path" once(C::NvmeError, Error, "the disk is lost: no path is left to it"), Unfit("an NVMe disk was lost");
    HardLockup "hard_lockup" once(C::HardLockup, Error, "a CPU stopped and takes no interrupts"), Unfit("a CPU stopped");
    Oops "oops" once(C::KernelOops, Error, "the kernel has a bug in it and goes on damaged"), Unfit("the kernel went on damaged");

    // These are worth a look.
    CperRecoverable "cper_recoverable" once(C::Mce, Warn, "the firmware reports a recoverable hardware error"), WorthALook("the firmware reported a recoverable hardware error");
    AerNonfatal "aer_nonfatal" once(C::AerNonfatal, Warn, "uncorrected PCIe error, not fatal"), WorthALook("uncorrected PCIe errors, not fatal");
    AmdgpuHang "amdgpu_ring_timeout" once(C::GpuHang, Warn, "a queue of the GPU does not move any more, and the driver resets the GPU"), WorthALook("a queue of a GPU did not move any more");
    PcieSlotDown "pcie_slot_link_down" once(C::PcieLinkDown, Warn, "the PCIe link of a slot went down: the device in it is gone"), WorthALook("the PCIe link of a slot went down");
    Mlx5Completion "mlx5_completion_error" once(C::RdmaError, Warn, "an RDMA request of the kernel itself failed"), WorthALook("an RDMA request of the kernel itself failed");
    EfaSilent "efa_command_timeout" once(C::NicFirmware, Warn, "the EFA device did not answer a command in time"), WorthALook("an EFA device did not answer a command in time");
    LnetTimeout "lnet_rdma_timeout" once(C::LnetTimeout, Warn, "an RDMA transfer of Lustre was not finished in time"), WorthALook("an RDMA transfer of Lustre was not finished in time");
    Mlx5SlotPower "mlx5_slot_power" once(C::NicSlotPower, Warn, "the PCIe slot gives the network adapter too little power"), WorthALook("a PCIe slot gives a network adapter too little power");
    Mlx5ModuleHot "mlx5_module_hot" link("infiniband", "errors", Error, "the transceiver is too hot and will be shut off"), WorthALook("a transceiver was too hot");
    RaidFailure "raid_disk_failure" once(C::RaidDegraded, Warn, "a disk of a RAID failed"), WorthALook("a disk of a RAID failed");
    DiskError "disk_io_error" once(C::DiskError, Warn, "the disk fails to read or write"), WorthALook("a disk failed to read or write");
    FilesystemError "filesystem_error" once(C::FilesystemError, Warn, "the filesystem found an error in itself"), WorthALook("a filesystem found an error in itself");
    SoftLockup "soft_lockup" once(C::SoftLockup, Warn, "a CPU made no progress for a long time"), WorthALook("a CPU made no progress for a long time");
    RcuStall "rcu_stall" once(C::RcuStall, Warn, "a CPU is stuck in the kernel"), WorthALook("a CPU was stuck in the kernel");

    // These do no lasting harm, or are judged by something else, as XIDs are by their codes.
    Xid "gpu_xid" Count, Unjudged;
    SxidFatal "nvswitch_sxid_fatal" Count, Unjudged;
    SxidNonfatal "nvswitch_sxid_non_fatal" Count, Unjudged;
    SxidUnknown "nvswitch_sxid_unknown" Count, Unjudged;
    GpuReset "gpu_reset" once(C::GpuReset, Info, "the GPU was reset"), Unjudged;
    GpuResetFailed "gpu_reset_failed" once(C::GpuResetFailed, Warn, "the GPU could not be reset"), Unjudged;
    NvlinkRxDetect "nvlink_rx_detect" link("nvlink", "errors", Warn, "the driver could not find the other end of an NVLink"), Unjudged;
    PeermemContext "peermem_invalid_context" once(C::PeermemError, Warn, "nvidia-peermem found an invalid context: GPUDirect RDMA of a process broke"), Unjudged;
    NcclSegfault "nccl_segfault" once(C::NcclSegfault, Warn, "a process crashed inside NCCL"), Unjudged;
    Mlx5CableUnplugged "mlx5_cable_unplugged" once(C::NicNoCable, Info, "the network adapter finds no cable in its port"), Unjudged;
    Mlx5ModuleError "mlx5_module_error" link("infiniband", "errors", Warn, "the transceiver or the cable reports an error"), Unjudged;
    Mlx5CommandLeak "mlx5_command_leak" once(C::NicFirmware, Warn, "the network adapter's firmware did not answer a command in time"), Unjudged;
    Mlx5TxTimeout "mlx5_tx_timeout" link("ethernet", "errors", Warn, "the network adapter stopped sending for a while"), Unjudged;
    Mlx5RxTimeout "mlx5_rx_timeout" link("ethernet", "errors", Warn, "the network adapter stopped receiving for a while"), Unjudged;
    Mlx5AccessRegister "mlx5_access_register_failed" Count, Unjudged;
    Mlx5LinkUp "mlx5_link_up" Count, Unjudged;
    Mlx5LinkDown "mlx5_link_down" Count, Unjudged;
    BnxtLinkUp "bnxt_link_up" Count, Unjudged;
    BnxtLinkDown "bnxt_link_down" Count, Unjudged;
    EfaRefused "efa_command_failed" once(C::RdmaError, Info, "the EFA device refused a command"), Unjudged;
    NetdevWatchdog "netdev_watchdog" link("ethernet", "errors", Warn, "the interface stopped sending"), Unjudged;
    PcieDegraded "pcie_degraded" once(C::PcieBandwidth, Info, "the PCIe link is slower than the device could be"), Unjudged;
    AerCorrected "aer_corrected" Count, Unjudged;
    // Printed of every machine check, also of corrected ones; an uncorrected one has a line of its
    // own.
    MceLogged "mce_logged" Count, Unjudged;
    CperCorrected "cper_corrected" Count, Unjudged;
    // A repair since then is not visible. `check` has its own sentence for it.
    CperPreviousBoot "cper_previous_boot" once(C::PreviousBoot, Warn, "before the last boot the firmware recorded a hardware error that could not be reported any more"), Unjudged;
    NvmeTimeout "nvme_timeout" once(C::NvmeError, Warn, "the disk did not answer in time"), Unjudged;
    FilesystemReadonly "filesystem_readonly" begin(C::FilesystemReadonly, Error, "the filesystem went read-only after an error"), Unjudged;
    FilesystemWritable "filesystem_writable" end(C::FilesystemReadonly, "the filesystem can be written again"), Unjudged;
    FilesystemShutdown "filesystem_shutdown" begin(C::FilesystemReadonly, Error, "the filesystem shut itself down after an error"), Unjudged;
    FilesystemMounted "filesystem_mounted" end(C::FilesystemReadonly, "the filesystem was unmounted or mounted anew"), Unjudged;
    NfsStall "nfs_not_responding" begin(C::NfsStall, Warn, "the NFS server does not answer"), Unjudged;
    // Soft mounts only: no process waits any more, and no line reports that the server is back.
    NfsTimeout "nfs_timed_out" once(C::NfsTimeout, Warn, "the NFS server did not answer in time, a program got an error instead of its data"), Unjudged;
    NfsOk "nfs_ok" end(C::NfsStall, "the NFS server answers again"), Unjudged;
    LustreLost "lustre_connection_lost" begin(C::LustreStall, Warn, "the connection to a Lustre server was lost, who uses it waits"), Unjudged;
    LustreRestored "lustre_connection_restored" end(C::LustreStall, "the connection to a Lustre server is back"), Unjudged;
    HungTask "hung_task" once(C::HungTask, Warn, "a process is stuck in the kernel"), Unjudged;
    // An OOM kill seldom hits a rank, and the death of a rank has its own event.
    OomKill "oom_kill" once(C::OomKill, Warn, "killed for want of memory"), Unjudged;
    Panic "panic" once(C::KernelPanic, Error, "the kernel panicked"), Unjudged;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_line_does_not_decide_the_state_of_a_link() {
        for pattern in Pattern::ALL {
            if let Report::Link { state, .. } = pattern.report() {
                assert_eq!(state, "errors", "{pattern:?}");
            }
        }
    }

    #[test]
    fn names_are_names_and_what_begins_can_end() {
        let labels: BTreeSet<_> = Pattern::ALL.iter().map(|s| s.as_str()).collect();
        assert_eq!(labels.len(), Pattern::ALL.len());
        let ends: BTreeSet<_> = Pattern::ALL
            .iter()
            .filter_map(
                |s| if let Report::End { condition, .. } = s.report() { Some(condition) } else { None },
            )
            .collect();
        for pattern in Pattern::ALL {
            if let Report::Begin { condition, .. } = pattern.report() {
                assert!(ends.contains(&condition), "{condition:?}");
            }
        }
    }
}
