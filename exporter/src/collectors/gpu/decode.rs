//! Decodes the driver's numbers, and recognises those that are no values.
//!
//! Drivers and tools mark unknown values in many ways: all ones in 32 or 64 bits, the blank values
//! of DCGM near the top of the signed range, percentages over a hundred. None of them is published
//! as a number.

use stepwatch_sys::nvml::Number;

/// The first blank values of 32 and of 64 bits; the last ones are the largest signed numbers.
const BLANK_32: u64 = 0x7fff_fff0;
const BLANK_64: u64 = 0x7fff_ffff_ffff_fff0;

/// A count; `None` for a blank value.
pub(super) fn count(raw: impl Into<u64>) -> Option<f64> {
    let raw = raw.into();
    let blank = raw >= BLANK_64
        || raw == u64::from(u32::MAX)
        || (BLANK_32..=i32::MAX as u64).contains(&raw)
        // Minus one, and its neighbours that encode a reason.
        || (u64::from(u32::MAX) - 15..=u64::from(u32::MAX)).contains(&raw);
    (!blank).then_some(raw as f64)
}

/// A measurement of at most `most`; `None` for a blank or larger value.
pub(super) fn measure(raw: impl Into<u64>, most: f64) -> Option<f64> {
    count(raw).filter(|v| *v <= most)
}

/// Converts per cent to a ratio. Averages may be slightly over a hundred.
pub(super) fn ratio(percent: f64) -> Option<f64> {
    (0.0..101.0).contains(&percent).then(|| (percent / 100.0).min(1.0))
}

/// The value of a field if it is between `least` and `most`.
pub(super) fn field(number: Number, least: f64, most: f64) -> Option<f64> {
    let value = match number {
        Number::Unsigned(raw) => count(raw)?,
        Number::Signed(raw) if raw >= 0 => count(raw.unsigned_abs())?,
        Number::Signed(raw) => raw as f64,
        Number::Real(value) => value,
        Number::Unknown(_) => return None,
    };
    (value >= least && value <= most).then_some(value)
}

/// A bit error ratio: the mantissa is in the second byte, and the negative power of ten in the
/// first.
pub(super) fn bit_error_ratio(raw: f64) -> Option<f64> {
    let raw = raw as u64;
    let (mantissa, exponent) = ((raw >> 8) & 0xf, raw & 0xff);
    // The smallest possible value stands for zero: no error was ever seen (NVIDIA/DCGM,
    // DcgmRecorder).
    if (mantissa, exponent) == (0xf, 0xff) {
        return Some(0.0);
    }
    // More bits mean a newer coding. The value is parsed from decimal text, so that it is the
    // number that people would write.
    let text = (raw < 1 << 12).then(|| format!("{mantissa}e-{exponent}"))?;
    text.parse().ok()
}

/// The reasons for low clocks, by bit.
pub(super) const REASONS: &[(u64, &str)] = &[
    (1, "gpu_idle"),
    (1 << 1, "applications_clocks_setting"),
    (1 << 2, "sw_power_cap"),
    (1 << 3, "hw_slowdown"),
    (1 << 4, "sync_boost"),
    (1 << 5, "sw_thermal_slowdown"),
    (1 << 6, "hw_thermal_slowdown"),
    (1 << 7, "hw_power_brake_slowdown"),
    (1 << 8, "display_clock_setting"),
    (1 << 9, "board_limit"),
    (1 << 10, "reliability"),
];

/// Names for bits that are set and have no name in the table.
pub(super) fn unnamed_reasons(bits: u64) -> impl Iterator<Item = String> {
    let named: u64 = REASONS.iter().map(|(bit, _)| bit).sum();
    let unnamed = if bits == u64::MAX { 0 } else { bits & !named };
    (0..u64::BITS).filter(move |i| unnamed & (1 << i) != 0).map(|i| format!("bit_{i}"))
}

pub(super) const COMPUTE_MODES: &[&str] = &["default", "exclusive_thread", "prohibited", "exclusive_process"];

/// States of the registration with the fabric; the first means that there is no fabric.
pub(super) const FABRIC_STATES: &[&str] = &[NO_FABRIC, "not_started", "in_progress", "completed"];
pub(super) const NO_FABRIC: &str = "not_supported";
pub(super) const FABRIC_COMPLETED: u8 = 3;
/// The global fabric manager, which configures the fabric, is not connected; the fabric itself goes
/// on working.
pub const GFM_DISCONNECTED: &str = "gfm_disconnected";

/// Conditions in the fabric's health: name, first bit, mask of the bits, and the values that are
/// faults. Zero means that the condition is not reported.
const FABRIC_CONDITIONS: &[(&str, u32, u32, std::ops::RangeInclusive<u32>)] = &[
    ("degraded_bandwidth", 0, 0x3, 1..=1),
    ("route_recovery", 2, 0x3, 1..=1),
    ("route_unhealthy", 4, 0x3, 1..=1),
    ("access_timeout_recovery", 6, 0x3, 1..=1),
    ("incorrect_configuration", 8, 0xf, 2..=0xe),
    ("partition_unassigned", 12, 0x3, 2..=2),
    (GFM_DISCONNECTED, 14, 0x3, 2..=2),
];

/// The conditions that the fabric reports, and whether each holds.
pub(super) fn fabric_health(mask: u32) -> impl Iterator<Item = (&'static str, bool)> {
    // All ones means that there is no mask.
    let mask = if mask == u32::MAX { 0 } else { mask };
    FABRIC_CONDITIONS.iter().filter_map(move |(name, shift, width, harm)| {
        let value = (mask >> shift) & width;
        (value != 0 && value != *width).then(|| (*name, harm.contains(&value)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLANKS: &[u64] = &[
        u32::MAX as u64,
        u64::MAX,
        i64::MAX as u64,
        9_223_372_036_854_775_792,
        9_223_372_036_854_775_794,
        2_147_483_632,
        2_147_483_647,
        4_294_967_295,
        4_294_967_294,
    ];

    #[test]
    fn blanks_are_no_numbers() {
        for blank in BLANKS {
            assert_eq!(count(*blank), None, "{blank}");
            assert_eq!(field(Number::Unsigned(*blank), f64::MIN, f64::MAX), None, "{blank}");
            assert_eq!(field(Number::Signed(*blank as i64), 0.0, f64::MAX), None, "{blank}");
        }
        assert_eq!(count(0u32), Some(0.0), "zero is a number");
        assert_eq!(count(0x1_FFFF_FFFFu64), Some(8_589_934_591.0));
        assert_eq!(field(Number::Signed(-8), -100.0, 100.0), Some(-8.0));
        assert_eq!(field(Number::Unknown(9), f64::MIN, f64::MAX), None);
    }

    #[test]
    fn bit_error_ratios() {
        assert_eq!(bit_error_ratio(f64::from(5 << 8 | 0xc)), Some(5e-12));
        assert_eq!(bit_error_ratio(0.0), Some(0.0));
        assert_eq!(bit_error_ratio(4095.0), Some(0.0), "none was seen");
        assert_eq!(bit_error_ratio(4096.0), None);
    }

    #[test]
    fn health_of_the_fabric() {
        let health = |mask| fabric_health(mask).collect::<Vec<_>>();
        assert_eq!(health(0), [], "nothing reported");
        assert_eq!(
            health(1 << 8 | 2 | 1 << 4),
            [("degraded_bandwidth", false), ("route_unhealthy", true), ("incorrect_configuration", false)]
        );
        assert_eq!(health(4 << 8), [("incorrect_configuration", true)]);
        assert_eq!(health(u32::MAX), []);
        assert_eq!(health(1 << 12 | 1 << 14), [("partition_unassigned", false), ("gfm_disconnected", false)]);
        assert_eq!(health(2 << 12 | 2 << 14), [("partition_unassigned", true), ("gfm_disconnected", true)]);
    }

    #[test]
    fn reasons_without_a_name() {
        assert_eq!(unnamed_reasons(0x7ff).count(), 0);
        assert_eq!(unnamed_reasons(1 << 12 | 1).collect::<Vec<_>>(), ["bit_12"]);
        assert_eq!(unnamed_reasons(u64::MAX).count(), 0);
    }

    fn number() -> impl Strategy<Value = Number> {
        prop_oneof![
            any::<u64>().prop_map(Number::Unsigned),
            prop::sample::select(BLANKS).prop_map(Number::Unsigned),
            prop::sample::select(BLANKS).prop_map(|b| Number::Signed(b as i64)),
            any::<i64>().prop_map(Number::Signed),
            any::<f64>().prop_map(Number::Real),
            any::<u32>().prop_map(Number::Unknown),
        ]
    }

    proptest! {
        #[test]
        fn a_field_is_within_its_bounds_or_absent(n in number(), least in -1e6..0f64, most in 0f64..1e15) {
            let value = field(n, least, most);
            prop_assert!(value.is_none_or(|v| v.is_finite() && (least..=most).contains(&v)));
        }

        #[test]
        fn a_ratio_is_a_ratio(percent in any::<f64>()) {
            prop_assert!(ratio(percent).is_none_or(|r| (0.0..=1.0).contains(&r)));
        }

        #[test]
        fn a_count_is_below_every_blank(raw in any::<u64>()) {
            prop_assert!(count(raw).is_none_or(|v| v < BLANK_64 as f64));
        }

        #[test]
        fn any_bits(mask: u32, bits: u64, raw in any::<f64>()) {
            prop_assert!(fabric_health(mask).count() <= FABRIC_CONDITIONS.len());
            prop_assert!(unnamed_reasons(bits).count() <= 64);
            prop_assert!(bit_error_ratio(raw).is_none_or(|v| (0.0..=15.0).contains(&v)));
        }
    }
}
