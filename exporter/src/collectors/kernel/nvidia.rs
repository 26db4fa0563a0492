//! Parses lines of the NVIDIA driver: XIDs of GPUs and their MIG instances, SXIDs of NVSwitches,
//! and related lines.
//!
//! ```text
//! NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
//! NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, pid=7194, name=python3, Contained: ...
//! NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=python3, Ch 00000010 caused by previous Xid 31
//! NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)
//! nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up
//! nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 10007, IO failure
//! ```

use std::borrow::Cow;

use stepwatch_wire::conditions::Remedy;

use super::catalogue::{self, Level};
use super::recovery_action;
use super::xid_detail::{self, Detail};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Xid<'a> {
    /// The address, such as `0000:3b:00.0`.
    pub(super) pci: String,
    pub(super) code: u32,
    pub(super) gpu_instance: Option<u32>,
    pub(super) compute_instance: Option<u32>,
    pub(super) pid: Option<u32>,
    pub(super) process: Option<&'a str>,
    /// The XID from which this one follows, according to the kernel.
    pub(super) caused_by: Option<u32>,
    pub(super) detail: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sxid<'a> {
    /// The number of the NVSwitch.
    pub(super) nvswitch: u32,
    pub(super) pci: String,
    pub(super) code: u32,
    pub(super) severity: Severity,
    pub(super) link: Option<u32>,
    pub(super) detail: &'a str,
}

/// The severity in the line of an SXID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    Fatal,
    NonFatal,
    /// The error was corrected.
    Correctable,
    /// The line has none: errors of the switch as a whole, such as its temperature, its firmware or
    /// its connection to the host.
    Unknown,
}

impl Severity {
    fn parse(word: &str) -> Option<Self> {
        let said =
            [("Fatal", Self::Fatal), ("Non-fatal", Self::NonFatal), ("Correctable", Self::Correctable)];
        said.into_iter().find(|(said, _)| word.eq_ignore_ascii_case(said)).map(|(_, severity)| severity)
    }

    /// The value of the label `severity`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Fatal => "fatal",
            Self::NonFatal => "non_fatal",
            Self::Correctable => "correctable",
            Self::Unknown => "unknown",
        }
    }
}

/// A parsed line of an NVIDIA driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Xid(Xid<'a>),
    Sxid(Sxid<'a>),
    /// A dump of registers, which repeats the code of the preceding SXID.
    SxidData,
    /// The UUID of the GPU at an address, printed once before the first XID.
    Identity {
        pci: String,
        uuid: &'a str,
    },
    FallenOff {
        pci: String,
    },
    /// The first line of a message of several lines.
    About {
        pci: String,
    },
    /// The last line of such a message: its GPU has fallen off the bus.
    AboutFallenOff,
    RxDetect,
}

/// Parses a line that begins with `NVRM: `.
pub(super) fn nvrm(line: &str) -> Option<Line<'_>> {
    let rest = line.strip_prefix("NVRM: ")?;
    if let Some(rest) = rest.strip_prefix("Xid (") {
        return xid(rest).map(Line::Xid);
    }
    if let Some(rest) = rest.strip_prefix("GPU at PCI:") {
        let (pci, uuid) = rest.split_once(": ")?;
        let uuid = uuid.trim();
        return uuid.starts_with("GPU-").then_some(Line::Identity { pci: address(pci)?, uuid });
    }
    if let Some(rest) = rest.strip_prefix("The NVIDIA GPU ") {
        return Some(Line::About { pci: address(rest.split([' ', '(']).next()?)? });
    }
    if let Some((pci, _)) =
        rest.strip_prefix("GPU ").and_then(|r| r.split_once(": GPU has fallen off the bus"))
    {
        return Some(Line::FallenOff { pci: address(pci)? });
    }
    if rest.trim_start().starts_with("fallen off the bus") {
        return Some(Line::AboutFallenOff);
    }
    // A GPU and a function precede it. Lists of fields may contain names that users choose.
    let (before, _) = rest.split_once("Failed to update Rx Detect Link mask")?;
    (!before.contains([',', '='])).then_some(Line::RxDetect)
}

/// Parses the text after `NVRM: Xid (`.
fn xid(rest: &str) -> Option<Xid<'_>> {
    let (place, rest) = rest.split_once("): ")?;
    let mut place = place.split(' ');
    let pci = address(place.next()?.trim_start_matches("PCI:"))?;
    let (mut gpu_instance, mut compute_instance) = (None, None);
    for part in place {
        if let Some(id) = part.strip_prefix("GPU-CI:") {
            compute_instance = id.parse().ok();
        } else if let Some(id) = part.strip_prefix("GPU-I:") {
            gpu_instance = id.parse().ok();
        }
    }
    let (code, mut detail) = rest.split_once(',').unwrap_or((rest, ""));
    let code = code.trim().parse().ok()?;
    detail = detail.trim_start();
    let (mut pid, mut process) = (None, None);
    if let Some((value, after)) = detail.strip_prefix("pid=").map(|d| d.split_once(',').unwrap_or((d, ""))) {
        pid = value.parse().ok();
        detail = after.trim_start();
    }
    // The process chooses its name, at most 15 bytes. Only the text after a comma and a space is
    // not part of it.
    if let Some((value, after)) = detail.strip_prefix("name=").map(|d| d.split_once(", ").unwrap_or((d, "")))
    {
        process = Some(value).filter(|name| !name.is_empty() && !name.contains("<unknown>"));
        detail = after;
    }
    let (detail, caused_by) = match detail.rsplit_once("caused by previous Xid ") {
        Some((before, code)) => match code.trim_end_matches(['.', '\n', ' ']).parse() {
            Ok(code) => (before, Some(code)),
            Err(_) => (detail, None),
        },
        None => (detail, None),
    };
    Some(Xid {
        pci,
        code,
        gpu_instance,
        compute_instance,
        pid,
        process,
        caused_by,
        detail: detail.trim_end(),
    })
}

/// Parses a line that begins with `nvidia-nvswitch`.
pub(super) fn nvswitch(line: &str) -> Option<Line<'_>> {
    let (nvswitch, rest) = line.strip_prefix("nvidia-nvswitch")?.split_once(": SXid (")?;
    let (pci, rest) = rest.split_once("): ")?;
    let (code, rest) = rest.split_once(',')?;
    let (nvswitch, code) = (nvswitch.parse().ok()?, code.trim().parse().ok()?);
    let said = rest.trim();
    if said.starts_with("Severity ") || said.starts_with("Data {") {
        return Some(Line::SxidData);
    }
    let (word, detail) = said.split_once(',').unwrap_or((said, ""));
    let (severity, detail) = match Severity::parse(word) {
        Some(severity) => (severity, detail.trim()),
        None => (Severity::Unknown, said),
    };
    let link = detail.strip_prefix("Link ").and_then(|l| l.split(' ').next()?.parse().ok());
    Some(Line::Sxid(Sxid {
        nvswitch,
        pci: address(pci.trim_start_matches("PCI:"))?,
        code,
        severity,
        link,
        detail,
    }))
}

/// A PCI address in the usual form, with four digits of domain and a function.
pub(super) fn address(text: &str) -> Option<String> {
    let (address, function) = text.split_once('.').unwrap_or((text, "0"));
    let mut parts = address.split(':').map(|part| {
        let digits = !part.is_empty() && part.len() <= 8 && part.bytes().all(|b| b.is_ascii_hexdigit());
        digits.then(|| u32::from_str_radix(part, 16).ok()).flatten()
    });
    let (domain, bus, device) = (parts.next()??, parts.next()??, parts.next()??);
    let function: u8 = function.parse().ok().filter(|f| *f < 8)?;
    (parts.next().is_none() && bus < 0x100 && device < 0x20)
        .then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

impl Xid<'_> {
    /// The level and the action: from the line if it contains them, otherwise from the catalogue.
    pub(super) fn verdict(&self) -> (Level, Remedy) {
        let known = catalogue::find(self.code);
        if let Some(verdict) = self.more().verdict {
            return verdict;
        }
        match self.code {
            RECOVERY => match self.recovery().map(recovery_action::by_number) {
                Some(wanted) => (wanted.level, wanted.remedy),
                None => (Level::Warn, Remedy::ContactSupport),
            },
            _ => (known.level, known.action),
        }
    }

    /// The further contents of its line.
    pub(super) fn more(&self) -> Detail<'_> {
        xid_detail::decode(self.code, self.detail)
    }

    /// Whether the XID is a harmless error of NVLink 5, by its sub-code or its text.
    pub(super) fn is_nonfatal(&self) -> bool {
        self.more().verdict.is_some_and(|(level, _)| level < Level::Error)
    }

    /// The advice for a person: the action that the driver requests, if the line contains one.
    pub(super) fn hint(&self) -> Cow<'static, str> {
        let known = catalogue::find(self.code).hint;
        match self.recovery() {
            _ if self.code != RECOVERY => self.more().hint.unwrap_or_else(|| known.into()),
            Some(wanted) => recovery_action::by_number(wanted).hint.into(),
            None => format!("{known}: {}", self.detail).into(),
        }
    }

    /// The number of the requested recovery action, if this is its code and it can be parsed.
    pub(super) fn recovery(&self) -> Option<u32> {
        (self.code == RECOVERY).then(|| recovery_action::number_in(self.detail)).flatten()
    }
}

/// The XID with which the driver requests a recovery action.
const RECOVERY: u32 = 154;

impl Sxid<'_> {
    /// The level and the action; `None` if it is only counted.
    pub(super) fn verdict(&self) -> Option<(Level, Remedy)> {
        match self.severity {
            // A reset of single GPUs does not reset their switches.
            Severity::Fatal => Some((Level::Error, Remedy::RebootNode)),
            Severity::NonFatal => Some((Level::Warn, Remedy::None)),
            Severity::Correctable => None,
            Severity::Unknown => {
                let known = catalogue::sxid(self.code);
                (known.level > Level::Info).then_some((known.level, known.action))
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(line: &str) -> Xid<'_> {
        let Some(Line::Xid(xid)) = nvrm(line) else { panic!("{line}") };
        xid
    }

    #[test]
    fn every_shape_of_an_xid() {
        let x = read(
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        );
        assert_eq!((&*x.pci, x.code, x.pid, x.process), ("0000:3b:00.0", 79, None, None));
        assert_eq!(x.detail, "GPU has fallen off the bus.");
        let x = read("NVRM: Xid (PCI:0000:3B:00): 31, pid=4242, name=python3, Ch 0000000f, intr 1");
        assert_eq!((x.pid, x.process, x.detail), (Some(4242), Some("python3"), "Ch 0000000f, intr 1"));
        let x = read("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, name=a, b, Contained");
        assert_eq!((x.gpu_instance, x.compute_instance, x.code), (Some(5), None, 94));
        let x = read("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, Contained");
        assert_eq!((x.gpu_instance, x.compute_instance, x.detail), (Some(5), Some(0), "Contained"));
        let x = read("NVRM: Xid (PCI:0000:3b:00): 45, pid=9, name=x, Ch 00000010 caused by previous Xid 31");
        assert_eq!((x.caused_by, x.detail), (Some(31), "Ch 00000010"));
        let x = read("NVRM: Xid (00000001:03:00.0): 13, pid=7, Graphics Exception");
        assert_eq!((&*x.pci, x.code, x.pid, x.process), ("0001:03:00.0", 13, Some(7), None));
        assert_eq!(read("NVRM: Xid (PCI:0000:3b:00): 48").code, 48);
        for no in [
            "NVRM: Xid (PCI:0000:3b): 48, x",
            "NVRM: Xid (PCI:0000:3b:00): x",
            "NVRM: Xid (PCI:0000:3b:00 48",
            "NVRM: Xid (",
        ] {
            assert_eq!(nvrm(no), None, "{no}");
        }
    }

    #[test]
    fn the_line_itself_may_know_better() {
        let verdict = |line: &str| read(line).verdict();
        let nvlink = "NVRM: Xid (PCI:0008:01:00): 149, pid='<unknown>', name=<unknown>, NETIR_LINK_EVT ";
        assert_eq!(
            verdict(&format!("{nvlink} Fatal   XC0 i0 Link 08 (0x004505c6)")),
            (Level::Error, Remedy::ResetGpu)
        );
        assert_eq!(
            verdict(&format!("{nvlink} Nonfatal XC0 i0 Link 08 (0x004505c6)")),
            (Level::Warn, Remedy::None)
        );
        let changed = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to";
        for (to, verdict) in [
            ("0x0 (None)", (Level::Info, Remedy::None)),
            ("0x1 (GPU Reset Required)", (Level::Error, Remedy::ResetGpu)),
            ("0x2 (Node Reboot Required)", (Level::Error, Remedy::RebootNode)),
            ("0x3 (Drain P2P)", (Level::Error, Remedy::DrainReset)),
            ("0x4 (Drain and Reset)", (Level::Warn, Remedy::DrainReset)),
            // The wording is that of newer drivers, and an unknown one.
            ("0x1 (PF FLR)", (Level::Error, Remedy::ResetGpu)),
            ("0x2 (OS Reboot)", (Level::Error, Remedy::RebootNode)),
            ("0x1 (Whatever it may be called to morrow)", (Level::Error, Remedy::ResetGpu)),
            ("0x3", (Level::Error, Remedy::DrainReset)),
            ("0x6 (Bus Reset)", (Level::Error, Remedy::ResetGpu)),
            ("GPU Reset Required (GPU Reset Required)", (Level::Error, Remedy::ResetGpu)),
            ("0x5 (Recover IMEX Domain)", (Level::Error, Remedy::ContactSupport)),
            ("0x7 (System Reboot)", (Level::Error, Remedy::RebootNode)),
            ("0x9", (Level::Error, Remedy::ContactSupport)),
            ("", (Level::Warn, Remedy::ContactSupport)),
        ] {
            assert_eq!(read(&format!("{changed} {to}")).verdict(), verdict, "{to}");
        }
        assert_eq!(verdict("NVRM: Xid (PCI:0000:3b:00): 45, x"), (Level::Info, Remedy::None));
        assert_eq!(verdict("NVRM: Xid (PCI:0000:3b:00): 4711, x"), (Level::Warn, Remedy::ContactSupport));
    }

    #[test]
    fn nvswitches() {
        let line = "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 24 LTSSM Fault Up";
        let Some(Line::Sxid(s)) = nvswitch(line) else { panic!() };
        assert_eq!(
            (s.nvswitch, &*s.pci, s.code, s.severity, s.link),
            (3, "0000:c5:00.0", 20034, Severity::Fatal, Some(24))
        );
        let line = "nvidia-nvswitch4: SXid (PCI:0000:c6:00.0): 11004, Non-fatal, ingress invalid ACL";
        let Some(Line::Sxid(s)) = nvswitch(line) else { panic!() };
        assert_eq!((s.severity, s.link, s.detail), (Severity::NonFatal, None, "ingress invalid ACL"));
        for data in ["Severity 1 Engine instance 24 Sub-engine instance 00", "Data {0x00000001, 0x00000000}"]
        {
            let data = format!("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, {data}");
            assert_eq!(nvswitch(&data), Some(Line::SxidData), "one error is not three");
        }
        assert_eq!(nvswitch("nvidia-nvswitch0: open (major=510)"), None);
    }

    #[test]
    fn an_sxid_whose_line_contains_no_severity() {
        let (error, warn) = (Level::Error, Level::Warn);
        for (said, severity, verdict) in [
            ("10007, IO failure", Severity::Unknown, Some((error, Remedy::RebootNode))),
            (
                "10004, NVSWITCH Temperature 95C | TSENSE WARN Threshold 90C",
                Severity::Unknown,
                Some((error, Remedy::CheckHardware)),
            ),
            (
                "10004, Thermal Slowdown Engaged | Temp higher than WARN Threshold",
                Severity::Unknown,
                Some((error, Remedy::CheckHardware)),
            ),
            ("10005, Thermal slowdown Disengaged", Severity::Unknown, None),
            (
                "10006, TSENSE OVERT Threshold reached. Shutting Down",
                Severity::Unknown,
                Some((error, Remedy::RebootNode)),
            ),
            ("26002, SOE init failed(1)", Severity::Unknown, Some((warn, Remedy::ContactSupport))),
            ("27005, Module 3 faulty", Severity::Unknown, Some((warn, Remedy::ContactSupport))),
            ("27002, Failed to init CCI(0)", Severity::Unknown, Some((warn, Remedy::ContactSupport))),
            ("28003, OSFP Thermal Overt Activated", Severity::Unknown, Some((error, Remedy::CheckHardware))),
            ("28004, OSFP Thermal Overt Deactivated", Severity::Unknown, None),
            ("14017, Correctable, Link 03 ingress ECC limit", Severity::Correctable, None),
            ("10001, Fatal, Unexpected PRI error", Severity::Fatal, Some((error, Remedy::RebootNode))),
        ] {
            let line = format!("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): {said}");
            let Some(Line::Sxid(s)) = nvswitch(&line) else { panic!("{line}") };
            assert_eq!((s.severity, s.verdict()), (severity, verdict), "{line}");
            assert!(said.ends_with(s.detail) && !s.detail.is_empty(), "{line}: {}", s.detail);
        }
    }

    /// The parts of a line.
    #[derive(Debug, Clone)]
    pub(in super::super) struct Written {
        place: (u32, u8, u8),
        function: Option<u8>,
        instances: (Option<u32>, Option<u32>),
        pub(in super::super) code: u32,
        /// The text in the line, and the expected value.
        pid: (String, Option<u32>),
        name: (String, Option<String>),
        detail: String,
        cause: Option<u32>,
    }

    impl Written {
        pub(in super::super) fn line(&self) -> String {
            let (domain, bus, device) = self.place;
            let part = |what: &str, number: Option<String>| number.map(|n| format!("{what}{n}"));
            let function = part(".", self.function.map(|f| f.to_string()));
            let gi = part(" GPU-I:", self.instances.0.map(|id| format!("{id:02}")));
            let ci = part(" GPU-CI:", self.instances.1.map(|id| format!("{id:02}")));
            let place = [function, gi, ci].into_iter().flatten().collect::<Vec<_>>().concat();
            let cause = part("caused by previous Xid ", self.cause.map(|code| code.to_string()));
            let said = [Some(self.detail.clone()).filter(|detail| !detail.is_empty()), cause];
            let said = part(", ", Some(said.into_iter().flatten().collect::<Vec<_>>().join(" ")));
            let said = said.filter(|said| said != ", ").unwrap_or_default();
            let (code, pid, name) = (self.code, &self.pid.0, &self.name.0);
            format!("NVRM: Xid (PCI:{domain:04x}:{bus:02x}:{device:02x}{place}): {code}{pid}{name}{said}")
        }

        fn read(&self) -> Xid<'_> {
            let (domain, bus, device) = self.place;
            let function = self.function.unwrap_or(0);
            Xid {
                pci: format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"),
                code: self.code,
                gpu_instance: self.instances.0,
                compute_instance: self.instances.1,
                pid: self.pid.1,
                process: self.name.1.as_deref(),
                caused_by: self.cause,
                detail: &self.detail,
            }
        }
    }

    fn pid() -> impl Strategy<Value = (String, Option<u32>)> {
        prop_oneof![
            Just((String::new(), None)),
            Just((", pid='<unknown>'".to_owned(), None)),
            any::<u32>().prop_map(|pid| (format!(", pid={pid}"), Some(pid))),
        ]
    }

    /// At most 15 bytes, which a program chooses.
    fn name() -> impl Strategy<Value = (String, Option<String>)> {
        let liked = "[a-zA-Z0-9_.:/()=\\[\\]<>-][a-zA-Z0-9_.:/ ()=\\[\\]<>-]{0,14}";
        prop_oneof![
            Just((String::new(), None)),
            Just((", name=<unknown>".to_owned(), None)),
            liked.prop_map(|name| (format!(", name={name}"), Some(name))),
        ]
    }

    prop_compose! {
        /// Lines of a driver with arbitrary text from other sources.
        pub(in super::super) fn written()(
            place in (any::<u32>(), any::<u8>(), 0u8..0x20),
            function in proptest::option::of(0u8..8),
            instances in (proptest::option::of(0u32..15), proptest::option::of(0u32..8)),
            code in any::<u32>(),
            pid in pid(),
            name in name(),
            detail in "([A-Z(0-9][a-zA-Z0-9_,.:;/()=<>'é -]{0,60}[a-z0-9.)])?",
            cause in proptest::option::of(any::<u32>()),
        ) -> Written {
            Written { place, function, instances, code, pid, name, detail, cause }
        }
    }

    proptest! {
        #[test]
        fn what_a_driver_writes_is_what_is_read(written in written()) {
            let line = written.line();
            prop_assert_eq!(nvrm(&line), Some(Line::Xid(written.read())), "{}", line);
        }

        #[test]
        fn any_line_has_a_verdict_or_is_none(
            head in "(NVRM: Xid \\(PCI:0000:3b:00\\)|nvidia-nvswitch3: SXid \\(PCI:0000:c5:00\\.0\\)): ",
            code in "(154|149|10004|10005|[0-9]{1,6})",
            said in "(, (Fatal|Severity 1|Data \\{|GPU recovery action changed from 0x0|to 0x[0-9a-fx]{0,20}|\\((PF FLR|None)\\)|\\PC{0,8})| to ){0,5}",
        ) {
            let line = format!("{head}{code}{said}");
            match nvrm(&line).or_else(|| nvswitch(&line)) {
                Some(Line::Xid(xid)) => proptest::prop_assert!(!xid.hint().is_empty()),
                Some(Line::Sxid(sxid)) => {
                    let _ = sxid.verdict();
                }
                _ => {}
            }
        }
    }

    #[test]
    fn what_goes_with_them() {
        let pci = || "0000:b3:00.0".to_owned();
        let identity = nvrm("NVRM: GPU at PCI:0000:b3:00: GPU-2f3c0000-1111-2222-3333-444455556666");
        assert_eq!(
            identity,
            Some(Line::Identity { pci: pci(), uuid: "GPU-2f3c0000-1111-2222-3333-444455556666" })
        );
        assert_eq!(
            nvrm("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."),
            Some(Line::FallenOff { pci: pci() })
        );
        assert_eq!(nvrm("NVRM: The NVIDIA GPU 0000:b3:00.0"), Some(Line::About { pci: pci() }));
        assert_eq!(
            nvrm("NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2330)"),
            Some(Line::About { pci: pci() })
        );
        let off = "NVRM: fallen off the bus and is not responding to commands.";
        assert_eq!(nvrm(off), Some(Line::AboutFallenOff));
        let rx = "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!";
        assert_eq!(nvrm(rx), Some(Line::RxDetect));
        assert_eq!(nvrm("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86"), None);
    }
}
