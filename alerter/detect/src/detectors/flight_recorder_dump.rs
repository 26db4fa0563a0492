//! The NCCL watchdog of a rank dumped its flight recorder: a collective did not end.
//!
//! A ticket of its own when nothing else is open; evidence in the incident of a hang or a dead
//! rank, which has the same cause. Over when the run has gone on for a few steps.

use serde::{Deserialize, Serialize};

use super::reported::{About, Ends, Reported};
use crate::detector::{ClockDetector, RunView};
use crate::run::{RunState, Topic};
use stepwatch_model::time::Ts;
use stepwatch_model::{Finding, Kind, Severity};

const ABOUT: About =
    About { topic: Topic::FlightRecorderDump, kind: Kind::FlightRecorderDump, ends: Ends::WithProgress };

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FlightRecorderDump {
    reported: Reported,
}

impl ClockDetector for FlightRecorderDump {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunView<'_>, out: &mut Vec<Finding>) {
        if c.enabled {
            self.reported.look(view, ABOUT, |_| Severity::Ticket, out);
        }
    }

    fn deadline(&self, _: &Config, _: &RunState) -> Option<Ts> {
        self.reported.deadline(ABOUT)
    }
}
