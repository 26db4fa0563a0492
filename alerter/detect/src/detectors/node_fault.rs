//! Detects a fault of the host of a run: storage that does not answer, a clock that drifts, memory
//! or PCIe errors, a killed process, a driver that hangs.
//!
//! A condition of level `error` pages when it hits a run and, where it has an end, has held for
//! `page_after`; the rest is a ticket. Ranks that did not join by NCCL's own status, and a driver
//! that does not answer the exporter, are evidence for a hang and never a page by themselves: the
//! run that stands still pages.

use serde::{Deserialize, Serialize};
use stepwatch_wire::conditions::{Incident, Pages};

use super::faults::{Faults, Sort};
use crate::detector::{NodeAt, NodeDetector};
use crate::node::{Condition, Key, Level, NodeState, Topic};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Finding, Kind, Severity};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// How long an error may hold under a run before it pages.
    pub page_after: Span,
    /// How long a network file system may be away: it fails over and comes back, and a run that it
    /// stops meanwhile has an incident of its own.
    pub mount_page_after: Span,
    /// How long a condition that happens once counts after it was last published.
    pub quiet_after: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            page_after: Span::secs(15),
            mount_page_after: Span::secs(300),
            quiet_after: Span::secs(600),
        }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NodeFault {
    faults: Faults,
}

impl Config {
    fn pages_at(&self, key: &Key, c: &Condition) -> Ts {
        let after_failover = pages(key) == Pages::AfterFailover;
        c.first + if after_failover { self.mount_page_after } else { self.page_after }
    }
}

impl Sort for Config {
    const KIND: Kind = Kind::NodeFault;
    const SIGNAL: &'static str = "node";

    fn is_ours(&self, key: &Key) -> bool {
        // A condition of an exporter of another version may have no row.
        key.topic == Topic::Hw && key.row().is_none_or(|row| row.incident == Incident::NodeFault)
    }

    fn severity(&self, view: NodeAt<'_>, key: &Key, c: &Condition) -> Severity {
        let lasted = c.once || view.now >= self.pages_at(key, c);
        let evidence = pages(key) == Pages::Never;
        match c.level {
            Level::Error if lasted && !view.tenants.is_empty() && !evidence => Severity::Page,
            Level::Error | Level::Warn => Severity::Ticket,
            Level::Info => Severity::Info,
        }
    }

    fn rises_at(&self, key: &Key, c: &Condition) -> Option<Ts> {
        (c.level == Level::Error && c.holds()).then(|| self.pages_at(key, c))
    }

    fn lasts(&self, _: &Key, _: &Condition) -> Span {
        self.quiet_after
    }
}

fn pages(key: &Key) -> Pages {
    key.row().map_or(Pages::OnceItLasts, |row| row.pages)
}

impl NodeDetector for NodeFault {
    type Config = Config;

    fn look(&mut self, c: &Config, view: NodeAt<'_>, out: &mut Vec<Finding>) {
        if c.enabled {
            self.faults.look(c, view, out);
        }
    }

    fn deadline(&self, c: &Config, f: &NodeState) -> Option<Ts> {
        self.faults.deadline(c, f)
    }
}
