//! Bonded interfaces: whether all of their links carry traffic. A bond that lost one of two links
//! is up at half its speed, and the next failure disconnects the node.
//!
//! The files are described in Documentation/networking/bonding.rst and in
//! drivers/net/bonding/bond_sysfs.c and bond_sysfs_slave.c of torvalds/linux.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stepwatch_kit::config::Period;
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::condition::Conditions;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::link::Level;
use crate::roots::{self, Roots};
use crate::samples::Samples;

pub const ABOUT: &str = "bonded interfaces: which of their links carry traffic";
pub const NEEDS: &str = "/sys/class/net; any user";
pub const COST: &str = "three small files a link";

pub static INFO: Family = Family::gauge(
    "nic_bond_info",
    "",
    &["device", "mode", "active"],
    "Bonded interface with its mode, and the link that is used where only one is; always 1",
);
pub static LINKS: Family =
    Family::gauge("nic_bond_links", "", &["device"], "Links that the bond is configured to have");
pub static LINK_UP: Family = Family::gauge(
    "nic_bond_link_up",
    "",
    &["device", "link"],
    "Whether the link of the bond is up, as the bonding driver sees it",
);
pub static FAILURES: Family = Family::counter(
    "nic_bond_link_failures_total",
    "",
    &["device", "link"],
    "How often the link of the bond failed",
);

pub static FAMILIES: &[&Family] = &[&INFO, &LINKS, &LINK_UP, &FAILURES];

/// The most bonds of one node, and the most links of one bond.
const MAX_BONDS: usize = 32;
const MAX_LINKS: usize = 16;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// A link that is down is reported after this long.
    pub grace: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(10),
            grace: Period::secs(30),
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct BondsReader {
    grace: Duration,
    conditions: Conditions,
    /// When a link of each bond went down.
    since: BTreeMap<String, Instant>,
}

/// The state of a bond.
#[derive(Debug, PartialEq, Eq)]
struct Bond {
    name: String,
    mode: String,
    active: String,
    links: Vec<Link>,
}

#[derive(Debug, PartialEq, Eq)]
struct Link {
    name: String,
    up: Option<bool>,
    failures: Option<u64>,
}

impl BondsReader {
    pub fn new(config: &Config) -> Self {
        Self { grace: config.grace.into(), conditions: Conditions::default(), since: BTreeMap::new() }
    }

    fn judge(&mut self, cx: &Context<'_>, bond: &Bond) {
        let down: Vec<&str> =
            bond.links.iter().filter(|link| link.up == Some(false)).map(|link| link.name.as_str()).collect();
        let now = Instant::now();
        if down.is_empty() {
            self.since.remove(&bond.name);
        }
        let late = !down.is_empty() && {
            let since = self.since.entry(bond.name.clone()).or_insert(now);
            now.saturating_duration_since(*since) >= self.grace
        };
        let Bond { name, links, .. } = bond;
        self.conditions.report(cx, NodeCondition::BondDegraded, name, late, || {
            let (count, of) = (down.len(), links.len());
            let text = if down.is_empty() {
                format!("all {of} links of {name} are up")
            } else {
                format!("{count} of {of} links of {name} {} down: {}", is(count), down.join(", "))
            };
            event(name, text, count >= of)
        });
    }
}

fn is(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

impl Collector for BondsReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let bonds: Vec<String> = bonds(cx.roots).into_iter().map(|bond| bond.name).collect();
        if bonds.is_empty() {
            return Ok(Support::Unsupported("no interface is a bond".into()));
        }
        Ok(Support::Supported(bonds.join(", ")))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let bonds = bonds(cx.roots);
        for bond in &bonds {
            let Bond { name, mode, active, links } = bond;
            out.set(&INFO, &[name, mode, active], 1u64);
            out.set(&LINKS, &[name], links.len());
            for link in links {
                out.maybe(&LINK_UP, &[name, &link.name], link.up);
                out.maybe(&FAILURES, &[name, &link.name], link.failures);
            }
            self.judge(cx, bond);
        }
        self.since.retain(|name, _| bonds.iter().any(|bond| bond.name == *name));
        for name in self.conditions.keys(NodeCondition::BondDegraded) {
            if bonds.iter().all(|bond| bond.name != name) {
                let gone = || event(&name, format!("{name} is not there any more"), false);
                self.conditions.report(cx, NodeCondition::BondDegraded, &name, false, gone);
            }
        }
        Ok(())
    }
}

fn event(name: &str, text: String, all: bool) -> Event {
    let level = if all { Level::Error } else { Level::Warn };
    let mut event = Event {
        ts: Some(unix_now()),
        level: Some(level.as_str().to_owned()),
        text: Some(text),
        ..Event::new(Kind::Hw)
    };
    event.extra.insert("device".into(), Value::Text(name.to_owned()));
    event
}

fn bonds(roots: &Roots) -> Vec<Bond> {
    let class = roots.sys("class/net");
    // `bonding_masters` lists the bonds, separated by blanks.
    let names = roots::read(&class.join("bonding_masters")).unwrap_or_default();
    let bond = |name: &str| {
        let text = |file: &str| roots::read(&class.join(name).join("bonding").join(file)).unwrap_or_default();
        let links = text("slaves");
        // The file has the name and the number, such as `802.3ad 4`.
        let mode = text("mode").split(' ').next().unwrap_or_default().to_owned();
        let links = links.split_whitespace().take(MAX_LINKS).map(|link| {
            let of = |file: &str| roots::read(&class.join(link).join("bonding_slave").join(file));
            let up = of("mii_status").map(|status| status == "up");
            let failures = of("link_failure_count").and_then(|count| count.parse().ok());
            Link { name: link.to_owned(), up, failures }
        });
        Bond { name: name.to_owned(), mode, active: text("active_slave"), links: links.collect() }
    };
    names.split_whitespace().take(MAX_BONDS).map(bond).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bench;

    #[test]
    fn a_bond_that_lost_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join("class/net").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        };
        let bench = Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
        let mut reader = BondsReader::new(&Config { grace: Period::millis(0), ..Config::default() });
        assert!(matches!(reader.probe(&bench.context()), Ok(Support::Unsupported(_))));
        write("bonding_masters", "bond0");
        write("bond0/bonding/slaves", "eth0 eth1");
        write("bond0/bonding/mode", "802.3ad 4");
        write("bond0/bonding/active_slave", "");
        for (link, failures) in [("eth0", "0"), ("eth1", "3")] {
            write(&format!("{link}/bonding_slave/mii_status"), "up");
            write(&format!("{link}/bonding_slave/link_failure_count"), failures);
        }
        assert!(matches!(reader.probe(&bench.context()), Ok(Support::Supported(text)) if text == "bond0"));
        let page = bench.collect(&mut reader);
        assert_eq!(page.get(&INFO, &["bond0", "802.3ad", ""]), Some(1.0));
        assert_eq!(
            (page.get(&LINKS, &["bond0"]), page.get(&LINK_UP, &["bond0", "eth1"])),
            (Some(2.0), Some(1.0))
        );
        assert_eq!(page.get(&FAILURES, &["bond0", "eth1"]), Some(3.0));
        let mut said = || {
            bench.collect(&mut reader);
            let said = bench.published().into_iter();
            said.map(|e| (e.level.unwrap(), e.text.unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(said(), []);
        write("eth1/bonding_slave/mii_status", "down");
        assert_eq!(said(), [("warn".into(), "1 of 2 links of bond0 is down: eth1".into())]);
        assert_eq!(said(), []);
        write("eth1/bonding_slave/mii_status", "up");
        assert_eq!(said(), [("info".into(), "all 2 links of bond0 are up".into())]);
        for link in ["eth0", "eth1"] {
            write(&format!("{link}/bonding_slave/mii_status"), "down");
        }
        assert_eq!(said(), [("error".into(), "2 of 2 links of bond0 are down: eth0, eth1".into())]);
        write("bonding_masters", "");
        assert_eq!(said(), [("info".into(), "bond0 is not there any more".into())]);
    }
}
