//! The numbers of fields in a driver. Most fields keep theirs for ever. Those of throttling were
//! added with 575, at numbers that earlier drivers use for others (power smoothing, of 570), and
//! got other numbers with 580.82.
//!
//! `nvml.h` of CUDA 12.8 (570) has power smoothing at 251 to 268, those of 12.9 (575) and 13.0
//! (580.65) throttling at 251 to 255, that of 13.0 update 1 (580.82) and all later ones throttling
//! at 269 to 273.

use std::ops::RangeInclusive;

use stepwatch_sys::nvml::Ask;

/// The throttling fields, by their numbers in this program.
const THROTTLING: RangeInclusive<u32> = 251..=255;
/// The offset of their later numbers.
const MOVED_BY: u32 = 18;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    /// The driver has no throttling fields, or does not give its version.
    Before,
    Since575,
    Since580_82,
}

impl Numbering {
    pub(super) fn for_driver(driver: &str) -> Self {
        let mut parts = driver.split('.').map(|p| p.parse::<u32>().unwrap_or(0));
        match (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) {
            version if version >= (580, 82) => Self::Since580_82,
            version if version >= (575, 0) => Self::Since575,
            _ => Self::Before,
        }
    }

    /// The field to request from the driver; `None` if it lacks the field.
    pub(super) fn wire(self, ask: Ask) -> Option<Ask> {
        match self {
            _ if !THROTTLING.contains(&ask.field) => Some(ask),
            Self::Before => None,
            Self::Since575 => Some(ask),
            Self::Since580_82 => Some(Ask { field: ask.field + MOVED_BY, ..ask }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_throttling_came_and_moved_with_drivers() {
        for (driver, field) in [
            ("590.1", Some(270)),
            ("580.82.07", Some(270)),
            ("580.65.06", Some(252)),
            ("575.51.03", Some(252)),
            // Here 252 is the privilege of power smoothing.
            ("570.172.08", None),
            ("550.163.01", None),
            ("535.274.02", None),
            ("", None),
        ] {
            let numbering = Numbering::for_driver(driver);
            assert_eq!(numbering.wire(Ask::unscoped(252)), field.map(Ask::unscoped), "{driver}");
            assert_eq!(numbering.wire(Ask::scoped(230, 3)), Some(Ask::scoped(230, 3)), "{driver}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_version(text: String, field: u32) {
            let asked = Numbering::for_driver(&text).wire(Ask::unscoped(field));
            proptest::prop_assert!(asked.is_some() || THROTTLING.contains(&field));
        }
    }
}
