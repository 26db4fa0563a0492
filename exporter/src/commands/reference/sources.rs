//! What each collector needs and costs, and what its sources offer that no family has, with the
//! reason: an absence without an explanation looks like an oversight.

use serde::Serialize;

/// Of one collector.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Needs {
    pub collector: &'static str,
    /// Devices, files and privileges.
    pub needs: &'static str,
    /// What a pass costs, and whom.
    pub cost: &'static str,
}

/// Something that can be known and is not exported.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Omission {
    pub what: &'static str,
    pub why: &'static str,
}

const fn needs(collector: &'static str, needs: &'static str, cost: &'static str) -> Needs {
    Needs { collector, needs, cost }
}

const fn omission(what: &'static str, why: &'static str) -> Omission {
    Omission { what, why }
}

pub static NEEDS: &[Needs] = &[
    needs("affinity", "/sys; any user", "a few links read, seldom"),
    needs(
        "amdgpu",
        "/sys/bus/pci, where the driver amdgpu is loaded; any user",
        "some 40 small files a GPU, of which a few ask its firmware",
    ),
    needs("bonds", "/sys/class/net; any user", "three small files a link"),
    needs("clock", "the call adjtimex, which sets nothing; any user", "one call"),
    needs(
        "config_drift",
        "/proc, /sys and files of the runs; CAP_SYS_PTRACE for the environment of other users' processes",
        "some dozens of small files, on change only where that shows",
    ),
    needs(
        "disk",
        "/proc/self/mountinfo, statfs of each local file system; any user; a container sees its own mounts",
        "one call a file system, each on a thread that may hang",
    ),
    needs(
        "edac",
        "/sys/devices/system/edac, where the driver of the memory controller is loaded; any user",
        "a few small files",
    ),
    needs(
        "fabric_manager",
        "/var/log/fabricmanager.log or what collectors.fabric_manager.log names; CAP_DAC_READ_SEARCH where it is root's; in a container, that of the host",
        "what was written since the last look",
    ),
    needs(
        "gpu",
        "libnvidia-ml.so.1 and /dev/nvidia*; any user; CAP_SYS_ADMIN for gpu_sram_ecc_* and, under MIG, for the instances where their devices are not given; what is refused stands in gpu_nvml_no_permission",
        "some 30 calls a GPU a second and 60 more each half minute, on one thread; none that waits, none that takes a context",
    ),
    needs("heartbeat", "/dev/shm/stepwatch; any user", "256 bytes a rank"),
    needs(
        "job",
        "/proc and /sys/fs/cgroup; CAP_SYS_PTRACE for the environment, open files and root of other users' processes; the kubelet's pod-resources socket, which is root's",
        "small files a training process; one call to the kubelet, off the scrape path",
    ),
    needs(
        "kernel",
        "/dev/kmsg; CAP_SYSLOG where kernel.dmesg_restrict=1; in a container, privileged: true",
        "sleeps until the kernel logs something",
    ),
    needs("memory", "/proc/meminfo; any user", "one small file"),
    needs(
        "mounts",
        "/proc/self/mountinfo, /proc/self/mountstats, /sys/fs/lustre; any user; a container sees its own mounts; what an automounter unmounts when it is idle is not asked, unless collectors.mounts.include, a log or checkpoints name it",
        "one call a mount, each on a thread that may hang",
    ),
    needs(
        "nic",
        "/sys/class/net and the ethtool ioctl in the network namespace of the host; any user",
        "some 15 small files an interface; the drivers' own statistics less often",
    ),
    needs(
        "nvme",
        "/dev/nvme* and CAP_SYS_ADMIN; what is refused stands in disk_nvme_health_unreadable",
        "one command a drive every five minutes",
    ),
    needs(
        "optics",
        "generic netlink in the network namespace of the host, from Linux 5.13 on; CAP_NET_ADMIN, although it only reads; what is refused stands in nic_module_unreadable",
        "two to four reads of 128 bytes a module each minute, through the firmware of its adapter",
    ),
    needs(
        "pci",
        "/sys/bus/pci; any user; which GPUs are at work from NVML, or from the files that training processes have open (CAP_SYS_PTRACE)",
        "up to 8 small files a device; one call a GPU while the link of one is slow",
    ),
    needs(
        "process",
        "/proc and /sys/fs/cgroup; any user, and CAP_SYS_PTRACE for some values",
        "some 10 small files a training process",
    ),
    needs(
        "ras",
        "the RAS port of NCCL 2.24 or later, on this node's loopback; any user; CAP_SYS_ADMIN and CAP_SYS_PTRACE for that of a container with a network of its own",
        "one question a job, answered by a thread of NCCL that no collective waits for",
    ),
    needs(
        "rdma",
        "/sys/class/infiniband; any user",
        "states each second; some 50 counters a port each ten, each a command to its firmware",
    ),
    needs(
        "services",
        "/sys/fs/cgroup and /etc/systemd/system; any user; in a container, those of the host",
        "a small file a service",
    ),
    needs("textfile", "the directory of the configuration; any user", "as many files as there are"),
];

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
