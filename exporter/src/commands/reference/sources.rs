//! Values that the collectors' sources offer and that no family has, each with the reason: an
//! unexplained omission looks like an oversight.

use serde::Serialize;

/// An available value that is not exported.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Omission {
    pub what: &'static str,
    pub why: &'static str,
}

const fn omission(what: &'static str, why: &'static str) -> Omission {
    Omission { what, why }
}

pub static OMISSIONS: &[Omission] = &[
    omission(
        "GPU: PCIe throughput (nvmlDeviceGetPcieThroughput)",
        "each call waits 20 ms for a sample; from Hopper on gpu_pcie_transmit_bytes_per_second and gpu_pcie_receive_bytes_per_second have the same values and wait for nothing",
    ),
    omission(
        "GPU: bytes over PCIe as counters (fields 197 and 198)",
        "they have 32 bits and wrap within half a second at 10 GB/s, so no rate of them is right; before Hopper nothing else counts them, and there is no series",
    ),
    omission(
        "GPU: memory and utilisation of each process",
        "a series a process never ends; job_process_info and gpu_job_info name the processes of runs and jobs",
    ),
    omission(
        "GPU: XIDs from NVML's event set, where the kernel log can be read",
        "of several it gives the last one only, without the kernel's text of each; it stands in where the log is not ours to read",
    ),
    omission(
        "GPU: average power as a family of its own (field 185)",
        "since Ampere, the A100 aside, it is what gpu_power_watts is; the rate of gpu_energy_joules_total is an average on any GPU",
    ),
    omission(
        "GPU: fan speed, encoder, decoder and graphics",
        "nothing that a training run feels; fans of such nodes are the chassis'",
    ),
    omission(
        "GPU: applications clocks and supported clocks",
        "a list that does not change; where they hold a clock down, gpu_throttle_active shows it",
    ),
    omission(
        "GPU: the index as a label of every series",
        "it changes with a reset or a lost GPU, the UUID does not; join with gpu_info on gpu for index and slot, as the dashboard does",
    ),
    omission(
        "fabric manager: what it writes to the systemd journal",
        "the journal is a database of its own format; where LOG_USE_SYSLOG=1 sends its messages to syslog, collectors.fabric_manager.log names the file; a service that does not start is seen by service_active",
    ),
    omission(
        "AMD: xgmi_error",
        "reading it clears the errors; gpu_ecc_errors_total at the location xgmi_wafl counts those of XGMI links",
    ),
    omission(
        "AMD: what holds the clocks of an MI300 down",
        "the table of the firmware that the driver passes on has no reasons in its layout 1.4; gpu_throttle_active has those of an MI200",
    ),
    omission(
        "kernel: every process in state D",
        "kernel_blocked_processes is the kernel's own count of those that wait for I/O; ranks in state D are published one by one",
    ),
    omission(
        "RDMA: lifespan of hw_counters",
        "how long the driver keeps a counter before it asks the device again: a setting, not a counter",
    ),
    omission("RDMA: node and system GUIDs", "serial numbers; rdma_info has the PCI address"),
    omission(
        "RDMA: the fabric beyond the ports of this node",
        "switches are asked once for a cluster, not once a node",
    ),
    omission(
        "NIC: the rest of /sys/class/net/*/statistics (collisions, compressed, and the kinds of frame, FIFO and length errors)",
        "parts of nic_receive_errors_total and nic_transmit_errors_total, or of links that no such node has; node_exporter has them",
    ),
    omission(
        "NIC: every statistic of ethtool",
        "thousands on a modern card; nic_ethtool_total has those that explain a slow step, and the configuration adds others",
    ),
    omission(
        "node: /proc/pressure, /proc/meminfo, /proc/stat, /proc/vmstat in full",
        "node_exporter has them; here is what hits a training run: memory left, load, blocked processes, OOM kills, and pressure within its own cgroup",
    ),
];
