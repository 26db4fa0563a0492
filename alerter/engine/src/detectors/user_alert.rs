//! The training script raised an alert of its own, as `wandb.alert` does.
//!
//! A ticket with its text for levels `error` and `warn`, a note for others: whoever wrote the script knows what it means, and it is
//! not for us to wake anyone for it. It is over when nothing more was said for `clear_after`.

use serde::{Deserialize, Serialize};

use super::reported::{About, Ends, Reported};
use crate::detector::ClockDetector;
use crate::run::{Facts, Report, Topic};
use crate::time::{Span, Ts};
use crate::verdict::{Kind, Severity, Verdict};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Silence of the script that ends the incident.
    pub clear_after: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, clear_after: Span::secs(600) }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UserAlert {
    config: Config,
    reported: Reported,
}

impl UserAlert {
    pub fn configure(&mut self, config: &Config) {
        self.config = config.clone();
    }

    pub fn new(config: &Config) -> Self {
        Self { config: config.clone(), reported: Reported::default() }
    }

    fn about(&self) -> About {
        About { topic: Topic::UserAlert, kind: Kind::UserAlert, ends: Ends::After(self.config.clear_after) }
    }
}

impl ClockDetector for UserAlert {
    fn look(&mut self, now: Ts, f: &Facts, out: &mut Vec<Verdict>) {
        if self.config.enabled {
            self.reported.look(now, f, self.about(), severity, out);
        }
    }

    fn deadline(&self, _: &Facts) -> Option<Ts> {
        self.reported.deadline(self.about())
    }
}

fn severity(report: &Report) -> Severity {
    match report.level.as_str() {
        "error" | "critical" | "fatal" | "warn" | "warning" => Severity::Ticket,
        _ => Severity::Info,
    }
}
