//! Reports alerts that the training script raised itself, as `wandb.alert` does.
//!
//! A ticket with its text for levels `error` and `warn`, a note for others. It never pages: only
//! the author of the script knows how urgent it is. It is over when no alert came for
//! `clear_after`.

use serde::{Deserialize, Serialize};

use super::reported::{About, Ends, Reported};
use crate::detector::{ClockDetector, RunAt};
use crate::run::{Report, RunState, Topic};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Finding, Kind, Severity};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The time without alerts that ends the incident.
    pub clear_after: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, clear_after: Span::secs(600) }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct UserAlert {
    reported: Reported,
}

impl UserAlert {
    fn about(c: &Config) -> About {
        About { topic: Topic::UserAlert, kind: Kind::UserAlert, ends: Ends::After(c.clear_after) }
    }
}

impl ClockDetector for UserAlert {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        if c.enabled {
            self.reported.look(view, Self::about(c), severity, out);
        }
    }

    fn deadline(&self, c: &Config, _: &RunState) -> Option<Ts> {
        self.reported.deadline(Self::about(c))
    }
}

fn severity(report: &Report) -> Severity {
    match report.level.as_str() {
        "error" | "critical" | "fatal" | "warn" | "warning" => Severity::Ticket,
        _ => Severity::Info,
    }
}
