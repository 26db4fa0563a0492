//! `nvmlDeviceGetFieldValues`: many numbers in one call, each by its id, with its own type and its
//! own error.

use std::ffi::c_int;
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings as sys;
use sys::field_id as id;

use super::device_calls;
use crate::handles::{Answer, Out};
use crate::script::{Code, Number};
use crate::world::View;

/// The scope that means all links together.
const ALL_LINKS: u32 = u32::MAX;
/// Drivers from these versions on have power smoothing, which drivers before do not, and
/// throttling, in front of it and then behind it.
const SMOOTHING: (u32, u32) = (570, 0);
const THROTTLING: (u32, u32) = (575, 0);
const RENUMBERED: (u32, u32) = (580, 82);
/// By the numbers of 575.
const POWER_SMOOTHING_ENABLED: u32 = 256;
const POWER_SMOOTHING_PRIV_LVL: u32 = 257;
const POWER_SMOOTHING_IMM_RAMP_DOWN_ENABLED: u32 = 258;

/// How a value is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Uint,
    Ulong,
    Int,
    /// Counted in 32 bits, whatever its type: "Value can be wrapped" (nvml.h).
    Wrapping,
}

use Type::{Int, Uint, Ulong, Wrapping};

/// Fields of the whole GPU.
static FIELDS: &[(u32, &str, Type)] = &[
    (id::NVML_FI_DEV_ECC_CURRENT, "ecc.mode", Uint),
    (id::NVML_FI_DEV_ECC_PENDING, "ecc.mode", Uint),
    (id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL, "ecc.corrected.volatile", Ulong),
    (id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL, "ecc.uncorrected.volatile", Ulong),
    (id::NVML_FI_DEV_ECC_SBE_AGG_TOTAL, "ecc.corrected.aggregate", Ulong),
    (id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL, "ecc.uncorrected.aggregate", Ulong),
    (id::NVML_FI_DEV_RETIRED_SBE, "retired.single", Uint),
    (id::NVML_FI_DEV_RETIRED_DBE, "retired.double", Uint),
    (id::NVML_FI_DEV_RETIRED_PENDING, "retired.pending", Uint),
    (id::NVML_FI_DEV_PERF_POLICY_POWER, "throttled.power", Ulong),
    (id::NVML_FI_DEV_PERF_POLICY_THERMAL, "throttled.thermal", Ulong),
    (id::NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, "throttled.sync_boost", Ulong),
    (id::NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, "throttled.board_limit", Ulong),
    (id::NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, "throttled.low_utilization", Ulong),
    (id::NVML_FI_DEV_PERF_POLICY_RELIABILITY, "throttled.reliability", Ulong),
    (id::NVML_FI_DEV_MEMORY_TEMP, "temperature.memory", Uint),
    (id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, "energy", Ulong),
    (id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, "nvlink.speed", Uint),
    (id::NVML_FI_DEV_NVLINK_LINK_COUNT, "nvlink.links", Uint),
    (id::NVML_FI_DEV_C2C_LINK_COUNT, "c2c.links", Uint),
    (id::NVML_FI_DEV_PCIE_REPLAY_COUNTER, "pcie.replay", Uint),
    (id::NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, "pcie.replay_rollover", Uint),
    (id::NVML_FI_DEV_REMAPPED_COR, "remapped.correctable", Uint),
    (id::NVML_FI_DEV_REMAPPED_UNC, "remapped.uncorrectable", Uint),
    (id::NVML_FI_DEV_REMAPPED_PENDING, "remapped.pending", Uint),
    (id::NVML_FI_DEV_REMAPPED_FAILURE, "remapped.failed", Uint),
    (id::NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER, "pcie.l0_to_recovery", Uint),
    (id::NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, "pcie.correctable", Uint),
    (id::NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED, "pcie.naks_received", Uint),
    (id::NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR, "pcie.receiver_error", Uint),
    (id::NVML_FI_DEV_PCIE_COUNT_BAD_TLP, "pcie.bad_tlp", Uint),
    (id::NVML_FI_DEV_PCIE_COUNT_NAKS_SENT, "pcie.naks_sent", Uint),
    (id::NVML_FI_DEV_PCIE_COUNT_BAD_DLLP, "pcie.bad_dllp", Uint),
    (id::NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, "pcie.non_fatal", Uint),
    (id::NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR, "pcie.fatal", Uint),
    (id::NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, "pcie.unsupported_request", Uint),
    (id::NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR, "pcie.lcrc", Uint),
    (id::NVML_FI_DEV_PCIE_COUNT_LANE_ERROR, "pcie.lane", Uint),
    (id::NVML_FI_DEV_POWER_AVERAGE, "power.average", Uint),
    (id::NVML_FI_DEV_POWER_INSTANT, "power.instant", Uint),
    (id::NVML_FI_DEV_POWER_MIN_LIMIT, "power.limit.min", Uint),
    (id::NVML_FI_DEV_POWER_MAX_LIMIT, "power.limit.max", Uint),
    (id::NVML_FI_DEV_POWER_DEFAULT_LIMIT, "power.limit.default", Uint),
    (id::NVML_FI_DEV_POWER_CURRENT_LIMIT, "power.limit", Uint),
    (id::NVML_FI_DEV_ENERGY, "energy", Ulong),
    (id::NVML_FI_DEV_POWER_REQUESTED_LIMIT, "power.limit", Uint),
    (id::NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, "temperature.tlimit.shutdown", Int),
    (id::NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, "temperature.tlimit.slowdown", Int),
    (id::NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, "temperature.tlimit.memory_max", Int),
    (id::NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, "temperature.tlimit.gpu_max", Int),
    (id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES, "pcie.transmit_bytes", Wrapping),
    (id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES, "pcie.receive_bytes", Wrapping),
    (id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, "recovery_action", Uint),
    (id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, "throttled.sw_thermal", Ulong),
    (id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, "throttled.hw_thermal", Ulong),
    (id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, "throttled.power_brake", Ulong),
    (POWER_SMOOTHING_ENABLED, "smoothing.enabled", Uint),
    (POWER_SMOOTHING_PRIV_LVL, "smoothing.privilege", Uint),
    (POWER_SMOOTHING_IMM_RAMP_DOWN_ENABLED, "smoothing.ramp_down", Uint),
];

/// Fields whose scope is a link.
static LINK_FIELDS: &[(u32, &str, Type)] = &[
    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, "transmit_kib", Ulong),
    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, "receive_kib", Ulong),
    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, "raw_transmit_kib", Ulong),
    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX, "raw_receive_kib", Ulong),
    (id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, "replay", Ulong),
    (id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, "recovery", Ulong),
    (id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC, "crc_flit", Ulong),
    (id::NVML_FI_DEV_NVLINK_GET_SPEED, "speed", Uint),
    (id::NVML_FI_DEV_NVLINK_GET_STATE, "state", Uint),
    (id::NVML_FI_DEV_NVLINK_GET_VERSION, "version", Uint),
    (id::NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS, "transmit_packets", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, "transmit_bytes", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_RCV_PACKETS, "receive_packets", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, "receive_bytes", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_VL15_DROPPED, "vl15_dropped", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, "malformed_packets", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, "buffer_overrun", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, "receive_errors", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, "receive_remote_errors", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, "receive_general_errors", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, "local_link_integrity", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, "transmit_discards", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS, "recovery_successful", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, "recovery_failed", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, "recovery_events", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_RAW_BER_LANE0, "raw_ber_lane0", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_RAW_BER_LANE1, "raw_ber_lane1", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_RAW_BER, "raw_ber", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, "effective_errors", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, "effective_ber", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, "symbol_errors", Ulong),
    (id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, "symbol_ber", Ulong),
];

/// Fields whose scope is a link between the GPU and its CPU.
static C2C_FIELDS: &[(u32, &str, Type)] = &[
    (id::NVML_FI_DEV_C2C_LINK_GET_STATUS, "c2c.status", Uint),
    (id::NVML_FI_DEV_C2C_LINK_GET_MAX_BW, "c2c.speed", Uint),
    (id::NVML_FI_DEV_C2C_LINK_ERROR_INTR, "c2c.crc", Ulong),
    (id::NVML_FI_DEV_C2C_LINK_ERROR_REPLAY, "c2c.replay", Ulong),
    (id::NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B, "c2c.replay_b2b", Ulong),
    (id::NVML_FI_DEV_C2C_LINK_POWER_STATE, "c2c.low_power", Uint),
];

/// Fields whose scope is a part of the module (`NVML_POWER_SCOPE_*`), and what they are of each.
static POWER_FIELDS: &[(u32, u32, &str)] = &[
    (id::NVML_FI_DEV_POWER_AVERAGE, sys::NVML_POWER_SCOPE_MODULE, "power.module.average"),
    (id::NVML_FI_DEV_POWER_INSTANT, sys::NVML_POWER_SCOPE_MODULE, "power.module.instant"),
    (id::NVML_FI_DEV_POWER_AVERAGE, sys::NVML_POWER_SCOPE_MEMORY, "power.memory.average"),
    (id::NVML_FI_DEV_POWER_INSTANT, sys::NVML_POWER_SCOPE_MEMORY, "power.memory.instant"),
];

/// Totals over all links, whatever the scope.
static TOTALS: &[(u32, &str)] = &[
    (id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "crc_flit"),
    (id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, "crc_data"),
    (id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, "replay"),
    (id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, "recovery"),
    (id::NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL, "ecc_data"),
];

device_calls! {
    fn nvmlDeviceGetFieldValues(view, count: c_int, values: Out<sys::nvmlFieldValue_t>) {
        view.whole()?;
        let count = usize::try_from(count).ok().filter(|n| *n > 0).ok_or(Code::InvalidArgument)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
        for value in values.slice(count)? {
            (value.timestamp, value.latencyUsec) = (now, 3);
            match read(&mut view, value.fieldId, value.scopeId) {
                Ok((number, kind)) => {
                    value.nvmlReturn = sys::nvmlReturn_enum_NVML_SUCCESS;
                    write(value, number, kind);
                }
                Err(code) => value.nvmlReturn = code.value(),
            }
        }
        Ok(())
    }
}

fn read(view: &mut View<'_>, field: u32, scope: u32) -> Answer<(Number, Type)> {
    if let Some(code) = view.world.field_fault(field, view.gpu) {
        return Err(code);
    }
    let field = as_in_575(field, view.world.driver()).ok_or(Code::NotSupported)?;
    if let Some((.., name)) = POWER_FIELDS.iter().find(|f| (f.0, f.1) == (field, scope)) {
        return Ok((view.number(name)?, Uint));
    }
    if let Some((_, name, kind)) = C2C_FIELDS.iter().find(|f| f.0 == field) {
        if u64::from(scope) >= view.u64("c2c.links")? {
            return Err(Code::InvalidArgument);
        }
        return Ok((view.number(name)?, *kind));
    }
    if let Some((_, name, kind)) = FIELDS.iter().find(|f| f.0 == field) {
        return Ok((view.number(name)?, *kind));
    }
    if let Some((_, name, kind)) = LINK_FIELDS.iter().find(|f| f.0 == field) {
        let number =
            if scope == ALL_LINKS { Number::Unsigned(view.links(name)?) } else { view.link(name, scope)? };
        return Ok((number, *kind));
    }
    if let Some((_, name)) = TOTALS.iter().find(|f| f.0 == field) {
        return Ok((Number::Unsigned(view.links(name)?), Ulong));
    }
    let history = id::NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0..=id::NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_15;
    if history.contains(&field) {
        return Ok((view.link(&format!("fec.{}", field - history.start()), scope)?, Ulong));
    }
    Err(Code::NotSupported)
}

/// The number that a field of this driver has in those of 575; [`None`] where there is none.
fn as_in_575(field: u32, driver: &str) -> Option<u32> {
    let mut parts = driver.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    match field {
        ..=250 => Some(field),
        _ if version < SMOOTHING => None,
        _ if (THROTTLING..RENUMBERED).contains(&version) => Some(field),
        251..=268 => Some(field + 5),
        269..=273 if version >= RENUMBERED => Some(field - 18),
        _ => None,
    }
}

fn write(value: &mut sys::nvmlFieldValue_t, number: Number, kind: Type) {
    // What the value does not fill keeps what the program left there.
    match kind {
        Uint => {
            value.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
            value.value.uiVal = number.unsigned() as u32;
        }
        Ulong => {
            value.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
            value.value.ullVal = number.unsigned();
        }
        Wrapping => {
            value.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
            value.value.ullVal = (number.unsigned() as u32).into();
        }
        Int => {
            value.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT;
            value.value.siVal = number.signed() as i32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_once() {
        let mut ids: Vec<_> = FIELDS
            .iter()
            .chain(LINK_FIELDS)
            .chain(C2C_FIELDS)
            .map(|f| f.0)
            .chain(TOTALS.iter().map(|f| f.0))
            .collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all);
    }

    #[test]
    fn numbers_that_changed() {
        let of = |driver: &str| [230, 251, 268, 269].map(|field| as_in_575(field, driver));
        assert_eq!(of("550.163.01"), [Some(230), None, None, None]);
        assert_eq!(of("570.172.08"), [Some(230), Some(256), Some(273), None], "power smoothing");
        assert_eq!(of("575.57.08"), [Some(230), Some(251), Some(268), Some(269)]);
        assert_eq!(of("580.65.06"), of("575.57.08"));
        assert_eq!(of("580.82.07"), [Some(230), Some(256), Some(273), Some(251)]);
        assert_eq!(of("590.1"), of("580.82.07"));
    }
}
