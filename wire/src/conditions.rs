//! The conditions of a node: one row each, for all code that reports, judges or explains them.
//!
//! The exporter decides whether a condition holds and how bad it is (`level` of the event). The
//! meaning of a condition for a run, its remedy and when it pages are the same everywhere, so they
//! are defined here. An event carries the name of its row. Conditions of links have the name of the
//! link, XIDs have their number, and neither has a row.

use serde::{Deserialize, Serialize};

/// The part of the node or job that a condition concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    Gpu,
    Network,
    Storage,
    /// Memory, CPUs, PCIe, the kernel, the clock.
    Host,
    /// Processes of a job.
    Job,
}

/// The action for an operator, in order of effort. Each action includes the milder ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    None,
    RestartApp,
    /// Resets the GPU at the next drain.
    DrainReset,
    /// Resets the GPU at once.
    ResetGpu,
    RebootNode,
    CheckHardware,
    ContactSupport,
}

/// When a condition of level `error` pages, if it affects a run. Warnings are tickets, and so are
/// conditions that affect no run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    AtOnce,
    /// After it has held for some seconds; at once if it is an event without an end.
    OnceItLasts,
    /// After the time that a server needs to fail over. Runs that it stops meanwhile page by
    /// themselves.
    AfterFailover,
    /// Never: it is evidence for the incident that pages, such as waiting ranks or a slow driver.
    Never,
}

/// The kind of incident that a condition opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incident {
    GpuFault,
    Throttle,
    NodeFault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The name in the event, whose kind is `hw`.
    pub name: &'static str,
    pub domain: Domain,
    /// Whether a warning can already stop or slow a run; otherwise only an error can.
    pub stops_runs: bool,
    /// The remedy if the event names no action.
    pub remedy: Remedy,
    pub pages: Pages,
    pub incident: Incident,
    /// The check of `stepwatch-exporter check` that judges the condition by its own values, or
    /// `conditions`, which repeats the event of the collector.
    pub check: &'static str,
    /// The alert of `rules/node.yml` that reports it where no alerter runs.
    pub rule: &'static str,
}

/// The check that repeats the events of collectors.
pub const BY_EVENT: &str = "conditions";

/// No Prometheus alert: no metric alone shows that the condition holds.
const NO_RULE: &str = "";

macro_rules! conditions {
    ($($variant:ident $name:literal $domain:ident $stops:literal $remedy:ident $pages:ident $incident:ident $check:tt $rule:tt;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum NodeCondition { $($variant,)* }

        impl NodeCondition {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            pub const fn row(self) -> &'static Row {
                match self {
                    $(Self::$variant => &Row {
                        name: $name,
                        domain: Domain::$domain,
                        stops_runs: $stops,
                        remedy: Remedy::$remedy,
                        pages: Pages::$pages,
                        incident: Incident::$incident,
                        check: $check,
                        rule: $rule,
                    },)*
                }
            }

            /// Finds a condition by the name in an event. An exporter of another version may have
            /// more.
            pub fn parse(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

conditions! {
//  condition             name                          of      stops remedy        pages
//  opens     check        rule
    GpuLost               "gpu_lost"                    Gpu     true  RebootNode    AtOnce        GpuFault  "gpus"       "NodeGpuLost";
    GpuRecoveryAction     "gpu_recovery_action"         Gpu     true  None          AtOnce        GpuFault  "recovery"   "NodeGpuRecoveryWanted";
    RowRemapPending       "row_remap_pending"           Gpu     false DrainReset    AtOnce        GpuFault  "ecc"        "NodeGpuRowRemapPending";
    RowRemapFailed        "row_remap_failed"            Gpu     true  CheckHardware AtOnce        GpuFault  "ecc"        "NodeGpuRowRemapFailed";
    SramThreshold         "sram_threshold"              Gpu     true  CheckHardware AtOnce        GpuFault  "ecc"        "NodeGpuRowRemapFailed";
    EccUncorrected        "ecc_uncorrected"             Gpu     true  DrainReset    AtOnce        GpuFault  "ecc"        "NodeGpuUncorrectedErrors";
    FabricUnhealthy       "fabric_unhealthy"            Gpu     true  CheckHardware AtOnce        GpuFault  "fabric"     "NodeFabricUnhealthy";
    GpuThrottled          "gpu_throttled"               Gpu     true  None          Never         Throttle  "throttle"   "NodeGpuThrottled";
    GpuReset              "gpu_reset"                   Gpu     true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    GpuResetFailed        "gpu_reset_failed"            Gpu     true  RebootNode    OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    GpuHang               "gpu_hang"                    Gpu     true  ResetGpu      AtOnce        GpuFault  BY_EVENT     NO_RULE;
    NvlinksMissing        "nvlinks_missing"             Gpu     true  None          OnceItLasts   NodeFault "nvlink"     "NodeNvlinkDown";
    NvmlReleased          "nvml_released"               Gpu     false None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    NvmlStuck             "nvml_stuck"                  Gpu     false RebootNode    Never         NodeFault "gpus"       "NodeCollectorStuck";
    RdmaUnreadable        "rdma_unreadable"             Network false None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    NicFirmware           "nic_firmware"                Network true  RebootNode    OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    NicSlotPower          "nic_slot_power"              Network true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    NicNoCable            "nic_no_cable"                Network true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    PeermemError          "peermem_error"               Network true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    TransceiverAlarm      "transceiver_alarm"           Network true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    BondDegraded          "bond_degraded"               Network true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    RdmaError             "rdma_error"                  Network true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    MountStuck            "mount_stuck"                 Storage true  None          AfterFailover NodeFault "mounts"     "NodeMountStuck";
    NfsStall              "nfs_stall"                   Storage true  None          AfterFailover NodeFault BY_EVENT     NO_RULE;
    NfsTimeout            "nfs_timeout"                 Storage true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    LustreStall           "lustre_stall"                Storage true  None          AfterFailover NodeFault BY_EVENT     NO_RULE;
    LnetTimeout           "lnet_timeout"                Storage true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    LustreUnhealthy       "lustre_unhealthy"            Storage true  None          AfterFailover NodeFault BY_EVENT     NO_RULE;
    DiskFilling           "disk_filling"                Storage false None          OnceItLasts   NodeFault BY_EVENT     "NodeDiskFills";
    DiskError             "disk_error"                  Storage true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    RaidDegraded          "raid_degraded"               Storage true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    NvmeError             "nvme_error"                  Storage true  CheckHardware OnceItLasts   NodeFault BY_EVENT     "NodeKernelTrouble";
    NvmeHealth            "nvme_health"                 Storage true  CheckHardware OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    FilesystemReadonly    "filesystem_readonly"         Storage true  None          OnceItLasts   NodeFault BY_EVENT     "NodeDiskReadOnly";
    FilesystemError       "filesystem_error"            Storage true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    Mce                   "mce"                         Host    true  CheckHardware OnceItLasts   NodeFault BY_EVENT     "NodeKernelTrouble";
    PreviousBoot          "hardware_error_previous_boot" Host   true  None          OnceItLasts   NodeFault "kernel"     NO_RULE;
    AerFatal              "aer_fatal"                   Host    true  CheckHardware OnceItLasts   NodeFault BY_EVENT     "NodePcieErrors";
    AerNonfatal           "aer_nonfatal"                Host    true  None          OnceItLasts   NodeFault BY_EVENT     "NodePcieErrors";
    PcieContained         "pcie_contained"              Host    true  CheckHardware OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    PcieLinkDown          "pcie_link_down"              Host    true  CheckHardware OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    PcieBandwidth         "pcie_bandwidth"              Host    true  None          OnceItLasts   NodeFault BY_EVENT     "NodePcieDegraded";
    ServiceDown           "service_down"                Host    false None          OnceItLasts   NodeFault "services"   NO_RULE;
    MemoryFilling         "memory_filling"              Host    false None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    ClockUnsynced         "clock_unsynced"              Host    false None          OnceItLasts   NodeFault "clock"      "NodeClockNotSynced";
    HungTask              "hung_task"                   Host    true  None          OnceItLasts   NodeFault BY_EVENT     "NodeKernelTrouble";
    SoftLockup            "soft_lockup"                 Host    true  None          OnceItLasts   NodeFault BY_EVENT     "NodeKernelTrouble";
    HardLockup            "hard_lockup"                 Host    true  RebootNode    OnceItLasts   NodeFault BY_EVENT     "NodeKernelTrouble";
    RcuStall              "rcu_stall"                   Host    true  None          OnceItLasts   NodeFault BY_EVENT     "NodeKernelTrouble";
    KernelOops            "kernel_oops"                 Host    true  RebootNode    OnceItLasts   NodeFault BY_EVENT     "NodeKernelTrouble";
    KernelPanic           "kernel_panic"                Host    true  RebootNode    OnceItLasts   NodeFault BY_EVENT     "NodeKernelTrouble";
    KernelMessage         "kernel_message"              Host    false None          Never         NodeFault BY_EVENT     NO_RULE;
    OomKill               "oom_kill"                    Job     true  None          OnceItLasts   NodeFault BY_EVENT     "NodeOomKill";
    NcclSegfault          "nccl_segfault"               Job     true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    ProcessBlocked        "process_blocked"             Job     true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    CgroupThrottled       "cgroup_throttled"            Job     true  None          OnceItLasts   NodeFault BY_EVENT     NO_RULE;
    RasStuck              "ras_stuck"                   Job     true  None          Never         NodeFault BY_EVENT     NO_RULE;
    SchedulerDown         "scheduler_down"              Job     false None          Never         NodeFault BY_EVENT     "SchedulerDown";
    SchedulerUnreadable   "scheduler_unreadable"        Job     false None          Never         NodeFault BY_EVENT     "SchedulerUnreadable";
    NodeOutOfService      "node_out_of_service"         Job     false None          Never         NodeFault BY_EVENT     NO_RULE;
    JobsWaitBesideIdle    "jobs_wait_beside_idle_gpus"  Job     false None          Never         NodeFault BY_EVENT     "JobsWaitBesideIdleGpus";
}

impl NodeCondition {
    pub const fn name(self) -> &'static str {
        self.row().name
    }
}

impl Domain {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Network => "network",
            Self::Storage => "storage",
            Self::Host => "host",
            Self::Job => "job",
        }
    }
}

impl Remedy {
    /// All remedies, in order of effort.
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::RestartApp,
        Self::DrainReset,
        Self::ResetGpu,
        Self::RebootNode,
        Self::CheckHardware,
        Self::ContactSupport,
    ];

    /// The word in events and in the catalogue of XIDs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::RestartApp => "restart_app",
            Self::DrainReset => "drain_reset",
            Self::ResetGpu => "reset_gpu",
            Self::RebootNode => "reboot_node",
            Self::CheckHardware => "check_hardware",
            Self::ContactSupport => "contact_support",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|remedy| remedy.as_str() == word)
    }

    /// Whether the remedy is a repair of the node. An application's own failure is not the node's
    /// fault, and a case for the vendor's support seldom stops a run.
    pub const fn repairs_node(self) -> bool {
        matches!(self, Self::DrainReset | Self::ResetGpu | Self::RebootNode | Self::CheckHardware)
    }

    /// Whether a reset of the GPU completes the remedy.
    pub const fn is_reset(self) -> bool {
        matches!(self, Self::DrainReset | Self::ResetGpu)
    }
}

impl Incident {
    /// The kind in an incident, and the name of its runbook.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GpuFault => "gpu_fault",
            Self::Throttle => "throttle",
            Self::NodeFault => "node_fault",
        }
    }
}

impl Pages {
    /// A description for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AtOnce => "at once",
            Self::OnceItLasts => "once it has lasted",
            Self::AfterFailover => "after five minutes",
            Self::Never => "never by itself",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_row_and_is_found_by_it() {
        for condition in NodeCondition::ALL {
            assert_eq!(NodeCondition::parse(condition.name()), Some(*condition));
        }
        assert_eq!(NodeCondition::parse("gpu_is_sad"), None);
    }

    #[test]
    fn remedies_are_read_back_and_stand_in_the_order_of_their_effort() {
        assert!(Remedy::ALL.is_sorted());
        for remedy in Remedy::ALL {
            assert_eq!(Remedy::parse(remedy.as_str()), Some(remedy));
        }
        assert_eq!(Remedy::parse("pray"), None);
    }
}
