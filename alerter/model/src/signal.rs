//! The signals of findings: the name in messages and the unit of the value. A signal that is not
//! listed is shown under its own name, as a number.

use crate::number;
use crate::time::Span;

/// How the value of a signal is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalUnit {
    Number,
    Seconds,
    /// Seconds that may add up to hours: shown as a duration.
    Duration,
    /// A share of 1: shown in percent.
    Share,
    Hertz,
    /// The finding is about an event, and has no value.
    Event,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    pub name: &'static str,
    pub label: &'static str,
    pub unit: SignalUnit,
}

macro_rules! signals {
    ($($name:literal $unit:ident $label:literal;)*) => {
        const SIGNALS: &[Signal] = &[$(Signal { name: $name, label: $label, unit: SignalUnit::$unit }),*];
    };
}

signals! {
//  name                unit     label
    "loss"              Number   "Loss";
    "eval_loss"         Number   "Evaluation loss";
    "grad_norm"         Number   "Gradient norm";
    "loss_scale"        Number   "Loss scale";
    "skipped_iterations" Number  "Skipped iterations";
    "step_time"         Seconds  "Step time";
    "compute_time"      Number   "Compute time against its peers";
    "data_wait"         Share    "Waiting for data";
    "mfu"               Share    "MFU";
    "tokens_per_second" Number   "Tokens/s";
    "step"              Duration "Silent for";
    "unsaved_work"      Duration "Unsaved work";
    "checkpoint_time"   Duration "Checkpoint took";
    "checkpoint_share"  Share    "Time spent on checkpoints";
    "upload_lag"        Duration "Not durable for";
    "checkpoint_size"   Share    "Size against the usual one";
    "checkpoint_room"   Number   "Checkpoints that fit";
    "load_time"         Duration "Load took";
    "eval_steps"        Number   "Steps since an evaluation";
    "gpu_waste"         Duration "Wasted for";
    "sm_clock"          Hertz    "SM clock";
    "ecc"               Number   "Corrected errors in an hour";
    "alerter"           Event    "Alerter";
    "config"            Event    "Config";
    "gpu"               Event    "GPU";
    "incidents"         Event    "Incidents";
    "link"              Event    "Link";
    "node"              Event    "Node";
    "owner"             Event    "Owner";
    "peers"             Event    "Peers";
    "process"           Event    "Process";
    "simulation"         Event    "Simulated";
    "report"            Event    "Report";
    "source"            Event    "Source";
    "store"             Event    "Store";
    ""                  Event    "";
}

impl Signal {
    pub fn find(name: &str) -> Option<&'static Self> {
        SIGNALS.iter().find(|signal| signal.name == name)
    }
}

impl SignalUnit {
    /// The value with its unit. `None` if there is nothing to show: an event, or a clock without a
    /// reference.
    pub fn text(self, value: f64) -> Option<String> {
        match self {
            Self::Event => None,
            Self::Hertz if !value.is_finite() => None,
            Self::Seconds => Some(format!("{} s", number(value))),
            Self::Duration if value.is_finite() => Some(Span::from_secs_f64(value).to_string()),
            Self::Share => Some(format!("{:.1} %", 100.0 * value)),
            Self::Hertz => Some(format!("{} GHz", number(value / 1e9))),
            Self::Number | Self::Duration => Some(number(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn values_are_shown_in_their_unit() {
        let shown = |name: &str, v| Signal::find(name).unwrap().unit.text(v);
        assert_eq!(shown("step_time", 4.2).as_deref(), Some("4.2 s"));
        assert_eq!(shown("mfu", 0.41).as_deref(), Some("41.0 %"));
        assert_eq!(shown("step", 90.0).as_deref(), Some("1m 30s"));
        assert_eq!(shown("sm_clock", 1.4e9).as_deref(), Some("1.4 GHz"));
        assert_eq!(shown("loss", f64::NAN).as_deref(), Some("NaN"));
        assert_eq!(shown("unsaved_work", f64::INFINITY).as_deref(), Some("infinity"));
        assert_eq!(shown("sm_clock", f64::NAN), None);
        assert_eq!(shown("owner", f64::NAN), None);
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = SIGNALS.iter().map(|s| s.name).collect();
        assert_eq!(names.len(), SIGNALS.len());
    }
}
