//! `gpu_metrics`: a table of the firmware that amdgpu passes on unchanged, with a different layout
//! for each generation (drivers/gpu/drm/amd/include/kgd_pp_interface.h of torvalds/linux). Only
//! energy and the reasons for low clocks are read from it; the rest comes from other files of
//! sysfs.

/// Offsets in layout 1.3 (MI200).
const ENERGY_1_3: usize = 24;
const THROTTLED_1_3: usize = 112;
/// Offsets in layout 1.4 (MI300), whose firmware gives no reasons.
const ENERGY_1_4: usize = 24;
/// The unit of energy: 2^-16 joules.
const JOULE: f64 = 1.0 / 65_536.0;

/// Reasons by the bits of `indep_throttle_status` (`SMU_THROTTLER_*_BIT` of
/// drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h), named as gpu_throttle_active names them.
const REASONS: [(u64, &str); 4] = [
    // PPT0 to SPPT_APU: limits of power.
    (0xff, "sw_power_cap"),
    // TDC_GFX to APCC: limits of current.
    (0xff << 16, "current_limit"),
    // TEMP_GPU to VRHOT1: temperatures of the chip, its memory and its voltage regulators.
    (0x3fff << 32, "hw_thermal_slowdown"),
    // PROCHOT_CPU and PROCHOT_GFX: something outside the GPU asks for it.
    (0x3 << 46, "hw_slowdown"),
];

#[derive(Debug, Default, PartialEq)]
pub(super) struct Metrics {
    pub(super) joules: Option<f64>,
    /// Each reason and whether it holds; empty if the layout has none.
    pub(super) throttled: Vec<(&'static str, bool)>,
}

/// Reads the table; empty for an unknown layout.
pub(super) fn read(table: &[u8]) -> Metrics {
    let number = |at: usize| {
        let bytes = table.get(at..at + 8)?.try_into().ok()?;
        // The firmware sets all bits if it does not have the value.
        Some(u64::from_le_bytes(bytes)).filter(|number| *number != u64::MAX)
    };
    let joules = |at: usize| number(at).map(|number| number as f64 * JOULE);
    // The length of the table in two bytes, and its version.
    match table.get(2..4) {
        Some([1, 3]) => Metrics {
            joules: joules(ENERGY_1_3),
            throttled: number(THROTTLED_1_3).map(reasons).unwrap_or_default(),
        },
        Some([1, 4]) => Metrics { joules: joules(ENERGY_1_4), throttled: Vec::new() },
        _ => Metrics::default(),
    }
}

fn reasons(bits: u64) -> Vec<(&'static str, bool)> {
    REASONS.iter().map(|(mask, reason)| (*reason, bits & mask != 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(version: [u8; 2], parts: &[(usize, u64)]) -> Vec<u8> {
        let mut table = vec![0; 120];
        table[..4].copy_from_slice(&[120, 0, version[0], version[1]]);
        for (at, number) in parts {
            table[*at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        table
    }

    #[test]
    fn layouts() {
        // SMU_THROTTLER_TEMP_HOTSPOT_BIT and SMU_THROTTLER_PPT0_BIT.
        let read_1_3 = read(&table([1, 3], &[(24, 65_536 * 5), (112, 1 << 36 | 1)]));
        assert_eq!(read_1_3.joules, Some(5.0));
        let holds: Vec<_> = read_1_3.throttled.iter().filter(|(_, holds)| *holds).collect();
        assert_eq!(holds, [&("sw_power_cap", true), &("hw_thermal_slowdown", true)]);
        assert_eq!(
            read(&table([1, 4], &[(24, 65_536)])),
            Metrics { joules: Some(1.0), throttled: Vec::new() }
        );
        assert_eq!(read(&table([1, 3], &[(24, u64::MAX), (112, u64::MAX)])), Metrics::default());
        assert_eq!(read(&table([9, 9], &[(24, 1)])), Metrics::default());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes(bytes: Vec<u8>) {
            let _ = read(&bytes);
            let _ = read(&[&[0, 0, 1, 3][..], &bytes].concat());
        }
    }
}
