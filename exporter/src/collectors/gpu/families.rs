//! The families of GPUs. Their label `gpu`, the UUID, joins them with `gpu_info`, which has all
//! other labels.

use crate::family::Family;
use crate::samples::{Labels, Samples};

const GPU: &[&str] = &["gpu"];
const LINK: &[&str] = &["gpu", "link"];
const INSTANCE: &[&str] = &["gpu", "gi"];
const COMPUTE_INSTANCE: &[&str] = &["gpu", "gi", "ci"];

macro_rules! families {
    ($($id:ident $kind:ident $name:literal $unit:literal $labels:expr, $help:expr $(=> $shown:ident)?;)*) => {
        $(pub static $id: Family = Family::$kind($name, $unit, $labels, $help)$(.$shown())?;)*
        pub static FAMILIES: &[&Family] = &[$(&$id),*];
    };
}

families! {
    // The inventory.
    INFO gauge "gpu_info" "" &["gpu", "index", "pci", "name", "serial", "vbios", "driver", "cuda", "minor"],
        "GPU of the node by its UUID, with everything else that is known of it; always 1";
    DRIVER gauge "gpu_driver_info" "" &["version"], "Version of the NVIDIA kernel driver; always 1";
    MODE_INFO gauge "gpu_mode_info" "" &["gpu", "compute_mode", "gsp_firmware"],
        "Modes of the GPU and the firmware of its system processor; always 1";
    COUNT gauge "gpu_count" "" &[], "GPUs that answer";
    EXPECTED gauge "gpu_expected_count" "" &[],
        "GPUs that the node should have: as configured, or those that it has had";
    EXPECTED_NVLINKS gauge "gpu_expected_nvlinks" "" GPU,
        "NVLinks of the GPU that should be up: as configured, or the most that a GPU of its model in this node ever had; absent of one that never had any, and of a partitioned one";
    LOST gauge "gpu_lost" "" GPU, "Whether the GPU was there and no longer answers: it fell off the bus, needs a reset or answers nothing but errors";
    UNRESPONSIVE gauge "gpu_unresponsive" "" GPU,
        "Whether the GPU answers so slowly that it is set aside: nothing of it is read until a sign of life, asked for now and then, comes quickly" => unless_zero;
    LAST_RESET gauge "gpu_last_reset_timestamp_seconds" "seconds" GPU,
        "Unix time, give or take seconds, at which the GPU was last reset or its driver loaded anew: from then on its counter of energy counts. Absent where none was noticed, which takes a counter that was seen before";
    UNUSABLE gauge "gpu_unusable_info" "" &["gpu", "index", "pci", "error"],
        "GPU that NVML counts and cannot open, and why (reset_required, gpu_is_lost, irq_issue); always 1. UUID and address are empty where it is unknown which one it is";
    PLATFORM_INFO gauge "gpu_platform_info" "" &["gpu", "chassis", "slot", "tray", "host", "module", "ib_guid"],
        "Where in its rack the GPU is, of Blackwell and later on platforms that know: serial number of the chassis, slot, compute tray, host in the slot, module in the host; always 1";
    IMEX_CHANNELS gauge "gpu_imex_channels" "" &[],
        "IMEX channels that may be opened here, through which GPUs share memory over NVLink with other nodes; absent where the driver offers none";
    PERSISTENCE gauge "gpu_persistence_mode" "" GPU, "Whether the driver keeps the GPU up while it is unused";
    // How busy it is.
    UTILIZATION gauge "gpu_utilization_ratio" "ratio" GPU,
        "Share of the last sample period in which at least one kernel ran: shows whether it is busy, not whether it is well used";
    MEMORY_UTILIZATION gauge "gpu_memory_controller_utilization_ratio" "ratio" GPU,
        "Share of the last sample period in which memory was read or written";
    MEMORY_USED gauge "gpu_memory_used_bytes" "bytes" GPU, "Memory in use";
    MEMORY_FREE gauge "gpu_memory_free_bytes" "bytes" GPU, "Memory that is free";
    MEMORY_RESERVED gauge "gpu_memory_reserved_bytes" "bytes" GPU, "Memory that the driver and its firmware keep";
    MEMORY_TOTAL gauge "gpu_memory_total_bytes" "bytes" GPU, "Memory of the GPU";
    GRAPHICS gauge "gpu_graphics_active_ratio" "ratio" GPU,
        "Share of time in which the compute or graphics engine had work, of Hopper and later: as gpu_utilization_ratio, measured by the hardware";
    SM gauge "gpu_sm_active_ratio" "ratio" GPU, "Share of time in which a multiprocessor had a warp, averaged over all of them";
    OCCUPANCY gauge "gpu_sm_occupancy_ratio" "ratio" GPU, "Warps that resided, of those that could have";
    TENSOR gauge "gpu_tensor_active_ratio" "ratio" GPU, "Share of time in which the tensor cores worked: the part of MFU that the GPU sees";
    DRAM gauge "gpu_dram_active_ratio" "ratio" GPU, "Share of time in which memory moved data";
    PIPE gauge "gpu_pipe_active_ratio" "ratio" &["gpu", "pipe"], "Share of time in which a kind of arithmetic unit worked" => on_request;
    NVLINK_RX_RATE gauge "gpu_nvlink_receive_bytes_per_second" "" GPU, "Received over all NVLinks in the last interval";
    NVLINK_TX_RATE gauge "gpu_nvlink_transmit_bytes_per_second" "" GPU, "Sent over all NVLinks in the last interval";
    PCIE_RX_RATE gauge "gpu_pcie_receive_bytes_per_second" "" GPU, "Received over PCIe, on average since the reading before, of Hopper and later; avg_over_time() shows what a rate of a counter would. NVML has no counter of bytes that is sure not to wrap between two scrapes";
    PCIE_TX_RATE gauge "gpu_pcie_transmit_bytes_per_second" "" GPU, "Sent over PCIe, as gpu_pcie_receive_bytes_per_second";
    PROCESSES gauge "gpu_processes" "" GPU, "Processes that have a compute context on the GPU";
    // Heat, power, clocks.
    TEMPERATURE gauge "gpu_temperature_celsius" "celsius" &["gpu", "sensor"], "Temperature of the chip and of the memory";
    MARGIN gauge "gpu_temperature_margin_celsius" "celsius" GPU, "How much warmer the GPU may become before it slows down";
    THRESHOLD gauge "gpu_temperature_threshold_celsius" "celsius" &["gpu", "kind"], "Temperature at which the GPU slows down or shuts down" => on_request;
    MARGIN_THRESHOLD gauge "gpu_temperature_margin_threshold_celsius" "celsius" &["gpu", "kind"],
        "Margin at which the GPU slows down or shuts down, of those that count in margins" => on_request;
    POWER gauge "gpu_power_watts" "watts" GPU, "Power of the board, on average over a second since Ampere, the A100 aside";
    POWER_INSTANT gauge "gpu_power_instant_watts" "watts" GPU, "Power of the GPU at one moment";
    MODULE_POWER gauge "gpu_module_power_watts" "watts" &["gpu", "scope"],
        "Power at one moment of the module that the GPU is part of, CPU and memory included, and of the memory of the GPU, where they are measured";
    POWER_LIMIT gauge "gpu_power_limit_watts" "watts" GPU, "Power that the GPU is held to: the lowest of all limits";
    ENERGY counter "gpu_energy_joules_total" "joules" GPU,
        "Energy used since the driver was loaded; its rate is a better mean power than samples of the power";
    CLOCK gauge "gpu_clock_hertz" "hertz" &["gpu", "domain"], "Clock now";
    CLOCK_MAX gauge "gpu_clock_max_hertz" "hertz" &["gpu", "domain"], "The highest clock that the GPU can have" => on_request;
    THROTTLE gauge "gpu_throttle_active" "" &["gpu", "reason"],
        "Whether this holds the clocks down now; sw_power_cap under load and gpu_idle without are normal" => unless_zero;
    THROTTLED counter "gpu_throttled_seconds_total" "seconds" &["gpu", "reason"], "Time for which this has held the clocks down" => unless_zero;
    PSTATE gauge "gpu_performance_state" "" GPU, "From 0, the fastest, to 15";
    // Memory errors.
    ECC_ENABLED gauge "gpu_ecc_enabled" "" GPU, "Whether memory errors are corrected";
    ECC counter "gpu_ecc_errors_total" "" &["gpu", "severity", "lifetime", "location"],
        "Memory errors; volatile ones since the driver was loaded, aggregate ones of the GPU's life. The location is all where the GPU reports no other";
    SRAM counter "gpu_sram_ecc_errors_total" "" &["gpu", "lifetime", "kind"], "Errors of the memory on the chip" => unless_zero;
    SRAM_UNIT counter "gpu_sram_ecc_uncorrected_total" "" &["gpu", "unit"], "Uncorrected errors of the memory on the chip by where it is, over the GPU's life" => unless_zero;
    SRAM_THRESHOLD gauge "gpu_sram_ecc_threshold_exceeded" "" GPU, "Whether the memory on the chip had more uncorrected errors than its maker accepts: replace the GPU";
    REMAPPED gauge "gpu_remapped_rows" "" &["gpu", "cause"], "Rows of memory that were replaced by spare ones";
    REMAP_PENDING gauge "gpu_row_remap_pending" "" GPU, "Whether a row waits for a reset of the GPU to be replaced";
    REMAP_FAILED gauge "gpu_row_remap_failed" "" GPU, "Whether a row could not be replaced: replace the GPU";
    REMAP_BANKS gauge "gpu_row_remap_banks" "" &["gpu", "availability"], "Banks of memory by how many of their spare rows are left" => on_request;
    RETIRED gauge "gpu_retired_pages" "" &["gpu", "cause"], "Pages of memory taken out of use, of GPUs before Ampere" => unless_zero;
    RETIRED_PENDING gauge "gpu_retired_pages_pending" "" GPU, "Whether a page waits for a reboot to be taken out of use";
    RECOVERY gauge "gpu_recovery_action" "" &["gpu", "action"], "What the driver wants done to the GPU: 1 for that, and on request 0 for everything else" => unless_zero;
    // PCIe.
    PCIE_GENERATION gauge "gpu_pcie_link_generation" "" GPU, "PCIe generation of the link now; lower while the GPU idles";
    PCIE_WIDTH gauge "gpu_pcie_link_width" "" GPU, "Lanes of the PCIe link now";
    PCIE_MAX_GENERATION gauge "gpu_pcie_link_max_generation" "" GPU, "PCIe generation that GPU and slot can have";
    PCIE_MAX_WIDTH gauge "gpu_pcie_link_max_width" "" GPU, "Lanes that GPU and slot can have";
    PCIE_ERRORS counter "gpu_pcie_errors_total" "" &["gpu", "kind"], "Errors of the PCIe link as the GPU counts them" => unless_zero;
    // NVLink.
    NVLINK_UP gauge "gpu_nvlink_up" "" LINK, "Whether the link is active; 0 also of a link that leads nowhere";
    NVLINK_SPEED gauge "gpu_nvlink_speed_bytes_per_second" "" LINK, "Speed of the link, each way" => on_request;
    NVLINK_TX counter "gpu_nvlink_transmit_bytes_total" "bytes" LINK, "Sent over the link" => on_request;
    NVLINK_RX counter "gpu_nvlink_receive_bytes_total" "bytes" LINK, "Received over the link" => on_request;
    NVLINK_ERRORS counter "gpu_nvlink_errors_total" "" &["gpu", "link", "kind"],
        "Errors of the link: replay, recovery and crc to the fourth generation, the others from the fifth on" => unless_zero;
    NVLINK_RECOVERIES counter "gpu_nvlink_recoveries_total" "" LINK,
        "How often the link went down for a moment and came back by itself, from the fifth generation on; those that failed are errors of kind link_recovery_failed" => unless_zero;
    NVLINK_BER gauge "gpu_nvlink_symbol_ber" "" LINK, "Bit error ratio of the symbols of the link, uncorrected" => unless_zero;
    NVLINK_EFFECTIVE_BER gauge "gpu_nvlink_effective_ber" "" LINK, "Bit error ratio of the link after correction" => unless_zero;
    NVLINK_FEC counter "gpu_nvlink_fec_history_total" "" &["gpu", "link", "errors"],
        "Blocks received over the link by how many symbols of them had to be corrected; only where the configuration asks for it";
    NVLINK_SWITCHED gauge "gpu_nvlink_switched" "" GPU,
        "Whether the NVLinks of the GPU lead to NVSwitches, and so to a fabric, of Hopper and later; 0 where they lead to other GPUs";
    C2C_UP gauge "gpu_c2c_up" "" LINK, "Whether the link between the GPU and its CPU (NVLink-C2C) is active";
    C2C_SPEED gauge "gpu_c2c_speed_bytes_per_second" "" LINK, "Speed of the link between the GPU and its CPU" => on_request;
    C2C_LOW_POWER gauge "gpu_c2c_low_power" "" LINK, "Whether the link between the GPU and its CPU saves power now" => unless_zero;
    C2C_ERRORS counter "gpu_c2c_errors_total" "" &["gpu", "link", "kind"], "Errors of the link between the GPU and its CPU" => unless_zero;
    FABRIC_STATE gauge "gpu_fabric_state" "" &["gpu", "state"], "Registration with the NVLink fabric: 1 for the state it is in; not_supported is normal where no NVSwitch is" => unless_zero;
    FABRIC_HEALTH gauge "gpu_fabric_health" "" &["gpu", "condition"], "Whether something is wrong with the NVLink fabric of the GPU" => unless_zero;
    FABRIC_INFO gauge "gpu_fabric_info" "" &["gpu", "cluster_uuid", "clique_id"], "NVLink domain of the GPU; always 1";
    // Instances of a partitioned GPU.
    MIG_INFO gauge "gpu_mig_info" "" &["gpu", "gi", "ci", "profile", "mig_uuid"], "Compute instance of a partitioned GPU; always 1";
    MIG_MEMORY_USED gauge "gpu_mig_memory_used_bytes" "bytes" COMPUTE_INSTANCE, "Memory of the instance in use";
    MIG_MEMORY_TOTAL gauge "gpu_mig_memory_total_bytes" "bytes" COMPUTE_INSTANCE, "Memory of the instance";
    MIG_SM gauge "gpu_mig_sm_active_ratio" "ratio" INSTANCE, "As gpu_sm_active_ratio, of a GPU instance";
    MIG_OCCUPANCY gauge "gpu_mig_sm_occupancy_ratio" "ratio" INSTANCE, "As gpu_sm_occupancy_ratio, of a GPU instance";
    MIG_TENSOR gauge "gpu_mig_tensor_active_ratio" "ratio" INSTANCE, "As gpu_tensor_active_ratio, of a GPU instance";
    MIG_DRAM gauge "gpu_mig_dram_active_ratio" "ratio" INSTANCE, "As gpu_dram_active_ratio, of a GPU instance";
    // The cost of NVML calls.
    FAILURES counter "gpu_nvml_failures_total" "" GPU, "Questions that the driver answered with an error, want of support aside" => unless_zero;
    NO_PERMISSION gauge "gpu_nvml_no_permission" "" &["gpu", "function"],
        "Function of NVML that the driver refuses to the user of this exporter: its values are absent, not unsupported and not zero; always 1";
    CALL_SECONDS counter "gpu_nvml_call_seconds_total" "seconds" &["function"], "Time spent in calls of a function of NVML";
    CALL_LONGEST gauge "gpu_nvml_call_max_seconds" "seconds" &["function"], "The longest call of a function of NVML in the last minute or two";
    CALL_RUNNING gauge "gpu_nvml_call_running_seconds" "seconds" &["function"], "How long a call into NVML has not returned; absent while none takes long";
    EVENT_FAILURES counter "gpu_nvml_event_failures_total" "" &[],
        "How often waiting for XID errors of the driver failed, so that some may be missing; only where the kernel log is not read";
    RELEASED gauge "stepwatch_exporter_nvml_released" "" &[], "Whether NVML was given back on request, so that GPUs can be reset or partitioned";
    RELEASED_UNTIL gauge "stepwatch_exporter_nvml_released_until_timestamp_seconds" "seconds" &[], "Unix time at which the exporter takes NVML back by itself";
}

/// The values of one family with their labels.
pub(super) fn values_of<'a>(
    samples: &'a Samples,
    family: &'static Family,
) -> impl Iterator<Item = (&'a Labels, f64)> {
    samples.iter().filter(|s| s.family.name == family.name).filter_map(|s| match s.value {
        crate::samples::Value::Number(value) => Some((&s.labels, value)),
        crate::samples::Value::Histogram(_) => None,
    })
}
