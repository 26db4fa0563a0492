use super::*;

/// A line of each kind as the kernel prints it, and the expected fields: device, PCI address,
/// process, pid.
pub(super) const SAMPLES: &[(&str, Pattern, [&str; 3], Option<u32>)] = &[
    (
        "mlx5_core 0000:ca:00.0: mlx5_pcie_event:299:(pid 26829): Detected insufficient power on the PCIe slot (27W).",
        Pattern::Mlx5SlotPower,
        ["", "0000:ca:00.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:ca:00.0: Port module event[error]: module 0, Cable error, High Temperature",
        Pattern::Mlx5ModuleHot,
        ["", "0000:ca:00.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:ca:00.0: Port module event: module 0, Cable unplugged",
        Pattern::Mlx5CableUnplugged,
        ["", "0000:ca:00.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:ca:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)",
        Pattern::Mlx5ModuleError,
        ["", "0000:ca:00.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:ca:00.0: wait_func:1137:(pid 7): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
        Pattern::Mlx5CommandLeak,
        ["", "0000:ca:00.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:ca:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
        Pattern::Mlx5Health,
        ["", "0000:ca:00.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:ca:00.0: print_health_info:423: unrecoverable hardware error",
        Pattern::Mlx5Unrecoverable,
        ["", "0000:ca:00.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:ca:00.0 eth2: TX timeout detected",
        Pattern::Mlx5TxTimeout,
        ["eth2", "0000:ca:00.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:ca:00.0 eth2: RX timeout on channel: 3, ICOSQ: 0x1",
        Pattern::Mlx5RxTimeout,
        ["eth2", "0000:ca:00.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:c1:00.0: mlx5_cmd_out_err:808:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3)",
        Pattern::Mlx5AccessRegister,
        ["", "0000:c1:00.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:ca:00.0 enp202s0np0: Link down",
        Pattern::Mlx5LinkDown,
        ["enp202s0np0", "0000:ca:00.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:ca:00.0 enp202s0np0: Link up",
        Pattern::Mlx5LinkUp,
        ["enp202s0np0", "0000:ca:00.0", ""],
        None,
    ),
    (
        "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out",
        Pattern::NetdevWatchdog,
        ["eth0", "", ""],
        None,
    ),
    (
        "ena 0000:00:06.0 ens6: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5000 ms",
        Pattern::NetdevWatchdog,
        ["ens6", "0000:00:06.0", ""],
        None,
    ),
    (
        "mlx5_core 0000:ca:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:c9:00.0",
        Pattern::PcieDegraded,
        ["", "0000:ca:00.0", ""],
        None,
    ),
    (
        "pcieport 0000:16:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        Pattern::AerCorrected,
        ["", "0000:16:00.0", ""],
        None,
    ),
    (
        "pcieport 0000:16:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
        Pattern::AerCorrected,
        ["", "0000:16:00.0", ""],
        None,
    ),
    (
        "nvidia 0000:1b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
        Pattern::AerNonfatal,
        ["", "0000:1b:00.0", ""],
        None,
    ),
    (
        "pcieport 0000:16:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        Pattern::AerFatal,
        ["", "0000:16:00.0", ""],
        None,
    ),
    (
        "mce: [Hardware Error]: CPU 4: Machine Check Exception: 5 Bank 7: be00004000010090",
        Pattern::Mce,
        ["", "", ""],
        None,
    ),
    ("Remounting filesystem read-only", Pattern::FilesystemReadonly, ["", "", ""], None),
    ("mce: [Hardware Error]: Machine check events logged", Pattern::MceLogged, ["", "", ""], None),
    ("[Hardware Error]: Uncorrected, software restartable error.", Pattern::Mce, ["", "", ""], None),
    ("[Hardware Error]: System Fatal error.", Pattern::Mce, ["", "", ""], None),
    ("{1}[Hardware Error]: event severity: corrected", Pattern::CperCorrected, ["", "", ""], None),
    ("{12}[Hardware Error]: event severity: recoverable", Pattern::CperRecoverable, ["", "", ""], None),
    ("{1}[Hardware Error]: event severity: fatal", Pattern::CperFatal, ["", "", ""], None),
    ("[Hardware Error]: event severity: fatal", Pattern::CperPreviousBoot, ["", "", ""], None),
    ("[Hardware Error]: event severity: recoverable", Pattern::CperPreviousBoot, ["", "", ""], None),
    (
        "nvidia-peermem nv_get_p2p_free_callback:128 ERROR detected invalid context, skipping further processing",
        Pattern::PeermemContext,
        ["", "", ""],
        None,
    ),
    (
        "ERROR detected invalid context, skipping further processing",
        Pattern::PeermemContext,
        ["", "", ""],
        None,
    ),
    (
        "pt main thread[4242]: segfault at 7f0 ip 00007f sp 00007f error 4 in libnccl.so.2.20.5[7f1000+5000]",
        Pattern::NcclSegfault,
        ["", "", "pt main thread"],
        Some(4242),
    ),
    (
        "INFO: task python3:4242 blocked for more than 122 seconds.",
        Pattern::HungTask,
        ["", "", "python3"],
        Some(4242),
    ),
    (
        "INFO: task kworker/u:3:17 blocked in I/O wait for more than 122 seconds.",
        Pattern::HungTask,
        ["", "", "kworker/u:3"],
        Some(17),
    ),
    (
        "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4242]",
        Pattern::SoftLockup,
        ["", "", "python3"],
        Some(4242),
    ),
    (
        "NMI watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4242]",
        Pattern::SoftLockup,
        ["", "", "python3"],
        Some(4242),
    ),
    ("watchdog: Watchdog detected hard LOCKUP on cpu 5", Pattern::HardLockup, ["", "", ""], None),
    ("rcu: INFO: rcu_preempt self-detected stall on CPU", Pattern::RcuStall, ["", "", ""], None),
    (
        "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:10kB, anon-rss:5kB, UID:1000",
        Pattern::OomKill,
        ["", "", "python3"],
        Some(4242),
    ),
    // A kernel that writes its decision on a line of its own prints this.
    (
        "Killed process 4243 (python3) total-vm:10kB, anon-rss:5kB",
        Pattern::OomKill,
        ["", "", "python3"],
        Some(4243),
    ),
    (
        "task jbd2/vda1-8:320 blocked for more than 120 seconds.",
        Pattern::HungTask,
        ["", "", "jbd2/vda1-8"],
        Some(320),
    ),
    ("Out of memory: Killed process 9 (a (b)) total-vm:10kB", Pattern::OomKill, ["", "", "a (b)"], Some(9)),
    ("nvme nvme3: I/O 12 QID 3 timeout, reset controller", Pattern::NvmeTimeout, ["nvme3", "", ""], None),
    (
        "nvme nvme3: I/O tag 12 (100c) opcode 0x2 (I/O Cmd) QID 3 timeout, aborting req_op:READ(0)",
        Pattern::NvmeTimeout,
        ["nvme3", "", ""],
        None,
    ),
    (
        "nvme nvme3: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
        Pattern::NvmeTimeout,
        ["nvme3", "", ""],
        None,
    ),
    ("nvme nvme3: Disabling device after reset failure: -19", Pattern::NvmeDisabled, ["nvme3", "", ""], None),
    ("block nvme3n1: no available path - failing I/O", Pattern::NvmeNoPath, ["nvme3n1", "", ""], None),
    (
        "Buffer I/O error on dev sda1, logical block 5, lost async page write",
        Pattern::DiskError,
        ["sda1", "", ""],
        None,
    ),
    (
        "I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
        Pattern::DiskError,
        ["nvme0n1", "", ""],
        None,
    ),
    ("blk_update_request: I/O error, dev sda, sector 99 op 0x0", Pattern::DiskError, ["sda", "", ""], None),
    ("critical medium error, dev sdb, sector 99 op 0x0", Pattern::DiskError, ["sdb", "", ""], None),
    ("md/raid1:md0: Disk failure on sdb1, disabling device.", Pattern::RaidFailure, ["sdb1", "", ""], None),
    (
        "EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
        Pattern::FilesystemReadonly,
        ["nvme0n1p2", "", ""],
        None,
    ),
    (
        "EXT4-fs (nvme0n1p2): re-mounted 5b1f-22 r/w.",
        Pattern::FilesystemWritable,
        ["nvme0n1p2", "", ""],
        None,
    ),
    ("EXT4-fs (sda1): unmounting filesystem 5b1f-22.", Pattern::FilesystemMounted, ["sda1", "", ""], None),
    (
        "EXT4-fs error (device sda1): ext4_lookup:1855: inode #2: comm ls: deleted inode referenced",
        Pattern::FilesystemError,
        ["sda1", "", ""],
        None,
    ),
    (
        "XFS (dm-0): Filesystem has been shut down due to log error (0x2).",
        Pattern::FilesystemShutdown,
        ["dm-0", "", ""],
        None,
    ),
    (
        "XFS (dm-0): Corruption of in-memory data detected.  Shutting down filesystem",
        Pattern::FilesystemShutdown,
        ["dm-0", "", ""],
        None,
    ),
    ("XFS (dm-0): Mounting V5 Filesystem", Pattern::FilesystemMounted, ["dm-0", "", ""], None),
    (
        "BTRFS: error (device sda1: state EA) in cleanup_transaction:1986: errno=-30, forced readonly",
        Pattern::FilesystemReadonly,
        ["sda1", "", ""],
        None,
    ),
    (
        "BTRFS info (device dm-2 state EA): forced readonly",
        Pattern::FilesystemReadonly,
        ["dm-2", "", ""],
        None,
    ),
    (
        "BTRFS info (device dm-2 state EA): last unmount of filesystem 4fbf2e15-f941-49a0-bc7c-716315d2777c",
        Pattern::FilesystemMounted,
        ["dm-2", "", ""],
        None,
    ),
    ("nfs: server 10.0.0.9 not responding, still trying", Pattern::NfsStall, ["10.0.0.9", "", ""], None),
    ("nfs: server 10.0.0.9 not responding, timed out", Pattern::NfsTimeout, ["10.0.0.9", "", ""], None),
    ("nfs: server filer.example OK", Pattern::NfsOk, ["filer.example", "", ""], None),
    (
        "Lustre: scratch-OST0001-osc-ffff9d8a1: Connection to scratch-OST0001 (at 10.0.0.1@tcp) was lost; in progress operations using this service will wait",
        Pattern::LustreLost,
        ["scratch-OST0001-osc", "", ""],
        None,
    ),
    (
        "Lustre: scratch-OST0001-osc-ffff9d8a1: Connection restored to 10.0.0.1@tcp (at 10.0.0.1@tcp)",
        Pattern::LustreRestored,
        ["scratch-OST0001-osc", "", ""],
        None,
    ),
    ("BUG: unable to handle page fault for address: ffff8", Pattern::Oops, ["", "", ""], None),
    (
        "Unable to handle kernel paging request at virtual address 0000000000000010",
        Pattern::Oops,
        ["", "", ""],
        None,
    ),
    ("Kernel panic - not syncing: Fatal exception", Pattern::Panic, ["", "", ""], None),
    ("kernel BUG at mm/slub.c:305!", Pattern::Oops, ["", "", ""], None),
    ("watchdog: CPU5: Watchdog detected hard LOCKUP on cpu 5", Pattern::HardLockup, ["", "", ""], None),
    ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", Pattern::RcuStall, ["", "", ""], None),
    (
        "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-... } 21 jiffies",
        Pattern::RcuStall,
        ["", "", ""],
        None,
    ),
    ("GPU reset executed: GPU-3c6e8a4b, success: true", Pattern::GpuReset, ["GPU-3c6e8a4b", "", ""], None),
    (
        "GPU reset executed: GPU-3c6e8a4b, success: false",
        Pattern::GpuResetFailed,
        ["GPU-3c6e8a4b", "", ""],
        None,
    ),
    // These lines are composed from the format strings that `drivers.rs` names.
    (
        "amdgpu 0000:c1:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=2571, emitted seq=2573",
        Pattern::AmdgpuHang,
        ["", "0000:c1:00.0", ""],
        None,
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
        Pattern::AmdgpuUncorrected,
        ["", "0000:c1:00.0", ""],
        None,
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: RAS records:257 exceed threshold:256",
        Pattern::AmdgpuBadPages,
        ["", "0000:c1:00.0", ""],
        None,
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset(3) succeeded!",
        Pattern::GpuReset,
        ["", "0000:c1:00.0", ""],
        None,
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset end with ret = -22",
        Pattern::GpuResetFailed,
        ["", "0000:c1:00.0", ""],
        None,
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: device lost from bus!",
        Pattern::GpuFallenOff,
        ["", "0000:c1:00.0", ""],
        None,
    ),
    // These lines are from reports on the lists linux-pci, linux-rdma and linux-edac, or are
    // composed from the format strings that `drivers.rs` names.
    (
        "pcieport 0000:00:1b.0: DPC: containment event, status:0x1f01 source:0x0000",
        Pattern::PcieContained,
        ["", "0000:00:1b.0", ""],
        None,
    ),
    (
        "pcieport 0000:89:02.0: DPC: containment event, status:0x1f01: unmasked uncorrectable error detected",
        Pattern::PcieContained,
        ["", "0000:89:02.0", ""],
        None,
    ),
    (
        "pcieport 0000:89:02.0: pciehp: Slot(400): Link Down",
        Pattern::PcieSlotDown,
        ["", "0000:89:02.0", ""],
        None,
    ),
    (
        "EDAC MC3: 1 UE memory read error on CPU_SrcID#0_MC#3_Chan#0_DIMM#0 (channel:0 slot:0 page:0x7e025e offset:0x400 grain:32 -  err_code:0x00a0:0x0090  SystemAddress:0x7e025e400 ProcessorSocketId:0x0)",
        Pattern::EdacUncorrected,
        ["CPU_SrcID#0_MC#3_Chan#0_DIMM#0", "", ""],
        None,
    ),
    (
        "infiniband mlx5_0: dump_cqe:272:(pid 709): dump error cqe",
        Pattern::Mlx5Completion,
        ["mlx5_0", "", ""],
        None,
    ),
    (
        "infiniband rocep8s0f0: dump_cqe:277:(pid 0): WC error: 6, Message: memory bind operation error",
        Pattern::Mlx5Completion,
        ["rocep8s0f0", "", ""],
        None,
    ),
    (
        "bnxt_en 0000:19:00.0 enp25s0f0np0: NIC Link is Down",
        Pattern::BnxtLinkDown,
        ["enp25s0f0np0", "0000:19:00.0", ""],
        None,
    ),
    (
        "bnxt_en 0000:19:00.0 enp25s0f0np0: NIC Link is Up, 200000 Mbps full duplex, Flow control: none",
        Pattern::BnxtLinkUp,
        ["enp25s0f0np0", "0000:19:00.0", ""],
        None,
    ),
    (
        "efa 0000:10:1b.0 efa_0: Failed to process command CREATE_QP (opcode 1) comp_status 6 err -12",
        Pattern::EfaRefused,
        ["efa_0", "0000:10:1b.0", ""],
        None,
    ),
    (
        "efa 0000:10:1b.0 efa_0: The device didn't send any completion for admin cmd CREATE_CQ(9) status 0 (ctx: 0xffff8881, sq producer: 5, sq consumer: 4, cq consumer: 4)",
        Pattern::EfaSilent,
        ["efa_0", "0000:10:1b.0", ""],
        None,
    ),
    (
        "LNetError: 2345:0:(o2iblnd_cb.c:3410:kiblnd_check_conns()) Timed out RDMA with 10.0.0.1@o2ib (52): c: 0, oc: 0, rc: 8",
        Pattern::LnetTimeout,
        ["10.0.0.1@o2ib", "", ""],
        None,
    ),
];

const NOISE: &[&str] = &[
    "",
    "usb 1-1: new high-speed USB device number 2 using xhci_hcd",
    "systemd[1]: Started Session 4 of User root.",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86",
    "python3[12]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch.so[7f1000+5000]",
    "mce: [Hardware Error]: TSC 0 ADDR 1ffff",
    // Corrected errors have this line beside the one that counts.
    "[Hardware Error]: Corrected error, no action required.",
    "BERT: Error records from previous boot:",
    "[Hardware Error]: event severity: corrected",
    "[Hardware Error]:  Error 0, type: fatal",
    "[Hardware Error]:   section_type: Firmware Error Record Reference",
    "mce: [Hardware Error]: CPU 4: Machine Check: 0 Bank 7: 8c00004000010090",
    "Out of memory: Kill process 4243 (python3) score 900 or sacrifice child",
    "task force one blocked the road",
    "oom_reaper: reaped process 4242 (python3), now anon-rss:0kB",
    "mlx5_core 0000:ca:00.0: Port module event: module 0, Cable plugged",
    "pcieport 0000:a9:10.0: pciehp: Slot(272): Link Down/Up ignored (recovered by DPC)",
    "pcieport 0000:00:04.1: pciehp: Slot(0): Link Up",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x0 offset:0x0 grain:32 syndrome:0x0)",
    "infiniband mlx5_0: mlx5_handle_error_cqe:332:(pid 0): WC error: 4, Message: local protection error",
    "amdgpu 0000:c1:00.0: amdgpu: GPU reset end with ret = 0",
    "amdgpu 0000:c1:00.0: amdgpu: 2 correctable hardware errors detected in umc block",
    "nv-fabricmanager: detected NVSwitch fatal error 20034",
    "nvme nvme0: 32/0/0 default/read/poll queues",
    "audit: type=1400 audit(1700000000.1:5): apparmor=\"STATUS\" operation=\"profile_load\"",
    "EXT4-fs (sda1): re-mounted 5b1f-22 ro. Quota mode: none.",
    "perf: interrupt took too long (2505 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
];

#[test]
fn a_line_of_every_kind() {
    for (line, pattern, [device, pci, process], pid) in SAMPLES {
        let Some(Found::Pattern(found, facts)) = recognise(line) else { panic!("{line}") };
        let server = facts.server;
        assert_eq!((found, &facts), (*pattern, &Facts { device, pci, process, pid: *pid, server }), "{line}");
        let lustre = device.starts_with("scratch-");
        assert_eq!(server, if lustre { "10.0.0.1@tcp" } else { "" }, "{line}");
    }
    let elsewhere = [
        Pattern::Xid,
        Pattern::SxidFatal,
        Pattern::SxidNonfatal,
        Pattern::SxidUnknown,
        Pattern::GpuFallenOff,
        Pattern::NvlinkRxDetect,
    ];
    for pattern in Pattern::ALL {
        assert!(
            elsewhere.contains(pattern) || SAMPLES.iter().any(|s| s.1 == *pattern),
            "no sample of {pattern:?}"
        );
    }
    for line in NOISE {
        assert_eq!(recognise(line), None, "{line}");
    }
}

#[test]
fn whom_the_kernel_kills_and_why() {
    let line = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/slurm,task_memcg=/slurm/uid_1/job_7,task=a,b,pid=4242,uid=1000";
    let cgroup = "/slurm/uid_1/job_7";
    assert_eq!(
        recognise(line),
        Some(Found::OomContext { pid: 4242, cgroup, constraint: "CONSTRAINT_MEMCG" })
    );
}

#[test]
fn nvidia_lines_come_through() {
    let xid = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.";
    assert!(matches!(recognise(xid), Some(Found::Nvidia(Line::Xid(_)))));
    let quoted = "systemd[1]: said NVRM: Xid (PCI:0000:3b:00): 79, x";
    assert_eq!(recognise(quoted), None, "a line that only quotes one is none");
}

proptest::proptest! {
    #[test]
    fn never_panics(line: String) {
        let _ = recognise(&line);
    }

    #[test]
    fn mutations_never_panic(which in 0..SAMPLES.len(), at: proptest::sample::Index, with in "\\PC{0,3}", cut: proptest::sample::Index) {
        let mut line: Vec<char> = SAMPLES[which].0.chars().collect();
        let i = at.index(line.len());
        line.splice(i..=i, with.chars());
        let line: String = line.into_iter().collect();
        let _ = recognise(&line);
        let short: String = line.chars().take(cut.index(line.len() + 1)).collect();
        let _ = recognise(&short);
    }
}
