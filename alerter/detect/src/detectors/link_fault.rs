//! Detects a link that is down, flaps, or makes errors: InfiniBand, RoCE, EFA, Ethernet, NVLink,
//! PCIe.
//!
//! A link that goes down is a ticket at once and a page when it has stayed down for `page_after`
//! under a run: collectives wait about that long before they give up (`NCCL_IB_TIMEOUT` 20 to 22
//! and seven retries are 30 s and more), and a flap that they survive should wake nobody. A link
//! that the exporter reports as lost (`drop`) pages at once. An Ethernet link is a ticket however
//! long it is down: most are for management, or one leg of a bond. If the run needs it, the run
//! stands still; that pages, and names the link. Errors and a link that is slower than it should be
//! are tickets.
//!
//! Links of several nodes that go down together are one incident, because they share a switch.

use serde::{Deserialize, Serialize};

use super::faults::{Faults, Sort};
use crate::detector::{NodeAt, NodeDetector};
use crate::node::{Condition, Key, Level, NodeState, Topic};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Finding, Kind, Severity};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// How long a link may be down under a run before it pages.
    pub page_after: Span,
    /// How long a condition without an end, such as a burst of errors, counts after it was last
    /// published.
    pub quiet_after: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, page_after: Span::secs(15), quiet_after: Span::secs(600) }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LinkFault {
    faults: Faults,
}

impl Sort for Config {
    const KIND: Kind = Kind::LinkFault;
    const SIGNAL: &'static str = "link";

    fn is_ours(&self, key: &Key) -> bool {
        key.topic == Topic::Link
    }

    fn severity(&self, view: NodeAt<'_>, key: &Key, c: &Condition) -> Severity {
        let carries = !c.medium.is_empty() || c.level == Level::Error;
        let long = c.holds() && view.now >= c.first + self.page_after;
        match c.level {
            Level::Info => Severity::Info,
            _ if c.medium == "ethernet" || view.tenants.is_empty() => Severity::Ticket,
            _ if c.state == "drop" && c.level == Level::Error => Severity::Page,
            _ if key.is_link_down(c) && carries && long => Severity::Page,
            _ => Severity::Ticket,
        }
    }

    fn rises_at(&self, key: &Key, c: &Condition) -> Option<Ts> {
        (key.is_link_down(c) && c.holds()).then(|| c.first + self.page_after)
    }

    fn lasts(&self, _: &Key, _: &Condition) -> Span {
        self.quiet_after
    }
}

impl NodeDetector for LinkFault {
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
