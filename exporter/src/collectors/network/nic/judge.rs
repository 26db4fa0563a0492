//! Publishes faults of the node's Ethernet links in the stream.
//!
//! A link is judged from when it was first up until its interface is set down or leaves the node:
//! an interface that was never cabled is no fault, nor is one that a container took over. Its rate,
//! and the number of its losses, are kept across restarts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::Event;

use super::driver::Answer;
use super::{Link, MAX_DEVICES};
use crate::collector::Context;
use crate::link::pace::{Pace, is_slower};
use crate::link::rates::{Limit, Rates};
use crate::link::watch::{Rule, Seen, Watch};
use crate::link::{Level, Medium, Standing, State, Subject};
use crate::origin::Origin;
use crate::persisted_state;

const STATE_NAME: &str = "nic";
const SAVE_SECONDS: f64 = 600.0;
const FORGET_SECONDS: f64 = 14.0 * 86_400.0;
/// Seconds that a link must be slow: right after it comes up it may still report its old rate.
const SLOW_SECONDS: f64 = 10.0;
const GIGABIT: f64 = 125e6;

type Sum = fn(&Answer, char) -> Option<u64>;
/// Derived counters that are sums over the driver's, by direction.
const SUMS: &[(&str, Sum, char)] = &[
    ("rx_pause_duration", Answer::paused, 'r'),
    ("tx_pause_duration", Answer::paused, 't'),
    ("rx_xoff_frames", Answer::pauses, 'r'),
    ("tx_xoff_frames", Answer::pauses, 't'),
];

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Known {
    up_at: f64,
    pace: Pace,
    watch: Watch,
    #[serde(skip)]
    slow_since: Option<f64>,
    #[serde(skip)]
    degraded: Standing,
    #[serde(skip)]
    errors: Standing,
    #[serde(skip)]
    rates: Rates,
}

#[derive(Debug)]
pub(super) struct Judge {
    rule: Rule,
    limits: Vec<Limit>,
    /// The key is the name of the interface; `None` before the first pass.
    known: Option<BTreeMap<String, Known>>,
    saved_at: f64,
    failing: bool,
}

/// One evaluation of an interface.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) link: &'a Link,
    /// The speed in bytes per second.
    pub(super) speed: Option<f64>,
    /// How many times the carrier was lost.
    pub(super) downs: Option<u64>,
    pub(super) pci: &'a str,
    /// The driver's answer, if the driver was just queried.
    pub(super) answer: Option<&'a Answer>,
}

/// The limits, which good links do not reach. A pause for a fifth of the time means that the host
/// receives more than it can take, or that the fabric throttles it. A storm means that the host has
/// stopped its switch.
///
/// Some drivers count only pause frames. One holds a link for at most 65,535 times 512 bits, a
/// third of a millisecond at 100 Gb/s, and is repeated after half of that. So a thousand a second
/// are a fifth of the time there too, and all of it at 25 Gb/s and below.
pub(super) fn limits() -> Vec<Limit> {
    use Level::{Error, Warn};
    const CABLE: &str = "clean or replace cable and transceiver";
    const TOO_SLOW: &str = "this host takes what it is sent too slowly";
    const NO_ROOM: &str = "this host has too little room for what it is sent";
    const HOUR: f64 = 3600.0;
    const TEN_MINUTES: f64 = 600.0;
    const MINUTE: f64 = 60.0;
    const FIFTH_OF_A_MINUTE: u64 = 12_000_000;
    const XOFF_FRAMES: u64 = 60_000;
    [
        (
            "tx_pause_storm_error_events",
            TEN_MINUTES,
            0,
            Error,
            "this host does not take what it is sent, and stops its switch port",
        ),
        ("tx_pause_storm_warning_events", TEN_MINUTES, 0, Warn, TOO_SLOW),
        ("continuous_pause_events", TEN_MINUTES, 0, Warn, TOO_SLOW),
        ("continuous_roce_pause_events", TEN_MINUTES, 0, Warn, TOO_SLOW),
        (
            "tx_pause_duration",
            MINUTE,
            FIFTH_OF_A_MINUTE,
            Warn,
            "in microseconds: this host takes what it is sent too slowly; look at its PCIe link",
        ),
        (
            "rx_pause_duration",
            MINUTE,
            FIFTH_OF_A_MINUTE,
            Warn,
            "in microseconds: the fabric holds this host back; look for congestion ahead",
        ),
        (
            "tx_xoff_frames",
            MINUTE,
            XOFF_FRAMES,
            Warn,
            "in pause frames: this host takes what it is sent too slowly; look at its PCIe link",
        ),
        (
            "rx_xoff_frames",
            MINUTE,
            XOFF_FRAMES,
            Warn,
            "in pause frames: the fabric holds this host back; look for congestion ahead",
        ),
        ("rx_symbol_err_phy", HOUR, 120, Warn, CABLE),
        ("rx_pcs_symbol_err_phy", HOUR, 120, Warn, CABLE),
        ("rx_crc_errors_phy", HOUR, 120, Warn, CABLE),
        ("rx_pcs_symbol_err", HOUR, 120, Warn, CABLE),
        ("rx_fcs_err_frames", HOUR, 120, Warn, CABLE),
        ("rx_crc_errors.nic", HOUR, 120, Warn, CABLE),
        ("illegal_bytes.nic", HOUR, 120, Warn, CABLE),
        ("rx_discards_phy", MINUTE, 6000, Warn, NO_ROOM),
        ("rx_dropped.nic", MINUTE, 6000, Warn, NO_ROOM),
    ]
    .into_iter()
    .map(|(counter, window, most, level, meaning)| Limit::new(counter, window, most, level, meaning))
    .collect()
}

impl Judge {
    pub(super) fn new(rule: Rule, limits: Vec<Limit>) -> Self {
        Self { rule, limits, known: None, saved_at: f64::NEG_INFINITY, failing: false }
    }

    pub(super) fn pass(&mut self, now: f64, cx: &Context<'_>, looks: &[Look<'_>]) {
        let mut known =
            self.known.take().unwrap_or_else(|| persisted_state::load(cx.roots.state.as_deref(), STATE_NAME));
        let mut events = Vec::new();
        known.retain(|device, known| {
            let look = looks.iter().find(|look| look.link.device == *device);
            let kept = look.is_some_and(|look| look.link.admin_up != Some(false));
            if !kept {
                let subject = subject(device, look.map_or("", |look| look.pci));
                events.extend(known.watch.retire().map(|change| subject.event(now, &change)));
            }
            kept || (look.is_none() && !known.watch.is_idle() && now - known.up_at < FORGET_SECONDS)
        });
        for look in looks.iter().filter(|look| look.link.admin_up != Some(false)) {
            let room = known.len() < MAX_DEVICES;
            if look.link.up == Some(true) && room && !known.contains_key(&look.link.device) {
                known.insert(look.link.device.clone(), Known::default());
            }
            if let Some(known) = known.get_mut(&look.link.device) {
                self.judge(now, known, look, &mut events);
            }
        }
        let news = !events.is_empty();
        for event in events {
            tracing::warn!(
                link = event.name,
                code = event.code,
                "{}",
                event.text.as_deref().unwrap_or_default()
            );
            cx.hub.publish(Origin::Node, event);
        }
        self.save(now, cx, &known, news);
        self.known = Some(known);
    }

    fn judge(&self, now: f64, known: &mut Known, look: &Look<'_>, events: &mut Vec<Event>) {
        let Some(up) = look.link.up else { return };
        let subject = subject(&look.link.device, look.pci);
        let mut changes = known.watch.observe(now, &self.rule, Seen { up, downs: look.downs });
        if up {
            known.up_at = now;
        }
        if let (true, Some(speed)) = (up, look.speed) {
            known.pace.learn(now, speed);
            let best = known.pace.best();
            known.slow_since = is_slower(speed, best).then(|| known.slow_since.unwrap_or(now));
            let slow = known.slow_since.is_some_and(|since| now - since >= SLOW_SECONDS);
            let text = || {
                format!("runs at {:.0} Gb/s, it was at {:.0} Gb/s before", speed / GIGABIT, best / GIGABIT)
            };
            let is = slow.then(|| (Level::Warn, text()));
            changes.extend(known.degraded.report(now, State::Degraded, is, "is as fast as it was again"));
        }
        if let Some(answer) = look.answer {
            let mut counters: Vec<(&str, u64)> = answer.stats.iter().map(|(n, v)| (n.as_str(), *v)).collect();
            counters.extend(
                SUMS.iter().filter_map(|(name, sum, direction)| Some((*name, sum(answer, *direction)?))),
            );
            known.rates.take(now, &self.limits, &counters);
            let excesses = known.rates.excesses(now, &self.limits);
            let is = excesses.first().map(|worst| (worst.limit.level, worst.text()));
            changes.extend(known.errors.report(
                now,
                State::Errors,
                is,
                "has no more errors than a good link",
            ));
        }
        events.extend(changes.iter().map(|change| subject.event(now, change)));
    }

    /// The conditions of an interface, if it is judged.
    pub(super) fn conditions(&self, device: &str) -> Option<[(State, bool); State::CONDITIONS.len()]> {
        let known = self.known.as_ref()?.get(device)?;
        let holds = |state| match state {
            State::Degraded => known.degraded.holds(),
            State::Errors => known.errors.holds(),
            state => known.watch.open() == Some(state),
        };
        Some(State::CONDITIONS.map(|state| (state, holds(state))))
    }

    fn save(&mut self, now: f64, cx: &Context<'_>, known: &BTreeMap<String, Known>, news: bool) {
        if !news && (0.0..SAVE_SECONDS).contains(&(now - self.saved_at)) {
            return;
        }
        self.saved_at = now;
        let saved = persisted_state::save(cx.roots.state.as_deref(), STATE_NAME, known);
        if let Err(error) = &saved
            && !self.failing
        {
            tracing::warn!(%error, "cannot save how the Ethernet links of this node fared; a restart will not know");
        }
        self.failing = saved.is_err();
    }
}

fn subject<'a>(device: &'a str, pci: &'a str) -> Subject<'a> {
    Subject { medium: Medium::Ethernet, name: device, netdev: device, pci, gpu: "", hint: "" }
}
