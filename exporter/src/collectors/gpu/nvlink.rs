//! Reads state, speed, bytes and errors of each NVLink of the fourth and the fifth generation.
//!
//! All of it is read in one call, with fields whose scope is the link. A field that a generation
//! lacks is refused once and not requested again. On drivers without the fields of state and
//! errors, the older functions are called.

use std::collections::{BTreeMap, BTreeSet};

use stepwatch_sys::nvml::field as id;
use stepwatch_sys::nvml::{Ask, Device, LinkError, Number};

use super::decode;
use super::families::values_of;
use super::families::{
    NVLINK_BER, NVLINK_EFFECTIVE_BER, NVLINK_ERRORS, NVLINK_FEC, NVLINK_RECOVERIES, NVLINK_RX, NVLINK_SPEED,
    NVLINK_SWITCHED, NVLINK_TX, NVLINK_UP,
};
use crate::family::Family;
use crate::nvml::Gpu;
use crate::samples::Samples;

/// The most links of a GPU: `NVML_NVLINK_MAX_LINKS` of nvml.h (NVIDIA/go-nvml). Drivers up to 580
/// had 18.
const MAX_LINKS: u32 = 36;

/// The values of `NVML_DEVICE_ARCH_*`.
const HOPPER: u32 = 9;
const UNKNOWN_ARCHITECTURE: u32 = u32::MAX;

const KIB: f64 = 1024.0;
const MEGA: f64 = 1e6;
/// The upper bound of counters: all are lower, and all blank values are higher.
const MOST: f64 = 9e18;
/// The upper bound of a plausible speed, in MB/s.
const MAX_SPEED: f64 = 1e7;

/// The conversion of a link's field.
#[derive(Clone, Copy, PartialEq)]
enum Meaning {
    Up,
    Scaled(f64, f64),
    ErrorRatio,
}

/// A field, its family, the kind of an error (as label), and the conversion.
type Row = (u32, &'static Family, Option<&'static str>, Meaning);

const COUNT: Meaning = Meaning::Scaled(1.0, MOST);

static ROWS: &[Row] = &[
    (id::NVML_FI_DEV_NVLINK_GET_STATE, &NVLINK_UP, None, Meaning::Up),
    (id::NVML_FI_DEV_NVLINK_GET_SPEED, &NVLINK_SPEED, None, Meaning::Scaled(MEGA, MAX_SPEED)),
    // The fourth generation refuses these two fields. The fifth may return zero for the two below.
    (id::NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, &NVLINK_TX, None, COUNT),
    (id::NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, &NVLINK_RX, None, COUNT),
    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, &NVLINK_TX, None, Meaning::Scaled(KIB, MOST)),
    (id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, &NVLINK_RX, None, Meaning::Scaled(KIB, MOST)),
    (id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, &NVLINK_ERRORS, Some("replay"), COUNT),
    (id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, &NVLINK_ERRORS, Some("recovery"), COUNT),
    (id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC, &NVLINK_ERRORS, Some("crc"), COUNT),
    (id::NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, &NVLINK_ERRORS, Some("malformed_packet"), COUNT),
    (id::NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, &NVLINK_ERRORS, Some("buffer_overrun"), COUNT),
    (id::NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, &NVLINK_ERRORS, Some("receive"), COUNT),
    (id::NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, &NVLINK_ERRORS, Some("receive_remote"), COUNT),
    (id::NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, &NVLINK_ERRORS, Some("receive_general"), COUNT),
    (
        id::NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
        &NVLINK_ERRORS,
        Some("local_link_integrity"),
        COUNT,
    ),
    (id::NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, &NVLINK_ERRORS, Some("transmit_discard"), COUNT),
    (id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS, &NVLINK_RECOVERIES, None, COUNT),
    (
        id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
        &NVLINK_ERRORS,
        Some("link_recovery_failed"),
        COUNT,
    ),
    (id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, &NVLINK_ERRORS, Some("effective"), COUNT),
    (id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, &NVLINK_ERRORS, Some("symbol"), COUNT),
    (id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, &NVLINK_BER, None, Meaning::ErrorRatio),
    (id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, &NVLINK_EFFECTIVE_BER, None, Meaning::ErrorRatio),
];

const OLD_ERRORS: &[(LinkError, &str)] = &[
    (LinkError::Replay, "replay"),
    (LinkError::Recovery, "recovery"),
    (LinkError::CrcFlit, "crc_flit"),
    (LinkError::CrcData, "crc_data"),
];

pub(super) fn read(gpu: &mut Gpu, out: &mut Samples) {
    let links = links(gpu);
    let asked = |link: u32| ROWS.iter().map(move |row| Ask::scoped(row.0, link));
    let asked: Vec<Ask> = (0..links).flat_map(asked).collect();
    let numbers = gpu.fields(&asked);
    let uuid = gpu.id.uuid.clone();
    for (link, numbers) in (0..links).zip(numbers.chunks(ROWS.len())) {
        let name = link.to_string();
        write(&uuid, &name, numbers, out);
        if out.get(&NVLINK_UP, &[&uuid, &name]).is_none() {
            let up = gpu.ask("nvlink state", link, |g| g.nvlink_active(link));
            out.maybe(&NVLINK_UP, &[&uuid, &name], up);
        }
        let up = out.get(&NVLINK_UP, &[&uuid, &name]) == Some(1.0);
        gpu.link_is(link, up, ROWS.iter().map(|row| row.0));
        if out.get(&NVLINK_ERRORS, &[&uuid, &name, "replay"]).is_none()
            && out.get(&NVLINK_ERRORS, &[&uuid, &name, "symbol"]).is_none()
        {
            for (error, kind) in OLD_ERRORS {
                let which = link << 8 | *error as u32;
                let count = gpu.ask("nvlink errors", which, |g| g.nvlink_errors(link, *error));
                out.maybe(&NVLINK_ERRORS, &[&uuid, &name, kind], count.and_then(decode::count));
            }
        }
    }
}

/// Reads whether the links lead to switches. GPUs before Hopper have no fabric, with switches or
/// not.
pub(super) fn read_switched(gpu: &mut Gpu, out: &mut Samples) {
    let fabric = |architecture: u32| (HOPPER..UNKNOWN_ARCHITECTURE).contains(&architecture);
    if !gpu.ask("architecture", 0, Device::architecture).is_some_and(fabric) {
        return;
    }
    let mut links: Vec<(bool, u32)> = values_of(out, &NVLINK_UP)
        .filter_map(|(labels, up)| Some((up != 1.0, labels.get(1).parse().ok()?)))
        .collect();
    // Links that are up come first, because the driver may not know the far end of others.
    links.sort_unstable();
    let switched = links
        .into_iter()
        .find_map(|(_, link)| gpu.ask("nvlink remote", link, |g| g.nvlink_to_switch(link)).flatten());
    out.maybe(&NVLINK_SWITCHED, &[&gpu.id.uuid], switched);
}

/// Reads the number of blocks by corrected errors: 16 counters a link.
pub(super) fn read_fec_history(gpu: &mut Gpu, out: &mut Samples) {
    let fields = id::NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0..=id::NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_15;
    let asked = |link: u32| fields.clone().map(move |field| (field, link));
    let asked: Vec<(u32, u32)> = (0..links(gpu)).flat_map(asked).collect();
    let numbers =
        gpu.fields(&asked.iter().map(|(field, link)| Ask::scoped(*field, *link)).collect::<Vec<_>>());
    let uuid = &gpu.id.uuid;
    for ((field, link), number) in asked.into_iter().zip(numbers) {
        let errors = (field - id::NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0).to_string();
        out.maybe(&NVLINK_FEC, &[uuid, &link.to_string(), &errors], number.and_then(|n| COUNT.value(n)));
    }
}

/// The number of links of the GPU, or the most of any GPU if it does not report one.
fn links(gpu: &mut Gpu) -> u32 {
    let count = gpu.fields(&[Ask::unscoped(id::NVML_FI_DEV_NVLINK_LINK_COUNT)]).pop().flatten();
    count.and_then(|n| decode::field(n, 0.0, MAX_LINKS.into())).map_or(MAX_LINKS, |n| n as u32)
}

fn write(uuid: &str, link: &str, numbers: &[Option<Number>], out: &mut Samples) {
    for ((_, family, kind, meaning), number) in ROWS.iter().zip(numbers) {
        let Some(value) = number.and_then(|n| meaning.value(n)) else { continue };
        match kind {
            Some(kind) => out.set(family, &[uuid, link, kind], value),
            // A generation counts bytes in one of two fields. The first that is reported is used.
            None if out.get(family, &[uuid, link]).is_none() => out.set(family, &[uuid, link], value),
            None => {}
        }
    }
}

/// The links that are up on most of at least three GPUs. If such a link is down on another GPU with
/// links, it is missing there. GPUs that are linked in pairs have none in common with the rest.
pub(super) fn usual<'a>(gpus: impl Iterator<Item = &'a Samples>) -> BTreeSet<String> {
    let (mut with_links, mut up_on) = (0, BTreeMap::<&str, usize>::new());
    for samples in gpus {
        let mut links = values_of(samples, &NVLINK_UP).peekable();
        with_links += usize::from(links.peek().is_some());
        links
            .filter(|(_, up)| *up == 1.0)
            .for_each(|(labels, _)| *up_on.entry(labels.get(1)).or_default() += 1);
    }
    let most = |(_, up): &(&str, usize)| with_links >= 3 && up * 2 > with_links;
    up_on.into_iter().filter(most).map(|(link, _)| link.to_owned()).collect()
}

impl Meaning {
    fn value(self, number: Number) -> Option<f64> {
        match self {
            // The states are inactive, active, and active in low power.
            Self::Up => decode::field(number, 0.0, 2.0).map(|state| f64::from(u8::from(state > 0.0))),
            Self::Scaled(scale, most) => decode::field(number, 0.0, most).map(|v| v * scale),
            Self::ErrorRatio => decode::field(number, 0.0, MOST).and_then(decode::bit_error_ratio),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(values: &[(u32, Number)]) -> Vec<Option<Number>> {
        ROWS.iter().map(|row| values.iter().find(|(field, _)| *field == row.0).map(|(_, n)| *n)).collect()
    }

    #[test]
    fn either_generation() {
        let mut out = Samples::default();
        let fourth = [(165, 1), (164, 26_562), (138, 10), (139, 20), (161, 3)];
        let fifth = [
            (165, 2),
            (164, 53_125),
            (138, 0),
            (139, 0),
            (202, 10),
            (204, 20),
            (221, 4),
            (222, 15 << 8 | 15),
        ];
        write("GPU-4", "0", &numbers(&fourth.map(|(f, v)| (f, Number::Unsigned(v)))), &mut out);
        write("GPU-5", "0", &numbers(&fifth.map(|(f, v)| (f, Number::Unsigned(v)))), &mut out);
        for (family, gpu, want) in [
            (&NVLINK_UP, "GPU-4", 1.0),
            (&NVLINK_UP, "GPU-5", 1.0),
            (&NVLINK_SPEED, "GPU-4", 26_562e6),
            (&NVLINK_TX, "GPU-4", 10_240.0),
            (&NVLINK_TX, "GPU-5", 10.0),
            (&NVLINK_RX, "GPU-5", 20.0),
            (&NVLINK_BER, "GPU-5", 15.0 * 1e-15),
        ] {
            let value = out.get(family, &[gpu, "0"]).unwrap();
            assert!((value / want - 1.0).abs() < 1e-9, "{} {gpu}: {value}", family.name);
        }
        assert_eq!(out.get(&NVLINK_ERRORS, &["GPU-4", "0", "replay"]), Some(3.0));
        assert_eq!(out.get(&NVLINK_ERRORS, &["GPU-5", "0", "symbol"]), Some(4.0));
        assert_eq!(out.get(&NVLINK_ERRORS, &["GPU-5", "0", "replay"]), None);
    }

    #[test]
    fn blanks_are_no_values_of_a_link() {
        let mut out = Samples::default();
        let blank = [165, 164, 138, 202, 161, 221, 222].map(|f| (f, Number::Unsigned(u64::MAX)));
        write("GPU-4", "0", &numbers(&blank), &mut out);
        write("GPU-4", "0", &numbers(&[(165, Number::Unsigned(9))]), &mut out);
        assert!(out.is_empty(), "{out:?}");
    }
}
