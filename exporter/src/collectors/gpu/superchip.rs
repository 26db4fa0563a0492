//! Values that only superchips and racks have: the link from the GPU to its CPU (NVLink-C2C), the
//! power of the whole module, and the GPU's place in the rack.
//!
//! Fields and meanings are those of nvml.h (NVIDIA/go-nvml): `NVML_FI_DEV_C2C_LINK_*`,
//! `NVML_POWER_SCOPE_*` and `nvmlPlatformInfo_v2_t`. Other GPUs refuse each once, and it is not
//! requested again.

use stepwatch_sys::nvml::field as id;
use stepwatch_sys::nvml::{Ask, Platform};

use super::decode;
use super::families::{C2C_ERRORS, C2C_LOW_POWER, C2C_SPEED, C2C_UP, MODULE_POWER, PLATFORM_INFO};
use crate::family::Family;
use crate::nvml::Gpu;
use crate::samples::Samples;

/// The most links between a GPU and its CPU; Grace has ten.
const MAX_C2C_LINKS: u32 = 16;
/// The upper bound of a plausible power, in milliwatts.
const MAX_POWER: f64 = 1e8;
/// The upper bound of a plausible speed, in MB/s.
const MAX_SPEED: f64 = 1e7;
const MEGA: f64 = 1e6;
/// The upper bound of counters: all are lower, and all blank values are higher.
const MOST: f64 = 9e18;
/// The values of `NVML_POWER_SCOPE_*`.
const SCOPES: &[(u32, &str)] = &[(1, "module"), (2, "memory")];

/// A field of a link, its family, the label of an error, the factor, and the largest value.
type Row = (u32, &'static Family, Option<&'static str>, f64, f64);

static C2C: &[Row] = &[
    (id::NVML_FI_DEV_C2C_LINK_GET_STATUS, &C2C_UP, None, 1.0, 1.0),
    (id::NVML_FI_DEV_C2C_LINK_GET_MAX_BW, &C2C_SPEED, None, MEGA, MAX_SPEED),
    (id::NVML_FI_DEV_C2C_LINK_POWER_STATE, &C2C_LOW_POWER, None, 1.0, 1.0),
    (id::NVML_FI_DEV_C2C_LINK_ERROR_INTR, &C2C_ERRORS, Some("crc"), 1.0, MOST),
    (id::NVML_FI_DEV_C2C_LINK_ERROR_REPLAY, &C2C_ERRORS, Some("replay"), 1.0, MOST),
    (id::NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B, &C2C_ERRORS, Some("replay_back_to_back"), 1.0, MOST),
];

/// Reads the power of the module that the GPU is part of, and of its memory.
pub(super) fn read_power(gpu: &mut Gpu, out: &mut Samples) {
    let asked: Vec<Ask> =
        SCOPES.iter().map(|(scope, _)| Ask::scoped(id::NVML_FI_DEV_POWER_INSTANT, *scope)).collect();
    let uuid = gpu.id.uuid.clone();
    for ((_, scope), number) in SCOPES.iter().zip(gpu.fields(&asked)) {
        let watts = number.and_then(|n| decode::field(n, 0.0, MAX_POWER)).map(|milliwatts| milliwatts * 1e-3);
        out.maybe(&MODULE_POWER, &[&uuid, scope], watts);
    }
}

/// Reads the links between the GPU and its CPU.
pub(super) fn read_c2c(gpu: &mut Gpu, out: &mut Samples) {
    let count = gpu.fields(&[Ask::unscoped(id::NVML_FI_DEV_C2C_LINK_COUNT)]).pop().flatten();
    let count = count.and_then(|n| decode::field(n, 0.0, MAX_C2C_LINKS.into())).unwrap_or(0.0) as u32;
    let asked: Vec<Ask> =
        (0..count).flat_map(|link| C2C.iter().map(move |row| Ask::scoped(row.0, link))).collect();
    if asked.is_empty() {
        return;
    }
    let uuid = gpu.id.uuid.clone();
    for (link, numbers) in (0..count).zip(gpu.fields(&asked).chunks(C2C.len())) {
        let link = link.to_string();
        for ((_, family, kind, scale, most), number) in C2C.iter().zip(numbers) {
            let value = number.and_then(|n| decode::field(n, 0.0, *most)).map(|v| v * scale);
            match kind {
                Some(kind) => out.maybe(family, &[&uuid, &link, kind], value),
                None => out.maybe(family, &[&uuid, &link], value),
            }
        }
    }
}

pub(super) fn write_platform(uuid: &str, platform: &Platform, out: &mut Samples) {
    let Platform { chassis, slot, tray, host, module, ib_guid } = platform;
    let [slot, tray, host, module] = [slot, tray, host, module].map(u8::to_string);
    out.set(&PLATFORM_INFO, &[uuid, chassis, &slot, &tray, &host, &module, ib_guid], 1u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fit_their_families() {
        for (_, family, label, ..) in C2C {
            assert_eq!(family.labels.len(), 2 + usize::from(label.is_some()), "{}", family.name);
        }
    }
}
