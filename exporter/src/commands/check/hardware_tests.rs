//! Tests of the hardware checks with given values of collectors.

use super::tests::output;
use super::*;
use crate::collectors::amdgpu;
use crate::collectors::gpu as families;
use crate::collectors::kernel::{EVENTS, LAST_XID, LOGGED_RECOVERY, NONFATAL_XIDS, SXIDS, XIDS};
use crate::collectors::network::rdma as ports;
use crate::samples::Samples;

const GPU_CHECKS: &[&Check] =
    &[&gpu::COUNT, &gpu::RECOVERY, &gpu::ECC, &gpu::THROTTLE, &gpu::NVLINK, &gpu::FABRIC];

/// Two healthy GPUs.
fn gpus() -> Samples {
    let mut samples = Samples::default();
    samples.set(&families::COUNT, &[], 2u64);
    samples.set(&families::EXPECTED, &[], 2u64);
    for (index, uuid, pci) in [("0", "GPU-a", "0000:1b:00.0"), ("1", "GPU-b", "0000:43:00.0")] {
        samples.set(&families::INFO, &[uuid, index, pci, "NVIDIA H100", "", "", "", "", ""], 1u64);
        for (family, value) in [
            (&families::LOST, 0u64),
            (&families::PERSISTENCE, 1),
            (&families::ECC_ENABLED, 1),
            (&families::REMAP_PENDING, 0),
            (&families::REMAP_FAILED, 0),
            (&families::SRAM_THRESHOLD, 0),
        ] {
            samples.set(family, &[uuid], value);
        }
        samples.set(&families::RECOVERY, &[uuid, "none"], 1u64);
        samples.set(&families::RECOVERY, &[uuid, "gpu_reset"], 0u64);
        samples.set(&families::ECC, &[uuid, "uncorrected", "aggregate", "all"], 7u64);
        samples.set(&families::ECC, &[uuid, "uncorrected", "volatile", "all"], 0u64);
        samples.set(&families::THROTTLE, &[uuid, "sw_power_cap"], 1u64);
        samples.set(&families::FABRIC_STATE, &[uuid, "completed"], 1u64);
        for link in 0..4 {
            samples.set(&families::NVLINK_UP, &[uuid, &link.to_string()], u64::from(link < 3));
        }
    }
    samples
}

/// The unhealthy findings for two GPUs, one of which differs in this value.
fn gpu_says(family: &'static crate::family::Family, labels: &[&str], value: u64) -> String {
    let said = GPU_CHECKS.iter().map(|check| {
        let mut samples = Samples::default();
        // If a series has two values, the later one is exported; here both would be evaluated.
        for row in gpus().iter() {
            if row.family.name != family.name || !row.labels.iter().eq(labels.iter().copied()) {
                let labels: Vec<&str> = row.labels.iter().map(AsRef::as_ref).collect();
                let crate::samples::Value::Number(value) = row.value else { panic!() };
                samples.set(row.family, &labels, value);
            }
        }
        samples.set(family, labels, value);
        output(check, samples)
    });
    let said: String = said.collect();
    said.split_inclusive('\n').filter(|line| !line.starts_with("ok ")).collect()
}

#[test]
fn gpus_on_which_nothing_is_wrong() {
    let said: String = GPU_CHECKS.iter().map(|check| output(check, gpus())).collect();
    insta::assert_snapshot!(said, @r"
    ok        gpus 2 GPUs answer
    ok        recovery no GPU asks for anything
    ok        ecc no uncorrected errors, nothing to be replaced
    ok        throttle no GPU is slowed down
    ok        nvlink 2 GPUs with 3 NVLinks up each
    ok        fabric 2 GPUs registered, nothing wrong
    ");
}

#[test]
fn one_thing_wrong_with_a_gpu_is_one_finding_that_says_what_to_do() {
    use families::{
        COUNT, ECC, ECC_ENABLED, FABRIC_HEALTH, FABRIC_STATE, LOST, NVLINK_UP, PERSISTENCE, RECOVERY,
        REMAP_FAILED, REMAP_PENDING, SRAM_THRESHOLD, THROTTLE,
    };
    let b = "GPU-b";
    let said: String = [
        gpu_says(&COUNT, &[], 1),
        gpu_says(&LOST, &[b], 1),
        gpu_says(&PERSISTENCE, &[b], 0),
        gpu_says(&RECOVERY, &[b, "gpu_reset"], 1),
        gpu_says(&ECC, &[b, "uncorrected", "volatile", "all"], 2),
        gpu_says(&REMAP_PENDING, &[b], 1),
        gpu_says(&REMAP_FAILED, &[b], 1),
        gpu_says(&SRAM_THRESHOLD, &[b], 1),
        gpu_says(&ECC_ENABLED, &[b], 0),
        gpu_says(&THROTTLE, &[b, "hw_thermal_slowdown"], 1),
        gpu_says(&THROTTLE, &[b, "sw_thermal_slowdown"], 1),
        gpu_says(&NVLINK_UP, &[b, "1"], 0),
        gpu_says(&FABRIC_STATE, &[b, "in_progress"], 1),
        gpu_says(&FABRIC_HEALTH, &[b, "route_unhealthy"], 1),
    ]
    .concat();
    insta::assert_snapshot!(said);
}

#[test]
fn a_power_brake_is_no_fault_of_the_node() {
    let mut samples = gpus();
    samples.set(&families::THROTTLE, &["GPU-a", "hw_slowdown"], 1u64);
    for reason in ["hw_slowdown", "hw_power_brake_slowdown"] {
        samples.set(&families::THROTTLE, &["GPU-b", reason], 1u64);
    }
    let said = output(&gpu::THROTTLE, samples);
    let of = |gpu: &str| -> Vec<&str> {
        said.lines().filter(|l| l.contains(gpu)).filter_map(|l| l.split(' ').next()).collect()
    };
    assert_eq!((of("GPU 0"), of("GPU 1")), (vec!["unhealthy"], vec!["warning", "warning"]), "{said}");
}

#[test]
fn links_that_every_gpu_lacks() {
    let mut samples = gpus();
    samples.set(&families::EXPECTED_NVLINKS, &["GPU-a"], 4u64);
    samples.set(&families::EXPECTED_NVLINKS, &["GPU-b"], 4u64);
    samples.set(&families::EXPECTED_NVLINKS, &["GPU-c"], 4u64);
    insta::assert_snapshot!(output(&gpu::NVLINK, samples), @r"
    unhealthy nvlink GPU 0 (0000:1b:00.0) has 3 of 4 NVLinks up; down: 3; reset the GPUs; if it stays down, reseat or replace the GPU or its baseboard
    unhealthy nvlink GPU 1 (0000:43:00.0) has 3 of 4 NVLinks up; down: 3; reset the GPUs; if it stays down, reseat or replace the GPU or its baseboard
    unhealthy nvlink GPU GPU-c has 0 of 4 NVLinks up; reset the GPUs; if it stays down, reseat or replace the GPU or its baseboard
    ");
    let mut samples = gpus();
    for uuid in ["GPU-a", "GPU-b"] {
        samples.set(&families::EXPECTED_NVLINKS, &[uuid], 3u64);
    }
    samples.set(&families::NVLINK_UP, &["GPU-c", "0"], 0u64);
    samples.set(&families::MIG_INFO, &["GPU-c", "1", "0", "1g.10gb", "MIG-1"], 1u64);
    insta::assert_snapshot!(output(&gpu::NVLINK, samples), @"ok        nvlink 2 GPUs with 3 NVLinks up each");
}

#[test]
fn a_gpu_that_asks_for_a_reset_gets_no_other_advice() {
    let faulty = |more: &dyn Fn(&mut Samples)| {
        let mut samples = Samples::default();
        samples.set(&families::EXPECTED, &[], 3u64);
        samples.extend(&gpus());
        more(&mut samples);
        output(&gpu::COUNT, samples.clone()) + &output(&gpu::RECOVERY, samples)
    };
    let known = faulty(&|samples| {
        samples.set(&families::LOST, &["GPU-c"], 1u64);
        samples.set(&families::RECOVERY, &["GPU-c", "gpu_reset"], 1u64);
    });
    insta::assert_snapshot!(known, @r"
    unhealthy gpus GPU GPU-c does not answer until it is reset; reset the GPU before the next job (curl -X POST localhost:9765/-/nvml/release; nvidia-smi --gpu-reset; curl -X POST localhost:9765/-/nvml/acquire)
    unhealthy gpus 2 of 3 GPUs answer; reset those that ask for it (curl -X POST localhost:9765/-/nvml/release; nvidia-smi --gpu-reset; curl -X POST localhost:9765/-/nvml/acquire)
    unhealthy recovery the driver wants something done to GPU GPU-c: gpu_reset; reset the GPU before the next job (curl -X POST localhost:9765/-/nvml/release; nvidia-smi --gpu-reset; curl -X POST localhost:9765/-/nvml/acquire)
    ");
    let without_handle = faulty(&|samples| {
        samples.set(&families::UNUSABLE, &["", "2", "0000:52:00.0", "reset_required"], 1u64);
    });
    insta::assert_snapshot!(without_handle, @r"
    unhealthy gpus GPU 2 (0000:52:00.0) cannot be used: reset required; reset the GPU before the next job (curl -X POST localhost:9765/-/nvml/release; nvidia-smi --gpu-reset; curl -X POST localhost:9765/-/nvml/acquire)
    unhealthy gpus 2 of 3 GPUs answer; reset those that ask for it (curl -X POST localhost:9765/-/nvml/release; nvidia-smi --gpu-reset; curl -X POST localhost:9765/-/nvml/acquire)
    unhealthy recovery the driver wants something done to GPU 2 (0000:52:00.0): gpu_reset; reset the GPU before the next job (curl -X POST localhost:9765/-/nvml/release; nvidia-smi --gpu-reset; curl -X POST localhost:9765/-/nvml/acquire)
    ");
    let broken = faulty(&|samples| {
        samples.set(&families::LOST, &["GPU-c"], 1u64);
        samples.set(&families::UNUSABLE, &["GPU-c", "2", "0000:52:00.0", "irq_issue"], 1u64);
    });
    insta::assert_snapshot!(broken, @r"
    unhealthy gpus GPU 2 (0000:52:00.0) cannot be used: irq issue; reboot the node; if it stays so, have the GPU looked at
    unhealthy gpus 2 of 3 GPUs answer; look for XID 79 in the kernel log, and power-cycle the node
    ok        recovery no GPU asks for anything
    ");
}

#[test]
fn what_newer_drivers_want_done() {
    let said: String = ["recover_imex_domain", "bus_reset", "system_reboot"]
        .iter()
        .map(|action| gpu_says(&families::RECOVERY, &["GPU-b", action], 1))
        .collect();
    insta::assert_snapshot!(said, @r"
    unhealthy recovery the driver wants something done to GPU 1 (0000:43:00.0): recover_imex_domain; restart nvidia-imex on every node of its NVLink domain
    unhealthy recovery the driver wants something done to GPU 1 (0000:43:00.0): bus_reset; reset the GPU before the next job (curl -X POST localhost:9765/-/nvml/release; nvidia-smi --gpu-reset; curl -X POST localhost:9765/-/nvml/acquire)
    unhealthy recovery the driver wants something done to GPU 1 (0000:43:00.0): system_reboot; reboot the node before the next job
    ");
}

#[test]
fn what_the_driver_refuses_to_this_user() {
    let mut samples = gpus();
    for uuid in ["GPU-a", "GPU-b"] {
        for function in ["nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetMigDeviceHandleByIndex"] {
            samples.set(&families::NO_PERMISSION, &[uuid, function], 1u64);
        }
    }
    let said = output(&gpu::ECC, samples.clone()) + &output(&gpu::COUNT, samples);
    insta::assert_snapshot!(said, @r"
    warning   ecc the driver denies this user SRAM ECC errors (nvmlDeviceGetSramEccErrorStatus of 2 GPUs: no permission); give the exporter and its check CAP_SYS_ADMIN, or do without
    warning   gpus the driver refuses nvmlDeviceGetMigDeviceHandleByIndex of 2 GPUs to this user: no permission; give the exporter CAP_SYS_ADMIN, or do without
    ");
}

#[test]
fn gpus_that_say_that_they_have_no_fabric() {
    let says = |state: &str, switched: &[Option<u64>], partitioned: bool| {
        let mut samples = Samples::default();
        for (index, switched) in switched.iter().enumerate() {
            let uuid = format!("GPU-{index}");
            samples.set(&families::FABRIC_STATE, &[&uuid, state], 1u64);
            samples.maybe(&families::NVLINK_SWITCHED, &[&uuid], *switched);
            if partitioned {
                samples.set(&families::MIG_INFO, &[&uuid, "1", "0", "1g.10gb", "MIG-1"], 1u64);
            }
        }
        output(&gpu::FABRIC, samples)
    };
    let none = "ok        fabric no NVLink fabric\n";
    assert_eq!(says("not_supported", &[Some(1)], false), none, "one alone needs none");
    assert_eq!(says("not_supported", &[Some(0); 8], false), none, "bridges");
    assert_eq!(says("not_supported", &[None; 8], false), none, "before Hopper, or without NVLinks");
    assert_eq!(says("not_supported", &[Some(1); 8], true), none, "partitioned");
    insta::assert_snapshot!(says("not_supported", &[Some(1); 4], false), @"warning   fabric 4 GPUs have NVLinks to NVSwitches and report that they have no fabric, as they do when it is not set up; see whether nvidia-fabricmanager runs, on an NVL rack nvidia-imex too, and what they log");
    assert_eq!(
        says("completed", &[Some(1); 4], false),
        "ok        fabric 4 GPUs registered, nothing wrong\n"
    );
    let mut samples = Samples::default();
    samples.set(&families::NVLINK_SWITCHED, &["GPU-a"], 1u64);
    insta::assert_snapshot!(output(&gpu::FABRIC, samples), @"ok        fabric the driver reports nothing about the NVLink fabric");
    insta::assert_snapshot!(gpu_says(&families::FABRIC_HEALTH, &["GPU-b", "gfm_disconnected"], 1), @"warning   fabric the NVLink fabric of GPU 1 (0000:43:00.0): gfm_disconnected; see whether the global fabric manager of its domain runs");
}

#[test]
fn the_kernel_log_since_the_boot() {
    let says = |xids: &[(&str, u64)], events: &[(&str, u64)], sxid: u64| {
        let mut samples = Samples::default();
        samples.set(&families::INFO, &["GPU-a", "3", "0000:1b:00.0", "", "", "", "", "", ""], 1u64);
        for code in ["13", "48", "79", "94", "9999"] {
            let count = xids.iter().find(|(c, _)| *c == code).map_or(0, |(_, n)| *n);
            samples.set(&XIDS, &["GPU-a", code], count);
        }
        for (event, count) in events {
            samples.set(&EVENTS, &[event], *count);
        }
        samples.set(&SXIDS, &["0", "12028", "fatal"], sxid);
        samples.set(&SXIDS, &["0", "11001", "non_fatal"], 3u64);
        for (code, switches) in [("10005", 9), ("10004", 9), ("10007", 7), ("27002", 7)] {
            if sxid > 1 {
                samples.set(&SXIDS, &[&switches.to_string(), code, "unknown"], 1u64);
            }
        }
        output(&kernel::CHECK, samples)
    };
    insta::assert_snapshot!(
        says(&[("13", 9)], &[("oom_kill", 3), ("gpu_reset", 1)], 0),
        @"ok        kernel nothing since the boot that a job should not meet"
    );
    insta::assert_snapshot!(says(
        &[("48", 2), ("79", 1), ("94", 1), ("9999", 1)],
        &[("mce", 2), ("oops", 1)],
        1
    ));
    insta::assert_snapshot!(says(&[], &[("mce_logged", 5)], 2));
}

#[test]
fn what_the_firmware_kept_over_the_boot_is_no_reason_to_drain() {
    let mut samples = Samples::default();
    samples.set(&EVENTS, &["cper_previous_boot"], 2u64);
    samples.set(&EVENTS, &["cper_fatal"], 0u64);
    insta::assert_snapshot!(output(&kernel::CHECK, samples), @"warning   kernel before the last boot, the firmware recorded a hardware error that was not corrected; see whether it was mended: the kernel log (journalctl -k), after `BERT`");
}

#[test]
fn a_fatal_error_of_a_switch_is_not_cured_by_resets_of_gpus() {
    let mut samples = gpus();
    samples.set(&SXIDS, &["0", "12028", "fatal"], 1u64);
    for gpu in ["GPU-a", "GPU-b"] {
        samples.set(&families::LAST_RESET, &[gpu], 20.0);
    }
    insta::assert_snapshot!(output(&kernel::CHECK, samples), @"unhealthy kernel NVSwitch 0 had fatal SXID 12028; reboot the node: GPUs that are reset one by one leave their switches as they are");
}

#[test]
fn a_reset_cures_its_own_gpu_of_what_asks_for_one_and_came_before_it() {
    let mut samples = Samples::default();
    for (gpu, code, last) in [
        ("GPU-a", "79", Some(10.0)),
        ("GPU-a", "95", Some(10.0)),
        ("GPU-a", "119", Some(30.0)),
        ("GPU-a", "120", None),
        ("GPU-b", "95", Some(10.0)),
    ] {
        samples.set(&XIDS, &[gpu, code], 2u64);
        samples.maybe(&LAST_XID, &[gpu, code], last);
    }
    samples.set(&families::LAST_RESET, &["GPU-a"], 20.0);
    insta::assert_snapshot!(output(&kernel::CHECK, samples), @r"
    warning   kernel GPU GPU-a had XID 95 (Uncontained ECC error) 2 times; it was reset since; nothing to do unless it returns
    unhealthy kernel GPU GPU-a had XID 79 (GPU has fallen off the bus) 2 times; Drain the node, power-cycle it; if it returns, reseat or replace the board and look at power and PCIe
    unhealthy kernel GPU GPU-a had XID 119 (GSP firmware did not answer in time) 2 times; Drain and reset the GPU, or restart the node if the reset hangs; update the driver
    unhealthy kernel GPU GPU-a had XID 120 (GSP firmware error) 2 times; Drain and reset the GPU; save nvidia-bug-report first; update the driver
    unhealthy kernel GPU GPU-b had XID 95 (Uncontained ECC error) 2 times; Drain and reset the GPU now; results of all jobs on it since are not to be trusted
    ");
}

/// XID 154 without NVML: with `--only kernel`, or while the driver hangs.
#[test]
fn what_the_driver_asked_for_in_the_log() {
    let logged = |actions: &[(&str, &str)]| {
        let mut samples = Samples::default();
        for (gpu, action) in actions {
            samples.set(&XIDS, &[gpu, "154"], 1u64);
            samples.set(&LAST_XID, &[gpu, "154"], 10.0);
            samples.set(&LOGGED_RECOVERY, &[gpu, action], 1u64);
        }
        samples
    };
    let wanted = [("GPU-a", "recover_imex_domain"), ("GPU-b", "gpu_reset"), ("GPU-c", "action_9")];
    insta::assert_snapshot!(output(&kernel::CHECK, logged(&wanted)), @r"
    unhealthy kernel the kernel log asks for something to be done to GPU GPU-a: recover_imex_domain; restart nvidia-imex on every node of its NVLink domain
    unhealthy kernel the kernel log asks for something to be done to GPU GPU-b: gpu_reset; reset the GPU before the next job (curl -X POST localhost:9765/-/nvml/release; nvidia-smi --gpu-reset; curl -X POST localhost:9765/-/nvml/acquire)
    unhealthy kernel the kernel log asks for something to be done to GPU GPU-c: action_9; follow its driver's documentation
    ");
    let well = "ok        kernel nothing since the boot that a job should not meet\n";
    // NVML's value takes precedence, and another check evaluates it.
    let mut samples = logged(&[("GPU-a", "gpu_reset")]);
    samples.set(&families::RECOVERY, &["GPU-a", "gpu_reset"], 0u64);
    samples.set(&families::RECOVERY, &["GPU-a", "none"], 1u64);
    assert_eq!(output(&kernel::CHECK, samples), well);
    // A reset cures a requested reset.
    for (action, cured) in [("gpu_reset", true), ("drain_and_reset", true), ("node_reboot", false)] {
        let mut samples = logged(&[("GPU-b", action)]);
        samples.set(&families::LAST_RESET, &["GPU-b"], 20.0);
        assert_eq!(output(&kernel::CHECK, samples) == well, cured, "{action}");
    }
}

#[test]
fn errors_of_nvlink_that_are_not_fatal_are_no_reason_to_drain() {
    let mut samples = Samples::default();
    for (code, count, nonfatal) in [("145", 3u64, Some(3u64)), ("149", 3, Some(2)), ("150", 1, None)] {
        samples.set(&XIDS, &["GPU-a", code], count);
        nonfatal.into_iter().for_each(|n| samples.set(&NONFATAL_XIDS, &["GPU-a", code], n));
    }
    insta::assert_snapshot!(output(&kernel::CHECK, samples), @r"
    warning   kernel GPU GPU-a had XID 145 (NVLink 5: RLW error) 3 times, not fatal; nothing to do unless it returns
    unhealthy kernel GPU GPU-a had XID 149 (NVLink 5: NETIR error) 3 times; Drain and reset the GPU, look at the link that is named; what its sub-code calls harmless: watch
    unhealthy kernel GPU GPU-a had XID 150 (NVLink 5: MSE error); Drain and reset the GPU, look at the link that is named; what its sub-code calls harmless: watch
    ");
}

#[test]
fn rdma_ports() {
    const SILENT: u64 = 2;
    let says = |states: &[(&str, &str, u64, f64)], expected: u64| {
        let mut samples = Samples::default();
        for (device, role, up, gbps) in states {
            samples.set(&ports::PORT_INFO, &[device, "1", "InfiniBand", "", role], 1u64);
            if *up != SILENT {
                samples.set(&ports::UP, &[device, "1"], *up);
            }
            if *up == 1 {
                samples.set(&ports::RATE, &[device, "1"], gbps * 125e6);
            }
            if *role == "fabric" {
                samples.set(&ports::EXPECTED_RATE, &[device, "1"], 400.0 * 125e6);
            }
        }
        let up = states.iter().filter(|s| s.1 == "fabric" && s.2 == 1).count() as u64;
        samples.set(&ports::PORTS_UP, &[], up);
        samples.set(&ports::PORTS_EXPECTED, &[], expected);
        output(&rdma::CHECK, samples)
    };
    let well =
        [("mlx5_0", "fabric", 1, 400.0), ("mlx5_1", "fabric", 1, 400.0), ("mlx5_9", "management", 0, 0.0)];
    insta::assert_snapshot!(says(&well, 2), @"ok        rdma 2 at 400 Gb/s");
    let ill = [
        ("mlx5_0", "fabric", 1, 400.0),
        ("mlx5_1", "fabric", 0, 0.0),
        ("mlx5_2", "fabric", 1, 200.0),
        ("mlx5_3", "unprovisioned", 0, 0.0),
    ];
    insta::assert_snapshot!(says(&ill, 4));
    insta::assert_snapshot!(says(&[("mlx5_0", "unprovisioned", 0, 0.0)], 0), @"ok        rdma no port of a fabric");
    let silent = [("mlx5_0", "fabric", 1, 400.0), ("mlx5_1", "fabric", SILENT, 0.0)];
    insta::assert_snapshot!(says(&silent, 1), @"warning   rdma mlx5_1/1 does not report whether it is up; look for errors of its driver in the kernel log");
}

#[test]
fn pcie_links() {
    use crate::collectors::host::pci::{INFO, MAX_SPEED, MAX_WIDTH, SPEED, WIDTH};
    let says = |lanes: u64, speed: f64, kind: &str| {
        let mut samples = Samples::default();
        samples.set(&families::INFO, &["GPU-a", "3", "0000:1b:00.0", "", "", "", "", "", ""], 1u64);
        let uuid = if kind == "gpu" { "GPU-a" } else { "" };
        samples.set(&INFO, &["0000:1b:00.0", kind, "x", "0", "0000:1a:00.0", uuid], 1u64);
        samples.set(&INFO, &["0000:1a:00.0", "bridge", "pcieport", "0", "", ""], 1u64);
        for (family, device, port) in [
            (&WIDTH, lanes as f64, lanes as f64),
            (&SPEED, speed, speed),
            (&MAX_WIDTH, 32.0, 16.0),
            (&MAX_SPEED, 64e9, 32e9),
        ] {
            samples.set(family, &["0000:1b:00.0"], device);
            samples.set(family, &["0000:1a:00.0"], port);
        }
        output(&pcie::CHECK, samples)
    };
    insta::assert_snapshot!(says(16, 32e9, "gpu"), @"ok        pcie 1 gpu at full width");
    insta::assert_snapshot!(says(8, 32e9, "gpu"), @"unhealthy pcie GPU 3 (0000:1b:00.0) has 8 of 16 PCIe lanes; reseat it; then have the slot, the riser and the cable looked at");
    insta::assert_snapshot!(says(16, 2.5e9, "gpu"), @"ok        pcie 1 gpu at full width");
    insta::assert_snapshot!(says(16, 16e9, "nic"), @"warning   pcie the PCIe link of nic 0000:1b:00.0 runs at 16 of 32 GT/s; reseat it; then have the slot, the riser and the cable looked at");
    insta::assert_snapshot!(says(0, 0.0, "nic"), @"ok        pcie no link reports its width");
}

#[test]
fn disks_and_mounts() {
    use crate::collectors::storage::disk::{CHECKPOINTS_LEFT, FREE, SIZE};
    use crate::collectors::storage::mounts::{INFO, RESPONSIVE, UNWATCHED, UNWATCHED_AUTOMOUNTS};
    let disk = |left: u64, free: u64| {
        let mut samples = Samples::default();
        samples.set(&CHECKPOINTS_LEFT, &["llama", "/ckpt"], left);
        samples.set(&SIZE, &["/dev/shm"], 1000u64);
        samples.set(&FREE, &["/dev/shm"], free);
        output(&disk::CHECK, samples)
    };
    insta::assert_snapshot!(disk(40, 500), @"ok        disk room for 40 checkpoints");
    insta::assert_snapshot!(disk(2, 10), @r"
    warning   disk /ckpt has room for 2 more checkpoints of llama; delete old checkpoints
    warning   disk /dev/shm is 99.0 % full; make room
    ");
    insta::assert_snapshot!(disk(0, 0), @r"
    unhealthy disk the next checkpoint of llama does not fit on /ckpt; delete old checkpoints
    unhealthy disk /dev/shm is full; make room
    ");
    let mut samples = Samples::default();
    for (mount, answers) in [("/data", Some(true)), ("/home", Some(false)), ("/slow", None)] {
        samples.set(&INFO, &[mount, "nfs4", "server:/x"], 1u64);
        samples.maybe(&RESPONSIVE, &[mount, "nfs4"], answers);
    }
    insta::assert_snapshot!(output(&mounts::CHECK, samples), @r"
    unknown   mounts /slow (nfs4 from server:/x) has not answered yet
    unhealthy mounts /home (nfs4 from server:/x) does not answer; see whether its server is up; what touches it waits in the kernel
    ");
    let many = |fixed: u64, automounted: u64| {
        let mut samples = Samples::default();
        samples.set(&INFO, &["/data", "nfs4", "server:/x"], 1u64);
        samples.set(&RESPONSIVE, &["/data", "nfs4"], true);
        samples.set(&UNWATCHED, &[], fixed);
        samples.set(&UNWATCHED_AUTOMOUNTS, &[], automounted);
        output(&mounts::CHECK, samples)
    };
    insta::assert_snapshot!(many(0, 70), @"ok        mounts /data answer");
    insta::assert_snapshot!(many(7, 0), @"warning   mounts 7 more network file systems are not asked: they are too many; name those that no job needs in collectors.mounts.exclude");
}

#[test]
fn a_gpu_of_amd_is_reset_with_the_tool_of_amd() {
    let mut samples = Samples::default();
    samples.set(&families::COUNT, &[], 1u64);
    samples.set(&families::EXPECTED, &[], 1u64);
    let info = ["GPU-a", "0", "0000:c1:00.0", "AMD Instinct MI210", "", "", "", "", ""];
    samples.set(&families::INFO, &info, 1u64);
    samples.set(&families::ECC, &["GPU-a", "uncorrected", "volatile", "umc"], 2u64);
    for (state, pages) in [("reserved", 9u64), ("pending", 1), ("failed", 0)] {
        samples.set(&amdgpu::BAD_PAGES, &["GPU-a", state], pages);
    }
    insta::assert_snapshot!(output(&gpu::ECC, samples), @r"
    unhealthy ecc GPU 0 (0000:c1:00.0) had 2 uncorrected memory errors since the driver was loaded; reset the GPU before the next job (amd-smi reset --gpureset)
    unhealthy ecc GPU 0 (0000:c1:00.0) waits for a reset to take 1 bad pages of its memory out of use; reset the GPU before the next job (amd-smi reset --gpureset)
    ");
}
