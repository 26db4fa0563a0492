//! The signs of trouble that the kernel log is searched for: what each is called, and what is told
//! of it besides the count.

use super::catalogue::Level;

/// What is told of a sign in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// Counted, and no more: what it means for the node is told by somebody else, or by another
    /// line.
    Count,
    /// It happened.
    Once { name: &'static str, level: Level, phrase: &'static str },
    /// It holds, from here to the sign that ends it.
    Begin { name: &'static str, level: Level, phrase: &'static str },
    /// It is over.
    End { name: &'static str, phrase: &'static str },
    /// It happened to a link. Whether the link is down or slow is for the collectors to say that
    /// know which ports should be up, which were left out, and how wide a slot is: a driver
    /// says the same of a cage that was never cabled, and never says that it is over.
    Link { medium: &'static str, state: &'static str, level: Level, phrase: &'static str },
}

macro_rules! signs {
    ($($sign:ident $label:literal $tell:expr;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Pattern { $($sign,)* }

        impl Pattern {
            pub(super) const ALL: &[Self] = &[$(Self::$sign,)*];

            /// Value of the label `event`.
            pub(super) fn as_str(self) -> &'static str {
                match self { $(Self::$sign => $label,)* }
            }

            pub(super) fn report(self) -> Report {
                match self { $(Self::$sign => $tell,)* }
            }
        }
    };
}

const fn once(name: &'static str, level: Level, phrase: &'static str) -> Report {
    Report::Once { name, level, phrase }
}

const fn begin(name: &'static str, level: Level, phrase: &'static str) -> Report {
    Report::Begin { name, level, phrase }
}

const fn end(name: &'static str, phrase: &'static str) -> Report {
    Report::End { name, phrase }
}

const fn link(medium: &'static str, state: &'static str, level: Level, phrase: &'static str) -> Report {
    Report::Link { medium, state, level, phrase }
}

use Level::{Error, Info, Warn};
use Report::Count;

patterns! {
    Xid "gpu_xid" Count;
    SxidFatal "nvswitch_sxid_fatal" Count;
    SxidNonfatal "nvswitch_sxid_non_fatal" Count;
    SxidUnknown "nvswitch_sxid_unknown" Count;
    GpuFallenOff "gpu_fallen_off_bus" once("gpu_lost", Error, "the GPU has fallen off the bus");
    GpuReset "gpu_reset" once("gpu_reset", Info, "the GPU was reset");
    GpuResetFailed "gpu_reset_failed" once("gpu_reset_failed", Warn, "the GPU could not be reset");
    NvlinkRxDetect "nvlink_rx_detect" link("nvlink", "errors", Warn, "the driver could not find the other end of an NVLink");
    NvlinkFailure "nvlink_failure" link("nvlink", "errors", Error, "fabric manager reports a failed NVLink");
    NvswitchFatal "nvswitch_fatal" once("fabric_unhealthy", Error, "fabric manager found a fatal NVSwitch error");
    NvswitchNonfatal "nvswitch_nonfatal" once("fabric_unhealthy", Warn, "fabric manager found a non-fatal NVSwitch error");
    FabricTopology "fabric_topology_mismatch" once("fabric_unhealthy", Error, "fabric manager found another topology than it expects");
    PeermemContext "peermem_invalid_context" once("peermem_error", Warn, "nvidia-peermem found an invalid context: GPUDirect RDMA of a process broke");
    NcclSegfault "nccl_segfault" once("nccl_segfault", Warn, "a process crashed inside NCCL");
    Mlx5SlotPower "mlx5_slot_power" once("nic_slot_power", Warn, "the PCIe slot gives the network adapter too little power");
    Mlx5ModuleHot "mlx5_module_hot" link("infiniband", "errors", Error, "the transceiver is too hot and will be shut off");
    Mlx5CableUnplugged "mlx5_cable_unplugged" once("nic_no_cable", Info, "the network adapter finds no cable in its port");
    Mlx5ModuleError "mlx5_module_error" link("infiniband", "errors", Warn, "the transceiver or the cable reports an error");
    Mlx5CommandLeak "mlx5_command_leak" once("nic_firmware", Warn, "the network adapter's firmware did not answer a command in time");
    Mlx5Health "mlx5_health" once("nic_firmware", Error, "the network adapter's firmware stopped");
    Mlx5Unrecoverable "mlx5_unrecoverable" once("nic_firmware", Error, "the network adapter has an unrecoverable hardware error");
    Mlx5TxTimeout "mlx5_tx_timeout" link("ethernet", "errors", Warn, "the network adapter stopped sending for a while");
    Mlx5RxTimeout "mlx5_rx_timeout" link("ethernet", "errors", Warn, "the network adapter stopped receiving for a while");
    Mlx5AccessRegister "mlx5_access_register_failed" Count;
    Mlx5LinkUp "mlx5_link_up" Count;
    Mlx5LinkDown "mlx5_link_down" Count;
    NetdevWatchdog "netdev_watchdog" link("ethernet", "errors", Warn, "the interface stopped sending");
    PcieDegraded "pcie_degraded" once("pcie_bandwidth", Info, "the PCIe link is slower than the device could be");
    AerCorrected "aer_corrected" Count;
    AerNonfatal "aer_nonfatal" once("aer_nonfatal", Warn, "uncorrected PCIe error, not fatal");
    AerFatal "aer_fatal" once("aer_fatal", Error, "fatal PCIe error");
    Mce "mce" once("mce", Error, "the CPU reports an uncorrected machine check");
    // Printed of every one, also of those that were corrected; what was not says so in a line of its own.
    MceLogged "mce_logged" Count;
    CperCorrected "cper_corrected" Count;
    CperRecoverable "cper_recoverable" once("mce", Warn, "the firmware reports a recoverable hardware error");
    CperFatal "cper_fatal" once("mce", Error, "the firmware reports a fatal hardware error");
    // Whether it was mended since, nobody says.
    CperPreviousBoot "cper_previous_boot" once("hardware_error_previous_boot", Warn, "before the last boot the firmware recorded a hardware error that nobody could report any more");
    NvmeTimeout "nvme_timeout" once("nvme_error", Warn, "the disk did not answer in time");
    NvmeDisabled "nvme_disabled" once("nvme_error", Error, "the disk is lost: it was disabled after a reset that failed");
    NvmeNoPath "nvme_no_path" once("nvme_error", Error, "the disk is lost: no path is left to it");
    DiskError "disk_io_error" once("disk_error", Warn, "the disk fails to read or write");
    RaidFailure "raid_disk_failure" once("raid_degraded", Warn, "a disk of a RAID failed");
    FilesystemReadonly "filesystem_readonly" begin("filesystem_readonly", Error, "the filesystem went read-only after an error");
    FilesystemWritable "filesystem_writable" end("filesystem_readonly", "the filesystem can be written again");
    FilesystemShutdown "filesystem_shutdown" begin("filesystem_readonly", Error, "the filesystem shut itself down after an error");
    FilesystemMounted "filesystem_mounted" end("filesystem_readonly", "the filesystem was unmounted or mounted anew");
    FilesystemError "filesystem_error" once("filesystem_error", Warn, "the filesystem found an error in itself");
    NfsStall "nfs_not_responding" begin("nfs_stall", Warn, "the NFS server does not answer");
    // Of soft mounts: nobody waits any more, and nothing says when the server is back.
    NfsTimeout "nfs_timed_out" once("nfs_timeout", Warn, "the NFS server did not answer in time, a program got an error instead of its data");
    NfsOk "nfs_ok" end("nfs_stall", "the NFS server answers again");
    LustreLost "lustre_connection_lost" begin("lustre_stall", Warn, "the connection to a Lustre server was lost, who uses it waits");
    LustreRestored "lustre_connection_restored" end("lustre_stall", "the connection to a Lustre server is back");
    HungTask "hung_task" once("hung_task", Warn, "a process is stuck in the kernel");
    SoftLockup "soft_lockup" once("soft_lockup", Warn, "a CPU made no progress for a long time");
    HardLockup "hard_lockup" once("hard_lockup", Error, "a CPU stopped and takes no interrupts");
    RcuStall "rcu_stall" once("rcu_stall", Warn, "a CPU is stuck in the kernel");
    // What it kills is seldom a rank, and a rank that dies is told of by itself.
    OomKill "oom_kill" once("oom_kill", Warn, "killed for want of memory");
    Oops "oops" once("kernel_oops", Error, "the kernel has a bug in it and goes on damaged");
    Panic "panic" once("kernel_panic", Error, "the kernel panicked");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_line_does_not_say_how_a_link_is() {
        for sign in Pattern::ALL {
            if let Report::Link { state, .. } = sign.report() {
                assert_eq!(state, "errors", "{sign:?}");
            }
        }
    }

    #[test]
    fn names_are_names_and_what_begins_can_end() {
        let labels: BTreeSet<_> = Pattern::ALL.iter().map(|s| s.as_str()).collect();
        assert_eq!(labels.len(), Pattern::ALL.len());
        let ends: BTreeSet<_> = Pattern::ALL
            .iter()
            .filter_map(|s| if let Report::End { name, .. } = s.report() { Some(name) } else { None })
            .collect();
        for sign in Pattern::ALL {
            if let Report::Begin { name, .. } = sign.report() {
                assert!(ends.contains(name), "{name}");
            }
        }
    }
}
