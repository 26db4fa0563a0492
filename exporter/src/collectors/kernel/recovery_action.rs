//! The recovery actions of GPUs that the driver requests: the one table for XID 154 of the kernel
//! log, for field 230 of NVML and for `check`.
//!
//! The numbers are those of `nvmlDeviceGpuRecoveryAction_t`: 0 to 5 in nvml.h (NVIDIA/go-nvml,
//! gen/nvml/nvml.h), 6 and 7 in `DeviceGpuRecoveryAction` of NVIDIA/cuda-python. The line of XID
//! 154 has the same number and a wording that differs between drivers (`PF FLR`, `GPU Reset
//! Required`); a few drivers print only the wording.

use stepwatch_wire::conditions::Remedy;

use super::catalogue::Level;

/// The command that resets a GPU. It first makes the exporter release the driver, which refuses a
/// reset or an unload while it is open.
pub const RESET: &str = "reset the GPU before the next job (curl -X POST localhost:9765/-/nvml/release; nvidia-smi --gpu-reset; curl -X POST localhost:9765/-/nvml/acquire)";
/// The largest number that the driver may use for an action.
pub const MAX_NUMBER: u32 = 255;

/// A recovery action of a GPU that the driver requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveryAction {
    /// The value of the label `action`.
    pub name: &'static str,
    pub level: Level,
    pub remedy: Remedy,
    /// The driver's request, for the reader of the event.
    pub hint: &'static str,
    /// The advice for the reader of `check`'s result.
    pub advice: &'static str,
}

/// The index is the driver's number.
pub static ALL: [RecoveryAction; 8] = [
    RecoveryAction {
        name: "none",
        level: Level::Info,
        remedy: Remedy::None,
        hint: "The driver wants nothing done to it any more",
        advice: "nothing to do",
    },
    RecoveryAction {
        name: "gpu_reset",
        level: Level::Error,
        remedy: Remedy::ResetGpu,
        hint: "The driver wants the GPU reset: drain it now and reset it",
        advice: RESET,
    },
    RecoveryAction {
        name: "node_reboot",
        level: Level::Error,
        remedy: Remedy::RebootNode,
        hint: "The driver wants the node rebooted, a reset of the GPU is not enough: drain the node and reboot it",
        advice: REBOOT,
    },
    RecoveryAction {
        name: "drain_p2p",
        level: Level::Error,
        remedy: Remedy::DrainReset,
        hint: "The driver wants its peer-to-peer traffic stopped: end the jobs on all GPUs that it is linked with, then see what the driver wants next",
        advice: "let jobs on the node end, then reset the GPU; no new peer-to-peer job until then",
    },
    RecoveryAction {
        name: "drain_and_reset",
        level: Level::Warn,
        remedy: Remedy::DrainReset,
        hint: "The driver wants the GPU drained and reset: at the end of the job, until then it works with less",
        advice: "let jobs on the node end, then reset the GPU",
    },
    // The GPU is healthy, but not the domain with which it shares memory over NVLink.
    RecoveryAction {
        name: "recover_imex_domain",
        level: Level::Error,
        remedy: Remedy::ContactSupport,
        hint: "The driver wants the IMEX domain of the GPU recovered: end the jobs that span its NVLink domain, and restart nvidia-imex on every node of it",
        advice: "restart nvidia-imex on every node of its NVLink domain",
    },
    RecoveryAction {
        name: "bus_reset",
        level: Level::Error,
        remedy: Remedy::ResetGpu,
        hint: "The driver wants the PCIe bus of the GPU reset: drain it now and reset it, or reboot the node where the reset fails",
        advice: RESET,
    },
    RecoveryAction {
        name: "system_reboot",
        level: Level::Error,
        remedy: Remedy::RebootNode,
        hint: "The driver wants the whole system rebooted: drain the node and reboot it",
        advice: REBOOT,
    },
];

const REBOOT: &str = "reboot the node before the next job";

/// An action with a number that is newer than this program.
static UNKNOWN: RecoveryAction = RecoveryAction {
    name: "unknown",
    level: Level::Error,
    remedy: Remedy::ContactSupport,
    hint: "The driver wants something done to the GPU that is newer than this exporter: look it up in its documentation",
    advice: "follow its driver's documentation",
};

/// The number of no action.
pub const NONE: u32 = 0;
/// The number of a reset, which a GPU needs that does not answer.
pub const GPU_RESET: u32 = 1;

const UNKNOWN_NAME: &str = "action_";

/// The action with this number of the driver.
pub fn by_number(number: u32) -> &'static RecoveryAction {
    usize::try_from(number).ok().and_then(|number| ALL.get(number)).unwrap_or(&UNKNOWN)
}

/// The action with this value of the label.
pub fn by_name(name: &str) -> &'static RecoveryAction {
    ALL.iter().find(|action| action.name == name).unwrap_or(&UNKNOWN)
}

/// The value of the label for a number.
pub fn name(number: u32) -> String {
    match by_number(number) {
        action if *action == UNKNOWN => format!("{UNKNOWN_NAME}{number}"),
        action => action.name.to_owned(),
    }
}

/// The number that the line of an XID 154 requests, if it can be parsed: `GPU recovery action
/// changed from 0x0 (None) to 0x1 (GPU Reset Required)`. An unknown number is replaced by that of
/// the words.
pub(super) fn number_in(line: &str) -> Option<u32> {
    let (_, to) = line.split_once(" to 0x").or_else(|| line.rsplit_once(" to "))?;
    let (number, words) = to.split_once('(').unwrap_or((to, to));
    let number = u32::from_str_radix(number.trim().trim_end_matches('.'), 16).ok();
    let known = number.filter(|number| ALL.get(*number as usize).is_some());
    known.or_else(|| by_words(words)).or(number.filter(|number| *number <= MAX_NUMBER))
}

/// Words of the driver with their numbers, the more specific ones first.
const WORDS: &[(&str, u32)] = &[
    ("imex", 5),
    ("bus reset", 6),
    ("system reboot", 7),
    ("drain and reset", 4),
    ("reboot", 2),
    ("reset", GPU_RESET),
    ("flr", GPU_RESET),
    ("drain", 3),
    ("none", NONE),
];

fn by_words(words: &str) -> Option<u32> {
    let words = words.to_ascii_lowercase();
    WORDS.iter().find(|(said, _)| words.contains(said)).map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_action_is_one_row_and_its_label_leads_back_to_it() {
        for (number, action) in (0..).zip(&ALL) {
            assert_eq!(by_number(number), action);
            assert_eq!(by_name(&name(number)), action);
            assert_eq!(by_words(&action.name.replace('_', " ")), Some(number), "{}", action.name);
        }
        assert_eq!(name(9), "action_9");
        assert_eq!((by_number(9), by_name("action_9")), (&UNKNOWN, &UNKNOWN));
        assert_eq!((by_number(NONE).remedy, by_number(GPU_RESET).remedy), (Remedy::None, Remedy::ResetGpu));
    }

    /// Lines of drivers 535 to 580 from public reports: NVIDIA/NVSentinel (csv_test.go), and
    /// reports of users of the open driver.
    #[test]
    fn the_line_of_an_xid_154() {
        let changed = "GPU recovery action changed from 0x0 (None) to";
        for (to, number) in [
            ("0x0 (None)", 0),
            ("0x1 (GPU Reset Required)", 1),
            ("0x1 (PF FLR)", 1),
            ("0x2 (Node Reboot Required)", 2),
            ("0x2 (OS Reboot)", 2),
            ("0x5 (Recover IMEX Domain)", 5),
            ("0x6 (Bus Reset)", 6),
            ("0x7 (System Reboot)", 7),
            ("0x3", 3),
            ("0x3.", 3),
            ("0x1 (Whatever it may be called to morrow)", 1),
            ("0x9", 9),
            // The words count if the number is unknown.
            ("0x9 (Recover IMEX Domain)", 5),
            ("0x9 (Something new)", 9),
        ] {
            assert_eq!(number_in(&format!("{changed} {to}")), Some(number), "{to}");
        }
        let words = "GPU recovery action changed from None to Node Reboot Required";
        assert_eq!(number_in(words), Some(2));
        assert_eq!(
            number_in("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
            Some(0)
        );
        for no in ["", "(", " to ", "GPU recovery action changed", "changed to 0xffffffff"] {
            assert_eq!(number_in(no), None, "{no}");
        }
    }

    proptest! {
        #[test]
        fn any_line_asks_for_a_number_or_for_none(line in ".*( to 0x[0-9a-f]{0,9})?.*") {
            prop_assert!(number_in(&line).is_none_or(|number| number <= MAX_NUMBER));
        }
    }
}
