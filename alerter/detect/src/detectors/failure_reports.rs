//! Reports from programs other than the trainer on why a rank failed: torchelastic's `error.json`
//! (which names the rank that failed first and the exception), a dump of NCCL's flight recorder (a
//! collective did not end), and a launcher that is gone.
//!
//! Each is a ticket of its own if nothing else is open, and evidence in the incident of a hang or a
//! dead rank, which has the same cause. It is over when the run has made a few more steps.

use serde::{Deserialize, Serialize};

use super::reported::{About, Ends, Reported};
use crate::detector::{ClockDetector, RunAt};
use crate::run::{RunState, Topic};
use stepwatch_model::time::Ts;
use stepwatch_model::{Finding, Kind, Severity};

const REPORTS: [About; 3] = [
    about(Topic::TorchelasticError, Kind::TorchelasticError),
    about(Topic::FlightRecorderDump, Kind::FlightRecorderDump),
    about(Topic::LauncherDead, Kind::LauncherDead),
];

const fn about(topic: Topic, kind: Kind) -> About {
    About { topic, kind, ends: Ends::WithProgress }
}

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
pub struct FailureReports {
    reported: [Reported; REPORTS.len()],
}

impl ClockDetector for FailureReports {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        if c.enabled {
            for (reported, about) in self.reported.iter_mut().zip(REPORTS) {
                reported.look(view, about, |_| Severity::Ticket, out);
            }
        }
    }

    /// `None`, because each ends with the run's progress.
    fn deadline(&self, _: &Config, _: &RunState) -> Option<Ts> {
        None
    }
}
