//! Families of the kernel log.

use crate::family::Family;

pub static XIDS: Family = Family::counter(
    "gpu_xid_errors_total",
    "",
    &["gpu", "xid"],
    "XID errors since the boot, those of MIG instances included, of every known code from 0 on where the family is asked for. The PCI address stands for a GPU whose UUID is unknown",
).unless_zero();
pub static NONFATAL_XIDS: Family = Family::counter(
    "gpu_xid_nonfatal_errors_total",
    "",
    &["gpu", "xid"],
    "XID errors of NVLink 5 (144 to 150) since the boot that do no harm, by their sub-code or else by the word Nonfatal, from the first one on; gpu_xid_errors_total counts them too",
);
pub static LAST_XID: Family = Family::gauge(
    "gpu_xid_last_timestamp_seconds",
    "seconds",
    &["gpu", "xid"],
    "Unix time of the last XID error of this code since the boot, those of gpu_xid_nonfatal_errors_total aside; what is before gpu_last_reset_timestamp_seconds is history",
);
pub static LOGGED_RECOVERY: Family = Family::gauge(
    "gpu_xid_recovery_action",
    "",
    &["gpu", "action"],
    "Action on the GPU that the driver asked for last in the kernel log (XID 154) since the boot: 1, and absent once the log takes it back. gpu_recovery_action is what NVML reports now",
);
pub static MIG_XIDS: Family = Family::counter(
    "gpu_mig_xid_errors_total",
    "",
    &["gpu", "gi", "ci", "xid"],
    "XID errors since the boot that the driver attributes to a MIG instance, from the first one on; gpu_xid_errors_total counts them too",
);
pub static SXIDS: Family = Family::counter(
    "gpu_nvswitch_sxid_errors_total",
    "",
    &["nvswitch", "sxid", "severity"],
    "SXID errors of NVSwitches since the boot, from the first one on; `severity` is that of the line: fatal, non_fatal, correctable, or unknown if it contains none. kernel_events_total counts them from 0, but for what was corrected and what is a mere note",
);
pub static EVENTS: Family = Family::counter(
    "kernel_events_total",
    "",
    &["event"],
    "Signs of trouble in the kernel log since the boot, by what they are",
);
pub(super) static UNKNOWN: Family = Family::counter(
    "kernel_unknown_messages_total",
    "",
    &["priority"],
    "Messages of the kernel, warning or worse, that this node has never seen before, numbers and names aside",
);
pub(super) static KNOWN: Family = Family::gauge(
    "kernel_known_messages",
    "",
    &[],
    "Messages that the node has learned, at most 8192: beyond it a new one counts as unknown each time",
);
pub(super) static READ: Family =
    Family::counter("kernel_log_records_total", "", &[], "Records of the kernel log read since the boot");
pub(super) static LOST: Family = Family::counter(
    "kernel_log_lost_records_total",
    "",
    &[],
    "Records of the kernel log that were overwritten before they were read: there may have been XIDs among them",
);
pub(super) static MALFORMED: Family = Family::counter(
    "kernel_log_malformed_records_total",
    "",
    &[],
    "Records of the kernel log that could not be read as such",
);
pub(super) static SUPPRESSED: Family = Family::counter(
    "stepwatch_exporter_kernel_events_suppressed_total",
    "",
    &[],
    "Events of the kernel log that were counted but not published in the stream, because many of the same were within a minute",
);

pub static FAMILIES: &[&Family] = &[
    &XIDS,
    &NONFATAL_XIDS,
    &LAST_XID,
    &LOGGED_RECOVERY,
    &MIG_XIDS,
    &SXIDS,
    &EVENTS,
    &UNKNOWN,
    &KNOWN,
    &READ,
    &LOST,
    &MALFORMED,
    &SUPPRESSED,
];
