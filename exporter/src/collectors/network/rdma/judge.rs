//! Publishes faults of the ports of the fabric in the stream.

use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use super::band::{self, Band, Peak};
use super::expect::{Expected, Known};
use super::{HEALTH_SECONDS, Look, Memory, RdmaReader, counters};
use crate::collector::Context;
use crate::link::pace::is_slower;
use crate::link::watch::Seen;
use crate::link::{Change, Level, Medium, State, Subject, is_set_up};
use crate::origin::Origin;
use crate::roots;

/// Seconds that a port must be slow: right after it comes up it may still report its old rate.
const SLOW_SECONDS: f64 = 10.0;
const GIGABIT: f64 = 125e6;

/// The state of one pass over the ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    pub(super) now: f64,
    /// Whether counters were read too.
    pub(super) slow: bool,
    /// Whether the grace time after the start is over.
    ready: bool,
}

impl Pass {
    pub(super) fn new(now: f64, slow: bool, memory: &Memory) -> Self {
        Self { now, slow, ready: now >= memory.ready_at }
    }
}

/// The events of a pass, in order.
#[derive(Debug)]
pub(super) struct LinkEvents {
    pass: Pass,
    events: Vec<Event>,
}

impl LinkEvents {
    fn add(&mut self, known: &Expected, hint: &str, changes: impl IntoIterator<Item = Change>) {
        let name = known.name();
        let subject = Subject {
            medium: known.medium(),
            name: &name,
            netdev: &known.netdev,
            pci: &known.pci,
            gpu: "",
            hint,
        };
        let now = self.pass.now;
        self.events.extend(changes.into_iter().map(|change| subject.event(now, &change)));
    }
}

impl RdmaReader {
    /// Returns whether any event was published.
    pub(super) fn judge(
        &mut self,
        pass: Pass,
        cx: &Context<'_>,
        memory: &mut Memory,
        looks: &[Look],
    ) -> bool {
        let mut report = LinkEvents { pass, events: Vec::new() };
        self.retire(&mut memory.known, looks, &mut report);
        for (key, known) in &mut memory.known.0 {
            let look = looks.iter().find(|look| look.key == *key);
            self.judge_state(cx, (key.as_str(), known), look, &mut report);
        }
        if pass.slow {
            self.judge_traffic(pass.now, &mut memory.known, looks);
            for (key, known) in &mut memory.known.0 {
                let look = looks.iter().find(|look| look.key == *key);
                self.judge_rate((key.as_str(), &mut *known), look, &mut report);
                self.judge_errors((key.as_str(), known), &mut report);
            }
            self.judge_readable(cx);
        }
        self.judge_number(&memory.known, looks, &mut report);
        let (any, now) = (!report.events.is_empty(), pass.now);
        if !(0.0..HEALTH_SECONDS).contains(&(now - self.health_at)) && self.counted.at.is_some() {
            self.health_at = now;
            report.events.extend(
                looks.iter().filter(|l| memory.known.0.contains_key(&l.key)).map(|l| self.health(now, l)),
            );
        }
        for event in report.events {
            if event.kind == Kind::Link {
                tracing::warn!(
                    link = event.name,
                    code = event.code,
                    "{}",
                    event.text.as_deref().unwrap_or_default()
                );
            }
            cx.hub.publish(Origin::Node, event);
        }
        any
    }

    /// Forgets the ports that are no longer judged: those excluded by the configuration, those
    /// found to be of the management network, and those missing from a node that has all expected
    /// ports without them.
    fn retire(&self, known: &mut Known, looks: &[Look], report: &mut LinkEvents) {
        let complete =
            report.pass.ready && self.config.expected.ports.is_some_and(|n| self.ports_up(looks) >= n);
        known.0.retain(|key, known| {
            let look = looks.iter().find(|l| l.key == *key);
            let apart = look.is_some_and(|l| l.role != super::Role::Fabric);
            let keep = self.wanted(&known.device) && !apart && (look.is_some() || !complete);
            if !keep {
                report.add(known, "", known.watch.clone().retire());
            }
            keep
        });
    }

    fn judge_state(
        &self,
        cx: &Context<'_>,
        (key, known): (&str, &mut Expected),
        look: Option<&Look>,
        report: &mut LinkEvents,
    ) {
        let Pass { now, slow, ready } = report.pass;
        let up = match look {
            Some(look) => look.state.up(),
            None => Some(false),
        };
        let Some(up) = up else { return };
        if up {
            known.learn(now, look.and_then(|l| l.state.rate));
        } else if !ready && known.watch.is_fresh() {
            return;
        }
        let downs = self.counted.all(key).find_map(|(name, n)| (name == "link_downed").then_some(n));
        let seen = Seen { up, downs: downs.filter(|_| slow) };
        let changes = known.watch.observe(now, &self.rule, seen);
        if !changes.is_empty() {
            report.add(known, &self.hint(cx, look), changes);
        }
    }

    fn judge_rate(
        &mut self,
        (key, known): (&str, &mut Expected),
        look: Option<&Look>,
        report: &mut LinkEvents,
    ) {
        let now = report.pass.now;
        let Some(rate) = look.filter(|l| l.state.up() == Some(true)).and_then(|l| l.state.rate) else {
            return;
        };
        let expected = self.expected_rate(known);
        let meters = self.meters.entry(key.to_owned()).or_default();
        let slow = is_slower(rate, expected);
        meters.slow_since = slow.then(|| meters.slow_since.unwrap_or(now));
        let lasting = meters.slow_since.is_some_and(|since| now - since >= SLOW_SECONDS);
        let text = if lasting {
            Some(format!("runs at {:.0} Gb/s, {:.0} Gb/s is expected", rate / GIGABIT, expected / GIGABIT))
        } else {
            meters.short.clone()
        };
        let level = if lasting { Level::Error } else { Level::Warn };
        let change = known.degraded.report(
            now,
            State::Degraded,
            text.map(|t| (level, t)),
            "is as fast as it should be again",
        );
        report.add(known, "", change);
    }

    /// The rate in bytes per second that the port should negotiate.
    pub(super) fn expected_rate(&self, known: &Expected) -> f64 {
        let said = self.config.expected.rate_gbps.filter(|_| self.expected.allow(&known.device));
        said.map_or(known.pace.best(), |gigabits| gigabits * GIGABIT)
    }

    fn judge_errors(&mut self, (key, known): (&str, &mut Expected), report: &mut LinkEvents) {
        let now = report.pass.now;
        if !self.counted.ports.contains_key(key) {
            return;
        }
        let counters: Vec<(&str, u64)> = self.counted.all(key).collect();
        let meters = self.meters.entry(key.to_owned()).or_default();
        meters.rates.take(now, &self.limits, &counters);
        let excesses = meters.rates.excesses(now, &self.limits);
        let is = if let Some(worst) = excesses.first() {
            meters.worst.clone_from(&worst.limit.counter);
            Some((worst.limit.level, worst.text()))
        } else {
            let saturated = self.counted.saturated.get(key);
            let blind = saturated.is_some_and(|s| known.errors.holds() && s.contains_key(&meters.worst));
            blind.then(|| (Level::Warn, at_its_end(&meters.worst)))
        };
        let change = known.errors.report(now, State::Errors, is, "has no more errors than a good link");
        report.add(known, "", change);
    }

    /// Records the traffic of the ports. At the end of a window, compares each with its usual or
    /// configured band.
    fn judge_traffic(&mut self, now: f64, known: &mut Known, looks: &[Look]) {
        for (key, values) in &self.counted.ports {
            let bytes = |family| counters::bytes(values, family);
            if let (Some(received), Some(sent)) =
                (bytes(&counters::RECEIVE_BYTES), bytes(&counters::TRANSMIT_BYTES))
            {
                self.meters.entry(key.clone()).or_default().traffic.take(now, received, sent);
            }
        }
        if self.window_at == f64::NEG_INFINITY || now < self.window_at {
            self.window_at = now;
        }
        if now - self.window_at < band::WINDOW_SECONDS {
            return;
        }
        self.window_at = now;
        let given =
            self.config.expected.bandwidth_gbps.map(|(low, high)| Band::given(low * GIGABIT, high * GIGABIT));
        let (mut keys, mut peaks) = (Vec::new(), Vec::new());
        for look in looks {
            let (Some(known), Some(meters)) = (known.0.get(&look.key), self.meters.get_mut(&look.key)) else {
                continue;
            };
            let given = given.filter(|_| self.expected.allow(&known.device));
            keys.push(&look.key);
            let rate = look.state.rate.unwrap_or(known.pace.best());
            peaks.push(Peak { peak: meters.traffic.close(), rate, band: given.or(known.band.known()) });
        }
        for ((key, peak), short) in keys.into_iter().zip(&peaks).zip(band::short(&peaks)) {
            let (Some(known), Some(meters)) = (known.0.get_mut(key), self.meters.get_mut(key)) else {
                continue;
            };
            if !short {
                known.band.learn(peak.peak, peak.rate);
            }
            let text = || {
                let band = peak.band.unwrap_or_default();
                let (moves, low, high) = (peak.peak / GIGABIT, band.low / GIGABIT, band.high / GIGABIT);
                if band.given {
                    format!(
                        "moves at most {moves:.0} Gb/s on a busy node, where {low:.0} to {high:.0} are expected"
                    )
                } else {
                    format!(
                        "moves at most {moves:.0} Gb/s, where it used to reach {low:.0} to {high:.0} and the other ports still reach theirs"
                    )
                }
            };
            meters.short = meters.traffic.judge(short).then(text);
        }
    }

    /// Checks that the number of known ports is the configured one. A known port that is down is
    /// reported by itself.
    fn judge_number(&mut self, known: &Known, looks: &[Look], report: &mut LinkEvents) {
        let Pass { now, ready, .. } = report.pass;
        let Some(expected) = self.config.expected.ports else { return };
        let have = known.0.values().filter(|k| self.expected.allow(&k.device)).count();
        if !ready && have < expected && self.complete.is_fresh() {
            return;
        }
        let changes = self.complete.observe(now, &self.rule, Seen { up: have >= expected, downs: None });
        let never: Vec<String> = looks
            .iter()
            .filter(|l| l.role == super::Role::Unprovisioned)
            .map(|l| {
                let (device, port) = self.at(l);
                format!("{}/{}", device.name, port.number)
            })
            .collect();
        let never =
            if never.is_empty() { String::new() } else { format!("; never up were {}", never.join(" ")) };
        for change in changes {
            let change = if change.over {
                Change { text: format!("are complete: {have} of {expected}"), ..change }
            } else {
                Change { text: format!("are incomplete: {have} of {expected} have been up{never}"), ..change }
            };
            let medium = known.0.values().next().map_or(Medium::Infiniband, Expected::medium);
            let subject = Subject { medium, name: "rdma", netdev: "", pci: "", gpu: "", hint: "" };
            let mut event = subject.event(now, &change);
            event.text = Some(format!("RDMA ports of this node {}", change.text));
            report.events.push(event);
        }
    }

    fn judge_readable(&mut self, cx: &Context<'_>) {
        for gone in self.unreadable.keys(UNREADABLE) {
            if !self.names.contains(&gone) {
                self.unreadable.report(cx, UNREADABLE, &gone, false, || unreadable(&gone, &[]));
            }
        }
        for name in &self.names {
            let failing: Vec<&str> = self.quarantine.failing(name).collect();
            self.unreadable.report(cx, UNREADABLE, name, !failing.is_empty(), || unreadable(name, &failing));
        }
    }

    /// A sample of the port for the comparison with peers.
    fn health(&self, now: f64, look: &Look) -> Event {
        let (device, port) = self.at(look);
        let mut event = Event { ts: Some(now), name: Some("rdma".into()), ..Event::new(Kind::Health) };
        let words = [
            ("device", &device.name),
            ("port", &port.number),
            ("netdev", &port.netdev),
            ("pci", &device.pci),
        ];
        for (key, word) in words.into_iter().filter(|(_, word)| !word.is_empty()) {
            event.extra.insert(key.into(), Value::Text(word.clone()));
        }
        let mut set = |name: &str, value: Option<f64>| {
            if let Some(value) = value {
                event.m.set(name, value);
            }
        };
        set("up", look.state.up().map(|up| f64::from(u8::from(up))));
        set("rate_bytes_per_second", look.state.rate.filter(|_| look.state.up() == Some(true)));
        let Some(values) = self.counted.ports.get(&look.key).filter(|values| !values.is_empty()) else {
            return event;
        };
        set("receive_bytes", counters::bytes(values, &counters::RECEIVE_BYTES));
        set("transmit_bytes", counters::bytes(values, &counters::TRANSMIT_BYTES));
        set("errors", Some(counters::errors(self.counted.all(&look.key)) as f64));
        for (name, file) in HEALTH {
            set(name, values.get(*file).map(|v| *v as f64));
        }
        event
    }
}

const UNREADABLE: NodeCondition = NodeCondition::RdmaUnreadable;

/// Counters for the comparison with peers, and their files.
static HEALTH: &[(&str, &str)] = &[
    ("link_downed", "link_downed"),
    ("symbol_errors", "symbol_error"),
    ("link_error_recoveries", "link_error_recovery"),
    ("transmit_wait_ticks", "port_xmit_wait"),
    ("transmit_discards", "port_xmit_discards"),
    ("out_of_sequence", "out_of_sequence"),
    ("ack_timeouts", "local_ack_timeout_err"),
    ("congestion_marks", "np_ecn_marked_roce_packets"),
    ("retransmitted_bytes", "retrans_bytes"),
    ("retransmitted_packets", "retrans_pkts"),
    ("receive_drops", "rx_drops"),
];

fn unreadable(device: &str, failing: &[&str]) -> Event {
    let text = if failing.is_empty() {
        format!("RDMA device {device} can be read")
    } else {
        let failing = failing.join(", ");
        format!(
            "RDMA device {device} cannot be read in {failing}: left alone, and looked at again from time to time"
        )
    };
    let mut event = Event { level: Some("warn".into()), text: Some(text), ..Event::new(Kind::Hw) };
    event.extra.insert("device".into(), Value::Text(device.into()));
    event
}

/// The reason why excessive errors of a port cannot be reported as over.
fn at_its_end(counter: &str) -> String {
    format!(
        "had errors, and cannot report whether it still has: {counter} stands at the highest value that it can hold; clear it (on InfiniBand `perfquery -R`)"
    )
}

impl RdmaReader {
    /// The state of a port that is down, and its usual cause.
    fn hint(&self, cx: &Context<'_>, look: Option<&Look>) -> String {
        let Some(look) = look else {
            return "the device is gone from the node; if that is intended, set collectors.rdma.expected"
                .into();
        };
        let state = look.state.state.as_ref();
        let (device, port) = self.at(look);
        match &look.state.physical {
            Some((2, word)) => {
                format!("no signal from the other end ({word}); look at cable, transceiver and switch port")
            }
            // Drivers of RoCE report this state for every port that is down.
            Some((3, _)) if port.link_layer == "Ethernet" => without_carrier(cx, &device.name, &port.netdev),
            Some((3, word)) => format!("the port is disabled ({word})"),
            Some((6, word)) => format!("the link is recovering from errors ({word}); look at the cable"),
            Some((5, _)) if state.is_some_and(|(id, _)| *id == 2) => {
                "the link is there, but no subnet manager has set the port up (INIT)".into()
            }
            Some((5, _)) | None => String::new(),
            Some((_, word)) => format!("its physical state is {word}"),
        }
    }
}

/// The reason why a port of RoCE is down: its network interface shows whether that is intended.
fn without_carrier(cx: &Context<'_>, device: &str, netdev: &str) -> String {
    const LOOK: &str = "look at the cable, the transceiver and the switch port";
    let flags = cx.roots.sys("class/infiniband").join(device).join("device/net").join(netdev).join("flags");
    let up = (!netdev.is_empty()).then(|| roots::read(&flags)).flatten().and_then(|text| is_set_up(&text));
    match up {
        Some(true) => format!("{netdev} has no carrier; {LOOK}"),
        Some(false) => format!(
            "{netdev} was set down by an administrator; `ip link set {netdev} up` if that was not meant"
        ),
        None => format!("no carrier, or set down by an administrator; {LOOK}"),
    }
}
