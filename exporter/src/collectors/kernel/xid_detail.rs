//! Parses the further contents of an XID's line: the link, the multiprocessor or the unit of
//! NVLink, and their meaning.
//!
//! ```text
//! 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 ...)
//! 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000,
//! ...) 13, pid=7, name=python3, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range
//! Address
//! ```
//!
//! The tables are NVIDIA's: "XID 144-150 Decode" of the Xid catalog
//! (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), as parsed by leptonai/gpud
//! (catalog_generated.go), and the registers of XID 74 as interpreted by NVIDIA/NVSentinel
//! (docs/configuration/health-events-analyzer.md).

use std::borrow::Cow;

use stepwatch_wire::conditions::Remedy;

use super::catalogue::Level;

/// The parsed contents of a line; empty for most codes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Detail<'a> {
    /// The number of the NVLink.
    pub(super) link: Option<u32>,
    /// The unit of the NVLink that reports the error, in the driver's words.
    pub(super) unit: Option<&'a str>,
    pub(super) sm: Option<Sm>,
    /// The level and the action, if the line decides them.
    pub(super) verdict: Option<(Level, Remedy)>,
    /// The advice for a person.
    pub(super) hint: Option<Cow<'static, str>>,
}

/// A multiprocessor of the GPU. Errors of the same one in several jobs indicate broken hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sm {
    pub(super) gpc: u32,
    pub(super) tpc: u32,
    pub(super) sm: u32,
}

/// The XIDs of NVLink 5.
const NVLINK5: std::ops::RangeInclusive<u32> = 144..=150;
const NVLINK: u32 = 74;
const GRAPHICS: u32 = 13;

pub(super) fn decode(code: u32, line: &str) -> Detail<'_> {
    match code {
        GRAPHICS => Detail { sm: sm(line), ..Detail::default() },
        NVLINK => nvlink(line).unwrap_or_default(),
        code if NVLINK5.contains(&code) => nvlink5(code, line),
        _ => Detail::default(),
    }
}

impl Detail<'_> {
    /// The place of the error in the GPU, for a text: `, link 9 (NETIR_LINK_EVT)`.
    pub(super) fn place(&self) -> String {
        let link = self.link.map(|link| format!(", link {link}")).unwrap_or_default();
        let unit = self.unit.map(|unit| format!(" ({unit})")).unwrap_or_default();
        let sm = |Sm { gpc, tpc, sm }: Sm| format!(", GPC {gpc} TPC {tpc} SM {sm}");
        format!("{link}{unit}{}", self.sm.map(sm).unwrap_or_default())
    }
}

/// Parses `(GPC 1, TPC 3, SM 0)`.
fn sm(line: &str) -> Option<Sm> {
    let (_, rest) = line.split_once("(GPC ")?;
    let (place, _) = rest.split_once(')')?;
    let (gpc, rest) = place.split_once(", TPC ")?;
    let (tpc, sm) = rest.split_once(", SM ")?;
    Some(Sm { gpc: gpc.parse().ok()?, tpc: tpc.parse().ok()?, sm: sm.parse().ok()? })
}

/// The meaning of the registers of an XID 74.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Unexpected,
    Parity,
    Hardware,
    Signal,
}

impl Cause {
    fn words(self) -> &'static str {
        match self {
            Self::Unexpected => "an error that should not happen: report it to the vendor",
            Self::Parity => "ECC or parity: a second one on this link is broken hardware",
            Self::Hardware => {
                "the hardware of the link: if it returns, look at its connectors and have it tested"
            }
            Self::Signal => "signal integrity: look at the connectors of the link",
        }
    }
}

/// The number of a register, its bits, and their meaning.
const BITS: &[(usize, u32, Cause)] = &[
    (0, 1 << 1 | 1 << 20, Cause::Unexpected),
    (0, 1 << 4 | 1 << 5, Cause::Parity),
    (0, 1 << 8 | 1 << 9 | 1 << 12 | 1 << 16 | 1 << 17 | 1 << 24 | 1 << 28, Cause::Hardware),
    (0, 1 << 21 | 1 << 22, Cause::Signal),
    (0, 1 << 27 | 1 << 29, Cause::Hardware),
    (2, 1 | 1 << 1 | 1 << 2 | 1 << 6, Cause::Parity),
    (2, 1 << 13, Cause::Unexpected),
    (2, 1 << 16 | 1 << 17 | 1 << 18 | 1 << 19, Cause::Hardware),
    (3, u32::MAX, Cause::Unexpected),
    (4, u32::MAX, Cause::Hardware),
];
/// The number of registers in the line.
const REGISTERS: usize = 7;

/// Parses `link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)`.
fn nvlink(line: &str) -> Option<Detail<'_>> {
    let (_, rest) = line.split_once(" link ")?;
    let (link, registers) = rest.split_once('(')?;
    let registers = registers.split_once(')')?.0.split(',').map(|register| hex(register.trim()));
    let registers: Vec<u32> = registers.take(REGISTERS).collect::<Option<_>>()?;
    let is = |(register, bits, _): &&(usize, u32, Cause)| {
        registers.get(*register).is_some_and(|register| register & bits != 0)
    };
    let mut causes: Vec<&str> = BITS.iter().filter(is).map(|(_, _, cause)| cause.words()).collect();
    causes.dedup();
    let hint = "Drain and reset the GPUs at both ends of the link";
    let hint =
        if causes.is_empty() { hint.into() } else { format!("{hint}. It is {}", causes.join("; ")).into() };
    Some(Detail { link: Some(link.trim().parse().ok()?), hint: Some(hint), ..Detail::default() })
}

fn hex(number: &str) -> Option<u32> {
    u32::from_str_radix(number.strip_prefix("0x")?, 16).ok()
}

/// The immediate action that NVIDIA recommends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    None,
    Reset,
    /// The action of the accompanying XID 154.
    Follow154,
}

/// The part to inspect afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Nothing,
    Support,
    BothEnds,
    Signal,
    SignalAndCable,
    Software,
    SoftwareOrSignal,
    Peer,
    Host,
    Echo,
    Repeated,
}

impl Look {
    fn words(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Support => "report it to the vendor if it returns",
            Self::BothEnds => "look for an NVLink failure at either end",
            Self::Signal => "look at the signal of the link: its connectors and the baseboard",
            Self::SignalAndCable => "look at the signal of the link and its cable",
            Self::Software => "software or a person took the link down",
            Self::SoftwareOrSignal => "software took the link down, or its signal is bad",
            Self::Peer => "the fault is at the other end of the link",
            Self::Host => "the host took the link down",
            Self::Echo => "mostly the echo of another fault; report it to the vendor if it stands alone",
            Self::Repeated => "report it to the vendor if it comes more than once a day",
        }
    }
}

/// A row of the table: XID, unit, sub-codes, error statuses, action and inspection.
type Rule = (u32, &'static str, &'static [u32], &'static [u32], Action, Look);

static RULES: &[Rule] = &[
    (144, "SAW_MVB", &[0], &[0x1, 0x8], Action::None, Look::Support),
    (144, "SAW_MVB", &[0], &[0x2, 0x10], Action::Reset, Look::Support),
    (144, "SAW_MVB", &[0], &[0x4, 0x20], Action::None, Look::Nothing),
    (145, "RLW_CTRL", &[0], &[0x8000_0000], Action::None, Look::Support),
    (145, "RLW_REMAP", &[0], &[0x1, 0x2], Action::Follow154, Look::Support),
    (145, "RLW_REMAP", &[0], &[0x4, 0x8, 0x10, 0x20], Action::Follow154, Look::BothEnds),
    (145, "RLW_REMAP", &[0], &[0x40, 0x80], Action::Reset, Look::Support),
    (145, "RLW_REMAP", &[0], &[0x100, 0x200], Action::None, Look::Nothing),
    (145, "RLW_REMAP", &[0], &[0x8000_0000], Action::None, Look::Support),
    (145, "RLW_RSPCOL", &[0], &[0x1], Action::None, Look::Nothing),
    (145, "RLW_RSPCOL", &[0], &[0x2], Action::Reset, Look::Support),
    (145, "RLW_RSPCOL", &[0], &[0x8000_0000], Action::None, Look::Support),
    (145, "RLW_RXPIPE", &[0], &[0x1, 0x2, 0x4, 0x8, 0x8000_0000], Action::None, Look::Support),
    (145, "RLW_SRC_TRACK", &[0], &[0x1, 0x10, 0x20], Action::Reset, Look::Support),
    (145, "RLW_SRC_TRACK", &[0], &[0x2], Action::None, Look::Nothing),
    (145, "RLW_SRC_TRACK", &[0], &[0x4, 0x8], Action::Follow154, Look::Nothing),
    (145, "RLW_SRC_TRACK", &[0], &[0x8000_0000], Action::None, Look::Support),
    (145, "RLW_TAGSTATE", &[0], &[0x1, 0x1_0000], Action::None, Look::Nothing),
    (145, "RLW_TAGSTATE", &[0], &[0x2, 0x2_0000, 0x10_0000], Action::Reset, Look::Support),
    (145, "RLW_TAGSTATE", &[0], &[0x8000_0000], Action::None, Look::Support),
    (146, "TLW_CTRL", &[0], &[0x1], Action::None, Look::Nothing),
    (146, "TLW_CTRL", &[0], &[0x2, 0x8000_0000], Action::None, Look::Support),
    (146, "TLW_CTRL", &[0], &[0x4], Action::Reset, Look::Support),
    (146, "TLW_RX", &[0], &[0x1], Action::None, Look::Nothing),
    (146, "TLW_RX", &[0], &[0x2, 0x8000_0000], Action::None, Look::Support),
    (146, "TLW_RX", &[0], &[0x4], Action::Reset, Look::Support),
    (146, "TLW_TX", &[0], &[0x1], Action::None, Look::Nothing),
    (146, "TLW_TX", &[0], &[0x2, 0x8000_0000], Action::None, Look::Support),
    (146, "TLW_TX", &[0], &[0x4], Action::Reset, Look::Support),
    (147, "TREX", &[0], &[0x1, 0x8000_0000], Action::None, Look::Support),
    (148, "NVLPW_CTRL", &[0], &[0x8000_0000], Action::None, Look::Support),
    (149, "NETIR", &[0], &[0x0], Action::Reset, Look::Echo),
    (149, "NETIR_BER_EVENT", &[0], &[0x0, 0x1, 0x2, 0x3], Action::None, Look::SignalAndCable),
    (149, "NETIR_LINK_EVT", &[0], &[0x0], Action::Reset, Look::Echo),
    (149, "NETIR_LINK_EVT", &[1], &[0x0], Action::Reset, Look::Repeated),
    (149, "NETIR_LINK_EVT", &[2, 4, 10], &[0x0], Action::Reset, Look::Signal),
    (149, "NETIR_LINK_EVT", &[15, 17, 22], &[0x0], Action::Reset, Look::Software),
    (149, "NETIR_LINK_EVT", &[16, 18], &[0x0], Action::Reset, Look::SoftwareOrSignal),
    (149, "NETIR_LINK_EVT", &[21, 32, 33, 34, 35, 36, 37], &[0x0], Action::Reset, Look::Peer),
    (149, "NETIR_LINK_EVT", &[38], &[0x0], Action::None, Look::Software),
    (149, "NETIR_LINK_EVT", &[40], &[0x0], Action::None, Look::Host),
    (149, "NETIR_LINK_EVT", &[42, 43], &[0x0], Action::Reset, Look::SignalAndCable),
    (149, "NETIR_MFDE_EVENT", &[0], &[0x1, 0x4, 0x5, 0x7], Action::Reset, Look::Support),
    (149, "NETIR_MFDE_EVENT", &[0], &[0x3], Action::None, Look::Nothing),
    (150, "MSE_WATCHDOG", &[0], &[0x0], Action::Reset, Look::Support),
];
/// Units that drivers write in two ways.
const SAME: &[(&str, &str)] = &[
    ("NETIR_LINK_DOWN", "NETIR_LINK_EVT"),
    ("NETIR_INT", "NETIR"),
    ("NVLPW", "NVLPW_CTRL"),
    ("TLW_RX_PIPE0", "TLW_RX"),
    ("TLW_RX_PIPE1", "TLW_RX"),
    ("TLW_TX_PIPE0", "TLW_TX"),
    ("TLW_TX_PIPE1", "TLW_TX"),
];

/// Parses `RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000040 ...)`. A line that is not in
/// the table is judged by its words.
fn nvlink5(code: u32, line: &str) -> Detail<'_> {
    let unit = line.split_whitespace().next().filter(|word| is_unit(word));
    let rest = line.split_once("Link ").map(|(_, rest)| rest.trim_start());
    // -1 means that the error concerns no single link.
    let link = rest.and_then(|rest| rest.split([' ', '(']).next()?.parse().ok());
    let rule = unit.and_then(|unit| {
        let (_, words) = rest?.split_once('(')?;
        let mut words = words.split([' ', ')']).map_while(hex);
        let (info, status) = (words.next()?, words.next()?);
        rule(code, unit, info, status)
    });
    let nonfatal = line.contains("Nonfatal").then_some((Level::Warn, Remedy::None));
    match rule {
        Some((.., action, look)) => Detail {
            link,
            unit,
            verdict: Some(action.verdict(*look)),
            hint: Some(action.hint(*look)),
            ..Detail::default()
        },
        None => Detail { link, unit, verdict: nonfatal, ..Detail::default() },
    }
}

fn is_unit(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// The row for a line. The sub-code is in six bits of the first word.
fn rule(code: u32, unit: &str, info: u32, status: u32) -> Option<&'static Rule> {
    let unit = SAME.iter().find(|(other, _)| *other == unit).map_or(unit, |(_, unit)| unit);
    let subcode = info >> 20 & 0x3f;
    let fits = |(xid, of, subcodes, statuses, ..): &&Rule| {
        *xid == code && *of == unit && subcodes.contains(&subcode) && statuses.contains(&status)
    };
    RULES.iter().find(fits)
}

impl Action {
    fn verdict(self, look: Look) -> (Level, Remedy) {
        match self {
            Self::Reset => (Level::Error, Remedy::ResetGpu),
            Self::None if look == Look::Nothing => (Level::Info, Remedy::None),
            Self::None | Self::Follow154 => (Level::Warn, Remedy::None),
        }
    }

    fn hint(self, look: Look) -> Cow<'static, str> {
        let now = match self {
            Self::Reset => "Drain and reset the GPU",
            Self::None => "No action",
            Self::Follow154 => "Do what the XID 154 beside it asks for",
        };
        match look.words() {
            "" => now.into(),
            look => format!("{now}; {look}").into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RESET: (Level, Remedy) = (Level::Error, Remedy::ResetGpu);
    const WATCH: (Level, Remedy) = (Level::Warn, Remedy::None);

    /// Lines and verdicts of NVIDIA/NVSentinel (pkg/xid/parser/csv_test.go) and leptonai/gpud
    /// (components/accelerator/nvidia/xid/kmsg.go).
    #[test]
    fn sub_codes_of_nvlink_5() {
        for (code, line, link, unit, verdict, said) in [
            (
                149,
                "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
                Some(9),
                "NETIR_LINK_EVT",
                Some(RESET),
                "other end",
            ),
            (
                149,
                "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000)",
                Some(8),
                "NETIR_LINK_EVT",
                Some(RESET),
                "connectors",
            ),
            // The table overrides the word.
            (
                145,
                "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000040 0x00000000 0x00000000 0x00000000 0x00000000)",
                Some(10),
                "RLW_REMAP",
                Some(RESET),
                "vendor",
            ),
            (
                145,
                "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000004)",
                Some(10),
                "RLW_REMAP",
                Some(WATCH),
                "XID 154",
            ),
            (
                146,
                "TLW_RX_PIPE1 Nonfatal XC0 i0 Link 3 (0x0 0x1)",
                Some(3),
                "TLW_RX_PIPE1",
                Some((Level::Info, Remedy::None)),
                "No action",
            ),
            (
                144,
                "SAW_MVB Fatal XC0 i0 Link -1 (0x00000021 0x00000002)",
                None,
                "SAW_MVB",
                Some(RESET),
                "reset",
            ),
        ] {
            let detail = decode(code, line);
            assert_eq!((detail.link, detail.unit, detail.verdict), (link, Some(unit), verdict), "{line}");
            assert!(detail.hint.as_deref().is_some_and(|hint| hint.contains(said)), "{line}: {detail:?}");
        }
    }

    #[test]
    fn a_line_that_the_table_does_not_have_is_judged_by_its_words() {
        for (line, verdict) in [
            ("RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000041)", Some(WATCH)),
            ("RLW_REMAP Fatal   XC1 i0 Link 10 (0x00000082 0x00000041)", None),
            ("NETIR_LINK_EVT  Nonfatal XC0 i0 Link 08 (0x004505c6)", Some(WATCH)),
            ("NETIR_LINK_EVT  Fatal", None),
            ("", None),
        ] {
            let detail = decode(149, line);
            assert_eq!((detail.verdict, detail.hint), (verdict, None), "{line}");
        }
    }

    #[test]
    fn every_row_is_one_error() {
        for row in RULES {
            let (xid, unit, subcodes, statuses, ..) = row;
            assert!(NVLINK5.contains(xid) && is_unit(unit) && !subcodes.is_empty() && !statuses.is_empty());
            for (subcode, status) in subcodes.iter().flat_map(|s| statuses.iter().map(move |t| (s, t))) {
                let found = rule(*xid, unit, subcode << 20 | 0x1c6, *status).unwrap();
                assert!(std::ptr::eq(found, row), "{xid} {unit} {subcode} {status:#x} is there twice");
            }
        }
        for (_, unit) in SAME {
            assert!(RULES.iter().any(|rule| rule.1 == *unit), "{unit}");
        }
    }

    /// The line is from NVIDIA/NVSentinel (csv_test.go), the meaning of its bits from
    /// docs/configuration/health-events-analyzer.md there.
    #[test]
    fn registers_of_an_nvlink_before_the_fifth_generation() {
        let line = |registers: &str| format!("NVLink: fatal error detected on link 14({registers})");
        for (registers, said) in [
            ("0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", "hardware of the link"),
            ("0x200000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "signal integrity"),
            ("0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "ECC or parity"),
            ("0x2, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "should not happen"),
            ("0x0, 0x0, 0x0, 0x40000, 0x0, 0x0, 0x0", "should not happen"),
            ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "both ends"),
        ] {
            let line = line(registers);
            let detail = decode(74, &line);
            assert_eq!(detail.link, Some(14));
            assert!(
                detail.hint.as_deref().is_some_and(|hint| hint.contains(said)),
                "{registers}: {detail:?}"
            );
        }
        assert_eq!(decode(74, "Channel 0x23, MMU Fault"), Detail::default());
    }

    /// The lines are from NVIDIA/NVSentinel (csv_test.go).
    #[test]
    fn the_multiprocessor_of_a_graphics_exception() {
        let line = "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address";
        let detail = decode(13, line);
        assert_eq!(detail.sm, Some(Sm { gpc: 1, tpc: 3, sm: 0 }));
        assert_eq!(detail.place(), ", GPC 1 TPC 3 SM 0");
        let esr =
            "Graphics Exception: ESR 0x50df30=0x107000e 0x50df34=0x20 0x50df28=0xf81eb60 0x50df2c=0x1174";
        assert_eq!(decode(13, esr), Detail::default());
    }

    proptest! {
        #[test]
        fn any_line(code in 0u32..200, line in "(NETIR_LINK_EVT|RLW_REMAP|NVLink: | on )?.{0,20}( link |Link |\\(GPC )?[-0-9]{0,12}.{0,3}\\(?(0x[0-9a-f]{0,9},? ?){0,9}\\)?") {
            let detail = decode(code, &line);
            prop_assert!(detail.place().len() < 200 + line.len());
        }
    }
}
