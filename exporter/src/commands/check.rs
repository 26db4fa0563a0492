//! `check`: is this node fit to train, now? For a Slurm prolog or HealthCheckProgram, a Kubernetes init container, a
//! person.
//!
//! It looks and touches nothing: no service is asked, nothing is written. Each check gives findings; the worst one is the
//! exit status.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::collectors::{COLLECTORS, nic};
use crate::config::Config;
use crate::hub::{Hub, Parts, unix_now};
use crate::roots::{self, Roots};
use crate::schedule::{Schedule, State};
use crate::training::Archive;

/// From good to bad; what could not be told is worse than good and better than bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    Unknown,
    Unhealthy,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub verdict: Verdict,
    pub text: String,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub verdict: Verdict,
    pub exit: u8,
    pub findings: Vec<Finding>,
}

type Check = fn(&Config, &Arc<Roots>) -> Vec<Finding>;

/// Every check, one line each.
const CHECKS: &[Check] = &[clock, clock_source, state_room, links, collectors];

/// Less room than this for state and logs is trouble within the day.
const MIN_FREE_BYTES: u64 = 256 << 20;
const MIN_FREE_SHARE: f64 = 0.02;
/// No clock that is right says less: it is when this was written.
const EARLIEST: f64 = 1_767_225_600.0;
const LATEST: f64 = 4_102_444_800.0;
/// Clock sources that a read of the time can use without entering the kernel.
const FAST_CLOCKS: &[&str] = &[
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "hyperv_clocksource",
    "arch_sys_counter",
    "xen",
    "timebase",
];

pub fn run(config: &Config, roots: &Roots) -> Report {
    let roots = Arc::new(roots.clone());
    let findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(config, &roots)).collect();
    let verdict = findings.iter().map(|f| f.verdict).max().unwrap_or(Verdict::Unknown);
    let exit = match verdict {
        Verdict::Ok => 0,
        Verdict::Unhealthy => 1,
        Verdict::Unknown => 2,
    };
    Report { verdict, exit, findings }
}

impl Report {
    /// One line a finding, the worst last: what a terminal shows when it scrolls.
    pub fn text(&self) -> String {
        let mut findings: Vec<&Finding> = self.findings.iter().collect();
        findings.sort_by_key(|f| f.verdict);
        let line = |f: &&Finding| {
            let verdict = match f.verdict {
                Verdict::Ok => "ok",
                Verdict::Unknown => "unknown",
                Verdict::Unhealthy => "unhealthy",
            };
            format!("{verdict:<9} {:<10} {}\n", f.check, f.text)
        };
        findings.iter().map(line).collect()
    }

    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

fn finding(check: &'static str, verdict: Verdict, text: impl Into<String>) -> Finding {
    Finding { check, verdict, text: text.into() }
}

fn clock(_: &Config, _: &Arc<Roots>) -> Vec<Finding> {
    let now = unix_now();
    let (verdict, text) = if now < EARLIEST {
        (Verdict::Unhealthy, "the clock is behind the date of this program")
    } else if now > LATEST {
        (Verdict::Unhealthy, "the clock is in another century")
    } else {
        (Verdict::Ok, "the clock is plausible")
    };
    vec![finding("clock", verdict, text)]
}

/// A kernel that lost faith in the processor's counter reads the time a hundred times slower, and every step with it.
fn clock_source(_: &Config, roots: &Arc<Roots>) -> Vec<Finding> {
    let path = roots.sys("devices/system/clocksource/clocksource0/current_clocksource");
    vec![match roots::read(&path) {
        None => finding("clock", Verdict::Ok, "no choice of clock source on this node"),
        Some(source) if FAST_CLOCKS.contains(&source.as_str()) => {
            finding("clock", Verdict::Ok, format!("clock source {source}"))
        }
        Some(source) => finding(
            "clock",
            Verdict::Unhealthy,
            format!("clock source {source} is slow: the kernel found the processor's counter unstable"),
        ),
    }]
}

fn state_room(config: &Config, _: &Arc<Roots>) -> Vec<Finding> {
    // Before the first start the directory is not there yet; the file system it will be on is.
    let dir = config.state_dir.ancestors().find(|d| d.exists()).unwrap_or(Path::new("/"));
    let shown = config.state_dir.display();
    vec![match rustix::fs::statvfs(dir) {
        Err(error) => finding("disk", Verdict::Unknown, format!("cannot tell the room of {shown}: {error}")),
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let total = stat.f_blocks.saturating_mul(stat.f_frsize);
            let share = free as f64 / total.max(1) as f64;
            let full = free < MIN_FREE_BYTES || share < MIN_FREE_SHARE;
            let text = format!("{} MiB free for {shown}", free >> 20);
            finding("disk", if full { Verdict::Unhealthy } else { Verdict::Ok }, text)
        }
    }]
}

fn links(config: &Config, roots: &Arc<Roots>) -> Vec<Finding> {
    if !config.collectors.nic.enabled {
        return Vec::new();
    }
    let links = match nic::Reader::new(&config.collectors.nic).links(roots) {
        Ok(links) => links,
        Err(error) => return vec![finding("nic", Verdict::Unknown, error.to_string())],
    };
    let meant_up = links.iter().filter(|l| l.admin_up != Some(false));
    meant_up
        .map(|link| match link.up {
            Some(true) => finding("nic", Verdict::Ok, format!("{} is up", link.device)),
            Some(false) => {
                finding("nic", Verdict::Unhealthy, format!("{} is meant to be up and is down", link.device))
            }
            None => finding("nic", Verdict::Unknown, format!("{} does not tell its state", link.device)),
        })
        .collect()
}

/// Each collector makes one pass, as it would in service.
fn collectors(config: &Config, roots: &Arc<Roots>) -> Vec<Finding> {
    let hub = Hub::new(Parts {
        node: String::new(),
        boot: "check".into(),
        ring: config.ring(),
        training: config.training(),
        archive: Archive::default(),
        keep: None,
    });
    let schedule = Schedule::start(COLLECTORS, &config.collectors, roots, &hub);
    schedule.wait_first_pass();
    let status = schedule.status();
    let findings = status.into_iter().filter_map(|s| {
        let verdict = match s.state {
            State::Disabled => return None,
            State::Healthy | State::Unsupported => Verdict::Ok,
            // It reads or it does not: a failure says that nothing could be seen, not that something is broken.
            State::Failed | State::Starting => Verdict::Unknown,
            State::Stuck => Verdict::Unhealthy,
        };
        Some(finding("collector", verdict, format!("{} {}: {}", s.name, s.state.as_str(), s.detail)))
    });
    findings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(files: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
        let dir = tempfile::tempdir().unwrap();
        let base = [
            ("proc/stat", "btime 1\n"),
            ("sys/class/net/eth0/type", "1\n"),
            ("sys/class/net/eth0/device/x", ""),
        ];
        for (path, text) in base.iter().chain(files) {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let roots =
            Roots { sysfs: dir.path().join("sys"), procfs: dir.path().join("proc"), ..Roots::default() };
        (dir, roots)
    }

    fn config(dir: &tempfile::TempDir) -> Config {
        Config { state_dir: dir.path().join("not/there/yet"), ..Config::default() }
    }

    #[test]
    fn a_healthy_node() {
        let (dir, roots) =
            node(&[("sys/class/net/eth0/operstate", "up\n"), ("sys/class/net/eth0/flags", "0x1003\n")]);
        let report = run(&config(&dir), &roots);
        assert_eq!((report.verdict, report.exit), (Verdict::Ok, 0), "{}", report.text());
        let text = report.text();
        assert!(text.contains("ok        nic        eth0 is up\n"), "{text}");
        assert!(text.contains("gpu unsupported: no NVIDIA kernel driver with a GPU"), "{text}");
    }

    #[test]
    fn a_link_that_is_down_and_one_that_may_be() {
        let (dir, roots) = node(&[
            ("sys/class/net/eth0/operstate", "down\n"),
            ("sys/class/net/eth0/flags", "0x1003\n"),
            ("sys/class/net/eth1/type", "1\n"),
            ("sys/class/net/eth1/device/x", ""),
            ("sys/class/net/eth1/operstate", "down\n"),
            ("sys/class/net/eth1/flags", "0x1002\n"),
        ]);
        let report = run(&config(&dir), &roots);
        assert_eq!(report.exit, 1);
        let bad: Vec<_> = report.findings.iter().filter(|f| f.verdict == Verdict::Unhealthy).collect();
        assert_eq!(bad.len(), 1, "{}", report.text());
        assert_eq!(bad[0].text, "eth0 is meant to be up and is down");
        assert!(report.text().trim_end().lines().last().unwrap().starts_with("unhealthy"));
    }

    #[test]
    fn a_node_that_cannot_be_read_or_lost_its_clock() {
        let (dir, roots) =
            node(&[("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n")]);
        let report = run(&config(&dir), &roots);
        assert_eq!(report.exit, 1);
        assert!(report.text().contains("hpet is slow"), "{}", report.text());
        let (dir, mut roots) =
            node(&[("sys/class/net/eth0/operstate", "up\n"), ("sys/class/net/eth0/flags", "0x1003\n")]);
        roots.procfs = dir.path().join("nothing");
        let report = run(&config(&dir), &roots);
        assert_eq!((report.verdict, report.exit), (Verdict::Unknown, 2), "{}", report.text());
        let (dir, roots) = node(&[]);
        let report = run(&config(&dir), &roots);
        assert_eq!((report.verdict, report.exit), (Verdict::Unknown, 2), "{}", report.text());
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["verdict"], "unknown");
    }
}
