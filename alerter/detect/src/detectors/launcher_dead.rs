//! What started the training process is gone, and said nothing: nobody reads its output any more,
//! or tells how it ends.
//!
//! The training process may live on, so it is a ticket; evidence where the run stands still. Over
//! when the run has gone on for a few steps.

use serde::{Deserialize, Serialize};

use super::reported::{About, Ends, Reported};
use crate::detector::{ClockDetector, RunView};
use crate::run::{RunState, Topic};
use stepwatch_model::time::Ts;
use stepwatch_model::{Finding, Kind, Severity};

const ABOUT: About = About { topic: Topic::LauncherDead, kind: Kind::LauncherDead, ends: Ends::WithProgress };

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
pub struct LauncherDead {
    reported: Reported,
}

impl ClockDetector for LauncherDead {
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
