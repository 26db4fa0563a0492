//! Defines what is read of one GPU at each interval, and the families of the values.
//!
//! Three things are never read: the PCIe throughput function, which measures for 20 ms while it
//! holds the driver's lock; the fields that count the bytes of PCIe (197, 198), which "can be
//! wrapped" (nvml.h) and, at 32 bits, do so several times a second under load; and the list of
//! graphics processes, which takes milliseconds. On GPUs with the monitoring of [`gpm`], PCIe is
//! measured there.

use stepwatch_sys::nvml::field as id;
use stepwatch_sys::nvml::{Ask, Clock, Device, EccLifetime, EccLocation, EccSeverity, Fabric, Threshold};

use super::decode::{self, count, measure};
use super::families::{
    CLOCK, CLOCK_MAX, ECC, ECC_ENABLED, ENERGY, FABRIC_HEALTH, FABRIC_INFO, FABRIC_STATE, MARGIN,
    MARGIN_THRESHOLD, MEMORY_FREE, MEMORY_RESERVED, MEMORY_TOTAL, MEMORY_USED, MEMORY_UTILIZATION, MIG_INFO,
    MIG_MEMORY_TOTAL, MIG_MEMORY_USED, MODE_INFO, NO_PERMISSION, PCIE_ERRORS, PCIE_GENERATION,
    PCIE_MAX_GENERATION, PCIE_MAX_WIDTH, PCIE_WIDTH, PERSISTENCE, POWER, POWER_INSTANT, POWER_LIMIT,
    PROCESSES, PSTATE, RECOVERY, REMAP_BANKS, REMAP_FAILED, REMAP_PENDING, REMAPPED, RETIRED,
    RETIRED_PENDING, SRAM, SRAM_THRESHOLD, SRAM_UNIT, TEMPERATURE, THRESHOLD, THROTTLE, THROTTLED,
    UTILIZATION,
};
use super::{gpm, nvlink, superchip};
use crate::collectors::kernel::recovery_action;
use crate::family::Family;
use crate::nvml::Gpu;
use crate::samples::Samples;

/// A field, and the conversion of its value.
struct Row {
    field: u32,
    family: &'static Family,
    /// The value of the family's second label.
    label: Option<&'static str>,
    scale: f64,
    /// The valid range before scaling.
    range: (f64, f64),
}

const fn row(
    field: u32,
    family: &'static Family,
    label: Option<&'static str>,
    scale: f64,
    range: (f64, f64),
) -> Row {
    Row { field, family, label, scale, range }
}

/// The range of counters: all are lower, and all blank values are higher.
const COUNTS: (f64, f64) = (0.0, 9e18);
const DEGREES: (f64, f64) = (0.0, 200.0);
/// The range of temperature margins and their thresholds.
const MARGINS: (f64, f64) = (-200.0, 200.0);
/// Up to a hundred kilowatts.
const MILLIWATTS: (f64, f64) = (0.0, 1e8);
const NANO: f64 = 1e-9;

static FAST: &[Row] = &[
    row(id::NVML_FI_DEV_MEMORY_TEMP, &TEMPERATURE, Some("memory"), 1.0, DEGREES),
    row(id::NVML_FI_DEV_POWER_INSTANT, &POWER_INSTANT, None, 1e-3, MILLIWATTS),
    row(id::NVML_FI_DEV_PERF_POLICY_POWER, &THROTTLED, Some("sw_power_cap"), NANO, COUNTS),
    row(id::NVML_FI_DEV_PERF_POLICY_THERMAL, &THROTTLED, Some("thermal"), NANO, COUNTS),
    row(id::NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, &THROTTLED, Some("sync_boost"), NANO, COUNTS),
    row(id::NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, &THROTTLED, Some("board_limit"), NANO, COUNTS),
    row(id::NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, &THROTTLED, Some("low_utilization"), NANO, COUNTS),
    row(id::NVML_FI_DEV_PERF_POLICY_RELIABILITY, &THROTTLED, Some("reliability"), NANO, COUNTS),
    row(
        id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
        &THROTTLED,
        Some("sw_thermal_slowdown"),
        NANO,
        COUNTS,
    ),
    row(
        id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
        &THROTTLED,
        Some("hw_thermal_slowdown"),
        NANO,
        COUNTS,
    ),
    row(
        id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
        &THROTTLED,
        Some("hw_power_brake_slowdown"),
        NANO,
        COUNTS,
    ),
];

static SLOW: &[Row] = &[
    row(id::NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, &MARGIN_THRESHOLD, Some("shutdown"), 1.0, MARGINS),
    row(id::NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, &MARGIN_THRESHOLD, Some("slowdown"), 1.0, MARGINS),
    row(id::NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, &MARGIN_THRESHOLD, Some("memory_max"), 1.0, MARGINS),
    row(id::NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, &MARGIN_THRESHOLD, Some("gpu_max"), 1.0, MARGINS),
    row(id::NVML_FI_DEV_PCIE_REPLAY_COUNTER, &PCIE_ERRORS, Some("replay"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, &PCIE_ERRORS, Some("replay_rollover"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER, &PCIE_ERRORS, Some("l0_to_recovery"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, &PCIE_ERRORS, Some("correctable"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED, &PCIE_ERRORS, Some("naks_received"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR, &PCIE_ERRORS, Some("receiver"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_COUNT_BAD_TLP, &PCIE_ERRORS, Some("bad_tlp"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_COUNT_NAKS_SENT, &PCIE_ERRORS, Some("naks_sent"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_COUNT_BAD_DLLP, &PCIE_ERRORS, Some("bad_dllp"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, &PCIE_ERRORS, Some("non_fatal"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR, &PCIE_ERRORS, Some("fatal"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, &PCIE_ERRORS, Some("unsupported_request"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR, &PCIE_ERRORS, Some("lcrc"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_PCIE_COUNT_LANE_ERROR, &PCIE_ERRORS, Some("lane"), 1.0, COUNTS),
];

/// Rows of memory, for partitioned GPUs, where the function that returns all of them does not work.
static REMAP: &[Row] = &[
    row(id::NVML_FI_DEV_REMAPPED_COR, &REMAPPED, Some("correctable"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_REMAPPED_UNC, &REMAPPED, Some("uncorrectable"), 1.0, COUNTS),
    row(id::NVML_FI_DEV_REMAPPED_PENDING, &REMAP_PENDING, None, 1.0, (0.0, 1.0)),
    row(id::NVML_FI_DEV_REMAPPED_FAILURE, &REMAP_FAILED, None, 1.0, (0.0, 1.0)),
];

const CLOCKS: &[(Clock, &str)] =
    &[(Clock::Graphics, "graphics"), (Clock::Sm, "sm"), (Clock::Memory, "memory"), (Clock::Video, "video")];

const THRESHOLDS: &[(Threshold, &str)] = &[
    (Threshold::Shutdown, "shutdown"),
    (Threshold::Slowdown, "slowdown"),
    (Threshold::MemoryMax, "memory_max"),
    (Threshold::GpuMax, "gpu_max"),
];

const SEVERITIES: &[(EccSeverity, &str)] =
    &[(EccSeverity::Corrected, "corrected"), (EccSeverity::Uncorrected, "uncorrected")];

const LIFETIMES: &[(EccLifetime, &str)] =
    &[(EccLifetime::Volatile, "volatile"), (EccLifetime::Aggregate, "aggregate")];

const LOCATIONS: &[(EccLocation, &str)] = &[
    (EccLocation::L1, "l1_cache"),
    (EccLocation::L2, "l2_cache"),
    (EccLocation::Dram, "dram"),
    (EccLocation::RegisterFile, "register_file"),
    (EccLocation::Texture, "texture"),
    (EccLocation::TextureShared, "texture_shared"),
    (EccLocation::Cbu, "cbu"),
    (EccLocation::Sram, "sram"),
];

const MEGA: f64 = 1e6;
/// A hundred gigahertz, as the upper bound of a plausible clock.
const MAX_MEGAHERTZ: f64 = 1e5;
const MAX_LANES: f64 = 64.0;
const MAX_GENERATION: f64 = 16.0;
const MAX_PSTATE: f64 = 15.0;

/// Reads the values that change every second.
pub(super) fn fast(gpu: &mut Gpu, out: &mut Samples) {
    let id = gpu.id.clone();
    let uuid: &[&str] = &[&id.uuid];
    if let Some((busy, memory)) = gpu.ask("utilization", 0, Device::utilization) {
        out.maybe(&UTILIZATION, uuid, decode::ratio(busy.into()));
        out.maybe(&MEMORY_UTILIZATION, uuid, decode::ratio(memory.into()));
    }
    if let Some(memory) = gpu.ask("memory", 0, Device::memory) {
        out.maybe(&MEMORY_USED, uuid, count(memory.used));
        out.maybe(&MEMORY_FREE, uuid, count(memory.free));
        out.maybe(&MEMORY_RESERVED, uuid, count(memory.reserved));
        out.maybe(&MEMORY_TOTAL, uuid, count(memory.total));
    }
    let temperature = gpu.ask("temperature", 0, Device::temperature);
    out.maybe(&TEMPERATURE, &[&id.uuid, "gpu"], temperature.and_then(|t| measure(t, DEGREES.1)));
    let margin = gpu.ask("margin", 0, Device::temperature_margin).map(f64::from);
    out.maybe(&MARGIN, uuid, margin.filter(|m| *m >= MARGINS.0 && *m <= MARGINS.1));
    let milliwatts = |v: u32| measure(v, MILLIWATTS.1).map(|v| v * 1e-3);
    let power = gpu.ask("power", 0, Device::power_milliwatts);
    out.maybe(&POWER, uuid, power.and_then(milliwatts));
    let energy = gpu.ask("energy", 0, Device::energy_millijoules);
    out.maybe(&ENERGY, uuid, energy.and_then(count).map(|v| v * 1e-3));
    for (clock, domain) in CLOCKS {
        let value = gpu.ask("clock", *clock as u32, |g| g.clock_megahertz(*clock));
        out.maybe(&CLOCK, &[&id.uuid, domain], value.and_then(hertz));
    }
    let reasons = gpu.ask("event reasons", 0, Device::clocks_event_reasons);
    let reasons = reasons.or_else(|| gpu.ask("throttle reasons", 0, Device::throttle_reasons));
    throttle(&id.uuid, reasons, out);
    let state = gpu.ask("performance state", 0, Device::performance_state);
    out.maybe(&PSTATE, uuid, state.and_then(|s| measure(s, MAX_PSTATE)));
    fields(gpu, FAST, out);
    superchip::read_power(gpu, out);
    gpm::read(gpu, out);
    for function in &gpu.denied {
        out.set(&NO_PERMISSION, &[&id.uuid, function], 1u64);
    }
}

/// Reads the values that change from day to day, or are expensive.
pub(super) fn slow(gpu: &mut Gpu, out: &mut Samples) {
    let id = gpu.id.clone();
    let uuid: &[&str] = &[&id.uuid];
    gpu.find_instances();
    let limit = gpu.ask("power limit", 0, Device::power_limit_milliwatts);
    out.maybe(&POWER_LIMIT, uuid, limit.and_then(|v| measure(v, MILLIWATTS.1)).map(|v| v * 1e-3));
    for (clock, domain) in CLOCKS {
        let value = gpu.ask("max clock", *clock as u32, |g| g.max_clock_megahertz(*clock));
        out.maybe(&CLOCK_MAX, &[&id.uuid, domain], value.and_then(hertz));
    }
    for (threshold, kind) in THRESHOLDS {
        let value = gpu.ask("threshold", *threshold as u32, |g| g.temperature_threshold(*threshold));
        out.maybe(&THRESHOLD, &[&id.uuid, kind], value.and_then(|t| measure(t, DEGREES.1)));
    }
    for (what, family, ask, most) in [
        ("pcie generation", &PCIE_GENERATION, Device::pcie_generation as fn(&Device) -> _, MAX_GENERATION),
        ("pcie width", &PCIE_WIDTH, Device::pcie_width, MAX_LANES),
        ("pcie max generation", &PCIE_MAX_GENERATION, Device::pcie_max_generation, MAX_GENERATION),
        ("pcie max width", &PCIE_MAX_WIDTH, Device::pcie_max_width, MAX_LANES),
        ("persistence mode", &PERSISTENCE, Device::persistence_mode, 1.0),
        ("retired pages pending", &RETIRED_PENDING, Device::retired_pages_pending, 1.0),
    ] {
        out.maybe(family, uuid, gpu.ask(what, 0, ask).and_then(|v: u32| measure(v, most)));
    }
    let mode =
        gpu.ask("compute mode", 0, Device::compute_mode).and_then(|m| decode::COMPUTE_MODES.get(m as usize));
    if mode.is_some() || !id.gsp_firmware.is_empty() {
        out.set(&MODE_INFO, &[&id.uuid, mode.copied().unwrap_or_default(), &id.gsp_firmware], 1u64);
    }
    out.maybe(&PROCESSES, uuid, gpu.processes().map(|pids| pids.len()));
    memory_errors(gpu, out);
    fields(gpu, SLOW, out);
    recovery_action(gpu, out);
    nvlink::read(gpu, out);
    nvlink::read_switched(gpu, out);
    superchip::read_c2c(gpu, out);
    if let Some(fabric) = gpu.ask("fabric", 0, Device::fabric) {
        write_fabric(&id.uuid, &fabric, out);
    }
    instances(gpu, out);
}

fn hertz(megahertz: u32) -> Option<f64> {
    measure(megahertz, MAX_MEGAHERTZ).map(|v| v * MEGA)
}

fn fields(gpu: &mut Gpu, rows: &[Row], out: &mut Samples) {
    let id = gpu.id.clone();
    let asked: Vec<Ask> = rows.iter().map(|r| Ask::unscoped(r.field)).collect();
    for (row, number) in rows.iter().zip(gpu.fields(&asked)) {
        let value = number.and_then(|n| decode::field(n, row.range.0, row.range.1)).map(|v| v * row.scale);
        match row.label {
            Some(label) => out.maybe(row.family, &[&id.uuid, label], value),
            None => out.maybe(row.family, &[&id.uuid], value),
        }
    }
}

pub(super) fn throttle(uuid: &str, bits: Option<u64>, out: &mut Samples) {
    let Some(bits) = bits.filter(|b| count(*b).is_some()) else { return };
    for (bit, reason) in decode::REASONS {
        out.set(&THROTTLE, &[uuid, reason], bits & bit != 0);
    }
    for reason in decode::unnamed_reasons(bits) {
        out.set(&THROTTLE, &[uuid, &reason], true);
    }
}

fn memory_errors(gpu: &mut Gpu, out: &mut Samples) {
    let id = gpu.id.clone();
    let enabled = gpu.ask("ecc mode", 0, Device::ecc_mode);
    out.maybe(&ECC_ENABLED, &[&id.uuid], enabled.map(|(current, _)| current));
    for (severity, severity_name) in SEVERITIES {
        for (lifetime, lifetime_name) in LIFETIMES {
            let mut located = false;
            for (location, name) in LOCATIONS {
                let key = (*severity as u32) << 16 | (*lifetime as u32) << 8 | *location as u32;
                let errors = gpu.ask("ecc at", key, |g| g.ecc_at(*severity, *lifetime, *location));
                let errors = errors.and_then(count);
                located |= errors.is_some();
                out.maybe(&ECC, &[&id.uuid, severity_name, lifetime_name, name], errors);
            }
            if !located {
                let key = (*severity as u32) << 8 | *lifetime as u32;
                let errors = gpu.ask("ecc total", key, |g| g.ecc_total(*severity, *lifetime)).and_then(count);
                out.maybe(&ECC, &[&id.uuid, severity_name, lifetime_name, "all"], errors);
            }
        }
    }
    if let Some(sram) = gpu.ask("sram", 0, Device::sram) {
        for (lifetime, counts) in [("volatile", sram.volatile), ("aggregate", sram.aggregate)] {
            for (kind, errors) in ["uncorrected_parity", "uncorrected_secded", "corrected"].iter().zip(counts)
            {
                out.maybe(&SRAM, &[&id.uuid, lifetime, kind], count(errors));
            }
        }
        for (unit, errors) in ["l2", "sm", "pcie", "microcontroller", "other"].iter().zip(sram.units) {
            out.maybe(&SRAM_UNIT, &[&id.uuid, unit], count(errors));
        }
        out.set(&SRAM_THRESHOLD, &[&id.uuid], sram.threshold_exceeded);
    }
    match gpu.ask("remapped rows", 0, Device::remapped_rows) {
        Some(rows) => {
            out.maybe(&REMAPPED, &[&id.uuid, "correctable"], count(rows.correctable));
            out.maybe(&REMAPPED, &[&id.uuid, "uncorrectable"], count(rows.uncorrectable));
            out.set(&REMAP_PENDING, &[&id.uuid], rows.pending);
            out.set(&REMAP_FAILED, &[&id.uuid], rows.failed);
        }
        None => fields(gpu, REMAP, out),
    }
    if let Some(banks) = gpu.ask("remap banks", 0, Device::remap_banks) {
        let banks = [banks.max, banks.high, banks.partial, banks.low, banks.none];
        for (availability, banks) in ["max", "high", "partial", "low", "none"].iter().zip(banks) {
            out.maybe(&REMAP_BANKS, &[&id.uuid, availability], count(banks));
        }
    }
    for (cause, double) in [("single_bit", false), ("double_bit", true)] {
        let pages = gpu.ask("retired pages", double.into(), |g| g.retired_pages(double));
        out.maybe(&RETIRED, &[&id.uuid, cause], pages.and_then(count));
    }
}

fn recovery_action(gpu: &mut Gpu, out: &mut Samples) {
    let number = gpu.fields(&[Ask::unscoped(id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)]).pop().flatten();
    let most = f64::from(recovery_action::MAX_NUMBER);
    if let Some(wanted) = number.and_then(|n| decode::field(n, 0.0, most)) {
        write_action(&gpu.id.uuid, wanted as u32, out);
    }
}

/// Writes the recovery action of a GPU that answers nothing until it is reset.
pub(super) fn wants_reset(uuid: &str, out: &mut Samples) {
    write_action(uuid, recovery_action::GPU_RESET, out);
}

fn write_action(uuid: &str, wanted: u32, out: &mut Samples) {
    for (number, action) in (0..).zip(&recovery_action::ALL) {
        out.set(&RECOVERY, &[uuid, action.name], number == wanted);
    }
    if recovery_action::ALL.get(wanted as usize).is_none() {
        out.set(&RECOVERY, &[uuid, &recovery_action::name(wanted)], true);
    }
}

pub(super) fn write_fabric(uuid: &str, fabric: &Fabric, out: &mut Samples) {
    let state = usize::from(fabric.state);
    if state >= decode::FABRIC_STATES.len() {
        return;
    }
    for (i, name) in decode::FABRIC_STATES.iter().enumerate() {
        out.set(&FABRIC_STATE, &[uuid, name], i == state);
    }
    if fabric.state == decode::FABRIC_COMPLETED {
        out.set(&FABRIC_HEALTH, &[uuid, "registration_failed"], fabric.status != 0);
        for (condition, holds) in fabric.health.into_iter().flat_map(decode::fabric_health) {
            out.set(&FABRIC_HEALTH, &[uuid, condition], holds);
        }
        if let Some(summary) = fabric.summary.filter(|s| (1..=3).contains(s)) {
            out.set(&FABRIC_HEALTH, &[uuid, "unhealthy"], summary == 2);
            out.set(&FABRIC_HEALTH, &[uuid, "limited_capacity"], summary == 3);
        }
        if fabric.cluster != [0; 16] {
            let h = hex::encode(fabric.cluster);
            let cluster = [&h[..8], &h[8..12], &h[12..16], &h[16..20], &h[20..]].join("-");
            out.set(&FABRIC_INFO, &[uuid, &cluster, &fabric.clique.to_string()], 1u64);
        }
    }
}

fn instances(gpu: &mut Gpu, out: &mut Samples) {
    let id = gpu.id.clone();
    for instance in gpu.instances.clone() {
        let (gi, ci) = (instance.gpu_instance.to_string(), instance.compute_instance.to_string());
        out.set(&MIG_INFO, &[&id.uuid, &gi, &ci, &instance.profile, &instance.uuid], 1u64);
        if let Some(memory) = gpu.ask("MIG memory", instance.key(), |_| instance.device.memory()) {
            out.maybe(&MIG_MEMORY_USED, &[&id.uuid, &gi, &ci], count(memory.used));
            out.maybe(&MIG_MEMORY_TOTAL, &[&id.uuid, &gi, &ci], count(memory.total));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fit_their_families() {
        for row in FAST.iter().chain(SLOW).chain(REMAP) {
            assert_eq!(row.family.labels.len(), 1 + usize::from(row.label.is_some()), "{}", row.family.name);
            assert!(row.range.0 < row.range.1);
        }
    }

    #[test]
    fn every_reason_is_shown_whether_it_holds_or_not() {
        let mut out = Samples::default();
        throttle("GPU-1", Some(1 << 3 | 1 << 40), &mut out);
        assert_eq!(out.get(&THROTTLE, &["GPU-1", "hw_slowdown"]), Some(1.0));
        assert_eq!(out.get(&THROTTLE, &["GPU-1", "gpu_idle"]), Some(0.0));
        assert_eq!(out.get(&THROTTLE, &["GPU-1", "bit_40"]), Some(1.0));
        let mut out = Samples::default();
        throttle("GPU-1", Some(u64::MAX), &mut out);
        throttle("GPU-1", None, &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn a_gpu_without_a_fabric_reports_no_more_than_that() {
        let mut fabric = Fabric {
            cluster: [0x1f; 16],
            clique: 7,
            state: 0,
            status: 0,
            health: Some(2 << 8 | 1),
            summary: Some(2),
        };
        let mut out = Samples::default();
        write_fabric("GPU-1", &fabric, &mut out);
        assert_eq!(out.get(&FABRIC_STATE, &["GPU-1", "not_supported"]), Some(1.0));
        assert_eq!(out.get(&FABRIC_STATE, &["GPU-1", "completed"]), Some(0.0));
        assert_eq!(out.iter().count(), 4, "nothing of a health or a cluster");
        fabric.state = 3;
        write_fabric("GPU-1", &fabric, &mut out);
        assert_eq!(out.get(&FABRIC_STATE, &["GPU-1", "completed"]), Some(1.0));
        for bad in ["degraded_bandwidth", "incorrect_configuration", "unhealthy"] {
            assert_eq!(out.get(&FABRIC_HEALTH, &["GPU-1", bad]), Some(1.0), "{bad}");
        }
        assert_eq!(out.get(&FABRIC_HEALTH, &["GPU-1", "route_unhealthy"]), None, "not reported");
        let uuid = "1f1f1f1f-1f1f-1f1f-1f1f-1f1f1f1f1f1f";
        assert_eq!(out.get(&FABRIC_INFO, &["GPU-1", uuid, "7"]), Some(1.0));
    }
}
