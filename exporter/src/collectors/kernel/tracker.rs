//! Converts records of the log into counts and events.

use std::collections::{BTreeMap, HashMap};

use stepwatch_wire::Event;
use stepwatch_wire::conditions::NodeCondition;

use super::counts::{Counts, Held};
use super::events::{self, LogLine, Oom};
use super::first_seen::{KnownMessages, normalise};
use super::lines::{self, Facts, Found};
use super::nvidia::{Line, Severity};
use super::patterns::{Pattern, Report};
use super::record::Record;
use crate::roots::Roots;

/// The most records over which one message of the driver spreads its lines.
const WINDOW: u64 = 3;
/// Records below this priority number (warnings and worse) are checked for messages that this node
/// has never logged before.
const WORST: usize = 5;
/// The most events of one kind and device that are published within [`BURST_SECONDS`]; further ones
/// are only counted.
const BURST: u32 = 10;
const BURST_SECONDS: f64 = 60.0;
/// The most pairs of kind and device whose events are limited separately.
const MAX_BURSTS: usize = 1024;
/// The value of [`Tracker::publish_from`] before any record is published, at the first start since
/// boot.
pub(super) const NOT_YET: u64 = u64::MAX;
/// Seconds between repeated events of a condition that still holds.
const AGAIN_SECONDS: f64 = 600.0;
/// Seconds after which a condition that the kernel has not logged again is over. The kernel logs no
/// end if the waiting process was killed, a file system was unmounted by force or its disk was
/// removed, and it drops lines in a storm. An incident must not stay open until the next boot.
/// Servers are seldom away for longer. Other collectors report, as long as they last, mounts that
/// do not answer, Lustre connections that are down and file systems that cannot be written.
pub(super) const HOLDS_SECONDS: f64 = 6.0 * 3600.0;
/// The condition of an unreachable Lustre target.
pub(super) const LUSTRE: &str = NodeCondition::LustreStall.name();

#[derive(Debug, Default)]
pub(super) struct Tracker {
    pub(super) counts: Counts,
    pub(super) known: KnownMessages,
    /// Whether new messages are stored without being counted.
    pub(super) learning: bool,
    /// The first sequence number that is published. Earlier records were published already, or are
    /// too old.
    pub(super) publish_from: u64,
    pub(super) events: Vec<Event>,
    /// Whether an XID named a PCI address of no known GPU.
    pub(super) stranger: bool,
    overwritten: bool,
    oom: Option<Oom>,
    /// The GPU of the driver's current message, and the last record that may belong to it.
    about: Option<(String, u64)>,
    /// For each key, when its burst began, and how many of its events were published.
    bursts: HashMap<String, (f64, u32)>,
}

impl Tracker {
    /// Continues from `counts`, and publishes records from `publish_from` on.
    pub(super) fn new(counts: Counts, publish_from: u64) -> Self {
        Self { counts, publish_from, ..Self::default() }
    }

    /// Records that the log was overwritten; the next record shows by how much.
    pub(super) fn overwritten(&mut self) {
        self.overwritten = true;
    }

    /// Evaluates a record. One that was evaluated before is ignored.
    pub(super) fn take(&mut self, bytes: &[u8], roots: &Roots, time: impl FnOnce(u64) -> f64) {
        let Some(record) = Record::parse(bytes) else {
            // In a plain file, continuation lines are separate records.
            self.counts.malformed += u64::from(!bytes.starts_with(b" ") && !bytes.is_empty());
            return;
        };
        let expected = self.counts.next.unwrap_or(record.sequence);
        if record.sequence < expected {
            return;
        }
        let missing = record.sequence - expected;
        let missing = missing.max(u64::from(std::mem::take(&mut self.overwritten)));
        self.counts.lost = self.counts.lost.saturating_add(missing);
        self.counts.next = Some(record.sequence.saturating_add(1));
        self.counts.read += 1;
        let ts = time(record.micros);
        let mut understood = false;
        for line in lines::lines(&record.text) {
            understood |= self.line(LogLine { text: line.trim_end(), sequence: record.sequence, ts, roots });
        }
        if !understood {
            let text = record.text.split('\n').next().unwrap_or_default();
            self.novelty(&record, LogLine { text, sequence: record.sequence, ts, roots });
        }
    }

    /// Evaluates a line. Returns whether a pattern matched.
    fn line(&mut self, at: LogLine<'_>) -> bool {
        let Some(found) = lines::recognise(at.text) else { return false };
        match found {
            Found::Nvidia(found) => self.nvidia(found, at),
            Found::OomContext { pid, cgroup, constraint } => {
                self.oom = Some(Oom { pid, cgroup: cgroup.to_owned(), constraint: constraint.to_owned() });
            }
            Found::Pattern(pattern, facts) => self.pattern(pattern, &facts, at),
        }
        true
    }

    fn nvidia(&mut self, found: Line<'_>, at: LogLine<'_>) {
        match found {
            Line::Xid(xid) => {
                self.counts.event(Pattern::Xid);
                self.counts.xid(at.ts, &xid);
                let known = self.counts.knows(&xid.pci);
                self.stranger |= !known;
                let gpu = known.then(|| self.counts.gpu(&xid.pci));
                let event = events::xid(at.ts, &xid, gpu);
                self.publish(event, at);
            }
            Line::Sxid(sxid) => {
                self.counts.sxid(&sxid);
                let Some(event) = events::sxid(at.ts, &sxid) else { return };
                self.counts.event(match sxid.severity {
                    Severity::Fatal => Pattern::SxidFatal,
                    Severity::NonFatal => Pattern::SxidNonfatal,
                    Severity::Correctable | Severity::Unknown => Pattern::SxidUnknown,
                });
                self.publish(event, at);
            }
            Line::SxidData => {}
            Line::Identity { pci, uuid } => self.counts.learn(&pci, uuid),
            Line::About { pci } => self.about = Some((pci, at.sequence.saturating_add(WINDOW))),
            Line::FallenOff { pci } => self.fallen_off(&pci, at),
            Line::AboutFallenOff => {
                let about = self.about.take().filter(|(_, until)| at.sequence <= *until);
                self.fallen_off(&about.unwrap_or_default().0, at);
            }
            Line::RxDetect => self.pattern(Pattern::NvlinkRxDetect, &Facts::default(), at),
        }
    }

    fn fallen_off(&mut self, pci: &str, at: LogLine<'_>) {
        let facts = Facts { pci, ..Facts::default() };
        self.pattern(Pattern::GpuFallenOff, &facts, at);
    }

    fn pattern(&mut self, pattern: Pattern, facts: &Facts<'_>, at: LogLine<'_>) {
        self.counts.event(pattern);
        if pattern == Pattern::CperPreviousBoot {
            return self.previous_boot(facts, at);
        }
        let oom = self.oom.take_if(|oom| pattern == Pattern::OomKill && facts.pid == Some(oom.pid));
        let fresh = at.sequence >= self.publish_from;
        // A condition keeps its text even if its beginning is not published.
        if !fresh && !matches!(pattern.report(), Report::Begin { .. } | Report::End { .. }) {
            return;
        }
        let Some(mut event) = events::pattern(pattern.report(), facts, at, oom.as_ref()) else { return };
        let pci = super::nvidia::address(facts.pci).filter(|pci| self.counts.knows(pci));
        if let Some(pci) = pci {
            events::of_gpu(&mut event, self.counts.gpu(&pci));
        }
        match pattern.report() {
            // Without a device, a condition cannot be matched with its end, so it would never end.
            Report::Begin { .. } if facts.device.is_empty() => {}
            Report::Begin { condition, .. } => {
                if let Some(held) = self.counts.holds(condition.name(), facts.device) {
                    held.said = Some(at.ts);
                    facts.server.clone_into(&mut held.server);
                    return;
                }
                let held = Held {
                    name: condition.name().to_owned(),
                    device: facts.device.to_owned(),
                    level: event.level.clone().unwrap_or_default(),
                    text: event.text.clone().unwrap_or_default(),
                    told: (self.publish_from != NOT_YET).then_some(at.ts),
                    server: facts.server.to_owned(),
                    said: Some(at.ts),
                };
                if !self.counts.hold(held) {
                    self.counts.suppressed += 1;
                    return;
                }
            }
            Report::End { condition, .. } => {
                for held in self.counts.end(condition.name(), facts.device, facts.server) {
                    let facts = Facts { device: &held.device, ..facts.clone() };
                    let event = events::pattern(pattern.report(), &facts, at, None);
                    event.into_iter().for_each(|event| self.publish(event, at));
                }
                return;
            }
            _ => {}
        }
        self.publish(event, at);
    }

    /// Publishes the hardware error that ended the previous boot. The kernel logs it before any
    /// program can read the log, so it is published on the first start too. Several errors are
    /// published as one.
    fn previous_boot(&mut self, facts: &Facts<'_>, at: LogLine<'_>) {
        let pattern = Pattern::CperPreviousBoot;
        let published = self.publish_from != NOT_YET && at.sequence < self.publish_from;
        if !published && self.counts.events.get(pattern.as_str()) == Some(&1) {
            self.events.extend(events::pattern(pattern.report(), facts, at, None));
        }
    }

    /// Publishes the event, unless it was published before or the limit of its burst is reached.
    fn publish(&mut self, event: Event, at: LogLine<'_>) {
        if at.sequence < self.publish_from {
            return;
        }
        let of = |key: &str| event.extra.get(key).and_then(|v| v.as_str()).unwrap_or_default();
        let name = event.name.as_deref().unwrap_or_default();
        let code = event.code.unwrap_or_default();
        let key = format!("{} {name} {code} {} {}", event.kind.as_str(), of("pci"), of("device"));
        if self.bursts.len() >= MAX_BURSTS {
            self.bursts.retain(|_, (began, _)| at.ts - *began < BURST_SECONDS);
        }
        if self.bursts.len() >= MAX_BURSTS && !self.bursts.contains_key(&key) {
            self.counts.suppressed += 1;
            return;
        }
        let (began, published) = self.bursts.entry(key).or_insert((at.ts, 0));
        if at.ts - *began >= BURST_SECONDS {
            (*began, *published) = (at.ts, 0);
        }
        *published += 1;
        if *published > BURST {
            self.counts.suppressed += 1;
        } else {
            self.events.push(event);
        }
    }

    /// Counts and publishes a message of the kernel that this node has never logged before. The
    /// alerter finds out whether it is unusual among the nodes.
    fn novelty(&mut self, record: &Record<'_>, at: LogLine<'_>) {
        let priority = usize::from(record.priority);
        if priority >= WORST || record.facility != 0 {
            return;
        }
        let message = at.text;
        if self.known.learn(message) && !self.learning {
            self.counts.unknown[priority] += 1;
            if let Some(template) = normalise(message) {
                let event = events::unknown(at, message, &template);
                self.publish(event, at);
            }
            // A kernel that endlessly logs new messages must not fill this program's log.
            if !self.known.full() {
                tracing::info!(
                    message = message.trim(),
                    "the kernel logged a message that is new on this node"
                );
            }
        }
    }

    /// Publishes again the conditions that still hold, and ends those not logged for too long.
    pub(super) fn again(&mut self, now: f64) {
        let Self { counts, events, .. } = self;
        counts.held.retain_mut(|held| {
            let said = *held.said.get_or_insert(now);
            if now - said >= HOLDS_SECONDS {
                let why = format!("the kernel has not logged it again for {:.0} h", HOLDS_SECONDS / 3600.0);
                // A condition that was never reported needs no end event.
                events.extend(held.told.map(|_| events::over(now, held, &why)));
                return false;
            }
            if held.told.is_none_or(|at| now - at >= AGAIN_SECONDS) {
                held.told = Some(now);
                events.push(events::again(now, held));
            }
            true
        });
    }

    /// Applies the states of the Lustre client's imports at `asked`, by their names in the log.
    pub(super) fn imports(&mut self, now: f64, asked: f64, up: &BTreeMap<String, bool>) {
        let Self { counts, events, .. } = self;
        counts.held.retain_mut(|held| {
            let Some(up) = up.get(&held.device).filter(|_| held.name == LUSTRE) else { return true };
            // A line after the query is newer than its answer.
            if *up && held.said.is_some_and(|said| said < asked) {
                let why = "the connection to the Lustre server is back";
                events.extend(held.told.map(|_| events::over(now, held, why)));
                return false;
            }
            if !*up {
                held.said = Some(held.said.map_or(asked, |said| said.max(asked)));
            }
            true
        });
    }
}

#[cfg(test)]
mod tests;
