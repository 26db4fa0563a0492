//! Decodes the memory of a transceiver: temperature, voltage, light and alarms.
//!
//! Two layouts: SFF-8636 (QSFP+ and QSFP28, up to 100 Gb/s) and CMIS (QSFP-DD, OSFP and QSFP112,
//! from 200 Gb/s on). Bytes are those of the specifications SFF-8636 2.11 and OIF-CMIS 5.3, which
//! ethtool follows too (`qsfp.h` and `cmis.h` of its source). Flags stay set until they are read.

use stepwatch_sys::module_eeprom::{HALF_PAGE, Half};

/// The identifiers of each layout in byte 0 (SFF-8024, "Identifier Values").
const SFF_8636: [u8; 3] = [0x0c, 0x0d, 0x11];
const CMIS: [u8; 3] = [0x18, 0x19, 0x1e];
/// The CMIS pages of the supported monitors and of the state of lanes.
const ADVERTISED: u8 = 0x01;
const LANES: u8 = 0x11;
const SFF_LANES: usize = 4;
const CMIS_LANES: usize = 8;
/// The units: 1/256 degree, 100 microvolts, 0.1 microwatts, 2 microamperes.
const DEGREE: f64 = 1.0 / 256.0;
const VOLT: f64 = 1e-4;
const WATT: f64 = 1e-7;
const AMPERE: f64 = 2e-6;

/// The severity of a flag: outside of the usual limits, or of the operating limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grade {
    Warning,
    Alarm,
}

/// A flag that is set. Lanes count from 1; 0 is the module as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flag {
    pub(super) grade: Grade,
    /// A name such as `temperature_high`, `receive_power_low` or `receive_los`.
    pub(super) name: &'static str,
    pub(super) lane: usize,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Module {
    pub(super) form: &'static str,
    pub(super) vendor: String,
    pub(super) part: String,
    pub(super) serial: String,
    pub(super) celsius: Option<f64>,
    pub(super) volts: Option<f64>,
    /// The power by lane. Empty for copper cables, and if the module does not measure it.
    pub(super) received: Vec<f64>,
    pub(super) sent: Vec<f64>,
    pub(super) bias: Vec<f64>,
    pub(super) flags: Vec<Flag>,
}

/// Reads a module by its halves. `None` for an unknown layout or an empty cage.
pub(super) fn read<E>(mut half: impl FnMut(Half) -> Result<Vec<u8>, E>) -> Result<Option<Module>, E> {
    let lower = half(Half::Lower)?;
    let kind = lower.first().copied().unwrap_or_default();
    if SFF_8636.contains(&kind) {
        let upper = half(Half::Upper { page: 0 })?;
        return Ok(Some(sff_8636(&lower, &upper)));
    }
    if !CMIS.contains(&kind) {
        return Ok(None);
    }
    let upper = half(Half::Upper { page: 0 })?;
    let mut module = cmis(&lower, &upper);
    // A cable with flat memory has one page and measures nothing.
    if lower.get(2).is_some_and(|status| status & 0x80 == 0) {
        let (advertised, lanes) =
            (half(Half::Upper { page: ADVERTISED })?, half(Half::Upper { page: LANES })?);
        cmis_lanes(&mut module, &advertised, &lanes);
    }
    Ok(Some(module))
}

/// A byte of a half page by its number in the page: the upper half begins at 128.
fn at(half: &[u8], number: usize) -> u8 {
    half.get(number % HALF_PAGE).copied().unwrap_or_default()
}

fn word(half: &[u8], number: usize) -> u16 {
    u16::from_be_bytes([at(half, number), at(half, number + 1)])
}

fn text(half: &[u8], number: usize, length: usize) -> String {
    let from = number % HALF_PAGE;
    let bytes = half.get(from..from + length).unwrap_or_default();
    let plain = bytes.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { ' ' });
    plain.collect::<String>().trim().to_owned()
}

fn words(half: &[u8], number: usize, lanes: usize, unit: f64) -> Vec<f64> {
    (0..lanes).map(|lane| f64::from(word(half, number + 2 * lane)) * unit).collect()
}

fn sff_8636(lower: &[u8], upper: &[u8]) -> Module {
    let mut module = Module {
        form: if at(lower, 0) == 0x11 { "QSFP28" } else { "QSFP+" },
        vendor: text(upper, 148, 16),
        part: text(upper, 168, 16),
        serial: text(upper, 196, 16),
        ..Module::default()
    };
    // Device technologies from 0xa on are copper; passive copper measures nothing.
    if at(upper, 147) >> 4 >= 0xa {
        return module;
    }
    module.celsius = Some(f64::from(word(lower, 22).cast_signed()) * DEGREE);
    module.volts = Some(f64::from(word(lower, 26)) * VOLT);
    module.received = words(lower, 34, SFF_LANES, WATT);
    module.bias = words(lower, 42, SFF_LANES, AMPERE);
    module.sent = words(lower, 50, SFF_LANES, WATT);
    for lane in 0..SFF_LANES {
        let bit = |byte: usize, bit: usize| at(lower, byte) >> bit & 1 == 1;
        let lost = [(3, lane, "receive_los"), (3, lane + 4, "transmit_los"), (4, lane, "transmit_fault")];
        for (_, _, name) in lost.into_iter().filter(|(byte, at, _)| bit(*byte, *at)) {
            module.flags.push(Flag { grade: Grade::Alarm, name, lane: lane + 1 });
        }
        // There are four bits a lane and two lanes a byte, with the first lane in the upper half.
        let lanes = [(9, RECEIVE_POWER), (11, BIAS), (13, TRANSMIT_POWER)];
        for (byte, names) in lanes {
            let four = at(lower, byte + lane / 2) >> (4 * (1 - lane % 2)) & 0xf;
            flags(four, names, lane + 1, &mut module.flags);
        }
    }
    flags(at(lower, 6) >> 4, TEMPERATURE, 0, &mut module.flags);
    flags(at(lower, 7) >> 4, VOLTAGE, 0, &mut module.flags);
    module.flags.sort();
    module
}

const TEMPERATURE: [&str; 2] = ["temperature_high", "temperature_low"];
const VOLTAGE: [&str; 2] = ["voltage_high", "voltage_low"];
const RECEIVE_POWER: [&str; 2] = ["receive_power_high", "receive_power_low"];
const TRANSMIT_POWER: [&str; 2] = ["transmit_power_high", "transmit_power_low"];
const BIAS: [&str; 2] = ["bias_high", "bias_low"];

/// Decodes four bits, from the highest: high alarm, low alarm, high warning, low warning.
fn flags(four: u8, [high, low]: [&'static str; 2], lane: usize, out: &mut Vec<Flag>) {
    let all = [
        (8, Grade::Alarm, high),
        (4, Grade::Alarm, low),
        (2, Grade::Warning, high),
        (1, Grade::Warning, low),
    ];
    out.extend(all.into_iter().filter(|(bit, ..)| four & bit != 0).map(|(_, grade, name)| Flag {
        grade,
        name,
        lane,
    }));
}

fn cmis(lower: &[u8], upper: &[u8]) -> Module {
    let form = match at(lower, 0) {
        0x18 => "QSFP-DD",
        0x19 => "OSFP",
        _ => "QSFP112",
    };
    let mut module = Module {
        form,
        vendor: text(upper, 129, 16),
        part: text(upper, 148, 16),
        serial: text(upper, 166, 16),
        ..Module::default()
    };
    if at(lower, 2) & 0x80 != 0 {
        return module;
    }
    module.celsius = Some(f64::from(word(lower, 14).cast_signed()) * DEGREE);
    module.volts = Some(f64::from(word(lower, 16)) * VOLT);
    // The order from the lowest bit: high alarm, low alarm, high warning, low warning.
    let (temperature, voltage) = (at(lower, 9) & 0xf, at(lower, 9) >> 4);
    flags(temperature.reverse_bits() >> 4, TEMPERATURE, 0, &mut module.flags);
    flags(voltage.reverse_bits() >> 4, VOLTAGE, 0, &mut module.flags);
    module
}

fn cmis_lanes(module: &mut Module, advertised: &[u8], lanes: &[u8]) {
    let supported = at(advertised, 160);
    if supported & 0x01 != 0 {
        let multiplier = match supported & 0x18 {
            0x08 => 2.0,
            0x10 => 4.0,
            _ => 1.0,
        };
        module.bias = words(lanes, 170, CMIS_LANES, AMPERE * multiplier);
    }
    if supported & 0x02 != 0 {
        module.sent = words(lanes, 154, CMIS_LANES, WATT);
    }
    if supported & 0x04 != 0 {
        module.received = words(lanes, 186, CMIS_LANES, WATT);
    }
    // Each flag has a byte with one bit a lane.
    let all = [
        (135, Grade::Alarm, "transmit_fault"),
        (136, Grade::Alarm, "transmit_los"),
        (139, Grade::Alarm, TRANSMIT_POWER[0]),
        (140, Grade::Alarm, TRANSMIT_POWER[1]),
        (141, Grade::Warning, TRANSMIT_POWER[0]),
        (142, Grade::Warning, TRANSMIT_POWER[1]),
        (143, Grade::Alarm, BIAS[0]),
        (144, Grade::Alarm, BIAS[1]),
        (145, Grade::Warning, BIAS[0]),
        (146, Grade::Warning, BIAS[1]),
        (147, Grade::Alarm, "receive_los"),
        (149, Grade::Alarm, RECEIVE_POWER[0]),
        (150, Grade::Alarm, RECEIVE_POWER[1]),
        (151, Grade::Warning, RECEIVE_POWER[0]),
        (152, Grade::Warning, RECEIVE_POWER[1]),
    ];
    for (byte, grade, name) in all {
        let set = (0..CMIS_LANES).filter(|lane| at(lanes, byte) >> lane & 1 == 1);
        module.flags.extend(set.map(|lane| Flag { grade, name, lane: lane + 1 }));
    }
    module.flags.sort();
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes bytes at their number in the page.
    pub(in super::super) fn put(half: &mut [u8], number: usize, bytes: &[u8]) {
        half[number % HALF_PAGE..number % HALF_PAGE + bytes.len()].copy_from_slice(bytes);
    }

    pub(in super::super) fn half() -> Vec<u8> {
        vec![0; HALF_PAGE]
    }

    fn near(found: &[f64], want: &[f64]) {
        assert_eq!(found.len(), want.len());
        for (found, want) in found.iter().zip(want) {
            assert!((found - want).abs() < 1e-9, "{found} {want}");
        }
    }

    /// The values of a 100G-SR4 module in the documentation of `ethtool -m`.
    #[test]
    fn qsfp28() {
        let (mut lower, mut upper) = (half(), half());
        put(&mut lower, 0, &[0x11]);
        put(&mut lower, 22, &[0x23, 0x80]);
        put(&mut lower, 26, &[0x80, 0xe8]);
        put(&mut lower, 34, &[0x20, 0x00, 0x1f, 0x00, 0x00, 0x00, 0x10, 0x00]);
        put(&mut lower, 42, &[0x0b, 0xb8]);
        put(&mut lower, 50, &[0x27, 0x10]);
        // Lane 3 receives no light: loss of signal, and the low alarm and warning of its power.
        put(&mut lower, 3, &[0b0000_0100]);
        put(&mut lower, 10, &[0b0101_0000]);
        put(&mut lower, 6, &[0b0010_0000]);
        put(&mut upper, 148, b"Mellanox        ");
        put(&mut upper, 168, b"MMA1B00-C100D   ");
        let module = read(|of| Ok::<_, ()>(if of == Half::Lower { lower.clone() } else { upper.clone() }));
        let module = module.unwrap().unwrap();
        assert_eq!((module.form, &*module.vendor, &*module.part), ("QSFP28", "Mellanox", "MMA1B00-C100D"));
        assert_eq!((module.celsius, module.volts), (Some(35.5), Some(0.0001 * f64::from(0x80e8_u16))));
        near(&module.received, &[819.2e-6, 793.6e-6, 0.0, 409.6e-6]);
        near(&module.bias[..1], &[6e-3]);
        near(&module.sent[..1], &[1e-3]);
        let flags: Vec<_> = module.flags.iter().map(|f| (f.grade, f.name, f.lane)).collect();
        assert_eq!(
            flags,
            [
                (Grade::Warning, "receive_power_low", 3),
                (Grade::Warning, "temperature_high", 0),
                (Grade::Alarm, "receive_los", 3),
                (Grade::Alarm, "receive_power_low", 3),
            ]
        );
        // A passive copper cable.
        put(&mut upper, 147, &[0xa0]);
        let module = sff_8636(&lower, &upper);
        assert!(module.celsius.is_none() && module.received.is_empty() && module.flags.is_empty());
    }

    #[test]
    fn osfp() {
        let (mut lower, mut upper, mut advertised, mut lanes) = (half(), half(), half(), half());
        put(&mut lower, 0, &[0x19]);
        put(&mut lower, 9, &[0b0000_0101]);
        put(&mut lower, 14, &[0xff, 0x00]);
        put(&mut lower, 16, &[0x80, 0xe8]);
        put(&mut upper, 129, b"NVIDIA          ");
        put(&mut upper, 166, b"MT2311FT00001   ");
        put(&mut advertised, 160, &[0x07 | 0x08]);
        put(&mut lanes, 154, &[0x27, 0x10]);
        put(&mut lanes, 170, &[0x0b, 0xb8]);
        put(&mut lanes, 186, &[0x13, 0x88]);
        put(&mut lanes, 150, &[0b1000_0000]);
        put(&mut lanes, 147, &[0b1000_0001]);
        let half = |of: Half| {
            Ok::<_, ()>(match of {
                Half::Lower => lower.clone(),
                Half::Upper { page: 0 } => upper.clone(),
                Half::Upper { page: ADVERTISED } => advertised.clone(),
                Half::Upper { .. } => lanes.clone(),
            })
        };
        let module = read(half).unwrap().unwrap();
        assert_eq!((module.form, &*module.serial, module.celsius), ("OSFP", "MT2311FT00001", Some(-1.0)));
        near(&module.sent[..2], &[1e-3, 0.0]);
        near(&module.bias[..1], &[12e-3]);
        near(&module.received[..1], &[0.5e-3]);
        assert_eq!(module.received.len(), 8);
        let flags: Vec<_> = module.flags.iter().map(|f| (f.grade, f.name, f.lane)).collect();
        assert_eq!(
            flags,
            [
                (Grade::Warning, "temperature_high", 0),
                (Grade::Alarm, "receive_los", 1),
                (Grade::Alarm, "receive_los", 8),
                (Grade::Alarm, "receive_power_low", 8),
                (Grade::Alarm, "temperature_high", 0),
            ]
        );
        // A cable with flat memory has no further pages, so none is requested.
        put(&mut lower, 2, &[0x80]);
        let asked = std::cell::Cell::new(0);
        let half = |of: Half| {
            asked.set(asked.get() + 1);
            Ok::<_, ()>(if of == Half::Lower { lower.clone() } else { upper.clone() })
        };
        let module = read(half).unwrap().unwrap();
        assert_eq!((asked.get(), module.celsius, module.flags.len()), (2, None, 0));
    }

    #[test]
    fn an_empty_cage_and_one_of_another_kind() {
        assert_eq!(read(|_| Err::<Vec<u8>, _>("no module")), Err("no module"));
        assert_eq!(read(|_| Ok::<_, ()>(vec![0x03])), Ok(None), "SFP");
        assert_eq!(read(|_| Ok::<_, ()>(Vec::new())), Ok(None));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes(kind in proptest::sample::select([0x0du8, 0x11, 0x18, 0x19].to_vec()), bytes: Vec<u8>) {
            let module = read(|_| Ok::<_, ()>([vec![kind], bytes.clone()].concat()));
            proptest::prop_assert!(module.unwrap().unwrap().vendor.len() <= 16);
        }
    }
}
