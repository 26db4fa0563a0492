//! The kinds of machines: the values of a healthy GPU of each under a training job.
//!
//! Values differ from GPU to GPU where they may, so that a test sees when two were mixed up.
//! Counters grow with time at a rate that fits the gauges.

use serde::{Deserialize, Serialize};

use crate::model::{Gpu, Instance, Table};
use crate::script::Quantity;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// No link has been seen to err: mantissa 15, exponent 255.
const NO_BIT_ERRORS: u64 = 15 << 8 | 255;
/// `false` in every condition of the mask, and a configuration without fault.
const FABRIC_HEALTHY: u64 = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8;

/// Which machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fleet {
    /// The driver without a GPU.
    #[default]
    None,
    /// Eight A100 SXM4 80 GB: Ampere, NVLink 3, without GPM and fabric.
    A100,
    /// Eight H100 SXM5: Hopper, NVLink 4.
    H100,
    /// Eight H200, the first two cut into MIG devices.
    H200Mig,
    /// Eight B200: Blackwell, NVLink 5 with its own counters.
    B200,
    /// One compute tray of an NVL72 rack: four GB200 on two Grace CPUs, each GPU with 18 NVLinks to
    /// the switches of the rack and links to its CPU, in a clique of 72.
    Nvl72,
}

impl Fleet {
    /// What its GPU at this place is called by.
    pub fn uuid(self, index: usize) -> String {
        format!("GPU-{:08x}-0000-4000-8000-{index:012x}", bus(index as u64) * 0x0101_0101)
    }

    /// Where its GPU at this place is found.
    pub fn pci(self, index: usize) -> String {
        format!("0000:{:02x}:00.0", bus(index as u64))
    }

    /// What its first GPU can be asked for, by the names that a script takes.
    pub fn quantities(self) -> Vec<String> {
        let mut names: Vec<String> = self.gpu(0).values.into_keys().collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn count(self) -> usize {
        match self {
            Self::None => 0,
            Self::Nvl72 => 4,
            _ => 8,
        }
    }

    pub(crate) fn driver(self) -> &'static str {
        match self {
            // The numbers of some fields changed with 580.82.
            Self::None | Self::B200 | Self::Nvl72 => "580.95.05",
            Self::A100 => "550.163.01",
            Self::H100 | Self::H200Mig => "570.172.08",
        }
    }

    /// 12040 is CUDA 12.4.
    pub(crate) fn cuda(self) -> i32 {
        match self {
            Self::None | Self::B200 | Self::Nvl72 => 13000,
            Self::A100 => 12040,
            Self::H100 | Self::H200Mig => 12080,
        }
    }

    pub(crate) fn gpu(self, index: usize) -> Gpu {
        let mut gpu = h100(index as u64);
        gpu.set("uuid", &*self.uuid(index));
        gpu.set("pci", &*self.pci(index));
        match self {
            Self::None | Self::H100 => {}
            Self::A100 => a100(&mut gpu, index as u64),
            Self::H200Mig => h200(&mut gpu, index as u64),
            Self::B200 => b200(&mut gpu, index as u64),
            Self::Nvl72 => gb200(&mut gpu, index as u64),
        }
        gpu
    }
}

/// Where the GPUs of an eight-GPU board are found.
const BUSES: [u64; 8] = [0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf];

fn bus(index: u64) -> u64 {
    BUSES.get(index as usize).copied().unwrap_or(0xe0 + index)
}

fn h100(index: u64) -> Gpu {
    let mut gpu = Gpu::default();
    identity(&mut gpu, index, "NVIDIA H100 80GB HBM3", "H100");
    work(&mut gpu, index);
    power_and_clocks(&mut gpu, index);
    memory_errors(&mut gpu);
    pcie(&mut gpu, index);
    nvlink4(&mut gpu, index);
    fabric(&mut gpu);
    profiling(&mut gpu, index);
    gpu
}

fn identity(gpu: &mut Gpu, index: u64, name: &str, kind: &str) {
    gpu.set("name", name);
    gpu.set("serial", &*format!("165{index:010}"));
    gpu.set("vbios", "96.00.89.00.01");
    gpu.set("part", &*format!("900-{kind}-{index}"));
    gpu.set("inforom", "G520.0200.00.05");
    gpu.set("gsp.firmware", "570.172.08");
    let numbers = [
        ("minor", index),
        ("module", index + 1),
        ("numa", index / 4),
        ("brand", 14),
        ("architecture", 9),
        ("cores", 16_896),
        ("capability.major", 9),
        ("capability.minor", 0),
        ("persistence", 1),
        ("compute_mode", 0),
        ("mig.mode", 0),
        ("mig.pending", 0),
        ("mig.max", 7),
    ];
    gpu.set_all("", numbers);
}

fn work(gpu: &mut Gpu, index: u64) {
    memory(gpu, index, 81_559);
    let numbers = [
        ("utilization.gpu", 90 + index),
        ("utilization.memory", 40 + index),
        ("bar1.total", 128 * GIB),
        ("bar1.used", 2 * GIB),
        ("bar1.free", 126 * GIB),
        ("processes", 1),
        ("processes.graphics", 0),
        ("processes.mps", 0),
    ];
    gpu.set_all("", numbers);
}

fn memory(gpu: &mut Gpu, index: u64, mib: u64) {
    let (total, used, reserved) = (mib * MIB, (60 + index) * GIB, 552 * MIB);
    let numbers =
        [("total", total), ("used", used), ("reserved", reserved), ("free", total - used - reserved)];
    gpu.set_all("memory.", numbers);
}

fn power_and_clocks(gpu: &mut Gpu, index: u64) {
    let milliwatts = 500_000 + 1000 * index;
    let numbers = [
        ("temperature", 40 + index),
        ("temperature.memory", 60 + index),
        ("temperature.threshold.shutdown", 92),
        ("temperature.threshold.slowdown", 89),
        ("temperature.threshold.memory_max", 95),
        ("temperature.threshold.gpu_max", 87),
        ("power.usage", milliwatts),
        ("power.average", milliwatts),
        ("power.instant", milliwatts + 100_000),
        ("power.limit", 700_000),
        ("power.limit.default", 700_000),
        ("power.limit.min", 200_000),
        ("power.limit.max", 700_000),
        ("pstate", 0),
        ("clock.graphics", 1755),
        ("clock.sm", 1755 - index),
        ("clock.memory", 2619),
        ("clock.video", 1320),
        ("clock.max.graphics", 1980),
        ("clock.max.sm", 1980),
        ("clock.max.memory", 2619),
        ("clock.max.video", 1545),
        // The power limit holds it back.
        ("throttle.reasons", 4),
        ("throttle.supported", 0x1ff),
    ];
    gpu.set_all("", numbers);
    gpu.set("temperature.margin", 45 - index as i64);
    let limits = [("shutdown", -8_i64), ("slowdown", -2), ("memory_max", 0), ("gpu_max", 0)];
    for (limit, value) in limits {
        gpu.set(&format!("temperature.tlimit.{limit}"), value);
    }
    gpu.growing("energy", 1e12, milliwatts as f64);
    // Nanoseconds: held back by the power limit a tenth of the time, by nothing else.
    gpu.growing("throttled.power", 5e12, 1e8);
    gpu.zero("throttled.", &["thermal", "sync_boost", "board_limit", "low_utilization", "reliability"]);
    gpu.zero("throttled.", &["sw_thermal", "hw_thermal", "power_brake"]);
}

fn memory_errors(gpu: &mut Gpu) {
    gpu.set("ecc.mode", 1u64);
    for severity in ["corrected", "uncorrected"] {
        for lifetime in ["volatile", "aggregate"] {
            let kind = format!("ecc.{severity}.{lifetime}");
            gpu.set(&kind, 0u64);
            gpu.zero(&kind, &[".dram", ".sram"]);
        }
    }
    for lifetime in ["volatile", "aggregate"] {
        gpu.zero(&format!("sram.{lifetime}."), &["parity", "secded", "corrected"]);
    }
    gpu.zero("sram.bucket.", &["l2", "sm", "pcie", "mcu", "other"]);
    gpu.set("sram.threshold", 0u64);
    gpu.zero("remapped.", &["correctable", "uncorrectable", "pending", "failed"]);
    gpu.set_all("banks.", [("max", 2560), ("high", 0), ("partial", 0), ("low", 0), ("none", 0)]);
    gpu.set("recovery_action", 0u64);
}

fn pcie(gpu: &mut Gpu, index: u64) {
    let numbers = [
        ("pcie.generation", 5),
        ("pcie.generation.max", 5),
        ("pcie.generation.gpu_max", 5),
        ("pcie.width", 16),
        ("pcie.width.max", 16),
        ("pcie.speed", 32_000),
        ("pcie.replay", index),
        ("pcie.replay_rollover", 0),
    ];
    gpu.set_all("", numbers);
    let errors = [
        "l0_to_recovery",
        "correctable",
        "naks_received",
        "receiver_error",
        "bad_tlp",
        "naks_sent",
        "bad_dllp",
        "non_fatal",
        "fatal",
        "unsupported_request",
        "lcrc",
        "lane",
    ];
    gpu.zero("pcie.", &errors);
    gpu.growing("pcie.transmit_bytes", 1e9, 2e9);
    gpu.growing("pcie.receive_bytes", 2e9, 3e9);
}

fn nvlink4(gpu: &mut Gpu, index: u64) {
    let numbers = [("links", 18), ("state", 1), ("version", 6), ("speed", 26_562)];
    gpu.set_all("nvlink.", numbers);
    // KiB of one link.
    gpu.growing("nvlink.transmit_kib", 1e6 + index as f64, 1e7);
    gpu.growing("nvlink.receive_kib", 2e6 + index as f64, 1e7);
    gpu.growing("nvlink.raw_transmit_kib", 1.1e6, 1.1e7);
    gpu.growing("nvlink.raw_receive_kib", 2.2e6, 1.1e7);
    let errors = ["replay", "recovery", "crc_flit", "crc_data", "ecc_data"];
    gpu.zero("nvlink.", &errors);
}

fn fabric(gpu: &mut Gpu) {
    let numbers = [("state", 3), ("status", 0), ("clique", 0), ("health", FABRIC_HEALTHY), ("summary", 1)];
    gpu.set_all("fabric.", numbers);
    gpu.set("fabric.cluster", "00000000-0000-0000-0000-000000000000");
}

/// GPU performance monitoring: percent, and MiB/s.
fn profiling(gpu: &mut Gpu, index: u64) {
    gpu.set("gpm", 1u64);
    let metrics = [
        (1, 92.5),
        (2, 88.25 + index as f64),
        (3, 43.5),
        (4, 12.5),
        (5, 61.75 + index as f64),
        (6, 0.0),
        (7, 61.75),
        (9, 0.0),
        (10, 37.5),
        (11, 0.0),
        (12, 14.0),
        (13, 3.5),
        (20, 1907.0),
        (21, 2861.0),
        (60, 175_781.0),
        (61, 175_781.0),
    ];
    for (id, value) in metrics {
        gpu.set(&format!("gpm.{id}"), value);
    }
}

fn a100(gpu: &mut Gpu, index: u64) {
    identity(gpu, index, "NVIDIA A100-SXM4-80GB", "A100");
    gpu.without(&[
        "gpm",
        "fabric.",
        "temperature.margin",
        "temperature.tlimit",
        "pcie.transmit_bytes",
        "pcie.receive_bytes",
        "processes.mps",
    ]);
    let numbers = [
        ("architecture", 7),
        ("capability.major", 8),
        ("cores", 6912),
        ("power.usage", 350_000 + 1000 * index),
        ("power.limit", 400_000),
        ("power.limit.default", 400_000),
        ("power.limit.max", 400_000),
        ("clock.sm", 1410 - index),
        ("clock.graphics", 1410),
        ("clock.memory", 1593),
        ("clock.max.sm", 1410),
        ("clock.max.graphics", 1410),
        ("clock.max.memory", 1593),
        ("pcie.generation", 4),
        ("pcie.generation.max", 4),
        ("pcie.generation.gpu_max", 4),
        ("pcie.speed", 16_000),
        ("nvlink.links", 12),
        ("nvlink.version", 5),
        ("nvlink.speed", 25_781),
    ];
    gpu.set_all("", numbers);
    memory(gpu, index, 81_920);
    gpu.growing("energy", 1e12, 350_000.0);
}

fn h200(gpu: &mut Gpu, index: u64) {
    identity(gpu, index, "NVIDIA H200", "H200");
    memory(gpu, index, 143_771);
    if index > 1 {
        return;
    }
    gpu.set("mig.mode", 1u64);
    gpu.set("mig.pending", 1u64);
    // What the parts do not share cannot be asked of the whole.
    gpu.without(&["utilization.", "processes", "remapped.", "gpm."]);
    let cut: &[(u32, &str, u64, u64)] = match index {
        0 => &[(1, "3g.71gb", 71_424, 3), (2, "3g.71gb", 71_424, 3)],
        _ => &[(7, "1g.18gb", 17_920, 1), (8, "1g.18gb", 17_920, 1), (9, "1g.18gb", 17_920, 1)],
    };
    gpu.instances = cut.iter().map(|part| instance(index, *part)).collect();
}

fn instance(index: u64, (gi, profile, mib, slices): (u32, &str, u64, u64)) -> Instance {
    let mut values = Table::default();
    let mut set = |name: &str, quantity: Quantity| values.insert(name.to_owned(), Some(quantity));
    set("name", format!("NVIDIA H200 MIG {profile}").as_str().into());
    set("uuid", format!("MIG-{index:08x}-0000-5000-8000-{gi:012x}").as_str().into());
    set("memory.total", (mib * MIB).into());
    set("memory.used", (mib * MIB / 2).into());
    set("memory.reserved", (16 * MIB).into());
    set("memory.free", (mib * MIB / 2 - 16 * MIB).into());
    set("memory.mib", mib.into());
    set("slices", slices.into());
    set("multiprocessors", (slices * 16).into());
    set("processes", 1u64.into());
    // Of its GPU instance.
    for (id, value) in [(2, 77.0), (3, 33.0), (5, 55.0), (10, 22.0)] {
        set(&format!("gpm.{id}"), Quantity::Float(value));
    }
    Instance { gi, ci: 0, values }
}

fn b200(gpu: &mut Gpu, index: u64) {
    identity(gpu, index, "NVIDIA B200", "B200");
    gpu.without(&["nvlink."]);
    let numbers = [
        ("architecture", 10),
        ("capability.major", 10),
        ("cores", 18_944),
        ("power.usage", 800_000 + 1000 * index),
        ("power.limit", 1_000_000),
        ("power.limit.default", 1_000_000),
        ("power.limit.max", 1_000_000),
        ("nvlink.links", 18),
        ("nvlink.state", 1),
        ("nvlink.version", 7),
        ("nvlink.speed", 53_125),
    ];
    gpu.set_all("", numbers);
    memory(gpu, index, 183_359);
    gpu.set("gsp.firmware", "580.95.05");
    gpu.growing("nvlink.transmit_bytes", 1e9 + index as f64, 2e10);
    gpu.growing("nvlink.receive_bytes", 2e9 + index as f64, 2e10);
    gpu.growing("nvlink.transmit_packets", 1e6, 1e7);
    gpu.growing("nvlink.receive_packets", 1e6, 1e7);
    let errors = [
        "vl15_dropped",
        "malformed_packets",
        "buffer_overrun",
        "receive_errors",
        "receive_remote_errors",
        "receive_general_errors",
        "local_link_integrity",
        "transmit_discards",
        "recovery_successful",
        "recovery_failed",
        "recovery_events",
        "effective_errors",
        "symbol_errors",
    ];
    gpu.zero("nvlink.", &errors);
    let ratios = ["raw_ber_lane0", "raw_ber_lane1", "raw_ber", "effective_ber", "symbol_ber"];
    gpu.set_all("nvlink.", ratios.map(|kind| (kind, NO_BIT_ERRORS)));
    (0..16).for_each(|bin| gpu.set(&format!("nvlink.fec.{bin}"), if bin == 0 { 1_000_000u64 } else { 0 }));
    gpu.set("fabric.cluster", "5f1c2d3e-4a5b-4c6d-8e7f-908172635445");
    gpu.set("fabric.clique", 1u64);
}

/// Links between a Blackwell GPU and its half of Grace.
const C2C_LINKS: u64 = 5;

fn gb200(gpu: &mut Gpu, index: u64) {
    b200(gpu, index);
    identity(gpu, index, "NVIDIA GB200", "GB200");
    let numbers = [
        ("architecture", 10),
        ("capability.major", 10),
        ("cores", 18_944),
        ("power.limit", 1_200_000),
        ("power.limit.default", 1_200_000),
        ("power.limit.max", 1_200_000),
        ("power.module.instant", 1_500_000 + 1000 * index),
        ("power.memory.instant", 150_000 + 1000 * index),
        ("fabric.clique", 32_766),
    ];
    gpu.set_all("", numbers);
    gpu.set("gsp.firmware", "580.95.05");
    gpu.set("fabric.cluster", "2c5eab03-0028-9a40-8e7f-908172635445");
    // MB/s of one link.
    gpu.set_all("c2c.", [("links", C2C_LINKS), ("status", 1), ("speed", 45_000), ("low_power", 0)]);
    gpu.zero("c2c.", &["crc", "replay", "replay_b2b"]);
    gpu.set("platform.chassis", "1821025191057");
    gpu.set("platform.ib_guid", "2c5eab0300289a40");
    let place = [("slot", 14), ("tray", 8), ("host", 1), ("peer", 1), ("module", index + 1)];
    gpu.set_all("platform.", place);
}
